//! Huge frames: 2 MiB that come with one fault and leave with one move.
//!
//! A region in huge frames gets one wherever a whole one fits: aligned, on an empty place, and with
//! room in the budget (`fault/huge.rs`). A region in base pages of 64 KiB gets some ahead of a
//! stream of writes (`fault/around.rs`), and every region where dense content arrives
//! (`migrate/huge.rs`). A huge frame leaves whole. It is stored, and swapped in, by base pages
//! (`reclaim/huge.rs`); once all of them are back they are collapsed (`reclaim/collapse.rs`). A
//! frame is made ready without the gate (`clear/huge.rs`). It moves with the gate shared, as pages
//! do, and whole or not at all: the kernel would split it, and parts that were moved out of huge
//! pages came back wrong in our tests. This module must never hand out a frame that holds anything.

use std::ops::{Deref, DerefMut, Range};

use pagoda_core::page::{HUGE_FRAME, OS_PAGE};
use pagoda_core::page_entry::{Backing, Granules, Word};
use pagoda_core::size::Bytes;
use pagoda_linux::mem::range::PageRange;

use crate::engine::Engine;
use crate::error::StopReason;
use crate::stats::counters::Counter;
use crate::table::{Span, Table, give, try_take};

pub(crate) use crate::state::clears::Clears;

/// The most entries of a huge frame: one for each OS page.
const ENTRIES_MOST: usize = HUGE_FRAME / OS_PAGE;

/// The slots of the huge arena for a zone: frames never hold more than its part of the budget. They
/// are addresses alone, and 12 bytes for each slot.
pub(crate) fn slots(zone: Bytes) -> u32 {
    u32::try_from(zone.as_usize() / HUGE_FRAME).unwrap_or(u32::MAX)
}

/// Something for each entry of a huge frame. It is as long as the frame has entries, and takes
/// the room of the most.
#[derive(Clone, Copy)]
pub(crate) struct OfEntries<T> {
    all: [T; ENTRIES_MOST],
    count: usize,
}

/// The words of a huge frame's entries.
pub(crate) type Words = OfEntries<Word>;

impl<T: Copy> OfEntries<T> {
    pub(crate) fn map(mut self, each: impl Fn(T) -> T) -> Self {
        self.iter_mut().for_each(|one| *one = each(*one));
        self
    }
}

impl<T> Deref for OfEntries<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.all[..self.count]
    }
}

impl<T> DerefMut for OfEntries<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.all[..self.count]
    }
}

/// A place for a huge frame, and its entries: 32 of 64 KiB, or more of less.
#[derive(Clone, Copy)]
pub(crate) struct Block {
    pub(crate) range: PageRange,
    pub(crate) first: usize,
    entry_bytes: usize,
}

impl Block {
    /// The one around `address`, if all of it is in the span.
    pub(crate) fn around(table: &Table, span: &Span, address: usize) -> Option<Self> {
        let range = PageRange::at(address & !(HUGE_FRAME - 1), HUGE_FRAME);
        if span.range().intersection(range) != Some(range) {
            return None;
        }
        let (page, entry_bytes) = (table.page_at(span, range.start()), table.entry_bytes());
        let is_aligned = page.granule_of(range.start()) == 0;
        is_aligned.then_some(Self { range, first: page.index, entry_bytes })
    }

    /// Bytes of one of its entries.
    pub(crate) fn entry_bytes(self) -> usize {
        self.entry_bytes
    }

    /// All of an entry.
    pub(crate) fn all(self) -> Granules {
        Granules::range(0, (self.entry_bytes / OS_PAGE) as u32)
    }

    pub(crate) fn indices(self) -> Range<usize> {
        self.first..self.first + HUGE_FRAME / self.entry_bytes
    }

    /// One of these for each entry.
    pub(crate) fn each<T: Copy>(self, one: T) -> OfEntries<T> {
        OfEntries { all: [one; ENTRIES_MOST], count: self.indices().len() }
    }

    /// The words as they are.
    pub(crate) fn words(self, span: &Span) -> Words {
        let mut words = self.each(Word::EMPTY);
        words.iter_mut().zip(self.indices()).for_each(|(word, index)| *word = span.word(index));
        words
    }

    /// The granules of entry `i` that lie within the first `bytes` of its frame.
    pub(crate) fn granules_within(self, bytes: usize, i: usize) -> Granules {
        let here = bytes.saturating_sub(i * self.entry_bytes).min(self.entry_bytes);
        Granules::range(0, (here / OS_PAGE) as u32)
    }

    /// Whether all of an entry is in the region, and nowhere else but for old copies.
    pub(crate) fn is_whole(self, word: Word) -> bool {
        word.resident() == self.all() && !matches!(word.backing(), Backing::Slot(_))
    }

    /// Takes the busy bits of all its entries, if each is as it is wanted; of none otherwise.
    pub(crate) fn take(self, span: &Span, wanted: impl Fn(Word) -> bool) -> Option<Words> {
        let mut taken = self.each(Word::EMPTY);
        for i in 0..taken.len() {
            match try_take(span.entry(self.first + i)) {
                Some(word) if wanted(word) => taken[i] = word,
                other => {
                    if let Some(word) = other {
                        give(span.entry(self.first + i), word);
                    }
                    self.give(span, &taken[..i]);
                    return None;
                }
            }
        }
        Some(taken)
    }

    /// Gives its first entries back.
    pub(crate) fn give(self, span: &Span, words: &[Word]) {
        for (index, word) in self.indices().zip(words) {
            give(span.entry(index), *word);
        }
    }
}

/// The entry of `address`, if it says that it is in a huge frame.
pub(crate) fn marked(table: &Table, address: usize) -> Option<Word> {
    let span = table.find(address)?;
    let page = table.page_at(span, address);
    Some(span.word(page.index)).filter(|word| word.is_huge())
}

impl Engine {
    /// Whether the base page at `address` lies in a huge page, which the kernel may have made of OS
    /// pages meanwhile: then it only leaves with all of that. Where the kernel has taken a huge
    /// frame apart its entries know it from now on, and leave one by one.
    pub(crate) fn leaves_huge(&self, table: &Table, span: &Span, address: usize) -> bool {
        let index = table.page_at(span, address).index;
        let is_marked = span.word(index).is_huge();
        // Nowhere else is the kernel allowed to make any.
        if !is_marked && !span.may_be_joined() {
            return false;
        }
        let block = Block::around(table, span, address);
        if block.is_some_and(|block| self.is_one_huge_page(block.range)) {
            return true;
        }
        if is_marked {
            self.forget_huge(table, span, address, block);
        }
        false
    }

    /// The frame around `address` is not one huge page any more, though entries say so. A part of
    /// it was discarded, unmapped, moved, locked or protected, or the kernel has swapped it out. No
    /// event tells that a huge page was split.
    fn forget_huge(&self, table: &Table, span: &Span, address: usize, block: Option<Block>) {
        let place = PageRange::at(address & !(HUGE_FRAME - 1), HUGE_FRAME);
        let within = span.range().intersection(place).expect("an address of the span");
        // Of a frame that was moved to an odd place, one more begins before it.
        let mut taken = [None; ENTRIES_MOST + 1];
        let indices = span.indices(within, table.entry_bytes());
        for (taken, index) in taken.iter_mut().zip(indices.clone()) {
            let is_huge = span.word(index).is_huge();
            // Busy entries are checked when their turn comes.
            *taken = if is_huge { try_take(span.entry(index)) } else { None };
        }
        // It may have been joined before its entries were taken.
        let is_huge = block.is_some_and(|block| self.is_one_huge_page(block.range));
        for (index, word) in indices.zip(taken) {
            if let Some(word) = word {
                give(span.entry(index), word.with_huge(word.is_huge() && is_huge));
            }
        }
        if block.is_some() && !is_huge {
            self.huge.note_broken(place.start());
        }
    }

    /// A frame came to its place as OS pages. Where OS pages were once, the kernel keeps their
    /// table until the mapping goes, and does not tell; or the frame was not one page. It may be
    /// collapsed once all of it was written.
    pub(crate) fn note_torn(&self, block: Block) {
        self.counters.add(Counter::HugeTorn, 1);
        self.huge.note_broken(block.range.start());
    }

    /// Enters the first `bytes` of a huge frame of `zone` as in the region; all entries of its
    /// block were `word`, with nothing there.
    pub(crate) fn huge_came_in(&self, block: Block, word: Word, bytes: usize, zone: usize) -> Words {
        self.ledger.resident(bytes as i64);
        self.zones.in_regions(zone, bytes as i64);
        let mut words = block.each(word);
        for (i, word) in words.iter_mut().enumerate() {
            *word = word.with_resident(block.granules_within(bytes, i)).with_zone(zone);
        }
        words
    }

    pub(crate) fn is_one_huge_page(&self, range: PageRange) -> bool {
        let mut scanner = self.huge_scan.lock().unwrap_or_else(|_| self.stop(StopReason::EngineBroken));
        let huge = scanner.as_mut().and_then(|scanner| scanner.huge_bytes(range.start(), range.end()).ok());
        huge == Some(HUGE_FRAME)
    }

    /// Whether `address` is in a huge frame.
    pub(crate) fn is_huge(&self, address: usize) -> bool {
        marked(&self.gate_shared(), address).is_some()
    }
}
