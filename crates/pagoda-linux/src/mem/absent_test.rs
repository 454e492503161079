use std::os::fd::AsRawFd;

use rustix::mm::{mmap_anonymous, munmap};

use super::*;
use crate::procfs::maps::for_each_mapping;
use crate::testing::process::{fork, wait};

const LINE: &str = "it is not here\n";

fn map(range: PageRange) {
    let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
    let at = std::ptr::with_exposed_provenance_mut(range.start());
    // SAFETY: the kernel refuses it where anything is mapped.
    unsafe { mmap_anonymous(at, range.len(), ProtFlags::READ, flags) }.expect("free");
}

/// Addresses that were free a moment ago.
fn free(pages: usize) -> PageRange {
    // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing.
    let at = unsafe {
        mmap_anonymous(std::ptr::null_mut(), pages * OS_PAGE, ProtFlags::empty(), MapFlags::PRIVATE)
    };
    let range = PageRange::at(at.expect("memory").expose_provenance(), pages * OS_PAGE);
    // SAFETY: the mapping was just made, and nothing uses it.
    unsafe { munmap(std::ptr::with_exposed_provenance_mut(range.start()), range.len()) }.expect("its own");
    range
}

fn readable_and_closed(range: PageRange) -> (usize, usize) {
    let (mut readable, mut closed) = (0, 0);
    for_each_mapping(&mut [0; 2048], |mapping| {
        let (start, end) = (mapping.start.max(range.start()), mapping.end.min(range.end()));
        let pages = end.saturating_sub(start) / OS_PAGE;
        if mapping.read { readable += pages } else { closed += pages }
    })
    .expect("maps");
    (readable, closed)
}

#[test]
fn what_is_free_is_closed_and_what_is_in_use_stays() {
    // In a child, whose only thread maps nothing in between.
    let child = fork(|| {
        let range = free(37);
        map(PageRange::at(range.start() + 5 * OS_PAGE, 3 * OS_PAGE));
        close_in_child(&[range], LINE).expect("closed");
        i32::from(readable_and_closed(range) != (3, 34))
    });
    assert_eq!(wait(child.expect("forked")).expect("waited for").exit_status(), Some(0));
}

#[test]
fn an_access_says_why_and_ends_the_process() {
    let told = tempfile::tempfile().expect("a file");
    for is_closed in [true, false] {
        told.set_len(0).expect("emptied");
        let child = fork(|| {
            // Both at once: else the second would get the addresses of the first.
            let both = free(6);
            let range = PageRange::at(both.start(), 4 * OS_PAGE);
            let other = both.start() + 5 * OS_PAGE;
            close_in_child(&[range], LINE).expect("closed");
            // SAFETY: both are open descriptors. The access is to an address at which nothing
            // can be read, and ends this child.
            unsafe {
                libc::dup2(told.as_raw_fd(), libc::STDERR_FILENO);
                let at = if is_closed { range.start() + OS_PAGE } else { other };
                std::ptr::with_exposed_provenance::<u8>(at).read_volatile();
            }
            0
        });
        let status = wait(child.expect("forked")).expect("waited for");
        assert_eq!(status.terminating_signal(), Some(libc::SIGSEGV));
        let path = format!("/proc/self/fd/{}", told.as_raw_fd());
        let text = std::fs::read_to_string(path).expect("read");
        assert_eq!(text, if is_closed { LINE } else { "" });
    }
}
