//! The blocks of an image that were touched first, in order, with a copy of their packed bytes.
//!
//! It lies beside the image, as `NAME.ws`, so that the next restore has all of it by large reads in
//! the order in which it will be needed. Only the order is taken from it on trust of its digest:
//! content is checked by the image's own digests. A set that is missing, damaged or another image's
//! is as if there were none. This module must never give content of its own.
//!
//! ```text
//!   0    header: magic, version, count, length of the packed bytes, the image's root, a digest
//!   96   entries of 16 bytes: block, time of the touch, packed length
//!   ...  packed bytes, in the same order
//! ```

use std::ffi::OsString;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};

use pagoda_core::image::digest::ROOT_BYTES;
use pagoda_linux::codec::zstd::Decompressor;
use pagoda_linux::io::unfinished_file::UnfinishedFile;

use crate::backing::Backing;
use crate::error::ImageError;
use crate::read::Image;

/// Added to the name of the image.
const SUFFIX: &str = ".ws";

const MAGIC: [u8; 8] = *b"PAGODAWS";
const VERSION: u64 = 1;
const HEADER_BYTES: usize = 8 + 3 * 8 + 2 * ROOT_BYTES;
const ENTRY_BYTES: usize = 16;

/// The most touches that are kept: 16 GiB in blocks of 16 KiB. Later ones are left out.
pub const TOUCHES_MOST: usize = 1 << 20;

/// The first touch of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    /// Which block of the image.
    pub block: u64,
    /// When, in microseconds after the restore.
    pub at_us: u32,
}

/// A recorded working set.
#[derive(Debug)]
pub struct WorkingSet {
    file: Backing,
    touches: Vec<Touch>,
    /// Where the packed bytes of each touch begin in the file, and the end of the last.
    places: Vec<u64>,
}

fn path_of(image: &Path) -> PathBuf {
    let mut name = OsString::from(image);
    name.push(SUFFIX);
    name.into()
}

fn header(image: &Image, entries: &[u8], packed_bytes: u64) -> [u8; HEADER_BYTES] {
    let count = (entries.len() / ENTRY_BYTES) as u64;
    let mut bytes = [0; HEADER_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    for (i, word) in [VERSION, count, packed_bytes].into_iter().enumerate() {
        bytes[8 + i * 8..][..8].copy_from_slice(&word.to_le_bytes());
    }
    bytes[32..64].copy_from_slice(&image.root().0);
    let digest = image.key().of_parts(&[b"working set", &bytes[..64], entries]);
    bytes[64..96].copy_from_slice(&digest.0);
    bytes
}

impl WorkingSet {
    /// The set beside an image.
    pub(crate) fn load(image: &Image) -> Option<Self> {
        let file = image.open_suffixed(&path_of(image.path()), SUFFIX)?;
        let found = Self::read_index(image, &file);
        if found.is_none() {
            // A server may have a whole one later.
            file.forget(0..u64::MAX);
        }
        let (touches, places) = found?;
        Some(Self { file, touches, places })
    }

    /// The touches, and where the packed bytes of each begin.
    fn read_index(image: &Image, file: &Backing) -> Option<(Vec<Touch>, Vec<u64>)> {
        let file_bytes = file.len_bytes().ok()?;
        let mut found = [0; HEADER_BYTES];
        file.read_exact_at(&mut found, 0).ok()?;
        let count = u64::from_le_bytes(*found[16..].first_chunk()?);
        let count = usize::try_from(count).ok().filter(|count| *count <= TOUCHES_MOST)?;
        let mut entries = vec![0; count * ENTRY_BYTES];
        file.read_exact_at(&mut entries, HEADER_BYTES as u64).ok()?;
        let (mut touches, mut places) = (Vec::new(), Vec::new());
        let begin = (HEADER_BYTES + entries.len()) as u64;
        let mut at = begin;
        for entry in entries.as_chunks::<ENTRY_BYTES>().0 {
            let block = u64::from_le_bytes(*entry.first_chunk()?);
            let at_us = u32::from_le_bytes(*entry[8..].first_chunk()?);
            let len = u32::from_le_bytes(*entry[12..].first_chunk()?);
            if block >= image.len_bytes().div_ceil(u64::from(image.block_bytes())) {
                return None;
            }
            touches.push(Touch { block, at_us });
            places.push(at);
            at += u64::from(len);
        }
        places.push(at);
        (at <= file_bytes && header(image, &entries, at - begin) == found).then_some(())?;
        Some((touches, places))
    }

    /// Records these touches beside an image, in this order, in place of an earlier set. Blocks
    /// that are not stored in the image itself cost no read, and are left out.
    ///
    /// # Errors
    /// If the image can't be read, or the set not be written.
    pub fn record(image: &Image, touches: &[Touch]) -> Result<(), ImageError> {
        let path = path_of(image.path());
        if image.is_remote() {
            let error = std::io::Error::other("it is on a server; record with a copy of the image");
            return Err(ImageError::write(&path, error));
        }
        let (mut entries, mut packed) = (Vec::new(), Vec::new());
        for touch in &touches[..touches.len().min(TOUCHES_MOST)] {
            let Some(bytes) = image.packed_block(touch.block)? else { continue };
            entries.extend_from_slice(&touch.block.to_le_bytes());
            entries.extend_from_slice(&touch.at_us.to_le_bytes());
            entries.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            packed.extend_from_slice(&bytes);
        }
        let header = header(image, &entries, packed.len() as u64);
        let written = UnfinishedFile::create_to_replace(&path).and_then(|unfinished| {
            let mut file = unfinished.file();
            file.write_all(&header)?;
            file.write_all(&entries)?;
            file.write_all(&packed)?;
            unfinished.publish()
        });
        written.map_err(|error| ImageError::write(&path, error))
    }

    /// The touches, in their order.
    #[must_use]
    pub fn touches(&self) -> &[Touch] {
        &self.touches
    }

    /// The bytes in the file that some touches in a row have.
    #[must_use]
    pub fn packed_bytes(&self, range: Range<usize>) -> u64 {
        self.places[range.end] - self.places[range.start]
    }

    /// Reads some touches in a row by one read, and calls `each` with the content of each block,
    /// checked by the image.
    ///
    /// # Errors
    /// If they can't be read, or one is damaged: its block is not given then.
    ///
    /// # Panics
    /// If there are no such touches.
    pub fn read(
        &self,
        image: &Image,
        range: Range<usize>,
        each: &mut dyn FnMut(Touch, &[u8]),
    ) -> Result<(), ImageError> {
        let mut part = self.read_part(image, range.clone())?;
        range.into_iter().try_for_each(|index| {
            each(self.touches[index], part.unpack(index)?);
            Ok(())
        })
    }

    /// Reads the packed bytes of some touches in a row by one read.
    ///
    /// # Errors
    /// If they can't be read.
    ///
    /// # Panics
    /// If there are no such touches.
    pub fn read_part<'a>(&'a self, image: &'a Image, range: Range<usize>) -> Result<SetPart<'a>, ImageError> {
        let begin = self.places[range.start];
        let mut packed = vec![0; self.packed_bytes(range) as usize];
        let unread = |error| self.file.unread(&path_of(image.path()), error);
        self.file.read_exact_at(&mut packed, begin).map_err(unread)?;
        let content = vec![0; image.block_bytes() as usize];
        Ok(SetPart { set: self, image, begin, packed, content, zstd: Decompressor::new() })
    }
}

/// The packed bytes of some touches in a row.
pub struct SetPart<'a> {
    set: &'a WorkingSet,
    image: &'a Image,
    begin: u64,
    packed: Vec<u8>,
    content: Vec<u8>,
    zstd: Decompressor,
}

impl SetPart<'_> {
    /// The content of the block of a touch, checked by the image.
    ///
    /// # Errors
    /// If it is damaged.
    ///
    /// # Panics
    /// If the touch is not of this part.
    pub fn unpack(&mut self, index: usize) -> Result<&[u8], ImageError> {
        let Self { set, image, begin, packed, content, zstd } = self;
        let place = set.places[index]..set.places[index + 1];
        let own = (place.start - *begin) as usize..(place.end - *begin) as usize;
        let unpacked = image.unpack_copy(set.touches[index].block, &packed[own], content, zstd);
        unpacked.inspect_err(|_| set.file.forget(place))?;
        Ok(content)
    }
}
