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
#[path = "fault_around_test.rs"]
mod tests;
