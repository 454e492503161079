//! Pages that are stored: as much of one as the fault asks for is unpacked into the region.
//!
//! With the gate shared only compressed memory is read. Anything else is fetched without the gate
//! (`Engine::swap_in`), and the fault is looked at again. The caller has the busy bit of the entry.
//! This module must never put old content over newer writes.

use pagoda_core::page::OS_PAGE;
use pagoda_core::page_entry::{Granules, Word};
use pagoda_linux::arena::Slot;
use pagoda_linux::uffd::Stop;

use super::{Miss, Taken, unreadable};
use crate::engine::Engine;
use crate::frames::zones::Taker;
use crate::state::pending::Served;
use crate::store::{Handle, Scratch, Store};
use crate::table::granularity::Part;
use crate::table::{Entries, Page, give};

/// Base pages that must be free for the granules around a fault to come with it.
const PREFETCH_LEAVES: u64 = 2;

/// The bytes of a page from the first to the last of these granules and `granule`.
fn bytes_around(granules: Granules, granule: u32) -> std::ops::Range<usize> {
    let with = granules.or(Granules::range(granule, granule + 1));
    let (from, to) =
        with.runs().fold((granule, granule + 1), |(from, to), run| (from.min(run.0), to.max(run.1)));
    from as usize * OS_PAGE..to as usize * OS_PAGE
}

/// A page with content in at most this part of its OS pages is sparse.
const SPARSE_PART: u32 = 4;

impl Engine {
    /// The OS pages with content of a stored page that `page` shows whole, if they are few.
    pub(super) fn sparse_content(&self, page: &Page, handle: u64) -> Option<Granules> {
        let content = self.store.content_of(Handle::from_bits(handle));
        let is_sparse = !content.is_empty() && content.count() * SPARSE_PART <= page.granules.count();
        is_sparse.then_some(content)
    }

    /// The part of a stored page that is swapped in where the page is sparse: the granules with
    /// content, and the missing one. A second fault on the page that misses a granule of zeroes
    /// gets all of it: the program uses more of it than had content.
    pub(super) fn content_around(&self, taken: &Taken<'_>, handle: u64) -> Option<Part> {
        if taken.is_of_file {
            return None;
        }
        let content = self.sparse_content(&taken.page, handle)?;
        let is_second = !taken.word.resident().is_empty() && !content.has(taken.granule);
        let all = content.or(Granules::range(taken.granule, taken.granule + 1));
        (!is_second).then_some(Part { wanted: all, all })
    }

    /// Serves a fault on a stored page from memory. None if its content has to be fetched first.
    pub(super) fn serve_stored(
        &self,
        taken: &Taken<'_>,
        handle: u64,
        part: Option<Part>,
        miss: &mut Miss<'_>,
    ) -> Option<Served> {
        let Taken { page, word, granule, .. } = *taken;
        // The thread gets SIGBUS there, and no other thread is concerned.
        if miss.is_damaged && self.store.is_of_image(Handle::from_bits(handle)) {
            return Some(self.refuse(taken, miss));
        }
        let comes = part.map_or(0..self.entry_bytes(), |part| bytes_around(part.all, granule));
        let brought = self.store.is_brought(Handle::from_bits(handle), &comes, miss.scratch);
        let is_in_memory = || brought || self.store.is_in_memory(Handle::from_bits(handle));
        // While the file was read the page may have been fetched, written and stored anew. The
        // digest shows whether it still is the same.
        let (after, served) = if self.is_still(handle, granule, miss.read) {
            self.install_granule(&page, word, granule, &miss.content, miss.scratch.taker)
        } else if let Some(part) = part
            && is_in_memory()
        {
            self.install_part(&page, word, handle, (granule, part), &mut miss.content, miss.scratch)
        } else if self.keeps_copies_of(handle) && is_in_memory() {
            self.install_copy(taken, handle, miss.scratch)
        } else {
            return None;
        };
        self.ledger.changed(word, after);
        taken.give(after);
        Some(served)
    }

    /// Fetches a stored page whose entry's busy bit is taken, without the gate. Fetches one granule
    /// if it `is_new` to this fault and lies in the file, else the whole page, into compressed
    /// memory or a slot. None if the page is to be looked at again.
    pub(super) fn swap_in(
        &self,
        entries: &Entries,
        index: usize,
        (word, handle, granule): (Word, u64, u32),
        part: Option<Part>,
        is_new: bool,
        miss: &mut Miss<'_>,
    ) -> Option<Served> {
        if !miss.was_tried && self.store.is_of_image(Handle::from_bits(handle)) {
            miss.was_tried = true;
            let comes = part.map_or(0..self.entry_bytes(), |part| bytes_around(part.all, granule));
            self.bring_from_image(handle, comes, granule, miss);
            give(&entries[index], word);
            return None;
        }
        miss.was_tried = true;
        // A second fault on a page predicts more, and so does a granule that comes back soon. Its
        // page takes the place of others that are not used, if that is so in this program.
        let stored = Handle::from_bits(handle);
        let is_alone = part.is_some_and(|part| part.wanted.count() == 1);
        let is_first = word.resident().is_empty() && !self.store.left_lately(stored, granule);
        if is_alone && (is_first || !self.store.promotion_pays()) {
            let digest = self.read_granule(handle, granule, &mut miss.content, miss.scratch);
            miss.read = digest.map(|digest| (handle, digest));
        }
        let is_read = miss.read.is_some();
        if is_new && (is_read || self.promote(handle, miss.scratch)) {
            if is_alone && !is_read {
                self.store.note_promoted(stored);
            }
            give(&entries[index], word);
            return None;
        }
        if !self.fetch(entries, index, word, handle, false, miss.scratch) {
            return Some(Served::NoMemory);
        }
        miss.was_fetched = true;
        None
    }

    /// Reads a part of an image's page without the gate. Where that is damaged the granule is read
    /// alone.
    fn bring_from_image(
        &self,
        handle: u64,
        comes: std::ops::Range<usize>,
        granule: u32,
        miss: &mut Miss<'_>,
    ) {
        let stored = Handle::from_bits(handle);
        if self.store.bring(stored, comes, miss.scratch).is_ok() {
            return;
        }
        let at = granule as usize * OS_PAGE;
        let alone = self.store.get(stored, at, &mut miss.content, miss.scratch);
        miss.is_damaged = alone.is_err();
        // No digest of the store's: an image never changes.
        miss.read = alone.is_ok().then_some((handle, 0));
    }

    /// Whether the granule that is stored now is the one that was read from the file, by its handle
    /// and digest.
    fn is_still(&self, handle: u64, granule: u32, read: Option<(u64, u64)>) -> bool {
        let is_block = |digest| self.store.is_block(Handle::from_bits(handle), granule as usize, digest);
        read.is_some_and(|(of, digest)| of == handle && is_block(digest))
    }

    /// Copies a part of a page that is stored in memory into the region: `granule`, and first those
    /// around it, as far as ready frames may be used for prefetching.
    fn install_part(
        &self,
        page: &Page,
        word: Word,
        handle: u64,
        (granule, part): (u32, Part),
        content: &mut [u8; 4096],
        scratch: &mut Scratch,
    ) -> (Word, Served) {
        let taker = scratch.taker;
        let mut get = |granule: u32, content: &mut [u8; 4096]| {
            let at = granule as usize * OS_PAGE;
            if let Err(error) = self.store.get(Handle::from_bits(handle), at, content, scratch) {
                self.stop(unreadable(error));
            }
        };
        let others = page.granules.and(part.all).without(word.resident());
        let others = others.without(Granules::range(granule, granule + 1));
        let mut after = word;
        for other in others.runs().flat_map(|(from, to)| from..to) {
            // The last frames are the fault's own. A neighbour that took the only one would be
            // evicted for it, and come back at the next try, forever.
            if !self.may_use_frames() || self.free().get() < PREFETCH_LEAVES * self.entry_bytes() as u64 {
                break;
            }
            get(other, content);
            // A zero granule was most likely never used: prefetching it would waste memory.
            if !part.wanted.has(other) && content.iter().all(|byte| *byte == 0) {
                continue;
            }
            // A granule that can't be placed has a fault of its own.
            match self.place_granule(page, after, other, content, taker) {
                Ok(placed) => after = placed.with_warmth(word.warmth()),
                Err(_) => break,
            }
        }
        get(granule, content);
        self.install_granule(page, after, granule, content, taker)
    }

    /// Copies one granule of a stored page into the region. The rest stays stored. So does the
    /// granule's old copy, which is never used again.
    fn install_granule(
        &self,
        page: &Page,
        word: Word,
        granule: u32,
        content: &[u8; 4096],
        taker: Taker,
    ) -> (Word, Served) {
        match self.place_granule(page, word, granule, content, taker) {
            Ok(word) => (word, Served::Done),
            Err(None) => (word, Served::NoMemory),
            Err(stop) => (word, self.settle(stop, page.addresses(granule, granule + 1))),
        }
    }

    /// As `install_granule`, but tells why it failed: the kernel refused, or there is no frame.
    pub(super) fn place_granule(
        &self,
        page: &Page,
        word: Word,
        granule: u32,
        content: &[u8; 4096],
        taker: Taker,
    ) -> Result<Word, Option<Stop>> {
        let here = page.addresses(granule, granule + 1);
        let place = |slot: &Slot, offset| {
            let progress = self.space.fill(here, slot, offset);
            (progress.stop.is_none(), progress)
        };
        // While the faulting thread waits, moving a ready OS page is faster than filling a fresh
        // one.
        let may_open = !self.has_room() && self.may_use_frame();
        let mut zone = 0;
        let progress = if self.zones.are_several() {
            let Some(placed) = self.place_page_of_a_zone(word, content, may_open, taker, place) else {
                return Err(None);
            };
            zone = placed.0;
            placed.1
        } else if let Some(progress) = self.zones.place_page(&self.space, content, may_open, place) {
            progress
        } else if self.has_room() {
            let progress = self.space.fill_with(here, content);
            self.ledger.took(progress.bytes as i64);
            progress
        } else {
            return Err(None);
        };
        let progress = match progress.stop {
            // Where the mapping does not allow a move, a copy does.
            Some(Stop::Refused | Stop::Busy) => self.space.fill_with(here, content),
            _ => progress,
        };
        if progress.stop.is_some() {
            return Err(progress.stop);
        }
        self.ledger.fetched(OS_PAGE as u64);
        self.note_use();
        let word = self.came_in(word, Granules::range(granule, granule + 1), zone);
        Ok(word.with_warmth((word.warmth() + 1).min(3)))
    }

    /// Puts the content of a stored page into the region, and leaves it in the store, too.
    fn install_copy(&self, taken: &Taken<'_>, handle: u64, scratch: &mut Scratch) -> (Word, Served) {
        let Taken { page, word, granule, .. } = *taken;
        let Some(mut slot) = self.frame_for_fetch(false, scratch.taker) else {
            return (word, Served::NoMemory);
        };
        let handle = Handle::from_bits(handle);
        if let Err(error) = self.store.get(handle, 0, self.space.bytes_mut(&mut slot), scratch) {
            self.stop(unreadable(error));
        }
        // All of it is in the region in a moment: of the two copies the one in the file is enough.
        self.store.demote(handle);
        let zone = self.zones.of_slot(slot.index());
        let moved = self.move_in(&page, &slot, page.granules.without(word.resident()));
        let all = Granules::range(0, (self.entry_bytes() / 4096) as u32);
        self.zones.put_pieces(&self.space, slot, all.without(moved.done).or(moved.copied));
        self.ledger.fetched(self.entry_bytes() as u64);
        self.note_use();
        let word = self.came_in(word, moved.done, zone).with_warmth(2);
        if moved.done.has(granule) {
            return (word, Served::Done);
        }
        (word, self.settle(moved.stop, taken.here()))
    }
}

#[cfg(test)]
#[path = "stored_test.rs"]
mod tests;
