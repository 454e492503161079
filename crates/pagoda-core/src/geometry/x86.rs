//! x86-64: entries that map 4 KiB, in groups of 16 that only software knows.
//!
//! ```text
//!  63  62..59          58..52   51..12   11..9    8  7    6  5  4    3    2    1    0
//!  XD  protection key  ignored  address  ignored  G  PAT  D  A  PCD  PWT  U/S  R/W  P
//! ```
//! Nothing marks a group: each of the 16 entries is independent for the hardware. The marks of a
//! base page are the OR over 16. A processor that coalesces adjacent entries by itself can coalesce
//! these.
//!
//! Source: Intel SDM volume 3A, chapter Paging, table "Format of a Page-Table Entry that Maps a
//! 4-KByte Page". Memory is write-back (PAT, PCD and PWT are 0), never global, and without a
//! protection key. Bits that hardware ignores are written as 0 and not read.

use super::entry::{Format, Malformed, Mapping, Marks, Reach, first_page, page_of};

const PRESENT: u64 = 1 << 0;
const WRITE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
const EXECUTE_DISABLE: u64 = 1 << 63;
const IGNORED: u64 = 0b111 << 9 | 0x7f << 52;

const PAGE_SHIFT: u32 = 12;
const PAGE_BITS: u32 = 40;

/// Groups of this many entries, a power of two: 16 for base pages of 64 KiB.
#[derive(Clone, Copy, Debug)]
pub struct Plain(pub usize);

impl Format for Plain {
    fn entries(&self) -> usize {
        self.0
    }

    fn encode(&self, i: usize, mapping: Mapping, _: Reach) -> u64 {
        let page = page_of(mapping, i, self.0, PAGE_BITS);
        let when = |is, bit| if is { bit } else { 0 };
        page << PAGE_SHIFT
            | PRESENT
            | when(mapping.write, WRITE)
            | when(mapping.user, USER)
            | when(mapping.marks.accessed, ACCESSED)
            | when(mapping.marks.dirty, DIRTY)
            | when(!mapping.execute, EXECUTE_DISABLE)
    }

    fn decode(&self, i: usize, entry: u64) -> Result<Option<(Mapping, Reach)>, Malformed> {
        if entry & PRESENT == 0 {
            return Ok(None);
        }
        let has = |bit| entry & bit != 0;
        let mapping = Mapping {
            first_page: first_page(entry >> PAGE_SHIFT & ((1 << PAGE_BITS) - 1), i, self.0)?,
            write: has(WRITE),
            execute: !has(EXECUTE_DISABLE),
            user: has(USER),
            marks: self.marks(entry),
        };
        // An entry that `encode` does not write encodes differently.
        let known = self.encode(i, mapping, Reach::Page) == entry & !IGNORED;
        if known { Ok(Some((mapping, Reach::Page))) } else { Err(Malformed::Unknown(i)) }
    }

    fn reach(&self, _: u64) -> Reach {
        Reach::Page
    }

    fn marks(&self, entry: u64) -> Marks {
        let has = |bit| entry & (PRESENT | bit) == PRESENT | bit;
        Marks { accessed: has(ACCESSED), dirty: has(DIRTY) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPPING: Mapping = Mapping {
        first_page: 0x123450,
        write: true,
        execute: false,
        user: true,
        marks: Marks { accessed: true, dirty: true },
    };

    /// P 0, R/W 1, U/S 2, A 5, D 6, the address from 12, XD 63.
    #[test]
    fn the_entry_of_the_manual() {
        let entries: Vec<_> = Plain(16).encode_group(MAPPING, Reach::Group).collect();
        assert_eq!((entries[0], entries[6]), (0x8000_0001_2345_0067, 0x8000_0001_2345_6067));
        let code = Mapping { write: false, execute: true, marks: Marks::default(), ..MAPPING };
        assert_eq!(Plain(16).encode(6, code, Reach::Page), 0x0000_0001_2345_6005);
    }

    #[test]
    fn ignored_bits_are_not_read_and_all_others_are_refused() {
        let entry = Plain(16).encode(6, MAPPING, Reach::Page);
        assert_eq!(Plain(16).decode(6, entry | 1 << 9 | 1 << 52), Ok(Some((MAPPING, Reach::Page))));
        for bit in [3, 4, 7, 8, 59, 62] {
            assert_eq!(Plain(16).decode(6, entry | 1 << bit), Err(Malformed::Unknown(6)), "bit {bit}");
        }
    }
}
