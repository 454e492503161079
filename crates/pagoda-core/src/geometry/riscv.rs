//! RISC-V: leaf entries of Sv39, Sv48 and Sv57, and groups of 16 by Svnapot.
//!
//! ```text
//!  63  62..61  60..54    53..10   9..8  7 6 5 4 3 2 1 0
//!  N   PBMT    reserved  PPN      RSW   D A G U X W R V
//! ```
//! With N = 1 the low four bits of PPN are 1000b and not part of the number: the group is 64 KiB,
//! and all 16 entries are equal. Every other value of these bits is reserved.
//!
//! Sources: RISC-V Privileged Architecture, "Sv39: Page-Based 39-bit Virtual-Memory System" and,
//! for N, "Svnapot Standard Extension for NAPOT Translation Contiguity", version 1.0. Memory is
//! plain (PBMT is 0) and never global. The RSW bits belong to the supervisor: they are written as 0
//! and not read.

use super::entry::{Format, Malformed, Mapping, Marks, Reach, first_page, page_of};

const V: u64 = 1 << 0;
const R: u64 = 1 << 1;
const W: u64 = 1 << 2;
const X: u64 = 1 << 3;
const U: u64 = 1 << 4;
const A: u64 = 1 << 6;
const D: u64 = 1 << 7;
const RSW: u64 = 0b11 << 8;
const PPN_SHIFT: u32 = 10;
const PPN_BITS: u32 = 44;
const N: u64 = 1 << 63;

/// PPN[3:0] of a 64 KiB group.
const NAPOT_64K: u64 = 0b1000;

/// The only group that version 1.0 defines.
const ENTRIES: usize = 16;

/// Groups of 16 entries of 4 KiB.
#[derive(Clone, Copy, Debug)]
pub struct Svnapot;

impl Format for Svnapot {
    fn entries(&self) -> usize {
        ENTRIES
    }

    fn encode(&self, i: usize, mapping: Mapping, reach: Reach) -> u64 {
        let page = page_of(mapping, i, ENTRIES, PPN_BITS);
        let ppn = match reach {
            Reach::Page => page << PPN_SHIFT,
            Reach::Group => N | (mapping.first_page | NAPOT_64K) << PPN_SHIFT,
        };
        let when = |is, bit| if is { bit } else { 0 };
        ppn | V
            | R
            | when(mapping.write, W)
            | when(mapping.execute, X)
            | when(mapping.user, U)
            | when(mapping.marks.accessed, A)
            | when(mapping.marks.dirty, D)
    }

    fn decode(&self, i: usize, entry: u64) -> Result<Option<(Mapping, Reach)>, Malformed> {
        if entry & V == 0 {
            return Ok(None);
        }
        let ppn = entry >> PPN_SHIFT & ((1 << PPN_BITS) - 1);
        let reach = self.reach(entry);
        let first_page = match reach {
            Reach::Page => first_page(ppn, i, ENTRIES)?,
            Reach::Group => ppn & !(ENTRIES as u64 - 1),
        };
        let has = |bit| entry & bit != 0;
        let mapping =
            Mapping { first_page, write: has(W), execute: has(X), user: has(U), marks: self.marks(entry) };
        // An entry that `encode` does not write encodes differently: reserved bits, a pointer (R is
        // 0), G, PBMT.
        let known = self.encode(i, mapping, reach) == entry & !RSW;
        if known { Ok(Some((mapping, reach))) } else { Err(Malformed::Unknown(i)) }
    }

    fn reach(&self, entry: u64) -> Reach {
        if entry & (V | N) == V | N { Reach::Group } else { Reach::Page }
    }

    fn marks(&self, entry: u64) -> Marks {
        let has = |bit| entry & (V | bit) == V | bit;
        Marks { accessed: has(A), dirty: has(D) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPPING: Mapping = Mapping {
        first_page: 0x80200,
        write: true,
        execute: false,
        user: true,
        marks: Marks { accessed: true, dirty: true },
    };

    /// N is bit 63, PPN starts at bit 10 and ends in 1000b, D A U W R V are bits 7, 6, 4, 2, 1, 0.
    #[test]
    fn a_group_is_sixteen_times_the_word_of_the_specification() {
        let word = 1 << 63 | 0x80208 << 10 | 0b1101_0111;
        assert_eq!(word, 0x8000_0000_2008_20d7);
        assert!(Svnapot.encode_group(MAPPING, Reach::Group).all(|entry| entry == word));
        assert_eq!(Svnapot.decode_group(&[word; 16]), Ok(Some((MAPPING, Reach::Group))));
    }

    #[test]
    fn entries_of_page_reach_name_their_own_page() {
        let entries: Vec<_> = Svnapot.encode_group(MAPPING, Reach::Page).collect();
        assert_eq!((entries[0], entries[15]), (0x80200 << 10 | 0xd7, 0x8020f << 10 | 0xd7));
    }

    /// Svnapot, table "Page table entry encodings when pte.N=1": everything but x xxxx 1000 is
    /// reserved.
    #[test]
    fn every_other_low_page_number_is_reserved() {
        for low in (0..16).filter(|low| *low != NAPOT_64K) {
            let entry = N | (0x80200 | low) << PPN_SHIFT | 0xd7;
            assert_eq!(Svnapot.decode(3, entry), Err(Malformed::Unknown(3)), "{low:04b}");
        }
    }

    #[test]
    fn reserved_bits_pointers_and_writable_without_readable_are_refused() {
        let page = 0x80200 << PPN_SHIFT;
        for bad in (54..63).map(|bit| 1 << bit | page | 0xd7).chain([page | V, page | V | W, page | V | X]) {
            assert_eq!(Svnapot.decode(0, bad), Err(Malformed::Unknown(0)), "{bad:#x}");
        }
    }

    #[test]
    fn the_supervisors_bits_are_ignored() {
        let entry = Svnapot.encode(5, MAPPING, Reach::Group) | RSW;
        assert_eq!(Svnapot.decode(5, entry), Ok(Some((MAPPING, Reach::Group))));
    }
}
