//! Writing by calls over whole entries: they are not read first.
//!
//! The caller's bytes go to a frame, which is staged as the content of the entry: a sequential
//! writer does not come back, so that moving the frame into the region would only cost a move out.
//! The file's content there is not known, so all of it counts as dirty. This module must never
//! touch the caller's memory while it has an entry's busy bit.

use std::sync::atomic::Ordering;

use pagoda_core::page::OS_PAGE;
use pagoda_core::page_entry::Backing;

use super::page_file::{OVERWRITTEN, PageFile};
use crate::file::cached_reads::ASKED;
use crate::file::readahead::{holds_nothing, is_only_in_file};
use crate::file::region::Inner;
use crate::file::writeback::Work;
use crate::frames::pool::all_of_slot;
use crate::table::{Entries, give, try_take};

impl PageFile {
    fn note_overwritten(&self, index: usize, entry_bytes: usize) {
        let pages = entry_bytes / OS_PAGE;
        let digests = &self.digests[index * pages..(index + 1) * pages];
        digests.iter().for_each(|digest| digest.store(OVERWRITTEN, Ordering::Relaxed));
    }

    /// Whether an OS page in memory was overwritten unread, and is not in the file yet.
    pub(super) fn is_overwritten(&self, page: u64) -> bool {
        self.digests[page as usize].load(Ordering::Relaxed) == OVERWRITTEN
    }
}

impl Inner {
    /// Writes the entry at `offset`, if `from` is all of it and none of it is in memory. False: it
    /// is as it was.
    pub(super) fn write_whole(&self, offset: usize, from: &[u8]) -> bool {
        let engine = self.engine();
        let (index, entry_bytes) = (offset / engine.entry_bytes(), engine.entry_bytes());
        if from.len() != entry_bytes || !offset.is_multiple_of(entry_bytes) {
            return false;
        }
        let entries = {
            let table = engine.gate_shared();
            if table.order.deferred() > 0 {
                return false;
            }
            let Some(span) = table.find(self.range.start() + offset) else { return false };
            Entries::clone(span.entries())
        };
        if !is_only_in_file(&entries, index) {
            return false;
        }
        let frame = self.with_work(|Work { scratch, .. }| engine.frame_for_window(scratch));
        let Some(mut frame) = frame else { return false };
        engine.space.bytes_mut(&mut frame).copy_from_slice(from);
        let word = try_take(&entries[index]);
        let is_lost = || !self.file.lost_granules(index).is_empty();
        let Some(word) = word.filter(|word| holds_nothing(*word) && !is_lost()) else {
            word.into_iter().for_each(|word| give(&entries[index], word));
            engine.zones.put_ready(&engine.space, frame);
            return false;
        };
        self.file.note_overwritten(index, entry_bytes);
        let slot = engine.space.release_slot(frame);
        engine.went_into_staging(slot, all_of_slot(&engine.space));
        engine.note_dirty(&self.file, index, engine.zones.of_slot(slot));
        give(&entries[index], word.with_backing(Backing::Slot(slot)).with_warmth(ASKED));
        engine.queue_staged(&entries, index, slot);
        engine.note_use();
        true
    }
}

#[cfg(test)]
#[path = "whole_writes_test.rs"]
mod tests;
