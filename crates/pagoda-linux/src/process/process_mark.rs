//! A process mark: tells the process that made something from its forked children, which inherit
//! it.
//!
//! A child has its parent's handles and descriptors, but not its threads, and a userfaultfd that it
//! inherits acts on the parent's address space. Process ids don't tell the two apart: namespaces
//! use them twice, and raw system calls fork without telling the C library. So the mark is a number
//! on a page that the kernel empties in every child (`MADV_WIPEONFORK`). Threads, and processes
//! that share the address space, have the same mark. This module must never give a child a mark of
//! one of its ancestors.

use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use pagoda_core::page::OS_PAGE;
use rustix::mm::{Advice, madvise};

use crate::mem::own_memory::{OwnMapping, forget_what_parents_have, keep_in_children};
use crate::mem::range::PageRange;
use crate::process::caller::yield_now;

/// The address of the page; 0 before the first mark. A child has the page, empty.
static PAGE: AtomicUsize = AtomicUsize::new(0);

/// The highest number that this process or an ancestor has used.
static HIGHEST: AtomicU64 = AtomicU64::new(MARKING);

/// On the page: no mark yet.
const NONE: u64 = 0;
/// On the page: a thread is making the mark.
const MARKING: u64 = 1;

/// The mark of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessMark(u64);

impl ProcessMark {
    /// The mark of this process. The first call in a forked child also takes its parent's own
    /// mappings off the list of this process's.
    ///
    /// # Errors
    /// Those of mmap(2) and madvise(2), on the first call of a process and its ancestors.
    pub fn of_this_process() -> io::Result<Self> {
        let page = page()?;
        loop {
            match page.load(Ordering::Acquire) {
                NONE => {
                    let marks = page.compare_exchange(NONE, MARKING, Ordering::AcqRel, Ordering::Relaxed);
                    if marks.is_ok() {
                        forget_what_parents_have();
                        page.store(HIGHEST.fetch_add(1, Ordering::AcqRel) + 1, Ordering::Release);
                    }
                }
                MARKING => yield_now(),
                mark => return Ok(Self(mark)),
            }
        }
    }

    /// Whether this process, or one that shares its address space, has this mark.
    #[must_use]
    pub fn is_of_this_process(self) -> bool {
        marked() == self.0
    }

    /// The mark as a number, never 0.
    pub(crate) fn number(self) -> u64 {
        self.0
    }
}

/// The number of this process's mark. 0 if it has none.
pub(crate) fn marked() -> u64 {
    let address = PAGE.load(Ordering::Acquire);
    if address == 0 { NONE } else { word(address).load(Ordering::Acquire) }
}

/// The word on the page, which is mapped by the first caller.
fn page() -> io::Result<&'static AtomicU64> {
    let known = PAGE.load(Ordering::Acquire);
    if known != 0 {
        return Ok(word(known));
    }
    let mapping = OwnMapping::reserve(OS_PAGE, OS_PAGE, false)?;
    let range = mapping.range();
    keep_in_children(range);
    // SAFETY: it changes what children find on this page, and nothing here.
    unsafe { madvise(at(range), range.len(), Advice::LinuxWipeOnFork) }?;
    match PAGE.compare_exchange(0, range.start(), Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Ok(word(mapping.leak().start())),
        // Another thread was faster. This mapping goes.
        Err(known) => Ok(word(known)),
    }
}

fn at(range: PageRange) -> *mut std::ffi::c_void {
    std::ptr::with_exposed_provenance_mut(range.start())
}

fn word(address: usize) -> &'static AtomicU64 {
    // SAFETY: only `page` stores an address in `PAGE`, of a mapping that it leaks and that children
    // inherit: it is there for good, aligned, and any bits are a number. All access to it is
    // atomic.
    unsafe { &*std::ptr::with_exposed_provenance::<AtomicU64>(address) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::process::{fork, raw_fork, wait};

    fn ends_well(child: std::io::Result<rustix::process::Pid>) -> bool {
        wait(child.expect("forked")).expect("waited for").exit_status() == Some(0)
    }

    #[test]
    fn each_process_has_its_own_mark_also_after_raw_forks() {
        let mark = ProcessMark::of_this_process().expect("a mark");
        assert!(mark.is_of_this_process());
        assert_eq!(ProcessMark::of_this_process().expect("the same"), mark);
        assert!(ends_well(fork(|| {
            let is_wiped = !mark.is_of_this_process();
            let own = ProcessMark::of_this_process().expect("a mark");
            let grandchild_differs = ends_well(raw_fork(|| {
                let is_wiped = !own.is_of_this_process() && !mark.is_of_this_process();
                let third = ProcessMark::of_this_process().expect("a mark");
                i32::from(!(is_wiped && third != own && third != mark))
            }));
            i32::from(!(is_wiped && grandchild_differs && own != mark && own.is_of_this_process()))
        })));
        assert!(mark.is_of_this_process());
        // Threads are the same process.
        assert!(std::thread::spawn(move || mark.is_of_this_process()).join().expect("no panic"));
    }
}
