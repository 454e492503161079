//! Streams of first touches: threads that touch memory upwards, and how far each was filled ahead.
//!
//! At most [`STREAMS`] are followed. A new one takes the place of the oldest. This module must
//! never look at memory.

use std::sync::Mutex;

use pagoda_core::fault::fault_around::FaultAround;
use pagoda_core::fault::huge_window::Places;
use pagoda_core::page::BasePage;

/// The streams that are followed at the same time: a few threads, each of which fills a buffer. One
/// stream more begins anew at each fault.
pub(crate) const STREAMS: usize = 8;

/// A stream of first touches, and how far its last window went.
pub(crate) struct Around {
    pub(crate) on: bool,
    pub(crate) streams: Mutex<Streams>,
}

pub(crate) struct Streams {
    /// The step size of the stream, its progress, and the places of it that come as huge frames.
    of: [(BasePage, FaultAround, Places); STREAMS],
    /// The one that a new stream takes.
    next: usize,
}

/// The pages to fill above a fault, up to `end`; possibly none. After them come so many places of 2
/// MiB as huge frames.
pub(crate) struct Window {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) places: usize,
    /// The steps in which the stream is followed, and the one at which it goes on behind all of it.
    pub(crate) size: BasePage,
    pub(crate) goes_on_at: u64,
}

impl Around {
    pub(crate) fn new(base: BasePage, on: bool) -> Self {
        let none = (base, FaultAround::new(base), Places::new(1, None));
        Self { on, streams: Mutex::new(Streams { of: [none; STREAMS], next: 0 }) }
    }
}

impl Streams {
    /// The stream that goes on at `page` of this size, or one that begins there, with these places.
    pub(crate) fn at(
        &mut self,
        size: BasePage,
        page: u64,
        places: Places,
    ) -> (&mut FaultAround, &mut Places) {
        let known = self.of.iter().position(|(of, stream, _)| *of == size && stream.may_go_on_at(page));
        let at = known.unwrap_or_else(|| {
            self.next = (self.next + 1) % STREAMS;
            self.of[self.next] = (size, FaultAround::new(size), places);
            self.next
        });
        let (_, stream, places) = &mut self.of[at];
        (stream, places)
    }

    /// The fill of `window` ended at this address: the stream touches there next.
    pub(crate) fn end_at(&mut self, window: &Window, address: usize) {
        let is_its = |(size, stream, _): &&mut (BasePage, FaultAround, Places)| {
            *size == window.size && stream.goes_on_at() == Some(window.goes_on_at)
        };
        if let Some((_, stream, _)) = self.of.iter_mut().find(is_its) {
            stream.ends_at((address / window.size.bytes()) as u64);
        }
    }
}
