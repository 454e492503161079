//! The store that people use: memory first, the file and the remote store behind it.
//!
//! Putting, fetching and freeing is here; moving between tiers is in `spill`. It never returns a
//! page that it can't vouch for, and forgets nothing when it is full.

use std::ops::Range;
use std::sync::atomic::Ordering;

use pagoda_core::page::BasePage;
use pagoda_core::page_entry::Granules;
use pagoda_core::release::ReleasePolicy;
use pagoda_core::size::Bytes;
use pagoda_linux::io::direct_file::AlignedBuffer;
use pagoda_linux::io::ring::Ring;
use pagoda_linux::mem::zero_scan::is_zero;
use pagoda_linux::process::lock::Lock;

use super::block_digests::BlockDigests;
use super::content_digests::ContentDigests;
use super::file::{Batch, FileTier};
use super::handle::{Meaning, fill, repeated_word};
use super::images::Images;
use super::memory::MemoryTier;
use super::objects::{FREED, Kind, MOVING, Object, ObjectTable, Word, all_blocks};
use super::refault::RefaultClocks;
use super::release::Releases;
use super::remote::RemoteTier;
use super::scratch::piece;
use super::{GetError, Handle, OpenError, Put, PutError, Scratch, Store, StoreConfig, StoreUsage};
use crate::crypto::digest::Digester;
use crate::crypto::sealing::{Sealer, Version};
use crate::state::wakeup::Bell;
use pagoda_linux::codec::pack::{
    BLOCK, blocks_with_content, extent, header_bytes, is_dense, pack_present, repack,
};

/// How often a put makes room before it gives up. One round frees about 1 MiB, so more than one
/// means that other threads took the room, or were reading all that could leave.
const ROUNDS_MAX: usize = 8;

/// Compressed memory that spills to a file, and to a remote store.
pub struct TieredStore {
    pub(super) table: ObjectTable,
    pub(super) memory: MemoryTier,
    pub(super) file: Option<FileTier>,
    pub(super) remote: Option<RemoteTier>,
    /// The right to move objects: one mover at a time.
    pub(super) spiller: Lock<Option<Batch>>,
    /// The memory of the batch, readable without its holder.
    pub(super) batch_bytes: u64,
    releases: Releases,
    /// The bell of the thread that [`keep`](Self::keep)s the store: rung when that is to end.
    pub(crate) keeper: Bell,
    pub(super) base: BasePage,
    page: usize,
    /// The notes of objects that are in the file and were in memory since.
    pub(super) blocks: BlockDigests,
    /// The digests of what the blocks of objects hold.
    pub(super) contents: ContentDigests,
    pub(super) refaults: RefaultClocks,
    /// The images that restored regions are read from.
    pub(super) images: Images,
    /// Parts of pages that were read from the file.
    #[cfg(test)]
    pub(crate) parts_read: std::sync::atomic::AtomicU64,
    /// Used unless there is a lender: see [`content_digester`](Self::content_digester).
    digester: Digester,
}

impl TieredStore {
    /// Opens an empty store. Blocks for one write to its file, and until its remote store has
    /// answered, if there are any.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(config: StoreConfig) -> Result<Self, OpenError> {
        let memory = MemoryTier::open(config.base, config.memory_limit)?;
        let digester = Digester::random().map_err(|source| OpenError::Random { source })?;
        let file = config.file.as_ref().map(FileTier::open).transpose()?;
        let remote = match config.remote {
            Some(config) => {
                let sealer = Sealer::random().map_err(|source| OpenError::Random { source })?;
                Some(RemoteTier::open(config, sealer)?)
            }
            None => None,
        };
        let mut batch = (file.is_some() || remote.is_some()).then(|| Batch::new(config.memory_limit));
        if let (Some(batch), Some(file)) = (&mut batch, &file) {
            // Without it everything is done one after the other.
            let has_ring = config.file.as_ref().is_some_and(|file| file.io_uring);
            batch.ring = has_ring.then(Ring::open).and_then(Result::ok);
            file.note_ring(batch.ring.as_ref());
        }
        Ok(Self {
            table: ObjectTable::new(),
            memory,
            batch_bytes: batch.as_ref().map_or(0, Batch::bytes),
            spiller: Lock::new(batch),
            file,
            remote,
            releases: Releases::default(),
            keeper: Bell::default(),
            base: config.base,
            page: piece(config.base),
            blocks: BlockDigests::new(piece(config.base)),
            contents: ContentDigests::new(piece(config.base)),
            refaults: RefaultClocks::default(),
            images: Images::default(),
            #[cfg(test)]
            parts_read: std::sync::atomic::AtomicU64::new(0),
            digester,
        })
    }

    /// The same store, which releases closed owners' pages by `policy`, with at most `queued_max`
    /// uncompressed bytes queued. The policy `background` hands over once `gate` owners close.
    pub(crate) fn releasing_by(mut self, policy: ReleasePolicy, queued_max: Bytes, gate: u32) -> Self {
        self.releases = Releases::new(policy, queued_max, self.page, gate);
        self
    }

    /// The pages that wait to be released.
    pub(crate) fn releases(&self) -> &Releases {
        &self.releases
    }

    /// The length of the pages that this store takes: the base page, or 64 KiB for one of 2 MiB.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        self.page
    }

    /// Whether fetching this page needs no disk, as far as can be told: it may be spilled a moment
    /// later.
    #[must_use]
    pub fn is_in_memory(&self, handle: Handle) -> bool {
        match handle.meaning() {
            Meaning::SameFilled(_) => true,
            Meaning::Image(_) => false,
            Meaning::Object(id) => {
                self.table.get(id).is_some_and(|object| object.word().kind() == Kind::Memory)
            }
        }
    }

    /// Which OS pages of a stored page are not zero; all of them, where that is not known.
    pub(crate) fn content_of(&self, handle: Handle) -> Granules {
        match handle.meaning() {
            Meaning::SameFilled(0) => Granules::NONE,
            Meaning::SameFilled(_) | Meaning::Image(_) => all_blocks(self.page),
            Meaning::Object(id) => self.table.get(id).map_or(all_blocks(self.page), Object::content),
        }
    }

    /// The addresses of the memory tier, which must not be managed.
    #[must_use]
    pub fn memory_range(&self) -> Range<usize> {
        self.memory.range()
    }

    /// Its current content.
    #[must_use]
    pub fn usage(&self) -> StoreUsage {
        let (file, file_table) =
            self.file.as_ref().map_or((0, 0), |file| (file.used_bytes(), file.table_bytes()));
        let at_once = self.file.as_ref().map_or(0, FileTier::at_once);
        let (remote, failures) =
            self.remote.as_ref().map_or((0, 0), |remote| (remote.used_bytes(), remote.failures()));
        let state = self.memory.lock();
        let objects = u64::from(state.numbers.used - state.gone.objects);
        let segments = u64::from(state.pool.present_segments()) * self.memory.segment_bytes() as u64;
        let used = state.pool.used_blocks() * self.memory.block_bytes() as u64;
        let links = state.pool.linked_segments() as usize * self.memory.segment_bytes()
            / self.memory.block_bytes()
            * 4;
        let tables = links as u64
            + self.table.bytes()
            + file_table
            + self.batch_bytes
            + self.blocks.bytes()
            + self.contents.bytes();
        StoreUsage {
            raw_bytes: Bytes::new(self.table.content_bytes()),
            memory_used_bytes: Bytes::new(used),
            memory_packed_bytes: Bytes::new(state.raw.bytes + state.dense.bytes + state.packed.bytes),
            memory_dense_bytes: Bytes::new(state.dense.bytes),
            memory_spare_bytes: Bytes::new(segments.saturating_sub(used + self.memory.reserve_bytes())),
            memory_committed_bytes: Bytes::new(segments + tables),
            file_bytes: Bytes::new(file),
            file_requests_at_once: at_once,
            remote_bytes: Bytes::new(remote),
            remote_failures: failures,
            objects,
        }
    }

    /// Requests to the file that were in flight with others of the same thread, since this was
    /// asked last.
    pub(crate) fn take_requests_together(&self) -> u64 {
        self.file.as_ref().map_or(0, FileTier::take_together)
    }

    /// The digester of pages and packed blocks. A child that reads its parent's file uses its
    /// parent's, with the digests that its parent has taken.
    pub(super) fn content_digester(&self) -> &Digester {
        let lender = self.file.as_ref().and_then(FileTier::lender_keys);
        lender.map_or(&self.digester, |keys| &keys.content)
    }

    /// The digest of a page or a packed block: a page that was written has another. Never 0.
    pub(super) fn digest(&self, content: &[u8]) -> u64 {
        self.content_digester().of(content)
    }

    /// Whether an object still is at the place of its word. If so, the bytes read there were its
    /// own, with the checksum of this place; if not, either may be another's.
    pub(super) fn is_still_at(&self, id: u32, word: Word) -> bool {
        let _no_change = self.memory.lock();
        self.table.at(id).word().is_at_place_of(word)
    }

    /// Stores bytes as an object, spilling older ones if there is no room.
    pub(super) fn put_object(&self, bytes: &[u8], raw: bool, digest: u64) -> Result<u32, PutError> {
        let mut rounds = 0;
        while rounds < ROUNDS_MAX {
            if let Some((id, word)) = self.memory.reserve_object(&self.table, bytes.len(), raw) {
                self.memory.write(word.first(), bytes);
                self.table.at(id).digest.store(digest, Ordering::Relaxed);
                let content = if raw { all_blocks(self.page) } else { blocks_with_content(bytes, self.page) };
                self.table.note_content(id, content);
                self.blocks.forget(id);
                self.contents.forget(id);
                self.table.at(id).written();
                return Ok(id);
            }
            // Pages queued to be freed go before anything is written, or the store is reported as
            // full; each time there are fewer.
            if self.help_release() {
                continue;
            }
            self.spill_once(Bytes::ZERO)?;
            rounds += 1;
        }
        Err(PutError::Full)
    }
}

impl TieredStore {
    /// An object's bytes as they are stored (those that `wanted` bytes of its page need, in their
    /// places), and whether they are the page itself.
    pub(super) fn load<'a>(
        &self,
        id: u32,
        wanted: Range<usize>,
        packed: &'a mut [u8],
        slots: &'a mut AlignedBuffer,
    ) -> Result<(&'a [u8], bool), GetError> {
        let object = self.table.get(id).ok_or(GetError::Corrupt)?;
        loop {
            let word = object.word();
            let len = word.len();
            if word.raw() != (len == self.page) {
                return Err(GetError::Corrupt);
            }
            match word.kind() {
                Kind::Free | Kind::Reserved | Kind::Gone => return Err(GetError::Corrupt),
                // A reader or a mover came between: look again. Each retry means that another got
                // on.
                Kind::Memory if !object.enter(word) => {}
                Kind::Memory => {
                    let bytes = &mut packed[..len];
                    let extent = if word.raw() {
                        Some(wanted)
                    } else {
                        let header = header_bytes(self.page).min(len);
                        self.memory.read(word.first(), 0..header, bytes);
                        if is_dense(bytes) {
                            Some(0..len)
                        } else {
                            extent(bytes, self.page, wanted.start, wanted.len())
                                .filter(|extent| extent.end <= len)
                        }
                    };
                    if let Some(extent) = &extent {
                        self.memory.read(word.first(), extent.clone(), bytes);
                    }
                    object.leave();
                    extent.ok_or(GetError::Corrupt)?;
                    return Ok((&packed[..len], word.raw()));
                }
                Kind::File => {
                    let file = self.file.as_ref().ok_or(GetError::Corrupt)?;
                    let checksum = object.checksum.load(Ordering::Relaxed);
                    match file.read(word.units(), len, checksum, slots) {
                        Ok(bytes) => return Ok((&slots[bytes], word.raw())),
                        Err(error) if self.is_still_at(id, word) => return Err(error),
                        // It moved on meanwhile.
                        Err(_) => {}
                    }
                }
                Kind::Remote => {
                    let remote = self.remote.as_ref().ok_or(GetError::Corrupt)?;
                    let bytes = &mut packed[..len];
                    let version = Version::from_bits(object.checksum.load(Ordering::Relaxed));
                    remote.read(id, word.first(), version, bytes)?;
                    return Ok((&packed[..len], word.raw()));
                }
            }
        }
    }
}

impl TieredStore {
    /// Whether an object's bytes at `offset` are `content`, by unpacking them.
    fn compare(
        &self,
        id: u32,
        offset: usize,
        content: &[u8],
        scratch: &mut Scratch,
    ) -> Result<bool, GetError> {
        let wanted = offset..offset + content.len();
        let Scratch { packed, slots, unpacker, repacked, .. } = scratch;
        let (bytes, raw) = self.load(id, wanted.clone(), packed, slots)?;
        if raw {
            return Ok(bytes[wanted] == *content);
        }
        if is_dense(bytes) {
            unpacker.unpack_dense(bytes, repacked).ok_or(GetError::Corrupt)?;
            return Ok(repacked[wanted] == *content);
        }
        unpacker.is_packed(bytes, self.page, offset, content).ok_or(GetError::Corrupt)
    }
}

impl Store for TieredStore {
    fn put_present(&self, page: &[u8], present: Granules, scratch: &mut Scratch) -> Result<Put, PutError> {
        assert_eq!(page.len(), self.page, "a page of this store's length");
        let is_whole = present == all_blocks(self.page);
        let is_zero = |(from, to): (u32, u32)| is_zero(&page[from as usize * BLOCK..to as usize * BLOCK]);
        if is_whole {
            match repeated_word(page) {
                Some(0) => return Ok(Put::Zero),
                Some(pattern) => return Ok(Put::Stored(Handle::same_filled(pattern))),
                None => {}
            }
        } else if present.runs().all(is_zero) {
            return Ok(Put::Zero);
        }
        // A page that gains less than an eighth is kept unpacked: it costs no time to fetch.
        let (room, has) = (&mut scratch.packed[..self.page / 8 * 7], |block| present.has(block as u32));
        let packed = pack_present(page, has, room, &mut scratch.packer);
        let bytes = packed.map_or(page, |len| &scratch.packed[..len]);
        let digest = self.content_digester().of_present(page, has);
        let id = self.put_object(bytes, packed.is_none(), digest)?;
        if packed.is_none() {
            self.spill_raw_if_many();
        }
        Ok(Put::Stored(Handle::object(id)))
    }

    fn get(
        &self,
        handle: Handle,
        offset: usize,
        into: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<(), GetError> {
        assert!(offset + into.len() <= self.page, "a part of a page of this store's length");
        let id = match handle.meaning() {
            Meaning::SameFilled(pattern) => {
                fill(into, pattern);
                return Ok(());
            }
            Meaning::Image(page) => return self.get_of_image(handle, page, offset, into, scratch),
            Meaning::Object(id) => id,
        };
        let Scratch { packed, slots, unpacker, repacked, .. } = scratch;
        let wanted = offset..offset + into.len();
        let (bytes, raw) = self.load(id, wanted.clone(), packed, slots)?;
        if raw {
            into.copy_from_slice(&bytes[wanted]);
            return Ok(());
        }
        if is_dense(bytes) {
            if into.len() == self.page {
                return unpacker.unpack_dense(bytes, into).ok_or(GetError::Corrupt);
            }
            unpacker.unpack_dense(bytes, repacked).ok_or(GetError::Corrupt)?;
            into.copy_from_slice(&repacked[wanted]);
            return Ok(());
        }
        unpacker.unpack_part(bytes, self.page, offset, into).ok_or(GetError::Corrupt)
    }

    fn holds(
        &self,
        handle: Handle,
        offset: usize,
        content: &[u8],
        scratch: &mut Scratch,
    ) -> Result<bool, GetError> {
        let wanted = offset..offset + content.len();
        assert!(wanted.end <= self.page, "a part of a page of this store's length");
        let id = match handle.meaning() {
            Meaning::SameFilled(pattern) => return Ok(repeated_word(content) == Some(pattern)),
            Meaning::Image(page) => return Ok(self.image_holds(page, offset, content)),
            Meaning::Object(id) => id,
        };
        let digest = self.table.get(id).ok_or(GetError::Corrupt)?.digest.load(Ordering::Relaxed);
        if content.len() == self.page && digest != 0 {
            return Ok(self.digest(content) == digest);
        }
        if let Some(same) = self.contents.are(id, offset, content, self.content_digester()) {
            return Ok(same);
        }
        if !self.is_in_memory(handle) {
            return Ok(self.are_blocks(id, offset, content, scratch));
        }
        let same = self.compare(id, offset, content, scratch)?;
        if same {
            self.contents.note(id, offset, content, self.content_digester());
        }
        Ok(same)
    }

    fn put_changed(
        &self,
        handle: Handle,
        changed: &[Range<usize>],
        content: &[u8],
        scratch: &mut Scratch,
    ) -> Result<Option<Handle>, GetError> {
        assert_eq!(content.len(), self.page, "a page of this store's length");
        let Meaning::Object(id) = handle.meaning() else { return Ok(None) };
        if !self.is_in_memory(handle) {
            return Ok(None);
        }
        let Scratch { packer, unpacker, packed, repacked, slots, .. } = scratch;
        let (bytes, raw) = self.load(id, 0..self.page, packed, slots)?;
        if raw || is_dense(bytes) {
            return Ok(None);
        }
        let room = &mut repacked[..self.page / 8 * 7];
        let Some(len) = repack(bytes, changed, content, room, unpacker, packer) else { return Ok(None) };
        // Without room for it the caller has to keep the page, and the next put says why.
        let Ok(anew) = self.put_object(&repacked[..len], false, 0) else { return Ok(None) };
        self.contents.carry(id, anew, changed, content, self.content_digester());
        Ok(Some(Handle::object(anew)))
    }

    fn free(&self, handle: Handle) {
        let Meaning::Object(id) = handle.meaning() else { return };
        let Some(object) = self.table.get(id) else { return };
        let mut state = self.memory.lock();
        let word = object.word();
        match word.kind() {
            Kind::Free | Kind::Reserved | Kind::Gone => {}
            // The mover sees it when it is done.
            Kind::Memory if word.has(MOVING) => object.flag(FREED, 0),
            Kind::Memory => {
                state.drop_object(&self.table, id);
                self.let_go(state);
            }
            Kind::Remote => state.forget_remote(&self.table, id),
            Kind::File => {
                let units = state.drop_filed(&self.table, id);
                drop(state);
                if let (Some(file), Some(units)) = (&self.file, units) {
                    file.release(units);
                }
            }
        }
    }
}
