//! Frames of zeroes for first touches of base pages.
//!
//! A frame that is ready and zero is moved in as it is, one that held something is cleared first, and of several zones an empty slot
//! gets a fresh one, which the kernel has cleared and which is not cleared again. This module must never give a frame of which a
//! byte is not zero: a debug build looks at every one.

use pagoda_core::page::OS_PAGE;
use pagoda_linux::space::Slot;

use crate::counters::Counter;
use crate::engine::Engine;
use crate::zone::Holds;

impl Engine {
    /// A frame of zeroes, of the zone whose turn it is. None if the kernel has to give one, or there is no room. Where a part of it is
    /// wanted it is one of which a part is left, if there is one.
    pub(crate) fn zeroed_frame(&self, is_part: bool) -> Option<Slot> {
        self.zones.note_asked();
        let (mut slot, holds) = if self.zones.are_several() {
            self.frame_of_a_zone_for_zeroes(is_part)?
        } else if self.may_use_frame() {
            let hands = self.zones.hands(0);
            let whole = || hands.take_for_zeroes(&self.space);
            let part = || {
                let (slot, lacks_bytes) = hands.take_part_ready(&self.space)?;
                self.ledger.took(lacks_bytes as i64);
                Some((slot, Holds::Used { lacks_bytes }))
            };
            if is_part { part().or_else(whole)? } else { whole().or_else(part)? }
        } else {
            return None;
        };
        let frame_bytes = self.entry_bytes() as u64;
        match holds {
            Holds::Zeroes => {
                self.counters.add(Counter::TakenClearedBytes, frame_bytes);
                self.counters.add(Counter::FaultsZeroReady, 1);
                // Nobody is woken for the next one: who clears on another processor makes each move interrupt it, so that it is done
                // when the clearer looks by itself.
            }
            Holds::Used { lacks_bytes } => {
                self.space.bytes_mut(&mut slot).fill(0);
                self.counters.add(Counter::ClearedInFaultBytes, frame_bytes - lacks_bytes);
                // What was missing the kernel has cleared, too, when it was written.
                self.counters.add(Counter::KernelZeroedBytes, lacks_bytes);
                self.counters.add(Counter::ClearedTwiceBytes, lacks_bytes);
            }
            Holds::Nothing => self.take_zeroes_from_kernel(&mut slot),
        }
        debug_assert!(self.space.bytes(&slot).iter().all(|&byte| byte == 0), "a frame is handed out clear");
        Some(slot)
    }

    /// Puts a fresh frame into an empty slot, which the ledger knows of: a touch of each OS page, of which the kernel locks this arena
    /// alone. (`MADV_POPULATE_WRITE` has all mappings locked, and takes 22 µs for 64 KiB against 24.)
    pub(crate) fn take_zeroes_from_kernel(&self, slot: &mut Slot) {
        let bytes = self.space.bytes_mut(slot);
        self.counters.add(Counter::KernelZeroedBytes, bytes.len() as u64);
        bytes.iter_mut().step_by(OS_PAGE).for_each(|byte| *byte = 0);
    }
}

#[cfg(test)]
#[path = "zeroed_test.rs"]
mod tests;
