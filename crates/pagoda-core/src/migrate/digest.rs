//! The digest of content on the wire: one for each block of 256 KiB, and one of these.
//!
//! A block stays in a processor's second-level cache from the copy to the digest, where 2 MiB would
//! not. Blocks begin at multiples of their size in the image, so that both sides cut content in
//! the same way. It is keyed by the session: content of another one is damage. It guards against
//! accidents; where content that is already there is taken for the sender's, a digest that is hard
//! to meet decides ([`image::digest`](crate::image::digest), and BLAKE3 for a resumed file).

use std::hash::Hasher;

use twox_hash::XxHash3_64;

use super::geometry::STRIPE_BYTES;
use crate::page::OS_PAGE;

/// Bytes of a block.
pub const BLOCK_BYTES: usize = 256 << 10;

/// Blocks of a stripe.
pub const BLOCKS: usize = STRIPE_BYTES / BLOCK_BYTES;

/// The digests of a stripe's blocks, as far as they are known.
pub type KnownBlocks = [Option<u64>; BLOCKS];

/// The key of a session's digests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DigestKey(u64);

impl DigestKey {
    /// That of a session.
    #[must_use]
    pub const fn of_session(session: [u8; 16]) -> Self {
        // All of it is random.
        Self(u128::from_le_bytes(session) as u64)
    }

    /// The digest of a block or a part of one, or of a payload that a store has packed.
    #[must_use]
    pub fn block(self, bytes: &[u8]) -> u64 {
        XxHash3_64::oneshot_with_seed(self.0, bytes)
    }

    /// The digest of pages of one stripe, from page `first` on. Blocks of that stripe that are
    /// `known` are not read again.
    #[must_use]
    pub fn content(self, first: u64, content: &[u8], known: &KnownBlocks) -> u64 {
        let mut digest = ContentDigest::new(self, first, content.len());
        let (mut rest, mut block) = (content, digest.into_stripe / BLOCK_BYTES);
        while !rest.is_empty() {
            let (part, behind) = rest.split_at(digest.part());
            match known[block].filter(|_| part.len() == BLOCK_BYTES) {
                Some(known) => digest.put(known, part.len()),
                None => digest.add(part),
            }
            (rest, block) = (behind, block + 1);
        }
        digest.finish()
    }
}

/// A digest of content that comes in parts.
#[derive(Clone)]
pub struct ContentDigest {
    key: DigestKey,
    /// Where the next byte is in its stripe, and how many are still to come.
    into_stripe: usize,
    left: usize,
    blocks: [u64; BLOCKS],
    count: usize,
    /// The block that came in part.
    begun: Option<XxHash3_64>,
}

impl ContentDigest {
    /// That of `len` bytes of one stripe, from page `first` on. Panics if they reach beyond it.
    #[must_use]
    pub fn new(key: DigestKey, first: u64, len: usize) -> Self {
        let into_stripe = first as usize * OS_PAGE % STRIPE_BYTES;
        assert!(into_stripe + len <= STRIPE_BYTES, "all of it is of one stripe");
        Self { key, into_stripe, left: len, blocks: [0; BLOCKS], count: 0, begun: None }
    }

    /// How many bytes are still to come.
    #[must_use]
    pub const fn left(&self) -> usize {
        self.left
    }

    /// How many bytes are left of the block that is next. To add them all at once takes half as
    /// long as in parts.
    #[must_use]
    pub fn part(&self) -> usize {
        (BLOCK_BYTES - self.into_stripe % BLOCK_BYTES).min(self.left)
    }

    /// Adds bytes. Panics if these are more than are to come.
    pub fn add(&mut self, mut bytes: &[u8]) {
        assert!(bytes.len() <= self.left, "no more than was said");
        while !bytes.is_empty() {
            let (part, rest) = bytes.split_at(self.part().min(bytes.len()));
            bytes = rest;
            if self.begun.is_none() && part.len() == self.part() {
                self.put(self.key.block(part), part.len());
                continue;
            }
            let is_last = part.len() == self.part();
            let mut digest = self.begun.take().unwrap_or_else(|| XxHash3_64::with_seed(self.key.0));
            digest.write(part);
            if is_last {
                self.put(digest.finish(), part.len());
            } else {
                (self.into_stripe, self.left) = (self.into_stripe + part.len(), self.left - part.len());
                self.begun = Some(digest);
            }
        }
    }

    /// The rest of a block, of which this is the digest of all that belongs to the content.
    fn put(&mut self, digest: u64, len: usize) {
        self.blocks[self.count] = digest;
        self.count += 1;
        (self.into_stripe, self.left) = (self.into_stripe + len, self.left - len);
    }

    /// The digest, once all was added. Panics if some is still to come.
    #[must_use]
    pub fn finish(&self) -> u64 {
        assert!(self.left == 0, "all was added");
        match self.blocks[..self.count] {
            [one] => one,
            ref blocks => {
                let mut digest = XxHash3_64::with_seed(self.key.0);
                blocks.iter().for_each(|block| digest.write(&block.to_le_bytes()));
                digest.finish()
            }
        }
    }
}

#[cfg(test)]
#[path = "digest_test.rs"]
mod tests;
