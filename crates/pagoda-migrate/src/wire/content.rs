//! Content on its way from a channel to its place.
//!
//! It is read once, to its final place: a destination may have it read straight into memory that is
//! not shown yet. Content is worth nothing before its check. This module must never read beyond one
//! frame's payload.

use std::io::{self, BufReader, ErrorKind, Read};
use std::time::Duration;

use pagoda_core::migrate::digest::ContentDigest;

use crate::error::Error;
use crate::net::connection::{Connection, lost};
use crate::wire::codec::Unpacker;

/// The content of some pages that is about to arrive.
pub trait Content {
    /// Whether it can be read in parts, one after the other. If not, one call reads all of it.
    fn is_in_parts(&self) -> bool;

    /// Reads the next part, all of `into`: memory that no other thread sees, which may hold
    /// anything if this fails. May block for the stall.
    ///
    /// # Errors
    /// If the channel is lost, or the payload can't be unpacked.
    fn read(&mut self, into: &mut [u8]) -> io::Result<()>;

    /// Checks, once all was read, that it equals the sender's content. Before that none of it may
    /// be shown.
    ///
    /// # Errors
    /// If it differs, or not all was read.
    fn check(&mut self) -> io::Result<()>;
}

/// Reads all of `content` to `room`, and checks it.
pub(crate) fn read_checked(content: &mut dyn Content, room: &mut [u8]) -> io::Result<()> {
    content.read(room)?;
    content.check()
}

/// The origin of content.
pub(crate) enum Origin<'a> {
    /// As it is.
    Wire(&'a mut BufReader<Connection>),
    /// All of it packed.
    Packed(&'a mut Unpacker, &'a [u8]),
}

/// A frame's content, of which some is still to be read.
pub(crate) struct Arriving<'a> {
    origin: Origin<'a>,
    digest: ContentDigest,
    wanted: u64,
    is_checked: bool,
    channel: u16,
    stall: Duration,
    /// The failure, which a destination only passes on as an I/O error.
    failed: Option<Error>,
}

impl<'a> Arriving<'a> {
    /// Content of as many bytes as `digest` is for, which is to become `wanted`.
    pub(crate) fn new(
        origin: Origin<'a>,
        (digest, wanted): (ContentDigest, u64),
        channel: u16,
        stall: Duration,
    ) -> Self {
        Self { origin, digest, wanted, is_checked: false, channel, stall, failed: None }
    }

    /// The outcome of applying it: an error of the content itself comes first. A destination that
    /// has not had it checked has not received it.
    pub(crate) fn explain(self, outcome: Result<(), Error>) -> Result<(), Error> {
        let unchecked =
            || Err(Error::Destination(io::Error::other("the destination has not had content checked")));
        match self.failed {
            Some(error) => Err(error),
            None if outcome.is_ok() && !self.is_checked => unchecked(),
            None => outcome,
        }
    }

    fn fail(&mut self, error: Error) -> io::Error {
        self.failed = Some(error);
        ErrorKind::InvalidData.into()
    }
}

impl Content for Arriving<'_> {
    fn is_in_parts(&self) -> bool {
        matches!(self.origin, Origin::Wire(_))
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<()> {
        assert!(into.len() <= self.digest.left(), "no more is read than was sent");
        if into.is_empty() {
            return Ok(());
        }
        let (channel, stall) = (self.channel, self.stall);
        let digest = &mut self.digest;
        let read = match &mut self.origin {
            // Block by block: each is digested while the processor has it in its cache.
            Origin::Wire(input) => (|| {
                let mut rest = &mut *into;
                while !rest.is_empty() {
                    let (part, behind) = rest.split_at_mut(digest.part().min(rest.len()));
                    input.read_exact(part).map_err(|error| lost(channel, stall, error))?;
                    digest.add(part);
                    rest = behind;
                }
                Ok(())
            })(),
            Origin::Packed(unpacker, packed) => {
                let unpacked = unpacker.unpack(packed, into).ok_or(Error::Damaged { channel });
                unpacked.inspect(|()| digest.add(into))
            }
        };
        read.map_err(|error| self.fail(error))?;
        Ok(())
    }

    fn check(&mut self) -> io::Result<()> {
        assert!(self.digest.left() == 0, "all is read before it is checked");
        if self.failed.is_some() {
            return Err(ErrorKind::InvalidData.into());
        }
        match self.digest.finish() == self.wanted {
            true => {
                self.is_checked = true;
                Ok(())
            }
            false => Err(self.fail(Error::Damaged { channel: self.channel })),
        }
    }
}

#[cfg(test)]
#[path = "content_test.rs"]
mod tests;
