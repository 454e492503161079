//! The outgoing frames of one channel, numbered, held together in a small buffer, within the limit
//! that all share.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use pagoda_core::migrate::channel::Outbound;
use pagoda_core::migrate::digest::{DigestKey, KnownBlocks};
use pagoda_core::migrate::frame::{Body, FRAME_BYTES, Frame};
use pagoda_core::migrate::geometry::{Extent, Geometry, STRIPE_BYTES, StripeList};
use pagoda_core::migrate::handshake::Codec;
use pagoda_core::migrate::kept::{KEPT_BYTES, Kept};
use pagoda_core::migrate::packing::Packing;
use pagoda_core::migrate::rate::Line;
use pagoda_core::migrate::reply::{REPLY_BYTES, Reply};
use pagoda_core::size::Bytes;
use pagoda_linux::process::thread::now_ns;

use crate::error::Error;
use crate::net::connection::{Connection, lost};
use crate::net::socket::Deadline;
use crate::progress::{Count, Progress};
use crate::wire::codec::Packer;
use crate::wire::stripe_digest::StripeDigest;
use crate::workers::Orders;

/// Headers and small payloads are sent together. A payload longer than half of this is sent by
/// itself, without a copy.
const BUFFER_BYTES: usize = 64 << 10;

/// Content that does not shrink to 15/16 is sent unpacked: unpacking costs the receiver more than
/// that saves.
const WORTH_SHIFT: u32 = 4;

/// How long a wait for the line is at most before the channel's orders are looked at again.
const STEP: Duration = Duration::from_millis(100);

/// How long to wait for the receiver's reason when a write has failed: it was sent before the
/// connection was closed.
const REASON: Duration = Duration::from_secs(1);

/// The state that all channels of a sender share.
pub(crate) struct Shared<'a> {
    pub(crate) geometry: Geometry,
    pub(crate) codec: Codec,
    pub(crate) key: DigestKey,
    pub(crate) only_if_faster: bool,
    pub(crate) stall: Duration,
    pub(crate) progress: &'a Progress,
    pub(crate) line: Option<Mutex<Line>>,
}

/// One channel's way out.
pub(crate) struct Outlet<'a> {
    shared: &'a Shared<'a>,
    channel: u16,
    connection: Connection,
    orders: &'a Orders,
    outbound: Outbound,
    packer: Packer,
    /// None if all is packed, or nothing.
    packing: Option<Packing>,
    packed: Vec<u8>,
    buffer: Vec<u8>,
}

impl<'a> Outlet<'a> {
    pub(crate) fn new(
        shared: &'a Shared<'a>,
        channel: u16,
        connection: Connection,
        orders: &'a Orders,
    ) -> Result<Self, Error> {
        Ok(Self {
            shared,
            channel,
            connection,
            orders,
            outbound: Outbound::default(),
            packer: Packer::new(shared.codec).map_err(Error::System)?,
            packing: (shared.only_if_faster && shared.codec != Codec::None).then(Packing::default),
            packed: vec![0; STRIPE_BYTES],
            buffer: Vec::with_capacity(BUFFER_BYTES),
        })
    }

    pub(crate) const fn channel(&self) -> u16 {
        self.channel
    }
    pub(crate) const fn geometry(&self) -> Geometry {
        self.shared.geometry
    }
    /// Counts a part of the image as done.
    pub(crate) fn done(&self, part: Bytes) {
        self.shared.progress.add(Count::ImageBytes, part.get());
    }

    /// Whether the channel should continue: an error if it should not.
    pub(crate) fn check(&self) -> Result<(), Error> {
        // The caller that gave the order knows the reason.
        if self.orders.stop() {
            Err(Error::Lost { channel: self.channel, error: io::ErrorKind::Interrupted.into() })
        } else {
            Ok(())
        }
    }

    /// Sends pages that are all zero, or all of one word.
    pub(crate) fn repeated(&mut self, extent: Extent, word: [u8; 8]) -> Result<(), Error> {
        let pages = u64::from(extent.count());
        if word == [0; 8] {
            self.shared.progress.add(Count::Zero, pages);
            self.frame(Body::Zero { extent }, &[])
        } else {
            self.shared.progress.add(Count::Filled, pages);
            self.frame(Body::Filled { extent, word }, &[])
        }
    }

    /// Sends pages with their content, of which some blocks' digests are `known`.
    pub(crate) fn content(
        &mut self,
        extent: Extent,
        content: &[u8],
        known: &KnownBlocks,
    ) -> Result<(), Error> {
        self.shared.progress.add(Count::Data, u64::from(extent.count()));
        let started_ns = now_ns();
        let digest = self.shared.key.content(extent.first(), content, known);
        let worth = content.len() - (content.len() >> WORTH_SHIFT);
        let len = match &self.packing {
            Some(packing) if !packing.packs() => None,
            _ => self.packer.pack(content, &mut self.packed[..worth]),
        };
        match len {
            Some(len) => {
                let packed = std::mem::take(&mut self.packed);
                let body = Body::Data { extent, packed_bytes: len as u32, digest };
                let outcome = self.frame(body, &packed[..len]);
                self.packed = packed;
                outcome
            }
            None => self.frame(Body::Stored { extent, digest }, content),
        }?;
        if let Some(packing) = &mut self.packing {
            packing.note(extent.len(), now_ns().saturating_sub(started_ns));
        }
        Ok(())
    }

    /// Sends a base page as a store has packed it.
    pub(crate) fn packed(&mut self, extent: Extent, packed: &[u8]) -> Result<(), Error> {
        self.shared.progress.add(Count::Packed, u64::from(extent.count()));
        let digest = self.shared.key.block(packed);
        let body = Body::Packed { extent, packed_bytes: packed.len() as u32, digest };
        self.frame(body, packed)
    }

    fn frame(&mut self, body: Body, payload: &[u8]) -> Result<(), Error> {
        let frame = self.outbound.frame(body);
        self.put(frame, payload)
    }

    fn put(&mut self, frame: Frame, payload: &[u8]) -> Result<(), Error> {
        let bytes = (FRAME_BYTES + payload.len()) as u64;
        self.wait_for_line(bytes)?;
        self.shared.progress.add(Count::WireBytes, bytes);
        if self.buffer.len() + FRAME_BYTES + payload.len() > BUFFER_BYTES {
            self.flush()?;
        }
        self.buffer.extend_from_slice(&frame.encode());
        if payload.len() > BUFFER_BYTES / 2 {
            self.flush()?;
            return self.write(payload);
        }
        self.buffer.extend_from_slice(payload);
        Ok(())
    }

    /// Sends the buffered bytes.
    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        let buffer = std::mem::take(&mut self.buffer);
        let outcome = self.write(&buffer);
        self.buffer = buffer;
        self.buffer.clear();
        outcome
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.connection.send(bytes).map_err(|error| self.explain(error))
    }

    /// The meaning of a failed write: the receiver's message, if there is one.
    fn explain(&mut self, error: io::Error) -> Error {
        self.connection.set_deadline(Some(Deadline::after(REASON)));
        // At most one round's end may be there before it.
        for _ in 0..2 {
            if let Err(Error::Peer(failure)) = self.connection.reply(self.channel) {
                return Error::Peer(failure);
            }
        }
        lost(self.channel, self.shared.stall, error)
    }

    fn wait_for_line(&mut self, bytes: u64) -> Result<(), Error> {
        let Some(line) = &self.shared.line else { return Ok(()) };
        let wait_ns = line.lock().unwrap_or_else(PoisonError::into_inner).book(now_ns(), Bytes::new(bytes));
        if wait_ns == 0 {
            return Ok(());
        }
        // Frames that were booked before this wait should be on their way meanwhile.
        self.flush()?;
        let until = Instant::now() + Duration::from_nanos(wait_ns);
        while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            self.check()?;
            sleep(left.min(STEP));
        }
        Ok(())
    }

    /// Says which pages follow after the switch.
    pub(crate) fn owed(&mut self, extent: Extent) -> Result<(), Error> {
        self.shared.progress.add(Count::Owed, u64::from(extent.count()));
        self.frame(Body::Owed { extent }, &[])
    }

    /// Reads which stripes of this channel the receiver has of an earlier transfer: 48 bytes for
    /// each, and never one twice.
    pub(crate) fn offered(&mut self) -> Result<BTreeMap<u64, StripeDigest>, Error> {
        let (channel, stall) = (self.channel, self.shared.stall);
        let mut list = StripeList::new(self.shared.geometry, channel);
        let mut offered = BTreeMap::new();
        loop {
            // A receiver that can't make its destination says so instead.
            let start: [u8; REPLY_BYTES] =
                self.connection.read_message().map_err(|error| lost(channel, stall, error))?;
            if let Ok(Reply::Failed(failure)) = Reply::decode(&start) {
                return Err(Error::Peer(failure));
            }
            let mut bytes = [0; KEPT_BYTES];
            bytes[..REPLY_BYTES].copy_from_slice(&start);
            let rest = self.connection.read_exact(&mut bytes[REPLY_BYTES..]);
            rest.map_err(|error| lost(channel, stall, error))?;
            match Kept::decode(&bytes).map_err(|_| Error::Damaged { channel })? {
                Kept::End => return Ok(offered),
                Kept::Stripe { first, digest } if list.accept(first) => _ = offered.insert(first, digest),
                Kept::Stripe { .. } => return Err(Error::StrangeReply { channel }),
            }
        }
    }

    /// Says that the receiver's content of the stripe `first..end` is right.
    pub(crate) fn kept(&mut self, first: u64, end: u64) -> Result<(), Error> {
        let Some(extent) = Extent::new(first, (end - first) as u32) else { return Ok(()) };
        self.shared.progress.add(Count::Kept, u64::from(extent.count()));
        self.frame(Body::Kept { extent }, &[])
    }

    /// Says that pages of any stripe follow, all channels' rounds so far being applied.
    pub(crate) fn last(&mut self) -> Result<(), Error> {
        let last = self.outbound.last();
        self.put(last, &[])
    }

    /// Ends a round, once the receiver has applied all of it.
    pub(crate) fn sync(&mut self) -> Result<(), Error> {
        let round = self.end_round()?;
        match self.reply()? {
            Reply::Synced { round: synced } if synced == round => Ok(()),
            _ => Err(Error::StrangeReply { channel: self.channel }),
        }
    }

    /// Ends a round to which there is no reply. Returns its number.
    pub(crate) fn end_round(&mut self) -> Result<u32, Error> {
        let (sync, round) = self.outbound.sync();
        self.put(sync, &[])?;
        self.flush()?;
        Ok(round)
    }

    /// The next that the receiver says.
    pub(crate) fn reply(&mut self) -> Result<Reply, Error> {
        self.connection.reply(self.channel)
    }

    /// Ends the channel, right after a round.
    pub(crate) fn end(&mut self) -> Result<(), Error> {
        let end = self.outbound.end();
        self.put(end, &[])?;
        self.flush()
    }

    /// Announces that all channels have ended, and that owed pages follow.
    pub(crate) fn switch(&mut self) -> Result<(), Error> {
        let switch = self.outbound.switch();
        self.put(switch, &[])?;
        self.flush()
    }

    /// The parts that the next stage needs.
    pub(crate) fn into_parts(self) -> (Connection, Outbound) {
        (self.connection, self.outbound)
    }

    /// A request has come.
    pub(crate) fn asked(&self) {
        self.shared.progress.add(Count::Asked, 1);
    }
}
