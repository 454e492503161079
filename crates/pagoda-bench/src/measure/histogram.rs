//! Latencies counted in buckets, and their percentiles.
//!
//! Counting a latency costs a few instructions and no memory beyond a fixed table that is made beforehand: it runs
//! inside what is measured. This module must never look at a clock.

use serde::{Deserialize, Serialize};

/// Buckets within each power of two: a percentile is at most 1/64 too high.
const STEPS: u64 = 64;
const STEP_BITS: u32 = STEPS.trailing_zeros();
const BUCKETS: usize = (STEPS * (64 - STEP_BITS as u64 + 1)) as usize;

/// Counts of latencies in nanoseconds.
pub struct Histogram {
    counts: Vec<u32>,
    total: u64,
}

/// What is reported of a distribution, in microseconds. All zero if nothing was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// The median.
    pub p50: f64,
    /// Of 100, 99 are at most this.
    pub p99: f64,
    /// Of 1000, 999 are at most this.
    pub p999: f64,
}

impl Histogram {
    /// Nothing counted yet.
    pub fn new() -> Self {
        Self { counts: vec![0; BUCKETS], total: 0 }
    }

    /// Counts one latency.
    pub fn add(&mut self, ns: u64) {
        self.counts[bucket(ns)] += 1;
        self.total += 1;
    }

    /// How many were counted.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The smallest bucket end that `per_mille` of 1000 latencies do not exceed, in nanoseconds.
    fn per_mille_ns(&self, per_mille: u64) -> u64 {
        let rank = (self.total * per_mille).div_ceil(1000).max(1);
        let mut seen = 0;
        for (i, &count) in self.counts.iter().enumerate() {
            seen += u64::from(count);
            if seen >= rank {
                return bucket_end(i);
            }
        }
        0
    }

    /// The percentiles of what was counted.
    pub fn percentiles(&self) -> Percentiles {
        let us = |per_mille| self.per_mille_ns(per_mille) as f64 / 1000.0;
        Percentiles { p50: us(500), p99: us(990), p999: us(999) }
    }
}

/// Values below 64 have a bucket each; above, the top seven bits of a value choose.
fn bucket(ns: u64) -> usize {
    let shift = (64 - ns.leading_zeros()).saturating_sub(STEP_BITS + 1);
    (u64::from(shift) * STEPS + (ns >> shift)) as usize
}

/// The greatest value in a bucket.
fn bucket_end(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let shift = (bucket / STEPS).saturating_sub(1);
    let top = bucket - shift * STEPS;
    (((u128::from(top) + 1) << shift) - 1) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_end_is_at_most_a_64th_above_any_value_in_it() {
        for ns in (0..5000).chain([123_456, 9_876_543_210, u64::MAX / 3, u64::MAX]) {
            let end = bucket_end(bucket(ns));
            assert!(end >= ns && end - ns <= ns / 64, "{ns}: {end}");
            assert!(bucket(ns) < BUCKETS && (ns == 0 || bucket(ns - 1) <= bucket(ns)), "{ns}");
        }
    }

    #[test]
    fn percentiles_are_ranks_and_of_nothing_zero() {
        let mut latencies = Histogram::new();
        assert_eq!(latencies.percentiles(), Percentiles::default());
        for _ in 0..998 {
            latencies.add(10);
        }
        latencies.add(40_000);
        latencies.add(63);
        assert_eq!(latencies.total(), 1000);
        assert_eq!(latencies.percentiles(), Percentiles { p50: 0.010, p99: 0.010, p999: 0.063 });
        for _ in 0..9000 {
            latencies.add(20);
        }
        assert_eq!(latencies.percentiles().p50, 0.020);
    }
}
