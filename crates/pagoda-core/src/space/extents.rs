//! Extents of the spill file: the free slots, and how many objects share each slot.
//!
//! A slot is the unit of direct I/O (4 KiB). Objects are placed at multiples of a smaller unit, one
//! behind the other, so that small ones don't waste a slot each. A slot is free again when the last
//! object in it is gone: it is never rewritten while a reader may still read it. This module must
//! never know the file.

/// Bytes of a slot: the alignment of direct I/O.
pub const SLOT: usize = 4096;

/// Bytes of a unit: objects start at multiples of it. The waste is half a unit for each object.
pub const UNIT: usize = 256;

const UNITS_PER_SLOT: u32 = (SLOT / UNIT) as u32;

/// Consecutive slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first slot.
    pub first: u32,
    /// How many.
    pub slots: u32,
}

/// Where an object lies: consecutive units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Units {
    /// The first unit.
    pub first: u32,
    /// How many; at least one.
    pub units: u32,
}

impl Units {
    /// The units that `bytes` bytes take from unit `first` on.
    #[must_use]
    pub fn of_bytes(first: u32, bytes: usize) -> Self {
        Self { first, units: (bytes.div_ceil(UNIT) as u32).max(1) }
    }
    /// The slots that must be read to read these units.
    #[must_use]
    pub fn slots(self) -> Run {
        let first = self.first / UNITS_PER_SLOT;
        Run { first, slots: (self.first + self.units).div_ceil(UNITS_PER_SLOT) - first }
    }
    /// Where the first byte lies within [`slots`](Self::slots).
    #[must_use]
    pub fn offset_in_slots(self) -> usize {
        (self.first % UNITS_PER_SLOT) as usize * UNIT
    }
}

impl Run {
    /// The first unit of these slots.
    #[must_use]
    pub fn first_unit(self) -> u32 {
        self.first * UNITS_PER_SLOT
    }
}

/// The allocator. Its tables grow with the highest slot ever used: one byte and two bits for each.
pub struct Extents {
    slots_max: u32,
    /// One bit a slot: taken.
    taken: Vec<u64>,
    /// One bit a slot: it was taken since its place on the disk was given back last.
    backed: Vec<u64>,
    /// Objects in each slot.
    sharers: Vec<u8>,
    free_below_high: u32,
    cursor: u32,
}

impl Extents {
    /// An allocator of `slots_max` slots (at most 2^28, so that units count in 32 bits).
    #[must_use]
    pub fn new(slots_max: u32) -> Self {
        let slots_max = slots_max.min(u32::MAX / UNITS_PER_SLOT);
        Self {
            slots_max,
            taken: Vec::new(),
            backed: Vec::new(),
            sharers: Vec::new(),
            free_below_high: 0,
            cursor: 0,
        }
    }

    /// Sets how many slots may be taken at once. If more are, none is taken until as many are free.
    pub fn limit_to(&mut self, slots_max: u32) {
        self.slots_max = slots_max.min(u32::MAX / UNITS_PER_SLOT);
    }

    /// Whether there is room for copies of content that also exists elsewhere. The last eighth is
    /// reserved for content with no other place.
    #[must_use]
    pub fn has_room_for_copies(&self) -> bool {
        self.taken_slots() < self.slots_max / 8 * 7
    }

    /// Slots that are taken.
    #[must_use]
    pub fn taken_slots(&self) -> u32 {
        self.high() - self.free_below_high
    }

    /// Slots ever used: the length of the file.
    #[must_use]
    pub fn high(&self) -> u32 {
        self.sharers.len() as u32
    }

    /// Bytes of the tables.
    #[must_use]
    pub fn table_bytes(&self) -> u64 {
        ((self.taken.capacity() + self.backed.capacity()) * 8 + self.sharers.capacity()) as u64
    }

    /// Takes a run of `most` slots, or the longest there is down to `least`. It has no owner yet:
    /// [`place`](Self::place) objects in it, then [`settle`](Self::settle) it.
    ///
    /// A run of full length among the freed slots comes first (next fit, so that writes stay
    /// sequential), then new ground, then the longest freed run. Little more than one pass over the
    /// bits: 4 KiB of bits for each 128 MiB of file.
    pub fn take(&mut self, least: u32, most: u32) -> Option<Run> {
        let most = most.min(self.slots_max.saturating_sub(self.taken_slots()));
        if most < least {
            return None;
        }
        let reused = if self.free_below_high >= least { self.search(most) } else { None };
        let run = match reused {
            Some(run) if run.slots == most => run,
            shorter => {
                let fresh = most.min(self.slots_max.saturating_sub(self.high()));
                match shorter {
                    Some(run) if run.slots >= fresh && run.slots >= least => run,
                    _ if fresh >= least && fresh > 0 => self.extend(fresh),
                    _ => return None,
                }
            }
        };
        self.mark_taken(run);
        self.cursor = run.first + run.slots;
        Some(run)
    }

    fn mark_taken(&mut self, run: Run) {
        for slot in run.first..run.first + run.slots {
            self.taken[slot as usize / 64] |= 1 << (slot % 64);
            self.backed[slot as usize / 64] |= 1 << (slot % 64);
        }
        self.free_below_high -= run.slots;
    }

    /// Takes a run of `least` to `most` slots that hold nothing and whose disk blocks can be given
    /// back; [`settle`](Self::settle) it then. No object is placed there meanwhile. One pass over
    /// the bits.
    pub fn take_unused(&mut self, least: u32, most: u32) -> Option<Run> {
        let unused = |slot: u32| {
            let bit = 1 << (slot % 64);
            self.taken[slot as usize / 64] & bit == 0 && self.backed[slot as usize / 64] & bit != 0
        };
        let (mut at, high) = (0, self.high());
        while let Some(first) = self.next(at, high, false) {
            let end = (first..high.min(first.saturating_add(most))).find(|slot| !unused(*slot));
            let run = Run { first, slots: end.unwrap_or(high.min(first.saturating_add(most))) - first };
            if run.slots >= least {
                self.mark_taken(run);
                for slot in run.first..run.first + run.slots {
                    self.backed[slot as usize / 64] &= !(1 << (slot % 64));
                }
                return Some(run);
            }
            at = first + run.slots.max(1);
        }
        None
    }

    fn extend(&mut self, slots: u32) -> Run {
        let first = self.high();
        let high = (first + slots) as usize;
        self.sharers.resize(high, 0);
        self.taken.resize(high.div_ceil(64), 0);
        self.backed.resize(high.div_ceil(64), 0);
        self.free_below_high += slots;
        Run { first, slots }
    }

    /// The first free run of `most` slots from the cursor on, around the end, or else the longest.
    fn search(&self, most: u32) -> Option<Run> {
        let high = self.high();
        let cursor = if self.cursor < high { self.cursor } else { 0 };
        let mut longest: Option<Run> = None;
        // The second part overlaps the first, so that a run across the cursor is seen whole.
        for (mut at, end) in [(cursor, high), (0, high.min(cursor.saturating_add(most)))] {
            while let Some(first) = self.next(at, end, false) {
                let stop = self.next(first, end.min(first.saturating_add(most)), true);
                let run = Run { first, slots: stop.unwrap_or(end.min(first.saturating_add(most))) - first };
                if run.slots == most {
                    return Some(run);
                }
                if longest.is_none_or(|longest| longest.slots < run.slots) {
                    longest = Some(run);
                }
                at = first + run.slots;
            }
        }
        longest
    }

    /// The first slot in `at..end` that is taken, or free.
    fn next(&self, at: u32, end: u32, taken: bool) -> Option<u32> {
        let mut at = at;
        while at < end {
            let word = self.taken[at as usize / 64];
            let wanted = (if taken { word } else { !word }) >> (at % 64);
            if wanted != 0 {
                return Some(at + wanted.trailing_zeros()).filter(|slot| *slot < end);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }

    /// An object lies in these units of a run that was taken.
    ///
    /// # Panics
    /// If more objects share a slot than there are units in it.
    pub fn place(&mut self, units: Units) {
        let run = units.slots();
        for slot in run.first..run.first + run.slots {
            debug_assert!(self.taken[slot as usize / 64] >> (slot % 64) & 1 == 1);
            let sharers = &mut self.sharers[slot as usize];
            assert!(u32::from(*sharers) < UNITS_PER_SLOT, "objects don't overlap");
            *sharers += 1;
        }
    }

    /// The object in these units is gone.
    ///
    /// # Panics
    /// If there was none.
    pub fn release(&mut self, units: Units) {
        let run = units.slots();
        for slot in run.first..run.first + run.slots {
            let sharers = &mut self.sharers[slot as usize];
            *sharers = sharers.checked_sub(1).expect("an object is released once");
        }
        self.settle(run);
    }

    /// Frees the slots of a run that no object lies in.
    pub fn settle(&mut self, run: Run) {
        for slot in run.first..run.first + run.slots {
            let bit = 1 << (slot % 64);
            let word = &mut self.taken[slot as usize / 64];
            if self.sharers[slot as usize] == 0 && *word & bit != 0 {
                *word &= !bit;
                self.free_below_high += 1;
            }
        }
    }
}

#[cfg(test)]
#[path = "extents_test.rs"]
mod tests;
