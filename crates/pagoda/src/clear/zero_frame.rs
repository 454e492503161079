//! Zeroed frames for first touches of base pages.
//!
//! A ready zeroed frame is moved in as it is, and a used one is cleared first. With several zones
//! an empty slot gets a fresh frame, which the kernel has cleared and which is not cleared again.
//! If only a part of a frame is wanted, no more is cleared or taken. This module must never give a
//! frame of which a wanted byte is not zero: a debug build checks every one.

use std::ops::Range;

use pagoda_core::clear::{Order, Target};
use pagoda_core::page::OS_PAGE;
use pagoda_core::page_entry::{Granules, Word};
use pagoda_linux::arena::Slot;

use crate::engine::Engine;
use crate::frames::pool::{Holds, all_of_slot};
use crate::frames::zones::Taker;
use crate::stats::counters::Counter;

impl Engine {
    /// A frame of which `wanted` is zero, to be moved in from the slot, of the zone in turn; and
    /// its present granules, of which the others may hold anything. None if the kernel has to give
    /// one, or there is no room. For a part of a page it prefers a frame of which a part is left.
    /// It is for the page of `word`, and the fault waits for `granule`.
    pub(crate) fn zeroed_frame(
        &self,
        word: Word,
        wanted: Granules,
        granule: u32,
        taker: Taker,
    ) -> Option<(Slot, Granules)> {
        self.zones.note_asked();
        let all = all_of_slot(&self.space);
        let is_part = wanted != all;
        let (mut slot, holds) = if self.zones.are_several() {
            self.frame_of_a_zone_for_zeroes(word, wanted, taker)?
        } else if self.may_use_frame() {
            let hands = self.zones.hands(0);
            let whole = || hands.take_for_zeroes(&self.space);
            let part = || {
                let (slot, there) = hands.take_part_ready(&self.space)?;
                Some((slot, Holds::Used { there }))
            };
            if is_part { part().or_else(whole)? } else { whole().or_else(part)? }
        } else {
            return None;
        };
        let there = holds.there(all);
        if holds == Holds::Zeroes {
            self.counters.add(Counter::TakenClearedBytes, bytes_of(wanted));
            self.counters.add(Counter::FaultsZeroReady, 1);
            // The clearing thread is not woken for the next one: a clear on another processor makes
            // each move interrupt it. It looks by itself.
        } else {
            self.clear_base_in_fault(&mut slot, wanted.and(there), granule);
            // The ledger first: another thread may want the same room.
            self.ledger.took(bytes_of(wanted.without(there)) as i64);
            self.take_zeroes_from_kernel(&mut slot, wanted.without(there));
        }
        debug_assert!(
            wanted.runs().all(|run| self.space.bytes(&slot)[bytes_in(run)].iter().all(|&byte| byte == 0)),
            "a frame is handed out clear"
        );
        Some((slot, there.or(wanted)))
    }

    /// Clears these OS pages of a used frame: upwards, unless an order was chosen, by the fastest
    /// instructions there are. A whole base page is in the cache when it is done, whatever the
    /// order.
    fn clear_base_in_fault(&self, slot: &mut Slot, used: Granules, granule: u32) {
        let order = self.clearing.order.unwrap_or(Order::Ascending);
        for (from, to) in used.runs() {
            let hint = (from..to).contains(&granule).then(|| granule - from);
            let target = Target::in_frame(to - from, hint).expect("a page of the run");
            self.clearer.clear(&mut self.space.bytes_mut(slot)[bytes_in((from, to))], order, target);
        }
        self.counters.add(Counter::ClearedInFaultBytes, bytes_of(used));
    }

    /// Puts fresh frames where these OS pages of a slot have none, which the ledger knows of: a
    /// touch of each, of which the kernel locks this arena alone. (`MADV_POPULATE_WRITE` has all
    /// mappings locked, and takes 22 µs for 64 KiB against 24.)
    pub(crate) fn take_zeroes_from_kernel(&self, slot: &mut Slot, missing: Granules) {
        let bytes = self.space.bytes_mut(slot);
        self.counters.add(Counter::KernelZeroedBytes, bytes_of(missing));
        for run in missing.runs() {
            bytes[bytes_in(run)].iter_mut().step_by(OS_PAGE).for_each(|byte| *byte = 0);
        }
    }
}

/// How many bytes these OS pages are.
fn bytes_of(granules: Granules) -> u64 {
    u64::from(granules.count()) * OS_PAGE as u64
}

/// Where a run of OS pages is in its slot.
fn bytes_in((from, to): (u32, u32)) -> Range<usize> {
    from as usize * OS_PAGE..to as usize * OS_PAGE
}

#[cfg(test)]
#[path = "zero_frame_test.rs"]
pub(crate) mod tests;
