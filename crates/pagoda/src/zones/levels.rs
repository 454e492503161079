//! How much each zone has free, and what follows from that: in which order zones are asked for a frame, and which ones are
//! short, so that reclaim takes from them.
//!
//! It is computed from what each holds at the moment it is asked: a few loads. This module must never change what a zone has.

use std::sync::atomic::Ordering;

use pagoda_core::size::Bytes;
use pagoda_core::zone as turns;

use super::{Part, ZONES_MAX};
use crate::counters::Counter;
use crate::engine::Engine;
use crate::error::StopReason;

/// What a zone has, in bytes. Less than nothing if it holds more than its part of what is left for frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Level {
    /// In frames, ready ones included.
    pub(super) held_bytes: i64,
    /// What it may still take from the kernel.
    pub(super) room_bytes: i64,
    /// That, and frames that are ready.
    pub(super) free_bytes: i64,
}

/// Zones in the order in which they are asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Order {
    zones: [usize; ZONES_MAX],
    count: usize,
}

impl Order {
    pub(super) fn iter(&self) -> impl Iterator<Item = usize> {
        self.zones[..self.count].iter().copied()
    }

    pub(super) fn first(&self) -> usize {
        self.zones[0]
    }

    /// The same with `zone` before all others.
    pub(super) fn with_first(mut self, zone: usize) -> Self {
        let at = self.iter().position(|other| other == zone);
        if let Some(at) = at {
            self.zones[..=at].rotate_right(1);
        }
        self
    }
}

/// What zones of these sizes, that hold so much in frames of which so much is ready, have of a budget of which `all_held` is held
/// in all: what is not frames comes out of each in proportion.
pub(super) fn levels(
    budget: i64,
    all_held: i64,
    zones: impl Iterator<Item = (Bytes, i64, i64)> + Clone,
) -> [Level; ZONES_MAX] {
    let whole: u64 = zones.clone().map(|(bytes, ..)| bytes.get()).sum();
    let in_frames: i64 = zones.clone().map(|(_, held, _)| held).sum();
    let for_frames = budget - (all_held - in_frames).max(0);
    let mut levels = [Level::default(); ZONES_MAX];
    for (level, (bytes, held_bytes, ready)) in levels.iter_mut().zip(zones) {
        let part = i128::from(for_frames) * i128::from(bytes.get()) / i128::from(whole);
        // Of an i64 it is a part.
        let room_bytes = part as i64 - held_bytes;
        *level = Level { held_bytes, room_bytes, free_bytes: room_bytes + ready };
    }
    levels
}

impl Engine {
    pub(super) fn zone_levels(&self) -> [Level; ZONES_MAX] {
        let amounts = |part: &Part| {
            let ready = part.hands.ready_bytes(&self.space) as i64;
            let used = part.in_regions.load(Ordering::Relaxed) + part.staged.load(Ordering::Relaxed);
            (part.bytes, used + ready, ready)
        };
        let parts = self.zone.parts.iter().map(amounts);
        levels(self.ledger.budget_bytes() as i64, self.ledger.held_bytes() as i64, parts)
    }

    /// What zone number `zone` can give, with its part of the watermarks that hold now.
    pub(super) fn zone_now(&self, zone: usize, level: &Level) -> turns::Zone {
        let free = Bytes::new(level.free_bytes.max(0) as u64);
        let frame_bytes = self.entry_bytes() as u64;
        let part = self.zone.parts[zone].bytes;
        turns::Zone::of_part(&self.marks(), part, self.zone.whole, free, frame_bytes)
    }

    /// All zones, the one whose turn it is first, and then by how much of each is free. If none is above its low watermark,
    /// reclaim is woken.
    pub(super) fn zones_in_turn(&self) -> (Order, [Level; ZONES_MAX]) {
        let levels = self.zone_levels();
        let count = self.zone.parts.len();
        let mut order = Order { zones: std::array::from_fn(|zone| zone), count };
        let share = |zone: usize| {
            i128::from(levels[zone].free_bytes) * (1 << 20) / i128::from(self.zone.parts[zone].bytes.get())
        };
        order.zones[..count].sort_unstable_by_key(|zone| std::cmp::Reverse(share(*zone)));
        let Some(turns) = &self.zone.turns else { return (order, levels) };
        let mut turns = turns.lock().unwrap_or_else(|_| self.stop(StopReason::EngineBroken));
        for id in turns.ids() {
            turns.observe(id, &self.zone_now(id.index(), &levels[id.index()]));
        }
        let resets = turns.counters().resets;
        let granted = turns.allocate(1);
        let resets = turns.counters().resets - resets;
        drop(turns);
        if resets > 0 {
            self.counters.add(Counter::ZonesResets, resets);
        }
        match granted {
            Ok(grant) => (order.with_first(grant.zone.index()), levels),
            Err(turns::Shortage) => {
                self.counters.add(Counter::ZonesShort, 1);
                self.bell.ring();
                (order, levels)
            }
        }
    }

    /// The zones from which pages are to go, as bits: those below their high watermarks, or all if there are none such or
    /// all age on one list.
    pub(crate) fn short_zones(&self) -> u64 {
        if !self.zone.are_several() || self.zone.one_list {
            return u64::MAX;
        }
        let levels = self.zone_levels();
        let is_short = |zone: &usize| {
            let now = self.zone_now(*zone, &levels[*zone]);
            now.free_frames < now.high_frames
        };
        let short = (0..self.zone.parts.len()).filter(is_short).fold(0, |bits, zone| bits | 1 << zone);
        if short == 0 { u64::MAX } else { short }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// All zones together have free what the budget has, whatever it is used for.
        #[test]
        fn zones_have_what_the_budget_has(
            zones in prop::collection::vec((1u64..1 << 36, 0i64..1 << 36, 0i64..1 << 30), 1..=ZONES_MAX),
            other in 0i64..1 << 36,
            budget in 1i64..1 << 38,
        ) {
            let in_frames: i64 = zones.iter().map(|(_, held, ready)| held + ready).sum();
            let ready: i64 = zones.iter().map(|(.., ready)| ready).sum();
            let of = zones.iter().map(|(bytes, held, ready)| (Bytes::new(*bytes), held + ready, *ready));
            let levels = levels(budget, in_frames + other, of);
            let free: i64 = levels.iter().map(|level| level.free_bytes).sum();
            let room: i64 = levels.iter().map(|level| level.room_bytes).sum();
            let of_budget = budget - in_frames - other;
            prop_assert!((room - of_budget).abs() <= ZONES_MAX as i64, "{} of {}", room, of_budget);
            prop_assert_eq!(free, room + ready);
            prop_assert!(levels[zones.len()..].iter().all(|level| *level == Level::default()));
        }
    }

    #[test]
    fn what_is_not_frames_comes_out_of_each_zone_in_proportion() {
        let mib = |n: i64| n << 20;
        let zones = [(Bytes::mib(10), mib(1), 0), (Bytes::mib(30), mib(3), mib(2))];
        let [first, second, ..] = levels(mib(40), mib(12), zones.into_iter());
        assert_eq!((first.room_bytes, second.room_bytes), (mib(7), mib(21)));
        assert_eq!((first.free_bytes, second.free_bytes), (mib(7), mib(23)));
    }

    #[test]
    fn the_zone_of_a_page_comes_first_and_the_others_keep_their_order() {
        let order = Order { zones: [2, 0, 1, 3], count: 3 };
        assert_eq!(order.with_first(1).iter().collect::<Vec<_>>(), [1, 2, 0]);
        assert_eq!(order.with_first(2).iter().collect::<Vec<_>>(), [2, 0, 1]);
        assert_eq!(order.with_first(3).iter().collect::<Vec<_>>(), [2, 0, 1]);
    }
}
