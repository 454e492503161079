//! How much left memory, or compressed memory, between a page's leaving and its refault.
//!
//! An object has two stamps: how many granules had been evicted when a part of its page was last,
//! and how many KiB had gone to the file when it went there. Both clocks run round; a distance of
//! half of them is taken for a long one. This module must never decide anything:
//! `pagoda_core::budget::balance` does.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use pagoda_core::budget::balance::Refaults;

use super::handle::Meaning;
use super::objects::{Kind, Object};
use super::{Handle, TieredStore};

/// So far back that no page left then.
const LONG_AGO: u32 = 1 << 31;

/// The clocks, and the refaults that came soon.
#[derive(Default)]
pub(super) struct RefaultClocks {
    evicted_granules: AtomicU32,
    spilled_kib: AtomicU32,
    /// The longest distance that counts as soon, in units of each clock.
    near_granules: AtomicU32,
    edge_kib: AtomicU32,
    near: AtomicU64,
    near_spilled: AtomicU64,
    edge: AtomicU64,
}

impl RefaultClocks {
    /// An object of so many bytes goes to the file or the remote store.
    pub fn spilled(&self, object: &Object, bytes: usize) {
        let kib = (bytes as u32).div_ceil(1 << 10);
        let now = self.spilled_kib.fetch_add(kib, Ordering::Relaxed).wrapping_add(kib);
        object.spilled.store(now, Ordering::Relaxed);
    }
}

/// Whether a stamp is at most `span` back.
fn is_within(clock: &AtomicU32, stamp: &AtomicU32, span: &AtomicU32) -> bool {
    let distance = clock.load(Ordering::Relaxed).wrapping_sub(stamp.load(Ordering::Relaxed));
    distance <= span.load(Ordering::Relaxed)
}

impl TieredStore {
    /// So many granules of a page have left memory.
    pub(crate) fn note_evicted(&self, handle: Handle, granules: u32) {
        let clock = &self.refaults.evicted_granules;
        let now = clock.fetch_add(granules, Ordering::Relaxed).wrapping_add(granules);
        if let Meaning::Object(id) = handle.meaning()
            && let Some(object) = self.table.get(id)
        {
            object.evicted.store(now, Ordering::Relaxed);
        }
    }

    /// A granule of this page is missed.
    pub(crate) fn note_refault(&self, handle: Handle) {
        let Meaning::Object(id) = handle.meaning() else { return };
        let Some(object) = self.table.get(id) else { return };
        let clocks = &self.refaults;
        let is_in_memory = object.word().kind() == Kind::Memory;
        if is_within(&clocks.evicted_granules, &object.evicted, &clocks.near_granules) {
            let near = if is_in_memory { &clocks.near } else { &clocks.near_spilled };
            near.fetch_add(1, Ordering::Relaxed);
        }
        if !is_in_memory && is_within(&clocks.spilled_kib, &object.spilled, &clocks.edge_kib) {
            clocks.edge.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Enters into `seen` the refaults so far whose page had left memory, and had gone to the file,
    /// soon before: at most as many bytes before as `seen` says, from now on.
    pub(crate) fn count_soon(&self, seen: &mut Refaults) {
        let clocks = &self.refaults;
        let units = |bytes: u64, unit: u64| u32::try_from(bytes / unit).unwrap_or(LONG_AGO).min(LONG_AGO - 1);
        clocks.near_granules.store(units(seen.near_bytes, 4 << 10), Ordering::Relaxed);
        clocks.edge_kib.store(units(seen.edge_bytes, 1 << 10), Ordering::Relaxed);
        seen.near = clocks.near.load(Ordering::Relaxed);
        seen.near_spilled = clocks.near_spilled.load(Ordering::Relaxed);
        seen.edge = clocks.edge.load(Ordering::Relaxed);
    }

    /// Whether pages can leave compressed memory.
    pub(crate) fn can_spill(&self) -> bool {
        self.file.is_some() || self.remote.is_some()
    }
}

#[cfg(test)]
mod tests {
    use pagoda_core::page::BasePage;
    use pagoda_core::size::Bytes;

    use super::*;
    use crate::store::Store;
    use crate::store::tests::{page_of, stored, with_file};

    #[test]
    fn a_refault_is_near_by_what_left_since() {
        let (_directory, store, mut scratch) = with_file(BasePage::K64, Bytes::mib(4), Bytes::mib(64));
        let put = |seed| page_of(64 << 10, 43, seed);
        let handles: Vec<_> = (0..4).map(|seed| stored(store.put(&put(seed), &mut scratch))).collect();
        let counts = || {
            let mut seen = Refaults { near_bytes: 32 << 12, edge_bytes: 1 << 20, ..Refaults::default() };
            store.count_soon(&mut seen);
            (seen.near, seen.near_spilled, seen.edge)
        };
        assert_eq!(counts(), (0, 0, 0));
        for handle in &handles {
            store.note_evicted(*handle, 16);
        }
        // 48, 32, 16 and 0 granules left since.
        for (handle, near) in handles.iter().zip([0, 1, 2, 3]) {
            store.note_refault(*handle);
            assert_eq!(counts(), (near, 0, 0));
        }
        store.spill(Bytes::ZERO).expect("room");
        store.note_refault(handles[0]);
        assert_eq!(counts(), (3, 0, 1), "all went within a MiB");
        store.note_refault(handles[3]);
        assert_eq!(counts(), (3, 1, 2), "it left memory last");
        assert_eq!(store.promote(handles[0], &mut scratch), Ok(true));
        store.note_refault(handles[0]);
        assert_eq!(counts(), (3, 1, 2), "it has not left memory since");
    }
}
