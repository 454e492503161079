//! First touches: pages without content, which read as zero.
//!
//! A frame of zeroes is moved in where the page belongs to a zone or the budget has no room; else
//! the kernel clears a fresh one. The caller has the gate, shared, and the busy bit of the entry.
//! This module must never fill more than is missing.

use pagoda_core::page::OS_PAGE;
use pagoda_core::page_entry::{Granules, Word};

use super::{Miss, Taken};
use crate::engine::Engine;
use crate::frames::zones::Taker;
use crate::state::pending::Served;
use crate::stats::counters::Counter;
use crate::table::Page;

impl Engine {
    /// Serves a fault on a page that has no content. Refuses it where the region has reached its
    /// limit.
    pub(super) fn serve_empty(&self, taken: &Taken<'_>, miss: &mut Miss<'_>) -> Served {
        let Taken { table, span, page, word, granule, .. } = *taken;
        let within = self.fill_for(span, &page, granule);
        let comes = page.granules.and(within).without(word.resident());
        let bytes = u64::from(comes.count()) * OS_PAGE as u64;
        let Some(touch) = self.admit_touch(table, miss.address, bytes) else {
            return self.refuse(taken, miss);
        };
        let (word, served) = self.fill_zero(&page, word, (granule, within), miss.write, miss.scratch.taker);
        taken.give(word);
        drop(touch);
        if served == Served::Done {
            self.note_first_touch(span, &page, within);
        }
        served
    }

    /// Fills a missing page that the table has as resident. The fault was served meanwhile, or a
    /// discard took the page after its event was applied: then it reads as zero.
    pub(super) fn fill_hole(&self, page: &Page, granule: u32, write: bool) -> Served {
        let (filled, served) = self.fill_one(page.addresses(granule, granule + 1), write);
        self.counters.add(Counter::HolesFilled, u64::from(filled));
        served
    }

    /// Zero-fills a page that was never written, or was discarded: all missing granules of the base
    /// page around the fault.
    fn fill_zero(
        &self,
        page: &Page,
        word: Word,
        (granule, within): (u32, Granules),
        write: bool,
        taker: Taker,
    ) -> (Word, Served) {
        let run = page.granules.and(within).without(word.resident()).run_around(granule);
        let Some((from, to)) = run.runs().next() else {
            // The fault lies in the entry's memory but not in the span: the span was cut meanwhile,
            // and the event is still to come.
            return (word, Served::Again);
        };
        let room = self.has_room();
        // A read gets the zero page as long as there is room for the page that a write would bring.
        let several = self.zones.are_several();
        // The kernel fills a part of a page as long as there is room. With several zones each part
        // is a zone's from the beginning.
        let is_whole = run.count() as usize * 4096 >= self.entry_bytes();
        let frame = if several || !room || write && is_whole {
            self.zeroed_frame(word, run, granule, taker)
        } else {
            None
        };
        let mut zone = 0;
        let progress = match frame {
            Some((slot, there)) => {
                zone = self.zones.of_slot(slot.index());
                let moved = self.move_in(page, &slot, run);
                if moved.done.is_empty() && is_whole {
                    // An event was in the way, for example. The frame is still zero, and need not
                    // be cleared for the next try.
                    self.zones.put_zeroed(&self.space, slot);
                } else {
                    self.zones.put_pieces(&self.space, slot, there.without(moved.done).or(moved.copied));
                }
                moved
            }
            None if !room || several => return (word, Served::NoMemory),
            None => self.fill_fresh(page, from, to, write),
        };
        self.note_use();
        let word = self.came_in(word, progress.done, zone);
        let here = page.addresses(granule, granule + 1);
        if progress.done.has(granule) {
            return (word, Served::Done);
        }
        (word, self.settle(progress.stop, here))
    }
}
