//! The pages on which a forked child waits until its parent has copied all missing pages to it, or
//! offers to hand them over.
//!
//! They are registered like managed memory and empty in every child, for any content in the parent:
//! a thread that touches one in the child waits. The parent answers by filling it, or is gone and
//! the kernel fills it with zeroes. This module must never take a zero for an answer.
//!
//! The first page is answered with *everything is there*, or with an offer
//! ([`crate::process::offer`]). If the offer comes to nothing, the child waits at the second page,
//! which has the first answer alone.

use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use pagoda_core::page::OS_PAGE;
use rustix::mm::{Advice, madvise};

use crate::mem::own_memory::{OwnMapping, keep_in_children};
use crate::mem::range::PageRange;
use crate::process::offer::{Offer, WORDS};
use crate::uffd::{Progress, Stop, Uffd, to_io_error};

/// Where the pages of this process's children are; 0 if there are none. In this library's own data,
/// which they have, too.
static CURRENT: AtomicUsize = AtomicUsize::new(0);

/// Where those of this process's parent are, after it has made an offer and until they are left.
static PARENTS: AtomicUsize = AtomicUsize::new(0);

/// The first word of an answered page: everything is there.
const ANSWER: u64 = u64::from_le_bytes(*b"answered");

/// The first word of a page with an offer, whose words follow.
const OFFER: u64 = u64::from_le_bytes(*b"offered.");

/// A parent's answer to its child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// All that it lacked is there.
    Everything,
    /// It may take all of it over.
    Offer(Offer),
    /// The parent is gone, and missing pages read as zero.
    Lost,
}

/// The pages. Copies of it are the same pages.
#[derive(Clone, Copy, Debug)]
pub struct Doorbell {
    pages: PageRange,
}

impl Doorbell {
    /// Makes them, for the children of this process. They are there for good: when children wait
    /// for them, there may be no room for another mapping.
    ///
    /// # Errors
    /// Those of mmap(2).
    pub(crate) fn reserve() -> io::Result<Self> {
        let pages = OwnMapping::reserve(2 * OS_PAGE, OS_PAGE, false)?;
        keep_in_children(pages.range());
        // A program that locks all its memory, or reads all mapped pages, touches these pages, too.
        let at = std::ptr::with_exposed_provenance_mut(pages.range().start());
        // SAFETY: it changes what a child inherits, and nothing here.
        unsafe { madvise(at, 2 * OS_PAGE, Advice::LinuxWipeOnFork) }?;
        CURRENT.store(pages.range().start(), Ordering::Release);
        Ok(Self { pages: pages.leak() })
    }

    /// Makes children wait there that are made from now on; `uffd` is of this process.
    ///
    /// # Errors
    /// Those of registering.
    pub(crate) fn install(self, uffd: &Uffd) -> io::Result<()> {
        // SAFETY: the pages are ours, and their content in this process does not matter; a reader
        // there gets zeroes.
        unsafe { uffd.register(self.pages) }.map_err(to_io_error)
    }

    /// Children wait no more there: the kernel tells of forks no more, if nothing else is
    /// registered with `uffd`.
    pub(crate) fn remove(self, uffd: &Uffd) {
        // The pages are mapped for good, so that there is nothing to fail.
        let _ = uffd.unregister(self.pages);
    }

    /// In a child whose fork was not announced: it lacks nothing, and gives the pages back.
    pub fn pass_by() {
        PARENTS.store(CURRENT.swap(0, Ordering::AcqRel), Ordering::Release);
        leave();
    }

    /// Answers the child behind `child`, at whichever page it waits. One that is gone needs none.
    pub(crate) fn answer(self, child: &Uffd) {
        for page in [0, 1] {
            let done = || self.fill(child, page, &[ANSWER]);
            while done().stop == Some(Stop::Again) {
                // The child is changing a mapping: from here on its memory is its own business.
                let _ = child.read(|_| {});
            }
        }
    }

    /// Makes the child behind `child` an offer, unless a mapping of it is changing or it is gone.
    pub(crate) fn offer(self, child: &Uffd, offer: &Offer) -> Progress {
        let mut words = [OFFER; WORDS + 1];
        words[1..].copy_from_slice(&offer.to_words());
        self.fill(child, 0, &words)
    }

    fn fill(self, child: &Uffd, page: usize, words: &[u64]) -> Progress {
        let mut bytes = [0u8; OS_PAGE];
        for (bytes, word) in bytes.chunks_exact_mut(size_of::<u64>()).zip(words) {
            bytes.copy_from_slice(&word.to_ne_bytes());
        }
        // SAFETY: the child's descriptor serves its copies of these pages, which are for nothing
        // else.
        unsafe { child.copy(self.pages.start() + page * OS_PAGE, &bytes) }
    }

    /// In a child: waits for the parent's answer. A process that is no child must not call it.
    #[must_use]
    pub fn wait_for_parent() -> Answer {
        let address = CURRENT.swap(0, Ordering::AcqRel);
        if address == 0 {
            return Answer::Everything;
        }
        PARENTS.store(address, Ordering::Release);
        let mut words = [0; WORDS];
        let first = load(address);
        if first == OFFER {
            for (i, word) in words.iter_mut().enumerate() {
                *word = load(address + (i + 1) * size_of::<u64>());
            }
            return Answer::Offer(Offer::from_words(words));
        }
        leave();
        if first == ANSWER { Answer::Everything } else { Answer::Lost }
    }

    /// In a child whose parent made it an offer that came to nothing: waits until everything is
    /// there. False if the parent is gone.
    #[must_use]
    pub fn wait_for_everything() -> bool {
        let address = PARENTS.load(Ordering::Acquire);
        let is_there = address != 0 && load(address + OS_PAGE) == ANSWER;
        leave();
        is_there
    }
}

/// Reads a word of the pages, waiting for the parent if it is missing.
fn load(address: usize) -> u64 {
    let at = std::ptr::with_exposed_provenance::<AtomicU64>(address);
    // SAFETY: the pages were leaked and are inherited, and only `leave` unmaps them, after which no
    // code knows the address: so it is mapped; it is aligned, and any bits are a valid number. Only
    // the kernel writes there, before this load returns.
    unsafe { &*at }.load(Ordering::Acquire)
}

/// In a child: gives its parent's pages back, which it needs no more. Another thread has to read
/// the event of it meanwhile.
pub fn leave() {
    let address = PARENTS.swap(0, Ordering::AcqRel);
    if address != 0 {
        // SAFETY: they were leaked by the parent; this process has them now, and `swap` gave their
        // address to one caller alone.
        drop(unsafe { OwnMapping::retake(PageRange::at(address, 2 * OS_PAGE)) });
    }
}
