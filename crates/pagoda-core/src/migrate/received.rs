//! The received map: one bit for each page, set when content for it has arrived for the first time.
//!
//! Bits are only ever set, by atomic or, so that any number of receivers share the map without a
//! lock, and it outlives them. It records *messages*, and not presence: a page whose first message
//! was "zero" has its bit set, and nothing is present. No fault handler reads it: after a switch
//! the owed marks tell which pages are waited for. Any other page without content is zero, whether
//! a message about it was received or not.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::geometry::Extent;

const WORD_BITS: u64 = u64::BITS as u64;

/// A word that threads set bits in: an atomic of the standard library or of a model checker.
pub trait Bits {
    /// Sets the bits of `mask` and returns the word before, in one step. Everything done before it
    /// happens before everything that a reader of the bits does after.
    fn set(&self, mask: u64) -> u64;
    /// The word.
    fn get(&self) -> u64;
}

impl Bits for AtomicU64 {
    fn set(&self, mask: u64) -> u64 {
        self.fetch_or(mask, Ordering::AcqRel)
    }
    fn get(&self) -> u64 {
        self.load(Ordering::Acquire)
    }
}

/// One bit a page.
#[derive(Debug)]
pub struct ReceivedMap<B = AtomicU64> {
    words: Arc<[B]>,
    pages: u64,
}

/// How many words a map of so many pages has.
#[must_use]
pub const fn words_for(pages: u64) -> u64 {
    pages.div_ceil(WORD_BITS)
}

impl<B: Bits> ReceivedMap<B> {
    /// A map of `pages` pages in these words, which are zero. Panics if they are not as many as
    /// [`words_for`] says.
    #[must_use]
    pub fn new(words: Arc<[B]>, pages: u64) -> Self {
        assert!(words.len() as u64 == words_for(pages), "{pages} pages in {} words", words.len());
        Self { words, pages }
    }

    /// How many pages it is about.
    #[must_use]
    pub const fn pages(&self) -> u64 {
        self.pages
    }

    /// Whether something was received for `page`. Panics if there is no such page.
    #[must_use]
    pub fn has(&self, page: u64) -> bool {
        assert!(page < self.pages, "page {page} of {}", self.pages);
        self.words[(page / WORD_BITS) as usize].get() >> (page % WORD_BITS) & 1 == 1
    }

    /// The runs of pages for which something was received, in order, each as long as it can be. Of
    /// bits that are set meanwhile some are seen.
    pub fn runs(&self) -> impl Iterator<Item = Range<u64>> + use<'_, B> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let first = self.next(at, true)?;
            at = self.next(first, false).unwrap_or(self.pages);
            Some(first..at)
        })
    }

    /// The first page from `from` on whose bit is this.
    fn next(&self, from: u64, bit: bool) -> Option<u64> {
        let mut at = from;
        while at < self.pages {
            let word = self.words[(at / WORD_BITS) as usize].get();
            let rest = (if bit { word } else { !word }) >> (at % WORD_BITS);
            if rest != 0 {
                return Some(at + u64::from(rest.trailing_zeros())).filter(|page| *page < self.pages);
            }
            at = (at / WORD_BITS + 1) * WORD_BITS;
        }
        None
    }

    /// Sets the bits of `extent`. Calls `run` for each longest run of its pages that were all new,
    /// or were all there before (`true`); in order, without a gap. Of several threads that mark a
    /// page exactly one sees it as new. Stops at the first error.
    ///
    /// # Errors
    /// Those of `run`. All bits of the run that failed, and of those before, are set.
    ///
    /// # Panics
    /// If it reaches beyond the last page.
    pub fn mark<E>(
        &self,
        extent: Extent,
        mut run: impl FnMut(Range<u64>, bool) -> Result<(), E>,
    ) -> Result<(), E> {
        assert!(extent.end() <= self.pages, "page {} of {}", extent.end(), self.pages);
        let mut from = extent.first();
        // The run that is not told yet, since it may go on in the next word.
        let mut open: Option<(Range<u64>, bool)> = None;
        while from < extent.end() {
            let to = extent.end().min((from / WORD_BITS + 1) * WORD_BITS);
            let shift = from % WORD_BITS;
            let mask = (u64::MAX >> (WORD_BITS - (to - from))) << shift;
            let before = self.words[(from / WORD_BITS) as usize].set(mask) >> shift;
            let mut at = from;
            while at < to {
                let rest = before >> (at - from);
                let again = rest & 1 == 1;
                let same = if again { rest.trailing_ones() } else { rest.trailing_zeros() };
                let end = to.min(at + u64::from(same));
                match &mut open {
                    Some((pages, kind)) if *kind == again => pages.end = end,
                    _ => {
                        if let Some((pages, kind)) = open.replace((at..end, again)) {
                            run(pages, kind)?;
                        }
                    }
                }
                at = end;
            }
            from = to;
        }
        open.map_or(Ok(()), |(pages, kind)| run(pages, kind))
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;
    use proptest::prelude::*;

    fn map(pages: u64) -> ReceivedMap {
        let words = (0..words_for(pages)).map(|_| AtomicU64::new(0)).collect();
        ReceivedMap::new(words, pages)
    }

    fn mark(map: &ReceivedMap, extent: Extent) -> Vec<(Range<u64>, bool)> {
        let mut runs = Vec::new();
        let Ok(()) = map.mark(extent, |pages, again| {
            runs.push((pages, again));
            Ok::<_, Infallible>(())
        });
        runs
    }

    #[test]
    #[should_panic(expected = "page 101 of 100")]
    fn a_page_beyond_the_last_has_no_bit() {
        let _ = mark(&map(100), Extent::new(99, 2).expect("an extent"));
    }

    proptest! {
        #[test]
        fn runs_are_the_longest_and_agree_with_a_plain_set(
            extents in prop::collection::vec((0u64..3, 0u32..512, 1u32..=512), 1..40)
        ) {
            let map = map(3 * 512);
            let mut model = vec![false; 3 * 512];
            for (stripe, first, count) in extents {
                let extent = Extent::new(stripe * 512 + u64::from(first), count.min(512 - first)).expect("an extent");
                let runs = mark(&map, extent);
                let mut at = extent.first();
                for (i, (pages, again)) in runs.iter().enumerate() {
                    prop_assert_eq!(pages.start, at);
                    prop_assert!(pages.clone().all(|page| model[page as usize] == *again));
                    prop_assert!(i == 0 || runs[i - 1].1 != *again);
                    at = pages.end;
                }
                prop_assert_eq!(at, extent.end());
                model[extent.first() as usize..extent.end() as usize].fill(true);
            }
            prop_assert!((0..map.pages()).all(|page| map.has(page) == model[page as usize]));
        }
    }
}
