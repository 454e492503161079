//! Forked children: the memory that they inherit, the memory that they are given, and the pages
//! that the parent owns after the fork.
//!
//! A child's descriptor serves its copies of the ranges that are registered here, and no memory
//! beside. This module must never change a page that is there in a child.

use std::io;

use rustix::mm::{Advice, madvise};

use super::Space;
use crate::io::direct_file::DirectFile;
use crate::io::holds::HoldsFile;
use crate::mem::range::PageRange;
use crate::process::offer::Made;
use crate::uffd::{Progress, Stop, Uffd};

impl Space {
    /// Has forked children wait for their missing pages, in a space with fork events: from now on
    /// the kernel sends an event for each fork, and the forking thread waits until it is read.
    /// Before it, nothing may be registered.
    ///
    /// # Errors
    /// Those of registering.
    pub fn install_doorbell(&self) -> io::Result<()> {
        self.doorbell.map_or(Ok(()), |doorbell| doorbell.install(&self.uffd))
    }

    /// Ends the events of forks, once nothing else is registered.
    pub fn remove_doorbell(&self) {
        if let Some(doorbell) = self.doorbell {
            doorbell.remove(&self.uffd);
        }
    }

    /// Keeps `range` out of the children of a fork, or lets them have it again. A child without it
    /// dies of SIGSEGV instead of reading zeroes where a page is swapped out.
    pub fn set_forked(&self, range: PageRange, yes: bool) {
        let advice = if yes { Advice::LinuxDoFork } else { Advice::LinuxDontFork };
        let at = std::ptr::with_exposed_provenance_mut(range.start());
        // SAFETY: it changes what a child inherits, and no content. A range that was unmapped
        // meanwhile has no children.
        let _ = unsafe { madvise(at, range.len(), advice) };
    }

    /// Fills `to` in the memory of a forked child with `content`, where it is missing.
    pub fn fill_child(&self, child: &Uffd, to: PageRange, content: &[u8]) -> Progress {
        assert_eq!(to.len(), content.len(), "a page range is filled whole");
        // SAFETY: the child's descriptor serves the copies of the ranges that were adopted here.
        unsafe { child.copy(to.start(), content) }
    }

    /// Maps the page of zeroes at a missing OS page of a forked child.
    pub fn fill_child_with_zero_page(&self, child: &Uffd, at: PageRange) -> Progress {
        child.zero(at)
    }

    /// Offers a forked child, when it comes to its doorbell, to take over its missing pages. None
    /// where the system has no means for it, or the child is changing its mappings. `lent` is a
    /// file that it may read on.
    pub fn offer(&self, child: &Uffd, lent: Option<(&DirectFile, &HoldsFile)>) -> Option<Made<'_>> {
        let made = self.offers.as_ref()?.make(child, lent).ok()?;
        self.doorbell?.offer(child, &made.offer).stop.is_none().then_some(made)
    }

    /// Whether a forked child that was made an offer, and has not settled it, is still there.
    #[must_use]
    pub fn is_alive(&self, child: &Uffd, made: &Made<'_>) -> bool {
        self.doorbell.is_some_and(|doorbell| doorbell.offer(child, &made.offer).stop != Some(Stop::Gone))
    }

    /// Whether children can be offered anything.
    #[must_use]
    pub fn can_offer(&self) -> bool {
        self.offers.is_some()
    }

    /// Tells a child that waits at its doorbell that it has everything.
    pub fn answer_doorbell(&self, child: &Uffd) {
        if let Some(doorbell) = self.doorbell {
            doorbell.answer(child);
        }
    }

    /// Breaks the sharing of the pages of `range`, managed memory, after a fork: a copy on write,
    /// or only the kernel's note that this process is the last to have them. It may wait for a
    /// fault to be served; memory that is gone meanwhile is passed over.
    pub fn make_own(&self, range: PageRange) {
        let at = std::ptr::with_exposed_provenance_mut(range.start());
        // SAFETY: the advice changes no content.
        let _ = unsafe { madvise(at, range.len(), Advice::LinuxPopulateWrite) };
    }
}
