//! The key of an image, and the digests that are made with it.
//!
//! All are keyed BLAKE3. Digests of content are in the file for all to see, and stay hard to meet:
//! without the key no other content with the same digest can be found or made. A digest of a block
//! depends on its content alone, so that blocks of two images with one key can be compared. This
//! module must never show a key in a message.

use std::fmt;

/// Bytes of a key.
pub const KEY_BYTES: usize = 32;

/// Bytes of a block's digest.
pub const BLOCK_DIGEST_BYTES: usize = 16;

/// Bytes of a chunk's digest and of a root.
pub const ROOT_BYTES: usize = 32;

/// The digest of a block's content.
pub type BlockDigest = [u8; BLOCK_DIGEST_BYTES];

/// The secret with which an image's digests are made.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    own: [u8; KEY_BYTES],
    /// One for each kind of digest, so that none can stand for another.
    blocks: [u8; KEY_BYTES],
    chunks: [u8; KEY_BYTES],
    roots: [u8; KEY_BYTES],
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

/// A text that is no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyError;

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key is 64 hexadecimal digits; make one with `openssl rand -hex 32`")
    }
}

impl std::error::Error for KeyError {}

impl Key {
    /// The key of these bytes, which have to be secret.
    #[must_use]
    pub fn new(own: [u8; KEY_BYTES]) -> Self {
        let of = |purpose: &[u8]| *blake3::keyed_hash(&own, purpose).as_bytes();
        Self {
            own,
            blocks: of(b"pagoda image block v1"),
            chunks: of(b"pagoda image chunk v1"),
            roots: of(b"pagoda image root v1"),
        }
    }

    /// The key that a text gives: 64 hexadecimal digits, with any space around them.
    ///
    /// # Errors
    /// If the text is anything else.
    pub fn from_text(text: &[u8]) -> Result<Self, KeyError> {
        let digits = text.trim_ascii();
        let mut own = [0; KEY_BYTES];
        if digits.len() != 2 * KEY_BYTES {
            return Err(KeyError);
        }
        for (byte, pair) in own.iter_mut().zip(digits.as_chunks::<2>().0) {
            let [high, low] = pair.map(|digit| char::from(digit).to_digit(16));
            *byte = (high.ok_or(KeyError)? << 4 | low.ok_or(KeyError)?) as u8;
        }
        Ok(Self::new(own))
    }

    /// Its text, for a file of its user's alone.
    #[must_use]
    pub fn to_text(&self) -> String {
        self.own.iter().map(|byte| format!("{byte:02x}")).collect::<String>() + "\n"
    }

    /// A value by which an image tells whether this is its key. It says nothing about the key.
    #[must_use]
    pub fn check(&self) -> BlockDigest {
        first(&blake3::keyed_hash(&self.own, b"pagoda image key v1"))
    }

    /// The digest of a block's content.
    #[must_use]
    pub fn of_block(&self, content: &[u8]) -> BlockDigest {
        first(&blake3::keyed_hash(&self.blocks, content))
    }

    /// The digest of a chunk of entries.
    #[must_use]
    pub fn of_chunk(&self, chunk: &[u8]) -> Root {
        Root(*blake3::keyed_hash(&self.chunks, chunk).as_bytes())
    }

    /// The digest of a whole image by these parts of it, or of a file that belongs to one. The
    /// caller tells lengths of parts within them.
    #[must_use]
    pub fn of_parts(&self, parts: &[&[u8]]) -> Root {
        let mut digest = self.begin();
        parts.iter().for_each(|part| digest.add(part));
        digest.end()
    }

    /// Begins a digest as of [`of_parts`](Self::of_parts), whose parts follow.
    #[must_use]
    pub fn begin(&self) -> PartsDigest {
        PartsDigest(Box::new(blake3::Hasher::new_keyed(&self.roots)))
    }
}

/// The digest of parts that are added one after the other.
pub struct PartsDigest(Box<blake3::Hasher>);

impl PartsDigest {
    /// Adds a part.
    pub fn add(&mut self, part: &[u8]) {
        self.0.update(part);
    }
    /// The digest of all parts.
    #[must_use]
    pub fn end(self) -> Root {
        Root(*self.0.finalize().as_bytes())
    }
}

fn first(hash: &blake3::Hash) -> BlockDigest {
    *hash.as_bytes().first_chunk().expect("a hash is longer")
}

/// The digest of an image, by which differences name it.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Root(pub [u8; ROOT_BYTES]);

impl fmt::Display for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_reads_back_and_is_not_shown() {
        let key = Key::new([0xa7; KEY_BYTES]);
        assert_eq!(Key::from_text(key.to_text().as_bytes()), Ok(key.clone()));
        assert_eq!(Key::from_text(b" a7\n"), Err(KeyError));
        assert_eq!(Key::from_text(&[b'g'; 64]), Err(KeyError));
        assert_eq!(format!("{key:?}"), "Key");
    }

    #[test]
    fn digests_of_one_content_differ_by_key_and_by_purpose() {
        let [one, other] = [1, 2].map(|byte| Key::new([byte; KEY_BYTES]));
        assert_eq!(one.of_block(b"content"), Key::new([1; KEY_BYTES]).of_block(b"content"));
        assert_ne!(one.of_block(b"content"), other.of_block(b"content"));
        assert_ne!(one.check(), other.check());
        let whole = one.of_chunk(b"content");
        assert_ne!(whole, one.of_parts(&[b"content"]));
        assert_ne!(whole.0[..BLOCK_DIGEST_BYTES], one.of_block(b"content"));
        assert_eq!(one.of_parts(&[b"con", b"tent"]), one.of_parts(&[b"content"]));
    }
}
