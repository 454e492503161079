use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use proptest::prelude::*;

use super::*;
use crate::space::extents::Extents;

/// A borrower and its objects: the units of each, and their content.
#[derive(Clone, Default)]
struct Child(Rc<RefCell<BTreeMap<u32, (Units, u32)>>>);

impl Borrower for Child {
    fn holds(&self, first_unit: u32) -> bool {
        self.0.borrow().contains_key(&first_unit)
    }
}

/// A file of units, each with the number of the object last written there.
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
    /// Writes objects of these lengths one after the other.
    fn write(&mut self, lengths: &[usize]) {
        let total = lengths.iter().map(|len| len.div_ceil(UNIT) * UNIT).sum::<usize>().div_ceil(SLOT) as u32;
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
    /// Every object that the owner or a child can read still has its content.
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
    /// For any order of writes and frees by the owner, and of releases and deaths of children:
    /// no readable object is overwritten, and in the end nothing is left.
    #[test]
    fn no_readable_object_is_overwritten_and_nothing_leaks(
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
fn a_check_continues_where_the_last_one_ended() {
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
