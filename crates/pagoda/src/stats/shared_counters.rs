//! Where the counters of one process lie, and how they are counted.
//!
//! Counting is one relaxed atomic addition, on any thread. This module must never lock, nor
//! allocate once the counters are there.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pagoda_core::time::latency;
use pagoda_linux::io::shared_file::SharedWords;

use super::counters::{COUNT, Counter, Stats};
use super::fault_kind::FaultKind;
use super::latencies::{LATENCY_WORDS, Latencies};

/// Where counters lie: [`COUNT`] words, and [`LATENCY_WORDS`] of the histograms.
enum Words {
    /// In a mapping that goes with them: from these words of it on.
    Owned { words: Arc<SharedWords>, counters: usize, latencies: usize },
    /// In a tree file.
    Member { counters: &'static [AtomicU64], latencies: &'static [AtomicU64] },
}

impl Words {
    fn counters(&self) -> &[AtomicU64] {
        match self {
            Self::Owned { words, counters, .. } => &words[*counters..][..COUNT],
            Self::Member { counters, .. } => counters,
        }
    }
    fn latencies(&self) -> &[AtomicU64] {
        match self {
            Self::Owned { words, latencies, .. } => &words[*latencies..][..LATENCY_WORDS],
            Self::Member { latencies, .. } => latencies,
        }
    }
}

/// The counters of one process, perhaps shared with others.
pub struct Counters {
    words: Words,
}

impl Counters {
    /// Counters that only this process sees.
    pub fn private() -> io::Result<Self> {
        Ok(Self::within(Arc::new(SharedWords::anonymous(COUNT + LATENCY_WORDS)?), 0, COUNT))
    }
    /// Counters that lie in a mapping of this process, one behind the other from the word at
    /// `counters` on; the histograms from that at `latencies` on.
    pub(crate) fn within(words: Arc<SharedWords>, counters: usize, latencies: usize) -> Self {
        Self { words: Words::Owned { words, counters, latencies } }
    }
    /// The counters of a member of a tree. Panics if these are not [`COUNT`] and [`LATENCY_WORDS`]
    /// words.
    pub(crate) fn of_member(counters: &'static [AtomicU64], latencies: &'static [AtomicU64]) -> Self {
        assert_eq!((counters.len(), latencies.len()), (COUNT, LATENCY_WORDS));
        Self { words: Words::Member { counters, latencies } }
    }
    /// Reads every counter once.
    #[must_use]
    pub fn snapshot(&self) -> Stats {
        Stats::of(|counter| self.get(counter))
    }
    /// One counter's value. In a tree, totals continue those of the members that had the place
    /// before.
    #[must_use]
    pub fn get(&self, counter: Counter) -> u64 {
        self.words.counters()[counter as usize].load(Ordering::Relaxed)
    }
    /// Counts `n` more.
    #[inline]
    pub fn add(&self, counter: Counter, n: u64) {
        self.words.counters()[counter as usize].fetch_add(n, Ordering::Relaxed);
    }
    /// Counts one fault in the histogram of its kind: it was served so many nanoseconds after it
    /// had been read.
    #[inline]
    pub fn took(&self, kind: FaultKind, ns: u64) {
        let at = kind as usize * latency::BUCKETS + latency::index_of(ns);
        self.words.latencies()[at].fetch_add(1, Ordering::Relaxed);
    }
    /// Counts one fault that was served: all that is counted of every fault, whatever it did.
    /// `pagoda bench counters` times this.
    #[inline]
    pub fn count_fault(&self, kind: FaultKind, took_ns: u64) {
        self.add(Counter::Faults, 1);
        self.add(Counter::FaultServiceNs, took_ns);
        self.took(kind, took_ns);
        let (of, also) = match kind {
            FaultKind::Zero => (Counter::FaultsZero, None),
            FaultKind::Huge => (Counter::FaultsZero, Some(Counter::FaultsHuge)),
            FaultKind::Staged => (Counter::FaultsStaged, None),
            FaultKind::Stored => (Counter::FaultsStored, None),
            FaultKind::Spilled => (Counter::FaultsStored, Some(Counter::FaultsSpilled)),
            FaultKind::Spurious => (Counter::FaultsSpurious, None),
        };
        self.add(of, 1);
        also.into_iter().for_each(|counter| self.add(counter, 1));
    }
    /// Reads the histograms once.
    #[must_use]
    pub fn latencies(&self) -> Latencies {
        Latencies::new(self.words.latencies().iter().map(|count| count.load(Ordering::Relaxed)).collect())
    }
    /// Sets a gauge.
    pub fn set(&self, counter: Counter, n: u64) {
        self.words.counters()[counter as usize].store(n, Ordering::Relaxed);
    }
    /// Raises a peak.
    pub fn raise(&self, counter: Counter, n: u64) {
        self.words.counters()[counter as usize].fetch_max(n, Ordering::Relaxed);
    }
}
