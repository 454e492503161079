//! Swapping pages in by touching them, from a thread that does not serve faults.

use linux_raw_sys::general::__NR_process_vm_readv;
use pagoda_core::page::OS_PAGE;
use rustix::mm::{Advice, madvise};

use crate::mem::range::PageRange;
use crate::raw_syscall::syscall6;

/// Brings each OS page of `range` in for the kernel to write to: it is there, no fork shares it,
/// and no write to it is held. Waits for pages that are swapped out, and passes over unmapped ones.
/// One that may not be written to is only read. Never from a thread that serves faults, nor with a
/// lock held that such a thread takes.
pub fn touch(range: PageRange) {
    for page in (range.start()..range.end()).step_by(OS_PAGE) {
        let at = std::ptr::with_exposed_provenance_mut(page);
        // SAFETY: the advice changes no content.
        if unsafe { madvise(at, OS_PAGE, Advice::LinuxPopulateWrite) }.is_err() {
            read(page);
        }
    }
}

/// Reads one byte of the OS page at `page`, if there is one.
fn read(page: usize) {
    let process = rustix::process::getpid().as_raw_nonzero().get() as usize;
    let mut byte = 0u8;
    let local = [std::ptr::from_mut(&mut byte).expose_provenance(), 1];
    let remote = [page, 1];
    let arguments =
        [process, local.as_ptr().expose_provenance(), 1, remote.as_ptr().expose_provenance(), 1, 0];
    // A page that is not mapped any more needs no touch. SAFETY: the kernel writes one byte to
    // `byte` and reads one from `page`, which it checks itself; both vectors live on this stack
    // until the call returns.
    let _ = unsafe { syscall6(__NR_process_vm_readv, arguments) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::own_memory::OwnMapping;
    use crate::procfs::pagemap::PagemapScanner;

    #[test]
    fn touched_pages_are_present_and_unmapped_ones_are_passed_over() {
        let mapping = OwnMapping::reserve(4 * OS_PAGE, OS_PAGE, false).expect("reserve");
        let range = mapping.range();
        touch(PageRange::at(range.start(), 2 * OS_PAGE));
        let mut present = 0;
        let mut scanner = PagemapScanner::new().expect("pagemap");
        scanner.populated_runs(range.start(), range.end(), |run, _| present += run.len()).expect("scan");
        assert_eq!(present, 2 * OS_PAGE);
        touch(PageRange::page(OS_PAGE));
    }
}
