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
#[path = "file_cipher_test.rs"]
mod tests;
