//! Where the blocks of a packed page in the file lie, and a digest of each: so one can be read alone, and one that was written
//! since is told from one that was not, without reading the file.
//!
//! They are noted when the page goes to the file or comes from there, and hold for as long as the object has its number. Packing
//! is a function of the content, so that an equal block has an equal digest, and two different ones the same once in 2^64. What
//! is not noted says nothing. Records are made for many objects at a time, when the first of them needs one.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use pagoda_core::blocks::NUMBERS;
use pagoda_linux::pack::{BLOCK, header_bytes};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Objects whose records are allocated together: 80 KiB of them for base pages of 64 KiB.
const LEAF: u32 = 512;

type Leaf = OnceLock<Box<[AtomicU64]>>;

/// Lengths in a word.
const LENGTHS: usize = 4;

/// Digests and lengths of packed blocks, by object.
pub(super) struct BlockDigests {
    leaves: Box<[OnceLock<Box<[Leaf]>>]>,
    page: usize,
    blocks: usize,
    /// Words of a record: a digest for each block, and then the lengths.
    words: usize,
    seed: u64,
}

/// Leaves whose places are allocated together, 64 KiB of them.
const BRANCH: u32 = 4096;

impl BlockDigests {
    /// For pages of so many bytes.
    pub fn new(page: usize, seed: u64) -> Self {
        let branches = NUMBERS / LEAF / BRANCH;
        let blocks = page / BLOCK;
        let words = blocks + blocks.div_ceil(LENGTHS);
        Self { leaves: (0..branches).map(|_| OnceLock::new()).collect(), page, blocks, words, seed }
    }

    fn leaf(&self, id: u32) -> Option<&Leaf> {
        let branch = self.leaves.get((id / LEAF / BRANCH) as usize)?.get()?;
        branch.get((id / LEAF % BRANCH) as usize)
    }

    fn of(&self, id: u32) -> Option<&[AtomicU64]> {
        let at = (id % LEAF) as usize * self.words;
        self.leaf(id)?.get()?.get(at..at + self.words)
    }

    /// Of a packed block. Never 0, which says that there is none.
    pub fn digest(&self, packed: &[u8]) -> u64 {
        xxh3_64_with_seed(packed, self.seed).max(1)
    }

    /// Notes the packed blocks of an object, in the order of its page.
    pub fn note<'a>(&self, id: u32, packed: impl Iterator<Item = &'a [u8]>) {
        let Some(branch) = self.leaves.get((id / LEAF / BRANCH) as usize) else { return };
        let branch = branch.get_or_init(|| (0..BRANCH).map(|_| OnceLock::new()).collect());
        let words = LEAF as usize * self.words;
        branch[(id / LEAF % BRANCH) as usize].get_or_init(|| (0..words).map(|_| AtomicU64::new(0)).collect());
        let Some(record) = self.of(id) else { return };
        let (digests, lengths) = record.split_at(self.blocks);
        lengths.iter().for_each(|lengths| lengths.store(0, Ordering::Relaxed));
        for (block, (digest, packed)) in digests.iter().zip(packed).enumerate() {
            digest.store(self.digest(packed), Ordering::Relaxed);
            let length = (packed.len() as u64) << (block % LENGTHS * 16);
            lengths[block / LENGTHS].fetch_or(length, Ordering::Relaxed);
        }
    }

    /// Where a block of an object lies in its packed bytes, and its digest.
    pub fn place(&self, id: u32, block: usize) -> Option<(Range<usize>, u64)> {
        let (digests, lengths) = self.of(id)?.split_at(self.blocks);
        let length = |block: usize| {
            let word = lengths[block / LENGTHS].load(Ordering::Relaxed);
            (word >> (block % LENGTHS * 16)) as usize & 0xffff
        };
        let digest = digests.get(block)?.load(Ordering::Relaxed);
        let from = header_bytes(self.page) + (0..block).map(length).sum::<usize>();
        (digest != 0).then(|| (from..from + length(block), digest))
    }

    /// Forgets those of an object that is not what it was.
    pub fn forget(&self, id: u32) {
        self.of(id).into_iter().flatten().for_each(|word| word.store(0, Ordering::Relaxed));
    }

    /// Whether an object's block is known to have this digest.
    pub fn is(&self, id: u32, block: usize, digest: u64) -> bool {
        let known = self.of(id).and_then(|record| record[..self.blocks].get(block));
        known.is_some_and(|known| known.load(Ordering::Relaxed) == digest && digest != 0)
    }

    /// Whether anything is known of an object.
    pub fn knows(&self, id: u32) -> bool {
        self.of(id).and_then(<[_]>::first).is_some_and(|first| first.load(Ordering::Relaxed) != 0)
    }

    /// Bytes that they take.
    pub fn bytes(&self) -> u64 {
        let branches = self.leaves.iter().filter_map(OnceLock::get);
        let leaves = branches.flat_map(|branch| branch.iter()).filter_map(OnceLock::get);
        leaves.map(|leaf| size_of_val::<[_]>(leaf) as u64).sum()
    }
}
