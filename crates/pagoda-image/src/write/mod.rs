//! Writing an image: beside the old one, which it replaces when all of it is on disk.
//!
//! Blocks are put in any order, each once. They go to the file in large writes; the index follows,
//! and the header is written last. A process that is killed leaves the old image, and a hidden file
//! that says `unfinished`. Nothing here may publish an image of which a write has failed.

mod pack;

use std::iter;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pagoda_core::image::digest::ROOT_BYTES;
use pagoda_core::image::entry::{ENTRY_BYTES, PLACE_END, Packing};
use pagoda_core::image::header::{BLOCKS_BEGIN, Base, Header};
use pagoda_core::image::index::{ALL_BASE, ALL_ZERO, CHUNK_BLOCKS, CHUNK_BYTES};
use pagoda_core::image::{
    BLOCK_BYTES_DEFAULT, Entry, INDEX_BYTES_MOST, Key, LEN_BYTES_MOST, Root, is_block_size, runs,
};
use pagoda_core::migrate::geometry::{Extent, STRIPE_PAGES};
use pagoda_core::migrate::handshake::Codec;
use pagoda_core::migrate::received::{ReceivedMap, words_for};
use pagoda_core::page::OS_PAGE;
use pagoda_core::size::Bytes;
use pagoda_linux::codec::lz4::Lz4;
use pagoda_linux::codec::pack::join;
use pagoda_linux::codec::zstd::{Compressor, DEFAULT_LEVEL, Decompressor};
use pagoda_linux::io::unfinished_file::UnfinishedFile;
use pagoda_linux::mem::words::zeroed_words;
use pagoda_linux::mem::zero_scan;

use crate::error::ImageError;
use crate::key_file::{keep_key, make_key};
use crate::read::{Image, LAYERS_MOST, Totals};
use crate::unpack::unpack;
pub use pack::{Progress, pack};

/// Packed bytes that are gathered for one write.
const WRITE_BYTES: usize = 1 << 20;

/// How an image is packed.
#[derive(Clone, Debug)]
pub struct PackOptions {
    /// The key of its digests.
    pub key: Key,
    /// How blocks are compressed: not by zlib. One that gains less than an eighth is kept as it is.
    /// A save of a region by LZ4 takes stored pages as they are packed.
    pub codec: Codec,
    /// The size of a block, in bytes: a power of two from 4 to 64 KiB. A difference has its base's.
    pub block_bytes: u32,
    /// The image that this one is a difference to, with the same key. It has to lie in the same
    /// directory when the difference is opened by its path.
    pub base: Option<Arc<Image>>,
}

impl PackOptions {
    /// LZ4 in blocks of 16 KiB, and no base.
    #[must_use]
    pub fn new(key: Key) -> Self {
        Self { key, codec: Codec::Lz4, block_bytes: BLOCK_BYTES_DEFAULT, base: None }
    }

    /// The same, for an image that is to be at `image` with its key in the file beside it. With a
    /// `base` it is a difference to the image there, whose key lies beside it, too.
    ///
    /// # Errors
    /// If the base can't be read, or a key not be read or written; if the key of another image lies
    /// where that of a difference is to be.
    pub fn beside(image: &Path, base: Option<&Path>) -> Result<Self, ImageError> {
        let Some(base) = base else { return Ok(Self::new(make_key(image)?)) };
        let base = Arc::new(Image::open(base, None)?);
        keep_key(image, base.key())?;
        Ok(Self { base: Some(Arc::clone(&base)), ..Self::new(base.key().clone()) })
    }
}

/// An image that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Written {
    /// Its digest.
    pub root: Root,
    /// The size of its file, in bytes.
    pub file_bytes: u64,
    /// The length of its content, in bytes.
    pub len_bytes: u64,
    /// Its blocks.
    pub totals: Totals,
}

enum Packer {
    None,
    Lz4(Lz4),
    Zstd(Compressor),
}

impl Packer {
    fn pack(&mut self, content: &[u8], room: &mut [u8]) -> (Packing, Option<usize>) {
        match self {
            Self::None => (Packing::None, None),
            Self::Lz4(lz4) => (Packing::Lz4, lz4.compress(content, room)),
            Self::Zstd(zstd) => (Packing::Zstd, zstd.compress(content, room)),
        }
    }
}

/// An image that is being written. Dropping it leaves an older image as it was.
pub struct Writer {
    unfinished: UnfinishedFile,
    path: PathBuf,
    options: PackOptions,
    header: Header,
    /// The entries of chunks of which a block was put.
    chunks: Vec<Option<Box<[u8; CHUNK_BYTES]>>>,
    received: ReceivedMap,
    packer: Packer,
    /// One packed block.
    packed: Vec<u8>,
    /// Packed blocks that are not in the file yet, and where they begin there.
    gathered: Vec<u8>,
    gathered_at: u64,
}

impl Writer {
    /// Begins an image of `len_bytes` of content that is to be `path`. A block that is never put is
    /// zero; in a difference it is the base's, where that has one.
    ///
    /// # Errors
    /// If the file can't be made, no image has that length or block size, or one with so many
    /// layers below it could not be opened.
    pub fn create(path: &Path, len_bytes: u64, mut options: PackOptions) -> Result<Self, ImageError> {
        if let Some(base) = &options.base {
            options.block_bytes = base.block_bytes();
        }
        if len_bytes == 0 || len_bytes > LEN_BYTES_MOST {
            return Err(ImageError::Length { path: path.to_owned(), len: Bytes::new(len_bytes) });
        }
        if !is_block_size(options.block_bytes) || options.codec == Codec::Zlib {
            let error = std::io::Error::other("blocks are of 4, 8, 16, 32 or 64 KiB, by lz4, zstd or none");
            return Err(ImageError::write(path, error));
        }
        if let Some(base) = &options.base
            && let Ok(resolved) = path.canonicalize()
            && base.path().canonicalize().is_ok_and(|base| base == resolved)
        {
            let error = std::io::Error::other("it is the base of the difference; choose another name");
            return Err(ImageError::write(path, error));
        }
        if iter::successors(options.base.as_ref(), |base| base.base()).count() > LAYERS_MOST {
            return Err(ImageError::TooManyLayers { path: path.to_owned(), most: LAYERS_MOST });
        }
        let base = options.base.as_ref().map(|base| Base {
            root: base.root(),
            file_name: base.path().file_name().unwrap_or_default().as_bytes().to_vec(),
        });
        let header = Header {
            block_bytes: options.block_bytes,
            len_bytes,
            index_at: 0,
            index_bytes: 0,
            runs: 0,
            key_check: options.key.check(),
            base,
            has_parts: false,
            root: Root::default(),
        };
        let chunks = header.blocks().div_ceil(CHUNK_BLOCKS);
        if chunks * ROOT_BYTES as u64 > INDEX_BYTES_MOST {
            return Err(ImageError::IndexTooLong { path: path.to_owned() });
        }
        let pages = len_bytes.div_ceil(OS_PAGE as u64);
        let received = ReceivedMap::new(zeroed_words(words_for(pages) as usize), pages);
        let block = options.block_bytes as usize;
        let packer = match options.codec {
            Codec::Zstd => Packer::Zstd(Compressor::new(block, DEFAULT_LEVEL)),
            Codec::Lz4 => Packer::Lz4(Lz4::new()),
            Codec::None | Codec::Zlib => Packer::None,
        };
        let unfinished =
            UnfinishedFile::create_to_replace(path).map_err(|error| ImageError::write(path, error))?;
        let writer = Self {
            unfinished,
            path: path.to_owned(),
            header,
            chunks: vec![None; chunks as usize],
            received,
            packer,
            packed: vec![0; block],
            gathered: Vec::with_capacity(WRITE_BYTES + block),
            gathered_at: BLOCKS_BEGIN,
            options,
        };
        if let Some(base) = writer.options.base.clone() {
            base.received().for_each(|run| writer.mark_received(run.start, run.end));
        }
        Ok(writer)
    }

    /// The size of a block, in bytes.
    #[must_use]
    pub const fn block_bytes(&self) -> usize {
        self.header.block_bytes as usize
    }

    /// How many blocks there are.
    #[must_use]
    pub const fn blocks(&self) -> u64 {
        self.header.blocks()
    }

    /// Notes that OS pages `from..to` were received, as far as there are such: their content is
    /// known, be it zero.
    pub fn mark_received(&self, from: u64, to: u64) {
        let (mut at, to) = (from, to.min(self.received.pages()));
        while at < to {
            let end = to.min((at / u64::from(STRIPE_PAGES) + 1) * u64::from(STRIPE_PAGES));
            let extent = Extent::new(at, (end - at) as u32).expect("a part of a stripe");
            let Ok(()) = self.received.mark(extent, |_, _| Ok::<_, std::convert::Infallible>(()));
            at = end;
        }
    }

    /// Puts the content of a block, all of it: zeroes follow the end of the last one.
    ///
    /// # Errors
    /// If the file can't be written.
    ///
    /// # Panics
    /// If there is no such block, or the content has another length.
    pub fn put(&mut self, block: u64, content: &[u8]) -> Result<(), ImageError> {
        self.put_packed(block, content, Packer::pack)
    }

    /// The same of a block of which each 4 KiB are packed already, as
    /// [`pack_block`](pagoda_linux::codec::pack::pack_block) packs them: they go to the file as
    /// they are, whatever the image's codec, and the content is not packed again.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    ///
    /// # Panics
    /// As there, or if there are not as many parts as the block has 4 KiB.
    pub fn put_parts<'a>(
        &mut self,
        block: u64,
        content: &[u8],
        parts: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<(), ImageError> {
        self.put_packed(block, content, |_, content, room| (Packing::Parts, join(parts, content.len(), room)))
    }

    fn put_packed(
        &mut self,
        block: u64,
        content: &[u8],
        pack: impl FnOnce(&mut Packer, &[u8], &mut [u8]) -> (Packing, Option<usize>),
    ) -> Result<(), ImageError> {
        assert_eq!(content.len(), self.block_bytes(), "a block");
        let entry = match zero_scan::repeated_word(content) {
            Some(word) if word == [0; 8] => Entry::Zero,
            Some(word) => Entry::Same(word),
            None => self.store(block, content, pack)?,
        };
        self.header.has_parts |= entry.is_in_parts();
        self.set(block, entry);
        Ok(())
    }

    /// Reads a block back, to change a part of it and put it again. The bytes that it took in the
    /// file are lost to the image.
    ///
    /// # Errors
    /// If the file can't be read.
    ///
    /// # Panics
    /// If there is no such block.
    pub fn read_back(&mut self, block: u64, into: &mut [u8]) -> Result<(), ImageError> {
        let entry = match &self.chunks[(block / CHUNK_BLOCKS) as usize] {
            None => self.unset(block),
            Some(chunk) => {
                let entry = &chunk.as_chunks::<ENTRY_BYTES>().0[(block % CHUNK_BLOCKS) as usize];
                Entry::decode(entry, self.header.block_bytes).expect("it was made here")
            }
        };
        match entry {
            Entry::Zero => into.fill(0),
            Entry::Same(word) => into.as_chunks_mut().0.fill(word),
            Entry::Base => {
                let base = self.options.base.as_ref().expect("it has a base");
                let at = block * into.len() as u64;
                let len = (base.len_bytes() - at).min(into.len() as u64) as usize;
                into[len..].fill(0);
                base.read_at(at, &mut into[..len])?;
            }
            Entry::Stored { packing, place, len, digest } => {
                self.flush()?;
                let packed = &mut self.packed[..len as usize];
                let read = self.unfinished.file().read_exact_at(packed, place);
                read.map_err(|error| ImageError::write(&self.path, error))?;
                let unpacked = unpack(packing, packed, into, &mut Decompressor::new());
                // Else the block would be put again with a digest of damaged content.
                if unpacked.is_none() || self.options.key.of_block(into) != digest {
                    return Err(ImageError::damaged(&self.path, "a block that was just written"));
                }
            }
        }
        Ok(())
    }

    /// Puts a block of zeroes.
    ///
    /// # Panics
    /// If there is no such block.
    pub fn put_zeroes(&mut self, block: u64) {
        self.set(block, Entry::Zero);
    }

    /// Stores the content of a block, packed by `pack` into a room that it must not fill.
    fn store(
        &mut self,
        block: u64,
        content: &[u8],
        pack: impl FnOnce(&mut Packer, &[u8], &mut [u8]) -> (Packing, Option<usize>),
    ) -> Result<Entry, ImageError> {
        let digest = self.options.key.of_block(content);
        if let Some(base) = &self.options.base
            && self.is_in_base(block)
            && base.digest_of(block)? == Some(digest)
        {
            return Ok(Entry::Base);
        }
        // Less gain than an eighth is not worth the time of unpacking.
        let room = &mut self.packed[..content.len() / 8 * 7];
        let (packing, len) = pack(&mut self.packer, content, room);
        let place = self.gathered_at + self.gathered.len() as u64;
        if place + content.len() as u64 > PLACE_END {
            return Err(ImageError::IndexTooLong { path: self.path.clone() });
        }
        let packing = if len.is_some() { packing } else { Packing::None };
        let bytes = len.map_or(content, |len| &self.packed[..len]);
        self.gathered.extend_from_slice(bytes);
        let len = bytes.len() as u32;
        if self.gathered.len() >= WRITE_BYTES {
            self.flush()?;
        }
        Ok(Entry::Stored { packing, place, len, digest })
    }

    fn flush(&mut self) -> Result<(), ImageError> {
        let written = self.unfinished.file().write_all_at(&self.gathered, self.gathered_at);
        written.map_err(|error| ImageError::write(&self.path, error))?;
        self.gathered_at += self.gathered.len() as u64;
        self.gathered.clear();
        Ok(())
    }

    /// Whether the base has all of this block.
    fn is_in_base(&self, block: u64) -> bool {
        let Some(base) = &self.options.base else { return false };
        let end = ((block + 1) * self.block_bytes() as u64).min(self.header.len_bytes);
        base.len_bytes() >= end
    }

    /// The entry of a block that was not put.
    fn unset(&self, block: u64) -> Entry {
        if block < self.blocks() && self.is_in_base(block) { Entry::Base } else { Entry::Zero }
    }

    fn set(&mut self, block: u64, entry: Entry) {
        assert!(block < self.blocks(), "block {block} of {}", self.blocks());
        let index = (block / CHUNK_BLOCKS) as usize;
        if self.chunks[index].is_none() {
            let mut chunk = Box::new([0; CHUNK_BYTES]);
            let first = index as u64 * CHUNK_BLOCKS;
            for (bytes, block) in chunk.chunks_exact_mut(ENTRY_BYTES).zip(first..) {
                bytes.copy_from_slice(&self.unset(block).encode());
            }
            self.chunks[index] = Some(chunk);
        }
        if let Some(chunk) = &mut self.chunks[index] {
            let at = (block % CHUNK_BLOCKS) as usize * ENTRY_BYTES;
            chunk[at..at + ENTRY_BYTES].copy_from_slice(&entry.encode());
        }
    }

    /// The digest of a chunk in the table, and whether the chunk has to be there.
    fn chunk_digest(&self, index: usize, chunk: &[u8; CHUNK_BYTES]) -> (Root, bool) {
        let first = index as u64 * CHUNK_BLOCKS;
        let count = (self.blocks() - first).min(CHUNK_BLOCKS) as usize;
        let all = |entry: Entry| {
            chunk.as_chunks::<ENTRY_BYTES>().0[..count].iter().all(|bytes| *bytes == entry.encode())
        };
        if all(Entry::Zero) {
            (ALL_ZERO, false)
        } else if all(Entry::Base) {
            (ALL_BASE, false)
        } else {
            (self.options.key.of_chunk(chunk), true)
        }
    }

    /// Writes the rest and publishes the image: when this has returned it is on disk, under its
    /// name. Blocks for the disk.
    ///
    /// # Errors
    /// If it can't be written. An older image is there as it was then.
    pub fn finish(mut self) -> Result<Written, ImageError> {
        self.flush()?;
        let (mut table, mut present, mut totals) = (Vec::new(), Vec::new(), Totals::default());
        for (index, chunk) in std::mem::take(&mut self.chunks).into_iter().enumerate() {
            let first = index as u64 * CHUNK_BLOCKS;
            let chunk = chunk.unwrap_or_else(|| {
                let mut chunk = Box::new([0; CHUNK_BYTES]);
                for (bytes, block) in chunk.chunks_exact_mut(ENTRY_BYTES).zip(first..) {
                    bytes.copy_from_slice(&self.unset(block).encode());
                }
                chunk
            });
            let count = (self.blocks() - first).min(CHUNK_BLOCKS) as usize;
            self.add_totals(&chunk.as_chunks().0[..count], &mut totals);
            let (digest, is_there) = self.chunk_digest(index, &chunk);
            table.extend_from_slice(&digest.0);
            if is_there {
                present.extend_from_slice(&chunk[..]);
            }
        }
        let runs = runs::encode(&self.received);
        self.header.runs = (runs.len() / runs::RUN_BYTES) as u64;
        self.header.index_at = self.gathered_at;
        self.header.index_bytes = (table.len() + runs.len() + present.len()) as u64;
        if self.header.index_bytes > INDEX_BYTES_MOST {
            return Err(ImageError::IndexTooLong { path: self.path });
        }
        table.extend_from_slice(&runs);
        self.header.root = self.header.root_of(&self.options.key, &table);
        let file_bytes = self.header.index_at + self.header.index_bytes;
        let (file, at) = (self.unfinished.file(), self.header.index_at);
        let written = file
            .write_all_at(&table, at)
            .and_then(|()| file.write_all_at(&present, at + table.len() as u64))
            .and_then(|()| file.write_all_at(&self.header.encode(), 0));
        let path = self.path;
        written.and_then(|()| self.unfinished.publish()).map_err(|error| ImageError::write(&path, error))?;
        Ok(Written { root: self.header.root, file_bytes, len_bytes: self.header.len_bytes, totals })
    }

    fn add_totals(&self, entries: &[[u8; ENTRY_BYTES]], totals: &mut Totals) {
        for bytes in entries {
            match Entry::decode(bytes, self.header.block_bytes).expect("it was made here") {
                Entry::Zero => totals.zero_blocks += 1,
                Entry::Same(_) => totals.same_blocks += 1,
                Entry::Base => totals.base_blocks += 1,
                Entry::Stored { len, .. } => {
                    totals.stored_blocks += 1;
                    totals.packed_bytes += u64::from(len);
                }
            }
        }
    }
}
