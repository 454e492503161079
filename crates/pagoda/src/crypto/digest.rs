//! A keyed digest, by which content is known again without being kept.
//!
//! It is POLYVAL (RFC 8452) over the content and a last block with its length and place, of which 64 bits are taken. POLYVAL is
//! a universal hash: two different contents of up to 64 KiB that were chosen without knowledge of the key have one digest with a
//! probability of at most 2^-51, whatever they are. So a program can't make two contents look equal, as it could with a hash
//! whose collisions don't depend on its seed (XXH3). That holds as long as it sees no digest: this module's results must never be
//! shown or sent to anything but a forked child's engine.

use std::io;

use polyval::Polyval;
use polyval::universal_hash::UniversalHash;

/// Bytes of a key.
pub(crate) const KEY_BYTES: usize = 16;

/// A key, ready for use.
#[derive(Clone)]
pub(crate) struct Digester {
    key: [u8; KEY_BYTES],
    /// With the powers of the key, of nothing yet.
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

    /// With a key that another has drawn: for a child's engine, which goes by digests of its parent's.
    pub fn of_key(key: [u8; KEY_BYTES]) -> Self {
        Self { key, start: Polyval::new(&key.into()) }
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
        let mut hash = self.start.clone();
        hash.update_padded(content);
        // Without the length, content would be known by what it is padded to.
        let mut last = [0; 16];
        last[..8].copy_from_slice(&place.to_le_bytes());
        last[8..].copy_from_slice(&(content.len() as u64).to_le_bytes());
        hash.update(&[last.into()]);
        let whole = hash.finalize();
        let (half, _) = whole.split_first_chunk().expect("16 bytes");
        u64::from_le_bytes(*half).max(1)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The example of RFC 8452, appendix A: the hash is what it is said to be.
    #[test]
    fn the_hash_is_polyval() {
        let bytes = |hex: &str| u128::from_str_radix(hex, 16).expect("hexadecimal").to_be_bytes();
        let mut hash = Polyval::new(&bytes("25629347589242761d31f826ba4b757b").into());
        let blocks = ["4f4f95668c83dfb6401762bb2d01a262", "d1a24ddd2721d006bbe45f20d3c9f362"];
        hash.update(&blocks.map(|block| bytes(block).into()));
        assert_eq!(hash.finalize().as_slice(), bytes("f7a3b47b846119fae5b7866cf5e5b77e"));
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
            content in proptest::collection::vec(any::<u8>(), 1..300), at: prop::sample::Index, bit in 0u8..8, zeroes in 1usize..40,
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
