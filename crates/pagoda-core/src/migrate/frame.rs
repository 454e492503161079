//! Frames: the messages of a channel after the handshake, from the sender to the receiver.
//!
//! A header of 48 bytes, then as many bytes of payload as it says: at most a stripe. The digest
//! ([`super::digest`]) is of the content in the sender's memory, so that it covers the codec as
//! well as the wire. Only a payload that the sender's store packed is digested as packed bytes.
//! The digest guards against accidents; TLS guards against attackers.

use super::fields::{Damaged, Put, Take};
use super::geometry::{Extent, STRIPE_BYTES};

/// A header's length.
pub const FRAME_BYTES: usize = 48;

/// The longest payload. Pages that a codec does not shrink are sent as they are.
pub const PAYLOAD_MOST: usize = STRIPE_BYTES;

/// The content of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// Pages with content, packed by the codec that was agreed on. Their `packed_bytes` follow:
    /// fewer than the pages have, and at least one.
    Data {
        /// Which pages.
        extent: Extent,
        /// The length of the payload.
        packed_bytes: u32,
        /// That of the unpacked payload.
        digest: u64,
    },
    /// Pages with content, as they are. They follow, whole.
    Stored {
        /// Which pages.
        extent: Extent,
        /// That of the payload.
        digest: u64,
    },
    /// A base page as the sender's store had packed it, block by block; never with
    /// [`Codec::None`](super::handshake::Codec). Its `packed_bytes` follow: fewer than the pages
    /// have, and at least one.
    Packed {
        /// Which pages: all of one base page.
        extent: Extent,
        /// The length of the payload.
        packed_bytes: u32,
        /// That of the packed payload as one block: the sender has not unpacked it.
        digest: u64,
    },
    /// Pages that hold one word, other than zero, again and again. Nothing follows.
    Filled {
        /// Which pages.
        extent: Extent,
        /// The word, as the bytes lie in memory.
        word: [u8; 8],
    },
    /// Pages of zeroes. Nothing follows.
    Zero {
        /// Which pages.
        extent: Extent,
    },
    /// Pages whose content follows later, in a frame of its own after the switch. The receiver's
    /// content of them is stale. No payload follows.
    Owed {
        /// Which pages.
        extent: Extent,
    },
    /// A stripe that the receiver has offered: its content there is the sender's. No payload
    /// follows.
    Kept {
        /// All of its pages.
        extent: Extent,
    },
    /// From here on all channels share the remaining pages: this one may name any page. The sender
    /// has applied rounds of all of them before it, and nothing writes there any more. No payload
    /// follows.
    Last,
    /// The end of a round, counted from 1: the sender has sent everything about this channel's
    /// stripes.
    Sync {
        /// Which round.
        round: u32,
        /// The pages that the channel's frames of this round named.
        pages: u64,
    },
    /// The end of the channel, right after a `Sync`.
    End {
        /// The last round.
        round: u32,
    },
    /// The end of the migration, on channel 0 behind its `End`: all channels have ended, and the
    /// image may be shown.
    Commit,
    /// In place of a `Commit`: the image may be shown and used, and its owed pages follow.
    Switch,
}

impl Body {
    /// The pages that it is about, if it is about pages.
    #[must_use]
    pub const fn extent(self) -> Option<Extent> {
        match self {
            Self::Data { extent, .. }
            | Self::Stored { extent, .. }
            | Self::Packed { extent, .. }
            | Self::Filled { extent, .. }
            | Self::Zero { extent }
            | Self::Kept { extent }
            | Self::Owed { extent } => Some(extent),
            Self::Last | Self::Sync { .. } | Self::End { .. } | Self::Commit | Self::Switch => None,
        }
    }

    /// How many bytes follow the header: at most [`PAYLOAD_MOST`].
    #[must_use]
    pub const fn payload_bytes(self) -> usize {
        match self {
            Self::Data { packed_bytes, .. } | Self::Packed { packed_bytes, .. } => packed_bytes as usize,
            Self::Stored { extent, .. } => extent.len().as_usize(),
            _ => 0,
        }
    }
}

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its place among the frames of its channel, from 0.
    pub sequence: u64,
    /// The content.
    pub body: Body,
}

const DATA: u8 = 1;
const STORED: u8 = 2;
const FILLED: u8 = 3;
const ZERO: u8 = 4;
const SYNC: u8 = 5;
const END: u8 = 6;
const COMMIT: u8 = 7;
const PACKED: u8 = 8;
const OWED: u8 = 9;
const SWITCH: u8 = 10;
const LAST: u8 = 11;
const KEPT: u8 = 12;

impl Frame {
    /// Its bytes. A `Data` or `Packed` frame must not be longer than its pages, nor may a `Filled`
    /// one be of zeroes: no receiver would take them.
    #[must_use]
    pub fn encode(self) -> [u8; FRAME_BYTES] {
        let none = [0; 8];
        // `at` is a page or a round, `what` is the field that the kind defines.
        let (kind, count, at, what, digest) = match self.body {
            Body::Data { extent, packed_bytes, digest } => {
                (DATA, extent.count(), extent.first(), u64::from(packed_bytes).to_le_bytes(), digest)
            }
            Body::Packed { extent, packed_bytes, digest } => {
                (PACKED, extent.count(), extent.first(), u64::from(packed_bytes).to_le_bytes(), digest)
            }
            Body::Stored { extent, digest } => (STORED, extent.count(), extent.first(), none, digest),
            Body::Filled { extent, word } => (FILLED, extent.count(), extent.first(), word, 0),
            Body::Zero { extent } => (ZERO, extent.count(), extent.first(), none, 0),
            Body::Kept { extent } => (KEPT, extent.count(), extent.first(), none, 0),
            Body::Owed { extent } => (OWED, extent.count(), extent.first(), none, 0),
            Body::Sync { round, pages } => (SYNC, 0, u64::from(round), pages.to_le_bytes(), 0),
            Body::End { round } => (END, 0, u64::from(round), none, 0),
            Body::Commit => (COMMIT, 0, 0, none, 0),
            Body::Switch => (SWITCH, 0, 0, none, 0),
            Body::Last => (LAST, 0, 0, none, 0),
        };
        Put::new().u8(kind).bytes([0; 3]).u32(count).u64(self.sequence).u64(at).bytes(what).u64(digest).seal()
    }

    /// Reads a header.
    ///
    /// # Errors
    /// If no [`encode`](Self::encode) gives these bytes, or they announce more than their pages can
    /// hold.
    pub fn decode(bytes: &[u8; FRAME_BYTES]) -> Result<Self, Damaged> {
        let mut take = Take::new(bytes);
        let kind = take.u8();
        let [_, _, _] = take.bytes();
        let (count, sequence, at, what, digest) =
            (take.u32(), take.u64(), take.u64(), take.bytes(), take.u64());
        let extent = || Extent::new(at, count).ok_or(Damaged);
        let round = || u32::try_from(at).map_err(|_| Damaged);
        let body = match kind {
            DATA | PACKED => {
                let extent = extent()?;
                let packed_bytes = u32::try_from(u64::from_le_bytes(what)).map_err(|_| Damaged)?;
                if packed_bytes == 0 || u64::from(packed_bytes) >= extent.len().get() {
                    return Err(Damaged);
                }
                if kind == DATA {
                    Body::Data { extent, packed_bytes, digest }
                } else {
                    Body::Packed { extent, packed_bytes, digest }
                }
            }
            STORED => Body::Stored { extent: extent()?, digest },
            FILLED if what != [0; 8] => Body::Filled { extent: extent()?, word: what },
            ZERO => Body::Zero { extent: extent()? },
            KEPT => Body::Kept { extent: extent()? },
            OWED => Body::Owed { extent: extent()? },
            SYNC => Body::Sync { round: round()?, pages: u64::from_le_bytes(what) },
            END => Body::End { round: round()? },
            COMMIT => Body::Commit,
            SWITCH => Body::Switch,
            LAST => Body::Last,
            _ => return Err(Damaged),
        };
        let frame = Self { sequence, body };
        if frame.encode() == *bytes { Ok(frame) } else { Err(Damaged) }
    }
}

#[cfg(test)]
#[path = "frame_test.rs"]
pub(super) mod tests;
