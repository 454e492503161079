//! The counts of each guest and of all. Sizes are bytes, times microseconds or milliseconds.
//!
//! Fields are only ever added. Percentiles are at most an eighth too high. A fault's time is from
//! the read of its message to its fill; what the guest sees is longer by its own wake-up.

use pagoda_core::page::OS_PAGE;
use pagoda_core::time::latency::{BUCKETS, percentile};
use serde::{Deserialize, Serialize};

use crate::record::{Count, KeptRecord};

/// The counts of one guest, or of all.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GuestStats {
    /// Its number, by order of connection from 1; 0 for all together.
    pub vm: u64,
    /// The process that connected; 0 if it is not known, or for all together.
    pub process: u64,
    /// Its memory in bytes.
    pub memory_bytes: u64,
    /// Handlers that have served it: more than one if a handler has died.
    pub handlers: u64,
    /// Faults that were answered.
    pub faults: u64,
    /// Faults on pages that had come meanwhile.
    pub stale_faults: u64,
    /// Bytes that were filled with content.
    pub filled_bytes: u64,
    /// Bytes that were filled with zeroes, which take no memory in pages of 4 KiB.
    pub zero_bytes: u64,
    /// Bytes of both that no fault had asked for when they were filled.
    pub prefetched_bytes: u64,
    /// Bytes that the guest has discarded.
    pub removed_bytes: u64,
    /// Bytes that could not be read, and were refused to the guest.
    pub refused_bytes: u64,
    /// Fills that the kernel had put off, because a discard was unread.
    pub put_off: u64,
    /// From its connection to its first page; the longest for all together.
    pub first_page_ms: Option<f64>,
    /// Until its working set was there; the longest for all together.
    pub working_set_ms: Option<f64>,
    /// Half of its faults took no longer.
    pub fault_p50_us: Option<f64>,
    /// 99 of 100 of its faults took no longer.
    pub fault_p99_us: Option<f64>,
    /// It has all of its memory, and needs no handler.
    pub is_independent: bool,
}

/// Counts that can be summed up.
#[derive(Clone)]
pub(crate) struct Sum {
    pub(crate) stats: GuestStats,
    latencies: [u64; BUCKETS],
}

impl Default for Sum {
    fn default() -> Self {
        Self { stats: GuestStats::default(), latencies: [0; BUCKETS] }
    }
}

fn ms(ns: u64) -> Option<f64> {
    (ns > 0).then_some(ns as f64 / 1e6)
}

impl Sum {
    pub(crate) fn of(vm: u64, record: &KeptRecord) -> Self {
        let counts = record.counts();
        let get = |count: Count| counts[count as usize];
        let bytes = |count| get(count) * OS_PAGE as u64;
        let stats = GuestStats {
            vm,
            process: get(Count::Process),
            memory_bytes: get(Count::MemoryBytes),
            handlers: get(Count::Handlers),
            faults: get(Count::Faults),
            stale_faults: get(Count::Stale),
            filled_bytes: bytes(Count::FilledPages),
            zero_bytes: bytes(Count::ZeroPages),
            prefetched_bytes: bytes(Count::PrefetchedPages),
            removed_bytes: bytes(Count::RemovedPages),
            refused_bytes: bytes(Count::RefusedPages),
            put_off: get(Count::PutOff),
            first_page_ms: ms(get(Count::FirstPageNs)),
            working_set_ms: ms(get(Count::PrefetchNs)),
            fault_p50_us: None,
            fault_p99_us: None,
            is_independent: get(Count::Independent) != 0,
        };
        Self { stats, latencies: record.latencies() }.with_percentiles()
    }

    fn with_percentiles(mut self) -> Self {
        let us = |per_mille| percentile(&self.latencies, per_mille).map(|ns| ns as f64 / 1000.0);
        (self.stats.fault_p50_us, self.stats.fault_p99_us) = (us(500), us(990));
        self
    }

    pub(crate) fn add(&mut self, other: &Self) {
        let (sum, more) = (&mut self.stats, &other.stats);
        sum.memory_bytes += more.memory_bytes;
        sum.handlers = sum.handlers.max(more.handlers);
        sum.faults += more.faults;
        sum.stale_faults += more.stale_faults;
        sum.filled_bytes += more.filled_bytes;
        sum.zero_bytes += more.zero_bytes;
        sum.prefetched_bytes += more.prefetched_bytes;
        sum.removed_bytes += more.removed_bytes;
        sum.refused_bytes += more.refused_bytes;
        sum.put_off += more.put_off;
        let longest = |one: Option<f64>, other: Option<f64>| one.max_by(other);
        sum.first_page_ms = longest(sum.first_page_ms, more.first_page_ms);
        sum.working_set_ms = longest(sum.working_set_ms, more.working_set_ms);
        for (count, more) in self.latencies.iter_mut().zip(&other.latencies) {
            *count += more;
        }
        *self = self.clone().with_percentiles();
    }
}

trait MaxBy {
    fn max_by(self, other: Self) -> Self;
}

impl MaxBy for Option<f64> {
    fn max_by(self, other: Self) -> Self {
        [self, other].into_iter().flatten().reduce(f64::max)
    }
}

/// Everything that is counted.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Stats {
    /// The image's length in bytes.
    pub image_bytes: u64,
    /// Connections that were accepted.
    pub connections: u64,
    /// Connections that were turned away because there were too many.
    pub turned_away: u64,
    /// Handlers that died or stood still, and were replaced.
    pub restarts: u64,
    /// VMs that are there now.
    pub vms_now: u64,
    /// All VMs together, those that have ended included.
    pub total: GuestStats,
    /// Each VM that is there now.
    pub vms: Vec<GuestStats>,
}
