//! The gauges of the engine: sizes that are computed when they are read, not when they change.
//!
//! Nothing here may ever decide anything.

use std::sync::atomic::Ordering;

use pagoda_core::size::Bytes;

use crate::engine::Engine;
use crate::stats::counters::Counter;

impl Engine {
    /// Anonymous memory that Pagoda accounts for: regions, frames, store.
    pub(crate) fn managed_frames_bytes(&self) -> u64 {
        let frames = self.ready_bytes() + self.ledger.receiving_bytes();
        let store = self.store.usage().memory_committed_bytes.get();
        self.in_regions_bytes() + self.ledger.staged_bytes() + frames + store
    }

    /// The memory of all entries, with those of closed owners.
    pub(crate) fn table_bytes(&self) -> u64 {
        self.gate_shared().entries_bytes() + self.closed.table_bytes()
    }

    /// The bytes in the regions: those that may be evicted, and those that are only followed.
    fn in_regions_bytes(&self) -> u64 {
        self.ledger.resident_bytes() + self.ledger.followed_bytes()
    }

    /// A library's stats: its own ledger, brought up to date.
    pub(crate) fn publish_library_gauges(&self) {
        let held = self.managed_frames_bytes();
        self.ledger.reconcile(held, self.store.usage().memory_committed_bytes.get());
        self.counters.set(Counter::AnonBytes, held);
        self.counters.raise(Counter::AnonPeakBytes, held);
        self.counters.set(Counter::TableBytes, self.table_bytes());
        self.publish_gauges();
    }

    /// Sets every gauge of the engine's own. Returns the bytes that the program would hold without
    /// it.
    pub(crate) fn publish_gauges(&self) -> Bytes {
        // Read first: pages freed in between are missing from the stored ones then, and never
        // counted twice.
        let closed = self.closed.found() * self.store.page_bytes() as u64;
        let queued = self.store.releases().queued_bytes() + closed;
        let usage = self.store.usage();
        // Queued pages are no program's any more. They hold as much as others do on average.
        let queued_pages = (queued / self.store.page_bytes() as u64).min(usage.objects);
        let of_program = u128::from(usage.objects - queued_pages) * u128::from(usage.raw_bytes.get());
        let stored_bytes = (of_program / u128::from(usage.objects.max(1))) as u64;
        let counters = &self.counters;
        counters.set(Counter::ReleaseQueuedBytes, queued);
        let in_service = self.serving_since_ns.iter().filter(|since| since.load(Ordering::Acquire) != 0);
        counters.set(Counter::FaultsInService, in_service.count() as u64);
        counters.set(Counter::ResidentBytes, self.in_regions_bytes());
        counters.set(Counter::FollowedBytes, self.ledger.followed_bytes());
        counters.raise(Counter::FollowedPeakBytes, self.ledger.followed_bytes());
        counters.set(Counter::StagedBytes, self.ledger.staged_bytes());
        counters.set(Counter::ReadyBytes, self.ready_bytes());
        let marks = self.marks();
        counters.set(Counter::FreeBytes, self.free().get());
        counters.set(Counter::FreeMinBytes, marks.min.get());
        counters.set(Counter::FreeLowBytes, marks.low.get());
        counters.set(Counter::FreeHighBytes, marks.high.get());
        counters.set(Counter::StoredBytes, stored_bytes);
        counters.raise(Counter::StoredPeakBytes, stored_bytes);
        counters.set(Counter::StoreMemoryBytes, usage.memory_committed_bytes.get());
        counters.set(Counter::StoreUsedBytes, usage.memory_used_bytes.get());
        counters.set(Counter::StorePackedBytes, usage.memory_packed_bytes.get());
        counters.raise(Counter::StoreMemoryPeakBytes, usage.memory_committed_bytes.get());
        counters.set(Counter::SpilledBytes, usage.file_bytes.get());
        counters.raise(Counter::SpilledPeakBytes, usage.file_bytes.get());
        counters.set(Counter::FileRequestsAtOnce, usage.file_requests_at_once);
        counters.add(Counter::FileRequestsTogether, self.store.take_requests_together());
        counters.set(Counter::RemoteBytes, usage.remote_bytes.get());
        counters.raise(Counter::RemotePeakBytes, usage.remote_bytes.get());
        counters.set(Counter::RemoteFailures, usage.remote_failures);
        self.publish_zone_gauges();
        let unmanaged = counters.get(Counter::UnmanagedBytes);
        // A resident page with a stored copy is held once by the program.
        let stored = stored_bytes.saturating_sub(self.ledger.copied_bytes()) + self.ledger.same_bytes();
        let held = self.in_regions_bytes() + self.ledger.staged_bytes() + stored + unmanaged;
        counters.set(Counter::HeldBytes, held);
        if held > counters.get(Counter::HeldPeakBytes) {
            counters.set(Counter::HeldPeakBytes, held);
            counters.set(Counter::UnmanagedAtPeakBytes, unmanaged);
        }
        Bytes::new(held)
    }
}
