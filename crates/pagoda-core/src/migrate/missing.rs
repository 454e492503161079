//! The pages that a receiver still lacks when the channels of a switched migration are connected
//! once more: one message for each stripe that lacks some, and one behind them.
//!
//! They are the complement of the received map, among the pages that were owed. Every other page
//! arrived before the switch. A list must never name a stripe twice, or one of another channel:
//! [`StripeList`](super::geometry::StripeList) checks that.

use super::fields::{Damaged, Put, Take};
use super::pages::{STRIPE_WORDS, StripePages};

/// A message's length.
pub const MISSING_BYTES: usize = 80;

/// In place of a stripe's first page: nothing else is missing.
const END: u64 = u64::MAX;

/// One message of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// Pages of one stripe, at least one.
    Pages {
        /// The first page of the stripe.
        first: u64,
        /// Which of its pages.
        pages: StripePages,
    },
    /// The end of the list.
    End,
}

impl Missing {
    /// Its bytes.
    #[must_use]
    pub fn encode(self) -> [u8; MISSING_BYTES] {
        let (first, pages) = match self {
            Self::Pages { first, pages } => (first, pages),
            Self::End => (END, StripePages::default()),
        };
        pages.words().into_iter().fold(Put::new().u64(first), Put::u64).seal()
    }

    /// Reads a message.
    ///
    /// # Errors
    /// If no [`encode`](Self::encode) gives these bytes, or no page is named.
    pub fn decode(bytes: &[u8; MISSING_BYTES]) -> Result<Self, Damaged> {
        let mut take = Take::new(bytes);
        let first = take.u64();
        let mut words = [0; STRIPE_WORDS];
        words.iter_mut().for_each(|word| *word = take.u64());
        let pages = StripePages::of_words(words);
        let missing = if first == END { Self::End } else { Self::Pages { first, pages } };
        let names = first == END || !pages.is_empty();
        if names && missing.encode() == *bytes { Ok(missing) } else { Err(Damaged) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_message_comes_back_as_it_was_and_a_flipped_bit_is_noticed(
            first in 0u64..1 << 40, words: [u64; STRIPE_WORDS], bit in 0..MISSING_BYTES * 8
        ) {
            let pages = StripePages::of_words(words);
            for missing in [Missing::Pages { first, pages }, Missing::End] {
                let mut bytes = missing.encode();
                let names = missing == Missing::End || !pages.is_empty();
                prop_assert_eq!(Missing::decode(&bytes), if names { Ok(missing) } else { Err(Damaged) });
                bytes[bit / 8] ^= 1 << (bit % 8);
                prop_assert_eq!(Missing::decode(&bytes), Err(Damaged));
            }
        }
    }
}
