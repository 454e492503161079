//! The software page table: which ranges are managed, and the entry of each base page in them.
//!
//! A *span* is a managed range with the entries of its base pages. Entries are counted from the span's *origin*, not
//! from address zero: when the program moves a mapping (mremap), the span takes its entries along, whatever the new
//! address is modulo the base page. When a range is cut (munmap in the middle), both sides keep sharing one array of
//! entries; a base page that was cut in two keeps one entry, of which each side uses its own granules.
//!
//! The table is the content of the engine's gate. Looking things up and changing entries takes the gate shared;
//! changing which spans there are, and reading events, takes it exclusively. This module must never touch the memory
//! that it describes.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use pagoda_core::entry::{Granules, Word};
use pagoda_core::page::{BasePage, OS_PAGE};
use pagoda_linux::range::PageRange;
use pagoda_linux::words::zeroed_words;

use crate::file_region::PageFile;
use crate::fill::Density;
use crate::order::EventOrder;

/// The memory of one entry: the base page, or 64 KiB of a larger one (sixteen granules of an OS page each).
pub(crate) const fn entry_bytes(base: BasePage) -> usize {
    match base {
        BasePage::M2 => 64 << 10,
        other => other.bytes(),
    }
}

/// The most room to grow that a new span's array has: 1 MiB of words.
const GROWTH_ENTRIES_MOST: usize = 1 << 17;

/// The entries of a span, shared by the parts that it was cut into.
pub(crate) type Entries = Arc<EntryArray>;

/// The words of entries, and what is special about all of them.
#[derive(Debug)]
pub(crate) struct EntryArray {
    words: Arc<[AtomicU64]>,
    /// The file whose pages they are, if they are a file's: what has no backing is there then. Owned by the region: who comes across
    /// entries later must not keep the file open.
    file: Weak<PageFile>,
    /// How much first touches bring, if not whole base pages.
    density: Option<Arc<Density>>,
}

impl EntryArray {
    fn new(count: usize, file: Weak<PageFile>, density: Option<Arc<Density>>) -> Entries {
        Arc::new(Self { words: zeroed_words(count), file, density })
    }
    pub(crate) fn density(&self) -> Option<&Density> {
        self.density.as_deref()
    }
    /// The file that these are pages of.
    pub(crate) fn file(&self) -> Option<Arc<PageFile>> {
        self.file.upgrade()
    }
}

impl Deref for EntryArray {
    type Target = [AtomicU64];
    fn deref(&self) -> &[AtomicU64] {
        &self.words
    }
}

/// Who fills what is missing in a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filler {
    /// The engine: each missing page is a fault of ours, so that pages may be out.
    Engine,
    /// The engine, and in huge frames where one fits.
    EngineHuge,
    /// The engine, from a file.
    File,
}

/// A managed range.
#[derive(Debug)]
pub(crate) struct Span {
    range: PageRange,
    /// The address of entry 0, perhaps below the range's start; wrapping arithmetic, because a moved span's may
    /// lie below address zero.
    origin: usize,
    entries: Entries,
    filler: Filler,
    /// Whether its mapping allows pages to be moved out, as far as the last look at the maps tells.
    pub(crate) movable: AtomicBool,
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
    /// The granule of `address`.
    pub(crate) fn granule_of(&self, address: usize) -> u32 {
        (address.wrapping_sub(self.base) / OS_PAGE) as u32
    }
}

impl Span {
    pub(crate) fn range(&self) -> PageRange {
        self.range
    }
    pub(crate) fn entries(&self) -> &Entries {
        &self.entries
    }
    pub(crate) fn filler(&self) -> Filler {
        self.filler
    }
    pub(crate) fn entry(&self, index: usize) -> &AtomicU64 {
        &self.entries[index]
    }
    /// How many bytes of its first entry lie below it.
    pub(crate) fn skipped_bytes(&self, entry_bytes: usize) -> usize {
        self.range.start().wrapping_sub(self.origin) % entry_bytes
    }
    fn index_of(&self, address: usize, entry_bytes: usize) -> usize {
        address.wrapping_sub(self.origin) / entry_bytes
    }
    /// The numbers of the entries that `range`, which lies in the span, touches.
    pub(crate) fn indices(&self, range: PageRange, entry_bytes: usize) -> std::ops::Range<usize> {
        self.index_of(range.start(), entry_bytes)..self.index_of(range.end() - 1, entry_bytes) + 1
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

/// Takes the busy bit of an entry. None if someone else has it.
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

/// Ends what [`try_take`] began, with a new state.
pub(crate) fn give(entry: &AtomicU64, word: Word) {
    debug_assert!(
        Word::from_bits(entry.load(Ordering::Relaxed)).is_busy(),
        "only a taken entry is given back"
    );
    entry.store(word.idle().bits(), Ordering::Release);
}

/// All spans, by their start address. They never overlap.
#[derive(Debug)]
pub(crate) struct Table {
    spans: BTreeMap<usize, Span>,
    entry_bytes: usize,
    /// Events that wait for another thread's; see `order`.
    pub(crate) order: EventOrder,
}

impl Table {
    pub(crate) fn new(base: BasePage) -> Self {
        Self { spans: BTreeMap::new(), entry_bytes: entry_bytes(base), order: EventOrder::default() }
    }
    pub(crate) fn entry_bytes(&self) -> usize {
        self.entry_bytes
    }
    /// The span that `address` lies in.
    pub(crate) fn find(&self, address: usize) -> Option<&Span> {
        let (_, span) = self.spans.range(..=address).next_back()?;
        span.range.contains(address).then_some(span)
    }
    /// The first span that ends above `address`.
    pub(crate) fn next_from(&self, address: usize) -> Option<&Span> {
        self.find(address).or_else(|| self.spans.range(address..).next().map(|(_, span)| span))
    }
    /// Every span, lowest address first.
    pub(crate) fn spans(&self) -> impl Iterator<Item = &Span> {
        self.spans.values()
    }
    /// What the entries of all spans take, of address space. A base page that was cut in two has one entry.
    pub(crate) fn entries_bytes(&self) -> u64 {
        let mut before: Option<(&Entries, usize)> = None;
        let mut count = 0;
        for span in self.spans() {
            let indices = span.indices(span.range, self.entry_bytes);
            let is_shared = before
                .is_some_and(|(entries, last)| Arc::ptr_eq(entries, &span.entries) && last == indices.start);
            count += indices.len() - usize::from(is_shared);
            before = Some((&span.entries, indices.end - 1));
        }
        (count * size_of::<Word>()) as u64
    }
    /// The page of `address` in `span`, whole as far as the span goes.
    pub(crate) fn page_at(&self, span: &Span, address: usize) -> Page {
        span.page(span.index_of(address, self.entry_bytes), span.range, self.entry_bytes)
    }
    /// Whether nothing of `range` is managed.
    pub(crate) fn is_free(&self, range: PageRange) -> bool {
        self.next_from(range.start()).is_none_or(|span| span.range.start() >= range.end())
    }
    /// The parts of `range` that are not managed, lowest first.
    pub(crate) fn gaps(&self, range: PageRange, mut each: impl FnMut(PageRange)) {
        let mut at = range.start();
        while at < range.end() {
            match self.next_from(at) {
                Some(span) if span.range.start() < range.end() => {
                    if let Some(gap) = PageRange::new(at, span.range.start()) {
                        each(gap);
                    }
                    at = span.range.end();
                }
                _ => {
                    if let Some(gap) = PageRange::new(at, range.end()) {
                        each(gap);
                    }
                    return;
                }
            }
        }
    }

    /// Adds `range`, of which nothing is managed yet, and returns the span it became part of. All its granules are
    /// empty until the caller marks what it finds present.
    pub(crate) fn insert(&mut self, range: PageRange, filler: Filler) -> &Span {
        let entry_bytes = self.entry_bytes;
        let mut room = 0;
        if let Some((&key, before)) = self.spans.range(..range.start()).next_back()
            && before.range.end() == range.start()
            && before.filler == filler
        {
            // Twice as much with each new span: a heap that grows by small steps is some spans, and a mapping that does not
            // grow costs no more than its own entries.
            room = (2 * before.entries.len()).min(GROWTH_ENTRIES_MOST);
            let fits = before.index_of(range.end() - 1, entry_bytes) < before.entries.len();
            // The array may be shared with a part further up that was cut off: then its entries there are taken.
            if fits && Arc::strong_count(&before.entries) == 1 {
                let span = self.spans.get_mut(&key).expect("just found");
                span.range = PageRange::at(key, range.end() - key);
                return span;
            }
        }
        self.insert_with_room(range, range.start() % entry_bytes, filler, room)
    }

    /// As [`insert`](Self::insert), as a span of its own, whatever it lies beside, which begins `skipped` bytes into its first
    /// entry.
    pub(crate) fn insert_apart(&mut self, range: PageRange, skipped: usize, filler: Filler) -> &Span {
        self.insert_with_room(range, skipped % self.entry_bytes, filler, 0)
    }

    /// Adds `range`, of which nothing is managed yet, as a span of its own that is filled by density.
    pub(crate) fn insert_by_density(&mut self, range: PageRange, density: Arc<Density>) {
        let skipped = range.start() % self.entry_bytes;
        let needed = (skipped + range.len()).div_ceil(self.entry_bytes);
        let entries = EntryArray::new(needed, Weak::new(), Some(density));
        let (origin, movable) = (range.start() - skipped, AtomicBool::new(true));
        self.spans.insert(range.start(), Span { range, origin, entries, filler: Filler::Engine, movable });
    }

    /// Adds `range`, of which nothing is managed yet, as the pages of a file, the first at its start.
    pub(crate) fn insert_file(&mut self, range: PageRange, file: Weak<PageFile>) {
        let entries = EntryArray::new(range.len().div_ceil(self.entry_bytes), file, None);
        let movable = AtomicBool::new(true);
        let span = Span { range, origin: range.start(), entries, filler: Filler::File, movable };
        self.spans.insert(range.start(), span);
    }

    fn insert_with_room(&mut self, range: PageRange, skipped: usize, filler: Filler, room: usize) -> &Span {
        let origin = range.start().wrapping_sub(skipped);
        let needed = (skipped + range.len()).div_ceil(self.entry_bytes);
        let entries = EntryArray::new(needed + room, Weak::new(), None);
        let span = Span { range, origin, entries, filler, movable: AtomicBool::new(true) };
        self.spans.entry(range.start()).insert_entry(span).into_mut()
    }

    /// Takes `range` out of the table and hands the parts of spans that lay in it to the caller, whole with their
    /// entries. What lies outside stays.
    pub(crate) fn cut(&mut self, range: PageRange) -> Vec<Span> {
        let mut cut = Vec::new();
        while let Some(span) = self.next_from(range.start()) {
            let Some(within) = span.range.intersection(range) else { break };
            let key = span.range.start();
            let span = self.spans.remove(&key).expect("just found");
            let part = |range| Span {
                range,
                origin: span.origin,
                entries: Arc::clone(&span.entries),
                filler: span.filler,
                movable: AtomicBool::new(span.movable.load(Ordering::Relaxed)),
            };
            for kept in [(span.range.start(), within.start()), (within.end(), span.range.end())] {
                if let Some(kept) = PageRange::new(kept.0, kept.1) {
                    self.spans.insert(kept.start(), part(kept));
                }
            }
            cut.push(part(within));
        }
        cut
    }

    /// Puts a span that was cut at `from` back in at `to`, with everything it holds.
    pub(crate) fn put_moved(&mut self, span: Span, from: usize, to: usize) {
        let delta = to.wrapping_sub(from);
        let range = PageRange::at(span.range.start().wrapping_add(delta), span.range.len());
        let moved = Span { range, origin: span.origin.wrapping_add(delta), ..span };
        self.spans.insert(range.start(), moved);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGE: usize = OS_PAGE;

    fn range(from: usize, to: usize) -> PageRange {
        PageRange::new(from * PAGE, to * PAGE).expect("a range")
    }

    #[test]
    fn a_heap_that_grows_stays_one_span() {
        let mut table = Table::new(BasePage::K64);
        table.insert(range(100, 133), Filler::Engine);
        table.insert(range(133, 140), Filler::Engine);
        assert_eq!(table.spans().map(|span| span.range()).collect::<Vec<_>>(), [range(100, 140)]);
    }

    #[test]
    fn a_heap_that_grows_by_small_steps_is_some_spans_and_what_does_not_grow_has_no_room_for_it() {
        for base in [BasePage::K4, BasePage::K64] {
            let mut table = Table::new(base);
            for step in 0..1000 {
                table.insert(range(1600 + step * 33, 1633 + step * 33), Filler::Engine);
            }
            assert!(table.spans().count() <= 10, "{} spans", table.spans().count());
            let words: usize = table.spans().map(|span| span.entries.len()).sum();
            assert!(words <= 4 * 33_000 / (table.entry_bytes() / PAGE), "{words} words");
            let alone = table.insert(range(100_000, 100_016), Filler::Engine);
            assert_eq!(alone.entries.len(), 16 * PAGE / base.bytes());
        }
    }

    #[test]
    fn what_is_put_apart_shares_no_entry_with_what_it_lies_beside() {
        let mut table = Table::new(BasePage::K64);
        for (from, to, skipped) in [(16, 50, 0), (50, 70, 2), (70, 100, 9)] {
            table.insert_apart(range(from, to), skipped * PAGE, Filler::Engine);
        }
        let spans: Vec<_> = table.spans().map(Span::range).collect();
        assert_eq!(spans, [range(16, 50), range(50, 70), range(70, 100)]);
        let [left, right] = [49, 50].map(|page| table.find(page * PAGE).expect("managed"));
        assert!(!Arc::ptr_eq(left.entries(), right.entries()));
        assert_eq!(table.page_at(left, 49 * PAGE).granules, Granules::range(0, 2));
        assert_eq!(table.page_at(right, 50 * PAGE).granules, Granules::range(2, 16));
        let moved = table.find(70 * PAGE).expect("managed");
        assert_eq!(table.page_at(moved, 71 * PAGE).granule_of(71 * PAGE), 10);
        assert_eq!((moved.skipped_bytes(16 * PAGE), moved.entries().len()), (9 * PAGE, 3));
    }

    #[test]
    fn a_page_cut_in_two_keeps_one_entry_with_granules_for_each_side() {
        let mut table = Table::new(BasePage::K64);
        table.insert(range(16, 64), Filler::Engine);
        let cut = table.cut(range(20, 22));
        assert_eq!(cut.len(), 1);
        let left = table.find(19 * PAGE).expect("the left part");
        let right = table.find(22 * PAGE).expect("the right part");
        let (a, b) = (table.page_at(left, 19 * PAGE), table.page_at(right, 22 * PAGE));
        assert_eq!((a.index, b.index), (0, 0));
        assert_eq!((a.granules, b.granules), (Granules::range(0, 4), Granules::range(6, 16)));
        assert!(Arc::ptr_eq(left.entries(), right.entries()));
        assert!(table.find(20 * PAGE).is_none());
        assert_eq!(table.entries_bytes(), 3 * 8, "one entry for each base page");
    }

    #[test]
    fn the_first_page_of_a_large_span_takes_one_os_page_of_table() {
        let mut table = Table::new(BasePage::K64);
        // So many that the C library takes the array from the kernel, and none that was used before.
        let span = table.insert(range(1 << 20, 1 << 27), Filler::Engine);
        let start = span.entries.as_ptr().addr();
        let end = start + size_of_val(&*span.entries);
        let mut scanner = pagoda_linux::pagemap::PagemapScanner::new().expect("pagemap");
        let mut taken = || {
            let mut bytes = 0;
            let (start, end) = (start & !(PAGE - 1), end.next_multiple_of(PAGE));
            scanner.populated_runs(start, end, |run, _| bytes += run.len()).expect("scanned");
            bytes
        };
        let before = taken();
        span.entry(span.entries.len() / 2).store(0, Ordering::Relaxed);
        assert!(before <= 2 * PAGE && taken() - before <= PAGE, "{before} and {}", taken());
    }

    #[test]
    fn a_moved_span_keeps_its_entries_at_any_address() {
        let mut table = Table::new(BasePage::K64);
        table.insert(range(1003, 1100), Filler::Engine);
        let page = table.page_at(table.find(1050 * PAGE).expect("managed"), 1050 * PAGE);
        let mut cut = table.cut(range(1003, 1100));
        table.put_moved(cut.pop().expect("one"), 1003 * PAGE, 2 * PAGE);
        let span = table.find(49 * PAGE).expect("managed");
        let moved = table.page_at(span, 49 * PAGE);
        assert_eq!((moved.index, moved.granules), (page.index, page.granules));
        assert_eq!(moved.granule_of(49 * PAGE), page.granule_of(1050 * PAGE));
        assert_eq!(span.range(), range(2, 99));
    }

    proptest! {
        /// Whatever is inserted, cut and moved: spans never overlap, and each address is managed or not as a plain
        /// array of addresses says.
        #[test]
        fn the_table_agrees_with_an_array(
            steps in proptest::collection::vec((0u8..3, 0usize..200, 1usize..40, 0usize..200), 1..40)
        ) {
            let mut table = Table::new(BasePage::K64);
            let mut model = [false; 300];
            for (kind, from, len, to) in steps {
                let whole = range(from, from + len);
                match kind {
                    0 => {
                        let mut gaps = Vec::new();
                        table.gaps(whole, |gap| gaps.push(gap));
                        for gap in gaps { table.insert(gap, Filler::Engine); }
                        model[from..from + len].fill(true);
                    }
                    1 => { table.cut(whole); model[from..from + len].fill(false); }
                    _ => {
                        let target = range(to, to + len);
                        if whole.intersection(target).is_some() { continue; }
                        let moved = table.cut(whole);
                        table.cut(target);
                        for span in moved { table.put_moved(span, whole.start(), target.start()); }
                        let source: Vec<bool> = model[from..from + len].to_vec();
                        model[from..from + len].fill(false);
                        model[to..to + len].copy_from_slice(&source);
                    }
                }
                for (page, managed) in model.iter().enumerate() {
                    prop_assert_eq!(table.find(page * PAGE).is_some(), *managed, "page {}", page);
                }
                for (a, b) in table.spans().zip(table.spans().skip(1)) {
                    prop_assert!(a.range().end() <= b.range().start());
                }
            }
        }
    }
}
