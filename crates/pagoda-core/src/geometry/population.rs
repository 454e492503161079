//! The cost of mapping a set of ranges: base pages, resident bytes, and bytes of tables.
//!
//! Ranges are byte addresses, sorted, and don't overlap. A set of any size is read once and not
//! stored. This file must never guess: the counts are exact for a page table that has a table
//! exactly where something is mapped.

use std::ops::Range;

use super::Geometry;
use super::split::ENTRY_BYTES;
use crate::size::Bytes;

/// Counts the aligned blocks of `2^shift` bytes that sorted ranges touch.
#[derive(Clone, Copy, Debug)]
pub struct BlockCount {
    shift: u32,
    /// The end of the last range.
    end: u64,
    /// The first block that is not counted yet.
    next: u64,
    blocks: u64,
}

impl BlockCount {
    /// Starts with no blocks. `shift` is below 64.
    #[must_use]
    pub const fn new(shift: u32) -> Self {
        Self { shift, end: 0, next: 0, blocks: 0 }
    }

    /// Adds a range of byte addresses. Panics if it begins before the last one ended, or ends
    /// before it begins.
    pub fn add(&mut self, range: &Range<u64>) {
        assert!(
            self.end <= range.start && range.start <= range.end,
            "ranges are not sorted: {range:x?} after one that ends at {:x}",
            self.end
        );
        if range.is_empty() {
            return;
        }
        self.end = range.end;
        let past = ((range.end - 1) >> self.shift) + 1;
        self.blocks += past - self.next.max(range.start >> self.shift);
        self.next = past;
    }

    /// The number of blocks that all ranges so far touch.
    #[must_use]
    pub const fn blocks(&self) -> u64 {
        self.blocks
    }
}

impl Geometry {
    /// The number of base pages that `ranges` touch, which is the number of faults to populate
    /// them.
    ///
    /// Panics if the ranges are not sorted, or reach beyond the scheme's addresses.
    #[must_use]
    pub fn pages(&self, ranges: impl IntoIterator<Item = Range<u64>>) -> u64 {
        let mut pages = BlockCount::new(self.base().bytes().trailing_zeros());
        for range in ranges {
            self.check(&range);
            pages.add(&range);
        }
        pages.blocks()
    }

    /// The resident memory after `ranges` were touched: all of each base page. Panics like
    /// [`Geometry::pages`].
    #[must_use]
    pub fn resident_bytes(&self, ranges: impl IntoIterator<Item = Range<u64>>) -> Bytes {
        Bytes::new(self.pages(ranges) * self.base().bytes() as u64)
    }

    /// The bytes of the tables that the hardware walks when `ranges` are mapped, including the
    /// root. They have an entry for every hardware page, whatever the base page is. Panics like
    /// [`Geometry::pages`].
    #[must_use]
    pub fn table_bytes(&self, ranges: impl IntoIterator<Item = Range<u64>>) -> Bytes {
        self.bytes(ranges, ENTRY_BYTES * u64::from(self.entries_per_page()))
    }

    /// The bytes of software tables for `ranges`, with one entry of 8 bytes per base page and the
    /// same index split. Panics like [`Geometry::pages`].
    #[must_use]
    pub fn software_table_bytes(&self, ranges: impl IntoIterator<Item = Range<u64>>) -> Bytes {
        self.bytes(ranges, ENTRY_BYTES)
    }

    fn bytes(&self, ranges: impl IntoIterator<Item = Range<u64>>, entry_bytes: u64) -> Bytes {
        let span_bits = |level| self.shift(level) + self.index_bits(level);
        let mut tables: Vec<_> =
            (1..self.levels()).map(|level| (level, BlockCount::new(span_bits(level)))).collect();
        for range in ranges {
            self.check(&range);
            for (_, tables) in &mut tables {
                tables.add(&range);
            }
        }
        let size = |level| entry_bytes << self.index_bits(level);
        let below_root: u64 = tables.iter().map(|(level, tables)| tables.blocks() * size(*level)).sum();
        Bytes::new(size(0) + below_root)
    }

    fn check(&self, range: &Range<u64>) {
        let bits = self.scheme().address_bits();
        assert!(range.end <= 1 << bits, "{range:x?} is beyond {bits} bits of address");
    }
}

#[cfg(test)]
#[path = "population_test.rs"]
mod tests;
