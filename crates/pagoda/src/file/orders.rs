//! The windows to be read ahead of a file, in the order of their requests.
//!
//! At most [`ORDERS_MOST`] wait. This module must never read.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Mutex;

use pagoda_core::fault::readahead::{ReadAhead, STREAMS};
use pagoda_core::page_entry::{Backing, Word};
use pagoda_core::size::Bytes;

use crate::file::seen::locked;

/// The part of a window that is read at once: a reader that comes too early waits for it.
pub(crate) const READ_BYTES: usize = 512 << 10;

/// The most windows that wait: one of each sequential reader. One more is forgotten, and its reader
/// faults.
pub(crate) const ORDERS_MOST: usize = STREAMS;

/// The windows to be read, by reader.
pub(super) struct Orders {
    state: Mutex<State>,
}

pub(crate) struct State {
    policy: ReadAhead,
    /// The first one is not begun yet.
    windows: VecDeque<Part>,
    /// The entries that are read at once.
    most: u64,
}

/// A part of a window, or all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub entries: Range<u64>,
    /// The window's first entry, by which it is seen how far its reader is.
    pub marker: u64,
    /// The entry at which its reader began.
    pub begin: u64,
    pub reader: Reader,
}

/// The place where a sequential reader wants its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reader {
    /// Wherever it is: by [`read_at`](super::FileRegion::read_at).
    Calls,
    /// In the region: by address, or by [`write_at`](super::FileRegion::write_at).
    InRegion,
}

impl Orders {
    pub(super) fn new(entry_bytes: usize, entries: u64) -> Self {
        let policy = ReadAhead::new(Bytes::new(entry_bytes as u64), entries);
        let most = (READ_BYTES / entry_bytes).max(1) as u64;
        let windows = VecDeque::with_capacity(ORDERS_MOST);
        Self { state: Mutex::new(State { policy, windows, most }) }
    }

    /// Notes a request for entry `index`, which was not in memory. Returns how many parts were
    /// ordered.
    pub(super) fn note(&self, index: u64, reader: Reader) -> usize {
        let mut state = locked(&self.state);
        let window = state.policy.fault(index);
        if window.is_empty() || state.windows.len() == ORDERS_MOST {
            return 0;
        }
        let parts = (window.end - window.start).div_ceil(state.most);
        let begin = state.policy.begin_of(&window).unwrap_or(index);
        state.windows.push_back(Part { marker: window.start, begin, entries: window, reader });
        parts as usize
    }

    pub(super) fn are_any(&self) -> bool {
        !locked(&self.state).windows.is_empty()
    }

    /// The next part of the window that was ordered first.
    pub(super) fn next(&self) -> Option<Part> {
        locked(&self.state).take_part()
    }
}

impl State {
    fn take_part(&mut self) -> Option<Part> {
        let window = self.windows.front_mut()?;
        let start = window.entries.start;
        let end = window.entries.end.min(start + self.most);
        let part = Part { entries: start..end, ..window.clone() };
        window.entries.start = end;
        if window.entries.is_empty() {
            self.windows.pop_front();
        }
        Some(part)
    }
}

/// The warmth of a page that was read ahead, never was in the region, and was not asked for.
pub(super) const UNASKED: u8 = 2;

/// Whether an entry of a file was read ahead, and not used yet.
pub(crate) fn is_unasked(word: Word) -> bool {
    matches!(word.backing(), Backing::Slot(_)) && word.resident().is_empty() && word.warmth() == UNASKED
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_read_in_parts_and_the_next_one_behind_it() {
        let orders = Orders::new(64 << 10, 1000);
        // The first windows of a sequential reader: as far as each one's first page tells, and
        // ordered at once.
        let mut asked = 0;
        let mut windows = Vec::new();
        for _ in 0..7 {
            let window = locked(&orders.state).policy.clone().fault(asked);
            orders.note(asked, Reader::Calls);
            asked = window.start;
            windows.push(window);
        }
        assert_eq!(windows.iter().map(|window| window.end - window.start).max(), Some(32));
        let mut read = Vec::new();
        while let Some(part) = orders.next() {
            assert!(part.entries.end - part.entries.start <= 8, "{part:?}");
            let window = windows.iter().find(|window| window.contains(&part.entries.start)).expect("ordered");
            assert!(part.marker == window.start && part.entries.end <= window.end, "{part:?}");
            read.extend(part.entries);
        }
        assert_eq!(read, (1..asked + 32).collect::<Vec<_>>(), "each once, in the order of the windows");
    }
}
