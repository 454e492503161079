//! Reading content: from packed bytes to checked blocks.
//!
//! Blocks that follow each other in the file are had by one read. A block is unpacked, and its
//! digest is compared, before its bytes count; after an error all of the reader's memory is zero.

use pagoda_core::image::entry::Packing;
use pagoda_core::image::{BlockDigest, Entry};
use pagoda_linux::codec::zstd::Decompressor;

use super::Image;
use super::scratch::Scratch;
use crate::error::ImageError;
use crate::unpack::unpack;

/// The most packed bytes of one read.
const READ_MOST_BYTES: u64 = 1 << 20;

/// A stored block, as its entry says.
#[derive(Clone, Copy)]
struct Stored {
    packing: Packing,
    place: u64,
    len: u32,
    digest: BlockDigest,
}

impl Image {
    /// Reads `into.len()` bytes of content from `offset` on. Blocks for the disk.
    ///
    /// # Errors
    /// If that is beyond the end, or a block can't be read or is damaged: [`ImageError`] tells the
    /// file and where. `into` is all zero then.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), ImageError> {
        let end = offset.saturating_add(into.len() as u64);
        let outcome = if end > self.len_bytes() {
            Err(ImageError::BeyondEnd { path: self.path.clone(), offset, end, len: self.len_bytes() })
        } else {
            match self.read_blocks(offset, into) {
                // The copy was damaged, and is forgotten: the server may have a whole one.
                Err(ImageError::DamagedBlock { .. }) if self.file.is_remote() => {
                    self.read_blocks(offset, into)
                }
                outcome => outcome,
            }
        };
        if outcome.is_err() {
            into.fill(0);
        }
        outcome
    }

    /// Tells that this content will be read soon. Returns at once; costs nothing where a read is
    /// no request.
    pub fn announce(&self, offset: u64, len: usize) {
        if !self.file.is_remote() {
            return;
        }
        let block_bytes = u64::from(self.block_bytes());
        let end = offset.saturating_add(len as u64).min(self.len_bytes());
        for block in offset / block_bytes..end.div_ceil(block_bytes) {
            match (self.entry(block), &self.base) {
                (Ok(Entry::Stored { place, len, .. }), _) => {
                    self.file.announce(place..place + u64::from(len));
                }
                (Ok(Entry::Base), Some(base)) => base.announce(block * block_bytes, block_bytes as usize),
                _ => {}
            }
        }
    }

    fn read_blocks(&self, offset: u64, into: &mut [u8]) -> Result<(), ImageError> {
        let block_bytes = u64::from(self.block_bytes());
        let mut done = 0;
        while done < into.len() {
            let at = offset + done as u64;
            let block = at / block_bytes;
            let within = (at % block_bytes) as usize;
            let len = (block_bytes as usize - within).min(into.len() - done);
            let rest = &mut into[done..];
            let part = &mut rest[..len];
            match self.entry(block)? {
                Entry::Zero => part.fill(0),
                Entry::Same(word) => fill(part, word, within),
                Entry::Base => match &self.base {
                    Some(base) if at + len as u64 <= base.len_bytes() => base.read_blocks(at, part)?,
                    _ => return Err(self.damaged_block(block)),
                },
                Entry::Stored { packing, place, len: packed, digest } => {
                    let first = Stored { packing, place, len: packed, digest };
                    done += self.scratch.with(|scratch| {
                        if len < block_bytes as usize {
                            self.read_part(block, &first, within, &mut rest[..len], scratch)
                        } else {
                            self.read_run(block, first, rest, scratch)
                        }
                    })?;
                    continue;
                }
            }
            done += len;
        }
        Ok(())
    }

    /// Reads a part of a block.
    fn read_part(
        &self,
        block: u64,
        stored: &Stored,
        within: usize,
        part: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<usize, ImageError> {
        if scratch.number != Some(block) {
            scratch.number = None;
            scratch.block.resize(self.block_bytes() as usize, 0);
            scratch.packed.resize(stored.len as usize, 0);
            self.read_packed(stored.place, &mut scratch.packed)?;
            let Scratch { packed, block: content, zstd, .. } = scratch;
            let unpacked = self.unpack(block, stored, packed, content, zstd);
            unpacked.inspect_err(|_| self.forget(stored))?;
            scratch.number = Some(block);
        }
        part.copy_from_slice(&scratch.block[within..within + part.len()]);
        Ok(part.len())
    }

    /// Reads whole blocks from `block` on to the front of `into`, as many as follow each other in
    /// the file too. Returns the bytes of content.
    fn read_run(
        &self,
        block: u64,
        first: Stored,
        into: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<usize, ImageError> {
        let block_bytes = self.block_bytes() as usize;
        let mut run = vec![first];
        let mut end = first.place + u64::from(first.len);
        while (run.len() + 1) * block_bytes <= into.len() && end - first.place < READ_MOST_BYTES {
            match self.entry(block + run.len() as u64)? {
                Entry::Stored { packing, place, len, digest } if place == end => {
                    run.push(Stored { packing, place, len, digest });
                    end += u64::from(len);
                }
                _ => break,
            }
        }
        let Scratch { packed, zstd, .. } = scratch;
        packed.resize((end - first.place) as usize, 0);
        self.read_packed(first.place, packed)?;
        let mut packed = &packed[..];
        for ((stored, content), block) in run.iter().zip(into.chunks_mut(block_bytes)).zip(block..) {
            let (own, rest) = packed.split_at(stored.len as usize);
            let unpacked = self.unpack(block, stored, own, content, zstd);
            unpacked.inspect_err(|_| self.forget(stored))?;
            packed = rest;
        }
        Ok(run.len() * block_bytes)
    }

    fn read_packed(&self, place: u64, into: &mut [u8]) -> Result<(), ImageError> {
        self.file.read_exact_at(into, place).map_err(|error| self.file.unread(&self.path, error))
    }

    /// Has the bytes of a damaged block read again the next time, where a copy of them is kept.
    fn forget(&self, stored: &Stored) {
        self.file.forget(stored.place..stored.place + u64::from(stored.len));
    }

    /// Unpacks one block, and checks it. `content` may hold anything after an error.
    fn unpack(
        &self,
        block: u64,
        stored: &Stored,
        packed: &[u8],
        content: &mut [u8],
        zstd: &mut Decompressor,
    ) -> Result<(), ImageError> {
        let unpacked = unpack(stored.packing, packed, content, zstd);
        let is_right = unpacked.is_some() && self.key.of_block(content) == stored.digest;
        if is_right { Ok(()) } else { Err(self.damaged_block(block)) }
    }

    /// Whether the content from `offset` on is this. Whole blocks are known by their digests,
    /// without a read; a part of one is read.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at).
    pub fn holds(&self, offset: u64, content: &[u8]) -> Result<bool, ImageError> {
        let block_bytes = self.block_bytes() as usize;
        let end = offset.saturating_add(content.len() as u64);
        if end > self.len_bytes() {
            return Err(ImageError::BeyondEnd {
                path: self.path.clone(),
                offset,
                end,
                len: self.len_bytes(),
            });
        }
        let mut done = 0;
        let mut room = vec![0; block_bytes];
        while done < content.len() {
            let at = offset + done as u64;
            let within = (at % block_bytes as u64) as usize;
            let len = (block_bytes - within).min(content.len() - done);
            let part = &content[done..done + len];
            let digest = if len == block_bytes { self.digest_of(at / block_bytes as u64)? } else { None };
            let same = match digest {
                Some(digest) => self.key.of_block(part) == digest,
                None => {
                    self.read_at(at, &mut room[..len])?;
                    room[..len] == *part
                }
            };
            if !same {
                return Ok(false);
            }
            done += len;
        }
        Ok(true)
    }

    /// The digest of a block's content, if it is stored, here or in a layer below.
    pub(crate) fn digest_of(&self, block: u64) -> Result<Option<BlockDigest>, ImageError> {
        match (self.entry(block)?, &self.base) {
            (Entry::Stored { digest, .. }, _) => Ok(Some(digest)),
            (Entry::Base, Some(base)) => base.digest_of(block),
            _ => Ok(None),
        }
    }

    /// Reads the packed bytes of a block, for a copy of them elsewhere. None if it is not stored in
    /// this image.
    pub(crate) fn packed_block(&self, block: u64) -> Result<Option<Vec<u8>>, ImageError> {
        let Entry::Stored { place, len, .. } = self.entry(block)? else { return Ok(None) };
        let mut packed = vec![0; len as usize];
        self.read_packed(place, &mut packed).map(|()| Some(packed))
    }

    /// Unpacks a copy of a block's packed bytes, and checks it as if they were here.
    pub(crate) fn unpack_copy(
        &self,
        block: u64,
        packed: &[u8],
        content: &mut [u8],
        zstd: &mut Decompressor,
    ) -> Result<(), ImageError> {
        match self.entry(block)? {
            Entry::Stored { packing, place, len, digest } if len as usize == packed.len() => {
                self.unpack(block, &Stored { packing, place, len, digest }, packed, content, zstd)
            }
            _ => Err(self.damaged_block(block)),
        }
    }
}

/// Fills with a repeated word, of which `within` bytes came before.
fn fill(part: &mut [u8], word: [u8; 8], within: usize) {
    let word = super::turned(word, within as u64);
    for bytes in part.chunks_mut(word.len()) {
        bytes.copy_from_slice(&word[..bytes.len()]);
    }
}
