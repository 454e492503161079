//! Staging: moving base pages out of a region into slots, with their frames.
//!
//! One move takes as many pages as can go together. A page that can't go stays where it is, and so
//! does a pinned one. This module must never choose a page, and never enter one as staged that is
//! still in the region.

use std::sync::Arc;

use pagoda_core::page_entry::{Backing, Granules, Word};
use pagoda_linux::arena::Slot;
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::uffd::Stop;

use crate::engine::Engine;
use crate::frames::pool::BATCH_ORDER;
use crate::reclaim::clean_copy::Copied;
use crate::state::hand::Step;
use crate::state::pins::Moving;
use crate::stats::counters::Counter;
use crate::table::{Entries, Page, Span, Table, give, try_take};

impl Engine {
    /// Stages `count` whole pages by one move. None if they are not all whole and movable: try them
    /// one by one.
    pub(crate) fn stage_run(
        &self,
        table: &Table,
        span: &Span,
        first: usize,
        count: usize,
        copied: &mut Vec<Copied>,
    ) -> Option<Step> {
        let entry_bytes = table.entry_bytes();
        let order = count.ilog2();
        let count = 1usize << order;
        let all = Granules::range(0, (entry_bytes / 4096) as u32);
        let zone = span.word(first).zone();
        let is_whole = |word: Word| {
            word.resident() == all
                && word.zone() == zone
                && !word.is_huge()
                && !matches!(word.backing(), Backing::Slot(_))
        };
        let mut taken = [Word::EMPTY; 1 << BATCH_ORDER];
        let mut held = 0;
        while held < count {
            let index = first + held;
            if span.page(index, span.range(), entry_bytes).granules != all {
                break;
            }
            let Some(word) = try_take(span.entry(index)) else { break };
            if !is_whole(word) {
                give(span.entry(index), word);
                break;
            }
            taken[held] = word;
            held += 1;
        }
        let give_rest = |from: usize| {
            for (index, word) in (first..).zip(taken).take(held).skip(from) {
                give(span.entry(index), word);
            }
        };
        let start = span.page(first, span.range(), entry_bytes).addresses(0, 1).start();
        let from = PageRange::at(start, count * entry_bytes);
        let moving = self.pins.moving();
        if held < count || moving.overlaps(from) {
            give_rest(0);
            return None;
        }
        let Some(slots) = self.zones.take_empty_run(&self.space, zone, order) else {
            give_rest(0);
            return None;
        };
        let mut moved = 0;
        let stop = loop {
            let rest = PageRange::at(start + moved, from.len() - moved);
            let first_slot = moved / entry_bytes;
            let progress = self.space.evict(rest, &slots[first_slot..], moved % entry_bytes);
            moved += progress.bytes;
            if moved == from.len() {
                break None;
            }
            if progress.stop.is_some() {
                break progress.stop;
            }
        };
        drop(moving);
        if stop == Some(Stop::Busy) {
            self.note_shared(PageRange::at(start + moved, from.len() - moved));
        }
        if moved == 0 && matches!(stop, Some(Stop::Refused | Stop::Missing)) {
            // Perhaps one page of it: find out which.
            for slot in slots {
                self.zones.put_empty(&self.space, slot);
            }
            give_rest(0);
            return None;
        }
        self.went_out(zone, moved as i64);
        self.trace_evicted(start, moved);
        for (i, slot) in slots.into_iter().enumerate() {
            let entry = span.entry(first + i);
            let of_page = (moved.saturating_sub(i * entry_bytes)).min(entry_bytes);
            if of_page == 0 {
                self.zones.put_empty(&self.space, slot);
                give(entry, taken[i]);
            } else {
                let out = Granules::range(0, (of_page / 4096) as u32);
                let (index, word) = (first + i, taken[i]);
                if let Backing::Handle(handle) = word.backing() {
                    copied.push(Copied {
                        entries: Arc::clone(span.entries()),
                        index,
                        word,
                        handle,
                        slot,
                        out,
                    });
                } else {
                    let word = word.with_resident(all.without(out));
                    self.publish_staged(span.entries(), index, word, (slot, out));
                }
            }
        }
        Some(self.settle_staging(moved > 0, stop))
    }

    /// Stages the movable part of one page: its resident granules that are not pinned.
    pub(crate) fn stage_page(
        &self,
        table: &Table,
        span: &Span,
        index: usize,
        copied: &mut Vec<Copied>,
    ) -> Step {
        let page = span.page(index, span.range(), table.entry_bytes());
        self.stage_page_from(table, span, index, &page, copied)
    }

    /// The same of those granules that `from` has. It may be where they were lifted to.
    pub(crate) fn stage_page_from(
        &self,
        table: &Table,
        span: &Span,
        index: usize,
        from: &Page,
        copied: &mut Vec<Copied>,
    ) -> Step {
        let page = span.page(index, span.range(), table.entry_bytes());
        let entry = span.entry(index);
        let Some(word) = try_take(entry) else { return Step::Looking };
        if word.is_huge() {
            // A part of a huge frame does not leave by itself. A page that was busy when
            // `leaves_huge` looked is not looked at again at once.
            give(entry, word.with_warmth(3));
            return Step::Looking;
        }
        let slot = match word.backing() {
            Backing::None | Backing::Handle(_) => self.zones.take_empty(&self.space, word.zone()),
            Backing::Slot(slot) => Some(self.space.claim_slot(slot)),
        };
        let Some(slot) = slot else {
            give(entry, word);
            return Step::Looking;
        };
        // Granules that came in by a copy have left one in the slot, which is stored before they go
        // out again.
        let taken = match word.backing() {
            Backing::Slot(_) => self.space.pages_of(&slot),
            Backing::None | Backing::Handle(_) => Granules::NONE,
        };
        let slots = [slot];
        let (out, stop) = self.evict_granules(from, word.resident().without(taken), &slots);
        let [slot] = slots;
        self.went_out(word.zone(), i64::from(out.count()) * 4096);
        for (first, end) in out.runs() {
            let gone = page.addresses(first, end);
            self.trace_evicted(gone.start(), gone.len());
        }
        // Pages that can't leave are not tried again at once.
        let warmth = match stop {
            Some(Stop::Refused) if self.lift.note(page.addresses(0, 1).start()) => word.warmth(),
            Some(Stop::Refused) => 3,
            // Shared by a fork, it is soon our own.
            Some(Stop::Busy) => {
                if self.may_be_shared() {
                    1
                } else {
                    3
                }
            }
            _ => word.warmth(),
        };
        let before = word.with_warmth(warmth);
        let word = before.with_resident(word.resident().without(out));
        match word.backing() {
            Backing::None | Backing::Handle(_) if out.is_empty() => {
                self.zones.put_empty(&self.space, slot);
                give(entry, word);
            }
            Backing::None => self.publish_staged(span.entries(), index, word, (slot, out)),
            Backing::Handle(handle) => {
                let entries = Arc::clone(span.entries());
                copied.push(Copied { entries, index, word: before, handle, slot, out });
            }
            Backing::Slot(_) => {
                // It has been in the queue since it was staged.
                let slot = self.space.release_slot(slot);
                self.went_into_staging(slot, out);
                give(entry, word);
            }
        }
        self.settle_staging(!out.is_empty(), stop)
    }

    /// Enters a page that is now in `slot` as staged. Frames are `there` of these granules.
    pub(crate) fn publish_staged(
        &self,
        entries: &Entries,
        index: usize,
        word: Word,
        (slot, there): (Slot, Granules),
    ) {
        let slot = self.space.release_slot(slot);
        self.counters.add(Counter::Evictions, 1);
        self.went_into_staging(slot, there);
        self.note_staged(slot);
        give(&entries[index], word.with_backing(Backing::Slot(slot)));
        self.queue_staged(entries, index, slot);
    }

    fn settle_staging(&self, any: bool, stop: Option<Stop>) -> Step {
        match stop {
            Some(Stop::Again) => return Step::Again,
            Some(Stop::Busy) => self.counters.add(Counter::EvictBusy, 1),
            // Read-only by now, or locked.
            Some(Stop::Refused | Stop::Missing) => self.counters.add(Counter::EvictRefused, 1),
            Some(Stop::Exists | Stop::NoMemory | Stop::Gone) | None => {}
        }
        if any { Step::Staged } else { Step::Looking }
    }

    /// Moves those of `granules` that are within the span and not pinned into a slot. Returns the
    /// moved granules, and the stop of the last that was not moved.
    fn evict_granules(&self, page: &Page, granules: Granules, slots: &[Slot; 1]) -> (Granules, Option<Stop>) {
        let mut out = Granules::NONE;
        let mut stop = None;
        let moving = self.pins.moving();
        for (from, to) in unpinned(&moving, page, granules.and(page.granules)).runs() {
            let mut at = from;
            let mut end = to;
            while at < to {
                let progress = self.space.evict(page.addresses(at, end), slots, at as usize * 4096);
                let reached = at + (progress.bytes / 4096) as u32;
                out = out.or(Granules::range(at, reached));
                at = reached;
                match progress.stop {
                    None => {}
                    Some(Stop::Again) => return (out, Some(Stop::Again)),
                    // A boundary of mappings may lie within: one by one.
                    Some(Stop::Refused | Stop::Missing) if end > at + 1 => {
                        end = at + 1;
                        continue;
                    }
                    Some(other) => {
                        if other == Stop::Busy {
                            self.note_shared(page.addresses(at, to));
                        }
                        stop = Some(other);
                        at += 1;
                    }
                }
                end = if end == to { to } else { (at + 1).min(to) };
            }
        }
        (out, stop)
    }
}

/// `granules` without those that a pin lies on.
fn unpinned(moving: &Moving<'_>, page: &Page, granules: Granules) -> Granules {
    let mut free = granules;
    for (from, to) in granules.runs() {
        if moving.overlaps(page.addresses(from, to)) {
            for i in from..to {
                if moving.overlaps(page.addresses(i, i + 1)) {
                    free = free.without(Granules::range(i, i + 1));
                }
            }
        }
    }
    free
}
