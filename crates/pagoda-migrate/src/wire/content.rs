//! Content on its way from a channel to its place.
//!
//! It is read once, to its final place: a destination may have it read straight into memory that is
//! not shown yet. Content is worth nothing before its check. This module must never read beyond one
//! frame's payload.

use std::hash::Hasher;
use std::io::{self, BufReader, ErrorKind, Read};
use std::time::Duration;

use twox_hash::XxHash3_64;

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
    left: usize,
    /// The digest of content that was read in parts, and of content that was read as one: that
    /// takes half as long.
    of_parts: Option<XxHash3_64>,
    of_all: u64,
    wanted: u64,
    is_checked: bool,
    channel: u16,
    stall: Duration,
    /// The failure, which a destination only passes on as an I/O error.
    failed: Option<Error>,
}

impl<'a> Arriving<'a> {
    pub(crate) fn new(origin: Origin<'a>, len: usize, wanted: u64, channel: u16, stall: Duration) -> Self {
        Self {
            origin,
            left: len,
            of_parts: None,
            of_all: 0,
            wanted,
            is_checked: false,
            channel,
            stall,
            failed: None,
        }
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
        assert!(into.len() <= self.left, "no more is read than was sent");
        if into.is_empty() {
            return Ok(());
        }
        let (channel, stall) = (self.channel, self.stall);
        let read = match &mut self.origin {
            Origin::Wire(input) => input.read_exact(into).map_err(|error| lost(channel, stall, error)),
            Origin::Packed(unpacker, packed) => {
                unpacker.unpack(packed, into).ok_or(Error::Damaged { channel })
            }
        };
        read.map_err(|error| self.fail(error))?;
        self.left -= into.len();
        match &mut self.of_parts {
            Some(digest) => digest.write(into),
            None if self.left == 0 => self.of_all = XxHash3_64::oneshot(into),
            None => self.of_parts.insert(XxHash3_64::new()).write(into),
        }
        Ok(())
    }

    fn check(&mut self) -> io::Result<()> {
        assert!(self.left == 0, "all is read before it is checked");
        if self.failed.is_some() {
            return Err(ErrorKind::InvalidData.into());
        }
        match self.of_parts.as_ref().map_or(self.of_all, Hasher::finish) == self.wanted {
            true => {
                self.is_checked = true;
                Ok(())
            }
            false => Err(self.fail(Error::Damaged { channel: self.channel })),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::Shutdown;
    use std::os::unix::net::UnixStream;

    use pagoda_core::migrate::handshake::Codec;

    use super::*;
    use crate::net::socket::{Kind, Socket};
    use crate::wire::codec::Packer;

    const STALL: Duration = Duration::from_secs(20);

    fn content(len: usize) -> Vec<u8> {
        (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
    }

    /// Reads content of `len` bytes, of which `sent` are sent, in such parts. Returns the outcome.
    fn read(len: usize, sent: usize, wanted: u64, parts: &[usize]) -> (Vec<u8>, Result<(), Error>) {
        let (own, mut other) = UnixStream::pair().expect("a pair");
        other.write_all(&content(len)[..sent]).expect("there is room");
        other.shutdown(Shutdown::Write).expect("open");
        let socket = Socket::new(Kind::Unix(own), STALL).expect("a socket");
        let mut input = BufReader::new(Connection::Plain(socket));
        let mut arriving = Arriving::new(Origin::Wire(&mut input), len, wanted, 3, STALL);
        let (mut into, mut at) = (vec![0; len], 0);
        let read = parts.iter().try_for_each(|part| {
            at += part;
            arriving.read(&mut into[at - part..at])
        });
        let outcome = read.and_then(|()| arriving.check()).map_err(Error::Destination);
        (into, arriving.explain(outcome))
    }

    #[test]
    fn content_is_checked_for_any_parts_it_is_read_in() {
        const LEN: usize = 40_000;
        let digest = XxHash3_64::oneshot(&content(LEN));
        for parts in [&[LEN][..], &[LEN, 0], &[0, LEN], &[4096, LEN - 4096], &[1, 0, 9, LEN - 10, 0]] {
            let (found, outcome) = read(LEN, LEN, digest, parts);
            assert!(outcome.is_ok() && found == content(LEN), "{parts:?}: {outcome:?}");
            let (_, outcome) = read(LEN, LEN, digest ^ 1, parts);
            assert!(matches!(outcome, Err(Error::Damaged { channel: 3 })), "{parts:?}: {outcome:?}");
            let (_, outcome) = read(LEN, LEN - 1, digest, parts);
            assert!(matches!(outcome, Err(Error::Lost { channel: 3, .. })), "{parts:?}: {outcome:?}");
        }
    }

    #[test]
    fn packed_content_is_checked_where_it_is_unpacked() {
        let content = vec![7; 8192];
        let mut packed = vec![0; 4096];
        let len = Packer::new(Codec::Lz4).expect("memory").pack(&content, &mut packed).expect("it is small");
        for (digest, len, is_right) in [(0, len, true), (1, len, false), (0, len - 1, false)] {
            let wanted = XxHash3_64::oneshot(&content) ^ digest;
            let mut unpacker = Unpacker::new(Codec::Lz4).expect("memory");
            let origin = Origin::Packed(&mut unpacker, &packed[..len]);
            let mut arriving = Arriving::new(origin, content.len(), wanted, 3, STALL);
            assert!(!arriving.is_in_parts());
            let mut into = vec![0; content.len()];
            let outcome =
                arriving.read(&mut into).and_then(|()| arriving.check()).map_err(Error::Destination);
            match arriving.explain(outcome) {
                Ok(()) => assert!(is_right && into == content),
                Err(error) => assert!(!is_right && matches!(error, Error::Damaged { channel: 3 }), "{error}"),
            }
        }
    }
}
