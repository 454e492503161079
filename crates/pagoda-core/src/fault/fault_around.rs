//! How many pages one fault brings in.
//!
//! A window of base pages that doubles with each fault where the last window ended, up to 2 MiB,
//! and is one page again after a fault anywhere else. Pages are numbered upwards by address; a
//! downward reader gets one at a time. This module must never offer a page outside the mapping, nor
//! one that the caller refuses: discarded content would be resurrected.
//!
//! The doubling is that of Linux's readahead (mm/readahead.c) without its marker page: a faulting
//! thread waits anyway and needs no second signal.

use std::ops::Range;

use crate::page::BasePage;
use crate::size::Bytes;

/// The largest window, the page that faulted included: a huge frame's length, which spreads the
/// cost of a fault as thin as huge pages do. At 1 GiB/s it takes 2 ms to fill, and the reader waits
/// for all of it.
pub const WINDOW_MOST: Bytes = Bytes::mib(2);

/// The window of one reader in one range.
#[derive(Clone, Copy, Debug)]
pub struct FaultAround {
    most_pages: u64,
    /// The length of the last window, filled or not.
    pages: u64,
    /// Where a sequential reader faults next; none before the first fault.
    next: Option<u64>,
}

impl FaultAround {
    /// No fault yet.
    #[must_use]
    pub fn new(base: BasePage) -> Self {
        Self { most_pages: WINDOW_MOST.get() / base.bytes() as u64, pages: 1, next: None }
    }

    /// Whether a fault on `page` may be sequential access by this reader: at most one window beyond
    /// its next expected fault.
    #[must_use]
    pub fn may_go_on_at(&self, page: u64) -> bool {
        self.next.is_some_and(|next| next <= page && page - next <= self.most_pages)
    }

    /// Takes note of a fault on `page`, and returns the pages to bring in: `page` itself, and pages
    /// right above it.
    ///
    /// `mapping` is the pages that are mapped together with it. `may_fetch` says whether another
    /// page of it is swapped out and worth bringing in: not resident, not being moved, not
    /// discarded. The first refusal above `page` ends the window. It is called at most twice as
    /// often as the largest window has pages. The caller ensures that its answers still hold when
    /// the pages are brought in.
    ///
    /// Panics if `page` is not in `mapping`.
    pub fn fault(
        &mut self,
        page: u64,
        mapping: Range<u64>,
        mut may_fetch: impl FnMut(u64) -> bool,
    ) -> Range<u64> {
        assert!(mapping.contains(&page), "page {page} is not in {mapping:?}");
        // A reader passes resident pages without a fault. That is still sequential access, if it
        // skips no more than a window.
        let goes_on = self.may_go_on_at(page)
            && self
                .next
                .is_some_and(|next| !(next..page).any(|page| mapping.contains(&page) && may_fetch(page)));
        self.pages = if goes_on { (2 * self.pages).min(self.most_pages) } else { 1 };
        let most = page.saturating_add(self.pages).min(mapping.end);
        let end = (page + 1..most).find(|&page| !may_fetch(page)).unwrap_or(most);
        self.next = Some(end);
        page..end
    }

    /// Whether the last fault continued the window before it.
    #[must_use]
    pub const fn goes_on(&self) -> bool {
        self.pages > 1
    }

    /// Where sequential access faults next; None before the first fault.
    #[must_use]
    pub const fn goes_on_at(&self) -> Option<u64> {
        self.next
    }

    /// Only the pages below `end` of the last window are brought in: sequential access faults there
    /// next.
    pub fn ends_at(&mut self, end: u64) {
        self.next = Some(end);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn base() -> impl Strategy<Value = BasePage> {
        prop::sample::select(BasePage::ALL.as_slice())
    }

    /// The windows of a reader that touches all pages of `mapping` upwards.
    fn read_all(base: BasePage, mapping: Range<u64>) -> Vec<u64> {
        let mut around = FaultAround::new(base);
        let (mut at, mut windows) = (mapping.start, Vec::new());
        while at < mapping.end {
            let window = around.fault(at, mapping.clone(), |_| true);
            windows.push(window.end - window.start);
            at = window.end;
        }
        windows
    }

    #[test]
    fn a_stream_doubles_up_to_two_mebibytes() {
        assert_eq!(read_all(BasePage::K64, 100..200), [1, 2, 4, 8, 16, 32, 32, 5]);
        assert_eq!(read_all(BasePage::M2, 0..3), [1, 1, 1]);
        assert_eq!(read_all(BasePage::K4, 0..4096).iter().max(), Some(&512));
    }

    #[test]
    fn a_jump_begins_anew() {
        let mut around = FaultAround::new(BasePage::K64);
        let mut fault = |page| around.fault(page, 0..1000, |_| true);
        assert_eq!((fault(0), fault(1), fault(3)), (0..1, 1..3, 3..7));
        // Far away, backwards, and with a gap that was never filled.
        assert_eq!((fault(500), fault(501), fault(2)), (500..501, 501..503, 2..3));
        assert_eq!((fault(4), fault(5)), (4..5, 5..7));
        let expected = [(6, false), (7, true), (7 + 32, true), (7 + 33, false)];
        assert_eq!(expected.map(|(page, _)| (page, around.may_go_on_at(page))), expected);
        assert!(!FaultAround::new(BasePage::K64).may_go_on_at(0), "there was no fault yet");
    }

    #[test]
    fn passing_the_end_of_a_window_that_was_cut_short_is_not_sequential() {
        for (next, window) in [(13, 13..29), (14, 14..15), (15, 15..16)] {
            let mut around = FaultAround::new(BasePage::K64);
            let mut fault = |page| around.fault(page, 0..1000, |_| true);
            assert_eq!((fault(0), fault(1), fault(3), fault(7)), (0..1, 1..3, 3..7, 7..15));
            around.ends_at(13);
            assert_eq!(around.fault(next, 0..1000, |_| true), window);
        }
    }

    #[test]
    fn resident_pages_on_the_way_are_no_jump() {
        let mut around = FaultAround::new(BasePage::K64);
        let mut fault = |page| around.fault(page, 0..1000, |page| !(3..6).contains(&page));
        assert_eq!((fault(0), fault(1), fault(6)), (0..1, 1..3, 6..10));
    }

    proptest! {
        #[test]
        fn only_mapped_and_allowed_pages_and_at_most_two_mebibytes(
            base in base(),
            start in prop_oneof![Just(0), 0u64..1 << 40, Just(u64::MAX - 64)],
            length in 1u64..64,
            refused in prop::collection::hash_set(0u64..64, 0..16),
            faults in prop::collection::vec((any::<bool>(), 0u64..64), 1..60),
        ) {
            let mut around = FaultAround::new(base);
            let mapping = start..start + length;
            let mut end_before = start;
            for (go_on, offset) in faults {
                let page = if go_on && mapping.contains(&end_before) { end_before } else { start + offset % length };
                let mut asked = Vec::new();
                let window = around.fault(page, mapping.clone(), |page| {
                    asked.push(page);
                    !refused.contains(&(page - start))
                });
                prop_assert_eq!(window.start, page);
                prop_assert!(page < window.end && window.end <= mapping.end);
                prop_assert!((window.end - page) * base.bytes() as u64 <= WINDOW_MOST.get());
                prop_assert!((page + 1..window.end).all(|ahead| !refused.contains(&(ahead - start))));
                prop_assert!(asked.iter().all(|page| mapping.contains(page)));
                end_before = window.end;
            }
        }

        /// Pages that no fault asked for: none, for random access.
        #[test]
        fn random_faults_bring_in_one_page_each(faults in prop::collection::vec(0u64..1 << 30, 1..60)) {
            let mut around = FaultAround::new(BasePage::K64);
            let mut next = None;
            for page in faults {
                prop_assume!(next != Some(page));
                next = Some(page + 1);
                prop_assert_eq!(around.fault(page, 0..1 << 30, |_| true), page..page + 1);
            }
        }

        /// A stream takes at most log2(window) faults more than its length in windows.
        #[test]
        fn a_stream_faults_once_for_each_window(base in base(), length in 1u64..5000) {
            let windows = read_all(base, 0..length);
            let most = WINDOW_MOST.get() / base.bytes() as u64;
            prop_assert_eq!(windows.iter().sum::<u64>(), length);
            prop_assert!(windows.len() as u64 <= length / most + u64::from(most.ilog2()) + 1);
        }
    }
}
