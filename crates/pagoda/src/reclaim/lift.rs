//! Evicting memory of a library's regions that its owner has protected.
//!
//! A page that the hand could not move is noted, and the reclaimer has it lifted
//! (`pagoda_linux::arena::lift`): from then on it moves like any other page. The steps, all with
//! the gate held exclusively:
//!
//! 1. All messages are read. Each page that is present must have its bit in its entry. One without
//!    may be content that a discard has yet to drop, or that was written since.
//! 2. The pages are lifted. No message is read until they have left. A discard that was announced
//!    by then is carried out after its event was read, and finds nothing. So each lifted page is
//!    content, unless an event that is read next takes its bit.
//! 3. Messages are read until that of the lift has come. The pages are moved to slots.
//!
//! Nothing is lifted that is locked, or while the kernel says that pages are pinned for long: a
//! page that a transfer has pinned for a moment is waited for, since it can't go back. This module
//! must never lift memory that is not a manager's own: only there is no other mapping in its place
//! between step 1 and step 2.

use std::ops::ControlFlow;

use pagoda_core::page::OS_PAGE;
use pagoda_core::page_entry::{Backing, Granules};
use pagoda_linux::arena::lift::{LIFT_BYTES, LiftPlace};
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::process::thread::{ran_ns, sleep_us, yield_now};
use pagoda_linux::procfs::locked::LockedReader;

use crate::engine::Engine;
use crate::error::StopReason;
use crate::reclaim::clean_copy::Copied;
use crate::state::lift::Answer;
use crate::store::Scratch;
use crate::table::{Filler, Page, Span, Table, give, try_take};

/// How long a lift may take, with the transfers that hold its pages: as long as a fault may be in
/// service.
const HELD_NS: u64 = 30_000_000_000;

/// Between two tries to move a page that a transfer has pinned.
const HELD_PAUSE_US: u32 = 100;

/// Whether this is a region of the manager's own memory: with adopted memory nothing is noted.
fn is_own(span: &Span) -> bool {
    span.filler() != Filler::File
}

impl Engine {
    /// Evicts the noted pages, by as few lifts as can be. `start` starts the thread that lifts.
    pub(crate) fn evict_protected(&self, start: &dyn Fn() -> bool, scratch: &mut Scratch) {
        let refused = self.lift.take_refused();
        if refused.is_empty() {
            return;
        }
        let Some(place) = self.lift.place(start) else { return };
        let mut locked = Vec::new();
        let all_are_told = LockedReader::new().and_then(|mut reader| {
            reader.for_each_of_all(|mapping| locked.push((mapping.start, mapping.end)))
        });
        let all_are_told = all_are_told.is_ok_and(|told| told);
        if !all_are_told {
            self.lift.rest();
        }
        let may_go = |range: &PageRange| {
            all_are_told && !locked.iter().any(|(start, end)| *start < range.end() && range.start() < *end)
        };
        for range in self.ranges_of(&refused) {
            if may_go(&range) && self.lift_or_parts(range, place, scratch) {
                continue;
            }
            self.spare(range);
        }
    }

    /// The ranges of these base pages, joined where they follow each other in one region.
    fn ranges_of(&self, addresses: &[usize]) -> Vec<PageRange> {
        let table = self.gate_shared();
        let entry_bytes = table.entry_bytes();
        let mut ranges: Vec<PageRange> = Vec::new();
        for &address in addresses {
            let Some(span) = table.find(address).filter(|span| is_own(span)) else { continue };
            let page = table.page_at(span, address).addresses(0, (entry_bytes / OS_PAGE) as u32);
            let Some(page) = page.intersection(span.range()) else { continue };
            match ranges.last_mut() {
                Some(last) if last.end() == page.start() && last.len() + page.len() <= LIFT_BYTES => {
                    *last = PageRange::at(last.start(), last.len() + page.len());
                }
                Some(last) if last.end() > page.start() => {}
                _ => ranges.push(page),
            }
        }
        ranges
    }

    /// Lifts `range`, or what can be of it, by halves: it may have several mappings, and one page
    /// that has to stay. False if nothing was lifted.
    fn lift_or_parts(&self, range: PageRange, place: &LiftPlace, scratch: &mut Scratch) -> bool {
        if self.lift_range(range, place, scratch) {
            return true;
        }
        let half = range.len() / OS_PAGE / 2 * OS_PAGE;
        let Some(first) = PageRange::new(range.start(), range.start() + half) else { return false };
        let second = PageRange::at(first.end(), range.len() - half);
        let first = self.lift_or_parts(first, place, scratch);
        self.lift_or_parts(second, place, scratch) || first
    }

    /// These pages are not tried again at once.
    fn spare(&self, range: PageRange) {
        let table = self.gate_shared();
        // A part may be unmapped by now.
        if let Some(span) = table.find(range.start())
            && let Some(within) = span.range().intersection(range)
        {
            for index in span.indices(within, table.entry_bytes()) {
                if let Some(word) = try_take(span.entry(index)) {
                    give(span.entry(index), word.with_warmth(3));
                }
            }
        }
    }

    fn lift_range(&self, range: PageRange, place: &LiftPlace, scratch: &mut Scratch) -> bool {
        let mut table = self.gate_exclusive();
        let mut passed = Vec::new();
        while self.read_for_lift(&mut table, &mut passed, scratch) > 0 {}
        // A pin that comes later waits until they are in the slots, and brings them back.
        let moving = self.pins.moving();
        let first = (table.order.deferred() == 0 && !self.is_released() && !moving.overlaps(range))
            .then(|| self.first_to_lift(&table, range))
            .flatten();
        let lifted = match first {
            Some(first) => self.take_lifted(&mut table, range, first, place, &mut passed, scratch),
            None => false,
        };
        drop(moving);
        drop(table);
        // Their threads try again.
        passed.into_iter().for_each(|page| self.space.wake(page));
        lifted
    }

    /// Reads messages, applies the events, and notes the pages of faults. Returns how many came.
    fn read_for_lift(&self, table: &mut Table, passed: &mut Vec<PageRange>, scratch: &mut Scratch) -> usize {
        let read = self.space.read(|message| {
            if let Some(fault) = self.apply(table, message, scratch) {
                passed.push(fault.at.page_range());
            }
        });
        read.unwrap_or_else(|errno| self.stop_unread(errno))
    }

    /// The address of the first page in `range` that is there. None if there is none, or if
    /// anything is there that must stay.
    fn first_to_lift(&self, table: &Table, range: PageRange) -> Option<usize> {
        let span = table.find(range.start()).filter(|span| is_own(span))?;
        if span.range().intersection(range) != Some(range) {
            return None;
        }
        let mut first = None;
        for index in span.indices(range, table.entry_bytes()) {
            let page = span.page(index, range, table.entry_bytes());
            let word = try_take(span.entry(index))?;
            // Of these there is another copy in the slot, which is stored before they go out.
            let copied = match word.backing() {
                Backing::Slot(slot) => {
                    let slot = self.space.claim_slot(slot);
                    let pages = self.space.pages_of(&slot);
                    self.space.release_slot(slot);
                    pages
                }
                Backing::None | Backing::Handle(_) => Granules::NONE,
            };
            give(span.entry(index), word);
            let may_go = word.resident().without(copied);
            for (from, to) in page.granules.runs() {
                for granule in from..to {
                    let at = page.addresses(granule, granule + 1);
                    if self.space.held_pages(at).is_empty() {
                        continue;
                    }
                    if word.is_huge() || !may_go.has(granule) {
                        return None;
                    }
                    first = first.or(Some(at.start()));
                }
            }
        }
        first
    }

    /// Has `range` lifted, and moves its pages, of which the one at `first` is there, to slots.
    fn take_lifted(
        &self,
        table: &mut Table,
        range: PageRange,
        first: usize,
        place: &LiftPlace,
        passed: &mut Vec<PageRange>,
        scratch: &mut Scratch,
    ) -> bool {
        let whole = place.of(range);
        let seen = PageRange::page(whole.start() + first - range.start());
        let since_ns = ran_ns();
        let check_time = || {
            if ran_ns().saturating_sub(since_ns) > HELD_NS {
                self.stop(StopReason::EngineBroken);
            }
        };
        self.lift.ask(range);
        let mut has_left = false;
        while self.lift.answer() == Answer::Pending {
            has_left = has_left || !self.space.held_pages(seen).is_empty();
            if !has_left || self.read_for_lift(table, passed, scratch) == 0 {
                check_time();
                yield_now();
            }
        }
        let answer = self.lift.answer();
        self.lift.end();
        if answer == Answer::Failed {
            return false;
        }
        if !self.lift.was_told() {
            // It was not managed: unmapped, and mapped anew, against what a region promises.
            self.space.put_back_lifted(range, place).unwrap_or_else(|_| self.stop(StopReason::EngineBroken));
            return false;
        }
        self.space.open_lifted(range, place).unwrap_or_else(|_| self.stop(StopReason::EngineBroken));
        while let ControlFlow::Continue(pause) = self.stage_lifted(table, range, whole, scratch) {
            if pause {
                // A transfer has a page, or it is shared with the kernel's merged pages.
                self.space.make_own(whole);
                sleep_us(HELD_PAUSE_US);
            }
            check_time();
            self.read_for_lift(table, passed, scratch);
        }
        self.space.drop_lifted(range, place);
        true
    }

    /// Moves lifted pages to slots. Done, or to be called again, after a pause if that is said: an
    /// event is unread, or a page is held.
    fn stage_lifted(
        &self,
        table: &Table,
        range: PageRange,
        whole: PageRange,
        scratch: &mut Scratch,
    ) -> ControlFlow<(), bool> {
        let mut rest = ControlFlow::Break(());
        // Without the parts that were unmapped meanwhile.
        for span in table.spans_in(range) {
            let Some(within) = span.range().intersection(range) else { continue };
            for index in span.indices(within, table.entry_bytes()) {
                let page = span.page(index, within, table.entry_bytes());
                if span.word(index).resident().and(page.granules).is_empty() {
                    continue;
                }
                let before = span.word(index);
                self.stage_lifted_page(
                    table,
                    span,
                    &page,
                    whole.start().wrapping_sub(range.start()),
                    scratch,
                );
                if !span.word(index).resident().and(page.granules).is_empty() {
                    rest = ControlFlow::Continue(span.word(index) == before);
                }
            }
        }
        rest
    }

    fn stage_lifted_page(
        &self,
        table: &Table,
        span: &Span,
        page: &Page,
        shift: usize,
        scratch: &mut Scratch,
    ) {
        let mut copied: Vec<Copied> = Vec::new();
        self.stage_page_from(table, span, page.index, &page.shifted(shift), &mut copied);
        // It needs no gate, and holds the busy bit of an entry that may be asked for next.
        for out in copied {
            self.settle_copied(out, scratch);
        }
    }
}
