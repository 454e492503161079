//! Folds and unfolds beside hardware that does all that it may: see the walker.

use proptest::prelude::*;

use super::*;
use crate::geometry::HardwarePage;
use crate::geometry::aarch64::Contiguous;
use crate::geometry::riscv::Svnapot;
use crate::geometry::x86::Plain;

#[path = "fold_walker_test.rs"]
mod walker;
use walker::{Action, Busy, Replay, Short, explore};

fn mapping(group: u64, write: bool) -> Mapping {
    Mapping { first_page: group * 128, write, execute: false, user: true, marks: Marks::default() }
}

fn entries(format: &impl Format, reach: Reach) -> Vec<u64> {
    format.encode_group(mapping(1, true), reach).collect()
}

/// Whether entries have these mappings and reaches, whatever their marks are.
fn are(format: &impl Format, entries: &[u64], expected: impl Fn(usize) -> Option<(Mapping, Reach)>) -> bool {
    entries.iter().enumerate().all(|(i, &entry)| {
        let unmarked = |(mapping, reach)| (Mapping { marks: Marks::default(), ..mapping }, reach);
        format.decode(i, entry).map(|found| found.map(unmarked)) == Ok(expected(i))
    })
}

/// Entries of the small groups: enough that a page is first, last and between.
const FEW: usize = 3;

fn search<F: Format>(format: &F) -> usize {
    let whole = |reach| move |found: &[u64]| are(format, found, |_| Some((mapping(1, true), reach)));
    let (single, folded) = (entries(format, Reach::Page), entries(format, Reach::Group));
    let mut states =
        explore(format, single.clone(), |f, g| fold(f, g).unwrap_or_default(), whole(Reach::Group)).unwrap();
    let unfolds = |f: &F, g: &mut Replay| unfold(f, g).ok().flatten().unwrap_or_default();
    states += explore(format, folded.clone(), unfolds, whole(Reach::Page)).unwrap();
    // One entry of a folded and of a single group: write-protected, unmapped, with another frame.
    for start in [single, folded] {
        for at in 0..FEW {
            for new in [Some(mapping(1, false)), None, Some(mapping(2, true))] {
                let next = |marks: Marks| {
                    let kept = |m: Mapping| if m.first_page == 128 { marks } else { Marks::default() };
                    new.map_or(0, |m| format.encode(at, Mapping { marks: kept(m), ..m }, Reach::Page))
                };
                let done = |found: &[u64]| {
                    are(format, found, |i| {
                        let here = if i == at { new } else { Some(mapping(1, true)) };
                        here.map(|m| (m, Reach::Page))
                    })
                };
                let protocol = |f: &F, g: &mut Replay| change_entry(f, g, at, next).unwrap_or_default();
                states += explore(format, start.clone(), protocol, done).unwrap();
            }
        }
    }
    states
}

#[test]
fn no_interleaving_shows_two_translations_or_loses_a_mark() {
    let states = search(&Short(Svnapot, FEW)) + search(&Short(Contiguous(HardwarePage::K4), FEW));
    // A search that sees little proves little.
    assert!(states > 100_000, "only {states} states");
}

/// Checks the search: it must find the fault of each order that leaves a step out.
#[test]
fn every_wrong_fold_is_found() {
    let format = Short(Svnapot, FEW);
    let put = |f: &Short<Svnapot>, g: &mut Replay, marks| {
        (0..FEW).for_each(|i| g.put(i, f.encode(i, Mapping { marks, ..mapping(1, true) }, Reach::Group)));
        marks
    };
    let take = |f: &Short<Svnapot>, g: &mut Replay| {
        (0..FEW).fold(Marks::default(), |marks, i| marks.or(f.marks(g.take(i))))
    };
    let read = |f: &Short<Svnapot>, g: &Replay| {
        (0..FEW).fold(Marks::default(), |marks, i| marks.or(f.marks(g.get(i))))
    };
    let run = |protocol: &dyn Fn(&Short<Svnapot>, &mut Replay) -> Marks| {
        explore(&format, entries(&format, Reach::Page), protocol, |_| true)
    };
    let two = |found: Result<usize, String>| found.unwrap_err().contains("two translations");
    let lost = |found: Result<usize, String>| found.unwrap_err().contains("was lost");
    assert!(two(run(&|f, g| {
        let marks = read(f, g);
        put(f, g, marks)
    })));
    assert!(two(run(&|f, g| {
        let marks = take(f, g);
        put(f, g, marks)
    })));
    assert!(two(run(&|f, g| {
        g.invalidate();
        let marks = take(f, g);
        put(f, g, marks)
    })));
    assert!(lost(run(&|f, g| {
        let marks = read(f, g);
        take(f, g);
        g.invalidate();
        put(f, g, marks)
    })));
    run(&|f, g| {
        let marks = take(f, g);
        g.invalidate();
        put(f, g, marks)
    })
    .unwrap();
}

#[test]
fn every_wrong_unfold_is_found() {
    let format = Short(Contiguous(HardwarePage::K4), FEW);
    type Small = Short<Contiguous>;
    let page = |f: &Small, i, write, marks| f.encode(i, Mapping { marks, ..mapping(1, write) }, Reach::Page);
    let run = |protocol: &dyn Fn(&Small, &mut Replay) -> Marks| {
        explore(&format, entries(&format, Reach::Group), protocol, |_| true)
    };
    // Each entry keeps its own marks: a write by the group's translation was marked elsewhere.
    let own = run(&|f, g| {
        let marks: Vec<_> = (0..FEW).map(|i| f.marks(g.take(i))).collect();
        g.invalidate();
        (0..FEW).for_each(|i| g.put(i, page(f, i, true, marks[i])));
        marks.into_iter().fold(Marks::default(), Marks::or)
    });
    assert!(own.unwrap_err().contains("was lost"));
    // One entry changes, and the others go on to translate its page.
    let alone = run(&|f, g| {
        let marks = f.marks(g.take(0));
        g.invalidate();
        g.put(0, page(f, 0, false, marks));
        marks
    });
    assert!(alone.unwrap_err().contains("two translations"));
}

fn actions() -> impl Strategy<Value = Vec<(u8, Action)>> {
    let action = (any::<usize>(), 0..3).prop_map(|(page, kind)| match kind {
        0 => Action::Read(page),
        1 => Action::Write(page),
        _ => Action::WriteCached(page),
    });
    prop::collection::vec((0u8..6, action), 0..60)
}

/// A group at its full length: folded, then one entry changed, then folded again if it can be.
fn fold_and_unfold<F: Format>(
    format: &F,
    at: usize,
    new: Option<Mapping>,
    actions: &[(u8, Action)],
) -> Result<(), TestCaseError> {
    let at = at % format.entries();
    let mut busy = Busy::new(format, entries(format, Reach::Page), actions);
    let mut all = fold(format, &mut busy).unwrap();
    prop_assert!(are(format, &busy.hardware.entries, |_| Some((mapping(1, true), Reach::Group))));
    prop_assert_eq!(fold(format, &mut busy), Err(Unfit::Folded));
    let next = |marks: Marks| {
        let marks = if new.is_some_and(|new| new.first_page == 128) { marks } else { Marks::default() };
        new.map_or(0, |new| format.encode(at, Mapping { marks, ..new }, Reach::Page))
    };
    all = all.or(change_entry(format, &mut busy, at, next).unwrap());
    prop_assert_eq!(unfold(format, &mut busy), Ok(None));
    let again = fold(format, &mut busy);
    busy.catch_up(true);
    prop_assert_eq!(&busy.found, &Ok(()));
    let fits = new == Some(mapping(1, true));
    prop_assert_eq!(again.is_ok(), fits, "{:?}", again);
    let reach = if fits { Reach::Group } else { Reach::Page };
    let ends = are(format, &busy.hardware.entries, |i| {
        let here = if i == at { new } else { Some(mapping(1, true)) };
        here.map(|here| (here, reach))
    });
    prop_assert!(ends);
    prop_assert_eq!(busy.hardware.check_marks(format, all), Ok(()));
    Ok(())
}

proptest! {
    #[test]
    fn groups_of_every_length_fold_and_unfold_beside_a_busy_walker(
        at: usize, new in prop::option::of((1u64..3, any::<bool>())), actions in actions(),
    ) {
        let new = new.map(|(group, write)| mapping(group, write));
        fold_and_unfold(&Svnapot, at, new, &actions)?;
        for page in HardwarePage::ALL {
            fold_and_unfold(&Contiguous(page), at, new, &actions)?;
        }
    }
}

#[test]
fn a_group_that_does_not_fit_is_left_as_it_is() {
    let refuses = |entries: Vec<u64>| {
        let mut busy = Busy::new(&Svnapot, entries.clone(), &[]);
        let why = fold(&Svnapot, &mut busy).unwrap_err();
        assert_eq!(busy.hardware.entries, entries, "{why}");
        why
    };
    let single = entries(&Svnapot, Reach::Page);
    let with = |i: usize, entry| {
        let mut entries = single.clone();
        entries[i] = entry;
        entries
    };
    assert_eq!(refuses(vec![0; 16]), Unfit::Empty);
    assert_eq!(refuses(entries(&Svnapot, Reach::Group)), Unfit::Folded);
    assert_eq!(refuses(with(9, 0)), Unfit::Malformed(Malformed::Mixed(9)));
    assert_eq!(refuses(with(9, single[8])), Unfit::Malformed(Malformed::Misplaced(9)));
    let protected = Svnapot.encode(9, mapping(1, false), Reach::Page);
    assert_eq!(refuses(with(9, protected)), Unfit::Malformed(Malformed::Mixed(9)));
    let elsewhere = Svnapot.encode(9, mapping(2, true), Reach::Page);
    assert_eq!(refuses(with(9, elsewhere)), Unfit::Malformed(Malformed::Mixed(9)));

    let mut busy = Busy::new(&Plain(16), entries(&Plain(16), Reach::Page), &[]);
    assert_eq!(fold(&Plain(16), &mut busy), Err(Unfit::NoMark));
}
