//! mincore(2), for its two reliable answers: whether a page is mapped, and whether a page of a file
//! is cached.
//!
//! This module must never be asked whether anonymous memory holds something: for a page in the
//! kernel's swap it says no ([`occupancy`](crate::mem::occupancy) tells).

use linux_raw_sys::general::__NR_mincore;
use pagoda_core::page::OS_PAGE;
use rustix::io::Errno;

use crate::raw_syscall::syscall3;

/// Whether there is a mapping at `address`, the start of an OS page. Where the kernel does not
/// answer: yes.
#[must_use]
pub fn is_mapped(address: usize) -> bool {
    is_in_core(address) != Err(Errno::NOMEM)
}

/// Whether the page at `address`, of the mapping of a file, is in the page cache.
///
/// # Errors
/// `ENOMEM`: nothing is mapped there. Else that of a filter of system calls.
pub(crate) fn is_in_core(address: usize) -> Result<bool, Errno> {
    let mut told = 0u8;
    loop {
        let at = std::ptr::from_mut(&mut told).expose_provenance();
        // SAFETY: mincore writes one byte for the one page, to `told`, which lives on.
        match unsafe { syscall3(__NR_mincore, address, OS_PAGE, at) } {
            Ok(_) => return Ok(told & 1 == 1),
            // The kernel had no page to write its answer to.
            Err(Errno::AGAIN) => crate::process::caller::yield_now(),
            Err(errno) => return Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::region_memory::RegionMemory;

    #[test]
    fn mapped_pages_are_told_from_unmapped_ones() {
        let memory = RegionMemory::map(2 * OS_PAGE).expect("map");
        let at = memory.range().start();
        assert_eq!((is_mapped(at), is_in_core(at)), (true, Ok(false)));
        memory.write_words(0, &[1; 8]);
        assert_eq!((is_mapped(at), is_in_core(at)), (true, Ok(true)));
        // Where no program can map anything.
        assert!(!is_mapped(usize::MAX - OS_PAGE + 1));
    }
}
