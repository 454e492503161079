//! What tells a part of a page in the file from one that was written since, without reading the file: a digest of each packed
//! block.
//!
//! They are noted when the page is brought into memory, and hold for as long as the object has its number. Packing is a
//! function of the content, so that an equal block has an equal digest, and two different ones the same once in 2^64. A digest
//! that is not there says nothing. Records are made for many objects at a time, when the first of them needs one.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use pagoda_core::blocks::NUMBERS;
use pagoda_linux::pack::BLOCK;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Objects whose digests are allocated together: 64 KiB of them for base pages of 64 KiB.
const LEAF: u32 = 512;

type Leaf = OnceLock<Box<[AtomicU64]>>;

/// Digests of blocks, by object.
pub(super) struct BlockDigests {
    leaves: Box<[OnceLock<Box<[Leaf]>>]>,
    blocks: usize,
    seed: u64,
}

/// Leaves whose places are allocated together, 64 KiB of them.
const BRANCH: u32 = 4096;

impl BlockDigests {
    /// For pages of so many bytes.
    pub fn new(page: usize, seed: u64) -> Self {
        let branches = NUMBERS / LEAF / BRANCH;
        Self { leaves: (0..branches).map(|_| OnceLock::new()).collect(), blocks: page / BLOCK, seed }
    }

    fn leaf(&self, id: u32) -> Option<&Leaf> {
        let branch = self.leaves.get((id / LEAF / BRANCH) as usize)?.get()?;
        branch.get((id / LEAF % BRANCH) as usize)
    }

    fn of(&self, id: u32) -> Option<&[AtomicU64]> {
        let at = (id % LEAF) as usize * self.blocks;
        self.leaf(id)?.get()?.get(at..at + self.blocks)
    }

    /// Of a packed block. Never 0, which says that there is none.
    fn digest(&self, packed: &[u8]) -> u64 {
        xxh3_64_with_seed(packed, self.seed).max(1)
    }

    /// Notes the packed blocks of an object, in the order of its page.
    pub fn note<'a>(&self, id: u32, packed: impl Iterator<Item = &'a [u8]>) {
        let Some(branch) = self.leaves.get((id / LEAF / BRANCH) as usize) else { return };
        let branch = branch.get_or_init(|| (0..BRANCH).map(|_| OnceLock::new()).collect());
        let words = LEAF as usize * self.blocks;
        branch[(id / LEAF % BRANCH) as usize].get_or_init(|| (0..words).map(|_| AtomicU64::new(0)).collect());
        for (digest, packed) in self.of(id).into_iter().flatten().zip(packed) {
            digest.store(self.digest(packed), Ordering::Relaxed);
        }
    }

    /// Forgets those of an object that is not what it was.
    pub fn forget(&self, id: u32) {
        self.of(id).into_iter().flatten().for_each(|digest| digest.store(0, Ordering::Relaxed));
    }

    /// Whether an object's block is known to be this one.
    pub fn is(&self, id: u32, block: usize, packed: &[u8]) -> bool {
        let known = self.of(id).and_then(|digests| digests.get(block));
        known.is_some_and(|known| known.load(Ordering::Relaxed) == self.digest(packed))
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
