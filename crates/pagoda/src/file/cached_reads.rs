//! Reading by calls from pages that were read ahead: a page is copied from its slot.
//!
//! A sequential reader asks for each page once. Moving the frame into the region for that, and out
//! again, would cost more than the copy. So the page stays staged, and is dropped with the staged
//! pages, the oldest first: reading through a file evicts few pages of others. A second read of a
//! page has a fault like any other, and the page comes into the region.
//!
//! An entry's warmth shows this as long as it is staged and none of it is in the region: it is 0
//! where reclaim evicted it. This module must never let a page of the user's memory be touched
//! while it has an entry's busy bit.

use pagoda_core::page::OS_PAGE;
use pagoda_core::page_entry::{Backing, Granules};

use crate::engine::Engine;
use crate::file::orders::{Reader, is_unasked};
use crate::file::region::{Inner, Wait};
use crate::file::writeback::Work;
use crate::table::{give, try_take};

/// Of one that was asked for, to its end, or written as a whole.
pub(super) const ASKED: u8 = 1;

/// The outcome of reading in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Copied,
    /// The entry is busy: perhaps it is just read.
    Busy,
    /// It is not there, or was asked for before.
    Elsewhere,
}

impl Inner {
    /// Copies from `offset` on, at most [`RUN_BYTES`](crate::file::writeback::RUN_BYTES) within one
    /// entry, if that was read ahead and still is in its slot. Waits for a busy entry. False: it is
    /// elsewhere, or was asked for before.
    pub(super) fn read_in_place(&self, offset: usize, into: &mut [u8]) -> bool {
        let entry_bytes = self.engine().entry_bytes();
        let mut wait = Wait::default();
        // By way of memory of our own: a fault on the caller's might need this entry, or wait for
        // an event that waits for us.
        let is_copied = self.with_work(|Work { content, .. }| {
            let content = &mut content[..into.len()];
            loop {
                match self.copy_unasked(offset, content) {
                    Outcome::Busy => wait.a_little(),
                    outcome => {
                        break outcome == Outcome::Copied && {
                            into.copy_from_slice(content);
                            true
                        };
                    }
                }
            }
        });
        if is_copied && offset.is_multiple_of(entry_bytes) {
            let parts = self.file.orders.note((offset / entry_bytes) as u64, Reader::Calls);
            if parts > 0 {
                self.engine().helpers.ring(parts);
            }
        }
        is_copied
    }

    fn copy_unasked(&self, offset: usize, into: &mut [u8]) -> Outcome {
        let engine = self.engine();
        let entry_bytes = engine.entry_bytes();
        let (index, at) = (offset / entry_bytes, offset % entry_bytes);
        let table = engine.gate_shared();
        if table.order.deferred() > 0 {
            return Outcome::Elsewhere;
        }
        let Some(span) = table.find(self.range.start() + offset) else { return Outcome::Elsewhere };
        let Some(word) = try_take(span.entry(index)) else { return Outcome::Busy };
        let pages = Granules::range((at / OS_PAGE) as u32, (at + into.len()).div_ceil(OS_PAGE) as u32);
        let is_lost = !pages.and(self.file.lost_granules(index)).is_empty();
        let (Backing::Slot(slot), true) = (word.backing(), is_unasked(word) && !is_lost) else {
            give(span.entry(index), word);
            return Outcome::Elsewhere;
        };
        let held = engine.space.claim_slot(slot);
        // A part may have been dropped, and be in the file alone.
        if !pages.without(engine.staged_frames(&held)).is_empty() {
            engine.space.release_slot(held);
            give(span.entry(index), word);
            return Outcome::Elsewhere;
        }
        into.copy_from_slice(&engine.space.bytes(&held)[at..at + into.len()]);
        engine.space.release_slot(held);
        self.file.reads.note_asked(index);
        let is_end = at + into.len() == entry_bytes || (offset + into.len()) as u64 == self.file.len();
        give(span.entry(index), if is_end { word.with_warmth(ASKED) } else { word });
        Outcome::Copied
    }
}

impl Engine {
    /// A staged page of a file is dropped from this slot. One that never was in the region has not
    /// been counted as evicted yet.
    pub(super) fn note_dropped(&self, warmth: u8, slot: u32) {
        if warmth >= ASKED {
            self.went_unmoved(slot);
        }
    }
}

#[cfg(test)]
#[path = "cached_reads_test.rs"]
mod tests;
