//! Loans of places in the spill file: when a place that its owner frees may be reused.
//!
//! Only the owner of a file allocates and frees its places. It lends some to *borrowers*: forked
//! children that read their own stored pages there. A borrower's hold on a place begins when the
//! owner announces it, while the owner still has the place itself. It ends when the borrower
//! releases the place or is gone, and the same loan never holds a released place again. So a place
//! that its owner has freed and no borrower holds can be reused for good. A place that is still
//! held is held back, and checked again later. This module must never free a place that a borrower
//! holds, nor free one twice.

use crate::space::extents::{SLOT, UNIT, Units};

/// Most borrowers at once: every freed place is looked up with each of them. Further children get
/// copies.
pub const BORROWERS_MAX: usize = 64;

/// A reader of places in another process's file.
pub trait Borrower {
    /// Whether it may still read the object whose first unit this is. If not, all its reads of the
    /// object are over.
    fn holds(&self, first_unit: u32) -> bool;
}

/// The borrowers of a file, and the places that its owner has freed and they still hold.
#[derive(Debug)]
pub struct Lending<B> {
    borrowers: Vec<B>,
    /// Each place is here at most once, because it is not allocated again before it leaves this
    /// list. So there are fewer than units in the file.
    held_back: Vec<Units>,
    held_back_units: u64,
    /// Where the next check of `held_back` begins.
    cursor: usize,
}

impl<B: Borrower> Lending<B> {
    /// A lending without borrowers.
    #[must_use]
    pub const fn new() -> Self {
        Self { borrowers: Vec::new(), held_back: Vec::new(), held_back_units: 0, cursor: 0 }
    }

    /// Whether there is room for one more borrower.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.borrowers.len() < BORROWERS_MAX
    }

    /// Adds a borrower. Must precede the announcement of the first place it holds.
    pub fn add(&mut self, borrower: B) {
        self.borrowers.push(borrower);
    }

    /// Removes and returns the borrowers that are gone: they hold nothing any more.
    pub fn forget(&mut self, mut is_gone: impl FnMut(&B) -> bool) -> Vec<B> {
        self.borrowers.extract_if(.., |borrower| is_gone(borrower)).collect()
    }

    /// The borrowers.
    pub fn borrowers(&self) -> impl Iterator<Item = &B> {
        self.borrowers.iter()
    }

    /// Reports that the owner has freed this place. True if it may be reused at once; else it is
    /// held back.
    #[must_use]
    pub fn frees(&mut self, units: Units) -> bool {
        let is_held = self.is_held(units);
        if is_held {
            self.held_back.push(units);
            self.held_back_units += u64::from(units.units);
        }
        !is_held
    }

    /// Checks `most` of the held-back places, from where the last check ended, and takes out the
    /// reusable ones.
    pub fn take_free(&mut self, most: usize) -> Vec<Units> {
        let mut free = Vec::new();
        for _ in 0..most.min(self.held_back.len()) {
            if self.cursor >= self.held_back.len() {
                self.cursor = 0;
            }
            let units = self.held_back[self.cursor];
            if self.is_held(units) {
                self.cursor += 1;
            } else {
                self.held_back.swap_remove(self.cursor);
                self.held_back_units -= u64::from(units.units);
                free.push(units);
            }
        }
        free
    }

    /// The number of places held back.
    #[must_use]
    pub fn held_back(&self) -> usize {
        self.held_back.len()
    }

    /// The held-back units in whole slots, rounded down: no more than the slots that they occupy.
    #[must_use]
    pub fn held_back_slots(&self) -> u32 {
        // Objects share slots, but no units.
        u32::try_from(self.held_back_units / (SLOT / UNIT) as u64).unwrap_or(u32::MAX)
    }

    /// The size of the tables in bytes.
    #[must_use]
    pub fn table_bytes(&self) -> u64 {
        (self.held_back.capacity() * size_of::<Units>() + self.borrowers.capacity() * size_of::<B>()) as u64
    }

    fn is_held(&self, units: Units) -> bool {
        self.borrowers.iter().any(|borrower| borrower.holds(units.first))
    }
}

impl<B: Borrower> Default for Lending<B> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
#[path = "extent_leases_test.rs"]
mod tests;
