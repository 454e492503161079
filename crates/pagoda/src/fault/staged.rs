//! Pages that are staged: their frame lies in a slot of the arena, and moves back into the region.
//!
//! The caller has the gate, shared, and the busy bit of the entry. This module must never report a
//! granule as resident that is not.

use std::sync::Arc;

use pagoda_core::page_entry::{Backing, Granules, Word};

use super::{Miss, Taken};
use crate::engine::Engine;
use crate::file::is_unasked;
use crate::state::pending::Served;
use crate::table::{Page, Span, Table};

impl Engine {
    /// Serves a fault on a page that is in `slot`.
    pub(super) fn serve_staged(&self, taken: &Taken<'_>, slot: u32, miss: &mut Miss<'_>) -> Served {
        let Taken { table, span, page, word, granule, is_of_file } = *taken;
        if miss.was_fetched {
            self.ledger.fetched(self.entry_bytes() as u64);
        }
        let is_back = !is_of_file && word.resident().is_empty() && self.comes_back_whole(slot);
        let want = match self.comes_back(span, granule, miss.extent) {
            Some(part) if !is_of_file && !is_back && !self.is_slowed(&page) => page.granules.and(part.all),
            // The granules of a file that stay behind would be read again.
            _ => page.granules,
        };
        let is_first = miss.was_in_file || is_of_file && is_unasked(word);
        let is_whole = !is_of_file && want == page.granules && word.resident().is_empty();
        let moved = if is_whole { self.promote_staged(slot) } else { None };
        let (slot, word) = match &moved {
            Some(moved) => (moved.slot, word.with_backing(Backing::Slot(moved.slot))),
            None => (slot, word),
        };
        let (word, served) = self.install(table, span, &page, word, slot, want, (granule, miss.write));
        // A page that was not there before was not missed.
        taken.give(if is_first { word.with_warmth(1) } else { word });
        if let Some(moved) = moved {
            // A part of it may not have been let in.
            if word.backing() == Backing::Slot(moved.slot) {
                self.queue_staged(span.entries(), page.index, moved.slot);
            }
            self.unstage(moved.left);
        }
        served
    }

    /// Moves the content of a staged page into the region. A granule without a page in the slot
    /// reads as zero, or is in the page's file. It is filled by a fault of its own and is not
    /// counted as resident.
    #[expect(clippy::too_many_arguments, reason = "the state of one page, taken apart once")]
    pub(crate) fn install(
        &self,
        table: &Table,
        span: &Span,
        page: &Page,
        word: Word,
        slot: u32,
        want: Granules,
        (granule, write): (u32, bool),
    ) -> (Word, Served) {
        let zone = self.zones.of_slot(slot);
        let slot = self.space.claim_slot(slot);
        let there = self.space.pages_of(&slot);
        let clean = self.comes_protected(page, word, (granule, write));
        let moved = self.move_in_tracked(page, &slot, want.and(there).without(word.resident()), clean);
        let word = self.came_in(word, moved.done, zone).with_warmth(2);
        // Granules outside the span belong to another part of the same mapping only if the array is
        // shared.
        let whole = granules_of_entry(span, page, table.entry_bytes());
        let word = if whole.and(there).without(word.resident()).is_empty() {
            self.left_staging(slot.index(), there);
            self.zones.put_pieces(&self.space, slot, there.without(moved.done).or(moved.copied));
            word.with_backing(Backing::None)
        } else {
            self.left_staging(slot.index(), moved.done.without(moved.copied));
            // It has been in the queue since it was staged.
            self.space.release_slot(slot);
            word
        };
        if moved.done.has(granule) {
            return (word, Served::Done);
        }
        let here = page.addresses(granule, granule + 1);
        if there.has(granule) {
            return (word, self.settle(moved.stop, here));
        }
        if span.entries().file().is_some() {
            return (word, Served::Again);
        }
        // However little room there is: otherwise the page would be stored and fetched again and
        // again for one zero page.
        let (filled, served) = self.fill_one(here, write);
        if !filled {
            return (word, served);
        }
        let zone = self.zone_of_kernel_memory(word);
        (self.came_in(word, Granules::range(granule, granule + 1), zone), served)
    }
}

/// The granules of an entry that may be in use by a span.
pub(crate) fn granules_of_entry(span: &Span, page: &Page, entry_bytes: usize) -> Granules {
    if Arc::strong_count(span.entries()) > 1 {
        Granules::range(0, (entry_bytes / 4096) as u32)
    } else {
        page.granules
    }
}
