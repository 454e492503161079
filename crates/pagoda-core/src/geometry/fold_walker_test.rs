//! Hardware that walks, caches and writes at any moment of a protocol, and a search over all
//! orders.
//!
//! The search is exhaustive for groups of few entries: between any two steps of the protocol it
//! takes every sequence of walks and writes, of any length. Cached translations stay until they are
//! invalidated. Hardware that drops one earlier can do nothing more: it could have read the new one
//! beside the old one.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::super::*;

/// A real format whose groups are shorter, so that a search ends.
#[derive(Clone, Copy)]
pub struct Short<F>(pub F, pub usize);

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
pub type Cached = (Option<usize>, u64, bool);

/// One thing that hardware does, with a page.
#[derive(Clone, Copy, Debug)]
pub enum Action {
    /// Walks, sets the accessed mark, and caches the translation.
    Read(usize),
    /// Walks, sets both marks, caches the translation, and writes.
    Write(usize),
    /// Writes by a cached translation that permits it, without a walk.
    WriteCached(usize),
}

/// A group in memory, the translations of it in a TLB, and the accesses to the frames.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Hardware {
    pub entries: Vec<u64>,
    cached: BTreeSet<Cached>,
    /// Page and frame: read or written, and written.
    used: BTreeSet<(usize, u64)>,
    written: BTreeSet<(usize, u64)>,
}

impl Hardware {
    pub fn new(entries: Vec<u64>) -> Self {
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
    pub fn check_marks(&self, format: &impl Format, returned: Marks) -> Result<(), String> {
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
pub struct Replay<'a> {
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
pub fn explore<F: Format>(
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

/// Hardware between the steps of a protocol, by a list of its actions.
pub struct Busy<'a, F> {
    format: &'a F,
    pub hardware: Hardware,
    actions: std::slice::Iter<'a, (u8, Action)>,
    wait: u8,
    /// The first state that was forbidden.
    pub found: Result<(), String>,
}

impl<'a, F: Format> Busy<'a, F> {
    /// A group of these entries. An action waits for so many steps after the one before.
    pub fn new(format: &'a F, entries: Vec<u64>, actions: &'a [(u8, Action)]) -> Self {
        let (hardware, actions) = (Hardware::new(entries), actions.iter());
        Self { format, hardware, actions, wait: 0, found: Ok(()) }
    }
}

impl<F: Format> Busy<'_, F> {
    /// Does the actions that are due before this step. At the end of the protocol the rest is due.
    pub fn catch_up(&mut self, last: bool) {
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
