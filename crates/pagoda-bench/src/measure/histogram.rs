//! Latencies counted in buckets, and their percentiles.
//!
//! Counting a latency costs a few instructions, and no memory beyond a fixed table made beforehand:
//! it runs inside the measurement. This module must never look at a clock.

use serde::{Deserialize, Serialize};

/// An hour in nanoseconds: no run lasts as long.
const NS_MAX: u64 = 3_600_000_000_000;
/// A percentile is at most 1/128 too high.
const DIGITS: u8 = 2;

/// Counts of latencies in nanoseconds.
pub struct Histogram(hdrhistogram::Histogram<u32>);

/// Percentiles of a distribution, in microseconds. All zero if nothing was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// The median.
    pub p50: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The 99.9th percentile.
    pub p999: f64,
}

impl Histogram {
    /// A histogram with nothing counted.
    pub fn new() -> Self {
        Self(hdrhistogram::Histogram::new_with_max(NS_MAX, DIGITS).expect("the bounds are constants"))
    }

    /// Counts one latency.
    pub fn add(&mut self, ns: u64) {
        self.0.saturating_record(ns);
    }

    /// The number of latencies counted.
    pub fn total(&self) -> u64 {
        self.0.len()
    }

    /// The percentiles of the latencies counted.
    pub fn percentiles(&self) -> Percentiles {
        let us = |quantile| self.0.value_at_quantile(quantile) as f64 / 1000.0;
        Percentiles { p50: us(0.5), p99: us(0.99), p999: us(0.999) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_at_most_a_128th_above_the_latency() {
        for ns in (1..5000).chain([123_456, 9_876_543_210, NS_MAX]) {
            let mut one = Histogram::new();
            one.add(ns);
            let above = one.percentiles().p50 - ns as f64 / 1000.0;
            assert!((0.0..=ns as f64 / 128_000.0).contains(&above), "{ns}: {above}");
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
