//! The log of writes to shared memory that its owner keeps.

use std::io;
use std::ops::Range;

use pagoda_core::migrate::pages::PageSet;

/// The pages of shared memory that were written, as its owner knows them: by KVM
/// (`KVM_GET_DIRTY_LOG`), by the log that vhost-user backends keep, by its own bitmap, or by
/// several of these at once. [`OwnWrites`](crate::OwnWrites) is one for memory that this process
/// alone writes.
///
/// A write counts as soon as it has ended: a log that is marked before the write, and taken between
/// the two, loses it. So mark a page after writing it. The logs of KVM and vhost-user keep to that.
///
/// A page whose content is given back (`MADV_REMOVE`, a hole, as for a balloon) counts as written:
/// tell it, marked after that. The file is asked for holes at each look as well. But a page that is
/// read again after it was given back holds zeroes, and nothing shows that it was a hole.
pub trait DirtyLog: Send {
    /// Adds the pages that were written since the last call to `dirty`, and clears them in the log.
    ///
    /// It is called before anything is read, between two rounds, right after
    /// [`Writer::stop`](crate::Writer::stop), and again when the rest was sent, by the thread that
    /// sends. The first call only has to clear the log, for the first round sends all pages that
    /// hold something; writes have to be logged from before then.
    ///
    /// A page may be told too often: it is read and sent once more. It must never be told too
    /// seldom: each write that ended before a call has to be told by it or an earlier one, or the
    /// receiver keeps older content, and no error shows that. Pages that are told although the
    /// writer was stopped are sent as well, but a log that goes on telling ends in
    /// [`Error::NotStopped`](crate::Error::NotStopped).
    ///
    /// # Errors
    /// If it can't be known. That ends the migration with [`Error::Source`](crate::Error::Source);
    /// the other side shows nothing.
    fn take(&mut self, dirty: &mut DirtyPages<'_>) -> io::Result<()>;
}

/// Pages of 4 KiB, counted from the beginning of the memory that is sent.
#[derive(Debug)]
pub struct DirtyPages<'a> {
    set: &'a PageSet,
    pages: u64,
}

impl<'a> DirtyPages<'a> {
    pub(crate) const fn new(set: &'a PageSet, pages: u64) -> Self {
        Self { set, pages }
    }

    /// How many pages the memory has.
    #[must_use]
    pub const fn pages(&self) -> u64 {
        self.pages
    }

    /// Adds `pages`. Those beyond the end are left out.
    pub fn add(&mut self, pages: Range<u64>) {
        self.set.add(pages.start..pages.end.min(self.pages));
    }

    /// Adds the pages whose bits are set: page `first` is the lowest bit of the first word. Those
    /// beyond the end are left out, as a bitmap ends with a whole word.
    pub fn add_bitmap(&mut self, first: u64, bitmap: &[u64]) {
        for (base, word) in (first..).step_by(u64::BITS as usize).zip(bitmap) {
            let mut rest = *word;
            while rest != 0 {
                let from = rest.trailing_zeros();
                let to = from + (rest >> from).trailing_ones();
                self.add(base + u64::from(from)..base + u64::from(to));
                rest = if to < u64::BITS { rest >> to << to } else { 0 };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use pagoda_linux::mem::words::zeroed_words;
    use pagoda_linux::testing::random::Random;

    use super::*;

    #[test]
    fn a_bitmap_tells_the_pages_of_its_bits_and_none_beyond_the_end() {
        let mut random = Random::new(1, 1);
        for pages in [1u64, 63, 64, 65, 200, 512, 700] {
            let set = PageSet::new(zeroed_words(PageSet::words_for(pages) as usize));
            let first = random.below(pages as usize) as u64;
            let words: Vec<u64> = (0..pages.div_ceil(64) + 1)
                .map(|at| [0, u64::MAX, random.next(), 1 << 63 | 1][(at % 4) as usize])
                .collect();
            DirtyPages::new(&set, pages).add_bitmap(first, &words);
            for page in 0..PageSet::words_for(pages) * 64 {
                let bit = page.checked_sub(first).filter(|_| page < pages);
                let expected = bit.is_some_and(|bit| words[bit as usize / 64] >> (bit % 64) & 1 == 1);
                assert_eq!(set.has(page), expected, "page {page} of {pages}, from {first} on");
            }
        }
    }

    #[test]
    fn ranges_end_with_the_memory() {
        let set = PageSet::new(zeroed_words(PageSet::words_for(100) as usize));
        let mut dirty = DirtyPages::new(&set, 100);
        dirty.add(90..u64::MAX);
        dirty.add(200..300);
        dirty.add(3..3);
        assert_eq!((dirty.pages(), set.count(), set.has_all(90..100)), (100, 10, true));
    }
}
