//! Readahead of files: the manager's helpers read the windows that
//! `pagoda_core::fault::readahead` orders, while their readers go on.
//!
//! Entries that hold nothing are read in runs into frames, which are staged. For readers by calls
//! they stay there, and are read in place (`in_place`). For readers by address, and writers, they
//! are moved into the region, but for the first page of each window, so that touching it tells the
//! reader's progress. A page to be written comes into the region anyway. Left staged until then,
//! beside written pages that are not, it would be the oldest staged page, and be evicted first. The
//! frames of long runs are contiguous as long as there is room for fresh ones. Readahead is a
//! guess: it takes its frames as a fault does, by reclaim if need be, and a page that can't be read
//! is left to a fault of its own. This module must never fill an entry whose content is not in the
//! file alone.

use std::ops::Range;
use std::sync::atomic::Ordering;

use pagoda_core::fault::readahead;
use pagoda_core::page_entry::{Backing, Word};
use pagoda_core::size::Bytes;
use pagoda_linux::arena::Slot;
use pagoda_linux::mem::range::PageRange;

use super::page_file::PageFile;
use crate::engine::Engine;
use crate::file::orders::{Part, READ_BYTES, Reader, UNASKED};
use crate::frames::pool::all_of_slot;
use crate::state::hand::Step;
use crate::state::helpers::HELPERS;
use crate::store::Scratch;
use crate::table::{Entries, give, try_take};

/// Steps of reclaim for one frame before the part is given up.
const STEPS: u32 = 16;

impl Engine {
    /// After a fault was served: if it was in a file, orders the next window.
    pub(crate) fn note_file_fault(&self, address: usize) {
        self.note_file_read(address, Reader::InRegion);
    }

    /// The same without a fault: a call brought the page in.
    pub(super) fn note_file_read(&self, address: usize, reader: Reader) {
        if self.file_regions.load(Ordering::Acquire) == 0 {
            return;
        }
        let table = self.gate_shared();
        let Some(span) = table.find(address) else { return };
        let Some(file) = span.entries().file() else { return };
        let index = table.page_at(span, address).index;
        drop(table);
        file.reads.note_asked(index);
        let parts = file.orders.note(index as u64, reader);
        if parts > 0 {
            self.helpers.ring(parts);
        }
    }

    /// Reads a part of a window of a file, which is mapped at `range`, as far as its entries hold
    /// nothing.
    pub(super) fn read_part(&self, file: &PageFile, range: PageRange, part: &Part, scratch: &mut Scratch) {
        let entries = {
            let table = self.gate_shared();
            let Some(span) = table.find(range.start()) else { return };
            Entries::clone(span.entries())
        };
        let (mut index, end) = (part.entries.start as usize, (part.entries.end as usize).min(entries.len()));
        let behind = self.left_behind(file, part);
        let is_kept = behind.is_empty();
        if !is_kept {
            self.drop_behind(file, &entries, range, (behind, part.reader), scratch);
        }
        while index < end {
            let is_out = |index: &usize| is_only_in_file(&entries, *index);
            let count = (index..end).take_while(is_out).take(READ_BYTES / self.entry_bytes()).count();
            if count == 0 {
                index += 1;
                continue;
            }
            if is_kept && count == READ_BYTES / self.entry_bytes() {
                // The others may be about to take as many.
                self.take_contiguous_for(HELPERS * count);
            }
            // Before any entry is taken: reclaim needs the gate.
            let mut frames: Vec<Slot> = (0..count).map_while(|_| self.frame_for_window(scratch)).collect();
            if frames.is_empty() {
                return;
            }
            // Those that follow each other are read, and moved, as one.
            frames.sort_unstable_by_key(Slot::index);
            let done = self.read_run(file, &entries, index, frames);
            if done == 0 {
                return;
            }
            if part.reader == Reader::InRegion {
                self.move_part_in(file, range, index..index + done, part.marker as usize);
            }
            file.ahead_bytes.fetch_add((done * self.entry_bytes()) as u64, Ordering::Relaxed);
            index += done;
        }
    }

    /// The entries whose frames a part takes, if its reader goes through the file for the first
    /// time.
    fn left_behind(&self, file: &PageFile, part: &Part) -> Range<usize> {
        let Range { start, end } = part.entries;
        if (start..end).all(|index| file.reads.was_read(index as usize)) {
            return 0..0;
        }
        // The one before a window may have been read by a fault, and then no window has it.
        let part_and_before = start.saturating_sub(1)..end;
        let page = Bytes::new(self.entry_bytes() as u64);
        let (pages, memory) = (file.len().div_ceil(page.get()), Bytes::new(self.ledger.budget_bytes()));
        let behind = readahead::left_behind(&part_and_before, part.begin, (pages, page), memory);
        behind.start as usize..behind.end as usize
    }

    /// A frame for content that can be had elsewhere: after some steps of reclaim, if need be.
    pub(super) fn frame_for_window(&self, scratch: &mut Scratch) -> Option<Slot> {
        for _ in 0..STEPS {
            if self.is_quitting() {
                return None;
            }
            if self.free() >= self.marks().low
                && let Some(slot) = self.frame_for_fetch(false, scratch.taker)
            {
                return Some(slot);
            }
            match self.reclaim_step(scratch) {
                Step::FrameReady | Step::Staged | Step::Looking => {}
                Step::Again | Step::Exhausted | Step::Full(_) => break,
            }
        }
        self.frame_for_fetch(false, scratch.taker)
    }

    /// Reads entries from `first` on into `frames`, and enters them as staged. Returns how many.
    fn read_run(&self, file: &PageFile, entries: &Entries, first: usize, mut frames: Vec<Slot>) -> usize {
        let mut taken: Vec<Word> = Vec::with_capacity(frames.len());
        while taken.len() < frames.len() {
            let entry = &entries[first + taken.len()];
            let Some(word) = try_take(entry) else { break };
            if !holds_nothing(word) || !file.lost_granules(first + taken.len()).is_empty() {
                give(entry, word);
                break;
            }
            taken.push(word);
        }
        frames.drain(taken.len()..).for_each(|frame| self.zones.put_ready(&self.space, frame));
        let mut content: Vec<&mut [u8]> =
            frames.iter_mut().map(|frame| self.space.bytes_mut(frame)).collect();
        let read = !content.is_empty() && file.read_several(first, &mut content);
        let count = if read { taken.len() } else { 0 };
        for (i, (word, frame)) in taken.into_iter().zip(frames).enumerate() {
            let entry = &entries[first + i];
            if read {
                let slot = self.space.release_slot(frame);
                self.went_into_staging(slot, all_of_slot(&self.space));
                file.reads.note_ahead(first + i);
                give(entry, word.with_backing(Backing::Slot(slot)).with_warmth(UNASKED));
                self.queue_staged(entries, first + i, slot);
            } else {
                self.zones.put_ready(&self.space, frame);
                give(entry, word);
            }
        }
        self.note_use();
        count
    }
}

/// Whether this entry of a file is not busy, and none of it is in memory or in the store.
pub(super) fn is_only_in_file(entries: &Entries, index: usize) -> bool {
    let word = entries.word(index);
    !word.is_busy() && holds_nothing(word)
}

pub(super) fn holds_nothing(word: Word) -> bool {
    word.resident().is_empty() && word.backing() == Backing::None
}
