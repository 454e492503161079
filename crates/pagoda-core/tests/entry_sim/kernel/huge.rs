//! Huge pages of the model kernel: their places, how they are split, and how they form.
//!
//! A huge page is a property of its place: its OS pages have their content as any other. Where the
//! kernel has a table of OS pages no move makes a huge page; a collapse does. This module must
//! never change a content.

use super::{GRANULES, HUGE, HUGE_ENTRIES, Kernel, Range};

/// The number of a place of a huge page.
pub type Place = usize;

impl Kernel {
    /// The place of `range`, if it is one huge page, all of it.
    pub fn whole_huge(&self, range: &Range) -> Option<Place> {
        let place = range.start / HUGE;
        (range.start.is_multiple_of(HUGE) && range.len() == HUGE && self.huge[place]).then_some(place)
    }

    /// Whether any of `range` is in a huge page.
    pub fn is_any_huge(&self, range: &Range) -> bool {
        range.clone().any(|address| self.huge[address / HUGE])
    }

    /// The huge slot that begins at `at` of a slot, if one does.
    pub(super) fn huge_slot(&self, slot: usize, at: usize) -> Option<usize> {
        let behind = slot.checked_sub(self.first_huge)?;
        (at == 0 && behind.is_multiple_of(HUGE_ENTRIES)).then_some(behind / HUGE_ENTRIES)
    }

    /// The first slot of a huge slot.
    pub fn first_of_huge(&self, huge_slot: usize) -> usize {
        self.first_huge + huge_slot * HUGE_ENTRIES
    }

    pub(super) fn goes_in_whole(&self, to: &Range, huge_slot: usize) -> bool {
        let is_place = to.start.is_multiple_of(HUGE) && to.len() == HUGE;
        is_place && self.huge_slots[huge_slot] && !self.tables[to.start / HUGE]
    }

    pub(super) fn bring_huge(&mut self, to: &Range, huge_slot: usize) {
        self.huge[to.start / HUGE] = true;
        self.huge_slots[huge_slot] = false;
    }

    pub(super) fn take_huge_out(&mut self, place: Place, huge_slot: usize) {
        self.huge[place] = false;
        self.huge_slots[huge_slot] = true;
    }

    /// Takes apart the huge pages of which `range` has a part; those that it covers go whole.
    pub(super) fn cut_huge(&mut self, range: &Range) {
        for place in range.start / HUGE..range.end.div_ceil(HUGE) {
            if std::mem::take(&mut self.huge[place]) {
                self.tables[place] = !(range.start <= place * HUGE && (place + 1) * HUGE <= range.end);
            }
        }
    }

    /// Takes a huge page apart for a reason of the kernel's own.
    pub fn split(&mut self, place: Place) {
        if std::mem::take(&mut self.huge[place]) {
            self.tables[place] = true;
        }
    }

    /// mprotect, without an event: a huge page of which it has a part is taken apart.
    pub fn protect(&mut self, range: Range, read_only: bool) {
        for place in [range.start / HUGE, (range.end - 1) / HUGE] {
            if range.start > place * HUGE || range.end < (place + 1) * HUGE {
                self.split(place);
            }
        }
        self.pages[range].iter_mut().for_each(|page| page.read_only = read_only);
    }

    /// Unmapping leaves no table behind.
    pub(super) fn forget_huge(&mut self, range: &Range) {
        self.cut_huge(range);
        for place in range.start.div_ceil(HUGE)..range.end / HUGE {
            self.tables[place] = false;
        }
    }

    /// Gets a huge page of zeroes for an empty huge slot.
    pub fn populate_huge(&mut self, huge_slot: usize) {
        let first = self.first_of_huge(huge_slot);
        self.slots[first..first + HUGE_ENTRIES].fill([Some(0); GRANULES]);
        self.huge_slots[huge_slot] = true;
    }

    /// Empties a huge slot.
    pub fn empty_huge(&mut self, huge_slot: usize) {
        let first = self.first_of_huge(huge_slot);
        self.slots[first..first + HUGE_ENTRIES].fill([None; GRANULES]);
        self.huge_slots[huge_slot] = false;
    }

    /// Collapses a place to one huge page. False if not all of it is there, or may be joined.
    pub fn join(&mut self, place: Place) -> bool {
        let pages = &self.pages[place * HUGE..(place + 1) * HUGE];
        let may = pages.iter().all(|page| page.content.is_some() && !page.read_only && !page.pinned);
        self.huge[place] |= may;
        self.tables[place] &= !may;
        may
    }
}
