//! The codecs, behind one pair of calls: a packer and an unpacker for each channel, with contexts
//! that are reused.
//!
//! Unpacking is of bytes that a stranger may have written. It fills exactly its output buffer, or
//! fails: no decoder here allocates by a length in its input, or writes beyond the buffer.

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};
use pagoda_core::migrate::handshake::Codec;
use pagoda_linux::codec::lz4::{self, Lz4};

/// Memory goes over a wire that is faster than stronger levels are.
const LEVEL: u32 = 1;

/// Packs for one channel.
pub(crate) enum Packer {
    None,
    Lz4(Box<Lz4>),
    Zlib(Compress),
    Zstd(zstd::bulk::Compressor<'static>),
}

impl Packer {
    pub(crate) fn new(codec: Codec) -> std::io::Result<Self> {
        Ok(match codec {
            Codec::None => Self::None,
            Codec::Lz4 => Self::Lz4(Box::default()),
            Codec::Zlib => Self::Zlib(Compress::new(Compression::new(LEVEL), true)),
            Codec::Zstd => Self::Zstd(zstd::bulk::Compressor::new(LEVEL as i32)?),
        })
    }

    /// Packs `content` into the front of `into`, and returns the packed length. None if it does not
    /// fit.
    pub(crate) fn pack(&mut self, content: &[u8], into: &mut [u8]) -> Option<usize> {
        match self {
            Self::None => None,
            Self::Lz4(lz4) => lz4.compress(content, into),
            Self::Zlib(zlib) => {
                zlib.reset();
                match zlib.compress(content, into, FlushCompress::Finish) {
                    Ok(Status::StreamEnd) => usize::try_from(zlib.total_out()).ok(),
                    _ => None,
                }
            }
            Self::Zstd(zstd) => zstd.compress_to_buffer(content, into).ok(),
        }
    }
}

/// Unpacks for one channel.
pub(crate) enum Unpacker {
    None,
    Lz4,
    Zlib(Decompress),
    Zstd(zstd::bulk::Decompressor<'static>),
}

impl Unpacker {
    pub(crate) fn new(codec: Codec) -> std::io::Result<Self> {
        Ok(match codec {
            Codec::None => Self::None,
            Codec::Lz4 => Self::Lz4,
            Codec::Zlib => Self::Zlib(Decompress::new(true)),
            Codec::Zstd => Self::Zstd(zstd::bulk::Decompressor::new()?),
        })
    }

    /// Unpacks `packed`. None if it is not the packed form of exactly `into.len()` bytes; `into`
    /// may hold anything then.
    pub(crate) fn unpack(&mut self, packed: &[u8], into: &mut [u8]) -> Option<()> {
        let unpacked = match self {
            Self::None => return None,
            Self::Lz4 => return lz4::decompress(packed, into),
            Self::Zlib(zlib) => {
                zlib.reset(true);
                let status = zlib.decompress(packed, into, FlushDecompress::Finish);
                let whole = status.is_ok_and(|status| status == Status::StreamEnd);
                let used_up = zlib.total_in() == packed.len() as u64;
                (whole && used_up).then_some(usize::try_from(zlib.total_out()).ok()?)?
            }
            Self::Zstd(zstd) => zstd.decompress_to_buffer(packed, into).ok()?,
        };
        (unpacked == into.len()).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn packed_bytes_unpack_to_themselves_and_others_are_refused_or_fit(
            pages in 1usize..20, seed: u64, foreign: Vec<u8>, at: prop::sample::Index
        ) {
            let content: Vec<u8> =
                (0..pages * 4096).map(|i| (seed.wrapping_mul(i as u64 / 24) >> 40) as u8).collect();
            for codec in Codec::ALL {
                let (mut packer, mut unpacker) = (Packer::new(codec).expect("memory"), Unpacker::new(codec).expect("memory"));
                let (mut packed, mut back) = (vec![0; content.len()], vec![1; content.len()]);
                // Twice: the second time with used contexts.
                for _ in 0..2 {
                    let Some(len) = packer.pack(&content, &mut packed) else {
                        prop_assert!(codec == Codec::None, "{codec} does not pack");
                        break;
                    };
                    prop_assert_eq!(unpacker.unpack(&packed[..len], &mut back), Some(()));
                    prop_assert_eq!(&back, &content);
                    prop_assert_eq!(unpacker.unpack(&packed[..len - 1], &mut back), None);
                    prop_assert_eq!(unpacker.unpack(&packed[..len], &mut back[..content.len() - 1]), None);
                    prop_assert_eq!(unpacker.unpack(&packed[..len], &mut vec![0; content.len() + 1]), None);
                    let mut damaged = packed[..len].to_vec();
                    damaged[at.index(len)] ^= 1;
                    let _ = unpacker.unpack(&damaged, &mut back);
                }
                let _ = unpacker.unpack(&foreign, &mut back);
                prop_assert_eq!(packer.pack(&content, &mut packed[..3]), None);
            }
        }
    }
}
