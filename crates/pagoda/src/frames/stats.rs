//! The figures of each zone, for people and counters.
//!
//! Nothing here may ever decide anything.

use pagoda_core::size::Bytes;

use crate::frames::zones::ZONES_MAX;
use crate::stats::counters::{Counter, Stats};

/// The current state of a zone, and its totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ZoneStats {
    /// Its part of the budget.
    pub bytes: Bytes,
    /// Its bytes in frames: in the regions, staged and ready.
    pub held: Bytes,
    /// Its free bytes: ready frames, and its part of the room in the budget.
    pub free: Bytes,
    /// Allocations leave this much of it free, as long as another zone has more.
    pub low: Bytes,
    /// Reclaim raises its free memory to this.
    pub high: Bytes,
    /// Bytes that it gave, ever. For a remote zone those that were spilled there.
    pub allocated: Bytes,
    /// Bytes of its frames that reclaim moved out of the regions, ever, and bytes of files that
    /// were read ahead and dropped unused.
    pub evicted: Bytes,
}

/// How much longer pages stay in the zone with the longest stay than in the one with the shortest:
/// 1 if they are equally old when they are evicted. A stay is the held bytes over the bytes evicted
/// in a unit of time (Little's law), and the unit cancels out. None unless two zones have evicted
/// pages.
#[must_use]
pub fn age_ratio(zones: &[ZoneStats]) -> Option<f64> {
    let left = |zone: &&ZoneStats| zone.evicted > Bytes::ZERO;
    let stay = |zone: &ZoneStats| zone.held.get() as f64 / zone.evicted.get() as f64;
    let stays: Vec<f64> = zones.iter().filter(left).map(stay).collect();
    let (least, most) = (stays.iter().copied().reduce(f64::min)?, stays.iter().copied().reduce(f64::max)?);
    (stays.len() > 1 && least > 0.0).then(|| most / least)
}

/// A zone's counters.
pub(crate) struct ZoneCounters {
    pub(super) bytes: Counter,
    pub(super) held: Counter,
    pub(super) free: Counter,
    pub(super) low: Counter,
    pub(super) high: Counter,
    pub(crate) allocated: Counter,
    pub(crate) evicted: Counter,
}

/// Each zone's, as they were named.
pub(crate) const COUNTERS: [ZoneCounters; ZONES_MAX] = [
    ZoneCounters {
        bytes: Counter::Zone0Bytes,
        held: Counter::Zone0HeldBytes,
        free: Counter::Zone0FreeBytes,
        low: Counter::Zone0LowBytes,
        high: Counter::Zone0HighBytes,
        allocated: Counter::Zone0AllocatedBytes,
        evicted: Counter::Zone0EvictedBytes,
    },
    ZoneCounters {
        bytes: Counter::Zone1Bytes,
        held: Counter::Zone1HeldBytes,
        free: Counter::Zone1FreeBytes,
        low: Counter::Zone1LowBytes,
        high: Counter::Zone1HighBytes,
        allocated: Counter::Zone1AllocatedBytes,
        evicted: Counter::Zone1EvictedBytes,
    },
    ZoneCounters {
        bytes: Counter::Zone2Bytes,
        held: Counter::Zone2HeldBytes,
        free: Counter::Zone2FreeBytes,
        low: Counter::Zone2LowBytes,
        high: Counter::Zone2HighBytes,
        allocated: Counter::Zone2AllocatedBytes,
        evicted: Counter::Zone2EvictedBytes,
    },
    ZoneCounters {
        bytes: Counter::Zone3Bytes,
        held: Counter::Zone3HeldBytes,
        free: Counter::Zone3FreeBytes,
        low: Counter::Zone3LowBytes,
        high: Counter::Zone3HighBytes,
        allocated: Counter::Zone3AllocatedBytes,
        evicted: Counter::Zone3EvictedBytes,
    },
];

impl ZoneStats {
    /// Every zone that these counters have, as they were named. None where there is only one.
    #[must_use]
    pub fn all(counters: &Stats) -> Vec<Self> {
        let fields = counters.fields();
        let get = |counter: Counter| Bytes::new(fields[counter as usize].1);
        let of = |counters: &ZoneCounters| Self {
            bytes: get(counters.bytes),
            held: get(counters.held),
            free: get(counters.free),
            low: get(counters.low),
            high: get(counters.high),
            allocated: get(counters.allocated),
            evicted: get(counters.evicted),
        };
        COUNTERS.iter().map(of).filter(|zone| zone.bytes > Bytes::ZERO).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_compared_by_held_bytes_over_evicted_bytes() {
        let zone = |held, evicted| ZoneStats {
            held: Bytes::mib(held),
            evicted: Bytes::mib(evicted),
            ..ZoneStats::default()
        };
        assert_eq!(age_ratio(&[zone(10, 100), zone(30, 300)]), Some(1.0));
        assert_eq!(age_ratio(&[zone(10, 300), zone(30, 300), zone(5, 0)]), Some(3.0));
        assert_eq!(age_ratio(&[zone(10, 100), zone(30, 0)]), None);
    }
}
