//! The index of an image: the digests of its chunks, and the places of those that are there.
//!
//! A chunk has the entries of 256 blocks. One that is zero all over is not there, and neither is
//! one that is all the base's: reserved values stand for them in the table. So sparse memory has a
//! small index.

use super::digest::ROOT_BYTES;
use super::entry::ENTRY_BYTES;
use super::header::Header;
use super::runs::RUN_BYTES;
use super::{INDEX_BYTES_MOST, Root};

/// Blocks that have their entries together.
pub const CHUNK_BLOCKS: u64 = 256;

/// Bytes of a chunk's entries. Those of blocks beyond the end are zero.
pub const CHUNK_BYTES: usize = CHUNK_BLOCKS as usize * ENTRY_BYTES;

/// In the table: all blocks of the chunk are zero.
pub const ALL_ZERO: Root = Root([0; ROOT_BYTES]);

/// In the table: all blocks of the chunk are the base's.
pub const ALL_BASE: Root = Root([0xff; ROOT_BYTES]);

/// Where the parts of an index lie in it, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// How many chunks the table has digests of. It lies at the beginning.
    pub chunks: usize,
    /// Where the received map begins.
    pub runs_at: usize,
    /// Where the chunks begin: the end of the part that the root covers.
    pub chunks_at: usize,
    /// How many chunks are there.
    pub present: usize,
}

impl Layout {
    /// That of the image with this header. None if its lengths don't fit each other.
    #[must_use]
    pub fn new(header: &Header) -> Option<Self> {
        let chunks = header.blocks().div_ceil(CHUNK_BLOCKS);
        let runs_at = chunks.checked_mul(ROOT_BYTES as u64)?;
        let chunks_at = header.runs.checked_mul(RUN_BYTES as u64)?.checked_add(runs_at)?;
        let rest = header.index_bytes.checked_sub(chunks_at)?;
        let present = rest / CHUNK_BYTES as u64;
        let fits = rest.is_multiple_of(CHUNK_BYTES as u64) && present <= chunks;
        let small = |n: u64| (n <= INDEX_BYTES_MOST).then_some(n as usize);
        fits.then_some(())?;
        Some(Self {
            chunks: small(chunks)?,
            runs_at: small(runs_at)?,
            chunks_at: small(chunks_at)?,
            present: small(present)?,
        })
    }

    /// The places of all chunks among those that are there, by the table. None if the table tells
    /// of more or fewer than there are.
    #[must_use]
    pub fn places(&self, table: &[u8]) -> Option<Vec<Option<u32>>> {
        let mut next = 0u32;
        let places = table.as_chunks::<ROOT_BYTES>().0.iter().map(|digest| {
            let is_there = *digest != ALL_ZERO.0 && *digest != ALL_BASE.0;
            is_there.then(|| {
                next += 1;
                next - 1
            })
        });
        let places: Vec<_> = places.collect();
        (places.len() == self.chunks && next as usize == self.present).then_some(places)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(len_bytes: u64, runs: u64, index_bytes: u64) -> Header {
        Header {
            block_bytes: 4096,
            len_bytes,
            index_at: 4096,
            index_bytes,
            runs,
            key_check: [0; 16],
            base: None,
            has_parts: false,
            root: Root::default(),
        }
    }

    #[test]
    fn parts_fill_the_index_exactly() {
        let layout = Layout::new(&header((2 << 20) + 1, 2, 3 * 32 + 2 * 16 + 6144)).expect("a layout");
        assert_eq!(layout, Layout { chunks: 3, runs_at: 96, chunks_at: 128, present: 1 });
        for wrong in [
            header((2 << 20) + 1, 2, 3 * 32 + 2 * 16 + 6143),
            header((2 << 20) + 1, 2, 3 * 32 + 2 * 16 + 4 * 6144),
            header((2 << 20) + 1, 2, 3 * 32),
            header((2 << 20) + 1, u64::MAX, 3 * 32),
        ] {
            assert_eq!(Layout::new(&wrong), None);
        }
        let mut table = [7; 96];
        table[..32].fill(0);
        table[64..].fill(0xff);
        assert_eq!(layout.places(&table), Some(vec![None, Some(0), None]));
        assert_eq!(layout.places(&[7; 96]), None);
        assert_eq!(layout.places(&[0; 96]), None);
    }
}
