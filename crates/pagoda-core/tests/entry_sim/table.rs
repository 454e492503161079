//! The spans of the simulated engine: as `table.rs` of the engine, with OS pages for addresses.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::kernel::{GRANULES, HUGE, HUGE_ENTRIES, PAGES, Range, overlap};
use pagoda_core::page_entry::{Granules, Word};

pub type Entries = Rc<Vec<Cell<Word>>>;

/// The granules of a whole base page.
pub const WHOLE: Granules = Granules::range(0, GRANULES as u32);

#[derive(Clone)]
pub struct Span {
    pub range: Range,
    pub origin: isize,
    pub entries: Entries,
    /// Empty ranges are filled in huge frames where one fits.
    pub is_huge: bool,
}

/// One entry seen from one span.
#[derive(Clone)]
pub struct Page {
    pub entries: Entries,
    pub index: usize,
    pub base: isize,
    pub granules: Granules,
}

impl std::fmt::Debug for Page {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "entry {} at {} ({:?})", self.index, self.base, self.entry().get())
    }
}

impl Page {
    pub fn entry(&self) -> &Cell<Word> {
        &self.entries[self.index]
    }
    pub fn addresses(&self, from: u32, to: u32) -> Range {
        (self.base + from as isize) as usize..(self.base + to as isize) as usize
    }
    pub fn granule_of(&self, address: usize) -> u32 {
        (address as isize - self.base) as u32
    }
}

impl Span {
    /// The entries that `within` touches, each with its granules in it.
    pub fn pages(&self, within: &Range) -> Vec<Page> {
        let range = self.range.start.max(within.start)..self.range.end.min(within.end);
        if range.is_empty() {
            return Vec::new();
        }
        let index = |address: usize| (address as isize - self.origin) as usize / GRANULES;
        (index(range.start)..=index(range.end - 1))
            .map(|index| {
                let base = self.origin + (index * GRANULES) as isize;
                let granule = |address: usize| (address as isize - base).clamp(0, GRANULES as isize) as u32;
                let granules = Granules::range(granule(range.start), granule(range.end));
                Page { entries: Rc::clone(&self.entries), index, base, granules }
            })
            .collect()
    }
}

pub fn try_take(entry: &Cell<Word>) -> Option<Word> {
    let word = entry.get();
    (!word.is_busy()).then(|| {
        entry.set(word.busy());
        word
    })
}

pub fn give(entry: &Cell<Word>, word: Word) {
    assert!(entry.get().is_busy(), "only a taken entry is given back");
    entry.set(word.idle());
}

fn untouched() -> Entries {
    Rc::new((0..PAGES).map(|_| Cell::new(Word::EMPTY)).collect())
}

/// The place of a huge frame, with its entries.
pub struct Block {
    pub range: Range,
    pub pages: Vec<Page>,
    pub is_of_huge_span: bool,
}

impl Block {
    /// Takes the busy bits of all its entries, if each is as it is wanted; of none otherwise.
    pub fn take(&self, wanted: impl Fn(Word) -> bool) -> Option<Vec<Word>> {
        let mut taken = Vec::new();
        for page in &self.pages {
            match try_take(page.entry()) {
                Some(word) if wanted(word) => taken.push(word),
                other => {
                    if let Some(word) = other {
                        give(page.entry(), word);
                    }
                    self.give(&taken);
                    return None;
                }
            }
        }
        Some(taken)
    }
    /// Gives its first entries back.
    pub fn give(&self, words: &[Word]) {
        for (page, &word) in self.pages.iter().zip(words) {
            give(page.entry(), word);
        }
    }
}

#[derive(Default)]
pub struct Table {
    spans: BTreeMap<usize, Span>,
}

impl Table {
    pub fn spans(&self) -> impl Iterator<Item = &Span> {
        self.spans.values()
    }
    pub fn find(&self, address: usize) -> Option<&Span> {
        let (_, span) = self.spans.range(..=address).next_back()?;
        span.range.contains(&address).then_some(span)
    }
    pub fn page_at(&self, address: usize) -> Option<Page> {
        let span = self.find(address)?;
        let index = (address as isize - span.origin) as usize / GRANULES;
        span.pages(&span.range).into_iter().find(|page| page.index == index)
    }
    pub fn is_free(&self, range: &Range) -> bool {
        !self.spans().any(|span| overlap(&span.range, range))
    }
    /// The granules of an entry that may have an owner: all of them if a part of the array is in
    /// another span.
    pub fn granules_of_entry(&self, page: &Page, queued: bool) -> Granules {
        let sharers = self.spans().filter(|span| Rc::ptr_eq(&span.entries, &page.entries)).count();
        if sharers > 1 || queued {
            return WHOLE;
        }
        let address = page.addresses(page.granules.bits().trailing_zeros(), GRANULES as u32).start;
        self.page_at(address).map_or(WHOLE, |page| page.granules)
    }
    pub fn gaps(&self, range: Range) -> Vec<Range> {
        let mut gaps: Vec<Range> = Vec::new();
        for address in range.filter(|&address| self.find(address).is_none()) {
            match gaps.last_mut() {
                Some(gap) if gap.end == address => gap.end += 1,
                _ => gaps.push(address..address + 1),
            }
        }
        gaps
    }
    pub fn insert(&mut self, range: Range, queued: impl Fn(&Entries) -> bool) {
        let before = self.spans.range(..range.start).next_back();
        let meets = |span: &Span| !span.is_huge && span.range.end == range.start;
        if let Some((&key, before)) = before.filter(|(_, before)| meets(before)) {
            let alone = self.spans().filter(|span| Rc::ptr_eq(&span.entries, &before.entries)).count() == 1;
            if alone && !queued(&before.entries) {
                self.spans.get_mut(&key).expect("just found").range.end = range.end;
                return;
            }
        }
        let origin = (range.start - range.start % GRANULES) as isize;
        // The array is long enough for any growth or move.
        self.spans.insert(range.start, Span { range, origin, entries: untouched(), is_huge: false });
    }
    /// A region of a library, in huge frames.
    pub fn insert_region(&mut self, range: Range) {
        let span = Span { range, origin: 0, entries: untouched(), is_huge: true };
        self.spans.insert(span.range.start, Span { origin: span.range.start as isize, ..span });
    }
    /// The base pages of the huge frame around `address`, if all of it is in one span.
    pub fn block_at(&self, address: usize) -> Option<Block> {
        let start = address - address % HUGE;
        let span =
            self.find(address).filter(|span| span.range.start <= start && start + HUGE <= span.range.end)?;
        let pages = span.pages(&(start..start + HUGE));
        let is_aligned = pages.len() == HUGE_ENTRIES;
        is_aligned.then(|| Block { range: start..start + HUGE, pages, is_of_huge_span: span.is_huge })
    }
    pub fn cut(&mut self, range: &Range) -> Vec<Span> {
        let mut cut = Vec::new();
        while let Some(key) =
            self.spans.iter().find(|(_, span)| overlap(&span.range, range)).map(|(&key, _)| key)
        {
            let span = self.spans.remove(&key).expect("just found");
            let within = span.range.start.max(range.start)..span.range.end.min(range.end);
            for kept in [span.range.start..within.start, within.end..span.range.end] {
                if !kept.is_empty() {
                    self.spans.insert(kept.start, Span { range: kept, ..span.clone() });
                }
            }
            cut.push(Span { range: within, ..span });
        }
        cut
    }
    pub fn put_moved(&mut self, span: Span, from: usize, to: usize) {
        let start = span.range.start - from + to;
        let range = start..start + span.range.len();
        let origin = span.origin + to as isize - from as isize;
        self.spans.insert(start, Span { range, origin, ..span });
    }
}
