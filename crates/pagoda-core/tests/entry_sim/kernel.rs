//! A small model of the kernel: OS pages with content, slots of an arena, and one userfaultfd
//! descriptor.
//!
//! Each method is one atomic step of the real kernel, under one hold of its locks. The kernel
//! leaves some orders open (when an event is posted after its mappings changed, when the pages of a
//! discard go after its event was read). They are left open here too: the program's steps in
//! `program.rs` have a step between. This module must never know an entry.

mod huge;
mod moves;

use std::collections::VecDeque;

pub use moves::Course;

/// Granules of a base page in the simulation: few, so that edges are everywhere.
pub const GRANULES: usize = 4;
/// OS pages of the address space that programs share.
pub const PROGRAM_PAGES: usize = 48;
/// Base pages of a huge frame in the simulation.
pub const HUGE_ENTRIES: usize = 2;
/// OS pages of a huge frame.
pub const HUGE: usize = HUGE_ENTRIES * GRANULES;
/// Where a tenant has its region in huge frames: apart from the programs' pages.
pub const REGION: Range = 56..56 + 2 * HUGE;
/// OS pages of the address space.
pub const PAGES: usize = REGION.end;

/// A range of OS pages, by number.
pub type Range = std::ops::Range<usize>;

pub fn overlap(a: &Range, b: &Range) -> bool {
    a.start < b.end && b.start < a.end
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    Fault { address: usize },
    Remove(Range),
    Unmap(Range),
    Remap { from: Range, to: usize },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    Again,
    Busy,
    Exists,
    Missing,
    Refused,
}

/// How much of a range is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coverage {
    /// All of it, as one mapping, and nothing is changing.
    Whole,
    /// A mapping is being changed.
    Changing,
    /// Some of it is not, or not mapped, or another mapping.
    Parts,
}

/// How far a move came, in OS pages.
pub struct Progress {
    pub done: usize,
    pub stop: Option<Stop>,
}

#[derive(Clone, Default)]
pub struct Page {
    pub mapped: bool,
    pub registered: bool,
    pub read_only: bool,
    pub pinned: bool,
    /// A discard of it is announced, and not carried out yet.
    pub leaving: bool,
    /// A discard has left it missing.
    pub discarded: bool,
    /// None: missing. Zero is content.
    pub content: Option<u64>,
}

impl Page {
    fn bring(&mut self, content: u64) {
        self.content = Some(content);
        self.discarded = false;
    }
}

#[derive(Default)]
pub struct Kernel {
    pub pages: Vec<Page>,
    /// The base slots, and behind them those of the huge arena, as so many base slots each.
    pub slots: Vec<[Option<u64>; GRANULES]>,
    /// The number of the first slot of the huge arena.
    first_huge: usize,
    /// Which places of huge pages are one huge page, and for which the kernel has a table of OS
    /// pages.
    huge: [bool; PAGES / HUGE],
    tables: [bool; PAGES / HUGE],
    /// Which huge slots hold one huge page.
    huge_slots: Vec<bool>,
    /// The descriptor's count of changes that were begun and whose event is unread.
    pub changing: u32,
    /// With a descriptor of its own, the arena's count never rises: no move into it is refused.
    pub arena_has_own_descriptor: bool,
    /// Threads in the middle of giving a range up: its mapping is gone, its last event is not read
    /// yet.
    pub leaving: Vec<(usize, Range)>,
    events: VecDeque<(usize, Message)>,
    faults: VecDeque<usize>,
    read: Vec<bool>,
    /// Threads that wait for a page: the thread, and the page.
    waiters: Vec<(usize, usize)>,
}

impl Kernel {
    pub fn new(slots: usize, huge_slots: usize, arena_has_own_descriptor: bool) -> Self {
        Self {
            pages: vec![Page::default(); PAGES],
            slots: vec![[None; GRANULES]; slots + huge_slots * HUGE_ENTRIES],
            first_huge: slots,
            huge_slots: vec![false; huge_slots],
            arena_has_own_descriptor,
            ..Self::default()
        }
    }
    pub fn map(&mut self, range: Range) {
        for page in &mut self.pages[range] {
            *page = Page { mapped: true, ..Page::default() };
        }
    }
    pub fn is_free(&self, range: Range) -> bool {
        self.pages[range].iter().all(|page| !page.mapped)
    }
    /// Begins a change of mappings; an event must follow.
    pub fn begin_change(&mut self) {
        self.changing += 1;
    }
    pub fn end_change(&mut self) {
        self.changing -= 1;
    }
    /// Posts an event and returns its number, for [`is_read`](Self::is_read).
    pub fn post(&mut self, message: Message) -> usize {
        self.read.push(false);
        let number = self.read.len() - 1;
        self.events.push_back((number, message));
        number
    }
    pub fn is_read(&self, number: usize) -> bool {
        self.read[number]
    }
    pub fn is_readable(&self) -> bool {
        !self.events.is_empty() || !self.faults.is_empty()
    }
    /// Reads up to `most` messages: faults come first.
    pub fn read(&mut self, most: usize) -> Vec<Message> {
        let mut batch = Vec::new();
        while batch.len() < most {
            if let Some(address) = self.faults.pop_front() {
                batch.push(Message::Fault { address });
            } else if let Some((number, message)) = self.events.pop_front() {
                self.read[number] = true;
                batch.push(message);
            } else {
                break;
            }
        }
        batch
    }
    /// An access of `thread`: true if the page is there now. If not, the thread waits for it.
    pub fn touch(&mut self, thread: usize, address: usize) -> bool {
        let page = &mut self.pages[address];
        assert!(page.mapped, "the program touches its own memory only");
        if page.content.is_none() && page.registered {
            self.waiters.push((thread, address));
            self.faults.push_back(address);
            return false;
        }
        if page.content.is_none() {
            page.bring(0);
            self.tables[address / HUGE] = true;
        }
        true
    }
    pub fn is_waiting(&self, thread: usize) -> bool {
        self.waiters.iter().any(|&(who, _)| who == thread)
    }
    pub fn wake(&mut self, range: Range) {
        self.waiters.retain(|(_, page)| !range.contains(page));
    }
    pub fn announce_discard(&mut self, range: Range) {
        for page in &mut self.pages[range] {
            page.leaving = true;
        }
    }
    pub fn drop_content(&mut self, range: Range) {
        self.cut_huge(&range);
        for page in &mut self.pages[range] {
            page.content = None;
            page.discarded = true;
            page.leaving = false;
        }
    }
    pub fn unmap(&mut self, range: Range) {
        self.forget_huge(&range);
        for page in &mut self.pages[range] {
            *page = Page::default();
        }
    }
    /// The mappings of the programs, as the maps show them: neighbours that are alike are one.
    pub fn mappings(&self) -> Vec<Range> {
        let kind = |page: &Page| (page.mapped, page.registered, page.read_only);
        let mut at = 0;
        let runs = self.pages[..PROGRAM_PAGES].chunk_by(|a, b| kind(a) == kind(b));
        let ranges = runs.map(|run| {
            at += run.len();
            (at - run.len()..at, run[0].mapped)
        });
        ranges.filter(|(_, is_mapped)| *is_mapped).map(|(range, _)| range).collect()
    }
    /// Registers the mapped part of a range, and passes over holes. False if nothing is mapped.
    pub fn register(&mut self, range: Range) -> bool {
        let mut is_any = false;
        for page in self.pages[range].iter_mut().filter(|page| page.mapped) {
            page.registered = true;
            is_any = true;
        }
        is_any
    }
    /// How much of a range is registered. That it is one mapping the kernel looks at first.
    pub fn coverage(&self, range: &Range) -> Coverage {
        let pages = &self.pages[range.clone()];
        let is_of_it = |page: &Page| page.registered && page.read_only == pages[0].read_only;
        match () {
            () if !pages.iter().all(is_of_it) => Coverage::Parts,
            () if self.changing > 0 => Coverage::Changing,
            () => Coverage::Whole,
        }
    }
    fn refusal(&self, address: usize) -> Option<Stop> {
        let page = &self.pages[address];
        match () {
            () if !page.mapped || !page.registered => Some(Stop::Missing),
            () if page.content.is_some() => Some(Stop::Exists),
            () => None,
        }
    }
    /// Fills one page with a copy.
    pub fn copy(&mut self, to: usize, content: u64) -> Option<Stop> {
        if self.changing > 0 {
            return Some(Stop::Again);
        }
        let stop = self.refusal(to);
        if stop.is_none() {
            self.pages[to].bring(content);
            self.tables[to / HUGE] = true;
            self.wake(to..to + 1);
        }
        stop
    }
}
