//! Index split: which address bits index which level of tables, for a scheme and a base page.
//!
//! With a base page of `2^c` hardware pages every index moves up by `c` bits. A software entry is
//! `2^c` adjacent hardware entries, and a software table `2^c` adjacent hardware tables. The
//! hardware still walks its own split of the same bytes. The root keeps its size and loses `c`
//! bits: it has fewer software entries, each of `2^c` hardware entries. This file must never look
//! at the memory that an address refers to.

use std::fmt;

use super::{HardwarePage, Scheme};
use crate::page::BasePage;
use crate::size::Bytes;

/// The size of a hardware entry, in every scheme.
pub(super) const ENTRY_BYTES: u64 = 8;

/// A scheme with memory managed in base pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Geometry {
    scheme: Scheme,
    base: BasePage,
    /// Address bits of a base page beyond those of a hardware page.
    cluster_bits: u32,
}

/// Why a scheme can't have a base page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsupported {
    /// The base page is smaller than the hardware page.
    BelowHardwarePage(HardwarePage),
    /// The base page is at least as large as the range of a leaf table. An entry of a higher level
    /// maps that range, not a group.
    WholeLeafTable,
    /// The root table has fewer entries than a base page has hardware pages.
    RootTooSmall,
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BelowHardwarePage(page) => {
                write!(f, "the base page is below the hardware's page of {}", Bytes::new(1 << page.shift()))
            }
            Self::WholeLeafTable => f.write_str("the base page is as large as the range of a leaf table"),
            Self::RootTooSmall => f.write_str("the root table has fewer entries than one base page needs"),
        }
    }
}

impl std::error::Error for Unsupported {}

impl Geometry {
    /// `scheme` with memory managed in pages of `base`.
    pub fn new(scheme: Scheme, base: BasePage) -> Result<Self, Unsupported> {
        let page = scheme.page();
        let base_shift = base.bytes().trailing_zeros();
        let cluster_bits =
            base_shift.checked_sub(page.shift()).ok_or(Unsupported::BelowHardwarePage(page))?;
        let bits = scheme.index_bits();
        if cluster_bits >= bits[bits.len() - 1] {
            return Err(Unsupported::WholeLeafTable);
        }
        if cluster_bits > bits[0] {
            return Err(Unsupported::RootTooSmall);
        }
        Ok(Self { scheme, base, cluster_bits })
    }

    /// The scheme.
    #[must_use]
    pub const fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The base page.
    #[must_use]
    pub const fn base(&self) -> BasePage {
        self.base
    }

    /// The number of hardware entries per base page.
    #[must_use]
    pub const fn entries_per_page(&self) -> u32 {
        1 << self.cluster_bits
    }

    /// The number of table levels. Level 0 is the root, the last one the leaf.
    #[must_use]
    pub const fn levels(&self) -> usize {
        self.scheme.index_bits().len()
    }

    /// The number of address bits that index a table of `level`. Panics if there is no such level.
    #[must_use]
    pub fn index_bits(&self, level: usize) -> u32 {
        let bits = self.scheme.index_bits()[level];
        if level == 0 { bits - self.cluster_bits } else { bits }
    }

    /// The lowest address bit that indexes a table of `level`. Panics if there is no such level.
    #[must_use]
    pub fn shift(&self, level: usize) -> u32 {
        let below: u32 = self.scheme.index_bits()[level + 1..].iter().sum();
        self.base.bytes().trailing_zeros() + below
    }

    /// The index of `address` in its table of `level`. Ignores bits beyond the scheme's: they
    /// repeat the topmost one, or choose the root. Panics if there is no such level.
    #[must_use]
    pub fn index(&self, address: u64, level: usize) -> u64 {
        address >> self.shift(level) & ((1 << self.index_bits(level)) - 1)
    }

    /// The offset of `address` in its base page, in bytes.
    #[must_use]
    pub const fn offset(&self, address: u64) -> u64 {
        address & (self.base.bytes() as u64 - 1)
    }

    /// The memory that a table of `level` maps. Panics if there is no such level.
    #[must_use]
    pub fn table_span(&self, level: usize) -> Bytes {
        Bytes::new(1 << (self.shift(level) + self.index_bits(level)))
    }

    /// The size of a table of `level` that the hardware walks. Panics if there is no such level.
    #[must_use]
    pub fn table_size(&self, level: usize) -> Bytes {
        Bytes::new(ENTRY_BYTES << (self.cluster_bits + self.index_bits(level)))
    }

    /// The memory that `tlb_entries` TLB entries reach, if every base page is one aligned frame.
    /// One TLB entry covers a group where the base page holds one, and a hardware page otherwise.
    ///
    /// This is the reach that the scheme allows. A processor may use less of it.
    #[must_use]
    pub fn tlb_reach(&self, tlb_entries: u32) -> Bytes {
        let group = self.scheme.group_entries();
        let joined = if group <= self.entries_per_page() { group } else { 1 };
        Bytes::new((u64::from(tlb_entries) * u64::from(joined)) << self.scheme.page().shift())
    }
}

#[cfg(test)]
#[path = "split_test.rs"]
mod tests;
