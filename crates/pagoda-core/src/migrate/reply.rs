//! Replies: the receiver's messages on a channel after the handshake.
//!
//! They are few and small: one for each round, one for each requested page, and one at the end. A
//! failure is a number and no text, so that no bytes of a receiver reach a person's terminal.

use super::fields::{Damaged, Put, Take};

/// A reply's length.
pub const REPLY_BYTES: usize = 24;

/// Why a receiver gave up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A frame or its content did not match its checksum.
    Damaged,
    /// A frame was lost, doubled, out of place or not allowed.
    Protocol,
    /// The destination can't be made or written; no space is left, for example.
    Destination,
    /// Nothing arrived for too long, or another channel was lost.
    Lost,
    /// The receiver was asked to end.
    Cancelled,
}

impl Failure {
    const ALL: [Self; 5] = [Self::Damaged, Self::Protocol, Self::Destination, Self::Lost, Self::Cancelled];
}

/// The receiver's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// All frames up to the end of this round have been applied.
    Synced {
        /// Which round.
        round: u32,
    },
    /// The receiver is still making sure that all is on disk.
    Working,
    /// All is there, for good, under its name.
    Finished,
    /// Nothing is kept.
    Failed(Failure),
    /// The image is shown and used from now on; its owed pages are waited for.
    Switched,
    /// A thread waits for this page, which is owed.
    Wanted {
        /// Its number.
        page: u64,
    },
}

const SYNCED: u8 = 1;
const WORKING: u8 = 2;
const FINISHED: u8 = 3;
const FAILED: u8 = 4;
const SWITCHED: u8 = 5;
const WANTED: u8 = 6;

impl Reply {
    /// Its bytes.
    #[must_use]
    pub fn encode(self) -> [u8; REPLY_BYTES] {
        let (kind, value) = match self {
            Self::Synced { round } => (SYNCED, u64::from(round)),
            Self::Working => (WORKING, 0),
            Self::Finished => (FINISHED, 0),
            Self::Failed(failure) => (FAILED, failure as u64),
            Self::Switched => (SWITCHED, 0),
            Self::Wanted { page } => (WANTED, page),
        };
        Put::new().u8(kind).bytes([0; 7]).u64(value).seal()
    }

    /// Reads a reply.
    ///
    /// # Errors
    /// If no [`encode`](Self::encode) gives these bytes.
    pub fn decode(bytes: &[u8; REPLY_BYTES]) -> Result<Self, Damaged> {
        let mut take = Take::new(bytes);
        let kind = take.u8();
        let [_, _, _, _, _, _, _] = take.bytes();
        let value = take.u64();
        let reply = match kind {
            SYNCED => Self::Synced { round: u32::try_from(value).map_err(|_| Damaged)? },
            WORKING => Self::Working,
            FINISHED => Self::Finished,
            FAILED => {
                let failure = Failure::ALL.into_iter().find(|failure| *failure as u64 == value);
                Self::Failed(failure.ok_or(Damaged)?)
            }
            SWITCHED => Self::Switched,
            WANTED => Self::Wanted { page: value },
            _ => return Err(Damaged),
        };
        if reply.encode() == *bytes { Ok(reply) } else { Err(Damaged) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_reply_comes_back_as_it_was_and_a_flipped_bit_is_noticed(
            reply in prop_oneof![
                any::<u32>().prop_map(|round| Reply::Synced { round }),
                Just(Reply::Working),
                Just(Reply::Finished),
                prop::sample::select(&Failure::ALL[..]).prop_map(Reply::Failed),
                Just(Reply::Switched),
                any::<u64>().prop_map(|page| Reply::Wanted { page }),
            ],
            bit in 0..REPLY_BYTES * 8,
        ) {
            let mut bytes = reply.encode();
            prop_assert_eq!(Reply::decode(&bytes), Ok(reply));
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(Reply::decode(&bytes), Err(Damaged));
        }

        #[test]
        fn any_bytes_with_a_right_checksum_are_refused_or_mean_themselves(kind in 0u8..8, rest: [u8; 7], value in 0u64..8) {
            let bytes: [u8; REPLY_BYTES] = Put::new().u8(kind).bytes(rest).u64(value).seal();
            if let Ok(reply) = Reply::decode(&bytes) {
                prop_assert_eq!(reply.encode(), bytes);
            }
        }
    }
}
