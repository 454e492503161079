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
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn geometries() -> Vec<Geometry> {
        let with =
            |scheme| BasePage::ALL.into_iter().filter_map(move |base| Geometry::new(scheme, base).ok());
        Scheme::ALL.into_iter().flat_map(with).collect()
    }

    /// The highest and lowest bit of each index, the root's first.
    fn fields(scheme: Scheme, base: BasePage) -> Vec<(u32, u32)> {
        let geometry = Geometry::new(scheme, base).unwrap();
        let field = |level| {
            let low = geometry.shift(level);
            (low + geometry.index_bits(level) - 1, low)
        };
        (0..geometry.levels()).map(field).collect()
    }

    #[test]
    fn splits_match_the_manuals() {
        let l4 = [(47, 39), (38, 30), (29, 21), (20, 12)];
        assert_eq!(fields(Scheme::X86Level4, BasePage::K4), l4);
        assert_eq!(fields(Scheme::Sv48, BasePage::K4), l4);
        assert_eq!(fields(Scheme::AArch64(HardwarePage::K4), BasePage::K4), l4);
        let l5 = [(56, 48), (47, 39), (38, 30), (29, 21), (20, 12)];
        assert_eq!(fields(Scheme::X86Level5, BasePage::K4), l5);
        assert_eq!(fields(Scheme::Sv57, BasePage::K4), l5);
        assert_eq!(fields(Scheme::Sv39, BasePage::K4), [(38, 30), (29, 21), (20, 12)]);
        let k16 = [(47, 47), (46, 36), (35, 25), (24, 14)];
        assert_eq!(fields(Scheme::AArch64(HardwarePage::K16), BasePage::K16), k16);
        assert_eq!(fields(Scheme::AArch64(HardwarePage::K64), BasePage::K64), [(47, 42), (41, 29), (28, 16)]);
    }

    /// The split of the RFC: pgd 38..34, pmd 33..25, pte 24..16.
    #[test]
    fn sv39_in_64_kib_is_split_as_proposed() {
        assert_eq!(fields(Scheme::Sv39, BasePage::K64), [(38, 34), (33, 25), (24, 16)]);
        let sv39 = Geometry::new(Scheme::Sv39, BasePage::K64).unwrap();
        assert_eq!(
            [0, 1, 2].map(|level| sv39.table_span(level)),
            [Bytes::gib(512), Bytes::gib(16), Bytes::mib(32)]
        );
        assert_eq!(
            [0, 1, 2].map(|level| sv39.table_size(level)),
            [Bytes::kib(4), Bytes::kib(64), Bytes::kib(64)]
        );
    }

    #[test]
    fn wider_schemes_in_64_kib_have_the_same_root() {
        let sv48 = [(47, 43), (42, 34), (33, 25), (24, 16)];
        assert_eq!(fields(Scheme::Sv48, BasePage::K64), sv48);
        assert_eq!(fields(Scheme::AArch64(HardwarePage::K4), BasePage::K64), sv48);
        assert_eq!(fields(Scheme::Sv57, BasePage::K64), [(56, 52), (51, 43), (42, 34), (33, 25), (24, 16)]);
    }

    #[test]
    fn unsupported_base_pages_are_refused_with_the_reason() {
        let new = Geometry::new;
        assert_eq!(new(Scheme::Sv39, BasePage::M2), Err(Unsupported::WholeLeafTable));
        assert_eq!(new(Scheme::AArch64(HardwarePage::K16), BasePage::K64), Err(Unsupported::RootTooSmall));
        let below = new(Scheme::AArch64(HardwarePage::K64), BasePage::K4).unwrap_err();
        assert_eq!(below.to_string(), "the base page is below the hardware's page of 64 KiB");
    }

    #[test]
    fn a_tlb_entry_reaches_a_group_where_the_base_page_holds_one() {
        let reach = |scheme, base| Geometry::new(scheme, base).unwrap().tlb_reach(10);
        assert_eq!(reach(Scheme::Sv39, BasePage::K64), Bytes::kib(640));
        assert_eq!(reach(Scheme::Sv39, BasePage::K16), Bytes::kib(40));
        assert_eq!(reach(Scheme::AArch64(HardwarePage::K4), BasePage::K64), Bytes::kib(640));
        assert_eq!(reach(Scheme::AArch64(HardwarePage::K64), BasePage::M2), Bytes::mib(20));
        assert_eq!(reach(Scheme::X86Level4, BasePage::K64), Bytes::kib(40));
    }

    proptest! {
        #[test]
        fn indices_and_offset_make_up_the_address_whatever_the_base_page(address: u64) {
            for geometry in geometries() {
                let address = address & ((1 << geometry.scheme().address_bits()) - 1);
                let made_up = (0..geometry.levels())
                    .fold(geometry.offset(address), |sum, level| {
                        sum | geometry.index(address, level) << geometry.shift(level)
                    });
                prop_assert_eq!(made_up, address);
            }
        }

        /// The software split and the hardware split find the same entry of the same bytes, at
        /// every level.
        #[test]
        fn the_hardware_finds_its_entry_inside_the_software_entry(address: u64) {
            for geometry in geometries() {
                let scheme = geometry.scheme();
                let bits = scheme.index_bits();
                let cluster = geometry.entries_per_page();
                for level in 0..geometry.levels() {
                    let shift = scheme.page().shift() + bits[level + 1..].iter().sum::<u32>();
                    let hardware_entry = address >> shift & ((1 << bits[level]) - 1);
                    // A software table below the root is several hardware tables; the bits above
                    // select one.
                    let tables = if level == 0 { 1 } else { u64::from(cluster) };
                    let table = address >> (shift + bits[level]) & (tables - 1);
                    let entry = (table << bits[level]) + hardware_entry;
                    prop_assert_eq!(entry / u64::from(cluster), geometry.index(address, level));
                }
            }
        }
    }
}
