//! Reclaim: a hand goes round the regions and stages base pages; pages that stay staged are stored.
//!
//! The kernel offers no accessed bits for managed memory, so the second chance of a page is real.
//! It is *staged* first: moved out of the region with its frame intact. A touch moves it back, and
//! it is spared for the next rounds. An untouched page reaches the end of the queue and is
//! compressed, and its frame is ready for another page.
//!
//! Any thread may do a step: the reclaimer does them in the background, a handler without a frame
//! does them itself. A step never waits for the program, and holds the gate (shared) only while
//! pages move.

pub(crate) mod clean_copy;
pub(crate) mod collapse;
pub(crate) mod huge;
pub(crate) mod lift;
pub(crate) mod pageout;
pub(crate) mod passing;
mod per_zone;
pub(crate) mod protected;
pub(crate) mod resize;
mod stage;
pub(crate) mod tiering;
pub(crate) mod trim;

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};

use pagoda_core::page::{HUGE_FRAME, OS_PAGE};
use pagoda_core::page_entry::{Backing, Granules, Word};
use pagoda_linux::mem::range::PageRange;

use crate::engine::Engine;
use crate::error::StopReason;
use crate::frames::pool::BATCH_ORDER;
use crate::reclaim::per_zone::List;
use crate::state::hand::{Hand, Staged, Step};
use crate::stats::counters::Counter;
use crate::store::{Handle, Put, Scratch, Store};
use crate::table::{Entries, Span, Table, give, try_take};

/// The most entries that one step looks at with the gate held: about 100 µs of loads from cold
/// memory.
const LOOK_BOUND: usize = 4096;

/// The share of what lies in frames that is staged before the oldest of it is stored: one part in
/// this. A share of the budget would be a quarter of the frames where most of it is compressed.
const STAGED_SHARE: u64 = 16;

/// Where far more is staged than lies in regions (files that are read through), one step of so many
/// looks at the regions. So cold pages of regions are evicted, too, later than those of files.
const HAND_TURN: u32 = 16;

/// Elements that the queue may hold before it is cleaned, so that a short queue is not cleaned all
/// the time.
pub(crate) const QUEUE_SLACK: usize = 1024;

/// The most staged pages that are looked at for one of a short zone: with shares of 1:63, one is
/// among them.
const QUEUE_LOOK: usize = 64;

/// Fruitless steps after which pages of any zone go, and staged pages go although there are few.
const FRUITLESS_MOST: u32 = 8;

impl Engine {
    /// The state of reclaim of list `list`: of all zones, or of one.
    pub(crate) fn hand(&self, list: usize) -> MutexGuard<'_, Hand> {
        self.hands[list].lock().unwrap_or_else(|_| self.stop(StopReason::EngineBroken))
    }

    /// Does one step towards a ready frame: stores the oldest staged page if enough is staged, else
    /// stages more.
    pub(crate) fn reclaim_step(&self, scratch: &mut Scratch) -> Step {
        // Frames of closed owners go first. Those in the regions are the kernel's already, and only
        // the count lags behind.
        if self.take_closed_frames() {
            return Step::Looking;
        }
        // A frame that is ready and too large is room for small ones.
        let no_small = self.zones.ready_bytes(&self.space) == 0 && !self.has_room();
        if no_small && self.give_back_a_huge_frame() {
            return Step::FrameReady;
        }
        match &self.zones.reclaimers {
            None => self.step_of(List::OF_ALL, scratch),
            Some(reclaimers) => self.step_of_a_zone(reclaimers, scratch),
        }
    }

    /// The same with the pages of one list.
    fn step_of(&self, list: List, scratch: &mut Scratch) -> Step {
        let (staged, share) = (self.staged_of(list), self.staged_most(list));
        let is_hands_turn = || {
            let mut hand = self.hand(list.number());
            hand.steps = hand.steps.wrapping_add(1);
            hand.steps.is_multiple_of(HAND_TURN)
        };
        let enough = staged >= share && !(staged >= 2 * share && is_hands_turn());
        if enough && let Some(step) = self.store_oldest_of(list, scratch) {
            return step;
        }
        match self.stage_next(list, scratch) {
            Step::Exhausted => self.store_oldest_of(list, scratch).unwrap_or(Step::Exhausted),
            Step::Looking => {
                // All pages that the hand finds may be pinned: then staged pages go, however few.
                let mut hand = self.hand(list.number());
                hand.fruitless = hand.fruitless.wrapping_add(1);
                let store = hand.fruitless.is_multiple_of(FRUITLESS_MOST);
                drop(hand);
                if !store {
                    return Step::Looking;
                }
                self.rest(list);
                self.store_oldest_of(list, scratch).unwrap_or(Step::Looking)
            }
            step => {
                self.hand(list.number()).fruitless = 0;
                step
            }
        }
    }

    /// How much is staged before the oldest of it is stored.
    fn staged_most(&self, list: List) -> u64 {
        (self.resident_of(list) + self.staged_of(list)) / STAGED_SHARE
    }

    /// Stores the page that has been staged for longest. None if nothing is staged.
    #[cfg(test)]
    pub(crate) fn store_oldest(&self, scratch: &mut Scratch) -> Option<Step> {
        self.store_oldest_of(List::OF_ALL, scratch)
    }

    /// Stores the page of a list that has been staged for longest. None if there is none.
    fn store_oldest_of(&self, list: List, scratch: &mut Scratch) -> Option<Step> {
        loop {
            let Staged { entries, index, slot } = self.take_oldest_staged(list)?;
            let entry = &entries[index];
            let Some(word) = try_take(entry) else {
                // Another thread moves it: it is either gone when it comes up again, or to be
                // stored then.
                self.hand(list.number()).queue.push_back(Staged { entries, index, slot });
                return Some(Step::Looking);
            };
            if word.backing() != Backing::Slot(slot) {
                give(entry, word);
                continue;
            }
            if entries.file().is_none() && self.demote_before_packing(&entries, index, word, slot) {
                return Some(Step::Staged);
            }
            return Some(self.store_taken(Staged { entries, index, slot }, word, scratch));
        }
    }

    /// Stores a page that is in `slot`, if it still is. None if it is not, or another thread has
    /// it.
    fn store_staged(
        &self,
        entries: &Entries,
        index: usize,
        slot: u32,
        scratch: &mut Scratch,
    ) -> Option<Step> {
        let word = try_take(&entries[index])?;
        if word.backing() != Backing::Slot(slot) {
            give(&entries[index], word);
            return None;
        }
        Some(self.store_taken(Staged { entries: Arc::clone(entries), index, slot }, word, scratch))
    }

    /// Stores a staged page whose entry's busy bit the caller has taken.
    fn store_taken(&self, staged: Staged, word: Word, scratch: &mut Scratch) -> Step {
        let Staged { entries, index, slot } = &staged;
        let (index, slot, entry) = (*index, *slot, &entries[*index]);
        let file = entries.file();
        if let Some(file) = &file
            && self.drop_to_file(file, entries, index, word, slot)
        {
            return Step::FrameReady;
        }
        if let Some(file) = &file {
            self.complete_from_file(file, index, word, slot);
        }
        let held = self.space.claim_slot(slot);
        let there = self.staged_frames(&held);
        match self.store.put_present(self.space.bytes(&held), there, scratch) {
            Ok(put) => {
                self.count_put(&put);
                self.note_stored(entries, there, put);
                if let Put::Stored(handle) = put {
                    self.store.note_evicted(handle, there.without(word.resident()));
                }
                self.ledger.store_has(self.store.usage().memory_committed_bytes.get());
                // Without a backing it would be read from the file. Of a program the handle says
                // that it held the page.
                let keeps_zeroes = file.is_some() || !self.is_library && self.is_whole(there);
                let backing = match put {
                    Put::Zero if keeps_zeroes => Backing::Handle(Handle::ZEROES.to_bits()),
                    Put::Zero => Backing::None,
                    Put::Stored(handle) => Backing::Handle(Handle::to_bits(handle)),
                };
                let after = word.with_backing(backing).with_warmth(0);
                self.ledger.changed(word, after);
                give(entry, after);
                self.unstage(held);
                Step::FrameReady
            }
            Err(error) => {
                self.space.release_slot(held);
                give(entry, word);
                let list = self.zones.list_of_slot(slot);
                self.hand(list).queue.push_front(Staged { entries: Arc::clone(entries), index, slot });
                Step::Full(error)
            }
        }
    }

    fn is_whole(&self, granules: Granules) -> bool {
        granules.count() as usize * OS_PAGE == self.entry_bytes()
    }

    /// The page that has been staged for longest. With several zones on one list, of which some are
    /// short, the oldest page of those among the first.
    fn take_oldest_staged(&self, list: List) -> Option<Staged> {
        if list != List::OF_ALL || !self.zones.are_several() {
            return self.hand(list.number()).queue.pop_front();
        }
        let short = self.short_zones();
        let mut hand = self.hand(list.number());
        let is_short = |staged: &Staged| short >> self.zones.of_slot(staged.slot) & 1 == 1;
        let first = hand.queue.iter().take(QUEUE_LOOK).position(is_short);
        hand.queue.remove(first.unwrap_or(0))
    }

    pub(crate) fn count_put(&self, put: &Put) {
        self.counters.add(Counter::Stores, 1);
        match put {
            Put::Zero => self.counters.add(Counter::StoresZero, 1),
            Put::Stored(handle) if handle.is_same_filled() => self.counters.add(Counter::StoresSame, 1),
            Put::Stored(_) => {}
        }
    }

    /// Moves the next resident pages that the hand comes to out of their region.
    fn stage_next(&self, list: List, scratch: &mut Scratch) -> Step {
        let table = self.gate_shared();
        // Checked with the gate held. A released range is unregistered with the gate held
        // exclusively, and a move does not check whether its source is registered. Nor while
        // copy-on-write is broken ahead: the reclaimer may wait for that, and a handler would hang.
        if self.is_released() || self.is_making_any_own() {
            return Step::Looking;
        }
        if table.order.deferred() > 0 {
            return Step::Again;
        }
        let (span, first, count) = match self.next_candidates(list, &table) {
            Ok(Some(found)) => found,
            Ok(None) => return Step::Looking,
            Err(()) => return Step::Exhausted,
        };
        let address = span.page(first, span.range(), table.entry_bytes()).addresses(0, 1).start();
        if self.leaves_huge(&table, span, address) {
            return self.evict_huge(table, address, scratch);
        }
        let mut copied = Vec::new();
        let mut step = None;
        if count > 1 {
            step = self.stage_run(&table, span, first, count, &mut copied);
        }
        let mut step = step.unwrap_or_else(|| {
            let mut step = Step::Looking;
            for index in first..first + count {
                step = self.stage_page(&table, span, index, &mut copied);
                if step == Step::Again {
                    break;
                }
            }
            step
        });
        // No gate is needed to finish: events and faults go on meanwhile.
        drop(table);
        for out in copied {
            step = self.settle_copied(out, scratch);
        }
        step
    }

    /// Advances the hand to the next pages that may go: `Ok(None)` if there was none within the
    /// bound, `Err` if a whole round had none.
    fn next_candidates<'a>(
        &self,
        list: List,
        table: &'a Table,
    ) -> Result<Option<(&'a Span, usize, usize)>, ()> {
        let entry_bytes = table.entry_bytes();
        // Of a zone that is short nothing may be able to go.
        let short = self.zones_of(list);
        let mut hand = self.hand(list.number());
        let from = if hand.fruitless < FRUITLESS_MOST { short } else { u64::MAX };
        let is_from = |word: Word| from >> word.zone() & 1 == 1;
        let mut looks = LOOK_BOUND;
        let mut wrapped = false;
        loop {
            let Some(span) = table.next_from(hand.address) else {
                if wrapped {
                    if from != u64::MAX {
                        hand.fruitless = FRUITLESS_MOST;
                        return Ok(None);
                    }
                    return Err(());
                }
                wrapped = true;
                hand.address = 0;
                continue;
            };
            let start = hand.address.max(span.range().start());
            let rest = PageRange::new(start & !4095, span.range().end()).ok_or(())?;
            let indices = span.indices(rest, entry_bytes);
            let page_end = |index| {
                let page = span.page(index, span.range(), entry_bytes);
                page.addresses(0, (entry_bytes / 4096) as u32).end().min(span.range().end())
            };
            if !span.movable.load(Ordering::Relaxed) {
                hand.address = span.range().end();
                looks = looks.saturating_sub(1);
            }
            let indices = if span.movable.load(Ordering::Relaxed) { indices } else { 0..0 };
            let last = indices.end;
            for index in span.entries().used(indices) {
                if looks == 0 {
                    hand.address =
                        span.page(index, span.range(), entry_bytes).addresses(0, 1).start().max(start);
                    return Ok(None);
                }
                looks -= 1;
                let word = span.word(index);
                if !is_from(word) || !self.may_go(word, span.entry(index)) {
                    continue;
                }
                let mut end = index + 1;
                // Parts of pages go one by one, and the gate is released in between: each part is a
                // system call of its own.
                let all = Granules::range(0, (entry_bytes / 4096) as u32);
                if word.resident() == all && !word.is_huge() {
                    end = self.end_of_run(span, index, last, entry_bytes, |at| {
                        self.may_go(span.word(at), span.entry(at))
                    });
                }
                hand.address = page_end(end - 1);
                return Ok(Some((span, index, end - index)));
            }
            hand.address = span.range().end();
            if looks == 0 {
                return Ok(None);
            }
        }
    }

    /// The end of the run of whole pages of one zone that begins at `index` and that may go
    /// together: before `last`, and not into another place of 2 MiB where the kernel may have
    /// collapsed pages.
    fn end_of_run(
        &self,
        span: &Span,
        index: usize,
        last: usize,
        entry_bytes: usize,
        may_go: impl Fn(usize) -> bool,
    ) -> usize {
        let word = span.word(index);
        let address = |index| span.page(index, span.range(), entry_bytes).addresses(0, 1).start();
        let may_join = |end: usize| !(span.may_be_joined() && address(end).is_multiple_of(HUGE_FRAME));
        let mut end = index + 1;
        while end < last && end - index < 1 << BATCH_ORDER && may_join(end) {
            let next = span.word(end);
            let is_alike =
                next.resident() == word.resident() && !next.is_huge() && next.zone() == word.zone();
            if !is_alike || !may_go(end) {
                break;
            }
            end += 1;
        }
        end
    }

    /// Whether this entry may be moved out now. One that was missed lately is spared, and cools.
    fn may_go(&self, word: Word, entry: &std::sync::atomic::AtomicU64) -> bool {
        if word.is_busy() || word.resident().is_empty() {
            return false;
        }
        if word.warmth() > 0 {
            let cooler = word.with_warmth(word.warmth() - 1);
            // If another thread changed it meanwhile it is warm for another reason.
            let _ = entry.compare_exchange(word.bits(), cooler.bits(), Ordering::AcqRel, Ordering::Relaxed);
            return false;
        }
        true
    }
}
