//! Copying from and to a region some of whose pages may never come: the kernel copies, and says
//! where it could not.
//!
//! An access by address to such a page raises SIGBUS; these calls tell how far they came. For a
//! page that is missing and managed they wait as an access does. But if the descriptor is for
//! faults of user mode alone, or raises SIGBUS, they end there, also at a page of the caller's
//! slice that an access by its address would swap in. So a caller that holds a lock that its filler
//! needs (the gate, a busy entry) must ask only for present pages, as
//! [`Space::held_pages`](crate::arena::Space::held_pages) tells. This module must never interpret
//! the bytes that it copies.

use linux_raw_sys::general::{__NR_process_vm_readv, __NR_process_vm_writev};
use rustix::io::Errno;

use crate::mem::region_bytes::RegionBytes;
use crate::raw_syscall::syscall6;

/// Whether the kernel copies for this process.
///
/// # Errors
/// The kernel's: without `CONFIG_CROSS_MEMORY_ATTACH`, or by a filter of system calls.
pub fn try_out() -> Result<(), Errno> {
    let (from, mut into) = ([1u8], [0u8]);
    // SAFETY: both are on this stack, and of one byte.
    unsafe { copy(__NR_process_vm_readv, into.as_mut_ptr().addr(), from.as_ptr().addr(), 1) }.map(drop)
}

impl RegionBytes {
    /// Copies from the region as far as its pages are there, or come. Returns how many bytes that
    /// were. Panics if it reaches beyond the end.
    #[must_use]
    pub fn read_what_is_there(&self, offset: usize, into: &mut [u8]) -> usize {
        let from = self.check(offset, into.len()).addr();
        let to = into.as_mut_ptr().expose_provenance();
        // SAFETY: the kernel writes to `into`, which is borrowed for the call, and reads this
        // mapping.
        unsafe { copy(__NR_process_vm_readv, to, from, into.len()) }.unwrap_or(0)
    }

    /// The same the other way. Others may read and write there meanwhile: they see the bytes of
    /// both, as with a file.
    #[must_use]
    pub fn write_what_is_there(&self, offset: usize, from: &[u8]) -> usize {
        let to = self.check(offset, from.len()).addr();
        let at = from.as_ptr().expose_provenance();
        // SAFETY: the kernel reads `from`, which is borrowed for the call, and writes to this
        // mapping, as another process would; no reference into it exists, for
        // `RegionMemory::words_mut` borrows it exclusively.
        unsafe { copy(__NR_process_vm_writev, at, to, from.len()) }.unwrap_or(0)
    }
}

/// # Safety
/// The caller may write the target of the call, for `len` bytes.
unsafe fn copy(call: u32, local: usize, remote: usize, len: usize) -> Result<usize, Errno> {
    let process = rustix::process::getpid().as_raw_nonzero().get() as usize;
    let (local, remote) = ([local, len], [remote, len]);
    let arguments =
        [process, local.as_ptr().expose_provenance(), 1, remote.as_ptr().expose_provenance(), 1, 0];
    // SAFETY: both vectors are laid out as `struct iovec` and live on this stack until the call
    // returns; their targets are the caller's promise, and the kernel answers EFAULT where it can't
    // reach them.
    unsafe { syscall6(call, arguments) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::region_memory::RegionMemory;
    use pagoda_core::page::OS_PAGE;

    #[test]
    fn a_copy_ends_where_a_page_is_missing() {
        try_out().expect("allowed");
        let Some(space) = crate::arena::tests::open("careful copies", OS_PAGE, 0) else { return };
        let memory = RegionMemory::map(8 * OS_PAGE).expect("map");
        space.register(memory.range()).expect("registered");
        let there = crate::mem::range::PageRange::at(memory.range().start(), 2 * OS_PAGE);
        for page in [there.start(), there.start() + OS_PAGE] {
            assert_eq!(space.fill_with(crate::mem::range::PageRange::page(page), &[5; OS_PAGE]).stop, None);
        }
        let mut into = vec![0; 4 * OS_PAGE];
        assert_eq!(memory.read_what_is_there(100, &mut into), 2 * OS_PAGE - 100);
        assert!(into[..2 * OS_PAGE - 100].iter().all(|byte| *byte == 5));
        assert_eq!(memory.write_what_is_there(OS_PAGE, &vec![6; 2 * OS_PAGE]), OS_PAGE);
        assert_eq!(memory.read_what_is_there(2 * OS_PAGE - 1, &mut into[..1]), 1);
        assert_eq!((into[0], memory.read_what_is_there(2 * OS_PAGE, &mut into)), (6, 0));
    }
}
