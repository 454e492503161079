//! Moving frames, and how many moved.
//!
//! The count of `UFFDIO_MOVE` can't be trusted. It moves several pages at once since Linux 6.18. A
//! page whose entry in the page table changed during the move is tried again, but the error of the
//! first try stays: the call forgets the pages that the second try moved, comes to them once more,
//! finds its own destination full, and says that it was so from the beginning. Anything that
//! changes an entry is enough: a copy on write, the kernel's look at accessed bits, a compaction. A
//! caller that believes the count takes the source for full and the destination for empty, and
//! loses up to 2 MiB.
//!
//! So where the destination is said to be full, or a move ends early, this checks the next page at
//! the end that is ours alone: the program may change the other end's mappings meanwhile. The check
//! is made at once, because the next try may be refused, and then there would be no check. This
//! module must never report a page as left behind that has moved.

use pagoda_core::page::OS_PAGE;
use rustix::io::Errno;

use crate::mem::mincore::is_mapped;
use crate::mem::occupancy::Occupancy;
use crate::mem::range::PageRange;
use crate::uffd::{Progress, Stop, UFFDIO_MOVE, Uffd};

const MOVE_MODE_DONTWAKE: u64 = 1;
const MOVE_MODE_ALLOW_SRC_HOLES: u64 = 1 << 1;

impl Uffd {
    /// Moves the frames at `from`, memory of our own, to `to`, at zero copies. Wakes threads that
    /// wait there. Holes are passed over and count as moved: a caller that wants content has to
    /// know that it is there.
    ///
    /// # Panics
    /// If the kernel does not tell whether a page is there (pread(2) refused by a filter of system
    /// calls): without that a page could be lost.
    ///
    /// # Safety
    /// Both ends must be memory that was given to Pagoda (a registered region or an arena of ours):
    /// for all readers and writers, frames vanish from the source and appear at the destination.
    /// The source is the caller's alone.
    pub(crate) unsafe fn move_in(&self, to: usize, from: PageRange, occupancy: &Occupancy) -> Progress {
        // The slot's missing pages are not wanted either: it is given back, holes and all.
        self.move_pages(to, from, MOVE_MODE_ALLOW_SRC_HOLES, |page| {
            Ok(!occupancy.is_held(from.start() + page)?)
        })
    }

    /// Moves the frames at `from` to `to`, empty memory of our own, at zero copies; holes are
    /// skipped.
    ///
    /// No thread waits for memory of our own, and looking for one costs half as much as the move.
    /// The kernel is not asked to skip holes: where a page that it tries again was discarded
    /// meanwhile, it would try that hole again for good.
    ///
    /// # Panics
    /// As [`move_in`](Self::move_in).
    ///
    /// # Safety
    /// As for [`move_in`](Self::move_in); the destination is the caller's alone.
    pub(crate) unsafe fn move_out(&self, to: usize, from: PageRange, occupancy: &Occupancy) -> Progress {
        let mut done = 0;
        while let Some(rest) = PageRange::new(from.start() + done, from.end()) {
            let to = to + done;
            let progress = self.move_pages(to, rest, MOVE_MODE_DONTWAKE, |page| {
                // A page that is at both ends stayed where it is, unless the program has put
                // another mapping there since: that is an event, and none is read while a page
                // moves.
                let is_there = occupancy.is_held(to + page)?;
                Ok(is_there && (!occupancy.is_held(rest.start() + page)? || !self.is_quiet()))
            });
            done += progress.bytes;
            if progress.stop != Some(Stop::Missing) || !is_hole(rest.start(), occupancy) {
                // Why it stopped where a part has moved shows when the rest is tried.
                return Progress { bytes: done, stop: progress.stop.filter(|_| done == 0) };
            }
            done += OS_PAGE;
        }
        Progress { bytes: done, stop: None }
    }

    /// Moves pages; `has_moved` tells whether the page at an offset, whose destination may be full
    /// now, came from the source.
    fn move_pages(
        &self,
        to: usize,
        from: PageRange,
        mode: u64,
        has_moved: impl Fn(usize) -> Result<bool, Errno>,
    ) -> Progress {
        let mut progress = self.transfer::<UFFDIO_MOVE>(to, from.start(), from.len(), mode);
        // The kernel does not report a full destination where a part was moved before.
        let may_be_more = match progress.stop {
            Some(Stop::Exists) => true,
            None => progress.bytes < from.len(),
            Some(_) => false,
        };
        if !may_be_more {
            return progress;
        }
        let told = progress.bytes;
        while progress.bytes < from.len()
            && has_moved(progress.bytes).expect("the kernel tells whether a page has moved")
        {
            progress.bytes += OS_PAGE;
        }
        if progress.bytes > told {
            if mode & MOVE_MODE_DONTWAKE == 0 {
                self.wake(PageRange::at(to + told, progress.bytes - told));
            }
            // Why it stopped there shows when the rest is tried.
            progress.stop = None;
        }
        progress
    }
}

/// Whether the OS page at `address` is of a mapping, and holds nothing.
fn is_hole(address: usize, occupancy: &Occupancy) -> bool {
    is_mapped(address) && occupancy.is_held(address) == Ok(false)
}

#[cfg(test)]
#[path = "moves_test.rs"]
mod tests;
