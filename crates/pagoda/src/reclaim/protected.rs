//! Memory of a library's regions that its owner has protected, where it can't be lifted.
//!
//! The kernel moves nothing out of read-only, `PROT_NONE` or executable parts. A copy in place of a
//! move can't be made safe: between the copy and the discard its owner may make it writable and
//! write, which sends no event, and that write would be lost. `lift.rs` takes it out by another
//! way. Where that does not work it stays, and counts beyond the budget once reclaim finds nothing
//! else to move: a garbage collector or a JIT that protects its heap is not ended for that. It is
//! measured again every second as long as there is any. This module must never count memory that
//! can be moved.

use pagoda_linux::mem::range::PageRange;
use pagoda_linux::procfs::locked::LockedReader;
use pagoda_linux::procfs::maps::{Mapping, MapsReader};

use crate::engine::Engine;
use crate::region::limit::bytes_by;
use crate::stats::counters::Counter;

/// The buffer of one read of `/proc/self/maps`.
const BUFFER_BYTES: usize = 16 << 10;

/// The counters of immovable memory, in the order in which a mapping is checked for them.
const COUNTERS: [Counter; 3] =
    [Counter::LeftExecutableBytes, Counter::LeftReadonlyBytes, Counter::LeftLockedBytes];
const LOCKED: usize = 2;

/// As which of [`COUNTERS`] a mapping is left alone, by its protection.
fn by_protection(mapping: &Mapping) -> Option<usize> {
    match mapping {
        _ if mapping.execute => Some(0),
        _ if !mapping.read || !mapping.write => Some(1),
        _ => None,
    }
}

impl Engine {
    /// Measures the resident memory of the regions that is immovable, and lets it be held beyond
    /// the budget. True if it is more than before.
    pub(crate) fn measure_immovable(&self) -> bool {
        let mut found: Vec<(PageRange, usize)> = Vec::new();
        let mut note = |mapping: &Mapping, why| {
            found.extend(PageRange::new(mapping.start, mapping.end).map(|range| (range, why)));
        };
        // Where the kernel does not say, nothing more is known than before.
        let Ok(mut maps) = MapsReader::new(BUFFER_BYTES) else { return false };
        let read = maps.for_each(|mapping| {
            if mapping.is_private_anonymous()
                && let Some(why) = by_protection(mapping)
            {
                note(mapping, why);
            }
        });
        let locked = LockedReader::new().and_then(|mut reader| {
            reader.for_each(|mapping| {
                if by_protection(mapping).is_none() {
                    note(mapping, LOCKED);
                }
            })
        });
        if read.is_err() || locked.is_err() {
            return false;
        }
        let mut bytes = [0u64; COUNTERS.len()];
        for (range, why) in found {
            bytes[why] +=
                bytes_by(&self.gate_shared(), range, |word, granules| word.resident().and(granules));
        }
        for (counter, bytes) in COUNTERS.into_iter().zip(bytes) {
            self.counters.set(counter, bytes);
        }
        if self.lift.works() {
            // It can be evicted, if more slowly.
            return false;
        }
        // Locked memory was promised room by its owner, within the budget.
        self.ledger.hold_beyond(bytes[..LOCKED].iter().sum())
    }
}
