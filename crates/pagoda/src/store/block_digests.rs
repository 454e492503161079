//! The places of the blocks of a packed page in the file, and a digest of each. So one block can be
//! read alone, and a written one is told from a clean one without reading the file.
//!
//! They are noted when the page goes to the file or is read from there, and hold for as long as the
//! object has its number. Packing is a function of the content: equal blocks have equal digests, by
//! the key of the store ([`crate::crypto::digest`]). A block without a note is not known. This
//! module must never tell a block's digest that was noted of another object: a number that is given
//! out anew is forgotten first.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use pagoda_linux::codec::pack::{BLOCK, header_bytes, room};

use crate::crypto::digest::Digester;
use crate::store::slab_table::ByNumber;

/// Lengths in a word.
const LENGTHS: usize = 4;

/// Digests and lengths of packed blocks, by object: a digest for each block, and then the lengths.
pub(super) struct BlockDigests {
    records: ByNumber<AtomicU64>,
    page: usize,
    blocks: usize,
}

impl BlockDigests {
    /// For pages of so many bytes.
    pub fn new(page: usize) -> Self {
        let blocks = page / BLOCK;
        Self { records: ByNumber::new(blocks + blocks.div_ceil(LENGTHS)), page, blocks }
    }

    /// Notes the packed blocks of an object, in the order of its page.
    pub fn note<'a>(&self, id: u32, packed: impl Iterator<Item = &'a [u8]>, digester: &Digester) {
        let record = self.records.ensure(id);
        let (digests, lengths) = record.split_at(self.blocks);
        lengths.iter().for_each(|lengths| lengths.store(0, Ordering::Relaxed));
        for (block, (digest, packed)) in digests.iter().zip(packed).enumerate() {
            digest.store(digester.of(packed), Ordering::Relaxed);
            let length = (packed.len() as u64) << (block % LENGTHS * 16);
            lengths[block / LENGTHS].fetch_or(length, Ordering::Relaxed);
        }
    }

    /// The notes of an object, as [`words`](Self::words) words, for a store with the same key:
    /// zeroes if there are none.
    pub fn noted(&self, id: u32) -> impl Iterator<Item = u64> {
        let record = self.records.get(id);
        (0..self.words()).map(move |at| record.map_or(0, |record| record[at].load(Ordering::Relaxed)))
    }

    /// How many words there are of each object.
    pub fn words(&self) -> usize {
        self.blocks + self.blocks.div_ceil(LENGTHS)
    }

    /// Enters the notes of another store.
    pub fn enter(&self, id: u32, noted: impl Iterator<Item = u64>) {
        self.records
            .ensure(id)
            .iter()
            .zip(noted)
            .for_each(|(word, noted)| word.store(noted, Ordering::Relaxed));
    }

    /// Where a block of an object lies in its packed bytes, and its digest.
    pub fn place(&self, id: u32, block: usize) -> Option<(Range<usize>, u64)> {
        let (digests, lengths) = self.records.get(id)?.split_at(self.blocks);
        let length = |block: usize| {
            let word = lengths[block / LENGTHS].load(Ordering::Relaxed);
            (word >> (block % LENGTHS * 16)) as usize & 0xffff
        };
        let digest = digests.get(block)?.load(Ordering::Relaxed);
        let from =
            header_bytes(self.page) + (0..block).map(|block| room(length(block), self.page)).sum::<usize>();
        (digest != 0).then(|| (from..from + length(block), digest))
    }

    /// Forgets the notes of an object whose content has changed.
    pub fn forget(&self, id: u32) {
        self.records.get(id).into_iter().flatten().for_each(|word| word.store(0, Ordering::Relaxed));
    }

    /// Whether an object's block is known to have this digest.
    pub fn is(&self, id: u32, block: usize, digest: u64) -> bool {
        let known = self.records.get(id).and_then(|record| record[..self.blocks].get(block));
        known.is_some_and(|known| known.load(Ordering::Relaxed) == digest && digest != 0)
    }

    /// Whether anything is known of an object.
    pub fn knows(&self, id: u32) -> bool {
        self.records.get(id).and_then(<[_]>::first).is_some_and(|first| first.load(Ordering::Relaxed) != 0)
    }

    /// Bytes that they take.
    pub fn bytes(&self) -> u64 {
        self.records.bytes()
    }
}
