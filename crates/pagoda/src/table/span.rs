//! A span, its entries, and one entry seen from it.
//!
//! A thread that changes an entry takes its busy bit, and ends by writing a new word. This module
//! must never know of other spans.

use std::ops::{Index, Range};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use pagoda_core::page::OS_PAGE;
use pagoda_core::page_entry::{Granules, Word};
use pagoda_core::space::radix::Radix;
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::mem::words::try_zeroed_words;

use crate::file::PageFile;
use crate::table::filling::{Density, Filling};

/// The entries of a span, shared by the parts that it was cut into.
pub(crate) type Entries = Arc<EntryArray>;

/// The words of entries, and the properties that they share.
#[derive(Debug)]
pub(crate) struct EntryArray {
    words: Radix,
    /// The file of these pages, if they are a file's: a page without a backing is read from it. The
    /// region owns the file. A caller that comes across entries later must not keep it open.
    file: Weak<PageFile>,
    /// How much of an entry comes in together.
    filling: Filling,
}

impl EntryArray {
    /// None if there is no memory for them.
    pub(super) fn new(count: usize, file: Weak<PageFile>, filling: Filling) -> Option<Entries> {
        let words = Radix::new(try_zeroed_words(Radix::words_for(count)?)?, count);
        Some(Arc::new(Self { words, file, filling }))
    }
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.words.len()
    }
    /// The memory of the entries that were ever changed.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.words.used_bytes()
    }
    /// The memory that they are in.
    #[cfg(test)]
    pub(super) fn array(&self) -> &[AtomicU64] {
        self.words.array()
    }
    /// Entry `index` as it is now, for reading. A change goes by the index operator.
    pub(crate) fn word(&self, index: usize) -> Word {
        Word::from_bits(self.words.get(index))
    }
    /// The numbers in `range` of entries that were ever changed, and of some around them, lowest
    /// first. All others are empty.
    pub(crate) fn used(&self, range: Range<usize>) -> impl Iterator<Item = usize> + '_ {
        self.words.used(range)
    }
    pub(crate) fn density(&self) -> Option<&Density> {
        match &self.filling {
            Filling::ByDensity(density) => Some(density),
            Filling::Whole | Filling::Blocks(_) => None,
        }
    }
    pub(crate) fn filling(&self) -> &Filling {
        &self.filling
    }
    /// The file that these are pages of.
    pub(crate) fn file(&self) -> Option<Arc<PageFile>> {
        self.file.upgrade()
    }
}

impl Index<usize> for EntryArray {
    type Output = AtomicU64;
    /// The entry to be changed: it takes memory from now on.
    fn index(&self, index: usize) -> &AtomicU64 {
        self.words.word(index)
    }
}

/// The source of missing pages of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filler {
    /// The engine: each missing page is a fault of ours, so that pages may be out.
    Engine,
    /// The engine, with huge frames for sequential first touches.
    EngineOnwards,
    /// The engine, and in huge frames where one fits.
    EngineHuge,
    /// The engine, from a file.
    File,
}

/// A managed range.
#[derive(Debug)]
pub(crate) struct Span {
    pub(super) range: PageRange,
    /// The address of entry 0, perhaps below the range's start. Arithmetic wraps, because it may
    /// lie below address zero for a moved span.
    pub(super) origin: usize,
    pub(super) entries: Entries,
    pub(super) filler: Filler,
    /// Whether its mapping allows pages to be moved out, as far as the last look at the maps tells.
    pub(crate) movable: AtomicBool,
    /// Whether OS pages there may be collapsed to huge pages that the entries don't show, though
    /// the filler makes none.
    pub(super) joined: AtomicBool,
    /// The number of the move that brought it here, of those of the table; 0 without one.
    pub(super) moved: u64,
}

/// One entry seen from one span: where its granules are, and which of them belong to the span.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Page {
    /// The entry's number.
    pub(crate) index: usize,
    /// The address of granule 0, which may lie outside the span.
    base: usize,
    /// The granules within the span.
    pub(crate) granules: Granules,
}

impl Page {
    /// The addresses of granules `from..to`.
    pub(crate) fn addresses(&self, from: u32, to: u32) -> PageRange {
        let start = self.base.wrapping_add(from as usize * OS_PAGE);
        PageRange::at(start, (to - from) as usize * OS_PAGE)
    }
    /// The same without some granules.
    pub(crate) fn without(self, granules: Granules) -> Self {
        Self { granules: self.granules.without(granules), ..self }
    }
    /// The same at another address.
    pub(crate) fn shifted(&self, by: usize) -> Self {
        Self { base: self.base.wrapping_add(by), ..*self }
    }
    /// The granule of `address`.
    pub(crate) fn granule_of(&self, address: usize) -> u32 {
        (address.wrapping_sub(self.base) / OS_PAGE) as u32
    }
}

impl Span {
    pub(super) fn new(range: PageRange, origin: usize, entries: Entries, filler: Filler) -> Self {
        let (movable, joined) = (AtomicBool::new(true), AtomicBool::new(false));
        Self { range, origin, entries, filler, movable, joined, moved: 0 }
    }
    /// The same where only `range` of it is left.
    pub(super) fn part(&self, range: PageRange) -> Self {
        let [movable, joined] =
            [&self.movable, &self.joined].map(|flag| AtomicBool::new(flag.load(Ordering::Relaxed)));
        let Self { origin, filler, moved, .. } = *self;
        Self { range, origin, entries: Arc::clone(&self.entries), filler, movable, joined, moved }
    }
    pub(crate) fn range(&self) -> PageRange {
        self.range
    }
    pub(crate) fn entries(&self) -> &Entries {
        &self.entries
    }
    pub(crate) fn filler(&self) -> Filler {
        self.filler
    }
    /// Whether there may be huge pages that no entry shows: the kernel was allowed to collapse
    /// pages there.
    pub(crate) fn may_be_joined(&self) -> bool {
        self.filler == Filler::EngineHuge || self.joined.load(Ordering::Acquire)
    }
    /// From now on there may be such, or not any more. Returns whether there might before.
    pub(crate) fn set_may_be_joined(&self, may: bool) -> bool {
        self.joined.swap(may, Ordering::AcqRel)
    }
    /// An entry that is to be changed.
    pub(crate) fn entry(&self, index: usize) -> &AtomicU64 {
        &self.entries[index]
    }
    /// An entry as it is now.
    pub(crate) fn word(&self, index: usize) -> Word {
        self.entries.word(index)
    }
    /// How many bytes of its first entry lie below it.
    pub(crate) fn skipped_bytes(&self, entry_bytes: usize) -> usize {
        self.range.start().wrapping_sub(self.origin) % entry_bytes
    }
    pub(super) fn index_of(&self, address: usize, entry_bytes: usize) -> usize {
        address.wrapping_sub(self.origin) / entry_bytes
    }
    /// The addresses of these entries, which all lie in the span.
    pub(crate) fn of_entries(&self, entries: &Range<usize>, entry_bytes: usize) -> PageRange {
        let start = self.origin.wrapping_add(entries.start * entry_bytes);
        PageRange::at(start, entries.len() * entry_bytes)
    }
    /// The numbers of the entries that `range`, which lies in the span, touches.
    pub(crate) fn indices(&self, range: PageRange, entry_bytes: usize) -> Range<usize> {
        self.index_of(range.start(), entry_bytes)..self.index_of(range.end() - 1, entry_bytes) + 1
    }
    /// Those of them that may hold anything, lowest first.
    pub(crate) fn used(&self, range: PageRange, entry_bytes: usize) -> impl Iterator<Item = usize> + '_ {
        self.entries.used(self.indices(range, entry_bytes))
    }
    /// Entry `index`, with the granules that lie in both the span and `within`.
    pub(crate) fn page(&self, index: usize, within: PageRange, entry_bytes: usize) -> Page {
        let base = self.origin.wrapping_add(index * entry_bytes);
        // Offsets from the base page's start, which may lie below the range's.
        let granule = |address: usize| {
            let offset = address.wrapping_sub(base) as isize;
            (offset.clamp(0, entry_bytes as isize) as usize / OS_PAGE) as u32
        };
        let (from, to) = self
            .range
            .intersection(within)
            .map_or((0, 0), |range| (granule(range.start()), granule(range.end())));
        Page { index, base, granules: Granules::range(from, to) }
    }
}

/// Takes the busy bit of an entry. None if it is taken.
pub(crate) fn try_take(entry: &AtomicU64) -> Option<Word> {
    let word = Word::from_bits(entry.load(Ordering::Acquire));
    if word.is_busy() {
        return None;
    }
    entry
        .compare_exchange(word.bits(), word.busy().bits(), Ordering::AcqRel, Ordering::Relaxed)
        .ok()
        .map(|_| word)
}

/// Ends a change that [`try_take`] began, with a new state.
pub(crate) fn give(entry: &AtomicU64, word: Word) {
    debug_assert!(
        Word::from_bits(entry.load(Ordering::Relaxed)).is_busy(),
        "only a taken entry is given back"
    );
    entry.store(word.idle().bits(), Ordering::Release);
}
