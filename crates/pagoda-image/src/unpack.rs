//! Unpacking a block in each of its forms.
//!
//! The bytes may be a stranger's: nothing is read or written out of bounds, and the caller checks
//! the content by its digest.

use pagoda_core::image::entry::Packing;
use pagoda_linux::codec::zstd::Decompressor;
use pagoda_linux::codec::{lz4, pack};

/// Unpacks a block of `content.len()` bytes. None if it is not one of that length; `content` may
/// hold anything then.
pub(crate) fn unpack(
    packing: Packing,
    packed: &[u8],
    content: &mut [u8],
    zstd: &mut Decompressor,
) -> Option<()> {
    match packing {
        Packing::None if packed.len() == content.len() => {
            content.copy_from_slice(packed);
            Some(())
        }
        Packing::None => None,
        Packing::Lz4 => lz4::decompress(packed, content),
        Packing::Zstd => zstd.decompress(packed, content),
        Packing::Parts => pack::unpack_blocks(packed, content, zstd),
    }
}
