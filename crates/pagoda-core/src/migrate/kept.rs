//! The stripes that a receiver still has of an earlier transfer: it offers each to the sender by
//! the digest of its content, and keeps only those that the sender has, too.
//!
//! The digest is of all bytes of the stripe that are in the image. It is a cryptographic one: the
//! earlier transfer may have been of another image, or the disk may have lost a part of it.

use super::fields::{Damaged, Put, Take};

/// A message's length.
pub const KEPT_BYTES: usize = 48;

/// A digest's length.
pub const KEPT_DIGEST_BYTES: usize = 32;

/// In place of a stripe's first page: nothing else is offered.
const END: u64 = u64::MAX;

/// One message of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// A stripe.
    Stripe {
        /// Its first page.
        first: u64,
        /// The digest of its content.
        digest: [u8; KEPT_DIGEST_BYTES],
    },
    /// The end of the list.
    End,
}

impl Kept {
    /// Its bytes.
    #[must_use]
    pub fn encode(self) -> [u8; KEPT_BYTES] {
        let (first, digest) = match self {
            Self::Stripe { first, digest } => (first, digest),
            Self::End => (END, [0; KEPT_DIGEST_BYTES]),
        };
        Put::new().u64(first).bytes(digest).seal()
    }

    /// Reads a message.
    ///
    /// # Errors
    /// If no [`encode`](Self::encode) gives these bytes.
    pub fn decode(bytes: &[u8; KEPT_BYTES]) -> Result<Self, Damaged> {
        let mut take = Take::new(bytes);
        let (first, digest) = (take.u64(), take.bytes());
        let kept = if first == END { Self::End } else { Self::Stripe { first, digest } };
        if kept.encode() == *bytes { Ok(kept) } else { Err(Damaged) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_message_comes_back_as_it_was_and_a_flipped_bit_is_noticed(
            first in 0u64..1 << 40, digest: [u8; KEPT_DIGEST_BYTES], bit in 0..KEPT_BYTES * 8
        ) {
            for kept in [Kept::Stripe { first, digest }, Kept::End] {
                let mut bytes = kept.encode();
                prop_assert_eq!(Kept::decode(&bytes), Ok(kept));
                bytes[bit / 8] ^= 1 << (bit % 8);
                prop_assert_eq!(Kept::decode(&bytes), Err(Damaged));
            }
        }
    }
}
