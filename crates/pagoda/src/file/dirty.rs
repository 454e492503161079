//! Which pages of a file were written and are not in the file yet, and of which zone each is: what the zones' dirty limits are kept
//! by.
//!
//! An entry is marked after it was written, and its mark goes before its content is looked at to be written back: so what is
//! marked may be clean, and what [`write_at`](super::FileRegion::write_at) made dirty is marked. What is written by address is marked
//! when that is looked for (`written`). Who goes beyond a zone's limit writes back himself, [`RUNS`] at most for one entry that he has written: a
//! disk that fails, or a zone that other files have filled, keeps him no longer. This module must never be asked what differs
//! from the file: digests say that.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use pagoda_core::page_entry::{Backing, Word};
use pagoda_core::zone::dirty;
use pagoda_linux::mem::words::zeroed_words;

use super::page_file::PageFile;
use crate::engine::Engine;
use crate::file::region::Inner;
use crate::file::writeback::RUN_BYTES;
use crate::frames::zones::ZONES_MAX;

/// Runs of pages that a writer writes back for one entry, at most: sixteen times what he has written at 64 KiB.
const RUNS: usize = 4;

/// Runs that are written back between two looks at what is to be read.
const BACKGROUND_RUNS: usize = 64;

/// Bits of an entry's mark: its zone's number and 1, or 0.
const BITS: usize = 4;
const MASK: u64 = (1 << BITS) - 1;
const PER_WORD: usize = u64::BITS as usize / BITS;
const _: () = assert!(ZONES_MAX < 1 << BITS);

/// The marks of a file's entries.
pub(super) struct Dirty {
    marks: Arc<[AtomicU64]>,
    entries: usize,
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
    fn zone_of(&self, index: usize) -> Option<usize> {
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
    fn mark(&self, index: usize, zone: usize) -> bool {
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
    fn clear(&self, index: usize) -> Option<usize> {
        self.zone_of(index)?;
        let (word, shift) = self.place(index);
        let before = word.fetch_and(!(MASK << shift), Ordering::AcqRel);
        let zone = ((before >> shift & MASK) as usize).checked_sub(1)?;
        self.count.fetch_sub(1, Ordering::Relaxed);
        Some(zone)
    }

    /// The first entry of `range` that is marked, of `zone` if one is named.
    fn find(&self, range: Range<usize>, zone: Option<usize>) -> Option<usize> {
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

    /// The next run to be written back for `zone`: it begins with an entry of that zone, and ends with the last that is marked, at
    /// `most` entries. Who writes upwards has the oldest written first.
    fn next_run(&self, zone: usize, most: usize) -> Option<Range<usize>> {
        let from = self.next.load(Ordering::Relaxed).min(self.entries);
        let again = || self.find(0..from, Some(zone));
        let first = self.find(from..self.entries, Some(zone)).or_else(again)?;
        let last = (first + most).min(self.entries);
        let end = (first + 1..last).find(|index| self.zone_of(*index).is_none()).unwrap_or(last);
        self.next.store(end, Ordering::Relaxed);
        Some(first..end)
    }
}

impl Engine {
    /// An entry of a file was written, in a frame of `zone`.
    pub(super) fn note_dirty(&self, file: &PageFile, index: usize, zone: usize) {
        if file.dirty.mark(index, zone) {
            self.zones.dirty(zone, self.entry_bytes() as i64);
        }
    }

    /// The content of an entry is about to be looked at to be written back, or there is none any more.
    pub(super) fn note_clean(&self, file: &PageFile, index: usize) {
        if let Some(zone) = file.dirty.clear(index) {
            self.zones.dirty(zone, -(self.entry_bytes() as i64));
        }
    }

    /// An entry could not be written back, and stays in memory as `word` says.
    pub(super) fn note_unwritten(&self, file: &PageFile, index: usize, word: Word) {
        let zone = match word.backing() {
            _ if !word.resident().is_empty() => word.zone(),
            Backing::Slot(slot) => self.zones.of_slot(slot),
            // In the store it is in nobody's way.
            Backing::None | Backing::Handle(_) => return,
        };
        self.note_dirty(file, index, zone);
    }

    /// Nothing of a file is in memory any more.
    pub(super) fn note_all_clean(&self, file: &PageFile) {
        while let Some(index) = file.dirty.find(0..file.dirty.entries, None) {
            self.note_clean(file, index);
        }
    }
}

impl Inner {
    /// The entry at `offset` was written; its zone's limit is kept.
    pub(super) fn note_written(&self, offset: usize) {
        let engine = self.engine();
        let index = offset / engine.entry_bytes();
        let zone = self.file.dirty.zone_of(index);
        // Gone again already: then it was written back, or goes to the store.
        let Some(zone) = zone.or_else(|| engine.zone_in_region(self.range.start() + offset)) else { return };
        engine.note_dirty(&self.file, index, zone);
        if engine.zones.dirty_bytes(zone) > dirty::limit(engine.zones.size(zone)) {
            self.write_dirty_back(zone, RUNS, dirty::limit(engine.zones.size(zone)).get());
        }
    }

    /// Writes back in the background what zones have too much of.
    pub(super) fn write_back_in_background(&self) {
        for zone in 0..self.engine().zones.count() {
            let enough = dirty::background(self.engine().zones.size(zone));
            self.write_dirty_back(zone, BACKGROUND_RUNS, enough.get());
        }
    }

    /// Writes back what this file has dirty of a zone until it has no more than `enough`, `runs` at most.
    fn write_dirty_back(&self, zone: usize, runs: usize, enough: u64) {
        let engine = self.engine();
        let most = RUN_BYTES / engine.entry_bytes();
        let mut before = u64::MAX;
        for _ in 0..runs {
            let dirty = engine.zones.dirty_bytes(zone).get();
            // A disk that fails once fails again.
            if dirty <= enough || dirty >= before {
                return;
            }
            before = dirty;
            let Some(run) = self.file.dirty.next_run(zone, most) else { return };
            // What somebody else has just now comes up again.
            self.with_work(|work| {
                engine.write_run_back(&self.file, self.memory(), run, work);
            });
        }
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
