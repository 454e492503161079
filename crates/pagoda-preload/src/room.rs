//! The room of an engine's heap: one mapping, from which its steps of growth and its large blocks
//! are taken.
//!
//! A mapping for each of them would be two to the kernel, with the closed page below it, and a fork
//! has to leave each of the two out of the child. With the room less has to be mapped later, too,
//! when a program may be at its limit of mappings. Parts are taken first fit: blocks are few, and
//! most live as long as the engine's threads. A block that doesn't fit is a mapping of its own. The
//! room must never hand out a part that doesn't read as zero.

use pagoda_core::size::Bytes;
use pagoda_linux::mem::own_memory::OwnMapping;
use pagoda_linux::mem::range::PageRange;

/// The unit of a part, and its alignment.
pub const UNIT: usize = 64 << 10;

/// Room for every engine, whatever its budget: 3 MiB of large blocks with four handlers, and three
/// steps of growth.
const LEAST: Bytes = Bytes::mib(16);

/// The part of the budget that is added: tables of pages take less.
const SHARE_OF_BUDGET: u64 = 64;

/// Units at most, so that the bits are as many at most: 512 MiB, with a budget of 31 GiB.
const UNITS_MOST: usize = 8192;

/// The mapping, and which of its units are taken.
pub struct Room {
    mapping: Option<OwnMapping>,
    taken: [u64; UNITS_MOST / 64],
}

impl Room {
    /// No room yet.
    pub const fn new() -> Self {
        Self { mapping: None, taken: [0; UNITS_MOST / 64] }
    }

    /// Makes the mapping, unless there is one. Without addresses for it there is none.
    pub fn open(&mut self, budget: Bytes) {
        if self.mapping.is_none() {
            let bytes = LEAST.saturating_add(Bytes::new(budget.get() / SHARE_OF_BUDGET)).as_usize();
            let len = bytes.next_multiple_of(UNIT).min(UNITS_MOST * UNIT);
            self.mapping = OwnMapping::reserve(len, UNIT, false).ok();
        }
    }

    /// A part of at least `len` bytes, which reads as zero.
    pub fn take(&mut self, len: usize) -> Option<PageRange> {
        let range = self.mapping.as_ref()?.range();
        let (units, most) = (len.div_ceil(UNIT).max(1), range.len() / UNIT);
        let mut first = 0;
        while first + units <= most {
            match (first..first + units).rev().find(|unit| self.is_taken(*unit)) {
                Some(taken) => first = taken + 1,
                None => {
                    (first..first + units).for_each(|unit| self.taken[unit / 64] |= 1 << (unit % 64));
                    return Some(PageRange::at(range.start() + first * UNIT, units * UNIT));
                }
            }
        }
        None
    }

    /// Takes a part back, of the length that was asked for. False if it is none of this room.
    ///
    /// # Safety
    /// If it is one, nothing uses it any more.
    pub unsafe fn give_back(&mut self, start: usize, len: usize) -> bool {
        let Some(mapping) = &self.mapping else { return false };
        let part = PageRange::at(start, len.div_ceil(UNIT).max(1) * UNIT);
        if mapping.range().intersection(part) != Some(part) {
            return false;
        }
        // SAFETY: the caller gives it up, and the next owner expects zeroes.
        unsafe { mapping.discard(part) };
        let first = (start - mapping.range().start()) / UNIT;
        (first..first + part.len() / UNIT).for_each(|unit| self.taken[unit / 64] &= !(1 << (unit % 64)));
        true
    }

    fn is_taken(&self, unit: usize) -> bool {
        self.taken[unit / 64] >> (unit % 64) & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(part: PageRange) -> &'static mut [u8] {
        // SAFETY: the test's own part of a mapping that is writable, used here alone.
        unsafe {
            std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(part.start()), part.len())
        }
    }

    #[test]
    fn parts_are_apart_fit_where_others_went_and_read_as_zero() {
        let mut room = Room::new();
        assert_eq!(room.take(1), None, "there is none yet");
        room.open(Bytes::mib(64));
        let parts: Vec<PageRange> = [1, 3 * UNIT, UNIT + 1].map(|len| room.take(len).expect("room")).into();
        assert_eq!(parts.iter().map(|part| part.len() / UNIT).collect::<Vec<_>>(), [1, 3, 2]);
        for (index, part) in parts.iter().enumerate() {
            assert!(part.start().is_multiple_of(UNIT));
            assert!(parts[..index].iter().all(|other| other.intersection(*part).is_none()));
            assert!(bytes(*part).iter().all(|byte| *byte == 0));
            bytes(*part).fill(7);
        }
        // SAFETY: it is not used after this.
        assert!(unsafe { room.give_back(parts[1].start(), 3 * UNIT) });
        let again = room.take(2 * UNIT).expect("where it was");
        assert_eq!(again.start(), parts[1].start());
        assert!(bytes(again).iter().all(|byte| *byte == 0));
        assert!(bytes(parts[0]).iter().chain(bytes(parts[2]).iter()).all(|byte| *byte == 7));
    }

    #[test]
    fn it_ends_and_knows_what_is_none_of_it() {
        let mut room = Room::new();
        room.open(Bytes::ZERO);
        assert_eq!(room.take(LEAST.as_usize() + 1), None);
        let all = room.take(LEAST.as_usize()).expect("all of it");
        assert_eq!(room.take(1), None);
        // SAFETY: neither is used after this, and the first is none of the room.
        unsafe {
            assert!(!room.give_back(all.end(), UNIT));
            assert!(room.give_back(all.start(), LEAST.as_usize()));
        }
        assert!(room.take(1).is_some());
    }
}
