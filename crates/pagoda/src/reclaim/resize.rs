//! Resizing zones at run time, and the budget with them.
//!
//! A zone's size is only a number: its limit and its part of the watermarks follow with the next
//! look. A zone that shrank holds too much for a while. The reclaimer evicts its pages, as of any
//! short zone, and gives its frames back to the kernel instead of keeping them ready. So no page is
//! lost, and only threads that allocate wait. A zone never grows beyond the slots that it was made
//! with: an evicted frame needs a slot. This module must never take a frame that is in use.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use pagoda_core::budget::watermark::Watermarks;
use pagoda_core::page::HUGE_FRAME;
use pagoda_core::size::Bytes;

use crate::engine::Engine;
use crate::frames::zone_config::{ResizeError, ZONE_LEAST};
use crate::frames::zones::Zones;
use crate::state::hand::Step;
use crate::stats::counters::Counter;
use crate::store::Scratch;

/// Steps of reclaim for a zone that holds too much before the reclaimer looks at everything else,
/// as between two looks at the kernel's count.
const STEPS: u32 = 16;

/// The most frames of one zone that are given back at once: as of all zones when the budget is
/// exceeded.
const GIVEN_BACK_MOST: u64 = 512;

impl Zones {
    /// Whether a zone has become smaller, and may still hold too much.
    pub(crate) fn has_shrunk(&self) -> bool {
        self.shrunk.load(Ordering::Relaxed)
    }

    /// Where the budget is not divided: its one zone has all of it.
    pub(crate) fn set_only(&self, budget: Bytes) {
        if let [part] = &*self.parts {
            part.bytes.store(budget.get(), Ordering::Relaxed);
        }
    }
}

impl Engine {
    /// Resizes a zone, and the budget to the sum of all zones.
    pub(crate) fn resize_zone(&self, name: &str, bytes: Bytes) -> Result<(), ResizeError> {
        let zones = &self.zones;
        let Some(zone) = zones.parts.iter().position(|part| part.name == name) else {
            return Err(ResizeError::Unknown { name: name.to_owned(), zones: zones.names().join(", ") });
        };
        self.resize(|sizes| sizes[zone] = bytes.get())
    }

    /// Resizes the budget, and all zones in proportion.
    pub(crate) fn resize_budget(&self, budget: Bytes) -> Result<(), ResizeError> {
        self.resize(|sizes| {
            let sum: u128 = sizes.iter().map(|bytes| u128::from(*bytes)).sum();
            let mut rest = budget.get();
            for size in sizes.iter_mut() {
                *size = (u128::from(*size) * u128::from(budget.get()) / sum) as u64;
                rest -= *size;
            }
            sizes[0] += rest;
        })
    }

    /// Gives the zones the sizes that `change` makes of their present ones, if all of them fit.
    fn resize(&self, change: impl FnOnce(&mut [u64])) -> Result<(), ResizeError> {
        let zones = &self.zones;
        let _one = zones.resizing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut after: Vec<u64> = (0..zones.count()).map(|zone| zones.size(zone).get()).collect();
        change(&mut after);
        let least = Watermarks::least_share(self.base, self.handlers).max(ZONE_LEAST);
        for (part, bytes) in zones.parts.iter().zip(&after) {
            let (name, bytes) = (part.name.clone(), Bytes::new(*bytes));
            if bytes < least {
                return Err(ResizeError::TooSmall { name, bytes, least });
            }
            let most = Bytes::new(u64::from(part.hands.slots()) * self.entry_bytes() as u64);
            if bytes > most {
                return Err(ResizeError::TooLarge { name, bytes, most });
            }
        }
        let budget = Bytes::new(after.iter().sum());
        let least = Watermarks::least_budget(self.base, self.handlers);
        if budget < least {
            return Err(ResizeError::BudgetTooSmall { budget, least });
        }
        for (part, bytes) in zones.parts.iter().zip(&after) {
            part.bytes.store(*bytes, Ordering::Relaxed);
        }
        self.ledger.set_budget(budget.get());
        self.counters.set(Counter::BudgetBytes, budget.get());
        if zones.are_several() {
            zones.shrunk.store(true, Ordering::Release);
        }
        // Turns of another length begin.
        self.drain_turns();
        self.bell.ring();
        Ok(())
    }

    /// The zones that hold more than they may, and by how much.
    fn full_zones(&self) -> impl Iterator<Item = (usize, u64)> {
        let levels = self.zone_levels();
        let too_much = move |zone: usize| (zone, (-levels[zone].room_bytes).max(0) as u64);
        (0..self.zones.count()).map(too_much).filter(|(_, bytes)| *bytes > 0)
    }

    /// Gives ready frames of zones that hold too much since one became smaller back to the kernel.
    pub(crate) fn give_back_of_full_zones(&self) {
        if !self.zones.has_shrunk() {
            return;
        }
        for (zone, mut bytes) in self.full_zones() {
            while bytes > 0 && self.give_back_a_huge_frame_of(zone) {
                bytes = bytes.saturating_sub(HUGE_FRAME as u64);
            }
            let most = bytes.div_ceil(self.entry_bytes() as u64).min(GIVEN_BACK_MOST);
            let hands = self.zones.hands(zone);
            self.give_back((0..most).map_while(|_| hands.take_whole_ready(&self.space)).collect());
        }
    }

    /// Evicts from zones that hold too much since they shrank. True if more can be evicted at once.
    pub(crate) fn shrink_zones(&self, scratch: &mut Scratch) -> bool {
        let mut gained = false;
        for _ in 0..STEPS {
            // Unused frames go before pages in use.
            self.give_back_of_full_zones();
            // Cleared before the check: a zone that shrinks meanwhile sets it anew.
            if !self.zones.shrunk.swap(false, Ordering::AcqRel) || self.full_zones().next().is_none() {
                return false;
            }
            self.zones.shrunk.store(true, Ordering::Release);
            match self.reclaim_step(scratch) {
                Step::FrameReady | Step::Staged => gained = true,
                Step::Looking => {}
                // The rest has to stay for now: it is tried again after a sleep.
                Step::Again | Step::Exhausted | Step::Full(_) => return false,
            }
        }
        gained
    }
}
