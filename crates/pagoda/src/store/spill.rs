//! Moving objects: from memory to the file or the remote store, oldest first, and out of sparse
//! segments so that these can be given back. Those that move on from the file are `cascade`'s.
//!
//! One mover at a time, by the `spiller` lock. It never waits for a reader: an object that is being
//! read stays where it is and counts as young. It never lets go of the old place before the new one
//! is written and published.

use std::sync::atomic::Ordering;

use pagoda_core::size::Bytes;
use pagoda_linux::io::direct_file::FileError;

use super::file::{Batch, FileTier, Item};
use super::memory::MemoryState;
use super::objects::{FREED, Kind, MOVING, QUEUED, Queue};
use super::remote::{RemoteError, RemoteTier};
use super::{PutError, TieredStore};

/// A segment is emptied by moving its objects only if the blocks in use would fit into this share
/// of the segments that hold any: below that it is cheaper than writing to the file, above it gains
/// too little.
const FULLNESS_PERCENT_MAX: u64 = 75;

/// Objects that one batch passes over because they were read: the memory lock is held meanwhile.
const SPARED_MOST: usize = 256;

/// Where a batch was written.
#[derive(Clone, Copy)]
pub(super) enum Written<'a> {
    File(&'a FileTier),
    /// By this number of the batch.
    Remote(&'a RemoteTier, u32),
}

impl Written<'_> {
    fn place(self, item: &Item) -> (Kind, u32) {
        match self {
            Self::File(_) => (Kind::File, item.units.first),
            Self::Remote(_, number) => (Kind::Remote, number),
        }
    }
    /// The object is not needed there after all.
    fn abandon(self, item: &Item) {
        match self {
            Self::File(file) => file.release(item.units),
            Self::Remote(remote, number) => remote.abandon(item.id, number, item.len),
        }
    }
}

impl TieredStore {
    /// Spills the oldest objects, in sequential writes of up to 1 MiB, until those in memory take
    /// `target_memory` or less. Returns the bytes freed in memory. Blocks for the disk. The next
    /// puts use the room; [`trim`](Self::trim) makes whole segments of it, for the kernel.
    ///
    /// # Errors
    /// [`PutError::Full`] if that could not be reached because there is nowhere to spill to or it
    /// is full; [`PutError::Io`] if the file and [`PutError::Remote`] if the remote store could not
    /// be written. Either way nothing is lost.
    pub fn spill(&self, target_memory: Bytes) -> Result<Bytes, PutError> {
        let mut freed = 0;
        loop {
            match self.spill_once(target_memory)? {
                0 => return Ok(Bytes::new(freed)),
                bytes => freed += bytes,
            }
        }
    }

    /// Gives memory that holds nothing back to the kernel, after emptying segments that hold
    /// little. Returns how much.
    pub fn trim(&self) -> Bytes {
        if let Some(_mover) = self.spiller.try_lock() {
            // Each round empties a segment, of which there are finitely many; this only bounds the
            // time.
            for _ in 0..64 {
                if !self.empty_one_segment() {
                    break;
                }
            }
        }
        self.memory.give_back_empty_segments()
    }

    /// One step towards a target: empties a sparse segment or writes one batch. Returns the bytes
    /// it freed; 0: the target is reached, or everything is being read.
    pub(super) fn spill_once(&self, target: Bytes) -> Result<u64, PutError> {
        let mut spiller = self.spiller.lock();
        let (occupied, used) = self.occupied_and_used();
        if used <= target.get() {
            return Ok(0);
        }
        if used * 100 <= occupied * FULLNESS_PERCENT_MAX && self.empty_one_segment() {
            return Ok(self.memory.segment_bytes() as u64);
        }
        spiller.as_mut().map_or(Err(PutError::Full), |batch| self.spill_batch(batch, false))
    }

    /// Raw objects gain nothing in memory: a batch of them leaves it as soon as there is one.
    pub(super) fn spill_raw_if_many(&self) {
        if self.memory.lock().raw.bytes < self.batch_bytes {
            return;
        }
        // A mover under way takes the raw ones first anyway.
        let Some(mut spiller) = self.spiller.try_lock() else { return };
        if let Some(batch) = spiller.as_mut() {
            // The page is stored, in memory. The next caller that needs room gets the error of a
            // full or failing file.
            let _ = self.spill_batch(batch, true);
        }
    }

    /// Bytes of segments that hold anything, and of blocks in use.
    fn occupied_and_used(&self) -> (u64, u64) {
        let state = self.memory.lock();
        let segments = state.pool.present_segments() - state.pool.empty_segments();
        let used = state.pool.used_blocks() * self.memory.block_bytes() as u64;
        (u64::from(segments) * self.memory.segment_bytes() as u64, used)
    }

    fn spill_batch(&self, batch: &mut Batch, only_raw: bool) -> Result<u64, PutError> {
        let left = self.leave_for_file();
        if left > 0 {
            return Ok(left);
        }
        self.make_room_in_file(batch);
        batch.clear();
        let mut state = self.memory.lock();
        self.gather(&mut state, |state| &mut state.raw, batch);
        if !only_raw {
            self.gather(&mut state, |state| &mut state.dense, batch);
            self.gather(&mut state, |state| &mut state.packed, batch);
        }
        drop(state);
        self.fill(batch);
        for index in 0..batch.items.len() {
            let item = batch.items[index];
            self.note_blocks(item.id, self.table.at(item.id).word(), batch.bytes_of(&item));
        }
        let outcome = self.write_batch(batch);
        let freed = match outcome {
            Ok((written, count)) => self.settle(Some(written), batch, count),
            Err(_) => self.settle(None, batch, 0),
        };
        outcome.map(|_| freed)
    }

    /// Copies the objects of a batch, which are moving out of memory, into it.
    fn fill(&self, batch: &mut Batch) {
        for index in 0..batch.items.len() {
            let item = batch.items[index];
            // No other thread frees these blocks while the object is moving.
            let first = self.table.at(item.id).word().first();
            self.memory.read(first, 0..item.len, batch.bytes_of(&item));
        }
    }

    /// Writes the front of a batch to the file, or, if that takes nothing, all of it to the remote
    /// store. Returns where, and how many objects.
    fn write_batch(&self, batch: &mut Batch) -> Result<(Written<'_>, usize), PutError> {
        let from_file = match self.file.as_ref().map(|file| (file, file.write(batch))) {
            Some((file, Ok(count))) => return Ok((Written::File(file), count)),
            Some((_, Err(FileError::Full))) | None => PutError::Full,
            Some((_, Err(source))) => PutError::Io { source },
        };
        let Some(remote) = &self.remote else { return Err(from_file) };
        // Objects that only wait to be deleted there don't make it full.
        while !remote.has_room(batch) && self.delete_gone() {}
        if self.file.is_some() {
            // The file's tier has enciphered it.
            self.fill(batch);
        }
        match (remote.write(batch), from_file) {
            (Ok(number), _) => Ok((Written::Remote(remote, number), batch.items.len())),
            (Err(RemoteError::Full), error) => Err(error),
            (Err(source), PutError::Full) => Err(PutError::Remote { source }),
            (Err(_), error) => Err(error),
        }
    }

    /// Takes objects from the old end of a queue into the batch, and marks them as moving.
    pub(super) fn gather(
        &self,
        state: &mut MemoryState,
        queue: impl Fn(&mut MemoryState) -> &mut Queue,
        batch: &mut Batch,
    ) {
        let mut at = queue(state).oldest();
        let mut spared = 0;
        while let Some(id) = at {
            at = Queue::after(&self.table, id);
            if spared < SPARED_MOST && self.is_spared(state, id) {
                spared += 1;
                continue;
            }
            let word = self.table.at(id).word();
            // A reserved one is still being written: as many as there are threads in put. And an
            // object that is in the file or at the server, too, goes without a write when its turn
            // comes.
            if word.kind() != Kind::Memory || self.table.at(id).is_kept() {
                continue;
            }
            if !batch.add(id, word.len()) {
                return;
            }
            queue(state).remove(&self.table, id);
            self.table.at(id).flag(MOVING, 0);
        }
    }

    /// Ends the moves of a batch whose first `count` objects are written. Returns the bytes freed
    /// in memory.
    pub(super) fn settle(&self, written: Option<Written<'_>>, batch: &Batch, count: usize) -> u64 {
        let (moved, left) = batch.items.split_at(count);
        let mut freed_blocks = 0;
        let mut abandoned = Vec::new();
        let mut state = self.memory.lock();
        for (item, written) in moved.iter().zip(std::iter::repeat(written).flatten()) {
            let object = self.table.at(item.id);
            let word = object.word();
            let (kind, first) = written.place(item);
            if word.has(FREED) {
                freed_blocks += u64::from(state.pool.release(word.first()));
                state.numbers.give_back(&self.table, item.id);
                abandoned.push(*item);
                continue;
            }
            object.checksum.store(item.checksum, Ordering::Relaxed);
            if object.replace(word, word.moved_to(kind, first)) {
                self.refaults.spilled(object, word);
                freed_blocks += u64::from(state.pool.release(word.first()));
                if kind == Kind::File {
                    state.filed.push_youngest(&self.table, item.id);
                }
            } else {
                // It is being read: it stays, as a young one.
                object.flag(0, MOVING);
                state.queue(word).push_youngest(&self.table, item.id);
                abandoned.push(*item);
            }
        }
        for item in left.iter().rev() {
            let object = self.table.at(item.id);
            let word = object.word();
            if word.has(FREED) {
                freed_blocks += u64::from(state.pool.release(word.first()));
                state.numbers.give_back(&self.table, item.id);
            } else {
                object.flag(0, MOVING);
                state.queue(word).push_oldest(&self.table, item.id);
            }
        }
        self.let_go(state);
        for item in abandoned {
            written.iter().for_each(|written| written.abandon(&item));
        }
        freed_blocks * self.memory.block_bytes() as u64
    }

    /// Moves the objects of the sparsest segment into other segments that are in use. `false` if
    /// there is none worth it, or if it did not become empty because an object of it is being read
    /// or written.
    ///
    /// The caller holds the `spiller` lock.
    fn empty_one_segment(&self) -> bool {
        let mut state = self.memory.lock();
        let Some(segment) = state.pool.worth_emptying() else { return false };
        let (mut from, mut all_moved) = (0, true);
        while let Some((next, id)) = state.pool.owner_at_or_after(segment, from) {
            from = next;
            let object = self.table.at(id);
            let word = object.word();
            if word.kind() != Kind::Memory || word.readers() > 0 {
                all_moved = false;
                continue;
            }
            let blocks = word.len().div_ceil(self.memory.block_bytes()) as u32;
            let Some(first) = state.pool.allocate_to_empty(blocks, id, segment) else { return false };
            object.flag(MOVING, 0);
            drop(state);
            self.memory.copy(word.first(), first);
            state = self.memory.lock();
            let word = object.word();
            if word.has(FREED) {
                state.drop_object(&self.table, id);
                state.pool.release(first);
            } else if object.replace(word, word.moved_to(Kind::Memory, first).with(QUEUED)) {
                state.pool.release(word.first());
            } else {
                object.flag(0, MOVING);
                state.pool.release(first);
                all_moved = false;
            }
        }
        self.let_go(state);
        all_moved
    }
}
