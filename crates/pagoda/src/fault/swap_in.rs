//! Swapping in: fetching stored content into a frame.
//!
//! Nothing here takes the gate, so that I/O holds nothing up. The caller has the entry's busy bit.
//! This module must never touch a region, and never take a frame that the budget does not allow,
//! unless the caller says so.

use std::sync::atomic::Ordering;

use pagoda_core::page::OS_PAGE;
use pagoda_core::page_entry::{Backing, Granules, Word};
use pagoda_linux::arena::Slot;

use crate::engine::Engine;
use crate::error::{Errno, StopReason};
use crate::frames::pool::all_of_slot;
use crate::frames::zones::Taker;
use crate::store::{GetError, Handle, Scratch, Store};
use crate::table::{Entries, give};

impl Engine {
    /// Swaps a stored page, whose busy bit the caller has taken, into a slot, and gives the entry
    /// back as staged. False without a frame: the entry is given back as it was. With `regardless`
    /// the budget does not count.
    pub(crate) fn fetch(
        &self,
        entries: &Entries,
        index: usize,
        word: Word,
        handle: u64,
        regardless: bool,
        scratch: &mut Scratch,
    ) -> bool {
        let Some(mut slot) = self.frame_for_fetch(regardless, scratch.taker) else {
            give(&entries[index], word);
            return false;
        };
        let handle = Handle::from_bits(handle);
        match self.store.get(handle, 0, self.space.bytes_mut(&mut slot), scratch) {
            Ok(()) => {}
            Err(error) => self.stop(unreadable(error)),
        }
        self.staged_from_store(entries, index, (word, handle), (slot, all_of_slot(&self.space)));
        true
    }

    /// As [`fetch`](Self::fetch), regardless of the budget, of a page of which `rest` is neither
    /// resident nor discarded: nothing else is put into the slot. A granule that has a copy in its
    /// slot can't leave before the page is stored, and a lift, which stores nothing, would wait for
    /// it in vain. False without an empty slot: any other has frames already.
    pub(crate) fn fetch_rest(
        &self,
        entries: &Entries,
        index: usize,
        (word, stored): (Word, Handle),
        rest: Granules,
        scratch: &mut Scratch,
    ) -> bool {
        let Some(mut slot) = self.zones.take_empty(&self.space, word.zone()) else { return false };
        // A hole of a staged page reads as zero.
        let rest = rest.and(self.store.content_of(stored));
        for (from, to) in rest.runs() {
            let bytes = from as usize * OS_PAGE..to as usize * OS_PAGE;
            let into = &mut self.space.bytes_mut(&mut slot)[bytes.clone()];
            if let Err(error) = self.store.get(stored, bytes.start, into, scratch) {
                self.stop(unreadable(error));
            }
        }
        self.ledger.took(i64::from(rest.count()) * OS_PAGE as i64);
        self.staged_from_store(entries, index, (word, stored), (slot, rest));
        true
    }

    /// The stored content lies in `slot` now. Frames are `there` of these granules.
    fn staged_from_store(
        &self,
        entries: &Entries,
        index: usize,
        (word, stored): (Word, Handle),
        (slot, there): (Slot, Granules),
    ) {
        self.store.free(stored);
        self.note_use();
        let slot = self.space.release_slot(slot);
        self.went_into_staging(slot, there);
        let after = word.with_backing(Backing::Slot(slot));
        self.ledger.changed(word, after);
        give(&entries[index], after);
        self.queue_staged(entries, index, slot);
    }

    /// Reads one granule of a page that is in the file, whose entry's busy bit the caller has
    /// taken. Returns its digest, if it could be read alone.
    pub(super) fn read_granule(
        &self,
        handle: u64,
        granule: u32,
        content: &mut [u8; 4096],
        scratch: &mut Scratch,
    ) -> Option<u64> {
        match self.store.read_block(Handle::from_bits(handle), granule as usize, content, scratch) {
            Ok(digest) => digest,
            Err(error) => self.stop(unreadable(error)),
        }
    }

    /// Reads a page that is in the file, whose entry's busy bit the caller has taken, into memory.
    /// False if that failed.
    pub(crate) fn promote(&self, handle: u64, scratch: &mut Scratch) -> bool {
        match self.store.promote(Handle::from_bits(handle), scratch) {
            Ok(true) => {
                self.ledger.store_has(self.store.usage().memory_committed_bytes.get());
                true
            }
            Ok(false) => false,
            Err(error) => self.stop(unreadable(error)),
        }
    }

    /// Whether the store keeps its copy of a page that is swapped in, so that evicting the clean
    /// page stores nothing. False once the store has nearly all that it may ever use, and the file
    /// has no room for objects that a copy displaces: that bounds the memory held twice.
    pub(crate) fn keeps_copies(&self) -> bool {
        let limit = self.store_memory_most().get();
        let has_room = self.ledger.store_bytes() < limit - limit / 32 || self.store.may_displace();
        has_room && !self.is_released()
    }

    /// The same of this page: one that is in the file, too, need not be in memory for it.
    pub(super) fn keeps_copies_of(&self, handle: u64) -> bool {
        self.keeps_copies() || self.store.is_kept(Handle::from_bits(handle)) && !self.is_released()
    }

    /// A ready frame, if the budget allows to use one. While the budget is exceeded, by the
    /// compressed store for example, ready frames go back to the kernel.
    fn take_frame(&self) -> Option<Slot> {
        if self.may_use_frame() { self.zones.take_ready(&self.space) } else { None }
    }

    /// A frame to unpack a page into, ready or fresh; `regardless` of the budget if that is said.
    pub(crate) fn frame_for_fetch(&self, regardless: bool, taker: Taker) -> Option<Slot> {
        if self.zones.are_several() {
            return self.frame_of_a_zone(regardless, taker);
        }
        let frame = if regardless { self.zones.take_ready(&self.space) } else { self.take_frame() };
        frame.or_else(|| {
            let fresh =
                if regardless || self.has_room() { self.zones.take_empty(&self.space, 0) } else { None };
            if fresh.is_some() {
                self.ledger.took(self.entry_bytes() as i64);
            }
            fresh
        })
    }

    /// Whether faults may use ready frames: while the budget is exceeded by little at most, or not
    /// enforced.
    pub(crate) fn may_use_frames(&self) -> bool {
        self.ledger.excess_bytes() <= self.marks().min.get() || self.is_released()
    }

    /// Whether one frame may be used: as all may, or because a handler made it ready for that.
    pub(crate) fn may_use_frame(&self) -> bool {
        self.may_use_frames() || self.use_earned()
    }

    /// Uses up the right to one frame, if there is one.
    pub(crate) fn use_earned(&self) -> bool {
        self.earned.fetch_update(Ordering::AcqRel, Ordering::Acquire, |rights| rights.checked_sub(1)).is_ok()
    }
}

/// The stop reason of a fetch that failed: there is no other copy, so the process can't go on.
pub(crate) fn unreadable(error: GetError) -> StopReason {
    match error {
        GetError::Corrupt => StopReason::ContentCorrupt,
        error => StopReason::ContentUnreadable(Errno(error.errno())),
    }
}
