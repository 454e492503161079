//! The memory tier: compressed pages in chains of blocks.
//!
//! Segments are populated whole before their first use, so that storing a page faults nothing in,
//! and given back whole when they are empty. No lock is ever held while the kernel populates or
//! discards, nor while bytes are copied.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use pagoda_core::page::BasePage;
use pagoda_core::page_entry::Granules;
use pagoda_core::size::Bytes;
use pagoda_core::space::blocks::{BlockLinks, BlockPool, NUMBERS};
use pagoda_core::space::extents::Units;
use pagoda_linux::mem::byte_store::{Backing, ByteStore, WORD};
use pagoda_linux::process::lock::{Held, Lock};

use super::OpenError;
use super::objects::{DENSE, FREED, Kind, MOVING, NOBODY, Numbers, ObjectTable, QUEUED, Queue, Word};

/// State that is only changed by one thread at a time.
pub(super) struct MemoryState {
    pub pool: BlockPool,
    pub numbers: Numbers,
    /// Objects in memory as long as their page: they gain nothing there, so they leave first.
    pub raw: Queue,
    /// Objects in memory that are cold, and as small as they get: they leave next.
    pub dense: Queue,
    /// All other objects in memory.
    pub packed: Queue,
    /// Objects in the file alone, the one first that came there first, or left memory for it first.
    pub filed: Queue,
    /// How many objects were ever put.
    pub puts: u64,
    /// Objects that are to be deleted at the remote store.
    pub gone: Queue,
}

impl MemoryState {
    /// The queue that an object of this word belongs to.
    pub fn queue(&mut self, word: Word) -> &mut Queue {
        if word.raw() {
            &mut self.raw
        } else if word.has(DENSE) {
            &mut self.dense
        } else {
            &mut self.packed
        }
    }

    /// Takes an object in memory out of existence: queue, blocks and number.
    pub fn drop_object(&mut self, table: &ObjectTable, id: u32) {
        let word = table.at(id).word();
        if word.has(QUEUED) {
            self.queue(word).remove(table, id);
        }
        self.pool.release(word.first());
        self.end(table, id);
    }

    /// Ends an object that was in memory. If it is at the remote store, too, it is deleted there
    /// later.
    fn end(&mut self, table: &ObjectTable, id: u32) {
        let object = table.at(id);
        match object.batch.swap(NOBODY, Ordering::Relaxed) {
            NOBODY => self.numbers.give_back(table, id),
            batch => {
                table.note_content(id, Granules::NONE);
                object.publish(object.word().moved_to(Kind::Gone, batch));
                self.gone.push_youngest(table, id);
            }
        }
    }

    /// Ends an object in the file alone. Returns its place, for the caller that then releases it
    /// there; `None`: it is moving, and its mover does all that.
    pub fn drop_filed(&mut self, table: &ObjectTable, id: u32) -> Option<Units> {
        let object = table.at(id);
        let word = object.word();
        if word.has(MOVING) {
            object.flag(FREED, 0);
            return None;
        }
        self.unqueue_filed(table, id);
        self.numbers.give_back(table, id);
        Some(word.units())
    }

    /// An object in the file alone is to be elsewhere, or nowhere.
    pub fn unqueue_filed(&mut self, table: &ObjectTable, id: u32) {
        if table.at(id).word().has(QUEUED) {
            self.filed.remove(table, id);
        }
    }

    /// Ends an object at the remote store: it is deleted there later.
    pub fn forget_remote(&mut self, table: &ObjectTable, id: u32) {
        let word = table.at(id).word();
        table.note_content(id, Granules::NONE);
        table.at(id).publish(word.moved_to(Kind::Gone, word.first()));
        self.gone.push_youngest(table, id);
    }

    /// Takes objects in memory, in the order in which they were made, out of existence.
    pub fn drop_objects(&mut self, table: &ObjectTable, ids: &[u32]) {
        for id in ids {
            let word = table.at(*id).word();
            if word.has(QUEUED) {
                self.queue(word).remove(table, *id);
            }
        }
        self.pool.release_all(ids.iter().map(|id| table.at(*id).word().first()));
        // The last first: the number that is given back last is taken first, and runs go upwards
        // again.
        ids.iter().rev().for_each(|id| self.end(table, *id));
    }
}

pub(super) struct MemoryTier {
    bytes: ByteStore,
    links: Arc<BlockLinks>,
    state: Lock<MemoryState>,
    /// Held while a segment is populated, so that threads that run out together grow by one
    /// segment.
    growing: Lock<()>,
    block: usize,
    segment: usize,
    #[cfg(test)]
    pub faults: crate::store::fault_injection::Faults,
}

/// A page of 64 KiB at 2:1 wastes under 1% in half a block of 512 bytes and 1% in links; one of 4
/// KiB 3% in 128 bytes and 3% in links.
fn block_bytes(base: BasePage) -> usize {
    match base {
        BasePage::K4 => 128,
        BasePage::K16 => 256,
        BasePage::K64 | BasePage::M2 => 512,
    }
}

/// Huge pages make a segment cheap to populate (0.1 ms a MiB), but a small store would be nothing
/// but its reserve.
const SMALL_SEGMENT: usize = 256 << 10;
const LARGE_SEGMENT: usize = 2 << 20;
const LARGE_SEGMENTS_FROM: u64 = 32 << 20;

/// The longest part of an object that is asked for in advance: one OS page and the words around it.
const PREFETCH_MOST: usize = (4 << 10) + 2 * WORD;

/// Empty segments that are kept populated for the next puts.
const RESERVE_SEGMENTS: u32 = 1;

impl MemoryTier {
    pub fn open(base: BasePage, limit: Bytes) -> Result<Self, OpenError> {
        let block = block_bytes(base);
        let large = limit.get() >= LARGE_SEGMENTS_FROM;
        let segment = if large { LARGE_SEGMENT } else { SMALL_SEGMENT };
        let blocks = (segment / block) as u32;
        let each = segment as u64 + BlockLinks::bytes_per_segment(blocks);
        // More than the block numbers reach (128 GiB at 4 KiB pages) is left unused.
        let segments = (limit.get() / each).min(u64::from(NUMBERS / blocks - 1)) as u32;
        if segments == 0 {
            return Err(OpenError::MemoryLimit { limit, least: Bytes::new(each) });
        }
        let len = segments as usize * segment;
        let backing = if large { Backing::Huge } else { Backing::Small };
        let bytes = ByteStore::reserve(len, backing)
            .map_err(|source| OpenError::Reserve { bytes: Bytes::new(len as u64), source })?;
        let pool = BlockPool::new(segments, blocks);
        let (links, numbers) = (pool.links(), Numbers::new());
        let queue = Queue::new;
        let state = MemoryState {
            pool,
            numbers,
            raw: queue(),
            dense: queue(),
            packed: queue(),
            filed: queue(),
            puts: 0,
            gone: queue(),
        };
        let state = Lock::new(state);
        Ok(Self {
            bytes,
            links,
            state,
            growing: Lock::new(()),
            block,
            segment,
            #[cfg(test)]
            faults: crate::store::fault_injection::Faults::default(),
        })
    }

    pub fn lock(&self) -> Held<'_, MemoryState> {
        self.state.lock()
    }
    pub fn try_lock(&self) -> Option<Held<'_, MemoryState>> {
        self.state.try_lock()
    }
    /// Addresses of the tier.
    pub fn range(&self) -> Range<usize> {
        self.bytes.range()
    }
    pub fn segment_bytes(&self) -> usize {
        self.segment
    }
    /// The most that is kept ready for the next puts.
    pub fn reserve_bytes(&self) -> u64 {
        u64::from(RESERVE_SEGMENTS) * self.segment as u64
    }
    pub fn block_bytes(&self) -> usize {
        self.block
    }
    fn blocks_for(&self, len: usize) -> u32 {
        len.div_ceil(self.block) as u32
    }

    /// Makes a reserved object of `len` bytes, last of its queue. `None`: memory is at its limit,
    /// or there is none.
    pub fn reserve_object(&self, table: &ObjectTable, len: usize, raw: bool) -> Option<(u32, Word)> {
        loop {
            let mut state = self.lock();
            if state.pool.free_blocks() >= u64::from(self.blocks_for(len)) {
                let id = state.numbers.take(table)?;
                let first = state.pool.allocate(self.blocks_for(len), id).expect("as many are free");
                let word = Word::new(Kind::Reserved, first, len, raw);
                table.at(id).publish(word);
                state.queue(word).push_youngest(table, id);
                state.puts += 1;
                return Some((id, word));
            }
            drop(state);
            self.grow(len)?;
        }
    }

    /// Blocks for `len` bytes of an object that is elsewhere. `None`: memory is at its limit.
    pub fn reserve_copy(&self, len: usize, id: u32) -> Option<u32> {
        loop {
            if let Some(first) = self.reserve_blocks(len, id) {
                return Some(first);
            }
            self.grow(len)?;
        }
    }

    /// Blocks for `len` bytes of an object that has others, if that many are free.
    pub fn reserve_blocks(&self, len: usize, id: u32) -> Option<u32> {
        let mut state = self.lock();
        let blocks = self.blocks_for(len);
        (state.pool.free_blocks() >= u64::from(blocks)).then(|| state.pool.allocate(blocks, id)).flatten()
    }

    /// Brings one more segment, unless another thread just did.
    fn grow(&self, len: usize) -> Option<()> {
        let _one_at_a_time = self.growing.lock();
        let mut state = self.lock();
        if state.pool.free_blocks() >= u64::from(self.blocks_for(len)) {
            return Some(());
        }
        let segment = state.pool.grow()?;
        drop(state);
        let at = segment as usize * self.segment;
        let populated = self.bytes.populate(at..at + self.segment);
        #[cfg(test)]
        let populated = populated.and_then(|()| self.memory_fault());
        let mut state = self.lock();
        if populated.is_err() {
            // No memory to be had now: as good as a limit. The populated part of it is given back.
            drop(state);
            let _ = self.bytes.discard(at..at + self.segment);
            self.lock().pool.retired(segment);
            return None;
        }
        state.pool.add(segment);
        Some(())
    }

    #[cfg(test)]
    fn memory_fault(&self) -> std::io::Result<()> {
        self.faults.draw().map_or(Ok(()), |_| Err(std::io::ErrorKind::OutOfMemory.into()))
    }

    /// Gives wholly empty segments back, all but a small reserve (none for a store that holds
    /// nothing in memory).
    pub fn give_back_empty_segments(&self) -> Bytes {
        let mut given = Bytes::ZERO;
        loop {
            let mut state = self.lock();
            let keep = if state.pool.used_blocks() == 0 { 0 } else { RESERVE_SEGMENTS };
            let Some(segment) = state.pool.retire(keep) else { return given };
            drop(state);
            let at = segment as usize * self.segment;
            let discarded = self.bytes.discard(at..at + self.segment);
            #[cfg(test)]
            let discarded = discarded.and_then(|()| self.memory_fault());
            let mut state = self.lock();
            if discarded.is_err() {
                // Locked by mlockall, say: it is still ours to use.
                state.pool.add(segment);
                return given;
            }
            state.pool.retired(segment);
            given = given.saturating_add(Bytes::new(self.segment as u64));
        }
    }

    /// Copies an object's bytes into its blocks.
    pub fn write(&self, first: u32, from: &[u8]) {
        for (block, piece) in self.links.chain(first).zip(from.chunks(self.block)) {
            self.bytes.write_at(block as usize * self.block, piece);
        }
    }
    /// Copies bytes `part` of an object to their place in `into`, and those that share a word with
    /// them. The caller keeps them there meanwhile (see [`super::objects`]).
    pub fn read(&self, first: u32, part: Range<usize>, into: &mut [u8]) {
        let from = part.start / WORD * WORD;
        let to = part.end.next_multiple_of(WORD).min(into.len());
        // In each block of the part, where that begins and ends.
        let pieces = || {
            let blocks = self.links.chain(first).zip((0..to).step_by(self.block));
            blocks.skip(from / self.block).map(|(block, at)| {
                let piece = at.max(from)..(at + self.block).min(to);
                (block as usize * self.block + piece.start % self.block, piece)
            })
        };
        // The blocks lie anywhere in cold memory: so they come together, not one after the other.
        if to - from <= PREFETCH_MOST {
            pieces().for_each(|(offset, piece)| self.bytes.prefetch(offset, piece.len()));
        }
        for (offset, piece) in pieces() {
            self.bytes.read_at(offset, &mut into[piece]);
        }
    }
    /// Copies bytes over those of an object from `at` on, which is a multiple of eight. The last
    /// word is written whole. With the memory lock held, so that no mover copies them meanwhile.
    pub fn overwrite(&self, first: u32, at: usize, from: &[u8]) {
        let mut chain = self.links.chain(first).skip(at / self.block);
        let within = at % self.block;
        let (head, rest) = from.split_at(from.len().min(self.block - within));
        let pieces = std::iter::once((within, head)).chain(rest.chunks(self.block).map(|piece| (0, piece)));
        for ((within, piece), block) in pieces.zip(&mut chain) {
            self.bytes.write_at(block as usize * self.block + within, piece);
        }
    }
    /// Copies all blocks of a chain to another that is as long.
    pub fn copy(&self, from: u32, to: u32) {
        for (from, to) in self.links.chain(from).zip(self.links.chain(to)) {
            self.bytes.copy_within(from as usize * self.block, to as usize * self.block, self.block);
        }
    }
}
