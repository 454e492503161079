//! Dropping staged entries of a file: dirty ones are written back first.
//!
//! A sequential writer's entries come up one after another. A write of one entry would keep the
//! disk waiting for the next, so the dirty staged entries behind it are written and dropped with
//! it. This module must never drop a page that the file does not hold.

use std::array;

use pagoda_core::page::OS_PAGE;
use pagoda_core::page_entry::{Backing, Granules, Word};
use pagoda_linux::arena::Slot;

use super::page_file::PageFile;
use crate::engine::Engine;
use crate::file::orders::is_unasked;
use crate::file::writeback::{RUN_BYTES, RUN_PARTS};
use crate::table::{Entries, give, try_take};

/// An entry that this thread has taken, its slot, and the granules that are only there.
struct Going {
    word: Word,
    held: Slot,
    out: Granules,
}

impl Engine {
    /// Writes a staged entry of a file, whose busy bit the caller has taken, back and drops it, and
    /// dirty ones behind it. False if it could not be written, and is as it was.
    pub(crate) fn drop_to_file(
        &self,
        file: &PageFile,
        entries: &Entries,
        index: usize,
        word: Word,
        slot: u32,
    ) -> bool {
        let most = (RUN_BYTES / self.entry_bytes()).min(entries.len() - index);
        let mut going: [Option<Going>; RUN_PARTS] = array::from_fn(|_| None);
        let first = going[0].insert(self.going(file, index, word, slot));
        let (mut count, is_dirty) = (1, self.is_dirty(file, index, first));
        if is_dirty {
            while count < most
                && let Some(next) = self.take_dirty(file, entries, index + count)
            {
                going[count] = Some(next);
                count += 1;
            }
        }
        let all_written = !is_dirty || self.write_together(file, index, &going[..count]);
        // One behind it may have failed.
        let first_written = all_written || count > 1 && self.write_together(file, index, &going[..1]);
        for (i, Going { word, held, .. }) in going.into_iter().flatten().enumerate() {
            let at = index + i;
            if all_written || i == 0 && first_written {
                file.reads.note_gone(at, self.entry_bytes());
                self.note_dropped(word.warmth(), held.index());
                give(&entries[at], word.with_backing(Backing::None).with_warmth(0));
                self.unstage(held);
                continue;
            }
            self.space.release_slot(held);
            // The first one goes to the store, where it takes no room of others.
            if i > 0 {
                self.note_unwritten(file, at, word);
                give(&entries[at], word);
            }
        }
        first_written
    }

    fn going(&self, file: &PageFile, index: usize, word: Word, slot: u32) -> Going {
        let held = self.space.claim_slot(slot);
        let out = self.outside(word, &held);
        self.note_clean(file, index);
        Going { word, held, out }
    }

    fn is_dirty(&self, file: &PageFile, index: usize, going: &Going) -> bool {
        let content = self.space.bytes(&going.held);
        file.is_writable() && file.differing(index, going.out.bits().into(), &[content]) != 0
    }

    /// Takes an entry that is staged as a whole, and dirty.
    fn take_dirty(&self, file: &PageFile, entries: &Entries, index: usize) -> Option<Going> {
        let word = try_take(&entries[index])?;
        if let Backing::Slot(slot) = word.backing()
            && word.resident().is_empty()
            && !is_unasked(word)
        {
            let going = self.going(file, index, word, slot);
            if self.is_dirty(file, index, &going) {
                return Some(going);
            }
            self.space.release_slot(going.held);
        }
        give(&entries[index], word);
        None
    }

    fn write_together(&self, file: &PageFile, index: usize, going: &[Option<Going>]) -> bool {
        let (mut content, mut wanted) = ([&[][..]; RUN_PARTS], 0);
        let pages = self.entry_bytes() / OS_PAGE;
        for (i, one) in going.iter().flatten().enumerate() {
            content[i] = self.space.bytes(&one.held);
            wanted |= u64::from(one.out.bits()) << (i * pages);
        }
        file.write_back(index, wanted, &content[..going.len()], false).is_ok()
    }
}

#[cfg(test)]
#[path = "dropping_test.rs"]
mod tests;
