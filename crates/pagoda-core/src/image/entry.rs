//! The entry of one block: where its content is, and the digest of the content.
//!
//! 24 bytes: a word with the kind (3 bits), the packed length (17) and the place in the file (44),
//! and 16 bytes of digest, or the word that fills the block. Unused bits are zero, so that an entry
//! has one form only.

use super::digest::{BLOCK_DIGEST_BYTES, BlockDigest};

/// Bytes of an entry.
pub const ENTRY_BYTES: usize = 8 + BLOCK_DIGEST_BYTES;

const KIND_BITS: u32 = 3;
const LEN_BITS: u32 = 17;

/// One past the last place that an entry can name, in bytes.
pub const PLACE_END: u64 = 1 << (u64::BITS - KIND_BITS - LEN_BITS);

/// The form of a block in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// The content itself.
    None,
    /// One LZ4 block.
    Lz4,
    /// One Zstandard frame.
    Zstd,
    /// Each 4 KiB on its own, as a store packs them. Only in an image whose header says so.
    Parts,
}

/// The content of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Zeroes.
    Zero,
    /// This word over and over, from the first byte on. Not zero.
    Same([u8; 8]),
    /// That of the same block of the base.
    Base,
    /// In the file.
    Stored {
        /// How it is packed.
        packing: Packing,
        /// Where it begins in the file.
        place: u64,
        /// How many bytes it has there, never none.
        len: u32,
        /// Of the content.
        digest: BlockDigest,
    },
}

impl Entry {
    /// Its bytes. Panics if a place or a length is out of reach, which is the writer's to know.
    #[must_use]
    pub fn encode(self) -> [u8; ENTRY_BYTES] {
        let mut value = [0; BLOCK_DIGEST_BYTES];
        let word = match self {
            Self::Zero => 0,
            Self::Same(word) => {
                value[..word.len()].copy_from_slice(&word);
                1
            }
            Self::Base => 2,
            Self::Stored { packing, place, len, digest } => {
                value = digest;
                let kind = match packing {
                    Packing::None => 3,
                    Packing::Lz4 => 4,
                    Packing::Zstd => 5,
                    Packing::Parts => 6,
                };
                assert!(place < PLACE_END && len < 1 << LEN_BITS, "a block at {place}");
                place << (KIND_BITS + LEN_BITS) | u64::from(len) << KIND_BITS | kind
            }
        };
        let mut bytes = [0; ENTRY_BYTES];
        bytes[..8].copy_from_slice(&word.to_le_bytes());
        bytes[8..].copy_from_slice(&value);
        bytes
    }

    /// The entry of these bytes, of an image with blocks of `block_bytes`. None if they are none.
    #[must_use]
    pub fn decode(bytes: &[u8; ENTRY_BYTES], block_bytes: u32) -> Option<Self> {
        let (word, value) = bytes.split_first_chunk()?;
        let word = u64::from_le_bytes(*word);
        let digest: BlockDigest = value.try_into().ok()?;
        let len = (word >> KIND_BITS) as u32 & ((1 << LEN_BITS) - 1);
        let place = word >> (KIND_BITS + LEN_BITS);
        let stored = |packing| Self::Stored { packing, place, len, digest };
        let is_packed = len > 0 && len < block_bytes;
        let entry = match word & ((1 << KIND_BITS) - 1) {
            0 => Self::Zero,
            1 => Self::Same(*value.first_chunk()?),
            2 => Self::Base,
            3 if len == block_bytes => stored(Packing::None),
            4 if is_packed => stored(Packing::Lz4),
            5 if is_packed => stored(Packing::Zstd),
            6 if is_packed => stored(Packing::Parts),
            _ => return None,
        };
        // Only bytes that encode to themselves are an entry: that checks unused bits.
        (entry.encode() == *bytes && entry != Self::Same([0; 8])).then_some(entry)
    }

    /// Whether it is packed in parts.
    #[must_use]
    pub const fn is_in_parts(&self) -> bool {
        matches!(self, Self::Stored { packing: Packing::Parts, .. })
    }

    /// Whether these bytes name a place in the file, if they are an entry at all.
    #[must_use]
    pub fn names_a_place(bytes: &[u8; ENTRY_BYTES]) -> bool {
        u32::from(bytes[0]) & ((1 << KIND_BITS) - 1) >= 3
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_a_block_in_the_file_names_a_place() {
        for packing in [Packing::None, Packing::Lz4, Packing::Zstd, Packing::Parts] {
            let stored = Entry::Stored { packing, place: 7, len: 4096, digest: [3; 16] };
            assert!(Entry::names_a_place(&stored.encode()), "{packing:?}");
        }
        for other in [Entry::Zero, Entry::Same([9; 8]), Entry::Base] {
            assert!(!Entry::names_a_place(&other.encode()), "{other:?}");
        }
    }

    #[test]
    fn entries_read_back() {
        let stored = |packing, len| Entry::Stored { packing, place: PLACE_END - 1, len, digest: [3; 16] };
        let all = [
            Entry::Zero,
            Entry::Same([1, 2, 3, 4, 5, 6, 7, 8]),
            Entry::Base,
            stored(Packing::None, 65536),
            stored(Packing::Lz4, 65535),
            stored(Packing::Zstd, 1),
            stored(Packing::Parts, 4096),
        ];
        for entry in all {
            assert_eq!(Entry::decode(&entry.encode(), 65536), Some(entry));
        }
        for wrong in [stored(Packing::None, 65535), stored(Packing::Lz4, 65536), stored(Packing::Zstd, 0)] {
            assert_eq!(Entry::decode(&wrong.encode(), 65536), None);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_entry_in_one_form_or_none(mut bytes: [u8; ENTRY_BYTES], kind in 0u8..8) {
            bytes[0] = bytes[0] & !7 | kind;
            if let Some(entry) = Entry::decode(&bytes, 16384) {
                prop_assert_eq!(entry.encode(), bytes);
            }
        }
    }
}
