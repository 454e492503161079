//! Giving unused frames back to the kernel: ready parts of frames, and frames beyond the budget.
//!
//! This module must never give back a frame that is in use: only those that the zone has as ready.

use pagoda_linux::arena::Slot;

use crate::engine::Engine;
use crate::stats::counters::Counter;

impl Engine {
    /// Gives gathered parts of frames back to the kernel as long as the budget is exceeded; else
    /// they are kept for the next faults. Waits for a handler to read the event that this makes:
    /// only the reclaimer may call it, and must hold nothing.
    pub(crate) fn give_back_pieces(&self) {
        if self.ledger.excess_bytes() == 0 {
            return;
        }
        let Some((slots, frames_bytes)) = self.zones.take_gathered_pieces(&self.space) else { return };
        for run in slots.chunk_by(|one, next| one.index() + 1 == next.index()) {
            self.space.discard(run);
        }
        self.counters.add(Counter::ReleasedBytes, frames_bytes);
        self.ledger.took(-(frames_bytes as i64));
        for slot in slots {
            self.zones.put_empty(&self.space, slot);
        }
    }

    /// Gives ready frames back to the kernel until no more than `keep` are left or the budget
    /// holds.
    pub(crate) fn give_back_excess(&self, keep: u64) {
        while self.ledger.excess_bytes() > 0 && self.give_back_a_huge_frame() {}
        let entry_bytes = self.entry_bytes() as u64;
        let excess = self.ledger.excess_bytes().div_ceil(entry_bytes);
        // Parts of frames go by themselves, once there are many.
        let spare = (self.zones.ready_bytes(&self.space) / entry_bytes).saturating_sub(keep).min(excess);
        let mut slots: Vec<Slot> = Vec::with_capacity(spare.min(512) as usize);
        for _ in 0..spare.min(512) {
            let Some(slot) = self.zones.take_to_give_back(&self.space) else { break };
            slots.push(slot);
        }
        self.give_back(slots);
    }

    /// Gives these unused frames back to the kernel.
    pub(crate) fn give_back(&self, mut slots: Vec<Slot>) {
        if slots.is_empty() {
            return;
        }
        let emptied = self.space.give_back(&slots);
        let bytes = emptied * self.entry_bytes();
        self.counters.add(Counter::ReleasedBytes, bytes as u64);
        self.ledger.took(-(bytes as i64));
        let kept = slots.split_off(emptied);
        slots.into_iter().for_each(|slot| self.zones.put_empty(&self.space, slot));
        kept.into_iter().for_each(|slot| self.zones.put_ready(&self.space, slot));
    }
}

#[cfg(test)]
mod tests {
    use pagoda_core::page::OS_PAGE;
    use pagoda_core::page_entry::Granules;
    use pagoda_core::size::Bytes;
    use pagoda_linux::testing::skip::skip_without_moves;

    use crate::Manager;

    #[test]
    fn a_part_of_a_frame_does_not_go_for_a_whole_one() {
        if skip_without_moves("frames that go back") {
            return;
        }
        let manager = Manager::builder()
            .budget(Bytes::mib(16))
            .user_mode_only(true)
            .tune(|tuning| tuning.clear_ahead(0))
            .build();
        let manager = manager.expect("a manager");
        let engine = manager.engine();
        // As much as one frame, one OS page of each.
        for _ in 0..engine.entry_bytes() / OS_PAGE {
            let mut slot = engine.zones.take_empty(&engine.space, 0).expect("an empty slot");
            engine.space.bytes_mut(&mut slot)[0] = 1;
            engine.zones.put_pieces(&engine.space, slot, Granules::range(0, 1));
        }
        engine.ledger.took(engine.ledger.budget_bytes() as i64 + engine.entry_bytes() as i64);
        let held = engine.ledger.held_bytes();
        engine.give_back_excess(0);
        assert_eq!(engine.ledger.held_bytes(), held);
        assert_eq!(engine.ready_bytes(), engine.entry_bytes() as u64);
    }
}
