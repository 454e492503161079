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
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const PAGE: Bytes = Bytes::kib(64);

    #[test]
    fn a_stream_grows_up_to_two_mebibytes_and_ends_with_the_file() {
        let mut ahead = ReadAhead::new(PAGE, 100);
        let mut windows = Vec::new();
        let mut page = 0;
        loop {
            let window = ahead.fault(page);
            if window.is_empty() {
                break;
            }
            page = window.start;
            windows.push((window.start, window.end - window.start));
        }
        assert_eq!(windows, [(1, 2), (3, 4), (7, 8), (15, 16), (31, 32), (63, 32), (95, 5)]);
    }

    #[test]
    fn a_jump_gets_nothing_until_it_goes_on() {
        let mut ahead = ReadAhead::new(PAGE, 1000);
        assert!(ahead.fault(500).is_empty() && ahead.fault(200).is_empty() && ahead.fault(502).is_empty());
        assert_eq!(ahead.fault(501), 502..504);
        assert_eq!(ahead.fault(502), 504..508);
        // Another place begins anew, and the first goes on.
        assert!(ahead.fault(200).is_empty());
        assert_eq!((ahead.fault(201), ahead.fault(504)), (202..204, 508..516));
    }

    #[test]
    fn a_reader_faster_than_the_disk_orders_nothing_twice() {
        let mut ahead = ReadAhead::new(PAGE, 1000);
        assert_eq!(ahead.fault(0), 1..3);
        assert!(ahead.fault(2).is_empty(), "it is on its way");
        assert_eq!(ahead.fault(3), 4..8);
    }

    #[test]
    fn a_reader_is_known_by_where_it_began() {
        let mut ahead = ReadAhead::new(PAGE, 1000);
        let mut window = ahead.fault(0);
        assert!(ahead.fault(500).is_empty());
        let mut other = ahead.fault(501);
        for _ in 0..4 {
            assert_eq!((ahead.begin_of(&window), ahead.begin_of(&other)), (Some(0), Some(501)));
            window = ahead.fault(window.start);
            other = ahead.fault(other.start);
        }
        assert_eq!(ahead.begin_of(&(700..732)), None);
    }

    #[test]
    fn a_file_that_fits_is_kept_and_so_is_the_beginning_of_one_that_does_not() {
        let memory = Bytes::mib(64);
        let behind = |part: Range<u64>, pages| left_behind(&part, 0, (pages, PAGE), memory);
        assert!(behind(1000..1008, 1024).is_empty(), "it fits");
        // A quarter is 256 pages, and a page is left behind 128 pages later.
        assert!(behind(376..384, 1025).is_empty(), "{:?}", behind(376..384, 1025));
        assert_eq!((behind(380..388, 1025), behind(1000..1008, 1025)), (256..260, 872..880));
        assert!(left_behind(&(1000..1008), 0, (1025, PAGE), Bytes::mib(31)).is_empty(), "too little memory");
    }

    /// A reader by calls reports each page. The rest of the window that it is in was taken for the
    /// beginning of another reader, with small windows of its own.
    #[test]
    fn a_reader_that_reports_each_page_is_one_reader() {
        let mut ahead = ReadAhead::new(PAGE, 1000);
        let windows: Vec<_> =
            (0..1000).map(|page| ahead.fault(page)).filter(|window| !window.is_empty()).collect();
        assert!(windows.windows(2).all(|two| two[0].end == two[1].start), "{windows:?}");
        assert_eq!((windows[0].start, windows.last().map(|window| window.end)), (1, Some(1000)));
        assert!(windows.len() < 40, "{windows:?}");
    }

    #[test]
    fn random_readers_do_not_end_a_stream() {
        let mut ahead = ReadAhead::new(Bytes::kib(4), 1 << 20);
        let mut window = ahead.fault(0);
        for round in 0..100 {
            for i in 0..200u64 {
                assert!(ahead.fault(500_000 + (round * 200 + i) * 7).is_empty());
            }
            window = ahead.fault(window.start);
            assert!(!window.is_empty(), "round {round}");
        }
        assert_eq!(window.end - window.start, 512);
    }

    proptest! {
        #[test]
        fn nothing_is_ordered_beyond_the_end_nor_more_than_a_window(
            pages in 1u64..2000,
            kib in prop::sample::select(vec![4u64, 16, 64, 2048]),
            faults in prop::collection::vec((0u64..2000, any::<bool>()), 1..200)
        ) {
            let mut ahead = ReadAhead::new(Bytes::kib(kib), pages);
            let mut last = 0;
            for (page, goes_on) in faults {
                let page = if goes_on { last + 1 } else { page } % pages;
                let window = ahead.fault(page);
                prop_assert!(window.end <= pages && window.end - window.start <= (2048 / kib).max(1));
                prop_assert!(window.is_empty() || window.start > page);
                last = page;
            }
        }

        /// A reader of a file larger than memory holds its share and a ring of pages, and each page
        /// that is dropped was read.
        #[test]
        fn a_reader_never_has_more_than_its_share_nor_loses_a_page_before_it_is_read(
            kib in prop::sample::select(vec![4u64, 16, 64, 2048]),
            memory in prop::sample::select(vec![32u64, 64, 100, 256]),
            begin in 0u64..50
        ) {
            let (page, memory) = (Bytes::kib(kib), Bytes::mib(memory));
            let pages = 3 * memory.get() / page.get();
            let mut ahead = ReadAhead::new(page, pages);
            let mut there = BTreeSet::new();
            // The reader, on the page after the one that begins its stream.
            let mut at = begin;
            let mut marker = None;
            while at < pages {
                let is_missing = !there.contains(&at);
                if is_missing {
                    there.insert(at);
                }
                if is_missing || marker == Some(at) {
                    let window = ahead.fault(at);
                    if let Some(begin) = ahead.begin_of(&window).filter(|_| !window.is_empty()) {
                        marker = Some(window.start);
                        for dropped in left_behind(&window, begin, (pages, page), memory) {
                            prop_assert!(dropped < at, "{dropped} is dropped and {at} is read");
                            there.remove(&dropped);
                        }
                        there.extend(window);
                    }
                }
                let most = memory.get() / KEPT_SHARE + BEHIND.get() + WINDOW_MOST.get();
                prop_assert!(there.len() as u64 * page.get() <= most + 64 * page.get());
                at += 1;
            }
        }

        #[test]
        fn readers_side_by_side_get_each_page_once(count in 1usize..STREAMS, kib in prop::sample::select(vec![4u64, 64])) {
            // Far from each other: none is ever in another's way.
            let apart = 10_000;
            let pages = apart * count as u64;
            let mut ahead = ReadAhead::new(Bytes::kib(kib), pages);
            let (mut there, mut asked) = (BTreeSet::new(), 0);
            for step in 0..200 {
                for reader in 0..count as u64 {
                    let page = reader * apart + step;
                    let marks = ahead.streams.iter().any(|stream| stream.start == page);
                    if there.contains(&page) && !marks {
                        continue;
                    }
                    asked += u64::from(!there.contains(&page));
                    for page in ahead.fault(page) {
                        prop_assert!(there.insert(page), "page {page} was ordered before");
                    }
                }
            }
            prop_assert!(asked <= 4 * count as u64, "{asked} pages were waited for");
        }
    }
}
