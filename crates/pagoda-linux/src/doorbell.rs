//! A page on which a forked child waits until its parent has given it all that it lacks.
//!
//! It is registered like managed memory and never touched in the parent, so that it is missing in the child: who touches
//! it there waits, until the parent answers by filling it, or is gone and the kernel fills it with zeroes. This module must
//! never take a zero for an answer.

use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use pagoda_core::page::OS_PAGE;

use crate::own_memory::{OwnMapping, keep_in_children};
use crate::range::PageRange;
use crate::uffd::{Stop, Uffd, to_io_error};

/// Where the page of this process's children is; 0 if there is none. In this library's own data, which they have, too.
static CURRENT: AtomicUsize = AtomicUsize::new(0);

/// What an answered page holds.
const ANSWER: u64 = u64::from_le_bytes(*b"answered");

/// The page. Copies of it are the same page.
#[derive(Clone, Copy, Debug)]
pub struct Doorbell {
    page: PageRange,
}

impl Doorbell {
    /// Makes one, for the children of the process that `uffd` is of. It is there for good.
    ///
    /// # Errors
    /// Those of mmap(2) and of registering.
    pub(crate) fn install(uffd: &Uffd) -> io::Result<Self> {
        let page = OwnMapping::reserve(OS_PAGE, OS_PAGE, false)?;
        // SAFETY: the page is ours, fresh, and no thread of this process ever touches it.
        unsafe { uffd.register(page.range()) }.map_err(to_io_error)?;
        keep_in_children(page.range());
        CURRENT.store(page.range().start(), Ordering::Release);
        Ok(Self { page: page.leak() })
    }

    /// Answers the child behind `child`. One that is gone needs none.
    pub(crate) fn answer(self, child: &Uffd) {
        let words = [ANSWER; OS_PAGE / size_of::<u64>()];
        let mut bytes = [0u8; OS_PAGE];
        for (bytes, word) in bytes.chunks_exact_mut(size_of::<u64>()).zip(words) {
            bytes.copy_from_slice(&word.to_ne_bytes());
        }
        loop {
            // SAFETY: the child's descriptor serves its copy of this page, which is for nothing else.
            match unsafe { child.copy(self.page.start(), &bytes) }.stop {
                // The child changes a mapping just now: what it does is its own business from here on.
                Some(Stop::Again) => {
                    child.read(|_| {});
                }
                _ => return,
            }
        }
    }

    /// In a child: waits for the parent's answer. False if it died before. A process that is no child must not call it.
    #[must_use]
    pub fn wait_for_parent() -> bool {
        let address = CURRENT.swap(0, Ordering::AcqRel);
        if address == 0 {
            return true;
        }
        let at = std::ptr::with_exposed_provenance::<AtomicU64>(address);
        // SAFETY: the page was leaked and is inherited, so it is mapped, aligned, and any bits are a valid number. Only the
        // kernel writes there, before this load returns.
        let answered = unsafe { &*at }.load(Ordering::Acquire) == ANSWER;
        // SAFETY: it was leaked by the parent; this process has it now, and `swap` gave its address to one caller alone.
        drop(unsafe { OwnMapping::retake(PageRange::page(address)) });
        answered
    }
}
