//! The messages of both sides before the first frame, on each channel: their versions, and exactly
//! which image follows.
//!
//! The receiver greets with a number used once. The sender describes the migration, and proves that
//! it has the token. The receiver accepts, with its own proof, or refuses. The proofs are keyed
//! hashes over all messages so far, made by a holder of the token: the token itself is never sent,
//! and an overheard proof can't be used again. These messages are not secret, and content is not
//! protected by them: that takes TLS.

use std::fmt;
use std::str::FromStr;

use super::fields::{Damaged, Put, Take};
use super::geometry::{Geometry, STRIPE_BYTES};
use crate::page::OS_PAGE;
use crate::size::Bytes;

/// The version of all that is under `migrate`. Raised whenever the meaning of a byte changes.
pub const VERSION: u16 = 8;

/// The start of a message, so that another protocol is not taken for damage.
const MAGIC: [u8; 8] = *b"PagodaMv";

/// A number used once, and a proof, in bytes.
pub const PROOF_BYTES: usize = 32;

/// A [`Greeting`]'s length.
pub const GREETING_BYTES: usize = 56;
/// A [`Hello`]'s length.
pub const HELLO_BYTES: usize = 128;
/// An [`Answer`]'s length.
pub const ANSWER_BYTES: usize = 64;

/// How content is packed on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Codec {
    /// As it is.
    None,
    /// LZ4: the fastest.
    #[default]
    Lz4,
    /// Deflate with zlib's frame, level 1.
    Zlib,
    /// Zstandard, level 1.
    Zstd,
}

impl Codec {
    /// All there are.
    pub const ALL: [Self; 4] = [Self::None, Self::Lz4, Self::Zlib, Self::Zstd];
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::None => "none",
            Self::Lz4 => "lz4",
            Self::Zlib => "zlib",
            Self::Zstd => "zstd",
        })
    }
}

impl FromStr for Codec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|codec| codec.to_string() == text);
        found.ok_or_else(|| format!("{text:?} is no codec; write none, lz4, zlib or zstd"))
    }
}

/// The receiver's first word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// The version it speaks.
    pub version: u16,
    /// Whether it demands a token.
    pub wants_token: bool,
    /// A number it has never used before.
    pub nonce: [u8; PROOF_BYTES],
}

impl Greeting {
    /// Its bytes.
    #[must_use]
    pub fn encode(self) -> [u8; GREETING_BYTES] {
        let wants_token = u8::from(self.wants_token);
        Put::new().bytes(MAGIC).u16(self.version).u8(wants_token).bytes([0; 5]).bytes(self.nonce).seal()
    }

    /// Reads a greeting. One of another version may have another meaning behind `version`.
    ///
    /// # Errors
    /// If no [`encode`](Self::encode) gives these bytes.
    pub fn decode(bytes: &[u8; GREETING_BYTES]) -> Result<Self, Damaged> {
        let mut take = Take::new(bytes);
        let [_, _, _, _, _, _, _, _] = take.bytes();
        let (version, wants_token) = (take.u16(), take.u8() == 1);
        let [_, _, _, _, _] = take.bytes();
        let greeting = Self { version, wants_token, nonce: take.bytes() };
        if greeting.encode() == *bytes { Ok(greeting) } else { Err(Damaged) }
    }
}

/// The first bytes of a [`Hello`] of any version, which say which it is.
pub const VERSION_BYTES: usize = 10;

/// The version of a hello that begins with these bytes; None if it is none.
#[must_use]
pub fn version_of(start: &[u8; VERSION_BYTES]) -> Option<u16> {
    let version = start.strip_prefix(&MAGIC)?;
    version.try_into().ok().map(u16::from_le_bytes)
}

/// The sender's description of the migration, on this channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The same on all channels of a migration, and no other's: random, so that a stranger can't
    /// guess it.
    pub session: [u8; 16],
    /// The image, and how many channels carry it.
    pub geometry: Geometry,
    /// Which of them this is. Behind those that carry the image come those on which pages are asked
    /// for, if it switches.
    pub channel: u16,
    /// Whether it may switch before all has arrived.
    pub switches: bool,
    /// 0, or after a switch which attempt this is to connect once more: each has a higher number
    /// than those before.
    pub attempt: u32,
    /// Whether the receiver may offer content of an earlier transfer.
    pub resumes: bool,
    /// How content is packed.
    pub codec: Codec,
    /// A number the sender has never used before.
    pub nonce: [u8; PROOF_BYTES],
    /// The proof over the greeting and [`unproven`](Self::unproven).
    pub proof: [u8; PROOF_BYTES],
}

/// A [`Hello`]'s bytes without its proof.
pub const UNPROVEN_BYTES: usize = HELLO_BYTES - PROOF_BYTES;

impl Hello {
    fn fields<const N: usize>(self) -> Put<N> {
        Put::new()
            .bytes(MAGIC)
            .u16(VERSION)
            .u16(self.channel)
            .u16(self.geometry.channels())
            .u16(self.codec as u16)
            .u32(OS_PAGE as u32)
            .u32(STRIPE_BYTES as u32)
            .u64(self.geometry.image().get())
            .bytes(self.session)
            .bytes(self.nonce)
            .u8(self.switches.into())
            .u32(self.attempt)
            .u8(self.resumes.into())
            .bytes([0; 2])
    }

    /// How many channels the migration has, with those on which pages are asked for.
    #[must_use]
    pub const fn lanes(self) -> u16 {
        let askers = if self.switches { self.geometry.askers() } else { 0 };
        self.geometry.channels() + askers
    }

    /// The bytes that the proofs cover, beside the greeting: all but the proof itself.
    #[must_use]
    pub fn unproven(self) -> [u8; UNPROVEN_BYTES] {
        self.fields().seal()
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(self) -> [u8; HELLO_BYTES] {
        self.fields().bytes(self.proof).seal()
    }

    /// Reads a hello. The caller decides whether to accept it: its proof, its size and its channel
    /// are unchecked.
    ///
    /// # Errors
    /// Why it is to be refused.
    pub fn decode(bytes: &[u8; HELLO_BYTES]) -> Result<Self, Refusal> {
        let mut take = Take::new(bytes);
        if take.bytes() != MAGIC {
            return Err(Refusal::Damaged);
        }
        if take.u16() != VERSION {
            return Err(Refusal::Version);
        }
        let (channel, channels, codec) = (take.u16(), take.u16(), take.u16());
        let (page, stripe, image) = (take.u32(), take.u32(), take.u64());
        if page as usize != OS_PAGE || stripe as usize != STRIPE_BYTES {
            return Err(Refusal::Geometry);
        }
        let geometry = Geometry::new(Bytes::new(image), channels).ok_or(Refusal::Geometry)?;
        let codec = Codec::ALL.into_iter().find(|known| *known as u16 == codec).ok_or(Refusal::Codec)?;
        let (session, nonce, switches) = (take.bytes(), take.bytes(), take.u8() == 1);
        let (attempt, resumes) = (take.u32(), take.u8() == 1);
        let [_, _] = take.bytes();
        let proof = take.bytes();
        let hello = Self { session, geometry, channel, switches, attempt, resumes, codec, nonce, proof };
        // Memory that is written has no earlier transfer.
        let makes_sense = if switches { !resumes } else { attempt == 0 };
        if hello.encode() != *bytes || !makes_sense {
            return Err(Refusal::Damaged);
        }
        if channel < hello.lanes() { Ok(hello) } else { Err(Refusal::Channel) }
    }
}

/// Why a receiver does not take a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It could not decode a message.
    Damaged,
    /// It speaks another version.
    Version,
    /// The token is wrong.
    Token,
    /// The sizes of a page or a stripe differ, or the channels are too many.
    Geometry,
    /// The image is larger than the receiver allows.
    TooLarge,
    /// It does not know the codec.
    Codec,
    /// The channel is there already, or differs from the migration's other channels.
    Channel,
    /// It is busy with another migration.
    Busy,
    /// It takes nothing that is to be used before all of it has arrived.
    Switches,
}

impl Refusal {
    const ALL: [Self; 9] = [
        Self::Damaged,
        Self::Version,
        Self::Token,
        Self::Geometry,
        Self::TooLarge,
        Self::Codec,
        Self::Channel,
        Self::Busy,
        Self::Switches,
    ];
}

/// The receiver's answer to a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The channel is taken.
    Taken {
        /// The receiver's own proof that it has the token, over the same bytes.
        proof: [u8; PROOF_BYTES],
    },
    /// It is not, and the connection is about to be closed.
    Refused(Refusal),
}

impl Answer {
    /// Its bytes.
    #[must_use]
    pub fn encode(self) -> [u8; ANSWER_BYTES] {
        let (status, proof) = match self {
            Self::Taken { proof } => (0, proof),
            Self::Refused(refusal) => (1 + refusal as u16, [0; PROOF_BYTES]),
        };
        Put::new().bytes(MAGIC).u16(VERSION).u16(status).bytes([0; 12]).bytes(proof).seal()
    }

    /// Reads an answer.
    ///
    /// # Errors
    /// If no [`encode`](Self::encode) gives these bytes.
    pub fn decode(bytes: &[u8; ANSWER_BYTES]) -> Result<Self, Damaged> {
        let mut take = Take::new(bytes);
        let [_, _, _, _, _, _, _, _] = take.bytes();
        let (_version, status) = (take.u16(), take.u16());
        let [_, _, _, _, _, _, _, _, _, _, _, _] = take.bytes();
        let proof = take.bytes();
        let answer = match status {
            0 => Self::Taken { proof },
            status => {
                let refusal = Refusal::ALL.get(usize::from(status) - 1);
                Self::Refused(*refusal.ok_or(Damaged)?)
            }
        };
        if answer.encode() == *bytes { Ok(answer) } else { Err(Damaged) }
    }
}

#[cfg(test)]
#[path = "handshake_test.rs"]
mod tests;
