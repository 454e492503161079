//! The object table: the place of each stored page.
//!
//! One word has all of it, so that a reader needs no lock. The protocol:
//! - Every change of a word happens under the memory lock, except that readers count themselves in
//!   and out of an object in memory by compare-and-swap.
//! - A mover sets `MOVING`, copies without the lock, and may change the place only in a
//!   compare-and-swap that sees no reader; with a reader there it gives up.
//! - A thread that frees a moving object sets `FREED`; the mover does the rest.
//! - An object in the file may move to the remote store, and waits for no reader. A reader whose
//!   bytes don't fit their checksum checks under the memory lock whether the object still is in
//!   that place, and starts anew if not. The place is free for others only after the object's word
//!   says so.
//! - An object at the remote store never moves: only `free` ends its place, and `promote` brings it
//!   into memory, too, which the caller doesn't call while others read.
//! - An object that is freed at the remote store keeps its number, as `Gone`, until the server has
//!   confirmed that it is deleted there.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use pagoda_core::page::OS_PAGE;
use pagoda_core::page_entry::Granules;
use pagoda_core::space::blocks::NUMBERS;
use pagoda_core::space::extents::Units;

use crate::store::slab_table::ByNumber;

/// No object: the end of a list.
pub(super) const NOBODY: u32 = u32::MAX;

/// One stored page.
pub(super) struct Object {
    word: AtomicU64,
    /// The checksum of the bytes in the file, or the version that they were sealed in for the
    /// remote store; nothing while the object is in memory alone.
    pub checksum: AtomicU64,
    /// The digest of the page as it was put, wherever it is now; 0 if none was made.
    pub digest: AtomicU64,
    /// Neighbours in its queue, or in the list of free numbers. Only under the memory lock.
    pub before: AtomicU32,
    pub after: AtomicU32,
    /// Its first unit in the file while it is in memory and there, else [`NOBODY`]. Changed under
    /// the memory lock, or by a thread that has the object to itself.
    pub kept: AtomicU32,
    /// The batch of its field at the remote store while it is in memory and there, else [`NOBODY`].
    /// Changed as `kept` is; never both.
    pub batch: AtomicU32,
    /// When a part of its page was evicted last, which granules that were, and when it went to the
    /// file; see [`super::refault`].
    pub evicted: AtomicU32,
    pub left: AtomicU16,
    /// Which blocks of its page are not zero: [`ObjectTable::note_content`].
    content: AtomicU16,
    pub spilled: AtomicU32,
}

/// An object's word.
///
/// ```text
/// 0..32 first block or unit, or batch · 32..48 length less one · 48 raw · 49 dense
/// 50..53 kind · 53 moving · 54 freed · 55 queued · 56 read since it was queued · 57..64 readers
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Word(u64);

/// Where an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Free = 0,
    /// Its blocks are being written: its handle is not given out yet.
    Reserved = 1,
    Memory = 2,
    File = 3,
    Remote = 4,
    /// Not in use any more, and still to be deleted at the remote store.
    Gone = 5,
}

const RAW: u64 = 1 << 48;
/// It was compressed again as a cold object; its bytes tell whether it became smaller.
pub(super) const DENSE: u64 = 1 << 49;
const KIND: u64 = 7 << 50;
pub(super) const MOVING: u64 = 1 << 53;
pub(super) const FREED: u64 = 1 << 54;
pub(super) const QUEUED: u64 = 1 << 55;
pub(super) const READ: u64 = 1 << 56;
const READER: u64 = 1 << 57;
/// Readers are threads in the middle of a copy out of memory: far fewer than this.
const READERS_MAX: u64 = (1 << 7) - 1;

impl Word {
    pub const FREE: Self = Self(0);

    pub fn new(kind: Kind, first: u32, len: usize, raw: bool) -> Self {
        debug_assert!((1..=1 << 16).contains(&len));
        Self(u64::from(first) | (len as u64 - 1) << 32 | if raw { RAW } else { 0 } | (kind as u64) << 50)
    }
    pub fn kind(self) -> Kind {
        match (self.0 & KIND) >> 50 {
            1 => Kind::Reserved,
            2 => Kind::Memory,
            3 => Kind::File,
            4 => Kind::Remote,
            5 => Kind::Gone,
            _ => Kind::Free,
        }
    }
    pub fn first(self) -> u32 {
        self.0 as u32
    }
    pub fn len(self) -> usize {
        ((self.0 >> 32) as usize & ((1 << 16) - 1)) + 1
    }
    /// Its units, of an object in the file.
    pub fn units(self) -> Units {
        Units::of_bytes(self.first(), self.len())
    }
    pub fn raw(self) -> bool {
        self.0 & RAW != 0
    }
    /// Whether an object of the other word is where one of this is.
    pub fn is_at_place_of(self, other: Self) -> bool {
        (self.kind(), self.first(), self.len()) == (other.kind(), other.first(), other.len())
    }
    pub fn has(self, flag: u64) -> bool {
        self.0 & flag != 0
    }
    pub fn readers(self) -> u64 {
        self.0 / READER
    }
    /// The same object at another place, with none of the flags of moving.
    pub fn moved_to(self, kind: Kind, first: u32) -> Self {
        Self::new(kind, first, self.len(), self.raw()).with(self.0 & DENSE)
    }
    /// The same object in other blocks of memory, where it has another length.
    pub fn resized(self, first: u32, len: usize) -> Self {
        Self::new(Kind::Memory, first, len, self.raw())
    }
    pub fn with(self, flag: u64) -> Self {
        Self(self.0 | flag)
    }
}

impl Default for Object {
    fn default() -> Self {
        Self {
            word: AtomicU64::new(0),
            checksum: AtomicU64::new(0),
            digest: AtomicU64::new(0),
            before: AtomicU32::new(NOBODY),
            after: AtomicU32::new(NOBODY),
            kept: AtomicU32::new(NOBODY),
            batch: AtomicU32::new(NOBODY),
            evicted: AtomicU32::new(0),
            left: AtomicU16::new(0),
            content: AtomicU16::new(0),
            spilled: AtomicU32::new(0),
        }
    }
}

impl Object {
    /// The current word; everything written before it was set is visible.
    pub fn word(&self) -> Word {
        Word(self.word.load(Ordering::Acquire))
    }
    /// Which blocks of its page are not zero.
    pub fn content(&self) -> Granules {
        Granules::from_bits(self.content.load(Ordering::Relaxed))
    }
    /// Whether it is in memory and in another tier, too, as far as can be told.
    pub fn is_kept(&self) -> bool {
        self.kept.load(Ordering::Relaxed) != NOBODY || self.batch.load(Ordering::Relaxed) != NOBODY
    }
    /// Sets it outright: only for objects that no reader and no mover can be at.
    pub fn publish(&self, word: Word) {
        self.word.store(word.0, Ordering::Release);
    }
    /// The bytes of a reserved object are in its blocks: it may be read and moved from now on.
    pub fn written(&self) {
        self.word.fetch_xor((Kind::Reserved as u64 ^ Kind::Memory as u64) << 50, Ordering::Release);
    }
    /// Sets and clears flags, whatever readers do. Only under the memory lock.
    pub fn flag(&self, set: u64, clear: u64) {
        if set != 0 {
            self.word.fetch_or(set, Ordering::AcqRel);
        }
        if clear != 0 {
            self.word.fetch_and(!clear, Ordering::AcqRel);
        }
    }
    /// Changes the place, unless a reader is there or something else changed.
    pub fn replace(&self, old: Word, new: Word) -> bool {
        old.readers() == 0
            && self.word.compare_exchange(old.0, new.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
    /// Counts a reader in, if the object is still as `seen`.
    pub fn enter(&self, seen: Word) -> bool {
        assert!(seen.readers() < READERS_MAX, "more readers than threads");
        let entered = (seen.0 | READ) + READER;
        self.word.compare_exchange(seen.0, entered, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }
    /// Counts a reader out: its reads are over.
    pub fn leave(&self) {
        self.word.fetch_sub(READER, Ordering::Release);
    }
}

/// All blocks of a page of this length.
pub(super) fn all_blocks(page: usize) -> Granules {
    Granules::range(0, page.div_ceil(OS_PAGE) as u32)
}

/// All objects, by number: 56 bytes each.
pub(super) struct ObjectTable {
    objects: ByNumber<Object>,
    /// The blocks of all pages that are not zero.
    blocks: AtomicU64,
}

impl ObjectTable {
    pub fn new() -> Self {
        Self { objects: ByNumber::new(1), blocks: AtomicU64::new(0) }
    }

    /// The record of a number, if it was ever given out.
    pub fn get(&self, id: u32) -> Option<&Object> {
        self.objects.get(id)?.first()
    }
    /// These blocks of an object's page are not zero, and all others are.
    pub fn note_content(&self, id: u32, content: Granules) {
        let before = self.at(id).content.swap(content.bits(), Ordering::Relaxed);
        let (more, less) = (content.count(), before.count_ones());
        // The sum wraps for a moment where another thread's part of it is not added yet.
        self.blocks.fetch_add(u64::from(more).wrapping_sub(u64::from(less)), Ordering::Relaxed);
    }
    /// The bytes of all objects' pages that are not blocks of zeroes.
    pub fn content_bytes(&self) -> u64 {
        (self.blocks.load(Ordering::Relaxed) as i64).max(0) as u64 * OS_PAGE as u64
    }
    /// The record of a number that is in use.
    pub fn at(&self, id: u32) -> &Object {
        self.get(id).expect("numbers in use have records")
    }
    /// Makes sure that a number has a record. Only under the memory lock, so no thread ever waits
    /// for another's.
    fn ensure(&self, id: u32) {
        self.objects.ensure(id);
    }
    /// Bytes that it takes.
    pub fn bytes(&self) -> u64 {
        self.objects.bytes()
    }
}

/// The numbers that are free. Under the memory lock.
pub(super) struct Numbers {
    free: u32,
    /// Numbers from here on were never given out.
    pub high: u32,
    pub used: u32,
    /// The units that freed objects had in the file beside memory. The holder of the memory lock
    /// releases them without it ([`TieredStore::let_go`](super::TieredStore)): never more than one
    /// batch of objects that are freed.
    pub kept_by_gone: Vec<Units>,
}

impl Numbers {
    pub fn new() -> Self {
        Self { free: NOBODY, high: 0, used: 0, kept_by_gone: Vec::new() }
    }
    /// A free number, the last freed first. `None`: there are no more.
    pub fn take(&mut self, table: &ObjectTable) -> Option<u32> {
        let id = if self.free != NOBODY {
            let after = table.at(self.free).after.load(Ordering::Relaxed);
            std::mem::replace(&mut self.free, after)
        } else if self.high < NUMBERS {
            table.ensure(self.high);
            self.high += 1;
            self.high - 1
        } else {
            return None;
        };
        self.used += 1;
        Some(id)
    }
    /// The object is gone.
    pub fn give_back(&mut self, table: &ObjectTable, id: u32) {
        let object = table.at(id);
        let kept = object.kept.swap(NOBODY, Ordering::Relaxed);
        if kept != NOBODY {
            self.kept_by_gone.push(Units::of_bytes(kept, object.word().len()));
        }
        table.note_content(id, Granules::NONE);
        object.publish(Word::FREE);
        object.after.store(self.free, Ordering::Relaxed);
        self.free = id;
        self.used -= 1;
    }
}

/// Objects in the order in which they leave their tier. Under the memory lock.
pub(super) struct Queue {
    oldest: u32,
    youngest: u32,
    /// Bytes of the objects in it.
    pub bytes: u64,
    /// How many objects are in it.
    pub objects: u32,
}

impl Queue {
    pub fn new() -> Self {
        Self { oldest: NOBODY, youngest: NOBODY, bytes: 0, objects: 0 }
    }
    pub fn oldest(&self) -> Option<u32> {
        (self.oldest != NOBODY).then_some(self.oldest)
    }
    pub fn push_youngest(&mut self, table: &ObjectTable, id: u32) {
        let last = std::mem::replace(&mut self.youngest, id);
        self.link(table, last, id);
        self.link(table, id, NOBODY);
        self.queued(table, id);
    }
    pub fn push_oldest(&mut self, table: &ObjectTable, id: u32) {
        let first = std::mem::replace(&mut self.oldest, id);
        self.link(table, id, first);
        self.link(table, NOBODY, id);
        self.queued(table, id);
    }
    /// The next younger object in the queue.
    pub fn after(table: &ObjectTable, id: u32) -> Option<u32> {
        Some(table.at(id).after.load(Ordering::Relaxed)).filter(|id| *id != NOBODY)
    }
    pub fn remove(&mut self, table: &ObjectTable, id: u32) {
        let object = table.at(id);
        self.link(table, object.before.load(Ordering::Relaxed), object.after.load(Ordering::Relaxed));
        object.flag(0, QUEUED);
        self.bytes -= object.word().len() as u64;
        self.objects -= 1;
    }
    fn queued(&mut self, table: &ObjectTable, id: u32) {
        let object = table.at(id);
        object.flag(QUEUED, 0);
        self.bytes += object.word().len() as u64;
        self.objects += 1;
    }
    /// Makes two objects neighbours; an end of the queue has the neighbour [`NOBODY`].
    fn link(&mut self, table: &ObjectTable, before: u32, after: u32) {
        match before {
            NOBODY => self.oldest = after,
            _ => table.at(before).after.store(after, Ordering::Relaxed),
        }
        match after {
            NOBODY => self.youngest = before,
            _ => table.at(after).before.store(before, Ordering::Relaxed),
        }
    }
}
