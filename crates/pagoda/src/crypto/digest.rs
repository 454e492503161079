//! A keyed digest, by which content is known again without being kept.
//!
//! It is a universal hash. Two different contents of up to 64 KiB, chosen without the key, have the
//! same digest with a probability of at most 2^-58. So a program can't make two contents look
//! equal, as it could with a hash whose collisions hold for many seeds (XXH3). NH (UMAC, RFC 4418,
//! with words of 64 bits: 2^-64) hashes each 4 KiB to 128 bits, as fast as XXH3 does. POLYVAL (RFC
//! 8452) hashes these with the content's length and place, and 64 bits of it are the digest
//! (2^-59).
//!
//! That holds as long as the program sees no digest. This module's results must never be shown, nor
//! sent to any process but a forked child's engine.

use std::io;

use aes::Aes256;
use aes::cipher::{InnerIvInit, KeyInit, StreamCipher};
use ctr::{Ctr32BE, CtrCore};
use polyval::Polyval;
use polyval::universal_hash::UniversalHash;

/// Bytes of a key.
pub(crate) const KEY_BYTES: usize = 32;

/// Bytes that are hashed together by NH.
const BLOCK: usize = 4096;

/// Bytes that are multiplied with each other: two words.
const PAIR: usize = 16;

/// Products that are summed up apart, so that none waits for the one before.
const LANES: usize = 4;

/// A key, ready for use.
pub(crate) struct Digester {
    key: [u8; KEY_BYTES],
    /// The key words that are added to those of a block.
    words: Box<[[u64; 2]; BLOCK / PAIR]>,
    /// The sum of a block of zeroes.
    of_zeroes: u128,
    /// With the powers of its key, of nothing yet.
    start: Polyval,
}

impl Digester {
    /// With a key that the kernel draws.
    ///
    /// # Errors
    /// What getrandom(2) said.
    pub fn random() -> io::Result<Self> {
        pagoda_linux::process::child::random_bytes().map(Self::of_key)
    }

    /// With a parent's key: for a child's engine, which compares with its parent's digests.
    pub fn of_key(key: [u8; KEY_BYTES]) -> Self {
        let cipher = Aes256::new(&key.into());
        let mut stream = Ctr32BE::from_core(CtrCore::inner_iv_init(&cipher, &[0; 16].into()));
        let mut next = || {
            let mut word = [0; 8];
            stream.apply_keystream(&mut word);
            u64::from_le_bytes(word)
        };
        let mut words = Box::new([[0; 2]; BLOCK / PAIR]);
        words.as_flattened_mut().fill_with(&mut next);
        let mut polyval = [0; 16];
        polyval[..8].copy_from_slice(&next().to_le_bytes());
        polyval[8..].copy_from_slice(&next().to_le_bytes());
        let start = Polyval::new(&polyval.into());
        let mut digester = Self { key, words, of_zeroes: 0, start };
        digester.of_zeroes = digester.sum_of(&[0; BLOCK]);
        digester
    }

    /// The key, for a child's engine alone.
    pub fn key(&self) -> [u8; KEY_BYTES] {
        self.key
    }

    /// The digest of content, wherever it is. Never 0, so that 0 can say that none is known.
    pub fn of(&self, content: &[u8]) -> u64 {
        self.at(0, content)
    }

    /// The digest of content at a place: the same content has another one elsewhere. Never 0.
    pub fn at(&self, place: u64, content: &[u8]) -> u64 {
        self.of_blocks(place, content, |_| true)
    }

    /// The same as [`of`](Self::of), where only some blocks of 4 KiB are `present`. The others are
    /// zero, and are not read.
    pub fn of_present(&self, content: &[u8], present: impl Fn(usize) -> bool) -> u64 {
        self.of_blocks(0, content, present)
    }

    fn of_blocks(&self, place: u64, content: &[u8], present: impl Fn(usize) -> bool) -> u64 {
        let mut hash = self.start.clone();
        for (i, block) in content.chunks(BLOCK).enumerate() {
            let is_read = block.len() < BLOCK || present(i);
            let sum = if is_read { self.sum_of(block) } else { self.of_zeroes };
            hash.update(&[sum.to_le_bytes().into()]);
        }
        // Without the length, padded content would have the same digest.
        let mut last = [0; 16];
        last[..8].copy_from_slice(&place.to_le_bytes());
        last[8..].copy_from_slice(&(content.len() as u64).to_le_bytes());
        hash.update(&[last.into()]);
        let whole = hash.finalize();
        let (half, _) = whole.split_first_chunk().expect("16 bytes");
        u64::from_le_bytes(*half).max(1)
    }

    /// NH of a block, padded with zeroes.
    fn sum_of(&self, block: &[u8]) -> u128 {
        let (pairs, rest) = block.as_chunks::<PAIR>();
        let mut sums = [0u128; LANES];
        let (rows, pairs) = pairs.as_chunks::<LANES>();
        let (key_rows, _) = self.words.as_chunks::<LANES>();
        for (row, keys) in rows.iter().zip(key_rows) {
            for lane in 0..LANES {
                sums[lane] = sums[lane].wrapping_add(product(&row[lane], &keys[lane]));
            }
        }
        let keys = &self.words[rows.len() * LANES..];
        for (pair, keys) in pairs.iter().zip(keys) {
            sums[0] = sums[0].wrapping_add(product(pair, keys));
        }
        if !rest.is_empty() {
            let mut last = [0; PAIR];
            last[..rest.len()].copy_from_slice(rest);
            sums[0] = sums[0].wrapping_add(product(&last, &keys[pairs.len()]));
        }
        sums.into_iter().fold(0, u128::wrapping_add)
    }
}

/// The product of two words, to each of which a word of the key is added.
fn product(pair: &[u8; PAIR], keys: &[u64; 2]) -> u128 {
    let (words, _) = pair.as_chunks();
    let [one, other] = [0, 1].map(|i| u64::from_le_bytes(words[i]).wrapping_add(keys[i]));
    u128::from(one) * u128::from(other)
}

#[cfg(test)]
#[path = "digest_test.rs"]
mod tests;
