//! Collapse: the base pages of a place that had a huge frame, or could have one, become one huge
//! page.
//!
//! The kernel collapses them in place. A frame of the huge arena can't be moved there: the kernel
//! keeps a page table where OS pages were, and splits a frame that is moved onto it. The kernel
//! copies with the mappings' lock held, so that a program that writes meanwhile waits for the copy
//! and loses nothing. The entries are taken, so that no part is moved meanwhile.
//! `pagoda_core::collapse` decides when it is worth it. This module must never collapse a place
//! that is not wholly resident.

use pagoda_core::collapse::{Seen, Verdict};
use pagoda_core::page::HUGE_FRAME;
use pagoda_core::page_entry::Word;
use pagoda_linux::process::thread::now_ns;

use crate::clear::huge_state::Block;
use crate::engine::Engine;
use crate::stats::counters::Counter;
use crate::table::Filler;

/// Looked at in one go, at most: 32 words each.
const LOOKS: usize = 256;

/// The least time between two looks.
const LOOK_NS: u64 = 100_000_000;

impl Engine {
    /// Collapses a place when that is due and the reclaimer is idle. It looks at a place ten times
    /// a second, and takes no more of a processor than clearing ahead may. The clearing thread
    /// can't do it: it runs too seldom to hold the gate.
    pub(crate) fn rebuild_when_due(&self, due_ns: &mut u64) {
        let now = now_ns();
        let percent = u64::from(self.clearing.ahead_percent);
        if percent == 0 || now < *due_ns || self.huge.broken() == 0 {
            return;
        }
        let took_ns = self.rebuild_one();
        *due_ns = now + (took_ns * 100 / percent).max(LOOK_NS);
    }

    /// Looks at places where huge frames were split, the one that was looked at longest ago first,
    /// until one is collapsed. Returns the nanoseconds that this took; 0 if none was.
    pub(crate) fn rebuild_one(&self) -> u64 {
        for _ in 0..self.huge.broken().min(LOOKS) {
            let Some((address, mut broken)) = self.huge.take_broken() else { return 0 };
            match broken.look(self.see(address), self.free(), &self.marks()) {
                Verdict::Forget => {}
                Verdict::Wait => self.huge.put_broken(address, broken),
                Verdict::Join => {
                    let begin_ns = now_ns();
                    let is_joined = self.join_huge(address);
                    let took_ns = now_ns() - begin_ns;
                    self.counters.add(Counter::HugeRebuildNs, took_ns);
                    if is_joined {
                        self.counters.add(Counter::HugeRebuilt, 1);
                        self.counters.add(Counter::HugeRebuiltBytes, HUGE_FRAME as u64);
                    } else {
                        self.counters.add(Counter::HugeRebuildsRefused, 1);
                        broken.refused();
                        self.huge.put_broken(address, broken);
                    }
                    return took_ns.max(1);
                }
            }
        }
        0
    }

    /// The state of the place of a split huge frame.
    fn see(&self, address: usize) -> Seen {
        let table = self.gate_shared();
        let span = table.find(address).filter(|span| span.filler() != Filler::File);
        let Some(span) = span else { return Seen::Gone };
        let Some(block) = Block::around(&table, span, address) else { return Seen::Gone };
        let words = block.words(span);
        let all = |is: &dyn Fn(Word) -> bool| words.iter().all(|word| is(*word));
        if all(&|word| word == Word::EMPTY) || all(&Word::is_huge) {
            Seen::Gone
        } else if all(&|word| block.is_whole(word) && !word.is_busy()) && self.has_room_to_be_huge(&words) {
            Seen::All
        } else {
            Seen::Part
        }
    }

    /// Collapses the base pages of the place of a huge frame, if all are there. True if it is one
    /// huge page now.
    fn join_huge(&self, address: usize) -> bool {
        let table = self.gate_shared();
        // Nothing is changed while an event is pending. The collapse needs the memory twice for a
        // moment: without room a ready frame is given back.
        let waits = table.order.deferred() > 0 || !self.space.is_quiet();
        if self.is_released() || waits || !self.has_room_to_join() {
            return false;
        }
        let Some(span) = table.find(address) else { return false };
        let Some(block) = Block::around(&table, span, address) else { return false };
        let Some(words) = block.take(span, |word| block.is_whole(word)) else { return false };
        self.ledger.took(HUGE_FRAME as i64);
        if span.filler() == Filler::EngineHuge {
            let _ = self.space.join_huge(block.range);
        } else {
            // There the kernel keeps pages small, except while some are collapsed.
            let might = span.set_may_be_joined(true);
            let (_, is_small) = self.space.join_small(block.range);
            span.set_may_be_joined(might || !is_small);
        }
        self.ledger.took(-(HUGE_FRAME as i64));
        // The kernel may have collapsed it by itself.
        let huge = self.is_one_huge_page(block.range);
        if huge {
            let zone = self.became_huge(&words);
            block.give(span, &words.map(|word| word.with_zone(zone).with_huge(true)));
        } else {
            block.give(span, &words.map(|word| word.with_huge(false)));
        }
        huge
    }

    fn has_room_to_join(&self) -> bool {
        self.ledger.room_bytes() >= HUGE_FRAME as u64 || self.give_back_a_huge_frame()
    }
}

#[cfg(test)]
#[path = "collapse_test.rs"]
mod tests;
