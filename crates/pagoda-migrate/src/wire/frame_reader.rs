//! The frames that arrive on one channel, checked one by one, unpacked and applied to the
//! destination.
//!
//! Its memory is two stripes and a small buffer, for any lengths in frames; the stripes are huge
//! frames, which fault once. Content is read to where its destination wants it ([`Arriving`]).
//! [`Apply`] decides about pages, above the codecs. This module must never hand on content that its
//! digest does not match.

use std::io::{BufReader, ErrorKind, Read};
use std::time::Duration;

use pagoda_core::migrate::channel::{Inbound, Violation};
use pagoda_core::migrate::digest::{ContentDigest, DigestKey};
use pagoda_core::migrate::frame::{Body, FRAME_BYTES, Frame, PAYLOAD_MOST};
use pagoda_core::migrate::geometry::{Extent, Geometry, STRIPE_BYTES};
use pagoda_core::migrate::handshake::Codec;
use pagoda_core::migrate::reply::{Failure, Reply};
use pagoda_core::page::{HUGE_FRAME, OS_PAGE};
use pagoda_core::size::Bytes;
use pagoda_linux::codec::pack::PageUnpacker;
use pagoda_linux::mem::huge_frames::HugeFrames;

use crate::error::Error;
use crate::net::connection::{Connection, lost};
use crate::progress::{Count, Progress};
use crate::receive::apply::Apply;
use crate::wire::codec::Unpacker;
use crate::wire::content::{Arriving, Origin};
use crate::workers::Orders;

/// Headers are read together; a payload longer than this bypasses the buffer.
const BUFFER_BYTES: usize = 64 << 10;

/// The state that all channels of a receiver share.
pub(crate) struct Shared<'a> {
    pub(crate) apply: &'a dyn Apply,
    pub(crate) geometry: Geometry,
    pub(crate) codec: Codec,
    pub(crate) key: DigestKey,
    pub(crate) stall: Duration,
    pub(crate) progress: &'a Progress,
}

/// One channel's way in.
pub(crate) struct Inlet<'a> {
    shared: &'a Shared<'a>,
    channel: u16,
    input: BufReader<Connection>,
    orders: &'a Orders,
    inbound: Inbound,
    unpacker: Unpacker,
    payload: HugeFrames,
    content: HugeFrames,
    /// For pages that a store had packed.
    stored: PageUnpacker,
}

/// A channel that has ended.
pub(crate) struct Ended {
    input: BufReader<Connection>,
    inbound: Inbound,
    channel: u16,
    stall: Duration,
}

/// The kind of a frame.
enum Passed {
    Pages,
    Round(u32),
    Channel,
}

impl<'a> Inlet<'a> {
    pub(crate) fn new(
        shared: &'a Shared<'a>,
        channel: u16,
        connection: Connection,
        orders: &'a Orders,
    ) -> Result<Self, Error> {
        let input = BufReader::with_capacity(BUFFER_BYTES, connection);
        Self::with(shared, channel, input, Inbound::new(shared.geometry, channel), true, orders)
    }

    /// One for page requests after a switch.
    pub(crate) fn asked(
        shared: &'a Shared<'a>,
        channel: u16,
        connection: Connection,
        orders: &'a Orders,
    ) -> Result<Self, Error> {
        let input = BufReader::with_capacity(BUFFER_BYTES, connection);
        // A thread waits for the few pages that come at once: it must not wait for 2 MiB to be
        // cleared.
        Self::with(shared, channel, input, Inbound::asked(shared.geometry), false, orders)
    }

    /// One that is connected once more after a switch.
    pub(crate) fn rejoined(
        shared: &'a Shared<'a>,
        channel: u16,
        connection: Connection,
        orders: &'a Orders,
    ) -> Result<Self, Error> {
        let input = BufReader::with_capacity(BUFFER_BYTES, connection);
        Self::with(shared, channel, input, Inbound::rejoined(shared.geometry, channel), true, orders)
    }

    /// One that continues after a switch.
    pub(crate) fn resumed(shared: &'a Shared<'a>, ended: Ended, orders: &'a Orders) -> Result<Self, Error> {
        let Ended { input, inbound, channel, .. } = ended;
        Self::with(shared, channel, input, inbound.go_on(), true, orders)
    }

    fn with(
        shared: &'a Shared<'a>,
        channel: u16,
        input: BufReader<Connection>,
        inbound: Inbound,
        huge: bool,
        orders: &'a Orders,
    ) -> Result<Self, Error> {
        const _: () = assert!(PAYLOAD_MOST == HUGE_FRAME && STRIPE_BYTES == HUGE_FRAME);
        let buffer = || HugeFrames::untouched(1, huge).map_err(Error::System);
        Ok(Self {
            shared,
            channel,
            input,
            orders,
            inbound,
            unpacker: Unpacker::new(shared.codec).map_err(Error::System)?,
            payload: buffer()?,
            content: buffer()?,
            stored: PageUnpacker::default(),
        })
    }

    /// Applies all that comes until the channel's end. The sender is told of a failure.
    pub(crate) fn run_to_end(mut self) -> Result<Ended, Error> {
        let outcome = self.run();
        self.tell(outcome)?;
        let Self { input, inbound, channel, shared, .. } = self;
        Ok(Ended { input, inbound, channel, stall: shared.stall })
    }

    /// Tells the sender of a failure.
    pub(crate) fn tell<T>(&mut self, outcome: Result<T, Error>) -> Result<T, Error> {
        outcome.inspect_err(|error| {
            let failure = if self.orders.cancelled() { Failure::Cancelled } else { error.as_failure() };
            // A peer that is gone can't be told.
            let _ = self.say(Reply::Failed(failure));
        })
    }

    /// Says something to the sender.
    pub(crate) fn say(&mut self, reply: Reply) -> Result<(), Error> {
        let (channel, stall) = (self.channel, self.shared.stall);
        self.input.get_mut().send(&reply.encode()).map_err(|error| lost(channel, stall, error))
    }

    /// Whether to stop, because another channel has.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.orders.stop() { Err(self.interrupted()) } else { Ok(()) }
    }

    /// The error of a channel that ends because another has: that one knows the reason.
    pub(crate) fn interrupted(&self) -> Error {
        Error::Lost { channel: self.channel, error: ErrorKind::Interrupted.into() }
    }

    pub(crate) fn connection(&mut self) -> &mut Connection {
        self.input.get_mut()
    }

    fn run(&mut self) -> Result<(), Error> {
        loop {
            match self.step()? {
                Passed::Pages => {}
                Passed::Round(round) => self.say(Reply::Synced { round })?,
                Passed::Channel => return Ok(()),
            }
        }
    }

    /// Applies frames until the end of a round.
    pub(crate) fn round(&mut self) -> Result<(), Error> {
        while matches!(self.step()?, Passed::Pages) {}
        Ok(())
    }

    /// Applies the next frame.
    fn step(&mut self) -> Result<Passed, Error> {
        let frame = next(&mut self.input, &mut self.inbound, self.channel, self.shared.stall)?;
        self.shared.progress.add(Count::WireBytes, (FRAME_BYTES + frame.body.payload_bytes()) as u64);
        if let Some(extent) = frame.body.extent() {
            self.shared.progress.reach(Bytes::new(extent.end() * OS_PAGE as u64));
        }
        match frame.body {
            Body::Data { extent, packed_bytes, digest } => {
                let packed = packed_bytes as usize;
                self.read_payload(packed)?;
                let origin = Origin::Packed(&mut self.unpacker, &self.payload[..packed]);
                receive(self.shared, self.channel, extent, digest, origin, &mut self.content)?;
            }
            Body::Stored { extent, digest } => {
                let origin = Origin::Wire(&mut self.input);
                receive(self.shared, self.channel, extent, digest, origin, &mut self.content)?;
            }
            Body::Packed { extent, packed_bytes, digest } => {
                self.packed(extent, packed_bytes as usize, digest)?;
            }
            Body::Filled { extent, word } => {
                let content = &mut self.content[..extent.len().as_usize()];
                content.as_chunks_mut().0.fill(word);
                self.shared.progress.add(Count::Filled, u64::from(extent.count()));
                self.shared.apply.content(self.channel, extent, content)?;
            }
            Body::Zero { extent } => {
                self.shared.progress.add(Count::Zero, u64::from(extent.count()));
                self.shared.apply.zero(self.channel, extent, &mut self.content)?;
            }
            Body::Kept { extent } => {
                self.shared.apply.kept(self.channel, extent)?;
                self.shared.progress.add(Count::Kept, u64::from(extent.count()));
            }
            Body::Owed { extent } => {
                self.shared.progress.add(Count::Owed, u64::from(extent.count()));
                self.shared.apply.owed(self.channel, extent)?;
            }
            Body::Last => self.shared.apply.last(self.channel)?,
            Body::Sync { round, .. } => return Ok(Passed::Round(round)),
            Body::End { .. } | Body::Commit | Body::Switch => return Ok(Passed::Channel),
        }
        Ok(Passed::Pages)
    }

    fn read_payload(&mut self, len: usize) -> Result<(), Error> {
        let stall = self.shared.stall;
        self.input.read_exact(&mut self.payload[..len]).map_err(|error| lost(self.channel, stall, error))
    }

    /// Takes a base page as the sender's store had packed it, if it can be unpacked.
    fn packed(&mut self, extent: Extent, packed_bytes: usize, digest: u64) -> Result<(), Error> {
        self.read_payload(packed_bytes)?;
        let damaged = Error::Damaged { channel: self.channel };
        let packed = &self.payload[..packed_bytes];
        let content = &mut self.content[..extent.len().as_usize()];
        let is_right = self.shared.codec != Codec::None
            && self.shared.key.block(packed) == digest
            && self.stored.unpack(packed, content).is_some();
        if !is_right {
            return Err(damaged);
        }
        self.shared.progress.add(Count::Packed, u64::from(extent.count()));
        if !self.shared.apply.packed(self.channel, extent, packed, content)? {
            self.shared.progress.add(Count::Unpacked, u64::from(extent.count()));
        }
        Ok(())
    }
}

impl Ended {
    /// Waits until the sender has seen all channels end. True if owed pages follow.
    pub(crate) fn await_commit(mut self) -> Result<(Self, bool), Error> {
        let frame = next(&mut self.input, &mut self.inbound, self.channel, self.stall)?;
        if self.input.buffer().is_empty() {
            Ok((self, frame.body == Body::Switch))
        } else {
            Err(Error::Violation { channel: self.channel, violation: Violation::AfterEnd })
        }
    }

    pub(crate) fn connection(&mut self) -> &mut Connection {
        self.input.get_mut()
    }
}

/// Applies content, if it equals the sender's. There is `room` for a stripe.
fn receive(
    shared: &Shared<'_>,
    channel: u16,
    extent: Extent,
    digest: u64,
    origin: Origin<'_>,
    room: &mut [u8],
) -> Result<(), Error> {
    let len = extent.len().as_usize();
    let of_ours = ContentDigest::new(shared.key, extent.first(), len);
    let mut arriving = Arriving::new(origin, (of_ours, digest), channel, shared.stall);
    let received = shared.apply.receive(channel, extent, &mut arriving, &mut room[..len]);
    arriving.explain(received)?;
    shared.progress.add(Count::Data, u64::from(extent.count()));
    Ok(())
}

/// The next frame that is in its place here.
fn next(
    input: &mut BufReader<Connection>,
    inbound: &mut Inbound,
    channel: u16,
    stall: Duration,
) -> Result<Frame, Error> {
    let mut header = [0; FRAME_BYTES];
    input.read_exact(&mut header).map_err(|error| lost(channel, stall, error))?;
    let frame = Frame::decode(&header).map_err(|_| Error::Damaged { channel })?;
    inbound.accept(frame).map_err(|violation| Error::Violation { channel, violation })?;
    Ok(frame)
}
