//! Which pages of a file are read before they are touched.
//!
//! A sequential reader gets a *window* of pages behind the requested one: 128 KiB at first, twice
//! as much each time, up to 2 MiB. The next window is ordered when the first page of the last one
//! is touched, so that the disk works while the reader does. Random access gets only the requested
//! page, until the next fault continues from there. Pages are numbered from the file's beginning.
//! This module must never order a page beyond the file's end, nor one twice for the same reader.
//!
//! A reader that goes on through a file larger than memory would replace all of memory by pages of
//! which the next reader from the beginning finds none. So such a reader keeps a quarter of memory,
//! and then each page that is read takes the place of one that it has left behind
//! ([`left_behind`]). PostgreSQL reads large tables through a ring of buffers for the same reason.
//!
//! That is Linux's readahead (mm/readahead.c), its marker page included. Linux keeps the state in
//! each open file; a region has only the addresses of its faults, so readers are told apart by
//! their next expected page.

use std::ops::Range;

use crate::size::Bytes;

/// The first window of a sequential reader.
pub const WINDOW_FIRST: Bytes = Bytes::kib(128);

/// The largest window: a disk reads this much at its full speed, and it is 1/64 of a budget of 128
/// MiB.
pub const WINDOW_MOST: Bytes = Bytes::mib(2);

/// How far behind the pages that are read lie those whose place they take. Two windows are on
/// their way to the reader; as much again is left for one that goes back a little.
pub const BEHIND: Bytes = Bytes::new(4 * WINDOW_MOST.get());

/// The share of memory that a reader fills before its pages take the place of its own: one part in
/// this.
pub const KEPT_SHARE: u64 = 4;

/// The least memory in which pages are left behind: with less, those of one reader would be most
/// of it.
const LEAST_MEMORY: Bytes = Bytes::new(KEPT_SHARE * BEHIND.get());

/// Sequential readers at the same time. One more displaces the one that was idle the longest.
pub const STREAMS: usize = 16;

/// Places of single faults that may be the start of a stream: twice as many as streams, so that
/// random readers don't displace a stream that is about to begin.
const SEEN: usize = 2 * STREAMS;

/// A sequential reader.
#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// The page of its last order: it is in the window from there to `start`.
    at_page: u64,
    /// The window that was ordered last: `start..end`. Empty: there is none such reader.
    start: u64,
    end: u64,
    /// The page at which it began.
    begin: u64,
    /// Its last fault, by the count of faults.
    at: u64,
}

/// The readers of one file.
#[derive(Clone, Debug)]
pub struct ReadAhead {
    page_bytes: u64,
    /// Pages of the file.
    pages: u64,
    streams: [Stream; STREAMS],
    /// The pages behind those that were touched out of turn; 0, which is behind no page, for none.
    seen: [u64; SEEN],
    next_seen: usize,
    faults: u64,
}

impl ReadAhead {
    /// No page was read yet of the `pages` of a file, each of `page` bytes.
    ///
    /// # Panics
    /// If a page has no bytes.
    #[must_use]
    pub fn new(page: Bytes, pages: u64) -> Self {
        assert!(page > Bytes::ZERO, "a page has bytes");
        let (page_bytes, streams) = (page.get(), [Stream::default(); STREAMS]);
        Self { page_bytes, pages, streams, seen: [0; SEEN], next_seen: 0, faults: 0 }
    }

    fn pages_of(&self, bytes: Bytes) -> u64 {
        (bytes.get() / self.page_bytes).max(1)
    }

    /// The page at which the reader began for which `window` was ordered last.
    #[must_use]
    pub fn begin_of(&self, window: &Range<u64>) -> Option<u64> {
        let is_its = |stream: &&Stream| stream.start == window.start && stream.start < stream.end;
        self.streams.iter().find(is_its).map(|stream| stream.begin)
    }

    /// Takes note of a request for `page`, and returns the pages to read behind it; none, if the
    /// range is empty. Report the first page of an ordered window here again when it is touched.
    pub fn fault(&mut self, page: u64) -> Range<u64> {
        self.faults += 1;
        let (first, most) = (self.pages_of(WINDOW_FIRST), self.pages_of(WINDOW_MOST));
        let goes_on =
            |stream: &&mut Stream| stream.start < stream.end && (stream.at_page..=stream.end).contains(&page);
        if let Some(stream) = self.streams.iter_mut().find(goes_on) {
            stream.at = self.faults;
            if page != stream.start && page != stream.end {
                // It was ordered before, and is not there yet, or not any more.
                return page..page;
            }
            let pages = (2 * (stream.end - stream.start)).min(most);
            // Past the end of the window, its reader was faster than the disk.
            let start = stream.end.max(page + 1);
            (stream.at_page, stream.start, stream.end) = (page, start, start + pages);
            let end = stream.end.min(self.pages);
            return start.min(end)..end;
        }
        if let Some(seen) = self.seen.iter_mut().find(|seen| **seen == page && page != 0) {
            *seen = 0;
        } else if page != 0 {
            self.seen[self.next_seen] = page + 1;
            self.next_seen = (self.next_seen + 1) % SEEN;
            return page..page;
        }
        // A reader that begins at the beginning is mostly sequential.
        let start = page + 1;
        let oldest = self.streams.iter_mut().min_by_key(|stream| stream.at).expect("there are some");
        *oldest = Stream { at_page: page, start, end: start + first, begin: page, at: self.faults };
        let end = oldest.end.min(self.pages);
        start.min(end)..end
    }
}

/// The pages whose place `part` of a window takes: those that its reader, which began at page
/// `begin`, has left behind. None in a file that fits into `memory`, which has `pages` of so many
/// bytes, nor as long as the reader has not filled its share.
#[must_use]
pub fn left_behind(part: &Range<u64>, begin: u64, (pages, page): (u64, Bytes), memory: Bytes) -> Range<u64> {
    if memory < LEAST_MEMORY || pages.saturating_mul(page.get()) <= memory.get() {
        return 0..0;
    }
    let kept = begin.saturating_add(memory.get() / KEPT_SHARE / page.get());
    let lag = BEHIND.get().div_ceil(page.get());
    let [from, to] = [part.start, part.end].map(|end| end.saturating_sub(lag).max(kept));
    from..to
}

#[cfg(test)]
#[path = "readahead_test.rs"]
mod tests;
