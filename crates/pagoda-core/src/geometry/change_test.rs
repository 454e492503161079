//! A walker that does everything hardware may do. After every step it reads every entry, and keeps
//! each translation that it finds until it is invalidated. So it holds every translation that any
//! walker, in any interleaving, could hold, and one run covers all interleavings.

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;
use crate::geometry::HardwarePage;
use crate::geometry::aarch64::Contiguous;
use crate::geometry::entry::{Mapping, Reach};
use crate::geometry::riscv::Svnapot;
use crate::geometry::x86::Plain;

/// A group in memory, and every translation of its pages that can be in use.
struct Hardware<'a, F> {
    format: &'a F,
    entries: Vec<u64>,
    /// The translations that any page of the group can have, without marks. One translation cached
    /// for the group and one for a page count as two: Arm calls that a TLB conflict.
    cached: HashSet<(Mapping, Reach)>,
    steps: usize,
    /// Step, entry, marks: the marks that hardware sets, if the entry is valid at that step.
    events: &'a [(usize, usize, Marks)],
    /// All marks that it did set.
    set: Marks,
    /// Whether two translations of the group were ever in use at the same time.
    mixed: bool,
    /// All translations that ever were in use.
    seen: HashSet<(Mapping, Reach)>,
}

impl<'a, F: Format> Hardware<'a, F> {
    fn new(format: &'a F, entries: Vec<u64>, events: &'a [(usize, usize, Marks)]) -> Self {
        let (cached, set) = (HashSet::new(), Marks::default());
        let mut new =
            Self { format, entries, cached, steps: 0, events, set, mixed: false, seen: HashSet::new() };
        new.walk();
        new
    }

    fn walk(&mut self) {
        for (i, &entry) in self.entries.iter().enumerate() {
            let decoded = self.format.decode(i, entry).expect("entries of our own");
            self.cached.extend(decoded.map(|(mapping, reach)| (unmarked(mapping), reach)));
        }
        self.mixed |= self.cached.len() > 1;
        self.seen.extend(&self.cached);
    }

    /// Sets marks only in an entry that is valid at that moment: the specifications require a
    /// compare and swap.
    fn mark(&mut self) {
        for &(_, at, marks) in self.events.iter().filter(|(step, ..)| *step == self.steps) {
            let at = at % self.entries.len();
            if let Ok(Some((mapping, reach))) = self.format.decode(at, self.entries[at]) {
                let marks = mapping.marks.or(marks);
                self.entries[at] = self.format.encode(at, Mapping { marks, ..mapping }, reach);
                self.set = self.set.or(marks);
            }
        }
    }

    fn step<R>(&mut self, step: impl FnOnce(&mut Self) -> R) -> R {
        self.mark();
        let done = step(self);
        self.steps += 1;
        self.walk();
        done
    }
}

impl<F: Format> Group for Hardware<'_, F> {
    fn get(&self, i: usize) -> u64 {
        self.entries[i]
    }
    fn take(&mut self, i: usize) -> u64 {
        self.step(|this| std::mem::take(&mut this.entries[i]))
    }
    fn invalidate(&mut self) {
        self.step(|this| this.cached.clear());
    }
    fn put(&mut self, i: usize, entry: u64) {
        self.step(|this| this.entries[i] = entry);
    }
}

fn unmarked(mapping: Mapping) -> Mapping {
    Mapping { marks: Marks::default(), ..mapping }
}

fn mapping(group: u64, write: bool, marks: Marks) -> Mapping {
    Mapping { first_page: group * 128, write, execute: false, user: true, marks }
}

fn marks() -> impl Strategy<Value = Marks> {
    any::<(bool, bool)>().prop_map(|(accessed, dirty)| Marks { accessed, dirty })
}

fn reach() -> impl Strategy<Value = Reach> {
    prop::sample::select([Reach::Page, Reach::Group].as_slice())
}

/// The mapping of a group, and its reach; none if there is none.
fn content() -> impl Strategy<Value = Option<(u64, bool, Reach)>> {
    prop::option::weighted(0.9, (1u64..1000, any::<bool>(), reach()))
}

fn check<F: Format>(
    format: &F,
    old: Option<(u64, bool, Reach)>,
    new: Option<(u64, bool, Reach)>,
    kept: u128,
    events: &[(usize, usize, Marks)],
) -> Result<(), TestCaseError> {
    let encode = |i: usize, content: Option<(u64, bool, Reach)>, marks| {
        content.map_or(0, |(group, write, reach)| format.encode(i, mapping(group, write, marks), reach))
    };
    let entries = (0..format.entries()).map(|i| encode(i, old, Marks::default())).collect();
    let mut hardware = Hardware::new(format, entries, events);
    // A part of the group can only be left out if no entry covers the whole group.
    let leaves_out = |i: usize| matches!(new, Some((.., Reach::Page))) && kept >> i & 1 == 0;
    let found =
        change(format, &mut hardware, |i, marks| if leaves_out(i) { 0 } else { encode(i, new, marks) });

    prop_assert!(!hardware.mixed);
    let right = [old, new].map(|content| content.map(|(group, ..)| group * 128));
    prop_assert!(hardware.seen.iter().all(|(seen, _)| right.contains(&Some(seen.first_page))));
    for (i, &entry) in hardware.entries.iter().enumerate() {
        let page = format.decode(i, entry).unwrap().map(|(page, _)| page);
        let expected = new.filter(|_| !leaves_out(i)).map(|(group, write, _)| mapping(group, write, found));
        // Hardware goes on setting marks in the new entries.
        prop_assert_eq!(page.map(unmarked), expected.map(unmarked));
        prop_assert!(
            page.is_none_or(|page| page.marks.or(found) == page.marks),
            "marks were lost on the way"
        );
    }
    // The returned marks include all that were set before the group was taken.
    let until_gone = events.iter().all(|(step, ..)| *step < format.entries());
    prop_assert!(!until_gone || found == hardware.set);
    Ok(())
}

proptest! {
    #[test]
    fn no_walker_meets_a_mixture_and_no_mark_is_lost(
        old in content(), new in content(), kept: u128,
        before in prop::collection::vec((0usize..16, any::<usize>(), marks()), 0..8),
        any_time in prop::collection::vec((0usize..260, any::<usize>(), marks()), 0..8),
    ) {
        for events in [before, any_time] {
            check(&Svnapot, old, new, kept, &events)?;
            check(&Plain(16), old, new, kept, &events)?;
            for page in HardwarePage::ALL {
                check(&Contiguous(page), old, new, kept, &events)?;
            }
        }
    }
}

/// Checks the walker: it must detect every wrong order.
#[test]
fn every_wrong_order_is_detected() {
    let group = |number| -> Vec<u64> {
        Svnapot.encode_group(mapping(number, true, Marks::default()), Reach::Group).collect()
    };
    let (old, new) = (group(1), group(2));
    let run = |steps: &dyn Fn(&mut Hardware<Svnapot>)| {
        let mut hardware = Hardware::new(&Svnapot, old.clone(), &[]);
        steps(&mut hardware);
        assert_eq!(hardware.entries, new);
        hardware.mixed
    };
    let take = |hardware: &mut Hardware<Svnapot>, entries: std::ops::Range<usize>| {
        entries.for_each(|i| {
            hardware.take(i);
        });
    };
    let put = |hardware: &mut Hardware<Svnapot>| (0..16).for_each(|i| hardware.put(i, new[i]));

    assert!(run(&|hardware| put(hardware)), "replaced in place");
    assert!(
        run(&|hardware| {
            take(hardware, 0..16);
            put(hardware);
            hardware.invalidate();
        }),
        "invalidated last"
    );
    assert!(
        run(&|hardware| {
            hardware.invalidate();
            take(hardware, 0..16);
            put(hardware);
        }),
        "invalidated first"
    );
    assert!(
        run(&|hardware| {
            take(hardware, 0..15);
            hardware.invalidate();
            put(hardware);
        }),
        "one entry left"
    );
    assert!(
        !run(&|hardware| {
            take(hardware, 0..16);
            hardware.invalidate();
            put(hardware);
        }),
        "the right order"
    );
}

#[test]
fn a_mark_set_while_entries_are_taken_is_found() {
    let dirty = Marks { accessed: true, dirty: true };
    // Set in the last entry after fifteen were taken.
    let events = [(15, 15, dirty)];
    let entries = Svnapot.encode_group(mapping(1, true, Marks::default()), Reach::Group).collect();
    let mut hardware = Hardware::new(&Svnapot, entries, &events);
    assert_eq!(change(&Svnapot, &mut hardware, |_, _| 0), dirty);
    assert_eq!((hardware.entries, hardware.cached.len()), (vec![0; 16], 0));
}
