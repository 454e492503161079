//! The OS pages that are touched, and a random cycle through them. Pure.
//!
//! Every pattern is a function of the number of pages alone. It must never depend on the base page:
//! then sides could not be compared.

use pagoda_core::page::OS_PAGE;
use serde::Serialize;

use crate::load::data::{Random, mix};

/// OS pages in 64 KiB, the unit of the patterns.
pub const BLOCK: usize = (64 << 10) / OS_PAGE;

const PAGE_WORDS: usize = OS_PAGE / size_of::<u64>();

/// The part of a buffer that is touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pattern {
    /// Every page.
    Dense,
    /// One page of every 16, at another place in each.
    Sparse16,
    /// Runs of 1 to 16 pages, and gaps as long.
    Mixed,
    /// Every page; then of every 16 one is discarded, one unmapped and one made read-only.
    Partial,
}

impl Pattern {
    pub const ALL: [Self; 4] = [Self::Dense, Self::Sparse16, Self::Mixed, Self::Partial];

    pub fn name(self) -> &'static str {
        match self {
            Self::Dense => "dense",
            Self::Sparse16 => "sparse16",
            Self::Mixed => "mixed",
            Self::Partial => "partial",
        }
    }

    /// The touched pages of `count`, lowest first.
    pub fn pages(self, count: usize) -> Vec<usize> {
        match self {
            Self::Dense | Self::Partial => (0..count).collect(),
            Self::Sparse16 => some_of_each_block(count, 1),
            Self::Mixed => {
                let (mut random, mut pages, mut at) = (Random::new(16), Vec::new(), 0);
                while at < count {
                    let run = 1 + random.below(BLOCK as u64) as usize;
                    pages.extend(at..(at + run).min(count));
                    at += run + 1 + random.below(BLOCK as u64) as usize;
                }
                pages
            }
        }
    }
}

/// `some` neighbouring pages of every 16, in each block from another one on.
pub fn some_of_each_block(count: usize, some: usize) -> Vec<usize> {
    let of_block = |block: usize| {
        let places = (BLOCK - some + 1) as u64;
        let first = block * BLOCK + (mix(block as u64) % places) as usize;
        first..first + some
    };
    (0..count / BLOCK).flat_map(of_block).collect()
}

/// The fate of a page of [`Pattern::Partial`] after all were touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Stays,
    Discarded,
    ReadOnly,
    Unmapped,
}

pub fn fate(pattern: Pattern, page: usize) -> Fate {
    match (pattern, page % BLOCK) {
        (Pattern::Partial, 3) => Fate::Unmapped,
        (Pattern::Partial, 8) => Fate::ReadOnly,
        (Pattern::Partial, 13) => Fate::Discarded,
        _ => Fate::Stays,
    }
}

/// The word of a page that holds the number of the next page. Its place differs from page to page:
/// else all would lie in the same set of the cache.
pub fn link(page: usize) -> usize {
    page * PAGE_WORDS + (mix(page as u64 ^ 0x55) % PAGE_WORDS as u64) as usize
}

/// For each of `pages` the one that comes after it, all in one cycle (Sattolo's algorithm).
pub fn cycle(pages: &[usize]) -> Vec<(usize, usize)> {
    let mut order = pages.to_vec();
    let mut random = Random::new(pages.len() as u64);
    for last in (1..order.len()).rev() {
        order.swap(last, random.below(last as u64) as usize);
    }
    pages.iter().copied().zip(order).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_touch_what_they_say() {
        let count = 1024;
        let touched = |pattern: Pattern| pattern.pages(count);
        assert_eq!(touched(Pattern::Dense).len(), count);
        let sparse = touched(Pattern::Sparse16);
        assert_eq!(sparse.iter().map(|page| page / BLOCK).collect::<Vec<_>>(), (0..64).collect::<Vec<_>>());
        assert!(sparse.iter().any(|page| page % BLOCK != sparse[0] % BLOCK), "always the same place");
        let mixed = touched(Pattern::Mixed);
        assert!(mixed.is_sorted_by(|a, b| a < b) && (count / 3..2 * count / 3).contains(&mixed.len()));
        assert_eq!(some_of_each_block(count, BLOCK), touched(Pattern::Dense));
        let fates = (0..count).filter(|page| fate(Pattern::Partial, *page) != Fate::Stays).count();
        assert_eq!(fates, 3 * count / BLOCK);
    }

    #[test]
    fn a_cycle_goes_through_all_pages_once() {
        let pages = Pattern::Mixed.pages(512);
        let next: std::collections::BTreeMap<_, _> = cycle(&pages).into_iter().collect();
        let (mut at, mut seen) = (pages[0], 0);
        loop {
            at = next[&at];
            seen += 1;
            if at == pages[0] {
                break;
            }
        }
        assert_eq!(seen, pages.len());
    }
}
