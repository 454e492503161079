//! The share of the store's memory that compressed pages may use now, and the faults by which it is
//! chosen (`pagoda_core::budget::balance`).

use std::sync::atomic::{AtomicU64, Ordering};

use pagoda_core::budget::balance::{Refaults, WHOLE};
use pagoda_core::size::Bytes;

use crate::stats::fault_kind::FaultKind;

/// Faults of a kind, and their time.
#[derive(Default)]
struct Waited {
    count: AtomicU64,
    ns: AtomicU64,
}

impl Waited {
    fn note(&self, ns: u64) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.ns.fetch_add(ns, Ordering::Relaxed);
    }
    fn so_far(&self) -> (u64, u64) {
        (self.count.load(Ordering::Relaxed), self.ns.load(Ordering::Relaxed))
    }
}

/// The share, and the faults that speak for another one.
pub(crate) struct StoreShare {
    parts: AtomicU64,
    stored: Waited,
    spilled: Waited,
}

impl Default for StoreShare {
    fn default() -> Self {
        Self { parts: AtomicU64::new(WHOLE), stored: Waited::default(), spilled: Waited::default() }
    }
}

impl StoreShare {
    /// The share of so much.
    pub(crate) fn of(&self, most: Bytes) -> Bytes {
        Bytes::new(most.get() / WHOLE * self.parts.load(Ordering::Relaxed))
    }

    /// So many bytes in the parts in which the share is counted.
    pub(crate) fn parts_of(bytes: u64, most: Bytes) -> u64 {
        bytes.div_ceil((most.get() / WHOLE).max(1))
    }

    pub(crate) fn set(&self, parts: u64) {
        self.parts.store(parts, Ordering::Relaxed);
    }

    /// A fault was served.
    pub(crate) fn note_fault(&self, kind: FaultKind, took_ns: u64) {
        match kind {
            FaultKind::Stored => self.stored.note(took_ns),
            FaultKind::Spilled => self.spilled.note(took_ns),
            FaultKind::Zero | FaultKind::Huge | FaultKind::Staged | FaultKind::Spurious => {}
        }
    }

    /// All faults so far on pages in compressed memory and in the file.
    pub(crate) fn so_far(&self) -> Refaults {
        let ((stored, stored_ns), (spilled, spilled_ns)) = (self.stored.so_far(), self.spilled.so_far());
        Refaults { stored, stored_ns, spilled, spilled_ns, ..Refaults::default() }
    }
}
