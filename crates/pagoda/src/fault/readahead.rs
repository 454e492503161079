//! Readahead: swapping in the next pages of a sequential reader, upwards or downwards.
//!
//! The wake-up and the TLB shootdown of the move dominate the cost of a small swap-in. Both are
//! paid once for a few pages here. Readahead is a guess: it takes only ready frames, only pages
//! that lie in compressed memory in whole, and never waits. A prefetched page that was not used is
//! evicted at no cost, because its stored copy is kept.

use pagoda_core::fault::swap_in::Extent;
use pagoda_core::page::OS_PAGE;
use pagoda_core::page_entry::{Backing, Granules, Word};
use pagoda_linux::arena::Slot;
use pagoda_linux::mem::range::PageRange;

use crate::engine::Engine;
use crate::fault::unreadable;
use crate::stats::counters::Counter;
use crate::store::{Handle, NEIGHBOURS_MOST, Scratch, Store};
use crate::table::{Entries, Page, Span, Table, give, try_take};

/// The most that is swapped in ahead. The reader runs meanwhile, and waits once for so much. Memory
/// is lost if the reader stops, so it is less than the low watermark of the least budget.
const AHEAD_BYTES: usize = 768 << 10;

/// The most pages of them.
const AHEAD_MOST: usize = NEIGHBOURS_MOST;

/// The indices that an access of this extent goes on with from `first` on, as far as the span has
/// them.
fn onwards(first: usize, indices: std::ops::Range<usize>, extent: Extent) -> impl Iterator<Item = usize> {
    let is_down = extent == Extent::Downwards;
    let count =
        if is_down { (first + 1).saturating_sub(indices.start) } else { indices.end.saturating_sub(first) };
    (0..count).map(move |i| if is_down { first - i } else { first + i })
}

/// Pages behind another that are in the file or at the server, too. The busy bits of their entries
/// are held.
pub(crate) struct Behind {
    taken: [(usize, Word); NEIGHBOURS_MOST],
    handles: [Handle; NEIGHBOURS_MOST],
    count: usize,
}

impl Engine {
    /// The most pages that come ahead of a reader.
    fn ahead_pages(&self) -> usize {
        (AHEAD_BYTES / self.entry_bytes()).clamp(1, AHEAD_MOST)
    }

    /// Swaps in the content of sparse pages from `first` on, in the direction of `extent`, OS page
    /// by OS page. Returns the number of pages: none where the first is not sparse.
    fn fetch_sparse_ahead(
        &self,
        table: &Table,
        span: &Span,
        first: usize,
        extent: Extent,
        scratch: &mut Scratch,
    ) -> usize {
        let entry_bytes = table.entry_bytes();
        let all = Granules::range(0, (entry_bytes / OS_PAGE) as u32);
        let mut room = [0; OS_PAGE];
        let indices = span.indices(span.range(), entry_bytes);
        let comes = |index: &usize| {
            if !self.may_use_frames() || self.free() < self.marks().low {
                return false;
            }
            let page = span.page(*index, span.range(), entry_bytes);
            if page.granules != all || span.entries().file().is_some() {
                return false;
            }
            let Some(word) = try_take(span.entry(*index)) else { return false };
            let content = match word.backing() {
                Backing::Handle(handle) if self.may_come_ahead(&page, word, handle) => {
                    self.sparse_content(&page, handle).map(|content| (handle, content))
                }
                _ => None,
            };
            let mut after = word;
            let all_came = content.is_some_and(|(handle, content)| {
                content.runs().flat_map(|(from, to)| from..to).all(|granule| {
                    let (stored, at) = (Handle::from_bits(handle), granule as usize * OS_PAGE);
                    if let Err(error) = self.store.get(stored, at, &mut room, scratch) {
                        self.stop(unreadable(error));
                    }
                    let Ok(placed) = self.place_granule(&page, after, granule, &room, scratch.taker) else {
                        return false;
                    };
                    after = placed.with_warmth(1);
                    true
                })
            });
            self.ledger.changed(word, after);
            give(span.entry(*index), after);
            all_came
        };
        let came = onwards(first, indices, extent).take(self.ahead_pages()).take_while(comes).count();
        self.counters.add(Counter::FetchedAhead, came as u64);
        came
    }

    /// Whether a stored page may be swapped in unasked: it is in memory, and nothing else of it is.
    fn may_come_ahead(&self, page: &Page, word: Word, handle: u64) -> bool {
        word.resident().is_empty()
            && self.owed_granules(page).is_empty()
            && self.store.is_in_memory(Handle::from_bits(handle))
    }

    /// Swaps in up to [`AHEAD_BYTES`] from the one at `address` on, in the direction of
    /// `extent`, of one mapping, each of them wholly stored in memory. Returns their number: none
    /// where readahead is switched off.
    pub(crate) fn fetch_ahead(&self, address: usize, extent: Extent, scratch: &mut Scratch) -> usize {
        if !self.fetches_ahead {
            return 0;
        }
        // Faults in flight come first: guesses must not use up the ready frames.
        if !self.keeps_copies() || !self.may_use_frames() || self.free() < self.marks().low {
            return 0;
        }
        let table = self.gate_shared();
        if table.order.deferred() > 0 {
            return 0;
        }
        let Some(span) = table.find(address) else { return 0 };
        let first = table.page_at(span, address).index;
        let sparse = self.fetch_sparse_ahead(&table, span, first, extent, scratch);
        if sparse > 0 {
            return sparse;
        }
        let (mut taken, count) = self.take_stored(&table, span, first, extent);
        let mut slots: Vec<Slot> = (0..count).map_while(|_| self.take_whole_ready(scratch.taker)).collect();
        for (index, word, _) in &taken[slots.len()..count] {
            give(span.entry(*index), *word);
        }
        let taken = &mut taken[..slots.len()];
        taken.sort_unstable_by_key(|(index, ..)| *index);
        let Some((first, ..)) = taken.first() else { return 0 };
        let start = span.page(*first, span.range(), self.entry_bytes()).addresses(0, 1).start();
        // Frames of slots that follow each other move together.
        slots.sort_by_key(Slot::index);
        for (slot, (_, _, handle)) in slots.iter_mut().zip(&*taken) {
            let (content, handle) = (self.space.bytes_mut(slot), Handle::from_bits(*handle));
            if let Err(error) = self.store.get(handle, 0, content, scratch) {
                self.stop(unreadable(error));
            }
            // As for a page that was asked for: of two copies the one in the file is enough.
            self.store.demote(handle);
        }
        let count = slots.len();
        let filled_bytes = self.fill_from(start, &slots);
        let all = Granules::range(0, (self.entry_bytes() / 4096) as u32);
        for (i, slot) in slots.into_iter().enumerate() {
            let of_page = filled_bytes.saturating_sub(i * self.entry_bytes()).min(self.entry_bytes());
            let here = Granules::range(0, (of_page / 4096) as u32);
            let (index, word, _) = taken[i];
            let after = self.came_in(word, here, self.zones.of_slot(slot.index())).with_warmth(1);
            self.zones.put_pieces(&self.space, slot, all.without(here));
            self.ledger.changed(word, after);
            give(span.entry(index), after);
        }
        self.note_use();
        let whole = filled_bytes / self.entry_bytes();
        self.counters.add(Counter::FetchedAhead, whole as u64);
        debug_assert!(whole <= count);
        whole
    }

    /// Takes the busy bits of entries behind a page that is in the file or at the server, in the
    /// direction of `extent`, as far as they are within the span and wholly there. None if that
    /// page is in memory, or readahead is switched off.
    pub(crate) fn take_behind(
        &self,
        table: &Table,
        span: &Span,
        index: usize,
        handle: u64,
        extent: Extent,
    ) -> Behind {
        let mut behind = Behind {
            taken: [(0, Word::EMPTY); NEIGHBOURS_MOST],
            handles: [Handle::ZEROES; NEIGHBOURS_MOST],
            count: 0,
        };
        if !self.fetches_ahead || !self.store.is_farther(Handle::from_bits(handle)) {
            return behind;
        }
        let indices = span.indices(span.range(), table.entry_bytes());
        for index in onwards(index, indices, extent).skip(1).take(self.ahead_pages()) {
            let Some(word) = try_take(span.entry(index)) else { continue };
            match word.backing() {
                Backing::Handle(handle)
                    if word.resident().is_empty() && self.store.is_farther(Handle::from_bits(handle)) =>
                {
                    behind.taken[behind.count] = (index, word);
                    behind.handles[behind.count] = Handle::from_bits(handle);
                    behind.count += 1;
                }
                _ => give(span.entry(index), word),
            }
        }
        behind
    }

    /// Reads a page that is in the file or at the server into memory, with the pages behind it as
    /// far as one read or request reaches. The caller has taken its busy bit; this gives back those
    /// of `behind`. Blocks, so the caller must not have the gate.
    pub(crate) fn promote_with(&self, handle: u64, entries: &Entries, behind: Behind) {
        let others = &behind.handles[..behind.count];
        let came = self.store.promote_together(Handle::from_bits(handle), others);
        for (index, word) in &behind.taken[..behind.count] {
            give(&entries[*index], *word);
        }
        if came > 0 {
            self.ledger.store_has(self.store.usage().memory_committed_bytes.get());
        }
    }

    /// Takes the busy bits of entries from `first` on, in the direction of `extent`, that are
    /// wholly within the span and wholly stored in memory. Returns them with their indices and
    /// handles.
    fn take_stored(
        &self,
        table: &Table,
        span: &Span,
        first: usize,
        extent: Extent,
    ) -> ([(usize, Word, u64); AHEAD_MOST], usize) {
        let entry_bytes = table.entry_bytes();
        let mut taken = [(0, Word::EMPTY, 0); AHEAD_MOST];
        let indices = span.indices(span.range(), entry_bytes);
        let all = Granules::range(0, (entry_bytes / 4096) as u32);
        let mut count = 0;
        for index in onwards(first, indices, extent).take(self.ahead_pages()) {
            let page = span.page(index, span.range(), entry_bytes);
            if page.granules != all {
                break;
            }
            let Some(word) = try_take(span.entry(index)) else { break };
            match word.backing() {
                Backing::Handle(handle)
                    if self.may_come_ahead(&page, word, handle)
                        && self.sparse_content(&page, handle).is_none() =>
                {
                    taken[count] = (index, word, handle);
                    count += 1;
                }
                _ => {
                    give(span.entry(index), word);
                    break;
                }
            }
        }
        (taken, count)
    }

    /// Moves the frames of `slots`, in their order, to `start` and on. Returns the number of bytes
    /// moved.
    pub(crate) fn fill_from(&self, start: usize, slots: &[Slot]) -> usize {
        let mut done = 0;
        for run in slots.chunk_by(|one, next| one.index() + 1 == next.index()) {
            let end = done + run.len() * self.entry_bytes();
            let mut offset = 0;
            while done < end {
                let progress = self.space.fill_run(PageRange::at(start + done, end - done), run, offset);
                done += progress.bytes;
                offset += progress.bytes;
                if progress.stop.is_some() {
                    return done;
                }
            }
        }
        done
    }
}
