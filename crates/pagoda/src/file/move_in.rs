//! Moving pages that were read ahead into the region, in runs.
//!
//! A move interrupts each other processor that runs the program, whatever its length. So entries
//! whose slots follow each other move together. This module must never count a page as resident
//! that was not moved.

use std::ops::Range;

use pagoda_core::page::OS_PAGE;
use pagoda_core::page_entry::{Backing, Granules, Word};
use pagoda_linux::arena::Slot;
use pagoda_linux::mem::range::PageRange;

use super::page_file::PageFile;
use crate::engine::Engine;
use crate::file::orders::READ_BYTES;
use crate::frames::pool::all_of_slot;
use crate::table::{Table, give, try_take};

/// Entries one after another that this thread has taken, and their slots.
#[derive(Default)]
struct Run {
    first: usize,
    words: Vec<Word>,
    slots: Vec<Slot>,
}

impl Engine {
    /// Moves the staged entries `part` of a file, which is mapped at `range`, into the region, but
    /// for the entry that marks the reader's progress. With the gate held for as much as one read
    /// has: a thread that maps or unmaps waits that long.
    pub(super) fn move_part_in(&self, file: &PageFile, range: PageRange, part: Range<usize>, marker: usize) {
        let most = (READ_BYTES / self.entry_bytes()).max(1);
        for at in part.clone().step_by(most) {
            let table = self.gate_shared();
            if table.order.deferred() > 0 {
                return;
            }
            let mut run = Run::default();
            for index in at..part.end.min(at + most) {
                let next = (index != marker).then(|| self.take_staged(&table, file, range, index)).flatten();
                if next.is_none() {
                    self.move_run(&table, range, std::mem::take(&mut run));
                } else if run.words.is_empty() {
                    run.first = index;
                }
                run.words.extend(next.as_ref().map(|(word, _)| *word));
                run.slots.extend(next.map(|(_, slot)| slot));
            }
            self.move_run(&table, range, run);
        }
    }

    /// Takes a staged entry, all of which can be moved in. One that can be moved in part is moved.
    fn take_staged(
        &self,
        table: &Table,
        file: &PageFile,
        range: PageRange,
        index: usize,
    ) -> Option<(Word, Slot)> {
        let address = range.start() + index * self.entry_bytes();
        let span = table.find(address)?;
        let page = table.page_at(span, address).without(file.lost_granules(index));
        let word = try_take(span.entry(index))?;
        if let Backing::Slot(slot) = word.backing()
            && word.resident().is_empty()
        {
            let held = self.space.claim_slot(slot);
            let all = all_of_slot(&self.space);
            if page.granules == all && self.staged_frames(&held) == all {
                return Some((word, held));
            }
            self.space.release_slot(held);
            let after = self.install_staged(table, span, &page, word, slot).with_warmth(0);
            give(span.entry(index), after);
        } else {
            give(span.entry(index), word);
        }
        None
    }

    /// Moves a run in, and gives its entries back. What could not be moved stays staged.
    fn move_run(&self, table: &Table, range: PageRange, run: Run) {
        let Run { first, words, slots } = run;
        let entry_bytes = self.entry_bytes();
        let start = range.start() + first * entry_bytes;
        let Some(span) = table.find(start).filter(|_| !slots.is_empty()) else { return };
        let moved = self.fill_from(start, &slots);
        for (i, (word, slot)) in words.into_iter().zip(slots).enumerate() {
            let bytes = moved.saturating_sub(i * entry_bytes).min(entry_bytes);
            let came = Granules::range(0, (bytes / OS_PAGE) as u32);
            // A sequential reader does not come back: this page is the first to be evicted again.
            let after = match came.is_empty() {
                true => word,
                false => self.came_in(word, came, self.zones.of_slot(slot.index())).with_warmth(0),
            };
            self.left_staging(slot.index(), came);
            if bytes == entry_bytes {
                self.zones.put_empty(&self.space, slot);
                give(span.entry(first + i), after.with_backing(Backing::None));
            } else {
                // It has been in the queue since it was staged.
                self.space.release_slot(slot);
                give(span.entry(first + i), after);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use pagoda_core::page::BasePage;
    use pagoda_linux::testing::skip::skip_without_moves;

    use super::*;
    use crate::file::orders::{Part, Reader};
    use crate::file::tests::mapped;
    use crate::store::Scratch;

    /// A page that is there already ends the move of a run within an entry.
    #[test]
    fn of_a_run_that_stops_the_entries_before_are_in_and_those_behind_stay_staged() {
        const THERE: usize = 403;
        const GRANULE: u32 = 5;
        if skip_without_moves("runs that stop") {
            return;
        }
        let (_file, manager, region) = mapped(BasePage::K64);
        let (engine, inner) = (manager.engine(), region.inner());
        let part = Part { entries: 400..408, marker: 407, begin: 400, reader: Reader::Calls };
        engine.read_part(&inner.file, inner.range, &part, &mut Scratch::new(engine.base));
        let (start, all) = (inner.range.start(), all_of_slot(&engine.space));
        let word = |index: usize| {
            let table = engine.gate_shared();
            table.find(start).expect("mapped").word(index)
        };
        assert!((400..408).all(|index| word(index).resident().is_empty()), "read and not moved");
        let there = PageRange::page(start + THERE * engine.entry_bytes() + GRANULE as usize * OS_PAGE);
        assert_eq!(engine.space.fill_with(there, &[9; OS_PAGE]).stop, None);
        engine.move_part_in(&inner.file, inner.range, 400..408, 407);
        let in_region: Vec<_> = (400..408).map(|index| word(index).resident()).collect();
        let nothing = Granules::NONE;
        let came = Granules::range(0, GRANULE);
        assert_eq!(in_region, [all, all, all, came, nothing, nothing, nothing, nothing]);
        assert_eq!(word(402).backing(), Backing::None);
        assert!((403..408).all(|index| matches!(word(index).backing(), Backing::Slot(_))));
        let mut byte = [0];
        for page in (400 * 16..408 * 16).filter(|page| *page != THERE * 16 + GRANULE as usize) {
            region.read_at(page * OS_PAGE + 1, &mut byte).expect("a disk");
            assert_eq!(byte, [(page % 251) as u8], "page {page}");
        }
    }
}
