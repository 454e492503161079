//! The pages of a file in the kernel's page cache.
//!
//! This module must never bring anything of the file into the cache: it only asks.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use super::mapping::{PAGE, map_raw};

/// The pages of a file, which is not empty, that are in the cache.
///
/// # Errors
/// The kernel's.
pub fn cached_pages(path: &Path) -> io::Result<usize> {
    let file = File::open(path)?;
    let len = file.metadata()?.len() as usize;
    // SAFETY: nothing is replaced: no flag here says where it has to be.
    let start = unsafe { map_raw(0, len, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd()) }?;
    let at = std::ptr::with_exposed_provenance_mut(start);
    let mut cached = vec![0u8; len.div_ceil(PAGE)];
    // SAFETY: the range is the mapping just made, and the kernel writes one byte for each page of
    // it to `cached`, which is as long.
    let told = done(unsafe { libc::mincore(at, len, cached.as_mut_ptr()) });
    // SAFETY: no other code knows of the mapping.
    done(unsafe { libc::munmap(at, len) })?;
    told?;
    // The other bits are reserved.
    Ok(cached.iter().filter(|page| **page & 1 == 1).count())
}

fn done(result: i32) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fresh_writes_are_in_the_cache() {
        let file = tempfile::NamedTempFile::new().expect("room");
        std::fs::write(file.path(), vec![1; 3 * PAGE + 1]).expect("room");
        assert_eq!(cached_pages(file.path()).expect("a mapping"), 4);
    }
}
