//! The memory that is empty in a child (madvise WIPEONFORK), whatever its parent has there.
//!
//! This module must never take a page for empty that is not: the child would lose it. One that is,
//! and is not taken for it, would show the child content that it must not see.

use pagoda_core::page::OS_PAGE;
use pagoda_core::page_entry::Granules;
use pagoda_linux::mem::range::PageRange;

use crate::table::Page;

/// Ranges that are empty in a child, lowest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wiped(Vec<PageRange>);

impl Wiped {
    pub(crate) fn new(mut ranges: Vec<PageRange>) -> Self {
        ranges.sort_unstable_by_key(|range| range.start());
        Self(ranges)
    }

    /// Whether any byte of `range` is in one.
    pub(crate) fn has_any(&self, range: PageRange) -> bool {
        let next = self.0.partition_point(|wiped| wiped.end() <= range.start());
        self.0.get(next).is_some_and(|wiped| wiped.start() < range.end())
    }

    /// The granules of a page that are in one.
    pub(crate) fn of_page(&self, page: &Page) -> Granules {
        let granules = page.granules.runs().flat_map(|(from, to)| from..to);
        let wiped = granules.filter(|at| self.has_any(page.addresses(*at, at + 1)));
        wiped.fold(Granules::NONE, |all, at| all.or(Granules::range(at, at + 1)))
    }

    /// Makes these granules of a page's `content` zero.
    pub(crate) fn clear(granules: Granules, content: &mut [u8]) {
        for (from, to) in granules.runs() {
            content[from as usize * OS_PAGE..to as usize * OS_PAGE].fill(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_a_range_is_wiped_and_nothing_beside_it() {
        let pages = |from: usize, to: usize| PageRange::at(from * OS_PAGE, (to - from) * OS_PAGE);
        let wiped = Wiped::new(vec![pages(20, 21), pages(4, 6)]);
        let found = |from, to| wiped.has_any(pages(from, to));
        assert!(found(4, 5) && found(5, 9) && found(0, 30) && found(20, 21));
        assert!(!found(0, 4) && !found(6, 20) && !found(21, 30));
        assert!(!Wiped::default().has_any(pages(0, 30)));
        let mut content = vec![7; 3 * OS_PAGE];
        Wiped::clear(Granules::range(1, 2), &mut content);
        assert!(content.iter().enumerate().all(|(at, byte)| (*byte == 0) == (at / OS_PAGE == 1)));
    }
}
