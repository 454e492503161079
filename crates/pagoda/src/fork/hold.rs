//! Holding writes to memory that a fork shares, as long as their copies don't fit the budget.
//!
//! The watcher of a parent begins some milliseconds after the fork, that of a child with its engine
//! (`pagoda_core::fork::pace` says whether). From then on the first write to a base page is a fault
//! of its own kind: its handler finds room for the copies, evicting pages where there is none, and
//! lifts the protection; the kernel makes the copies. A page that moves or is discarded is
//! protected no more, and nothing notes which ones are: a fault on a page that no other process has
//! lifts the protection of all such pages around it.
//!
//! No content depends on the protection. This module must never hold a pinned page, which the
//! kernel writes without serving faults, nor let the reclaimer wait for room that it makes.

use std::sync::atomic::Ordering;

use pagoda_core::fault::swap_in::{Extent, GranuleAt, Window};
use pagoda_core::fork::pace::Account;
use pagoda_core::page::OS_PAGE;
use pagoda_core::size::Bytes;
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::process::thread::now_ns;

use crate::engine::Engine;
use crate::state::hand::Step;
use crate::state::pending::{Fault, Tried};
use crate::stats::counters::Counter;
use crate::store::Scratch;
use crate::table::Table;

/// How much is protected at once, a pin waiting meanwhile: some hundred microseconds.
const HOLD_BYTES: usize = 16 << 20;

/// How much around a page that is not shared any more is let go with it, at most.
const LET_GO_BYTES: usize = 4 << 20;

/// Steps of reclaim that a handler does for one held write before it tries again.
const STEPS: u32 = 9;

/// Frames that are made ready for each that is copied: the other outweighs by which the store grew.
const FRAMES_FOR_ONE: u64 = 2;

/// The next part of managed memory from `at` on, a bounded one.
fn next_to_hold(table: &Table, at: usize) -> Option<PageRange> {
    let mut from = at;
    loop {
        let span = table.next_from(from)?;
        if span.movable.load(Ordering::Relaxed) {
            let start = span.range().start().max(from);
            return Some(PageRange::at(start, HOLD_BYTES.min(span.range().end() - start)));
        }
        from = span.range().end();
    }
}

impl Engine {
    /// Has the watcher hold writes at its first look in so many nanoseconds or later.
    pub(crate) fn hold_writes_after(&self, ns: u64) {
        let now = now_ns();
        let next = now + ns;
        // One that is due is being looked at: that look does not know of this fork, and clears
        // nothing that has changed.
        let sooner = |due| (due <= now || due > next).then_some(next);
        let _ = self.hold_due_ns.fetch_update(Ordering::AcqRel, Ordering::Acquire, sooner);
    }

    /// Holds writes to all managed memory, once, as soon as that is due and copies of shared
    /// pages would not fit. Right after the kernel's count of it was looked at.
    pub(crate) fn hold_writes_if_due(&self) {
        let due = self.hold_due_ns.load(Ordering::Acquire);
        if due > now_ns() {
            return;
        }
        // Of pages that two processes share, half are in the other's account; with more processes,
        // more.
        let shared = self.ledger.resident_bytes().min(2 * self.ledger.others_bytes());
        let holds = self.account().holds(Bytes::new(shared));
        // It becomes due again by another fork, or with memory that is registered later.
        if holds || shared == 0 {
            let _ = self.hold_due_ns.compare_exchange(due, u64::MAX, Ordering::AcqRel, Ordering::Relaxed);
        }
        if !holds || self.is_released() {
            return;
        }
        let mut at = 0;
        loop {
            let table = self.gate_shared();
            let Some(range) = next_to_hold(&table, at) else { return };
            at = range.end();
            if !self.hold_unpinned(range) {
                // An event is unread.
                return self.hold_writes_after(0);
            }
        }
    }

    fn account(&self) -> Account {
        let [budget, held] = [self.ledger.budget_bytes(), self.ledger.held_bytes()].map(Bytes::new);
        Account { budget, held }
    }

    /// False if an event is unread.
    fn hold_unpinned(&self, range: PageRange) -> bool {
        // A pin that comes later waits until this is done, and then writes to its pages.
        let moving = self.pins.moving();
        let mut start = range.start();
        for pinned in moving.pinned_in(range) {
            if PageRange::new(start, pinned.start()).is_some_and(|part| !self.space.hold_writes(part)) {
                return false;
            }
            start = start.max(pinned.end());
        }
        PageRange::new(start, range.end()).is_none_or(|rest| self.space.hold_writes(rest))
    }

    /// Serves a write that is held: it goes on, or waits for room.
    pub(crate) fn serve_held(&self, fault: &mut Fault, scratch: &mut Scratch) -> Tried {
        if let Some(tried) = self.try_held(fault) {
            return tried;
        }
        if !std::mem::replace(&mut fault.has_rung, true) {
            self.counters.add(Counter::FaultsThrottled, 1);
            self.bell.ring();
        }
        for _ in 0..STEPS {
            match self.reclaim_step(scratch) {
                Step::FrameReady => fault.paid_bytes += self.entry_bytes() as u64 / FRAMES_FOR_ONE,
                Step::Staged | Step::Looking => {}
                Step::Again | Step::Exhausted | Step::Full(_) => break,
            }
            if fault.paid_bytes >= self.entry_bytes() as u64 {
                break;
            }
        }
        self.keep_budget();
        self.try_held(fault).unwrap_or(Tried::Kept)
    }

    /// None if there is no room.
    fn try_held(&self, fault: &Fault) -> Option<Tried> {
        let address = fault.at.page();
        let table = self.gate_shared();
        // Writes wait for events that are older.
        if table.order.deferred() > 0 {
            return Some(Tried::Kept);
        }
        let (page, within) = match table.find(address) {
            Some(span) => {
                let page = table.page_at(span, address).addresses(0, (table.entry_bytes() / OS_PAGE) as u32);
                let start = address / LET_GO_BYTES * LET_GO_BYTES;
                let around = PageRange::at(start, LET_GO_BYTES).intersection(span.range());
                (page.intersection(span.range()), around)
            }
            None => (None, None),
        };
        let page = page.unwrap_or(fault.at.page_range());
        let shared = self.space.shared_pages(page).count();
        let at = GranuleAt::new(address, self.entry_bytes());
        let extent = self.recent.extent(at);
        // The rest of it is written later, or never.
        let soon = if let Extent::Granules(order) = extent { shared.min(1 << order) } else { shared };
        let copies = u64::from(soon) * OS_PAGE as u64;
        let waited_ns = now_ns().saturating_sub(fault.since_ns);
        let goes_on = copies == 0
            || self.is_awaited(address)
            || self.is_released()
            || self.account().goes_on(Bytes::new(copies), Bytes::new(fault.paid_bytes), waited_ns);
        if !goes_on {
            return None;
        }
        let range = match within {
            Some(within) if copies == 0 => self.space.unshared_around(page, within),
            _ => page,
        };
        if !self.space.let_writes(range) {
            self.counters.add(Counter::RetriesAgain, 1);
            return Some(Tried::Kept);
        }
        self.ledger.copied(copies);
        self.note_use();
        self.recent.note(Window::new(at, extent, true));
        self.counters.add(Counter::HeldWrites, 1);
        self.counters.add(Counter::HeldWriteNs, waited_ns);
        Some(Tried::Served)
    }
}
