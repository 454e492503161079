//! Files that are shared memory: a memfd, or a file of tmpfs as in /dev/shm.
//!
//! Processes that share one map it; this process may or may not. This module must never map it, nor
//! change its content, length or seals: a mapping of a file that is cut short kills its user.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;

use pagoda_core::page::OS_PAGE;
use rustix::fs::{OFlags, SealFlags, fcntl_get_seals, fcntl_getfl, fstatfs, major, minor};

use super::direct_file::memory_filesystem;
use crate::mem::range::PageRange;
use crate::procfs::maps::{Mapping, MapsReader};

fn refused(kind: io::ErrorKind, why: &str) -> io::Error {
    io::Error::new(kind, why)
}

/// Checks that `file` is shared memory in OS pages, and may be read.
///
/// # Errors
/// [`InvalidInput`](io::ErrorKind::InvalidInput) if it is not; a file of hugetlbfs is not, nor one
/// on a disk. [`PermissionDenied`](io::ErrorKind::PermissionDenied) if it was opened to be written
/// only. Each says why.
pub fn check_kind(file: &File) -> io::Result<()> {
    let kind = io::ErrorKind::InvalidInput;
    match memory_filesystem(fstatfs(file)?.f_type as u64) {
        Some("tmpfs") if file.metadata()?.is_file() => {}
        Some("hugetlbfs") => {
            let why = "the shared memory is of huge pages (hugetlbfs), whose parts can't be given back; \
                       use a memfd without MFD_HUGETLB";
            return Err(refused(kind, why));
        }
        _ => {
            return Err(refused(kind, "the file is no shared memory; use a memfd, or a file in /dev/shm"));
        }
    }
    if ![OFlags::RDONLY, OFlags::RDWR].contains(&(fcntl_getfl(file)? & OFlags::RWMODE)) {
        let why = "the shared memory was opened to be written only; open it to be read as well";
        return Err(refused(io::ErrorKind::PermissionDenied, why));
    }
    Ok(())
}

/// Checks that the content of `file`, shared memory, may be given up and written.
///
/// # Errors
/// [`PermissionDenied`](io::ErrorKind::PermissionDenied), with the reason: it was opened to be read
/// only or to be appended to, or is sealed against writing.
pub fn check_writable(file: &File) -> io::Result<()> {
    let flags = fcntl_getfl(file)?;
    let why = if flags & OFlags::RWMODE != OFlags::RDWR {
        "the shared memory was opened to be read only; open it to be written as well"
    } else if flags.contains(OFlags::APPEND) {
        "the shared memory was opened to be appended to; open it without O_APPEND"
    } else if fcntl_get_seals(file)
        .is_ok_and(|seals| seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE))
    {
        "the shared memory is sealed against writing (F_SEAL_WRITE or F_SEAL_FUTURE_WRITE); make one \
         without that seal, those against growing and shrinking are fine"
    } else {
        return Ok(());
    };
    Err(refused(io::ErrorKind::PermissionDenied, why))
}

/// Checks that all of `range` is a shared mapping of `file`, which begins there at `offset`.
///
/// # Errors
/// [`InvalidInput`](io::ErrorKind::InvalidInput), with the first address where it is not; else
/// those of fstat(2), or of reading `/proc`.
pub fn check_shows(range: PageRange, file: &File, offset: u64) -> io::Result<()> {
    let about = file.metadata()?;
    // Up to here all is well.
    let mut good = range.start();
    MapsReader::new(2 * OS_PAGE)?.for_each(|mapping| {
        let is_next = mapping.start <= good && good < mapping.end && good < range.end();
        let in_file = mapping.offset + good.saturating_sub(mapping.start) as u64;
        let due = offset + (good - range.start()) as u64;
        if is_next && mapping.shared && in_file == due && is_of(mapping, &about) {
            good = mapping.end;
        }
    })?;
    if good >= range.end() {
        return Ok(());
    }
    let why = format!(
        "what is at {good:#x} is not mapped, or no shared mapping of this memory at that place: private \
         mappings don't write to it"
    );
    Err(refused(io::ErrorKind::InvalidInput, &why))
}

fn is_of(mapping: &Mapping, file: &Metadata) -> bool {
    mapping.inode == file.ino() && mapping.device == (major(file.dev()), minor(file.dev()))
}

#[cfg(test)]
#[path = "memory_file_test.rs"]
mod tests;
