//! The header of an image file.
//!
//! It has a plain checksum, which notices damage without the key, and the root, which proves it
//! with the key.

use std::fmt;

use super::digest::{BlockDigest, Key, PartsDigest, ROOT_BYTES, Root};
use super::{INDEX_BYTES_MOST, LEN_BYTES_MOST, index, is_block_size};
use crate::migrate::fields::{Put, Take};

/// Bytes of the header's fields.
pub const HEADER_BYTES: usize = 8 + 2 + 2 + 4 + 4 * 8 + 16 + 2 * ROOT_BYTES + NAME_ROOM + CHECKSUM_BYTES;

/// Where blocks may begin in the file.
pub const BLOCKS_BEGIN: u64 = 4096;

/// The latest version of the format that this code reads. An image is of the first version that has
/// all that it uses: 2 with blocks in [parts](super::entry::Packing::Parts), 1 without.
pub const VERSION: u16 = 2;

const MAGIC: [u8; 8] = *b"\x89PAGODA\n";
const CHECKSUM_BYTES: usize = 8;
/// A length, and the longest file name that Linux has.
const NAME_ROOM: usize = 256;
const FLAG_DIFFERENCE: u16 = 1;

/// Where the root lies in the header: all but it and the checksum is covered by it.
const ROOT_AT: usize = HEADER_BYTES - CHECKSUM_BYTES - ROOT_BYTES;

/// Why bytes are not the header of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderError {
    /// It does not begin as one.
    NotAnImage,
    /// It is of another version.
    Version(u16),
    /// It is damaged.
    Damaged,
}

/// The fields of a header.
#[derive(Clone, PartialEq, Eq)]
pub struct Header {
    /// The size of a block, in bytes.
    pub block_bytes: u32,
    /// The length of the content, in bytes. The last block may be there in part.
    pub len_bytes: u64,
    /// Where the index begins in the file.
    pub index_at: u64,
    /// How many bytes the index has.
    pub index_bytes: u64,
    /// How many runs the received map has.
    pub runs: u64,
    /// Tells whether a key is the image's.
    pub key_check: BlockDigest,
    /// The image that this one is a difference to.
    pub base: Option<Base>,
    /// Blocks may be packed in parts.
    pub has_parts: bool,
    /// The digest of the image.
    pub root: Root,
}

/// The name of another image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    /// Its digest.
    pub root: Root,
    /// Its file's name, where it was when the difference was made. It lies in the same directory.
    pub file_name: Vec<u8>,
}

impl fmt::Debug for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an image of {} bytes in blocks of {}", self.len_bytes, self.block_bytes)
    }
}

impl Header {
    /// Its bytes. Panics if the name of the base is longer than a file's name can be.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut name = [0; NAME_ROOM];
        let base = self.base.as_ref();
        if let Some(base) = base {
            name[0] = u8::try_from(base.file_name.len()).expect("a file's name is shorter");
            name[1..=base.file_name.len()].copy_from_slice(&base.file_name);
        }
        Put::<HEADER_BYTES>::new()
            .bytes(MAGIC)
            .u16(1 + u16::from(self.has_parts))
            .u16(if base.is_some() { FLAG_DIFFERENCE } else { 0 })
            .u32(self.block_bytes)
            .u64(self.len_bytes)
            .u64(self.index_at)
            .u64(self.index_bytes)
            .u64(self.runs)
            .bytes(self.key_check)
            .bytes(base.map_or(Root::default(), |base| base.root).0)
            .bytes(name)
            .bytes(self.root.0)
            .seal()
    }

    /// The header of these bytes.
    ///
    /// # Errors
    /// If they are none, with lengths that fit each other.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, HeaderError> {
        let mut take = Take::new(bytes);
        if take.bytes::<8>() != MAGIC {
            return Err(HeaderError::NotAnImage);
        }
        let version = take.u16();
        if !(1..=VERSION).contains(&version) {
            return Err(HeaderError::Version(version));
        }
        let is_difference = take.u16() == FLAG_DIFFERENCE;
        let block_bytes = take.u32();
        let [len_bytes, index_at, index_bytes, runs] = [(); 4].map(|()| take.u64());
        let key_check = take.bytes();
        let base_root = Root(take.bytes());
        let name: [u8; NAME_ROOM] = take.bytes();
        let root = Root(take.bytes());
        let file_name = name[1..=usize::from(name[0])].to_vec();
        let base = is_difference.then_some(Base { root: base_root, file_name });
        let has_parts = version >= 2;
        let header =
            Self { block_bytes, len_bytes, index_at, index_bytes, runs, key_check, base, has_parts, root };
        if header.encode() != *bytes || !header.fits() {
            return Err(HeaderError::Damaged);
        }
        Ok(header)
    }

    /// Whether lengths are in their bounds and fit each other.
    fn fits(&self) -> bool {
        // In this order: sizes of the index are computed of a length and a block size that are.
        is_block_size(self.block_bytes)
            && self.len_bytes > 0
            && self.len_bytes <= LEN_BYTES_MOST
            && self.index_at >= BLOCKS_BEGIN
            && self.index_at.checked_add(self.index_bytes).is_some()
            && self.index_bytes <= INDEX_BYTES_MOST
            && index::Layout::new(self).is_some()
    }

    /// How many blocks there are.
    #[must_use]
    pub const fn blocks(&self) -> u64 {
        self.len_bytes.div_ceil(self.block_bytes as u64)
    }

    /// The root of an image with this header and the beginning of its index: the table and the
    /// received map.
    #[must_use]
    pub fn root_of(&self, key: &Key, begin: &[u8]) -> Root {
        let mut root = self.begin_root(key);
        root.add(begin);
        root.end()
    }

    /// Begins the same root: the beginning of the index is to be added.
    #[must_use]
    pub fn begin_root(&self, key: &Key) -> PartsDigest {
        let mut root = key.begin();
        root.add(&self.encode()[..ROOT_AT]);
        root
    }
}

#[cfg(test)]
#[path = "header_test.rs"]
mod tests;
