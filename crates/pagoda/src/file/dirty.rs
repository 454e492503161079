//! The dirty pages of a file, and the zone of each: the zones' dirty limits go by them.
//!
//! An entry is marked after it was written. Its mark is removed before its content is looked at for
//! write-back. So a marked entry may be clean, and one that
//! [`write_at`](super::FileRegion::write_at) made dirty is marked. Writes by address are marked
//! when they are found (`written`). A writer beyond a zone's limit writes back itself, [`RUNS`] at
//! most for one entry that it has written: a failing disk, or a zone that other files have filled,
//! keeps it no longer. This module does not tell which pages differ from the file: digests do.

use std::sync::atomic::Ordering;

use pagoda_core::page_entry::{Backing, Word};
use pagoda_core::zone::dirty;

use super::page_file::PageFile;
use crate::engine::Engine;
use crate::file::dirty_map::BITS;
use crate::file::region::Inner;
use crate::file::writeback::RUN_BYTES;
use crate::frames::zones::ZONES_MAX;

/// The most runs of pages that a writer writes back for one entry: sixteen times its own write at
/// 64 KiB.
const RUNS: usize = 4;

/// Runs that are written back between two looks at the reads to be done.
const BACKGROUND_RUNS: usize = 64;

const _: () = assert!(ZONES_MAX < 1 << BITS);

impl Engine {
    /// An entry of a file was written, in a frame of `zone`.
    pub(super) fn note_dirty(&self, file: &PageFile, index: usize, zone: usize) {
        if file.dirty.mark(index, zone) {
            self.zones.dirty(zone, self.entry_bytes() as i64);
        }
    }

    /// The content of an entry is about to be looked at to be written back, or there is none any
    /// more.
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
            // In the store it takes no room of others.
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
        let (dirty, size) = (engine.zones.dirty_bytes(zone), engine.zones.size(zone));
        // A helper writes back while the writer goes on.
        if dirty > dirty::background(size) && !self.has_too_much_dirty.swap(true, Ordering::Relaxed) {
            engine.helpers.ring(1);
        }
        if dirty > dirty::limit(size) {
            self.write_dirty_back(zone, RUNS, dirty::limit(size).get());
        }
    }

    /// Writes back in the background where zones have too much dirty.
    pub(super) fn write_back_in_background(&self) {
        for zone in 0..self.engine().zones.count() {
            let enough = dirty::background(self.engine().zones.size(zone));
            self.write_dirty_back(zone, BACKGROUND_RUNS, enough.get());
        }
    }

    /// Writes back this file's dirty pages of a zone until it has no more than `enough`, `runs` at
    /// most.
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
            // A busy entry comes up again.
            self.with_work(|work| {
                engine.write_run_back(&self.file, self.memory(), run, work);
            });
        }
    }
}
