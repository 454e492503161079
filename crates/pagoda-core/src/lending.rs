//! Places of the spill file that others read, too: when a place that its owner frees may be used for something else.
//!
//! The owner of a file alone gives places out and takes them back. It lends some to *borrowers*, forked children that read their
//! own stored pages there. A borrower holds a place from the moment at which the owner says so, while it has the place itself,
//! until it lets go or is gone; a place that was let go is never held again by the same loan. So whoever finds a place not held by
//! anybody, after its owner has freed it, may use it for good. What is still held then is held back, and looked at
//! again later. This module must never free a place that somebody holds, nor free one twice.

use crate::extents::{SLOT, UNIT, Units};

/// Borrowers at once: each place that is freed is looked up with each of them. Who comes beyond gets copies.
pub const BORROWERS_MAX: usize = 64;

/// Who reads places of another's file.
pub trait Borrower {
    /// Whether it may still read the object whose first unit this is. If not, all its reads of it are over.
    fn holds(&self, first_unit: u32) -> bool;
}

/// The borrowers of a file, and the places in it that its owner has freed and they hold.
#[derive(Debug)]
pub struct Lending<B> {
    borrowers: Vec<B>,
    /// Each of them once, for no place is given out again before it is out of here: fewer than there are units in the file.
    held_back: Vec<Units>,
    held_back_units: u64,
    /// Where the next look at `held_back` begins.
    cursor: usize,
}

impl<B: Borrower> Lending<B> {
    /// Nothing is lent.
    #[must_use]
    pub const fn new() -> Self {
        Self { borrowers: Vec::new(), held_back: Vec::new(), held_back_units: 0, cursor: 0 }
    }

    /// Whether there may be one borrower more.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.borrowers.len() < BORROWERS_MAX
    }

    /// Enters a borrower: before the first place is said to be held by it.
    pub fn add(&mut self, borrower: B) {
        self.borrowers.push(borrower);
    }

    /// Forgets the borrowers that are gone, and returns them: they hold nothing any more.
    pub fn forget(&mut self, mut is_gone: impl FnMut(&B) -> bool) -> Vec<B> {
        self.borrowers.extract_if(.., |borrower| is_gone(borrower)).collect()
    }

    /// The borrowers.
    pub fn borrowers(&self) -> impl Iterator<Item = &B> {
        self.borrowers.iter()
    }

    /// Its owner needs this place no more. True if it may be used again; else it is held back.
    #[must_use]
    pub fn frees(&mut self, units: Units) -> bool {
        let is_held = self.is_held(units);
        if is_held {
            self.held_back.push(units);
            self.held_back_units += u64::from(units.units);
        }
        !is_held
    }

    /// Looks at `most` of what is held back, where the last look ended, and takes out what may be used again.
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

    /// How many places are held back.
    #[must_use]
    pub fn held_back(&self) -> usize {
        self.held_back.len()
    }

    /// Slots that are taken by nothing else, at least.
    #[must_use]
    pub fn held_back_slots(&self) -> u32 {
        // Objects share slots, but no units.
        u32::try_from(self.held_back_units / (SLOT / UNIT) as u64).unwrap_or(u32::MAX)
    }

    /// Bytes of the tables.
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
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeMap;
    use std::rc::Rc;

    use proptest::prelude::*;

    use super::*;
    use crate::extents::Extents;

    /// A borrower with what it reads: each object's units, and what is in them.
    #[derive(Clone, Default)]
    struct Child(Rc<RefCell<BTreeMap<u32, (Units, u32)>>>);

    impl Borrower for Child {
        fn holds(&self, first_unit: u32) -> bool {
            self.0.borrow().contains_key(&first_unit)
        }
    }

    /// A file of units, each with the number of the object that was written there last.
    struct Owner {
        extents: Extents,
        lending: Lending<Child>,
        written: Vec<u32>,
        live: Vec<(Units, u32)>,
        children: Vec<Child>,
        next: u32,
    }

    const SLOTS: u32 = 64;

    impl Owner {
        fn new() -> Self {
            Self {
                extents: Extents::new(SLOTS),
                lending: Lending::new(),
                written: vec![0; SLOTS as usize * SLOT / UNIT],
                live: Vec::new(),
                children: Vec::new(),
                next: 0,
            }
        }
        /// Writes objects of these lengths one behind the other.
        fn write(&mut self, lengths: &[usize]) {
            let total =
                lengths.iter().map(|len| len.div_ceil(UNIT) * UNIT).sum::<usize>().div_ceil(SLOT) as u32;
            let Some(run) = self.extents.take(total, total) else { return };
            let mut first = run.first_unit();
            for len in lengths {
                let units = Units::of_bytes(first, *len);
                self.next += 1;
                self.extents.place(units);
                self.written[first as usize..(first + units.units) as usize].fill(self.next);
                self.live.push((units, self.next));
                first += units.units;
            }
            self.extents.settle(run);
        }
        fn free(&mut self, at: usize) {
            let (units, _) = self.live.swap_remove(at);
            if self.lending.frees(units) {
                self.extents.release(units);
            }
        }
        fn fork(&mut self, share: usize) {
            let child = Child::default();
            self.lending.add(child.clone());
            for (units, object) in self.live.iter().step_by(share) {
                child.0.borrow_mut().insert(units.first, (*units, *object));
            }
            self.children.push(child);
        }
        fn look(&mut self, most: usize) {
            for units in self.lending.take_free(most) {
                self.extents.release(units);
            }
        }
        /// All that anybody reads is what was written there for it.
        fn check(&self) -> Result<(), TestCaseError> {
            let children =
                self.children.iter().flat_map(|child| child.0.borrow().values().copied().collect::<Vec<_>>());
            for (units, object) in self.live.iter().copied().chain(children) {
                let written = &self.written[units.first as usize..(units.first + units.units) as usize];
                prop_assert!(written.iter().all(|written| *written == object), "{units:?} of {object}");
            }
            Ok(())
        }
    }

    proptest! {
        /// Whatever the owner writes and frees, whatever children let go and whenever they die: what anybody reads is never
        /// overwritten, and in the end nothing is left.
        #[test]
        fn nobody_reads_what_was_written_for_another_and_nothing_leaks(
            steps in proptest::collection::vec((0u8..12, any::<u16>(), any::<u16>()), 1..250),
        ) {
            let mut owner = Owner::new();
            for (what, pick, number) in steps {
                let (pick, number) = (usize::from(pick), usize::from(number));
                match what {
                    0..4 => owner.write(&[1 + number % 9000, 1 + pick % 5000, 300][..1 + pick % 3]),
                    4..7 if !owner.live.is_empty() => owner.free(pick % owner.live.len()),
                    7 if owner.lending.has_room() => owner.fork(1 + pick % 3),
                    8..10 if !owner.children.is_empty() => {
                        let child = &owner.children[pick % owner.children.len()];
                        let held: Vec<u32> = child.0.borrow().keys().copied().collect();
                        held.iter().skip(number % 2).step_by(2).for_each(|first| {
                            let _ = child.0.borrow_mut().remove(first);
                        });
                    }
                    10 if !owner.children.is_empty() => {
                        let dead = owner.children.swap_remove(pick % owner.children.len());
                        assert_eq!(owner.lending.forget(|child| Rc::ptr_eq(&child.0, &dead.0)).len(), 1);
                    }
                    _ => owner.look(1 + number % 8),
                }
                owner.check()?;
                prop_assert!(owner.lending.held_back_slots() <= owner.extents.taken_slots());
            }
            owner.children.clear();
            drop(owner.lending.forget(|_| true));
            owner.look(usize::MAX);
            prop_assert_eq!((owner.lending.held_back(), owner.lending.held_back_slots()), (0, 0));
            while !owner.live.is_empty() {
                owner.free(0);
            }
            prop_assert_eq!(owner.extents.taken_slots(), 0);
        }
    }

    #[test]
    fn a_look_goes_on_where_the_last_one_ended() {
        let mut lending = Lending::new();
        let child = Child::default();
        lending.add(child.clone());
        for first in 0..10 {
            let units = Units { first, units: 1 };
            child.0.borrow_mut().insert(first, (units, 0));
            assert!(!lending.frees(units));
        }
        assert!(lending.take_free(7).is_empty());
        child.0.borrow_mut().remove(&8);
        assert_eq!(lending.take_free(2), [Units { first: 8, units: 1 }]);
        child.0.borrow_mut().remove(&0);
        assert_eq!(lending.take_free(9), [Units { first: 0, units: 1 }]);
        assert_eq!(lending.held_back(), 8);
    }
}
