//! Whose pages are evicted next: those of one list, or those of a list for each zone.
//!
//! With one list for all zones the oldest pages of the zones that are short go first, and one hand
//! goes round all regions. With a list for each zone, as Linux had it before 4.8, each zone has a
//! hand, a queue of staged pages and a *reclaimer* of its own. All reclaimers wake when no zone has
//! a frame above its low watermark, and each sleeps when its own zone is at its high one. Those
//! that are awake share the work: the zone that lacks the largest part of its batch is next, so
//! that they progress in proportion to their zones.
//!
//! Reclaim with a list for each zone is for comparison with the one list. This module must never
//! move a page, and never keep a reclaimer awake for pages that can't leave: it rests.

/// Whether the pages of all zones age together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ZoneReclaim {
    /// One list, of which the pages of short zones go first.
    #[default]
    OneList,
    /// A list for each zone, and a reclaimer that keeps the zone's watermarks.
    PerZone,
}

impl ZoneReclaim {
    /// Both.
    pub const ALL: [Self; 2] = [Self::OneList, Self::PerZone];

    /// Its name for people and for JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OneList => "one-list",
            Self::PerZone => "per-zone",
        }
    }
}

/// How far a zone is below its high watermark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lack {
    /// The missing frames or bytes; negative above the watermark.
    pub amount: i64,
    /// The zone's batch, in the same unit: more than 0.
    pub batch: u64,
}

/// The reclaimers of up to 64 zones.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reclaimers {
    /// As bits, by zone.
    awake: u64,
    was_short: bool,
}

impl Reclaimers {
    /// Takes note of all zones. With `is_short` memory as a whole is: reclaimers wake when that
    /// begins, and when it goes on although all sleep. Returns whether reclaim is to run.
    pub fn look(&mut self, is_short: bool, lacks: &[Lack]) -> bool {
        let wakes = is_short && (!self.was_short || self.awake == 0);
        self.was_short = is_short;
        for (zone, lack) in lacks.iter().enumerate() {
            if lack.amount <= 0 {
                self.awake &= !(1 << zone);
            } else if wakes {
                self.awake |= 1 << zone;
            }
        }
        is_short || self.awake != 0
    }

    /// The reclaimer of `zone` sleeps until all are woken: nothing of the zone can leave now.
    pub fn rest(&mut self, zone: usize) {
        self.awake &= !(1 << zone);
    }

    /// The zone whose pages are evicted next, among those that are not in `tried`: zones that are
    /// awake come before all others, and the one that lacks most of its batch before the rest.
    #[must_use]
    pub fn next(&self, lacks: &[Lack], tried: u64) -> Option<usize> {
        let rank = |zone: &usize| {
            let Lack { amount, batch } = lacks[*zone];
            let part = i128::from(amount) * (1 << 20) / i128::from(batch.max(1));
            // Of equals the first.
            (self.awake >> zone & 1, part, std::cmp::Reverse(*zone))
        };
        (0..lacks.len()).filter(|zone| tried >> zone & 1 == 0).max_by_key(rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lacks(amounts: [i64; 2]) -> [Lack; 2] {
        [Lack { amount: amounts[0], batch: 300 }, Lack { amount: amounts[1], batch: 100 }]
    }

    #[test]
    fn reclaimers_wake_together_and_each_sleeps_at_its_own_high_watermark() {
        let mut reclaimers = Reclaimers::default();
        assert!(!reclaimers.look(false, &lacks([200, 100])), "one alone wakes none");
        assert!(reclaimers.look(true, &lacks([300, 100])));
        // No longer short as a whole, but neither is at its watermark.
        assert!(reclaimers.look(false, &lacks([100, 20])));
        assert!(reclaimers.look(false, &lacks([100, 0])));
        assert_eq!(reclaimers.next(&lacks([10, 90]), 0), Some(0), "the second one sleeps");
        assert!(!reclaimers.look(false, &lacks([0, 90])));
        assert!(reclaimers.look(true, &lacks([300, 90])));
        // Short for longer than all were awake.
        assert!(reclaimers.look(true, &lacks([0, 0])));
        assert!(reclaimers.look(true, &lacks([10, 0])));
        assert_eq!(reclaimers.next(&lacks([10, 0]), 0), Some(0));
    }

    #[test]
    fn the_zone_that_lacks_the_largest_part_of_its_batch_is_next() {
        let mut reclaimers = Reclaimers::default();
        reclaimers.look(true, &lacks([300, 100]));
        assert_eq!(reclaimers.next(&lacks([300, 100]), 0), Some(0));
        assert_eq!(reclaimers.next(&lacks([297, 100]), 0), Some(1));
        assert_eq!(reclaimers.next(&lacks([297, 98]), 0), Some(0));
        assert_eq!(reclaimers.next(&lacks([297, 98]), 0b01), Some(1));
        assert_eq!(reclaimers.next(&lacks([297, 98]), 0b11), None);
    }

    #[test]
    fn a_zone_of_which_nothing_can_leave_keeps_no_reclaimer_awake() {
        let mut reclaimers = Reclaimers::default();
        reclaimers.look(true, &lacks([300, 100]));
        reclaimers.rest(0);
        assert_eq!(reclaimers.next(&lacks([300, 1]), 0), Some(1));
        assert!(!reclaimers.look(false, &lacks([300, 0])));
    }
}
