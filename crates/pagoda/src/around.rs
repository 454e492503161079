//! Fault-around: who touches memory for the first time and goes on upwards gets the pages above with the same fault.
//!
//! What costs of a first touch is the wake-up, which is paid once for up to 2 MiB here. How far to go says
//! `pagoda_core::fault_around`; this fills it, before the page that is waited for, so that nobody comes in between. It must
//! never fill anything but what holds nothing and is worth zero, never take a frame that reclaim would have to replace, and
//! never have the gate for long.
//!
//! What is filled is zero, as it would be for who touches it. A discard or an unmapping that nobody has read makes the kernel
//! refuse, as it does any fill; one that was read has emptied the entries before, and drops what is filled now like
//! anything else that is there.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard};

use pagoda_core::entry::{Backing, Granules, Word};
use pagoda_core::fault_around::{FaultAround, WINDOW_MOST};
use pagoda_core::page::{BasePage, OS_PAGE};
use pagoda_linux::range::PageRange;

use crate::counters::Counter;
use crate::engine::Engine;
use crate::error::StopReason;
use crate::handler::Fault;
use crate::table::{Filler, Page, give, try_take};

/// Streams that are followed at the same time: a few threads of which each fills something. One more begins anew at each fault.
const STREAMS: usize = 8;

/// Filled with the gate held, at most: who maps or unmaps waits for the end of that, 0.1 ms.
const GATE_BYTES: usize = 256 << 10;

/// Who touches memory upwards, and how far the last window went.
pub(crate) struct Around {
    on: bool,
    streams: Mutex<Streams>,
}

struct Streams {
    /// The steps by which the stream is followed, and how far it has come.
    of: [(BasePage, FaultAround); STREAMS],
    /// The one that a new stream takes.
    next: usize,
}

impl Around {
    pub(crate) fn new(base: BasePage, on: bool) -> Self {
        let none = (base, FaultAround::new(base));
        Self { on, streams: Mutex::new(Streams { of: [none; STREAMS], next: 0 }) }
    }
}

impl Streams {
    /// The stream that goes on at `page` of this size, or one that begins there.
    fn at(&mut self, size: BasePage, page: u64) -> &mut FaultAround {
        let known = self.of.iter().position(|(of, stream)| *of == size && stream.may_go_on_at(page));
        let at = known.unwrap_or_else(|| {
            self.next = (self.next + 1) % STREAMS;
            self.of[self.next] = (size, FaultAround::new(size));
            self.next
        });
        &mut self.of[at].1
    }
}

impl Engine {
    fn streams(&self) -> MutexGuard<'_, Streams> {
        self.around.streams.lock().unwrap_or_else(|_| self.stop(StopReason::EngineBroken))
    }

    /// Before a fault is served: fills base pages right above its own if that is touched for the first time by who goes on
    /// upwards. Does nothing where there is not plenty of room.
    pub(crate) fn fill_around(&self, fault: Fault) {
        // With several zones each frame is taken from its zone's slots, one after the other.
        if !self.around.on || self.zones.are_several() {
            return;
        }
        let Some(window) = self.window_above(fault.address) else { return };
        let mut at = window.start();
        while at < window.end() {
            let end = window.end().min(at + GATE_BYTES);
            let (reached, stopped) = self.fill_empty(PageRange::at(at, end - at), fault.write);
            if stopped {
                return;
            }
            at = reached;
        }
    }

    /// What is to be filled above the fault: whole steps of one span, empty as far as is known.
    fn window_above(&self, address: usize) -> Option<PageRange> {
        // Far from where reclaim begins, even if every handler is about to do the same.
        let enough = self.marks().high.get() + 4 * WINDOW_MOST.get();
        if self.is_released() || self.ledger.room_bytes() < enough {
            return None;
        }
        let table = self.gate_shared();
        let span = table.find(address).filter(|span| span.filler() == Filler::Engine)?;
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
                let word = Word::from_bits(span.entry(page.index).load(Ordering::Acquire));
                !word.is_busy() && is_empty(word, part) && self.owed_granules(&page).and(part).is_empty()
            }
        };
        // Of the first one in a span that was moved a part may lie below address zero.
        let within = (page.granule_of(address) - first) as usize * OS_PAGE;
        let start = (address & !(OS_PAGE - 1)).checked_sub(within)?;
        if !is_empty(start) {
            return None;
        }
        // Numbered by address, so that spans don't share numbers; a moved span's pages are not aligned, and that is no matter.
        let number = (start / size.bytes()) as u64;
        let below = (start.saturating_sub(span.range().start()) / size.bytes()) as u64;
        let above = ((span.range().end() - start) / size.bytes()) as u64;
        let mut streams = self.streams();
        let stream = streams.at(size, number);
        let mut window = stream.fault(number, number - below..number + above, |other| {
            let offset = other.wrapping_sub(number).wrapping_mul(size.bytes() as u64);
            is_empty(start.wrapping_add(offset as usize))
        });
        if size.bytes() < table.entry_bytes() {
            let entry_pages = (table.entry_bytes() / size.bytes()) as u64;
            window.end = end_within_a_page(&window, u64::from(first / granules), entry_pages);
            stream.ends_at(window.end);
        }
        drop(streams);
        let above = (window.end - window.start - 1) as usize;
        PageRange::new(start + size.bytes(), start + (1 + above) * size.bytes())
    }

    /// Fills `range`, lowest first, as long as it is empty. Returns how far it came, and whether something was in the way.
    fn fill_empty(&self, range: PageRange, write: bool) -> (usize, bool) {
        let table = self.gate_shared();
        let entry_bytes = table.entry_bytes();
        let mut at = range.start();
        while at < range.end() {
            // Since the window was decided everything may have changed.
            let span = table.find(at).filter(|span| span.filler() == Filler::Engine);
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
            self.counters.add(Counter::FilledAround, 1);
            at += (to - from) as usize * OS_PAGE;
        }
        (at, false)
    }

    /// Fills granules of a page whose entry is taken with zeroes for who writes, with the zero page for who reads. Returns what is
    /// filled.
    fn fill_part(&self, page: &Page, (from, to): (u32, u32), write: bool) -> Granules {
        let mut filled = from;
        while filled < to {
            let rest = page.addresses(filled, to);
            let progress =
                if write { self.space.fill_with_zeroes(rest) } else { self.space.fill_with_zero_page(rest) };
            filled += (progress.bytes / OS_PAGE) as u32;
            // As for a fault: the zero page costs nothing until it is written, and then nobody asks us.
            self.ledger.took(progress.bytes as i64);
            if progress.stop.is_some() {
                break;
            }
        }
        Granules::range(from, filled)
    }
}

/// Where a window of steps that are smaller than a base page ends: within one, at another place of it each time. Who touches
/// everything goes on there; who touches the same part of each base page passes it, and is no stream. `within` says where in its base
/// page the window begins.
fn end_within_a_page(window: &Range<u64>, within: u64, entry_pages: u64) -> u64 {
    let len = window.end - window.start;
    if len < 2 * entry_pages {
        return window.end;
    }
    let bound = window.end - (within + len) % entry_pages;
    bound - 1 - bound / entry_pages % (entry_pages - 1)
}

/// Whether nothing of `part` is anywhere.
fn is_empty(word: Word, part: Granules) -> bool {
    word.resident().and(part).is_empty() && word.backing() == Backing::None && !word.is_huge()
}
