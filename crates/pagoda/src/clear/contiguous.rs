//! Fresh base frames of 64 KiB whose OS pages are contiguous in physical memory: all of a huge page
//! at a time, which is split.
//!
//! Each is one segment for a device then, and not sixteen: a disk that is read at 2 GiB/s into such
//! frames is read at half of that into others (`docs/figures.md`). Frames travel whole, so that
//! they stay so. This module must never take from a zone a frame that it can't spare, nor put a
//! frame from another node into one that is bound to its own.

use pagoda_core::budget;
use pagoda_core::page::{BasePage, HUGE_FRAME, OS_PAGE};
use pagoda_core::size::Bytes;

use crate::engine::Engine;
use crate::frames::pool::all_of_slot;
use crate::stats::counters::Counter;

/// Base frames of a huge page, as a power of two.
const BROKEN_ORDER: u32 = (HUGE_FRAME / BasePage::K64.bytes()).ilog2();

impl Engine {
    /// Makes the frames of a huge page ready in each zone that has fewer than `frames`, and more
    /// room than the level at which reclaim begins. For large reads: it takes 0.7 ms for each, and
    /// only as long as the memory fills.
    pub(crate) fn take_contiguous_for(&self, frames: usize) {
        for zone in 0..self.zones.count() {
            let (room, high) = self.zone_room_and_high(zone);
            let is_short = self.zones.hands(zone).whole_ready() < frames as u64;
            if is_short && budget::takes_ahead(room, Bytes::new(HUGE_FRAME as u64), high) {
                self.take_contiguous(zone);
            }
        }
    }

    /// Gets the frames of a huge page ready in a zone. False if it can't have any: no slots, no
    /// memory, a node of its own, which that page need not be of, or base pages of another size.
    pub(crate) fn take_contiguous(&self, zone: usize) -> bool {
        if self.entry_bytes() != BasePage::K64.bytes() || self.zones.is_bound(zone) {
            return false;
        }
        let Some(mut slots) = self.zones.hands(zone).take_empty_run(&self.space, BROKEN_ORDER) else {
            return false;
        };
        // The ledger first: another thread may want the same room.
        self.ledger.took(HUGE_FRAME as i64);
        let broken = self.space.break_huge_page(&mut slots).is_ok();
        let mut there = 0;
        for slot in slots {
            let pages = self.space.pages_of(&slot);
            there += pages.count() as usize * OS_PAGE;
            if pages == all_of_slot(&self.space) {
                self.zones.put_zeroed(&self.space, slot);
            } else {
                // The kernel would not move the rest.
                self.zones.put_pieces(&self.space, slot, pages);
            }
        }
        self.ledger.took(there as i64 - HUGE_FRAME as i64);
        self.counters.add(Counter::KernelZeroedBytes, there as u64);
        self.counters.add(Counter::ContiguousReadyBytes, there as u64);
        broken
    }
}
