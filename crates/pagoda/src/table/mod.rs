//! The software page table: which ranges are managed, and the entry of each base page in them.
//!
//! A *span* is a managed range with the entries of its base pages. Entries are counted from the
//! span's *origin*, not from address zero: when the program moves a mapping (mremap), the span
//! takes its entries along, whatever the new address is modulo the base page. When a range is cut
//! (munmap in the middle), both sides keep sharing one array of entries; a base page that was cut
//! in two keeps one entry, of which each side uses its own granules.
//!
//! The table is the content of the engine's gate. Looking things up and changing entries takes the
//! gate shared; changing which spans there are, and reading events, takes it exclusively. This
//! module must never touch the memory that it describes.

pub(crate) mod event_order;
pub(crate) mod filling;
pub mod granularity;
mod span;

use std::alloc::{Layout, handle_alloc_error};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};

use pagoda_core::page::BasePage;
use pagoda_linux::mem::range::PageRange;

use crate::file::PageFile;
use crate::table::event_order::EventOrder;
use crate::table::filling::{Density, Filling};

pub(crate) use span::{Entries, EntryArray, Filler, Page, Span, give, try_take};

/// The memory of one entry: the base page, or 64 KiB of a larger one (sixteen granules of an OS
/// page each).
pub(crate) const fn entry_bytes(base: BasePage) -> usize {
    match base {
        BasePage::M2 => 64 << 10,
        other => other.bytes(),
    }
}

/// The most room to grow that a new span's array has: 1 MiB of words.
const GROWTH_ENTRIES_MOST: usize = 1 << 17;

/// All spans, by their start address. They never overlap.
#[derive(Debug)]
pub(crate) struct Table {
    spans: BTreeMap<usize, Span>,
    entry_bytes: usize,
    /// Events that wait for another thread's; see `order`.
    pub(crate) order: EventOrder,
    /// How many spans the program has moved.
    moves: u64,
}

impl Table {
    pub(crate) fn new(base: BasePage) -> Self {
        let (spans, order) = (BTreeMap::new(), EventOrder::default());
        Self { spans, entry_bytes: entry_bytes(base), order, moves: 0 }
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
    /// The spans that have a part of `range`, lowest address first.
    pub(crate) fn spans_in(&self, range: PageRange) -> impl Iterator<Item = &Span> {
        let mut at = range.start();
        std::iter::from_fn(move || {
            let span = self.next_from(at).filter(|span| span.range().start() < range.end())?;
            at = span.range().end();
            Some(span)
        })
    }
    /// The number of the last move that brought a part of `range` there. With such a part came the
    /// kernel's marks of its pages, and what its entries say: that was of the earlier place.
    #[cfg(feature = "migrate")]
    pub(crate) fn last_move_to(&self, range: PageRange) -> u64 {
        self.spans_in(range).map(|span| span.moved).max().unwrap_or(0)
    }
    /// Every span, lowest address first.
    pub(crate) fn spans(&self) -> impl Iterator<Item = &Span> {
        self.spans.values()
    }
    /// The memory of the entries of all spans. An array counts once, however many parts its span
    /// was cut into. An unused part of an array takes none.
    pub(crate) fn entries_bytes(&self) -> u64 {
        let mut arrays: Vec<_> =
            self.spans().map(|span| (Arc::as_ptr(&span.entries).addr(), span.entries.used_bytes())).collect();
        arrays.sort_unstable();
        arrays.dedup();
        arrays.into_iter().map(|(_, bytes)| bytes).sum()
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
        let mut rest = Some(range);
        while let Some(gap) = rest.and_then(|rest| self.first_gap(rest)) {
            each(gap);
            rest = PageRange::new(gap.end(), range.end());
        }
    }
    /// The lowest part of `range` that is not managed.
    pub(crate) fn first_gap(&self, range: PageRange) -> Option<PageRange> {
        let mut at = range.start();
        while at < range.end() {
            let Some(span) = self.next_from(at) else { return PageRange::new(at, range.end()) };
            if at < span.range.start() {
                return PageRange::new(at, span.range.start().min(range.end()));
            }
            at = span.range.end();
        }
        None
    }

    /// Adds `range`, in which nothing is managed yet, and returns the span that it became part of.
    /// All its granules are empty until the caller marks the present ones. Without memory for its
    /// entries the process ends.
    pub(crate) fn insert(&mut self, range: PageRange, filler: Filler) -> &Span {
        let entry_bytes = self.entry_bytes;
        self.try_insert(range, filler).unwrap_or_else(|| no_entries(range, entry_bytes))
    }

    /// As [`insert`](Self::insert). Without memory for its entries: None, and nothing is added.
    pub(crate) fn try_insert(&mut self, range: PageRange, filler: Filler) -> Option<&Span> {
        let entry_bytes = self.entry_bytes;
        let mut room = 0;
        if let Some((&key, before)) = self.spans.range(..range.start()).next_back()
            && before.range.end() == range.start()
            && before.filler == filler
            && matches!(before.entries.filling(), Filling::Whole)
        {
            // Room doubles with each new span: a heap that grows by small steps is some spans, and
            // a mapping that does not grow costs no more than its own entries.
            room = (2 * before.entries.len()).min(GROWTH_ENTRIES_MOST);
            let fits = before.index_of(range.end() - 1, entry_bytes) < before.entries.len();
            // The array may be shared with a part further up that was cut off: then its entries
            // there are taken.
            if fits && Arc::strong_count(&before.entries) == 1 {
                let span = self.spans.get_mut(&key).expect("just found");
                span.range = PageRange::at(key, range.end() - key);
                return Some(span);
            }
        }
        self.insert_with_room(range, range.start() % entry_bytes, (filler, Filling::Whole), room)
    }

    /// As [`insert`](Self::insert), always as a span of its own, of which touches bring as much as
    /// is touched densely.
    pub(crate) fn insert_by_density(
        &mut self,
        range: PageRange,
        filler: Filler,
        density: &Arc<Density>,
    ) -> &Span {
        let (entry_bytes, filling) = (self.entry_bytes, Filling::ByDensity(Arc::clone(density)));
        self.insert_with_room(range, range.start() % entry_bytes, (filler, filling), 0)
            .unwrap_or_else(|| no_entries(range, entry_bytes))
    }

    /// As [`insert`](Self::insert), but always as a span of its own, which begins `skipped` bytes
    /// into its first entry.
    pub(crate) fn insert_apart(&mut self, range: PageRange, skipped: usize, filler: Filler) -> &Span {
        let entry_bytes = self.entry_bytes;
        self.insert_with_room(range, skipped % entry_bytes, (filler, Filling::Whole), 0)
            .unwrap_or_else(|| no_entries(range, entry_bytes))
    }

    /// Adds `range`, in which nothing is managed yet, as a span of its own with this filling: its
    /// first entry begins where it does, and no other span has one of them. So an entry lies within
    /// a stripe of a migration. Without memory for its entries: None, and nothing is added.
    pub(crate) fn insert_filled(
        &mut self,
        range: PageRange,
        filling: Filling,
        filler: Filler,
    ) -> Option<&Span> {
        let entries = EntryArray::new(range.len().div_ceil(self.entry_bytes), Weak::new(), filling)?;
        let span = Span::new(range, range.start(), entries, filler);
        Some(self.spans.entry(range.start()).insert_entry(span).into_mut())
    }

    /// Adds `range`, in which nothing is managed yet, as the pages of a file, the first at its
    /// start.
    pub(crate) fn insert_file(&mut self, range: PageRange, file: Weak<PageFile>) {
        let entries = EntryArray::new(range.len().div_ceil(self.entry_bytes), file, Filling::Whole)
            .unwrap_or_else(|| no_entries(range, self.entry_bytes));
        let span = Span::new(range, range.start(), entries, Filler::File);
        self.spans.insert(range.start(), span);
    }

    fn insert_with_room(
        &mut self,
        range: PageRange,
        skipped: usize,
        (filler, filling): (Filler, Filling),
        room: usize,
    ) -> Option<&Span> {
        let origin = range.start().wrapping_sub(skipped);
        let needed = (skipped + range.len()).div_ceil(self.entry_bytes);
        let entries = EntryArray::new(needed + room, Weak::new(), filling)?;
        let span = Span::new(range, origin, entries, filler);
        Some(self.spans.entry(range.start()).insert_entry(span).into_mut())
    }

    /// Takes `range` out of the table, and returns the parts of spans that lay in it, with their
    /// entries. The rest of those spans stays.
    pub(crate) fn cut(&mut self, range: PageRange) -> Vec<Span> {
        let mut cut = Vec::new();
        while let Some(span) = self.next_from(range.start()) {
            let Some(within) = span.range.intersection(range) else { break };
            let key = span.range.start();
            let span = self.spans.remove(&key).expect("just found");
            let part = |range| span.part(range);
            for kept in [(span.range.start(), within.start()), (within.end(), span.range.end())] {
                if let Some(kept) = PageRange::new(kept.0, kept.1) {
                    self.spans.insert(kept.start(), part(kept));
                }
            }
            cut.push(part(within));
        }
        cut
    }

    /// Gives `range`, whole entries of one span without a file, new entries that are all empty.
    /// Returns the span with the old ones. None, and nothing has changed, without memory for new
    /// ones, or if the span is filled by blocks: then the arrival of pages relies on the array.
    pub(crate) fn renew(&mut self, range: PageRange) -> Option<Span> {
        let filling = self.find(range.start())?.entries.filling();
        if matches!(filling, Filling::Blocks(_)) {
            return None;
        }
        let count = range.len().div_ceil(self.entry_bytes);
        let entries = EntryArray::new(count, Weak::new(), filling.clone())?;
        let old = self.cut(range).pop()?;
        let fresh = Span { origin: range.start(), entries, ..old.part(range) };
        self.spans.insert(range.start(), fresh);
        Some(old)
    }

    /// Puts a span that was cut at `from` back in at `to`, with everything it holds.
    pub(crate) fn put_moved(&mut self, span: Span, from: usize, to: usize) {
        let delta = to.wrapping_sub(from);
        let range = PageRange::at(span.range.start().wrapping_add(delta), span.range.len());
        self.moves += 1;
        let moved = Span { range, origin: span.origin.wrapping_add(delta), moved: self.moves, ..span };
        self.spans.insert(range.start(), moved);
    }
}

/// Ends the process where there is no memory for the entries of `range`.
fn no_entries(range: PageRange, entry_bytes: usize) -> ! {
    let words = range.len().div_ceil(entry_bytes);
    handle_alloc_error(Layout::array::<AtomicU64>(words).expect("fewer words than bytes of a range"))
}

#[cfg(test)]
mod tests;
