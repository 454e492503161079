//! Fault-around: a sequential first touch fills the pages above it with the same fault.
//!
//! The wake-up dominates the cost of a first touch. It is paid once for up to 2 MiB here, and for
//! up to eight places of 2 MiB above them that come as huge frames.
//! `pagoda_core::fault::fault_around` and `pagoda_core::fault::huge_window` decide how far to go.
//! The window is filled before the faulting page, so that its thread can't fault on the window
//! meanwhile. This module must never fill a page that holds content, never take a frame that
//! reclaim would have to replace, and never hold the gate for long.
//!
//! The pages are zero-filled, as by a fault of their own. An unread discard or unmap makes the
//! kernel refuse, as it does any fill. One that was read has emptied the entries before, and its
//! discard drops these pages like any other.

use std::sync::MutexGuard;

use pagoda_core::fault::fault_around::WINDOW_MOST;
use pagoda_core::fault::huge_window::{Places, WHOLE_MOST};
use pagoda_core::page::{HUGE_FRAME, OS_PAGE};
use pagoda_core::page_entry::{Backing, Granules, Word};
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::uffd::fault_address::FaultAddress;

use crate::engine::Engine;
use crate::error::StopReason;
use crate::state::pending::{Fault, Served};
use crate::state::touch_streams::{Streams, Window};
use crate::stats::counters::Counter;
use crate::table::{Filler, Page, Span, Table, give, try_take};

/// The most that is filled with the gate held: a thread that maps or unmaps waits that long, 0.1
/// ms.
const GATE_BYTES: usize = 256 << 10;

impl Engine {
    fn streams(&self) -> MutexGuard<'_, Streams> {
        self.around.streams.lock().unwrap_or_else(|_| self.stop(StopReason::EngineBroken))
    }

    /// Fills base pages above a fault before it is served, if the fault continues a stream of first
    /// touches. For a stream of writes it fills the places above them with huge frames. Does
    /// nothing unless there is plenty of room.
    pub(crate) fn fill_around(&self, fault: Fault) {
        // With several zones each frame is taken from its zone's slots, one after the other.
        if !self.around.on || self.zones.are_several() {
            return;
        }
        // Each first touch of a region with a limit is counted.
        if self.limits.at(fault.at.page()).is_some() {
            return;
        }
        let Some(window) = self.window_above(fault) else { return };
        let mut at = window.start;
        while at < window.end {
            let end = window.end.min(at + GATE_BYTES);
            let (reached, stopped) = self.fill_empty(PageRange::at(at, end - at), fault.write);
            if stopped {
                return;
            }
            at = reached;
        }
        for place in 0..window.places {
            // A stream touches the beginning of the place first.
            let at = window.end + place * HUGE_FRAME;
            if self.put_huge_frame(FaultAddress::of_byte(at), Filler::EngineOnwards) != Some(Served::Done) {
                return self.streams().end_at(&window, at);
            }
            self.counters.add(Counter::FilledAround, (HUGE_FRAME / self.entry_bytes()) as u64);
        }
    }

    /// The window to fill above the fault: whole steps of one span, empty as far as is known.
    fn window_above(&self, fault: Fault) -> Option<Window> {
        let address = fault.at.page();
        // Far from where reclaim begins, even if every handler is about to do the same.
        let enough = self.marks().high.get() + 4 * WINDOW_MOST.get();
        if self.is_released() || self.ledger.room_bytes() < enough {
            return None;
        }
        let table = self.gate_shared();
        let span = table.find(address).filter(|span| fills_around(span.filler()))?;
        let size = self.size_of_steps(span);
        let page = table.page_at(span, address);
        let granules = (size.bytes() / OS_PAGE) as u32;
        let first = page.granule_of(address) / granules * granules;
        // Whether one of that size is wholly within the span, holds nothing, and is worth zero.
        let is_empty = |start: usize| {
            let whole = PageRange::at(start, size.bytes());
            span.range().intersection(whole) == Some(whole) && {
                let page = table.page_at(span, start);
                let first = page.granule_of(start);
                let part = Granules::range(first, first + granules);
                let word = span.word(page.index);
                !word.is_busy() && is_empty(word, part) && self.owed_granules(&page).and(part).is_empty()
            }
        };
        // Of the first one in a span that was moved a part may lie below address zero.
        let within = (page.granule_of(address) - first) as usize * OS_PAGE;
        let start = address.checked_sub(within)?;
        if !is_empty(start) {
            return None;
        }
        // Numbered by address, so that two spans don't share numbers. The pages of a moved span are
        // not aligned; the numbers need not be either.
        let number = (start / size.bytes()) as u64;
        let below = (start.saturating_sub(span.range().start()) / size.bytes()) as u64;
        let above = ((span.range().end() - start) / size.bytes()) as u64;
        let entry_steps = self.steps_of_entry(span, size);
        let is_in_places = span.filler() == Filler::EngineOnwards;
        let places = Places::new(entry_steps, is_in_places.then_some((HUGE_FRAME / size.bytes()) as u64));
        let mut streams = self.streams();
        let (stream, places) = streams.at(size, number, places);
        let window = stream.fault(number, number - below..number + above, |other| {
            let offset = other.wrapping_sub(number).wrapping_mul(size.bytes() as u64);
            is_empty(start.wrapping_add(offset as usize))
        });
        // A stream of reads gets zero pages, which take no memory.
        let takes_whole = is_in_places && fault.write && self.huge.come_whole();
        let free = |place: u64| match takes_whole {
            true => free_places(&table, span, place as usize * HUGE_FRAME),
            false => 0,
        };
        let cut = places.cut(window, u64::from(first / granules) % entry_steps, stream.goes_on(), free);
        let goes_on_at = places.end(&cut);
        stream.ends_at(goes_on_at);
        drop(streams);
        Some(Window {
            size,
            goes_on_at,
            start: start + size.bytes(),
            end: start + (cut.steps.end - number) as usize * size.bytes(),
            places: cut.whole as usize,
        })
    }

    /// Fills `range`, lowest first, as long as it is empty. Returns how far it came, and whether it
    /// was stopped.
    fn fill_empty(&self, range: PageRange, write: bool) -> (usize, bool) {
        let table = self.gate_shared();
        let entry_bytes = table.entry_bytes();
        let mut at = range.start();
        while at < range.end() {
            // Since the window was decided everything may have changed.
            let span = table.find(at).filter(|span| fills_around(span.filler()));
            let Some(span) = span.filter(|_| table.order.deferred() == 0) else { return (at, true) };
            let page = table.page_at(span, at);
            let from = page.granule_of(at);
            let to = (entry_bytes / OS_PAGE).min(from as usize + (range.end() - at) / OS_PAGE) as u32;
            let part = Granules::range(from, to);
            let Some(word) = try_take(span.entry(page.index)) else { return (at, true) };
            let is_owed = !self.owed_granules(&page).and(part).is_empty();
            if is_owed || !is_empty(word, part) || page.granules.and(part) != part {
                give(span.entry(page.index), word);
                return (at, true);
            }
            let filled = self.fill_part(&page, (from, to), write);
            give(span.entry(page.index), word.with_resident(word.resident().or(filled)));
            self.ledger.resident(i64::from(filled.count()) * OS_PAGE as i64);
            if filled != part {
                return (at, true);
            }
            self.counters.add(Counter::FilledAround, self.touches_saved(span, filled));
            at += (to - from) as usize * OS_PAGE;
        }
        (at, false)
    }

    /// Fills granules of a page whose entry is taken: zero-filled for a write, with the zero page
    /// for a read. Returns the filled granules.
    fn fill_part(&self, page: &Page, (from, to): (u32, u32), write: bool) -> Granules {
        let mut filled = from;
        while filled < to {
            let rest = page.addresses(filled, to);
            let progress =
                if write { self.space.fill_with_zeroes(rest) } else { self.space.fill_with_zero_page(rest) };
            filled += (progress.bytes / OS_PAGE) as u32;
            // As for a fault: the zero page costs nothing until it is written, and that write makes
            // no fault.
            self.ledger.took(progress.bytes as i64);
            if progress.stop.is_some() {
                break;
            }
        }
        Granules::range(from, filled)
    }
}

/// Whether more than the faulting page is filled there. Not in a region where each fault brings a
/// huge frame, nor in a file.
fn fills_around(filler: Filler) -> bool {
    matches!(filler, Filler::Engine | Filler::EngineOnwards)
}

/// The number of places from `address` on that are empty and whole in the span, up to the most that
/// a window takes.
fn free_places(table: &Table, span: &Span, address: usize) -> u32 {
    let is_free = |place: &u32| {
        let place = PageRange::at(address + *place as usize * HUGE_FRAME, HUGE_FRAME);
        span.range().intersection(place) == Some(place)
            && span.indices(place, table.entry_bytes()).all(|index| span.word(index) == Word::EMPTY)
    };
    (0..WHOLE_MOST).take_while(is_free).count() as u32
}

/// Whether nothing of `part` is anywhere.
fn is_empty(word: Word, part: Granules) -> bool {
    word.resident().and(part).is_empty() && word.backing() == Backing::None && !word.is_huge()
}
