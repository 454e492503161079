//! Content enciphered for a place in a file: its length stays the same, and its proof stays in
//! memory.
//!
//! The checksum is the content's keyed digest at its place ([`super::digest`]). Checksum and place
//! begin the key stream (AES-128 in counter mode), so that no counter has to be kept. Two contents
//! at one place have the same key stream with a probability of at most 2^-58; at two places they
//! never have. The disk sees lengths, and that the same content was written to the same place
//! again. Any part can be deciphered alone.
//!
//! This module must never write a checksum to the disk. It proves whole contents only: the caller
//! has to know a part by the part's own digest.

use std::io;

use aes::Aes128;
use aes::cipher::{InnerIvInit, KeyInit, StreamCipher, StreamCipherSeek};
use ctr::{Ctr32BE, CtrCore};

use super::digest::{Digester, KEY_BYTES as DIGEST_KEY};

const CIPHER_KEY: usize = 16;

/// Bytes of the two keys.
pub(crate) const KEY_BYTES: usize = DIGEST_KEY + CIPHER_KEY;

/// The keys of one file, ready for use.
pub(crate) struct FileCipher {
    key: [u8; CIPHER_KEY],
    cipher: Aes128,
    digester: Digester,
}

impl FileCipher {
    /// With keys that the kernel draws.
    ///
    /// # Errors
    /// What getrandom(2) said.
    pub fn random() -> io::Result<Self> {
        Ok(Self::of_key(&pagoda_linux::process::child::random_bytes()?))
    }

    /// With a parent's keys: for a child, which reads its parent's file.
    pub fn of_key(key: &[u8; KEY_BYTES]) -> Self {
        let (digest_key, key) = key.split_first_chunk::<DIGEST_KEY>().expect("it is longer");
        let key: [u8; CIPHER_KEY] = key.try_into().expect("the rest");
        Self { key, cipher: Aes128::new(&key.into()), digester: Digester::of_key(*digest_key) }
    }

    /// The keys, for a child's engine alone.
    pub fn key(&self) -> [u8; KEY_BYTES] {
        let mut all = [0; KEY_BYTES];
        all[..DIGEST_KEY].copy_from_slice(&self.digester.key());
        all[DIGEST_KEY..].copy_from_slice(&self.key);
        all
    }

    /// Enciphers content for a place in its buffer, and returns its checksum.
    pub fn seal(&self, place: u32, content: &mut [u8]) -> u64 {
        let checksum = self.digester.at(u64::from(place), content);
        self.apply(place, checksum, 0, content);
        checksum
    }

    /// Deciphers the content of a place in its buffer. False if it is not the content that was
    /// sealed there with this checksum.
    #[must_use]
    pub fn open(&self, place: u32, checksum: u64, content: &mut [u8]) -> bool {
        self.apply(place, checksum, 0, content);
        self.digester.at(u64::from(place), content) == checksum
    }

    /// Deciphers a part of the content of a place, from byte `from` on. It proves nothing.
    pub fn open_part(&self, place: u32, checksum: u64, from: usize, part: &mut [u8]) {
        self.apply(place, checksum, from, part);
    }

    fn apply(&self, place: u32, checksum: u64, from: usize, content: &mut [u8]) {
        let mut start = [0; 16];
        start[..8].copy_from_slice(&checksum.to_le_bytes());
        start[8..12].copy_from_slice(&place.to_le_bytes());
        let mut stream: Ctr32BE<&Aes128> =
            Ctr32BE::from_core(CtrCore::inner_iv_init(&self.cipher, &start.into()));
        stream.seek(from);
        stream.apply_keystream(content);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cipher() -> FileCipher {
        FileCipher::random().expect("random bytes")
    }

    #[test]
    fn equal_content_looks_different_at_each_place_and_in_each_file() {
        let (one, other, page) = (cipher(), cipher(), [7; 4096]);
        let mut seen = Vec::new();
        for (cipher, place) in [(&one, 0), (&one, 1), (&one, u32::MAX), (&other, 0)] {
            let mut bytes = page;
            let checksum = cipher.seal(place, &mut bytes);
            let blocks = || bytes.chunks(16).map(<[u8]>::to_vec);
            assert!(blocks().all(|block| !seen.contains(&block)), "place {place}");
            seen.extend(blocks());
            assert!(FileCipher::of_key(&cipher.key()).open(place, checksum, &mut bytes) && bytes == page);
        }
    }

    /// The difference of two contents under one key stream would show both.
    #[test]
    fn two_contents_at_one_place_have_nothing_in_common() {
        let (cipher, [mut one, mut other]) = (cipher(), [[0; 4096], [0; 4096]]);
        other[4095] = 1;
        cipher.seal(9, &mut one);
        cipher.seal(9, &mut other);
        let equal = one.iter().zip(&other).filter(|(one, other)| one == other).count();
        assert!(equal < 100, "{equal} of 4096 bytes; one in 256 by chance");
    }

    proptest! {
        #[test]
        fn what_was_sealed_opens_and_nothing_else_does(
            content in prop::collection::vec(any::<u8>(), 1..5000), place: u32, elsewhere: u32, at: prop::sample::Index,
            from: prop::sample::Index, bit in 0u8..8,
        ) {
            let cipher = cipher();
            let mut sealed = content.clone();
            let checksum = cipher.seal(place, &mut sealed);
            let opened = |place, checksum, sealed: &[u8]| {
                let mut bytes = sealed.to_vec();
                (cipher.open(place, checksum, &mut bytes), bytes)
            };
            prop_assert_eq!(opened(place, checksum, &sealed), (true, content.clone()));
            let mut changed = sealed.clone();
            changed[at.index(content.len())] ^= 1u8 << bit;
            prop_assert!(!opened(place, checksum, &changed).0);
            prop_assert!(!opened(place, checksum ^ 1 << bit, &sealed).0);
            prop_assert!(place == elsewhere || !opened(elsewhere, checksum, &sealed).0);
            prop_assert!(!opened(place, checksum, &[&sealed[..], &[0]].concat()).0);
            let from = from.index(content.len());
            cipher.open_part(place, checksum, from, &mut sealed[from..]);
            prop_assert_eq!(&sealed[from..], &content[from..]);
        }
    }
}
