//! Which entries of a file are dirty, and in which zone each counts: four bits an entry.
//!
//! This module must never know an address.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use pagoda_linux::mem::words::zeroed_words;

/// Bits of an entry's mark: its zone's number and 1, or 0.
pub(crate) const BITS: usize = 4;

pub(crate) const MASK: u64 = (1 << BITS) - 1;

pub(crate) const PER_WORD: usize = u64::BITS as usize / BITS;

/// The marks of a file's entries.
pub(super) struct Dirty {
    marks: Arc<[AtomicU64]>,
    pub(super) entries: usize,
    count: AtomicU64,
    /// Where writing back goes on.
    next: AtomicUsize,
}

impl Dirty {
    /// Of a file of so many entries, none of which is marked.
    pub(super) fn new(entries: usize) -> Self {
        let marks = zeroed_words(entries.div_ceil(PER_WORD));
        Self { marks, entries, count: AtomicU64::new(0), next: AtomicUsize::new(0) }
    }

    /// How many are marked.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    fn place(&self, index: usize) -> (&AtomicU64, usize) {
        (&self.marks[index / PER_WORD], index % PER_WORD * BITS)
    }

    /// Beyond the file's last entry, where a region of huge base pages goes on, there is none.
    pub(super) fn zone_of(&self, index: usize) -> Option<usize> {
        if index >= self.entries {
            return None;
        }
        let (word, shift) = self.place(index);
        ((word.load(Ordering::Acquire) >> shift & MASK) as usize).checked_sub(1)
    }

    pub(super) fn is_marked(&self, index: usize) -> bool {
        self.zone_of(index).is_some()
    }

    /// Marks an entry, unless it is marked. Whether it was not.
    pub(super) fn mark(&self, index: usize, zone: usize) -> bool {
        if index >= self.entries {
            return false;
        }
        let (word, shift) = self.place(index);
        let mark = (zone as u64 + 1) << shift;
        let marked = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |marks| {
            (marks >> shift & MASK == 0).then_some(marks | mark)
        });
        self.count.fetch_add(u64::from(marked.is_ok()), Ordering::Relaxed);
        marked.is_ok()
    }

    /// Takes an entry's mark away, and says of which zone it was.
    pub(super) fn clear(&self, index: usize) -> Option<usize> {
        self.zone_of(index)?;
        let (word, shift) = self.place(index);
        let before = word.fetch_and(!(MASK << shift), Ordering::AcqRel);
        let zone = ((before >> shift & MASK) as usize).checked_sub(1)?;
        self.count.fetch_sub(1, Ordering::Relaxed);
        Some(zone)
    }

    /// The first entry of `range` that is marked, of `zone` if one is named.
    pub(super) fn find(&self, range: Range<usize>, zone: Option<usize>) -> Option<usize> {
        let mut index = range.start;
        while index < range.end {
            let (word, shift) = self.place(index);
            let marks = word.load(Ordering::Acquire) >> shift;
            if marks == 0 {
                index = (index / PER_WORD + 1) * PER_WORD;
                continue;
            }
            let marked = ((marks & MASK) as usize).checked_sub(1);
            if marked.is_some_and(|of| zone.is_none_or(|zone| of == zone)) {
                return Some(index);
            }
            index += 1;
        }
        None
    }

    /// The next run to be written back for `zone`: it begins with an entry of that zone, and ends
    /// with the last that is marked, at `most` entries. Of a sequential writer the oldest pages are
    /// written first.
    pub(super) fn next_run(&self, zone: usize, most: usize) -> Option<Range<usize>> {
        let from = self.next.load(Ordering::Relaxed).min(self.entries);
        let again = || self.find(0..from, Some(zone));
        let first = self.find(from..self.entries, Some(zone)).or_else(again)?;
        let last = (first + most).min(self.entries);
        let end = (first + 1..last).find(|index| self.zone_of(*index).is_none()).unwrap_or(last);
        self.next.store(end, Ordering::Relaxed);
        Some(first..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_go_round_and_begin_with_their_zone() {
        let dirty = Dirty::new(100);
        for (index, zone) in [(3, 0), (4, 1), (5, 0), (40, 1), (99, 0)] {
            assert!(dirty.mark(index, zone) && !dirty.mark(index, 1 - zone));
        }
        assert_eq!(dirty.count(), 5);
        assert_eq!(dirty.next_run(0, 4), Some(3..6));
        assert_eq!(dirty.next_run(0, 4), Some(99..100));
        assert_eq!(dirty.next_run(1, 4), Some(4..6));
        assert_eq!(dirty.next_run(1, 4), Some(40..41));
        assert_eq!(dirty.next_run(0, 1), Some(99..100));
        assert_eq!((dirty.clear(4), dirty.clear(4), dirty.clear(40)), (Some(1), None, Some(1)));
        assert_eq!((dirty.next_run(1, 4), dirty.count()), (None, 3));
        assert_eq!(dirty.find(0..100, None), Some(3));
        assert!(
            !dirty.mark(112, 0) && dirty.clear(112).is_none(),
            "a huge base page goes on beyond the file"
        );
    }
}
