//! How much left memory, or compressed memory, between a page's leaving and its refault.
//!
//! An object has two stamps: how many granules had been evicted when some of its page were last,
//! with a mask of these, and how many KiB had gone to the file when it went there. Both clocks run
//! round; a distance of half of them is taken for a long one. The second stamp of a page that was
//! promoted is of that time. This module must never decide anything: `pagoda_core` and the fault
//! do.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use pagoda_core::budget::balance::Refaults;
use pagoda_core::budget::thrashing::{self, BUCKETS, bucket_of};
use pagoda_core::fault::promotion;
use pagoda_core::page_entry::Granules;
use pagoda_core::size::Bytes;

use super::handle::Meaning;
use super::objects::{Kind, Object, Word};
use super::{Handle, StoreUsage, TieredStore};

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
    /// What memory holds, compressed or not, in granules.
    held_granules: AtomicU32,
    near: AtomicU64,
    near_spilled: AtomicU64,
    edge: AtomicU64,
    distances: Distances,
    promotions: Promotions,
}

/// What came of pages that were promoted for one granule.
#[derive(Default)]
struct Promotions {
    /// The longest distance in KiB that went to the file that counts, and the time of the last
    /// look.
    span_kib: AtomicU32,
    looked_at_kib: AtomicU32,
    /// See [`promotion::Seen`].
    promoted: AtomicU64,
    hits: AtomicU64,
    displaced: AtomicU64,
    does_not_pay: AtomicBool,
    /// Faults while it does not.
    faults: AtomicU64,
}

impl Promotions {
    /// Looks at the counts and begins anew, if enough went to the file since the last time. Of two
    /// threads that look at once each decides by nearly the same counts.
    fn look(&self, now_kib: u32) {
        let last_kib = self.looked_at_kib.load(Ordering::Relaxed);
        let is_due = now_kib.wrapping_sub(last_kib) >= self.span_kib.load(Ordering::Relaxed).max(1);
        let [promoted, hits, displaced] =
            [&self.promoted, &self.hits, &self.displaced].map(|count| count.load(Ordering::Relaxed));
        if is_due && let Some(pays) = promotion::pays(&promotion::Seen { promoted, hits, displaced }) {
            self.looked_at_kib.store(now_kib, Ordering::Relaxed);
            for count in [&self.promoted, &self.hits, &self.displaced] {
                count.store(0, Ordering::Relaxed);
            }
            self.does_not_pay.store(!pays, Ordering::Relaxed);
        }
    }
}

/// How many refaults there were of each distance.
struct Distances([AtomicU64; BUCKETS]);

impl Default for Distances {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl RefaultClocks {
    /// An object comes to memory from the file: its stamp says nothing until it goes there again.
    pub fn promoted(&self, object: &Object) {
        let long_ago = self.spilled_kib.load(Ordering::Relaxed).wrapping_sub(LONG_AGO);
        object.spilled.store(long_ago, Ordering::Relaxed);
    }

    /// An object of this word goes to the file or the remote store. One that gains nothing in
    /// memory goes there however much room there is, and says nothing of that.
    pub fn spilled(&self, object: &Object, word: Word) {
        let kib = if word.raw() { 0 } else { (word.len() as u32).div_ceil(1 << 10) };
        let now = self.spilled_kib.fetch_add(kib, Ordering::Relaxed).wrapping_add(kib);
        let stamp = if word.raw() { now.wrapping_sub(LONG_AGO) } else { now };
        object.spilled.store(stamp, Ordering::Relaxed);
    }
}

fn units(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(LONG_AGO).min(LONG_AGO - 1)
}

/// How far back a stamp is.
fn back(clock: &AtomicU32, stamp: &AtomicU32) -> u32 {
    clock.load(Ordering::Relaxed).wrapping_sub(stamp.load(Ordering::Relaxed))
}

/// Whether a stamp is at most `span` back.
fn is_within(clock: &AtomicU32, stamp: &AtomicU32, span: &AtomicU32) -> bool {
    back(clock, stamp) <= span.load(Ordering::Relaxed)
}

/// Whether a granule was among those of its page that left last.
fn left(object: &Object, granule: u32) -> bool {
    object.left.load(Ordering::Relaxed) & Granules::range(granule, granule + 1).bits() != 0
}

/// The same, if that is at most `span` back.
fn left_within(clocks: &RefaultClocks, object: &Object, granule: u32, span: &AtomicU32) -> bool {
    is_within(&clocks.evicted_granules, &object.evicted, span) && left(object, granule)
}

impl TieredStore {
    /// These granules of a page have left memory.
    pub(crate) fn note_evicted(&self, handle: Handle, out: Granules) {
        let RefaultClocks { evicted_granules: clock, near_granules, .. } = &self.refaults;
        let now = clock.fetch_add(out.count(), Ordering::Relaxed).wrapping_add(out.count());
        if let Meaning::Object(id) = handle.meaning()
            && let Some(object) = self.table.get(id)
        {
            let before = match is_within(clock, &object.evicted, near_granules) {
                true => object.left.load(Ordering::Relaxed),
                false => 0,
            };
            object.left.store(before | out.bits(), Ordering::Relaxed);
            object.evicted.store(now, Ordering::Relaxed);
        }
    }

    /// A granule of this page is missed.
    pub(crate) fn note_refault(&self, handle: Handle, granule: u32) {
        let Meaning::Object(id) = handle.meaning() else { return };
        let Some(object) = self.table.get(id) else { return };
        let clocks = &self.refaults;
        let is_in_memory = object.word().kind() == Kind::Memory;
        if left(object, granule) {
            let distance = back(&clocks.evicted_granules, &object.evicted).min(LONG_AGO);
            clocks.distances.0[bucket_of(distance)].fetch_add(1, Ordering::Relaxed);
        }
        if left_within(clocks, object, granule, &clocks.near_granules) {
            let near = if is_in_memory { &clocks.near } else { &clocks.near_spilled };
            near.fetch_add(1, Ordering::Relaxed);
        }
        if !is_in_memory && is_within(&clocks.spilled_kib, &object.spilled, &clocks.edge_kib) {
            clocks.edge.fetch_add(1, Ordering::Relaxed);
        }
        let promotions = &clocks.promotions;
        if is_within(&clocks.spilled_kib, &object.spilled, &promotions.span_kib) {
            if !is_in_memory {
                promotions.displaced.fetch_add(1, Ordering::Relaxed);
            } else if object.is_kept() {
                promotions.hits.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Whether a page in the file is to be promoted for a fault that misses one granule.
    pub(crate) fn promotion_pays(&self) -> bool {
        let promotions = &self.refaults.promotions;
        !promotions.does_not_pay.load(Ordering::Relaxed)
            || promotions.faults.fetch_add(1, Ordering::Relaxed).is_multiple_of(promotion::TRIES)
    }

    /// A page was promoted for a fault that missed one granule.
    pub(crate) fn note_promoted(&self, handle: Handle) {
        let Meaning::Object(id) = handle.meaning() else { return };
        let (clocks, now_kib) = (&self.refaults, self.refaults.spilled_kib.load(Ordering::Relaxed));
        if let Some(object) = self.table.get(id) {
            object.spilled.store(now_kib, Ordering::Relaxed);
            clocks.promotions.promoted.fetch_add(1, Ordering::Relaxed);
            clocks.promotions.look(now_kib);
        }
    }

    /// Whether this granule left memory lately: no more has left since than memory holds,
    /// compressed or not. The page should be compressed, and colder ones be in the file instead.
    pub(crate) fn left_lately(&self, handle: Handle, granule: u32) -> bool {
        let Meaning::Object(id) = handle.meaning() else { return false };
        let clocks = &self.refaults;
        let object = self.table.get(id);
        object.is_some_and(|object| left_within(clocks, object, granule, &clocks.held_granules))
    }

    /// Memory holds so many bytes of pages that are not compressed now.
    pub(crate) fn note_held(&self, resident: u64) {
        let StoreUsage { raw_bytes, memory_packed_bytes, file_bytes, remote_bytes, .. } = self.usage();
        let [stored, packed, file, remote] =
            [raw_bytes, memory_packed_bytes, file_bytes, remote_bytes].map(Bytes::get);
        // A page that is in two places counts as two, and so for a little less.
        let times = stored as f64 / (packed + file + remote).max(1) as f64;
        let granules = resident / (4 << 10) + (packed as f64 * times) as u64 / (4 << 10);
        self.refaults.held_granules.store(units(granules), Ordering::Relaxed);
        let span_kib = units(promotion::span_bytes(packed) >> 10);
        self.refaults.promotions.span_kib.store(span_kib, Ordering::Relaxed);
    }

    /// Enters into `seen` the refaults so far whose page had left memory, and had gone to the file,
    /// soon before: at most as many bytes before as `seen` says, from now on.
    pub(crate) fn count_soon(&self, seen: &mut Refaults) {
        let clocks = &self.refaults;
        clocks.near_granules.store(units(seen.near_bytes / (4 << 10)), Ordering::Relaxed);
        clocks.edge_kib.store(units(seen.edge_bytes / (1 << 10)), Ordering::Relaxed);
        seen.near = clocks.near.load(Ordering::Relaxed);
        seen.near_spilled = clocks.near_spilled.load(Ordering::Relaxed);
        seen.edge = clocks.edge.load(Ordering::Relaxed);
    }

    /// What the budget lacks, by all refaults so far (`pagoda_core::budget::thrashing`).
    pub(crate) fn lacks(&self) -> Bytes {
        let counts = &self.refaults.distances.0;
        thrashing::lacks(&std::array::from_fn(|bucket| counts[bucket].load(Ordering::Relaxed)))
    }

    /// Whether pages can leave compressed memory.
    pub(crate) fn can_spill(&self) -> bool {
        self.file.is_some() || self.remote.is_some()
    }
}

#[cfg(test)]
#[path = "refault_test.rs"]
mod tests;
