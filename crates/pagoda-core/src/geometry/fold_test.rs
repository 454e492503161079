//! Hardware that walks, caches and writes at any moment of a protocol, and a search over all
//! orders.
//!
//! The search is exhaustive for groups of few entries: between any two steps of the protocol it
//! takes every sequence of walks and writes, of any length. Cached translations stay until they are
//! invalidated. Hardware that drops one earlier can do nothing more: it could have read the new one
//! beside the old one.

use std::collections::{BTreeSet, HashMap, HashSet};

use proptest::prelude::*;

use super::*;
use crate::geometry::HardwarePage;
use crate::geometry::aarch64::Contiguous;
use crate::geometry::riscv::Svnapot;
use crate::geometry::x86::Plain;

/// A real format whose groups are shorter, so that a search ends.
#[derive(Clone, Copy)]
struct Short<F>(F, usize);

impl<F: Format> Format for Short<F> {
    fn entries(&self) -> usize {
        self.1
    }
    fn encode(&self, i: usize, mapping: Mapping, reach: Reach) -> u64 {
        self.0.encode(i, mapping, reach)
    }
    fn decode(&self, i: usize, entry: u64) -> Result<Option<(Mapping, Reach)>, Malformed> {
        self.0.decode(i, entry)
    }
    fn reach(&self, entry: u64) -> Reach {
        self.0.reach(entry)
    }
    fn marks(&self, entry: u64) -> Marks {
        self.0.marks(entry)
    }
}

/// A translation in a TLB: whether it is one of the group or of which page, its entry without
/// marks, and whether it permits writes without another walk.
type Cached = (Option<usize>, u64, bool);

/// One thing that hardware does, with a page.
#[derive(Clone, Copy, Debug)]
enum Action {
    /// Walks, sets the accessed mark, and caches the translation.
    Read(usize),
    /// Walks, sets both marks, caches the translation, and writes.
    Write(usize),
    /// Writes by a cached translation that permits it, without a walk.
    WriteCached(usize),
}

/// A group in memory, what a TLB holds of it, and what was done to the frames.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Hardware {
    entries: Vec<u64>,
    cached: BTreeSet<Cached>,
    /// Page and frame: read or written, and written.
    used: BTreeSet<(usize, u64)>,
    written: BTreeSet<(usize, u64)>,
}

impl Hardware {
    fn new(entries: Vec<u64>) -> Self {
        Self { entries, cached: BTreeSet::new(), used: BTreeSet::new(), written: BTreeSet::new() }
    }

    /// Hardware sets marks by a compare and swap: only in the valid entry that it walked.
    fn act(&mut self, format: &impl Format, action: Action) {
        match action {
            Action::Read(page) => self.walk(format, page, false),
            Action::Write(page) => self.walk(format, page, true),
            Action::WriteCached(page) => {
                let covers = |cached: &&Cached| cached.0.is_none_or(|of| of == page) && cached.2;
                for &(_, word, _) in self.cached.iter().filter(covers) {
                    let (mapping, _) = format.decode(0, word).unwrap().unwrap();
                    self.written.insert((page, mapping.first_page));
                }
            }
        }
    }

    fn walk(&mut self, format: &impl Format, page: usize, write: bool) {
        let found = format.decode(page, self.entries[page]).expect("entries of our own");
        let Some((mapping, reach)) = found.filter(|(mapping, _)| mapping.write || !write) else { return };
        let marks = mapping.marks.or(Marks { accessed: true, dirty: write });
        self.entries[page] = format.encode(page, Mapping { marks, ..mapping }, reach);
        let word = format.encode(0, Mapping { marks: Marks::default(), ..mapping }, reach);
        let of = if reach == Reach::Group { None } else { Some(page) };
        self.cached.insert((of, word, mapping.write && marks.dirty));
        self.used.insert((page, mapping.first_page));
        if write {
            self.written.insert((page, mapping.first_page));
        }
    }

    /// No page has two translations, not even its own and the group's to the same frame.
    fn check(&self) -> Result<(), String> {
        for page in 0..self.entries.len() {
            let words = self.cached.iter().filter(|(of, ..)| of.is_none_or(|of| of == page));
            let words: BTreeSet<u64> = words.map(|&(_, word, _)| word).collect();
            if words.len() > 1 {
                return Err(format!("page {page} has two translations: {words:x?}"));
            }
        }
        Ok(())
    }

    /// Each access is in the marks of its page, or in `returned` if the page has another frame.
    fn check_marks(&self, format: &impl Format, returned: Marks) -> Result<(), String> {
        let of_group = self.entries.iter().fold(Marks::default(), |all, &e| all.or(format.marks(e)));
        let told = |page: usize, frame: u64| match format.decode(page, self.entries[page]) {
            Ok(Some((mapping, Reach::Group))) if mapping.first_page == frame => of_group,
            Ok(Some((mapping, Reach::Page))) if mapping.first_page == frame => mapping.marks,
            _ => returned,
        };
        if let Some(lost) = self.used.iter().find(|(page, frame)| !told(*page, *frame).accessed) {
            return Err(format!("an access was lost: {lost:?}"));
        }
        if let Some(lost) = self.written.iter().find(|(page, frame)| !told(*page, *frame).dirty) {
            return Err(format!("a write was lost: {lost:?}"));
        }
        Ok(())
    }
}

/// A step of a protocol.
#[derive(Clone, Copy)]
enum Step {
    Get(usize),
    Take(usize),
    Invalidate,
    Put(usize, u64),
}

fn apply(hardware: &mut Hardware, step: Step) -> u64 {
    match step {
        Step::Get(i) => hardware.entries[i],
        Step::Take(i) => std::mem::take(&mut hardware.entries[i]),
        Step::Invalidate => {
            hardware.cached.clear();
            0
        }
        Step::Put(i, entry) => std::mem::replace(&mut hardware.entries[i], entry),
    }
}

/// A group that answers as it did before, and records the first step after that.
struct Replay<'a> {
    answers: &'a [u64],
    at: std::cell::Cell<usize>,
    next: std::cell::Cell<Option<Step>>,
}

impl Replay<'_> {
    fn step(&self, step: Step) -> u64 {
        let at = self.at.replace(self.at.get() + 1);
        if at == self.answers.len() {
            self.next.set(Some(step));
        }
        self.answers.get(at).copied().unwrap_or(0)
    }
}

impl Group for Replay<'_> {
    fn get(&self, i: usize) -> u64 {
        self.step(Step::Get(i))
    }
    fn take(&mut self, i: usize) -> u64 {
        self.step(Step::Take(i))
    }
    fn invalidate(&mut self) {
        self.step(Step::Invalidate);
    }
    fn put(&mut self, i: usize, entry: u64) {
        self.step(Step::Put(i, entry));
    }
}

/// Every state that hardware can make of these by itself. Fails if one of them is forbidden.
fn closure(format: &impl Format, states: HashSet<Hardware>) -> Result<HashSet<Hardware>, String> {
    let mut left: Vec<_> = states.iter().cloned().collect();
    let mut all = states;
    while let Some(state) = left.pop() {
        state.check()?;
        for page in 0..format.entries() {
            for action in [Action::Read(page), Action::Write(page), Action::WriteCached(page)] {
                let mut next = state.clone();
                next.act(format, action);
                if all.insert(next.clone()) {
                    left.push(next);
                }
            }
        }
    }
    Ok(all)
}

/// Runs `protocol` in every interleaving with hardware. `done` checks how a group ends. Returns the
/// number of states, summed over the steps.
fn explore<F: Format>(
    format: &F,
    start: Vec<u64>,
    protocol: impl Fn(&F, &mut Replay) -> Marks,
    done: impl Fn(&[u64]) -> bool,
) -> Result<usize, String> {
    let first = closure(format, HashSet::from([Hardware::new(start)]))?;
    let mut frontier = HashMap::from([(Vec::new(), first)]);
    let mut count = 0;
    while !frontier.is_empty() {
        let mut after: HashMap<Vec<u64>, HashSet<Hardware>> = HashMap::new();
        for (answers, states) in frontier {
            count += states.len();
            let mut replay =
                Replay { answers: &answers, at: std::cell::Cell::new(0), next: std::cell::Cell::new(None) };
            let returned = protocol(format, &mut replay);
            let Some(step) = replay.next.get() else {
                for state in states {
                    state.check_marks(format, returned)?;
                    if !done(&state.entries) {
                        return Err(format!("the group ends as {:x?}", state.entries));
                    }
                }
                continue;
            };
            for mut state in states {
                let answer = apply(&mut state, step);
                after.entry([answers.as_slice(), &[answer]].concat()).or_default().insert(state);
            }
        }
        frontier = after
            .into_iter()
            .map(|(answers, states)| Ok((answers, closure(format, states)?)))
            .collect::<Result<_, String>>()?;
    }
    Ok(count)
}

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

/// Checks the search: it must find what is wrong with each order that leaves something out.
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

/// Hardware between the steps of a protocol, by a list of what it does.
struct Busy<'a, F> {
    format: &'a F,
    hardware: Hardware,
    actions: std::slice::Iter<'a, (u8, Action)>,
    wait: u8,
    found: Result<(), String>,
}

impl<F: Format> Busy<'_, F> {
    /// Does what is due before this step. At the end of the protocol all that is left is due.
    fn catch_up(&mut self, last: bool) {
        while last || self.wait == 0 {
            let Some(&(wait, action)) = self.actions.next() else { return };
            let page = |page: usize| page % self.format.entries();
            let action = match action {
                Action::Read(of) => Action::Read(page(of)),
                Action::Write(of) => Action::Write(page(of)),
                Action::WriteCached(of) => Action::WriteCached(page(of)),
            };
            self.hardware.act(self.format, action);
            if self.found.is_ok() {
                self.found = self.hardware.check();
            }
            self.wait = wait;
        }
        self.wait -= 1;
    }
}

impl<F: Format> Group for Busy<'_, F> {
    fn get(&self, i: usize) -> u64 {
        self.hardware.entries[i]
    }
    fn take(&mut self, i: usize) -> u64 {
        self.catch_up(false);
        apply(&mut self.hardware, Step::Take(i))
    }
    fn invalidate(&mut self) {
        self.catch_up(false);
        apply(&mut self.hardware, Step::Invalidate);
    }
    fn put(&mut self, i: usize, entry: u64) {
        self.catch_up(false);
        apply(&mut self.hardware, Step::Put(i, entry));
    }
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
    let start = Hardware::new(entries(format, Reach::Page));
    let (found, actions) = (Ok(()), actions.iter());
    let mut busy = Busy { format, hardware: start, actions, wait: 0, found };
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
        let hardware = Hardware::new(entries.clone());
        let mut busy = Busy { format: &Svnapot, hardware, actions: [].iter(), wait: 0, found: Ok(()) };
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

    let plain = Hardware::new(entries(&Plain(16), Reach::Page));
    let mut busy = Busy { format: &Plain(16), hardware: plain, actions: [].iter(), wait: 0, found: Ok(()) };
    assert_eq!(fold(&Plain(16), &mut busy), Err(Unfit::NoMark));
}
