//! Facts of the architectures: the page, the levels of tables, and the reach of one TLB entry.
//!
//! This is data from the manuals only: this file must never hold a choice of an operating system.

/// A page size that hardware translates. Arm calls it the translation granule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HardwarePage {
    /// 4 KiB.
    K4,
    /// 16 KiB.
    K16,
    /// 64 KiB.
    K64,
}

impl HardwarePage {
    /// Every hardware page, smallest first.
    pub const ALL: [Self; 3] = [Self::K4, Self::K16, Self::K64];

    /// The number of address bits below a page number.
    #[must_use]
    pub const fn shift(self) -> u32 {
        match self {
            Self::K4 => 12,
            Self::K16 => 14,
            Self::K64 => 16,
        }
    }
}

/// An address translation scheme with entries of 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// x86-64, 48 bits: Intel SDM volume 3A, chapter Paging, "4-Level Paging and 5-Level Paging".
    X86Level4,
    /// x86-64, 57 bits: the same section.
    X86Level5,
    /// AArch64, 48 bits: Arm DDI 0487, "The VMSAv8-64 address translation system".
    AArch64(HardwarePage),
    /// RISC-V, 39 bits: Privileged Architecture, "Sv39: Page-Based 39-bit Virtual-Memory System".
    Sv39,
    /// RISC-V, 48 bits: "Sv48: Page-Based 48-bit Virtual-Memory System".
    Sv48,
    /// RISC-V, 57 bits: "Sv57: Page-Based 57-bit Virtual-Memory System".
    Sv57,
}

impl Scheme {
    /// Every scheme.
    pub const ALL: [Self; 8] = [
        Self::X86Level4,
        Self::X86Level5,
        Self::AArch64(HardwarePage::K4),
        Self::AArch64(HardwarePage::K16),
        Self::AArch64(HardwarePage::K64),
        Self::Sv39,
        Self::Sv48,
        Self::Sv57,
    ];

    /// The page that the leaf tables map.
    #[must_use]
    pub const fn page(self) -> HardwarePage {
        match self {
            Self::AArch64(page) => page,
            _ => HardwarePage::K4,
        }
    }

    /// The address bits that index each level of tables, the root first.
    #[must_use]
    pub const fn index_bits(self) -> &'static [u32] {
        match self {
            Self::Sv39 => &[9, 9, 9],
            Self::X86Level4 | Self::Sv48 | Self::AArch64(HardwarePage::K4) => &[9, 9, 9, 9],
            Self::X86Level5 | Self::Sv57 => &[9, 9, 9, 9, 9],
            Self::AArch64(HardwarePage::K16) => &[1, 11, 11, 11],
            Self::AArch64(HardwarePage::K64) => &[6, 13, 13],
        }
    }

    /// The number of translated address bits, including those of the offset.
    #[must_use]
    pub fn address_bits(self) -> u32 {
        self.page().shift() + self.index_bits().iter().sum::<u32>()
    }

    /// The number of aligned adjacent leaf entries that software may mark as one translation, so
    /// that one TLB entry can cover all of them.
    ///
    /// RISC-V: Svnapot, 16. AArch64: the Contiguous bit, at the last level. x86 has no such mark,
    /// so 1. Some x86 processors coalesce adjacent entries by themselves; that is no promise and
    /// not counted here.
    #[must_use]
    pub const fn group_entries(self) -> u32 {
        match self {
            Self::X86Level4 | Self::X86Level5 => 1,
            Self::Sv39 | Self::Sv48 | Self::Sv57 | Self::AArch64(HardwarePage::K4) => 16,
            Self::AArch64(HardwarePage::K16) => 128,
            Self::AArch64(HardwarePage::K64) => 32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_below_the_root_fills_a_page_and_the_root_no_more_than_one() {
        for scheme in Scheme::ALL {
            let (root, lower) = scheme.index_bits().split_first().unwrap();
            assert!(lower.iter().all(|bits| bits + 3 == scheme.page().shift()), "{scheme:?}");
            assert!(root + 3 <= scheme.page().shift(), "{scheme:?}");
        }
    }

    #[test]
    fn addresses_are_as_wide_as_the_scheme_says() {
        let bits = Scheme::ALL.map(Scheme::address_bits);
        assert_eq!(bits, [48, 57, 48, 48, 48, 39, 48, 57]);
    }

    /// Arm DDI 0487, "The Contiguous bit"; Linux, "HugeTLBpage on ARM64", column CONT PTE.
    #[test]
    fn groups_are_64_kib_and_on_large_granules_2_mib() {
        let group = |scheme: Scheme| u64::from(scheme.group_entries()) << scheme.page().shift();
        assert_eq!(HardwarePage::ALL.map(|page| group(Scheme::AArch64(page))), [64 << 10, 2 << 20, 2 << 20]);
        assert_eq!([Scheme::Sv39, Scheme::Sv48, Scheme::Sv57].map(group), [64 << 10; 3]);
    }
}
