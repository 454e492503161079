//! How much each of several zones of one budget has free, and in which order they are asked for a
//! frame.
//!
//! Memory that is not frames comes out of all zones in proportion, so that the sum of their free
//! memory is that of the budget. A zone may hold more than its part of the rest; its free memory is
//! negative then. All of it is computed from the zones' memory at the moment of the call, for `N`
//! zones at most, and without memory: it runs on the fault path. This module must never know whose
//! turn it is; that is [`Zones`](super::Zones)' business, and [`Order::with_first`] puts it first.

use std::cmp::Reverse;

use crate::size::Bytes;

/// A zone's size, and the part that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    /// Its part of the budget: more than 0.
    pub bytes: Bytes,
    /// In frames, ready ones included.
    pub held_bytes: i64,
    /// In frames that are ready.
    pub ready_bytes: i64,
}

/// A zone's free memory, in bytes. Negative if it holds more than its part of the memory left for
/// frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// In frames, ready ones included.
    pub held_bytes: i64,
    /// The memory that it may still take from the kernel.
    pub room_bytes: i64,
    /// That, and frames that are ready.
    pub free_bytes: i64,
}

/// The level of each of these zones in a budget of `budget_bytes`, of which `all_held_bytes` are
/// held in all: memory that is not frames comes out of each in proportion to its size. Behind the
/// last zone there is nothing.
///
/// Panics if no zone has any bytes.
pub fn levels<const N: usize>(
    budget_bytes: i64,
    all_held_bytes: i64,
    zones: impl Iterator<Item = Holding> + Clone,
) -> [Level; N] {
    let whole: u64 = zones.clone().map(|zone| zone.bytes.get()).sum();
    let in_frames: i64 = zones.clone().map(|zone| zone.held_bytes).sum();
    let for_frames = budget_bytes - (all_held_bytes - in_frames).max(0);
    let mut levels = [Level::default(); N];
    for (level, Holding { bytes, held_bytes, ready_bytes }) in levels.iter_mut().zip(zones) {
        let part = i128::from(for_frames) * i128::from(bytes.get()) / i128::from(whole);
        // Of an i64 it is a part.
        let room_bytes = part as i64 - held_bytes;
        *level = Level { held_bytes, room_bytes, free_bytes: room_bytes + ready_bytes };
    }
    levels
}

/// Zones in the order in which they are asked.
#[derive(Clone, Copy, Debug)]
pub struct Order<const N: usize> {
    zones: [usize; N],
    count: usize,
}

impl<const N: usize> Order<N> {
    /// First those with the largest free share, measured by their sizes, of which there is one for
    /// each zone.
    ///
    /// Panics if there are more than `N` zones, or one has no bytes.
    #[must_use]
    pub fn by_free_share(levels: &[Level; N], sizes: impl ExactSizeIterator<Item = Bytes>) -> Self {
        let count = sizes.len();
        let mut shares = [0; N];
        for (zone, bytes) in sizes.enumerate() {
            shares[zone] = i128::from(levels[zone].free_bytes) * (1 << 20) / i128::from(bytes.get());
        }
        let mut zones = std::array::from_fn(|zone| zone);
        zones[..count].sort_unstable_by_key(|zone| Reverse(shares[*zone]));
        Self { zones, count }
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = usize> {
        self.zones[..self.count].iter().copied()
    }

    /// The one that is asked first.
    #[must_use]
    pub fn first(&self) -> usize {
        self.zones[0]
    }

    /// The same with `zone` before all others.
    #[must_use]
    pub fn with_first(mut self, zone: usize) -> Self {
        let at = self.iter().position(|other| other == zone);
        if let Some(at) = at {
            self.zones[..=at].rotate_right(1);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As many as the tests take.
    const MOST: usize = 4;

    proptest! {
        /// The free memory of all zones together is that of the budget, for any use.
        #[test]
        fn free_memory_of_zones_sums_to_the_budgets(
            zones in prop::collection::vec((1u64..1 << 36, 0i64..1 << 36, 0i64..1 << 30), 1..=MOST),
            other in 0i64..1 << 36,
            budget in 1i64..1 << 38,
        ) {
            let in_frames: i64 = zones.iter().map(|(_, held, ready)| held + ready).sum();
            let ready: i64 = zones.iter().map(|(.., ready)| ready).sum();
            let of = zones.iter().map(|(bytes, held, ready)| Holding {
                bytes: Bytes::new(*bytes),
                held_bytes: held + ready,
                ready_bytes: *ready,
            });
            let levels: [Level; MOST] = levels(budget, in_frames + other, of);
            let free: i64 = levels.iter().map(|level| level.free_bytes).sum();
            let room: i64 = levels.iter().map(|level| level.room_bytes).sum();
            let of_budget = budget - in_frames - other;
            prop_assert!((room - of_budget).abs() <= MOST as i64, "{} of {}", room, of_budget);
            prop_assert_eq!(free, room + ready);
            prop_assert!(levels[zones.len()..].iter().all(|level| *level == Level::default()));
        }

        /// Every zone is asked once, and none after one that has a smaller share free, but for two
        /// millionths.
        #[test]
        fn zones_are_asked_by_how_much_of_them_is_free(
            zones in prop::collection::vec((1u64..1 << 36, -(1i64 << 36)..1 << 36), 1..=MOST),
        ) {
            let mut levels = [Level::default(); MOST];
            for (level, (_, free)) in levels.iter_mut().zip(&zones) {
                level.free_bytes = *free;
            }
            let order = Order::by_free_share(&levels, zones.iter().map(|(bytes, _)| Bytes::new(*bytes)));
            let asked: Vec<usize> = order.iter().collect();
            let mut sorted = asked.clone();
            sorted.sort_unstable();
            prop_assert_eq!(sorted, (0..zones.len()).collect::<Vec<_>>());
            prop_assert_eq!(order.first(), asked[0]);
            let in_order = |pair: &[usize]| {
                let [(bytes, free), (next_bytes, next_free)] = [pair[0], pair[1]].map(|zone| {
                    (i128::from(zones[zone].0), i128::from(zones[zone].1) << 20)
                });
                free * next_bytes > next_free * bytes - 2 * bytes * next_bytes
            };
            prop_assert!(asked.windows(2).all(in_order), "{:?}", asked);
        }
    }

    #[test]
    fn other_memory_comes_out_of_each_zone_in_proportion() {
        let mib = |n: i64| n << 20;
        let zones = [(10, mib(1), 0), (30, mib(3), mib(2))].map(|(size, held_bytes, ready_bytes)| Holding {
            bytes: Bytes::mib(size),
            held_bytes,
            ready_bytes,
        });
        let [first, second, ..]: [Level; MOST] = levels(mib(40), mib(12), zones.into_iter());
        assert_eq!((first.room_bytes, second.room_bytes), (mib(7), mib(21)));
        assert_eq!((first.free_bytes, second.free_bytes), (mib(7), mib(23)));
    }

    #[test]
    fn the_zone_of_a_page_comes_first_and_the_others_keep_their_order() {
        let order: Order<MOST> = Order { zones: [2, 0, 1, 3], count: 3 };
        assert_eq!(order.with_first(1).iter().collect::<Vec<_>>(), [1, 2, 0]);
        assert_eq!(order.with_first(2).iter().collect::<Vec<_>>(), [2, 0, 1]);
        assert_eq!(order.with_first(3).iter().collect::<Vec<_>>(), [2, 0, 1]);
    }
}
