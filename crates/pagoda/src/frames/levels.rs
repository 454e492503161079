//! The fill levels of the engine's zones, and the decisions that follow
//! (`pagoda_core::zone::levels`): the order in which they are asked for a frame, and which ones are
//! short, so that reclaim takes from them.
//!
//! Levels are computed when they are needed: a few loads. This module must never change a zone.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard};

use pagoda_core::size::Bytes;
use pagoda_core::zone as turns;
use pagoda_core::zone::levels::{Holding, Level, Order, levels};

use crate::engine::Engine;
use crate::error::StopReason;
use crate::frames::stats::COUNTERS;
use crate::frames::zones::{Part, Taker, ZONES_MAX};
use crate::stats::counters::Counter;

/// Where the next frame is to come from.
pub(crate) struct InTurn {
    /// The zone in turn. None if no zone is above its low watermark: neither is the budget then.
    /// Taking a frame wakes reclaim by that (`note_use`), and a taker without one does so once,
    /// however often it tries.
    pub(crate) first: Option<usize>,
    pub(crate) levels: [Level; ZONES_MAX],
}

impl Engine {
    pub(crate) fn zone_levels(&self) -> [Level; ZONES_MAX] {
        let amounts = |(zone, part): (usize, &Part)| {
            let ready = (part.hands.ready_bytes(&self.space) + self.huge.ready_bytes_of(zone)) as i64;
            let used = part.in_regions.load(Ordering::Relaxed) + part.staged.load(Ordering::Relaxed);
            Holding { bytes: part.bytes(), held_bytes: used + ready, ready_bytes: ready }
        };
        let parts = self.zones.parts.iter().enumerate().map(amounts);
        levels(self.ledger.budget_bytes() as i64, self.ledger.held_bytes() as i64, parts)
    }

    /// The frames that zone number `zone` can give, with its part of the current watermarks.
    pub(crate) fn zone_now(&self, zone: usize, level: &Level) -> turns::Zone {
        let free = Bytes::new(level.free_bytes.max(0) as u64);
        let frame_bytes = self.entry_bytes() as u64;
        let part = self.zones.size(zone);
        let whole = Bytes::new((0..self.zones.count()).map(|zone| self.zones.size(zone).get()).sum());
        turns::Zone::of_part(&self.marks(), part, whole, free, frame_bytes)
    }

    /// The bytes that may still be taken from the kernel for zone number `zone`, and its part of
    /// the high watermark.
    pub(crate) fn zone_room_and_high(&self, zone: usize) -> (Bytes, Bytes) {
        let room_bytes = self.ledger.room_bytes();
        if !self.zones.are_several() {
            return (Bytes::new(room_bytes), self.marks().high);
        }
        let level = self.zone_levels()[zone];
        let now = self.zone_now(zone, &level);
        let of_zone = (level.room_bytes.max(0) as u64).min(room_bytes);
        (Bytes::new(of_zone), Bytes::new(now.high_frames * self.entry_bytes() as u64))
    }

    /// The zone in turn when `taker` needs a frame.
    pub(crate) fn zones_in_turn(&self, taker: Taker) -> InTurn {
        let levels = self.zone_levels();
        let Some(turns) = &self.zones.turns else { return InTurn { first: Some(0), levels } };
        let first = self.zone_in_turn(turns, taker, &levels).ok();
        if first.is_none() {
            self.counters.add(Counter::ZonesShort, 1);
        }
        InTurn { first, levels }
    }

    /// All zones, the one in turn first, and then by the free share of each.
    pub(crate) fn zones_in_order(&self, InTurn { first, levels }: &InTurn) -> Order<ZONES_MAX> {
        let order = Order::by_free_share(levels, self.zones.parts.iter().map(Part::bytes));
        first.map_or(order, |zone| order.with_first(zone))
    }

    pub(crate) fn turns<'a>(&self, turns: &'a Mutex<turns::Zones>) -> MutexGuard<'a, turns::Zones> {
        turns.lock().unwrap_or_else(|_| self.stop(StopReason::EngineBroken))
    }

    /// Up to `most` turns of the next zone, by the state `now` of each.
    pub(crate) fn take_turn(
        &self,
        turns: &Mutex<turns::Zones>,
        now: impl Fn(usize) -> turns::Zone,
        most: u32,
    ) -> Result<turns::Grant, turns::Shortage> {
        let mut turns = self.turns(turns);
        for id in turns.ids() {
            turns.observe(id, &now(id.index()));
        }
        let resets = turns.counters().resets;
        let granted = turns.allocate(most);
        let resets = turns.counters().resets - resets;
        drop(turns);
        if resets > 0 {
            self.counters.add(Counter::ZonesResets, resets);
        }
        granted
    }

    /// The zones to evict from, as bits: those whose pages age on a list that is below its high
    /// watermark, or all if there are none such. While a zone that shrank holds too much, each zone
    /// goes by itself.
    pub(crate) fn short_zones(&self) -> u64 {
        if !self.zones.are_several() {
            return u64::MAX;
        }
        let levels = self.zone_levels();
        let has_shrunk = self.zones.has_shrunk();
        let list_of = |zone: usize| if has_shrunk { zone } else { self.zones.parts[zone].list };
        let mut lacks_bytes = [0; ZONES_MAX];
        for (zone, level) in levels.iter().enumerate().take(self.zones.count()) {
            let high_bytes = self.zone_now(zone, level).high_frames as i64 * self.entry_bytes() as i64;
            lacks_bytes[list_of(zone)] += high_bytes - level.free_bytes;
        }
        let is_short = |zone: &usize| lacks_bytes[list_of(*zone)] > 0;
        let short = (0..self.zones.count()).filter(is_short).fold(0, |bits, zone| bits | 1 << zone);
        if short == 0 { u64::MAX } else { short }
    }
}

#[cfg(test)]
#[path = "levels_test.rs"]
mod tests;

impl Engine {
    /// Sets the gauges of all zones, if there are several.
    pub(crate) fn publish_zone_gauges(&self) {
        if !self.zones.are_several() {
            return;
        }
        let levels = self.zone_levels();
        let frame_bytes = self.entry_bytes() as u64;
        for (zone, (level, part)) in levels.iter().zip(&self.zones.parts).enumerate() {
            let now = self.zone_now(zone, level);
            let counters = &COUNTERS[part.number];
            for (counter, value) in [
                (counters.bytes, part.bytes().get()),
                (counters.held, level.held_bytes.max(0) as u64),
                (counters.free, level.free_bytes.max(0) as u64),
                (counters.low, now.low_frames * frame_bytes),
                (counters.high, now.high_frames * frame_bytes),
            ] {
                self.counters.set(counter, value);
            }
        }
    }
}
