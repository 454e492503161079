//! Sets of pages: of an image, which several threads fill and empty at once, and of one stripe.
//!
//! A live source keeps two of an image: the pages to send, and the pages that the other side holds.
//! This module must never know a page's content.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::geometry::STRIPE_PAGES;

const WORD_BITS: u64 = u64::BITS as u64;

/// Words of a stripe's pages.
pub const STRIPE_WORDS: usize = STRIPE_PAGES as usize / u64::BITS as usize;

/// The numbers of the words that have `pages`, and which bits of them.
fn parts(pages: Range<u64>) -> impl Iterator<Item = (usize, u64)> {
    let mut from = pages.start;
    std::iter::from_fn(move || {
        let to = pages.end.min((from / WORD_BITS + 1) * WORD_BITS);
        let len = to.checked_sub(from).filter(|len| *len > 0)?;
        let mask = (u64::MAX >> (WORD_BITS - len)) << (from % WORD_BITS);
        let word = (from / WORD_BITS) as usize;
        from = to;
        Some((word, mask))
    })
}

/// Some pages of one stripe, numbered from its first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StripePages([u64; STRIPE_WORDS]);

impl StripePages {
    /// Adds `pages`. Panics if they reach beyond the stripe's end.
    pub fn add(&mut self, pages: Range<u32>) {
        assert!(pages.end <= STRIPE_PAGES, "page {} of a stripe", pages.end);
        for (word, mask) in parts(u64::from(pages.start)..u64::from(pages.end)) {
            self.0[word] |= mask;
        }
    }
    /// Takes `page` out. Panics if there is no such page.
    pub fn remove(&mut self, page: u32) {
        self.0[page as usize / 64] &= !(1 << (page % 64));
    }
    /// Whether `page` is in it. Panics if there is no such page.
    #[must_use]
    pub const fn has(&self, page: u32) -> bool {
        self.0[page as usize / 64] >> (page % 64) & 1 == 1
    }
    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0 == [0; STRIPE_WORDS]
    }
    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }
    /// Those that are in both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] & other.0[i]))
    }
    /// Those that are in this one and not in the other.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] & !other.0[i]))
    }
    /// Its words, for a message: bit 0 of the first is the first page.
    #[must_use]
    pub const fn words(self) -> [u64; STRIPE_WORDS] {
        self.0
    }
    /// The pages of such words.
    #[must_use]
    pub const fn of_words(words: [u64; STRIPE_WORDS]) -> Self {
        Self(words)
    }
    /// The longest runs of pages in it, lowest first.
    pub fn runs(&self) -> impl Iterator<Item = Range<u32>> + use<> {
        let set = *self;
        let mut at = 0;
        std::iter::from_fn(move || {
            let from = (at..STRIPE_PAGES).find(|page| set.has(*page))?;
            let to = (from..STRIPE_PAGES).find(|page| !set.has(*page)).unwrap_or(STRIPE_PAGES);
            at = to;
            Some(from..to)
        })
    }
}

/// Some pages of an image. Any number of threads may use it; no change is lost.
#[derive(Debug)]
pub struct PageSet {
    words: Arc<[AtomicU64]>,
}

impl PageSet {
    /// How many words a set of so many pages has: those of whole stripes.
    #[must_use]
    pub const fn words_for(pages: u64) -> u64 {
        pages.div_ceil(STRIPE_PAGES as u64) * STRIPE_WORDS as u64
    }

    /// The set in these words, as many as [`words_for`](Self::words_for) says, with their set bits
    /// as members.
    #[must_use]
    pub const fn new(words: Arc<[AtomicU64]>) -> Self {
        Self { words }
    }

    /// The same set, for another holder: a change by one is seen by the other.
    #[must_use]
    pub fn share(&self) -> Self {
        Self { words: Arc::clone(&self.words) }
    }

    /// Adds `pages`. Panics if they reach beyond the last stripe.
    pub fn add(&self, pages: Range<u64>) {
        for (word, mask) in self.parts(pages) {
            word.fetch_or(mask, Ordering::AcqRel);
        }
    }
    /// Takes `pages` out. Panics if they reach beyond the last stripe.
    pub fn remove(&self, pages: Range<u64>) {
        for (word, mask) in self.parts(pages) {
            word.fetch_and(!mask, Ordering::AcqRel);
        }
    }

    /// The words that have `pages`, and which bits of them.
    fn parts(&self, pages: Range<u64>) -> impl Iterator<Item = (&AtomicU64, u64)> {
        parts(pages).map(|(word, mask)| (&self.words[word], mask))
    }

    /// Whether `page` is in it. Panics if it lies beyond the last stripe.
    #[must_use]
    pub fn has(&self, page: u64) -> bool {
        self.words[(page / WORD_BITS) as usize].load(Ordering::Acquire) >> (page % WORD_BITS) & 1 == 1
    }

    /// Whether any of `pages` is in it. Panics if they reach beyond the last stripe.
    #[must_use]
    pub fn has_any(&self, pages: Range<u64>) -> bool {
        self.parts(pages).any(|(word, mask)| word.load(Ordering::Acquire) & mask != 0)
    }

    /// Whether all of `pages` are in it. Panics if they reach beyond the last stripe.
    #[must_use]
    pub fn has_all(&self, pages: Range<u64>) -> bool {
        self.parts(pages).all(|(word, mask)| word.load(Ordering::Acquire) & mask == mask)
    }

    /// Takes those of `pages`, which are of one stripe, out and returns them. Of several threads
    /// that take a page exactly one has it. Panics if there is no such stripe.
    #[must_use]
    pub fn take(&self, pages: Range<u64>) -> StripePages {
        let mut taken = StripePages::default();
        let mut from = pages.start;
        for (word, mask) in self.parts(pages) {
            let at = (from % u64::from(STRIPE_PAGES) / WORD_BITS) as usize;
            taken.0[at] = word.fetch_and(!mask, Ordering::AcqRel) & mask;
            from = (from / WORD_BITS + 1) * WORD_BITS;
        }
        taken
    }

    /// Those of the stripe whose first page is `first`. Panics if there is no such stripe.
    #[must_use]
    pub fn stripe(&self, first: u64) -> StripePages {
        let at = (first / WORD_BITS) as usize;
        StripePages(std::array::from_fn(|i| self.words[at + i].load(Ordering::Acquire)))
    }

    /// Takes those of the stripe whose first page is `first` out, and returns them. Panics if there
    /// is no such stripe.
    #[must_use]
    pub fn take_stripe(&self, first: u64) -> StripePages {
        let at = (first / WORD_BITS) as usize;
        let mut pages = StripePages::default();
        for (taken, word) in pages.0.iter_mut().zip(&self.words[at..at + STRIPE_WORDS]) {
            // Most of a large image is not in it.
            if word.load(Ordering::Acquire) != 0 {
                *taken = word.swap(0, Ordering::AcqRel);
            }
        }
        pages
    }

    /// Adds pages of the stripe whose first page is `first`. Panics if there is no such stripe.
    pub fn add_stripe(&self, first: u64, pages: StripePages) {
        let at = (first / WORD_BITS) as usize;
        for (added, word) in pages.0.into_iter().zip(&self.words[at..at + STRIPE_WORDS]) {
            word.fetch_or(added, Ordering::AcqRel);
        }
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.load(Ordering::Acquire).count_ones())).sum()
    }
}

#[cfg(test)]
#[path = "pages_test.rs"]
mod tests;
