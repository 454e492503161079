//! Objects that are in the file, or at the remote store, and in memory: a page that is wanted in
//! parts is read once, and leaves memory again without a write.
//!
//! A fault that wants one OS page of a page in the file brings the packed page into memory, and
//! keeps its place in the file as long as the page is not stored anew. So its other parts come from
//! memory, too, a part that is evicted is compared there, and when memory gets short such objects
//! go first, without a write. The memory's own limit bounds the bytes held twice. The file gives
//! places up when little of it is left, and where little room is left at the server nothing is
//! kept.
//!
//! This module must never let go of one place of an object that is not whole in the other.

use std::sync::atomic::Ordering;

use pagoda_core::size::Bytes;
use pagoda_linux::codec::pack::{BLOCK, is_dense, pack_block, packed_blocks};
use pagoda_linux::process::lock::Held;

use super::file::{BATCH, FileTier};
use super::handle::Meaning;
use super::memory::MemoryState;
use super::objects::{DENSE, Kind, MOVING, NOBODY, Object, QUEUED, Queue, READ, Word};
use super::{GetError, Handle, Scratch, TieredStore};
use crate::crypto::sealing::Version;
use crate::store::lease::THEIRS;

/// Objects at the old end of a queue that are looked at for such that are in the file, too, with
/// the lock held.
const LOOKS_MOST: usize = 64;

impl TieredStore {
    /// Brings the packed bytes of a page that is in the file or at the remote store into memory,
    /// too. True if it is in memory now; false if there is no room, here or at the server for both.
    /// Blocks for the disk or the server, perhaps for a write, too.
    ///
    /// The caller makes sure that no other thread fetches or frees it meanwhile.
    ///
    /// # Errors
    /// See [`GetError`].
    pub(crate) fn promote(&self, handle: Handle, scratch: &mut Scratch) -> Result<bool, GetError> {
        let Meaning::Object(id) = handle.meaning() else { return Ok(true) };
        let object = self.table.get(id).ok_or(GetError::Corrupt)?;
        let word = object.word();
        let file = match (word.kind(), &self.file) {
            (Kind::Memory, _) => return Ok(true),
            (Kind::File, Some(file)) => file,
            (Kind::Remote, _) => return self.promote_remote(id, word, scratch),
            _ => return Err(GetError::Corrupt),
        };
        let checksum = object.checksum.load(Ordering::Relaxed);
        let bytes = match file.read(word.units(), word.len(), checksum, &mut scratch.slots) {
            Ok(bytes) => &scratch.slots[bytes],
            Err(error) if self.is_still_at(id, word) => return Err(error),
            // It moved on to the remote store meanwhile.
            Err(_) => return Ok(false),
        };
        let Some(first) = self.make_room_for_copy(id, word) else { return Ok(false) };
        Ok(self.place_in_memory(id, word, first, bytes))
    }

    /// Blocks for an object that is elsewhere.
    fn make_room_for_copy(&self, id: u32, word: Word) -> Option<u32> {
        let room = || self.memory.reserve_copy(word.len(), id);
        // Most objects that make room came here the same way, and go without a write.
        let spilled = || self.spill_once(Bytes::ZERO).ok().and_then(|_| room());
        room().or_else(spilled)
    }

    /// The same of an object that is at the remote store. Its field there stays, and is as good as
    /// a place in the file.
    fn promote_remote(&self, id: u32, word: Word, scratch: &mut Scratch) -> Result<bool, GetError> {
        let remote = self.remote.as_ref().ok_or(GetError::Corrupt)?;
        if !remote.has_room_for_copies() {
            return Ok(false);
        }
        // Before it is asked for: without room all of the page is fetched to elsewhere.
        let Some(first) = self.make_room_for_copy(id, word) else { return Ok(false) };
        let bytes = &mut scratch.packed[..word.len()];
        let version = Version::from_bits(self.table.at(id).checksum.load(Ordering::Relaxed));
        if let Err(error) = remote.read(id, word.first(), version, bytes) {
            self.memory.lock().pool.release(first);
            return Err(error);
        }
        self.place_of_remote(id, word, first, bytes);
        Ok(true)
    }

    /// Makes an object that is at the remote store, and has these bytes, one in memory, from block
    /// `first` on. The caller has it to itself, and no mover touches objects there.
    pub(super) fn place_of_remote(&self, id: u32, word: Word, first: u32, bytes: &[u8]) {
        self.memory.write(first, bytes);
        self.note_blocks(id, word, bytes);
        let object = self.table.at(id);
        let promoted = word.moved_to(Kind::Memory, first);
        let mut state = self.memory.lock();
        self.refaults.promoted(object);
        object.batch.store(word.first(), Ordering::Relaxed);
        object.publish(promoted);
        state.queue(promoted).push_youngest(&self.table, id);
    }

    /// Makes an object that is in the file, and has these bytes, one in memory, from block `first`
    /// on. The caller has it to itself, but for its mover: if that has come first, nothing happens
    /// but that these blocks are given back.
    pub(super) fn place_in_memory(&self, id: u32, word: Word, first: u32, bytes: &[u8]) -> bool {
        self.memory.write(first, bytes);
        self.note_blocks(id, word, bytes);
        // In a parent's file it takes no room of ours.
        let keeps = word.first() & THEIRS != 0 || self.has_room_for_copies();
        let object = self.table.at(id);
        let mut state = self.memory.lock();
        if object.word().has(MOVING) || !object.word().is_at_place_of(word) {
            state.pool.release(first);
            return false;
        }
        state.unqueue_filed(&self.table, id);
        self.refaults.promoted(object);
        let promoted = word.moved_to(Kind::Memory, first);
        object.kept.store(if keeps { word.first() } else { NOBODY }, Ordering::Relaxed);
        object.publish(promoted);
        state.queue(promoted).push_youngest(&self.table, id);
        drop(state);
        if let Some(file) = self.file.as_ref().filter(|_| !keeps) {
            file.release(word.units());
        }
        true
    }

    /// Whether there is a file, and room in it for objects that are in memory, too.
    pub(super) fn has_room_for_copies(&self) -> bool {
        self.file.as_ref().is_some_and(FileTier::has_room_for_copies)
    }

    /// Whether a page in memory is in the file or at the remote store, too, as far as can be told.
    pub(crate) fn is_kept(&self, handle: Handle) -> bool {
        match handle.meaning() {
            Meaning::SameFilled(_) => false,
            Meaning::Image(_) => true,
            Meaning::Object(id) => self.table.get(id).is_some_and(Object::is_kept),
        }
    }

    /// Whether a copy in memory may displace other objects to the file.
    pub(crate) fn may_displace(&self) -> bool {
        self.file.as_ref().is_some_and(|file| file.has_room_for_copies())
    }

    /// Notes the blocks of an object whose bytes go to the file or are read from there.
    pub(super) fn note_blocks(&self, id: u32, word: Word, bytes: &[u8]) {
        let blocks = || packed_blocks(bytes, self.page_bytes());
        if !word.raw() && !is_dense(bytes) && blocks().all(|block| block.is_some()) {
            self.blocks.note(id, blocks().flatten(), self.content_digester());
        }
    }

    /// Fetches one block of a page that is in the file, and reads no more of it. Returns its
    /// digest; None if the page is not there, or its blocks are not known. Blocks for the disk.
    ///
    /// The caller has the same duties as for [`promote`](Self::promote).
    ///
    /// # Errors
    /// See [`GetError`]. None for a block that differs from its note: reading all of the page tells
    /// the cause.
    pub(crate) fn read_block(
        &self,
        handle: Handle,
        block: usize,
        into: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<Option<u64>, GetError> {
        let Meaning::Object(id) = handle.meaning() else { return Ok(None) };
        let word = self.table.get(id).ok_or(GetError::Corrupt)?.word();
        let (Kind::File, Some(file), Some((range, digest))) =
            (word.kind(), &self.file, self.blocks.place(id, block))
        else {
            return Ok(None);
        };
        // A page that was compressed again has other bytes in the file.
        if word.has(DENSE) || word.raw() || range.end > word.len() {
            return Ok(None);
        }
        let sum = self.table.at(id).checksum.load(Ordering::Relaxed);
        let bytes = match file.read_part(word.units(), sum, range, &mut scratch.slots) {
            Ok(bytes) => bytes,
            Err(error) if self.is_still_at(id, word) => return Err(error),
            Err(_) => return Ok(None),
        };
        let right = self.digest(bytes) == digest && scratch.unpacker.unpack_block(bytes, into).is_some();
        #[cfg(test)]
        self.parts_read.fetch_add(u64::from(right), Ordering::Relaxed);
        Ok(right.then_some(digest))
    }

    /// Whether this page's block still is one that had this digest.
    pub(crate) fn is_block(&self, handle: Handle, block: usize, digest: u64) -> bool {
        match handle.meaning() {
            Meaning::Object(id) => self.blocks.is(id, block, digest),
            // It never changes.
            Meaning::Image(_) => true,
            Meaning::SameFilled(_) => false,
        }
    }

    /// Whether bytes from `offset` on, whole blocks, are known to be those of a page that is in the
    /// file.
    pub(super) fn are_blocks(&self, id: u32, offset: usize, content: &[u8], scratch: &mut Scratch) -> bool {
        if !offset.is_multiple_of(BLOCK) || !self.blocks.knows(id) {
            return false;
        }
        let Scratch { repacked, packer, .. } = scratch;
        (offset / BLOCK..).zip(content.chunks(BLOCK)).all(|(number, content)| {
            pack_block(content, repacked, packer)
                .is_some_and(|len| self.blocks.is(id, number, self.digest(&repacked[..len])))
        })
    }

    /// Lets a page that is in the file or at the remote store, too, leave memory, unless it is
    /// being read there.
    pub(crate) fn demote(&self, handle: Handle) {
        if let Meaning::Object(id) = handle.meaning()
            && self.is_kept(handle)
        {
            self.leave_memory(&mut self.memory.lock(), id);
        }
    }

    /// Lets an object in memory go that is in the file or at the remote store, too. Returns the
    /// bytes of memory that frees: none if it is in neither, or is being read or moved.
    pub(super) fn leave_memory(&self, state: &mut MemoryState, id: u32) -> u64 {
        let object = self.table.at(id);
        let word = object.word();
        let to = match [&object.kept, &object.batch].map(|place| place.load(Ordering::Relaxed)) {
            [NOBODY, NOBODY] => return 0,
            [NOBODY, batch] => word.moved_to(Kind::Remote, batch),
            [kept, _] => word.moved_to(Kind::File, kept),
        };
        if word.kind() != Kind::Memory || word.has(MOVING) || !object.replace(word, to) {
            return 0;
        }
        self.refaults.spilled(object, word);
        state.queue(word).remove(&self.table, id);
        // A page in a parent's file takes no room in this one, from which objects move on.
        if to.kind() == Kind::File && to.first() & THEIRS == 0 {
            state.filed.push_youngest(&self.table, id);
        }
        object.kept.store(NOBODY, Ordering::Relaxed);
        object.batch.store(NOBODY, Ordering::Relaxed);
        u64::from(state.pool.release(word.first())) * self.memory.block_bytes() as u64
    }

    /// Lets about a batch of the oldest objects go that are in the file or at the remote store,
    /// too. Returns the bytes of memory that frees.
    pub(super) fn leave_for_file(&self) -> u64 {
        let mut freed = 0;
        if self.file.is_none() && self.remote.is_none() {
            return freed;
        }
        let mut state = self.memory.lock();
        for mut at in [state.raw.oldest(), state.dense.oldest(), state.packed.oldest()] {
            for _ in 0..LOOKS_MOST {
                let Some(id) = at.filter(|_| freed < BATCH as u64) else { break };
                at = Queue::after(&self.table, id);
                if !self.is_spared(&mut state, id) {
                    freed += self.leave_memory(&mut state, id);
                }
            }
        }
        freed
    }

    /// Whether an object was read since it came into its queue: then it is as young as a new one.
    pub(super) fn is_spared(&self, state: &mut MemoryState, id: u32) -> bool {
        let object = self.table.at(id);
        let word = object.word();
        let is_read = word.kind() == Kind::Memory && word.has(READ) && word.has(QUEUED);
        if is_read {
            object.flag(0, READ);
            state.queue(word).remove(&self.table, id);
            state.queue(word).push_youngest(&self.table, id);
        }
        is_read
    }

    /// Ends a change of the memory tier, and releases the units that freed objects had in the file.
    pub(super) fn let_go(&self, mut state: Held<'_, MemoryState>) {
        let gone = std::mem::take(&mut state.numbers.kept_by_gone);
        drop(state);
        if let Some(file) = self.file.as_ref().filter(|_| !gone.is_empty()) {
            file.release_all(&gone);
        }
    }
}

#[cfg(test)]
#[path = "promote_test.rs"]
mod tests;
