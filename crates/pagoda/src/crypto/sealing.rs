//! Content sealed for a server that is not trusted: encrypted and authenticated by AES-256-GCM.
//!
//! Each object is sealed in a version that is used once under a key, and stays in this process with
//! the object. An answer opens only if it was sealed by this key, for this object, in this version.
//! Changed or made-up content does not open, nor another object's or engine's, nor an older value
//! of the same object. A forked child draws a key of its own. This module must never seal an object
//! twice in one version, nor let bytes be seen that did not open.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use aes_gcm::aead::AeadInOut;
use aes_gcm::aead::consts::U12 as NonceSize;
use aes_gcm::{Aes256Gcm, KeyInit, Nonce};

/// Bytes that a seal adds to sealed content.
pub(crate) const TAG: usize = 16;

/// A number that the content of an object is sealed by, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version(u64);

impl Version {
    /// To be kept with the object.
    pub fn to_bits(self) -> u64 {
        self.0
    }
    /// As it was kept.
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

/// A key, ready for use, and the versions that it was used for.
pub(crate) struct Sealer {
    cipher: Aes256Gcm,
    next: AtomicU64,
}

impl Sealer {
    /// With a key that the kernel draws.
    ///
    /// # Errors
    /// What getrandom(2) said.
    pub fn random() -> io::Result<Self> {
        let key: [u8; 32] = pagoda_linux::process::child::random_bytes()?;
        Ok(Self { cipher: Aes256Gcm::new(&key.into()), next: AtomicU64::new(0) })
    }

    /// A version that was never used: to seal any number of objects, each of them once. 2^64 of
    /// them last for centuries.
    pub fn next_version(&self) -> Version {
        Version(self.next.fetch_add(1, Ordering::Relaxed))
    }

    fn nonce(object: u32, version: Version) -> Nonce<NonceSize> {
        let mut nonce = [0; 12];
        nonce[..4].copy_from_slice(&object.to_le_bytes());
        nonce[4..].copy_from_slice(&version.0.to_le_bytes());
        nonce.into()
    }

    /// Encrypts the bytes of an object in place, and returns the tag that proves them.
    pub fn seal(&self, object: u32, version: Version, bytes: &mut [u8]) -> [u8; TAG] {
        let sealed = self.cipher.encrypt_inout_detached(&Self::nonce(object, version), &[], bytes.into());
        sealed.expect("a page is shorter than 64 GiB").into()
    }

    /// Decrypts the bytes of an object in place, if they are those that were sealed. If not, they
    /// are zero.
    #[must_use]
    pub fn open(&self, object: u32, version: Version, bytes: &mut [u8], tag: [u8; TAG]) -> bool {
        let nonce = Self::nonce(object, version);
        let opened = self.cipher.decrypt_inout_detached(&nonce, &[], (&mut *bytes).into(), &tag.into());
        if opened.is_err() {
            bytes.fill(0);
        }
        opened.is_ok()
    }
}

#[cfg(test)]
#[path = "sealing_test.rs"]
mod tests;
