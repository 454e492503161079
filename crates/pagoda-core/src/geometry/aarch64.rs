//! AArch64: page descriptors of the last level, and groups by the Contiguous bit.
//!
//! ```text
//! 63..59  58..55   54  53  52         51  47..p   11 10 9..8 7     6     5  4..2     1..0
//! ignored software UXN PXN Contiguous DBM address nG AF SH   AP[2] AP[1] NS AttrIndx 11
//! ```
//! p is 12, 14 or 16 by granule. Each entry of a group names its own page; they differ in nothing
//! else. A group has 16 entries at 4 KiB, 128 at 16 KiB, 32 at 64 KiB.
//!
//! Hardware tracks dirty (FEAT_HAFDBS): DBM means that the page may be written, and `AP[2]`,
//! read-only, that it has not been. Neither bit can express a page that was
//! written and then write-protected. Bit 55, a software bit, keeps it dirty, as in Linux.
//!
//! Sources: Arm DDI 0487, "VMSAv8-64 translation table format descriptors", "Hardware management of
//! the Access flag and dirty state", "The Contiguous bit". Stage 1, output addresses of 48 bits.
//! AttrIndx is 0: MAIR_EL1 must define it as normal write-back memory. Memory is inner shareable.

use super::HardwarePage;
use super::entry::{Format, Malformed, Mapping, Marks, Reach, first_page, page_of};

const PAGE: u64 = 0b11;
const AP_USER: u64 = 1 << 6;
const AP_READ_ONLY: u64 = 1 << 7;
const INNER_SHAREABLE: u64 = 0b11 << 8;
const AF: u64 = 1 << 10;
const NOT_GLOBAL: u64 = 1 << 11;
const DBM: u64 = 1 << 51;
const CONTIGUOUS: u64 = 1 << 52;
const PXN: u64 = 1 << 53;
const UXN: u64 = 1 << 54;
const SOFTWARE_DIRTY: u64 = 1 << 55;
/// Bits that hardware ignores and this format does not use: 63..59 and the software bits but the
/// one above.
const IGNORED: u64 = 0xff << 56;

const ADDRESS_BITS: u32 = 48;

/// Groups of descriptors with the Contiguous bit, for a granule.
#[derive(Clone, Copy, Debug)]
pub struct Contiguous(pub HardwarePage);

impl Format for Contiguous {
    fn entries(&self) -> usize {
        super::Scheme::AArch64(self.0).group_entries() as usize
    }

    fn encode(&self, i: usize, mapping: Mapping, reach: Reach) -> u64 {
        let shift = self.0.shift();
        let page = page_of(mapping, i, self.entries(), ADDRESS_BITS - shift);
        let Mapping { write, execute, user, marks, .. } = mapping;
        let when = |is, bit| if is { bit } else { 0 };
        page << shift
            | PAGE
            | INNER_SHAREABLE
            | NOT_GLOBAL
            | when(user, AP_USER)
            | when(!(write && marks.dirty), AP_READ_ONLY)
            | when(write, DBM)
            | when(marks.dirty && !write, SOFTWARE_DIRTY)
            | when(marks.accessed, AF)
            // User code is not executable by the supervisor, nor the supervisor's by user mode.
            | when(!(execute && user), UXN)
            | when(!execute || user, PXN)
            | when(reach == Reach::Group, CONTIGUOUS)
    }

    fn decode(&self, i: usize, entry: u64) -> Result<Option<(Mapping, Reach)>, Malformed> {
        if entry & 1 == 0 {
            return Ok(None);
        }
        let has = |bit| entry & bit != 0;
        let page = (entry & ((1 << ADDRESS_BITS) - 1)) >> self.0.shift();
        let user = has(AP_USER);
        let mapping = Mapping {
            first_page: first_page(page, i, self.entries())?,
            write: has(DBM),
            execute: !has(if user { UXN } else { PXN }),
            user,
            marks: self.marks(entry),
        };
        let reach = self.reach(entry);
        // An entry that `encode` does not write encodes differently.
        let known = self.encode(i, mapping, reach) == entry & !IGNORED;
        if known { Ok(Some((mapping, reach))) } else { Err(Malformed::Unknown(i)) }
    }

    fn reach(&self, entry: u64) -> Reach {
        if entry & 1 == 1 && entry & CONTIGUOUS != 0 { Reach::Group } else { Reach::Page }
    }

    fn marks(&self, entry: u64) -> Marks {
        let valid = entry & 1 == 1;
        let written = entry & AP_READ_ONLY == 0 || entry & SOFTWARE_DIRTY != 0;
        Marks { accessed: valid && entry & AF != 0, dirty: valid && written }
    }
}

#[cfg(test)]
#[path = "aarch64_test.rs"]
mod tests;
