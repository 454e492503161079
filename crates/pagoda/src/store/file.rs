//! The file tier: objects one behind the other in batches, read back one by one.
//!
//! A batch goes to one run of free slots, or, where several requests can be in flight at once (a
//! ring), to as many as it takes; so are slots read that lie apart. The disk is not trusted: what
//! is written is enciphered ([`crate::crypto::file_cipher`]), with zeroes between, and bytes that
//! come back are checked before they are used. This module must never write a byte in the clear,
//! nor over a slot that holds a live object.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use pagoda_core::size::Bytes;
use pagoda_core::space::extents::{Extents, Run, SLOT, UNIT, Units};
use pagoda_linux::io::direct_file::{AlignedBuffer, DirectFile, FileError};
use pagoda_linux::io::ring::{self, Ring, Transfer};
use pagoda_linux::process::lock::Lock;

use super::{FileConfig, GetError, OpenError};
use crate::crypto::file_cipher::FileCipher;
use crate::store::lease::{Loans, THEIRS};

/// The longest write: large enough that the disk streams, small enough to wait for.
pub(super) const BATCH: usize = 1 << 20;

/// Where memory is short a write is no more than one part in this many of the limit of compressed
/// pages, and at least [`BATCH_LEAST`]: each process of a tree has its own buffer, and a small
/// budget is to hold pages.
const BATCH_SHARE: u64 = 128;
const BATCH_LEAST: usize = 128 << 10;

/// Slots that are given back to the disk at once: fewer are not worth a change of the file system's
/// tables, and of more a write that waits for them would notice.
const DISCARD_LEAST: u32 = 16;
const DISCARD_MOST: u32 = (4 * BATCH / SLOT) as u32;

pub(super) struct FileTier {
    pub(super) file: DirectFile,
    pub(super) cipher: FileCipher,
    pub(super) extents: Lock<Extents>,
    /// The loans to children, and those of this process's parent.
    pub(super) loans: Loans,
    limit: u32,
    /// The same where no limit was given: the bound of the process's writes, and of unit numbers.
    limit_most: u32,
    /// Requests that can be in flight at once by one thread.
    at_once: AtomicU64,
    /// Requests that were in flight with others.
    together: AtomicU64,
    #[cfg(test)]
    pub faults: crate::store::fault_injection::Faults,
    /// Requests to read.
    #[cfg(test)]
    pub reads: std::sync::atomic::AtomicU64,
    /// See [`HOLD_READ`].
    #[cfg(test)]
    pub held_read: std::sync::atomic::AtomicU32,
}

/// Makes the next read wait: it says so by [`READ_IS_HELD`], and goes on when that is changed.
#[cfg(test)]
pub(super) const HOLD_READ: u32 = 1;
#[cfg(test)]
pub(super) const READ_IS_HELD: u32 = 2;

/// An object in a batch.
#[derive(Clone, Copy)]
pub(super) struct Item {
    pub id: u32,
    pub len: usize,
    /// Its units, counted from the start of the batch, and from the start of the file once it is
    /// written.
    pub units: Units,
    pub checksum: u64,
}

/// Objects on their way to the file. One for each store, allocated when it is opened.
pub(super) struct Batch {
    pub buffer: AlignedBuffer,
    /// The ring by which several requests are in flight at once. Only the holder of the batch uses
    /// it.
    pub ring: Option<Ring>,
    pub items: Vec<Item>,
    units: u32,
}

impl Batch {
    /// For a store with this limit of memory.
    pub fn new(memory_limit: Bytes) -> Self {
        let bytes = (memory_limit.get() / BATCH_SHARE).clamp(BATCH_LEAST as u64, BATCH as u64) as usize;
        let bytes = bytes.next_multiple_of(SLOT);
        let items = Vec::with_capacity(bytes / pagoda_core::space::extents::UNIT);
        Self { buffer: AlignedBuffer::new(bytes), ring: None, items, units: 0 }
    }
    /// Its own memory.
    pub fn bytes(&self) -> u64 {
        (self.buffer.len() + self.items.capacity() * size_of::<Item>()) as u64
    }
    /// Requests that can be in flight at once.
    pub fn at_once(&self) -> usize {
        if self.ring.as_ref().is_some_and(Ring::is_open) { ring::DEPTH } else { 1 }
    }
    pub fn clear(&mut self) {
        self.items.clear();
        self.units = 0;
    }
    /// Makes room for an object. `false`: there is none left.
    pub fn add(&mut self, id: u32, len: usize) -> bool {
        let units = Units::of_bytes(self.units, len);
        let run = units.slots();
        if (run.first + run.slots) as usize * SLOT > self.buffer.len() {
            return false;
        }
        self.units += units.units;
        self.items.push(Item { id, len, units, checksum: 0 });
        true
    }
    /// The bytes of an object in the buffer.
    pub fn bytes_of(&mut self, item: &Item) -> &mut [u8] {
        let at = offset_of(item);
        &mut self.buffer[at..at + item.len]
    }
    /// Zeroes all that lies between the first `count` objects, and behind them in the last one's
    /// slot: clear bytes of other batches, or of the next object.
    fn clear_gaps(&mut self, count: usize) {
        for (index, item) in self.items[..count].iter().enumerate() {
            let next = self.items[..count].get(index + 1);
            let to = next.map_or(slots_end(item) as usize * SLOT, offset_of);
            self.buffer[offset_of(item) + item.len..to].fill(0);
        }
    }
}

/// A run of the file for items that follow each other in a batch.
struct Piece {
    items: Range<usize>,
    /// Where they begin in the batch. It may hold the end of the item before, too, which is written
    /// twice then.
    from_slot: u32,
    run: Run,
}

impl Piece {
    /// Where an item comes to lie in the file.
    fn first_unit_of(&self, item: &Item) -> u32 {
        let from = Run { first: self.from_slot, slots: 0 }.first_unit();
        self.run.first_unit() + (item.units.first - from)
    }
}

/// Where an item begins in its batch, in bytes.
fn offset_of(item: &Item) -> usize {
    item.units.slots().first as usize * SLOT + item.units.offset_in_slots()
}

/// Where the slots of an item end in its batch.
fn slots_end(item: &Item) -> u32 {
    let run = item.units.slots();
    run.first + run.slots
}

fn read_error(error: FileError) -> GetError {
    match error {
        FileError::Short => GetError::Corrupt,
        source => GetError::Io { source },
    }
}

/// Has all of them done, and says how many were in flight with others.
pub(super) fn do_all(ring: &mut Option<Ring>, transfers: &mut [Transfer<'_>]) -> Result<usize, FileError> {
    match ring {
        Some(ring) => ring.transfer(transfers),
        None => transfers.iter_mut().try_for_each(Transfer::do_alone).map(|()| 0),
    }
}

impl FileTier {
    pub fn open(config: &FileConfig) -> Result<Self, OpenError> {
        let least = Bytes::new(BATCH as u64);
        if config.limit < least {
            return Err(OpenError::FileLimit { limit: config.limit, least });
        }
        // Beyond the process's own limit a write would raise a signal, not just fail.
        let limit = config.limit.get().min(DirectFile::length_limit());
        let file = DirectFile::create_in(&config.directory)?;
        let cipher = FileCipher::random().map_err(|source| OpenError::Random { source })?;
        Ok(Self::over(file, limit, cipher))
    }

    /// A tier in this file. The part of a limit beyond 512 GiB (the reach of unit numbers) is left
    /// unused.
    pub fn over(file: DirectFile, limit_bytes: u64, cipher: FileCipher) -> Self {
        let slots =
            |bytes: u64| (bytes / SLOT as u64).min(u64::from(THEIRS / (SLOT / UNIT) as u32 - 1)) as u32;
        let limit_most = slots(DirectFile::length_limit());
        let limit = slots(limit_bytes).min(limit_most);
        Self {
            file,
            cipher,
            extents: Lock::new(Extents::new(limit)),
            loans: Loans::default(),
            limit,
            limit_most,
            at_once: AtomicU64::new(1),
            together: AtomicU64::new(0),
            #[cfg(test)]
            faults: crate::store::fault_injection::Faults::default(),
            #[cfg(test)]
            reads: std::sync::atomic::AtomicU64::new(0),
            #[cfg(test)]
            held_read: std::sync::atomic::AtomicU32::new(0),
        }
    }

    pub fn used_bytes(&self) -> u64 {
        u64::from(self.extents.lock().taken_slots()) * SLOT as u64
    }
    /// Whether there is room for objects that are in memory, too.
    pub fn has_room_for_copies(&self) -> bool {
        self.extents.lock().has_room_for_copies()
    }
    pub fn table_bytes(&self) -> u64 {
        // One after the other: the loans' lock comes before that of the extents.
        let loans = self.loan_bytes();
        self.extents.lock().table_bytes() + loans
    }
    /// All units that were ever used lie below this one.
    pub(super) fn used_units(&self) -> u32 {
        Run { first: self.extents.lock().high(), slots: 0 }.first_unit()
    }
    /// How many slots may be taken while so many are held back for children.
    pub(super) fn limit_slots(&self, held_back: u32) -> u32 {
        self.limit.saturating_add(held_back).min(self.limit_most)
    }

    /// Writes as much of the front of a batch as there is one run for, or, with a ring,
    /// [`ring::DEPTH`] of them, and places it: those items have their units in the file then, and
    /// their checksum. Returns how many.
    ///
    /// On an error nothing is placed. The batch is enciphered either way: to write it elsewhere,
    /// the caller has to fill it again.
    pub fn write(&self, batch: &mut Batch) -> Result<usize, FileError> {
        let pieces = self.take_pieces(batch);
        let Some(last) = pieces.last() else {
            return if batch.items.is_empty() { Ok(0) } else { Err(FileError::Full) };
        };
        let written = last.items.end;
        for piece in &pieces {
            for index in piece.items.clone() {
                let mut item = batch.items[index];
                item.checksum = self.cipher.seal(piece.first_unit_of(&item), batch.bytes_of(&item));
                batch.items[index] = item;
            }
        }
        batch.clear_gaps(written);
        let transfer = |piece: &Piece| {
            let bytes = |slots: u32| slots as usize * SLOT;
            let from =
                &batch.buffer[bytes(piece.from_slot)..bytes(slots_end(&batch.items[piece.items.end - 1]))];
            Transfer::Write { file: &self.file, offset: bytes(piece.run.first) as u64, from }
        };
        let mut transfers: Vec<Transfer<'_>> = pieces.iter().map(transfer).collect();
        let outcome = self.transfer(&mut batch.ring, &mut transfers);
        let mut extents = self.extents.lock();
        for piece in &pieces {
            if outcome.is_ok() {
                for item in &mut batch.items[piece.items.clone()] {
                    item.units.first = piece.first_unit_of(item);
                    extents.place(item.units);
                }
            }
            extents.settle(piece.run);
        }
        outcome.map(|()| written)
    }

    /// Takes runs for the front of a batch, as many as can be written at once; none if there is no
    /// room for its first item.
    fn take_pieces(&self, batch: &Batch) -> Vec<Piece> {
        let (items, mut pieces) = (&batch.items, Vec::new());
        let (mut at, mut most) = (0, 1);
        while let (Some(next), Some(last)) = (items.get(at), items.last().filter(|_| pieces.len() < most)) {
            let from_slot = next.units.slots().first;
            let room = || self.extents.lock().take(slots_end(next) - from_slot, slots_end(last) - from_slot);
            // Before it is full, units that children have freed are taken back.
            let more = || if at == 0 && self.take_back() { room() } else { None };
            let Some(run) = room().or_else(more) else { break };
            let fits = |item: &&Item| slots_end(item) - from_slot <= run.slots;
            let end = at + items[at..].iter().take_while(fits).count();
            pieces.push(Piece { items: at..end, from_slot, run });
            (at, most) = (end, batch.at_once());
        }
        pieces
    }

    /// Reads slots that lie apart one behind the other to the beginning of `into`, by as many
    /// requests at once. Nothing is checked.
    pub fn read_runs(
        &self,
        runs: impl ExactSizeIterator<Item = Run>,
        into: &mut AlignedBuffer,
        ring: &mut Option<Ring>,
    ) -> Result<(), GetError> {
        let (mut rest, mut transfers): (&mut [u8], _) = (into, Vec::with_capacity(runs.len()));
        for run in runs {
            let (file, units) =
                self.located(Units { first: run.first_unit(), units: 1 }).ok_or(GetError::Corrupt)?;
            let (into, left) = rest.split_at_mut(run.slots as usize * SLOT);
            rest = left;
            let offset = u64::from(units.slots().first) * SLOT as u64;
            transfers.push(Transfer::Read { file, offset, into });
        }
        #[cfg(test)]
        self.reads.fetch_add(transfers.len() as u64, Ordering::Relaxed);
        self.transfer(ring, &mut transfers).map_err(read_error)
    }

    /// Has them all done, at once if there is a ring.
    fn transfer(&self, ring: &mut Option<Ring>, transfers: &mut [Transfer<'_>]) -> Result<(), FileError> {
        #[cfg(not(test))]
        let outcome = do_all(ring, transfers);
        #[cfg(test)]
        let outcome = self.faults.transfer(ring, transfers);
        self.note_ring(ring.as_ref());
        self.together.fetch_add(outcome? as u64, Ordering::Relaxed);
        Ok(())
    }

    /// How many requests can be in flight at once by one thread.
    pub fn at_once(&self) -> u64 {
        self.at_once.load(Ordering::Relaxed)
    }
    /// How many were in flight with others, since this was asked last.
    pub fn take_together(&self) -> u64 {
        self.together.swap(0, Ordering::Relaxed)
    }
    /// Takes note of the ring that there is.
    pub fn note_ring(&self, ring: Option<&Ring>) {
        let at_once = if ring.is_some_and(Ring::is_open) { ring::DEPTH as u64 } else { 1 };
        self.at_once.store(at_once, Ordering::Relaxed);
    }

    /// The cipher of the file that these units are of. None if it is a parent's, and none is lent.
    fn cipher_of(&self, units: Units) -> Option<&FileCipher> {
        if units.first & THEIRS == 0 { Some(&self.cipher) } else { self.lender_keys().map(|keys| &keys.file) }
    }

    /// Deciphers bytes that were read from these units in their buffer. False if they are not those
    /// that were written there.
    #[must_use]
    pub fn open_at(&self, units: Units, sum: u64, bytes: &mut [u8]) -> bool {
        self.cipher_of(units).is_some_and(|cipher| cipher.open(units.first & !THEIRS, sum, bytes))
    }

    /// Reads an object's bytes into `slots`, and returns their place there if they are undamaged.
    pub fn read(
        &self,
        units: Units,
        len: usize,
        sum: u64,
        slots: &mut AlignedBuffer,
    ) -> Result<Range<usize>, GetError> {
        self.read_run(units.slots(), slots)?;
        let from = units.offset_in_slots();
        let bytes = from..from + len;
        if self.open_at(units, sum, &mut slots[bytes.clone()]) { Ok(bytes) } else { Err(GetError::Corrupt) }
    }

    /// Reads bytes `part` of an object through `slots`, and no more slots than hold them. Nothing
    /// is checked. The bytes are right only with the object's checksum.
    pub fn read_part<'a>(
        &self,
        units: Units,
        sum: u64,
        part: Range<usize>,
        slots: &'a mut AlignedBuffer,
    ) -> Result<&'a [u8], GetError> {
        let from = units.offset_in_slots() + part.start;
        let run = Run {
            first: units.slots().first + (from / SLOT) as u32,
            slots: (from % SLOT + part.len()).div_ceil(SLOT) as u32,
        };
        self.read_run(run, slots)?;
        let bytes = &mut slots[from % SLOT..][..part.len()];
        let cipher = self.cipher_of(units).ok_or(GetError::Corrupt)?;
        cipher.open_part(units.first & !THEIRS, sum, part.start, bytes);
        Ok(bytes)
    }

    /// Reads slots to the beginning of `into`, by one request. Nothing is checked.
    pub fn read_run(&self, run: Run, into: &mut AlignedBuffer) -> Result<(), GetError> {
        let (file, units) =
            self.located(Units { first: run.first_unit(), units: 1 }).ok_or(GetError::Corrupt)?;
        let into = &mut into[..run.slots as usize * SLOT];
        self.read_at(file, u64::from(units.slots().first) * SLOT as u64, into).map_err(read_error)
    }

    /// Gives the place of a freed run back to the disk. False if there is none, or the file system
    /// can't do that.
    pub fn discard_unused(&self) -> bool {
        let Some(run) = self.extents.lock().take_unused(DISCARD_LEAST, DISCARD_MOST) else { return false };
        let bytes = |slots| u64::from(slots) * SLOT as u64;
        let outcome = self.discard(bytes(run.first), bytes(run.slots));
        self.extents.lock().settle(run);
        outcome.is_ok()
    }

    #[cfg(not(test))]
    fn discard(&self, offset: u64, len: u64) -> Result<(), FileError> {
        self.file.discard(offset, len)
    }
    #[cfg(test)]
    fn discard(&self, offset: u64, len: u64) -> Result<(), FileError> {
        self.faults.discard(&self.file, offset, len)
    }
    #[cfg(not(test))]
    fn read_at(&self, file: &DirectFile, offset: u64, into: &mut [u8]) -> Result<(), FileError> {
        file.read_at(offset, into)
    }
    #[cfg(test)]
    fn read_at(&self, file: &DirectFile, offset: u64, into: &mut [u8]) -> Result<(), FileError> {
        use Ordering::{AcqRel, Acquire, Relaxed};
        self.reads.fetch_add(1, Relaxed);
        if self.held_read.compare_exchange(HOLD_READ, READ_IS_HELD, AcqRel, Relaxed).is_ok() {
            while self.held_read.load(Acquire) == READ_IS_HELD {
                pagoda_linux::process::thread::sleep_us(100);
            }
        }
        self.faults.read(file, offset, into)
    }

    /// The object in these units is gone.
    pub fn release(&self, units: Units) {
        self.release_all(&[units]);
    }

    #[cfg(test)]
    pub fn raw_file(&self) -> &DirectFile {
        &self.file
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_store_has_a_small_batch_that_takes_the_longest_page() {
        let bytes = |limit| Batch::new(limit).buffer.len();
        assert_eq!([Bytes::ZERO, Bytes::mib(32), Bytes::gib(1)].map(bytes), [BATCH_LEAST, 256 << 10, BATCH]);
        for limit in [0, 17 << 20, 100_000_001, 1 << 40].map(Bytes::new) {
            let mut batch = Batch::new(limit);
            assert!(batch.bytes() <= limit.get() / 60 + (256 << 10) && batch.add(1, 64 << 10), "{limit}");
        }
    }
}
