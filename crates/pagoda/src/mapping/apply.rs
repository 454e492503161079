//! Applying the program's changes to its mappings: discard, unmap, move, fork.
//!
//! The caller holds the gate exclusively, from before it read the event until all of a batch is
//! applied. So no page moves meanwhile, and none can be moved between a read and its application.
//! Before the read the kernel itself refuses every move. A REMOVE is read *before* the kernel drops
//! the pages: from then on a page that is still present there is not ours, has no bit in the
//! entry's mask, and is never evicted.
//!
//! The program's thread waits until its event is read, so nothing here waits for anything that the
//! program holds. It may wait for entries that are busy, because those movers need no gate to
//! finish, and for the store, for the two pages at the edges of a range.

use std::sync::Arc;

use pagoda_core::page_entry::{Backing, Granules, Word};
use pagoda_linux::mem::mincore::is_mapped;
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::process::thread::{now_ns, yield_now};
use pagoda_linux::uffd::Message;

use crate::engine::Engine;
use crate::error::StopReason;
use crate::fault::granules_of_entry;
use crate::reclaim::QUEUE_SLACK;
use crate::release::Closing;
use crate::state::hand::Staged;
use crate::state::pending::Fault;
use crate::stats::counters::Counter;
use crate::store::{Handle, Scratch};
use crate::table::{Entries, Filler, Page, Span, Table, give, try_take};

impl Engine {
    /// Applies one event, and those that waited for it. A fault is none and is given back.
    pub(crate) fn apply(&self, table: &mut Table, message: Message, scratch: &mut Scratch) -> Option<Fault> {
        if let Message::Fault { at, write, held, thread } = message {
            return Some(Fault { thread, held, ..Fault::new(at, write, now_ns()) });
        }
        if let Message::Remove(range) = &message
            && self.space.arena_range().intersection(*range).is_some()
        {
            // Our own event, about unused frames.
            return None;
        }
        if let Message::Remap { to, .. } = &message
            && self.lift.is_place(*to)
        {
            // Our own lift: the pages of its entries are taken from there.
            self.lift.tell();
            return None;
        }
        self.apply_or_defer(table, message, scratch);
        self.apply_deferred(table, scratch);
        None
    }

    /// Tries deferred events again, until none can be applied.
    fn apply_deferred(&self, table: &mut Table, scratch: &mut Scratch) {
        loop {
            let waiting = table.order.take_deferred();
            let before = waiting.len();
            for event in waiting {
                self.apply_or_defer(table, event, scratch);
            }
            if table.order.deferred() == before {
                return;
            }
        }
    }

    /// No event is outstanding in the kernel: an event that waits for another waits in vain.
    pub(crate) fn settle_events(&self, table: &mut Table, scratch: &mut Scratch) {
        table.order.all_was_told();
        if table.order.deferred() > 0 {
            self.apply_deferred(table, scratch);
            self.apply_all_deferred(table, scratch);
        }
    }

    /// Applies all deferred events, whatever they wait for: one move after another, each with the
    /// events that waited for it alone.
    pub(crate) fn apply_all_deferred(&self, table: &mut Table, scratch: &mut Scratch) {
        while let Some(first) = table.order.first(|range| table.is_free(range), is_mapped) {
            let event = table.order.take(first);
            self.apply_now(table, event, scratch);
            self.apply_deferred(table, scratch);
        }
        for event in table.order.take_deferred() {
            self.apply_now(table, event, scratch);
        }
    }

    /// The parts of `range` that an event is about which says that it was moved or unmapped.
    /// Nothing that moved there is in them any more.
    fn leave(&self, table: &mut Table, range: PageRange) -> Vec<PageRange> {
        let parts = table.order.concerned(range, |address| self.space.is_registered(address));
        parts.iter().for_each(|part| table.order.left(*part));
        parts
    }

    fn apply_or_defer(&self, table: &mut Table, event: Message, scratch: &mut Scratch) {
        if table.order.must_wait(&event, |range| table.is_free(range), is_mapped) {
            self.counters.add(Counter::EventsDeferred, 1);
            table.order.defer(event);
        } else {
            self.apply_now(table, event, scratch);
        }
    }

    fn apply_now(&self, table: &mut Table, event: Message, scratch: &mut Scratch) {
        match event {
            Message::Fault { .. } => {}
            Message::Remove(range) => {
                self.counters.add(Counter::EventsRemove, 1);
                self.renew_discarded(table, range);
                self.discard(table, range, scratch);
                // Pages present in a part that the table does not have yet go soon: adoption must
                // not take them for content. So the part is entered now, as empty.
                let mut gaps = Vec::new();
                table.gaps(range, |gap| gaps.push(gap));
                for gap in gaps {
                    // Without a fault of ours it is filled by the kernel, has no mark, and is never
                    // evicted.
                    let _ = self.space.register(gap);
                    table.insert(gap, Filler::Engine);
                }
            }
            Message::Unmap(range) => {
                self.counters.add(Counter::EventsUnmap, 1);
                if self.is_unmapping_refused(table, range) {
                    return;
                }
                for part in self.leave(table, range) {
                    self.release_unmapped(table, part, scratch);
                }
                table.order.unmapped(range);
            }
            Message::Remap { from, to, len } => {
                self.counters.add(Counter::EventsRemap, 1);
                self.remap(table, from, to, len, scratch);
            }
            Message::Fork(child) => {
                self.hurry_slowed();
                self.serve_fork(table, child, scratch);
            }
        }
    }

    /// Whether an unmapping that was announced did not happen. The kernel announces it mapping by
    /// mapping, and refuses it as a whole when it comes to one that is sealed. Then the range is
    /// still mapped and registered, with a sealed mapping in it.
    fn is_unmapping_refused(&self, table: &Table, range: PageRange) -> bool {
        let Some(known) = table.next_from(range.start()).and_then(|span| span.range().intersection(range))
        else {
            return false;
        };
        let Some(reader) = &self.wiped else { return false };
        if !is_mapped(known.start()) || !self.space.is_registered(known.start()) {
            return false;
        }
        let mut reader = reader.lock().unwrap_or_else(|_| self.stop(StopReason::EngineBroken));
        reader.is_any_sealed(range).unwrap_or_else(|_| self.stop(StopReason::EngineBroken))
    }

    fn remap(&self, table: &mut Table, from: usize, to: usize, len: usize, scratch: &mut Scratch) {
        let (Some(source), Some(target)) =
            (PageRange::new(from, from.wrapping_add(len)), PageRange::new(to, to.wrapping_add(len)))
        else {
            return;
        };
        let left = self.leave(table, source);
        let moved: Vec<Span> = left.into_iter().flat_map(|part| table.cut(part)).collect();
        // An UNMAP event of its own has removed the earlier range at the target; a rest here would
        // be stale.
        self.discard(table, target, scratch);
        table.cut(target);
        for span in moved {
            table.put_moved(span, from, to);
        }
        table.order.moved(source, (!is_mapped(source.start())).then_some(target));
    }

    /// Makes `range` read as zero: drops its stored and staged content, and trusts no page that is
    /// still present there.
    pub(crate) fn discard(&self, table: &Table, range: PageRange, scratch: &mut Scratch) {
        self.forget_owed(range);
        self.discard_of(|| table.spans_in(range), range, Closing::new(self, range), scratch);
    }

    /// The same for those spans that have a part of `range`. They are in the table, or only the
    /// caller has them.
    pub(crate) fn discard_of<'a, I: Iterator<Item = &'a Span>>(
        &self,
        spans: impl Fn() -> I,
        range: PageRange,
        mut closing: Closing<'_>,
        scratch: &mut Scratch,
    ) {
        spans().for_each(|span| self.discard_entries(span, range, &mut closing, scratch));
        if closing.frames_are_back() {
            spans().for_each(|span| self.discard_entries(span, range, &mut closing, scratch));
        }
        closing.finish();
    }

    fn discard_entries(
        &self,
        span: &Span,
        range: PageRange,
        closing: &mut Closing<'_>,
        scratch: &mut Scratch,
    ) {
        let Some(within) = span.range().intersection(range) else { return };
        for index in span.used(within, self.entry_bytes()) {
            if span.word(index) != Word::EMPTY {
                let page = span.page(index, within, self.entry_bytes());
                self.discard_page(span, &page, closing, scratch);
            }
        }
    }

    fn discard_page(&self, span: &Span, page: &Page, closing: &mut Closing<'_>, scratch: &mut Scratch) {
        // A granule that changes in its slot does not show in the word.
        let word = self.take(span.entries(), page.index).without_sent();
        let in_span = span.page(page.index, span.range(), self.entry_bytes());
        let whole = granules_of_entry(span, &in_span, self.entry_bytes());
        let gone = page.granules;
        let resident = word.resident().without(gone);
        let back = word.resident().and(gone).count();
        closing.granules_are_back(back);
        self.zones.in_regions(word.zone(), -(i64::from(back) * 4096));
        let outside = whole.without(word.resident()).without(gone);
        self.ledger.changed(word, word.with_resident(resident));
        let word = word.with_resident(resident).with_huge(word.is_huge() && !resident.is_empty());
        let word = match word.backing() {
            Backing::None => word,
            Backing::Slot(slot) if outside.is_empty() => {
                self.unstage(self.space.claim_slot(slot));
                closing.frame_is_back();
                word.with_backing(Backing::None)
            }
            Backing::Slot(slot) => {
                self.zero_granules(slot, gone);
                word
            }
            // Without room in the queue it stays until all frames are back. Within the gate no
            // other thread asks for it.
            Backing::Handle(handle) if outside.is_empty() && !closing.take(Handle::from_bits(handle)) => word,
            Backing::Handle(_) if outside.is_empty() => {
                let after = word.with_backing(Backing::None);
                self.ledger.changed(word, after);
                after
            }
            Backing::Handle(handle) => {
                let parts = (gone, outside);
                self.discard_of_stored(span.entries(), page.index, (word, handle), parts, scratch)
            }
        };
        // Where nothing is, nothing is warm: a huge frame comes only to where nothing is.
        let is_empty = word.resident().is_empty() && word.backing() == Backing::None;
        give(span.entry(page.index), if is_empty { word.with_warmth(0) } else { word });
    }

    /// Discards the granules `gone` of a stored page, whose busy bit the caller has: the page is
    /// brought back into a slot, whatever the budget says. Of `rest` nothing is resident.
    fn discard_of_stored(
        &self,
        entries: &Entries,
        index: usize,
        (mut word, mut handle): (Word, u64),
        (gone, rest): (Granules, Granules),
        scratch: &mut Scratch,
    ) -> Word {
        // A hole reads as zero, unless it is of a file.
        if !word.resident().is_empty() && entries.file().is_none() {
            let stored = (word, Handle::from_bits(handle));
            if self.fetch_rest(entries, index, stored, rest, scratch) {
                return self.take(entries, index);
            }
        }
        loop {
            if !self.fetch(entries, index, word.busy(), handle, true, scratch) {
                // No address is left in the arena: without one, discarded content would come back.
                self.stop(StopReason::EngineBroken);
            }
            word = self.take(entries, index);
            match word.backing() {
                Backing::Slot(slot) => {
                    self.zero_granules(slot, gone);
                    return word;
                }
                // Stored again in between: once more.
                Backing::Handle(again) => handle = again,
                // It was all zero.
                Backing::None => return word,
            }
        }
    }

    /// Makes granules of a slot read as zero. Also those that were resident: the slot has an old
    /// copy of them, if anything.
    fn zero_granules(&self, slot: u32, granules: Granules) {
        let mut slot = self.space.claim_slot(slot);
        let bytes = self.space.bytes_mut(&mut slot);
        for (from, to) in granules.runs() {
            bytes[from as usize * 4096..to as usize * 4096].fill(0);
        }
        let slot = self.space.release_slot(slot);
        self.went_into_staging(slot, granules);
    }

    /// Takes an entry's busy bit, waiting for a mover that has it. Only with the gate held
    /// exclusively, or of a span that is in no table any more: then no mover needs the gate to
    /// finish.
    pub(crate) fn take(&self, entries: &Entries, index: usize) -> Word {
        loop {
            if let Some(word) = try_take(&entries[index]) {
                return word;
            }
            yield_now();
        }
    }

    /// Remembers a page that came to be staged, so that reclaim finds it.
    pub(crate) fn queue_staged(&self, entries: &Entries, index: usize, slot: u32) {
        let mut hand = self.hand(self.zones.list_of_slot(slot));
        if hand.queue.len() > hand.queue_most.max(QUEUE_SLACK) {
            hand.queue
                .retain(|staged| staged.entries.word(staged.index).backing() == Backing::Slot(staged.slot));
            hand.queue_most = 2 * hand.queue.len();
        }
        hand.queue.push_back(Staged { entries: Arc::clone(entries), index, slot });
    }
}

#[cfg(test)]
#[path = "apply_test.rs"]
mod tests;
