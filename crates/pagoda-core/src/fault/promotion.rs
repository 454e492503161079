//! Whether a page in the file is brought into compressed memory whole, for a fault that misses one
//! granule of it.
//!
//! A whole page costs a longer read, and displaces another page. It pays if its other granules are
//! missed soon, and those of the displaced page are not. Both are counted: misses that a promoted
//! page serves from memory, and misses of pages that were displaced lately, over the same span of
//! displaced bytes. Random access over a large set misses both alike; of a working set that lies in
//! the file only the first are missed. This module must never decide for faults that are known to
//! want more.

/// The part of compressed memory that is displaced until the counts are looked at.
const SPAN_PART: u64 = 2;

/// The most bytes of that span: a large store would be slow to learn.
const SPAN_MOST: u64 = 64 << 20;

/// Promotions that tell something.
const LEAST: u64 = 32;

/// While promotion does not pay, one in so many faults promotes, to see whether it still does not.
pub const TRIES: u64 = 8;

/// What came of promotions within a span.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Pages that were promoted for one granule.
    pub promoted: u64,
    /// Misses of further granules of such pages, which came from memory.
    pub hits: u64,
    /// Misses of pages that had left memory for the file.
    pub displaced: u64,
}

/// The span within which [`Seen`] counts, in bytes that go to the file, where compressed memory
/// holds so many.
#[must_use]
pub fn span_bytes(memory_bytes: u64) -> u64 {
    (memory_bytes / SPAN_PART).min(SPAN_MOST)
}

/// Whether promotion pays, or `None` if too little was seen.
///
/// The unit is the time of a read from the file: a hit saves one, and a miss of a displaced page
/// costs one. The longer read of a whole page and the work of promoting it are taken for three
/// quarters of one.
#[must_use]
pub fn pays(seen: &Seen) -> Option<bool> {
    (seen.promoted >= LEAST).then(|| 4 * seen.hits >= 4 * seen.displaced + 3 * seen.promoted)
}

#[cfg(test)]
#[path = "promotion_test.rs"]
mod tests;
