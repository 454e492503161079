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
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The example of RFC 8452, appendix A: this hash is POLYVAL.
    #[test]
    fn the_hash_is_polyval() {
        let bytes = |hex: &str| u128::from_str_radix(hex, 16).expect("hexadecimal").to_be_bytes();
        let mut hash = Polyval::new(&bytes("25629347589242761d31f826ba4b757b").into());
        let blocks = ["4f4f95668c83dfb6401762bb2d01a262", "d1a24ddd2721d006bbe45f20d3c9f362"];
        hash.update(&blocks.map(|block| bytes(block).into()));
        assert_eq!(hash.finalize().as_slice(), bytes("f7a3b47b846119fae5b7866cf5e5b77e"));
    }

    /// NH as it is defined, one product after the other.
    #[test]
    fn a_block_is_summed_up_as_it_is_defined() {
        let digester = Digester::of_key([3; KEY_BYTES]);
        let content: Vec<u8> = (0..4096u32).map(|i| ((i * 7919) >> 3) as u8).collect();
        let word = |at: usize, len: usize| {
            let mut word = [0; 8];
            let known = len.saturating_sub(at).min(8);
            word[..known].copy_from_slice(&content[at..at + known]);
            u64::from_le_bytes(word)
        };
        for len in [1, 8, 15, 16, 17, 63, 64, 65, 700, 4095, 4096] {
            let sum = (0..len).step_by(16).fold(0u128, |sum, at| {
                let key = digester.words[at / 16];
                let [one, other] = [0, 1].map(|i| word(at + 8 * i, len).wrapping_add(key[i]));
                sum.wrapping_add(u128::from(one) * u128::from(other))
            });
            assert_eq!(digester.sum_of(&content[..len]), sum, "{len}");
        }
    }

    #[test]
    fn blocks_of_zeroes_need_not_be_read() {
        let digester = Digester::of_key([3; KEY_BYTES]);
        let mut content: Vec<u8> = (0..4 * BLOCK as u32).map(|i| ((i * 7919) >> 3) as u8).collect();
        content[BLOCK..3 * BLOCK].fill(0);
        let digest = digester.of(&content);
        content[BLOCK..3 * BLOCK].fill(0xee);
        assert_eq!(digester.of_present(&content, |block| block == 0 || block == 3), digest);
        assert_ne!(digester.of_present(&content, |_| true), digest);
    }

    #[test]
    fn every_engine_draws_a_key_of_its_own() {
        let content = [7; 4096];
        let [one, other] = [(); 2].map(|()| Digester::random().expect("random bytes"));
        assert_ne!(one.key(), other.key());
        assert_ne!(one.of(&content), other.of(&content));
        assert_eq!(one.of(&content), Digester::of_key(one.key()).of(&content));
    }

    proptest! {
        #[test]
        fn a_change_a_longer_end_and_another_place_are_seen(
            content in proptest::collection::vec(any::<u8>(), 1..9000), at: prop::sample::Index, bit in 0u8..8, zeroes in 1usize..40,
            place: u64,
        ) {
            let digester = Digester::of_key([9; KEY_BYTES]);
            let digest = digester.of(&content);
            let mut changed = content.clone();
            changed[at.index(content.len())] ^= 1u8 << bit;
            prop_assert_ne!(digest, digester.of(&changed));
            let longer = [&content[..], &vec![0; zeroes]].concat();
            prop_assert_ne!(digest, digester.of(&longer));
            prop_assert_eq!(digest == digester.at(place, &content), place == 0);
            prop_assert_eq!(digest, digester.of(&content));
        }
    }
}
