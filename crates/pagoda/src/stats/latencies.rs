//! The latencies of faults, by kind: a histogram each, in the buckets of
//! [`pagoda_core::time::latency`].
//!
//! A fault's time goes from having been read by a handler (in a thread that serves its own, from
//! the signal) to having been served. The waking of the handler before it and of the program's
//! thread after it is not in it. Counting is one relaxed addition in shared memory
//! ([`Counters::took`](crate::stats::counters::Counters::took)); this module is the reader's side.
//! A latency is at most an eighth too high. The engine must never read this module to decide
//! anything.

use pagoda_core::time::latency::BUCKETS;

use crate::stats::fault_kind::{FaultKind, KINDS};

/// Words of all histograms of a process, kind by kind: about 13 KiB.
pub const LATENCY_WORDS: usize = KINDS * BUCKETS;

/// A copy of them, taken without a lock: each count is right, two of them may be a moment apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latencies {
    counts: Vec<u64>,
}

impl Default for Latencies {
    fn default() -> Self {
        Self { counts: vec![0; LATENCY_WORDS] }
    }
}

impl Latencies {
    /// Panics if these are not [`LATENCY_WORDS`] counts.
    pub(crate) fn new(counts: Vec<u64>) -> Self {
        assert_eq!(counts.len(), LATENCY_WORDS);
        Self { counts }
    }

    /// Of faults that took so many nanoseconds each.
    #[must_use]
    pub fn of_faults(faults: &[(FaultKind, u64)]) -> Self {
        let mut latencies = Self::default();
        for (kind, ns) in faults {
            latencies.counts[*kind as usize * BUCKETS + pagoda_core::time::latency::index_of(*ns)] += 1;
        }
        latencies
    }

    /// The counts of one kind, for [`pagoda_core::time::latency::percentile`].
    #[must_use]
    pub fn of(&self, kind: FaultKind) -> &[u64] {
        &self.counts[kind as usize * BUCKETS..][..BUCKETS]
    }

    /// The counts of all kinds together.
    #[must_use]
    pub fn of_all(&self) -> Vec<u64> {
        let sum = |at| FaultKind::ALL.iter().fold(0u64, |sum, kind| sum.saturating_add(self.of(*kind)[at]));
        (0..BUCKETS).map(sum).collect()
    }

    /// Adds those of another process.
    pub fn add(&mut self, other: &Self) {
        for (sum, count) in self.counts.iter_mut().zip(&other.counts) {
            *sum = sum.saturating_add(*count);
        }
    }

    /// The counts added since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let pairs = self.counts.iter().zip(&before.counts);
        Self { counts: pairs.map(|(now, before)| now.saturating_sub(*before)).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::counters::Counters;

    #[test]
    fn each_kind_has_its_own_counts_and_all_have_the_sum() {
        let counters = Counters::private().expect("a mapping");
        let faults: Vec<(FaultKind, u64)> =
            FaultKind::ALL.into_iter().zip((0..).map(|at| 100 << at)).collect();
        for (kind, ns) in &faults {
            counters.took(*kind, *ns);
        }
        let latencies = counters.latencies();
        assert_eq!(latencies, Latencies::of_faults(&faults));
        for kind in FaultKind::ALL {
            assert_eq!(latencies.of(kind).iter().sum::<u64>(), 1, "{}", kind.name());
        }
        assert_eq!(latencies.of_all().iter().sum::<u64>(), KINDS as u64);
        counters.took(FaultKind::Stored, u64::MAX);
        let added = counters.latencies().since(&latencies);
        assert_eq!((added.of(FaultKind::Stored)[BUCKETS - 1], added.of_all().iter().sum::<u64>()), (1, 1));
        let mut twice = latencies.clone();
        twice.add(&latencies);
        assert_eq!(twice.since(&latencies), latencies);
    }
}
