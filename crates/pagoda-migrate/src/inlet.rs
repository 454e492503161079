//! What arrives on one channel: frames, checked one by one, unpacked and applied to the destination.
//!
//! Its memory is two stripes and a small buffer, whatever a frame says. The received map is asked here, above the
//! codecs: each page is marked once for whatever carried it.

use std::io::{BufReader, Read};
use std::ops::Range;
use std::time::Duration;

use pagoda_core::migrate::channel::{Inbound, Violation};
use pagoda_core::migrate::frame::{Body, FRAME_BYTES, Frame, PAYLOAD_MOST};
use pagoda_core::migrate::geometry::{Extent, Geometry, STRIPE_BYTES};
use pagoda_core::migrate::handshake::Codec;
use pagoda_core::migrate::received::ReceivedMap;
use pagoda_core::migrate::reply::{Failure, Reply};
use pagoda_core::migrate::zero::{ZeroAction, ZeroPolicy};
use pagoda_core::page::OS_PAGE;
use pagoda_core::size::Bytes;
use pagoda_linux::pack;
use pagoda_linux::zero_scan::is_zero;
use xxhash_rust::xxh3::xxh3_64;

use crate::codec::Unpacker;
use crate::connection::{Connection, lost};
use crate::crew::Orders;
use crate::destination::Destination;
use crate::error::Error;
use crate::progress::{Count, Progress};

/// Headers come together; what is longer than this is read past it.
const BUFFER_BYTES: usize = 64 << 10;

/// What all channels of a receiver share. The map outlives each of them.
pub(crate) struct Shared<'a> {
    pub(crate) destination: &'a dyn Destination,
    pub(crate) geometry: Geometry,
    pub(crate) codec: Codec,
    pub(crate) zero: ZeroPolicy,
    pub(crate) stall: Duration,
    pub(crate) received: ReceivedMap,
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
    payload: Vec<u8>,
    content: Vec<u8>,
    /// One block of what a store had packed.
    block: [u8; pack::BLOCK],
}

/// A channel that has ended.
pub(crate) struct Ended {
    input: BufReader<Connection>,
    inbound: Inbound,
    channel: u16,
    stall: Duration,
}

impl<'a> Inlet<'a> {
    pub(crate) fn new(
        shared: &'a Shared<'a>,
        channel: u16,
        connection: Connection,
        orders: &'a Orders,
    ) -> Result<Self, Error> {
        Ok(Self {
            shared,
            channel,
            input: BufReader::with_capacity(BUFFER_BYTES, connection),
            orders,
            inbound: Inbound::new(shared.geometry, channel),
            unpacker: Unpacker::new(shared.codec).map_err(Error::System)?,
            payload: vec![0; PAYLOAD_MOST],
            content: vec![0; STRIPE_BYTES],
            block: [0; pack::BLOCK],
        })
    }

    /// Applies all that comes until the channel's end. The sender is told of a failure.
    pub(crate) fn run_to_end(mut self) -> Result<Ended, Error> {
        if let Err(error) = self.run() {
            let failure = if self.orders.cancelled() { Failure::Cancelled } else { error.as_failure() };
            // Who is gone can't be told.
            let _ = self.input.get_mut().send(&Reply::Failed(failure).encode());
            return Err(error);
        }
        let Self { input, inbound, channel, shared, .. } = self;
        Ok(Ended { input, inbound, channel, stall: shared.stall })
    }

    fn run(&mut self) -> Result<(), Error> {
        loop {
            let frame = next(&mut self.input, &mut self.inbound, self.channel, self.shared.stall)?;
            self.shared.progress.add(Count::WireBytes, (FRAME_BYTES + frame.body.payload_bytes()) as u64);
            match frame.body {
                Body::Data { extent, packed_bytes, digest } => {
                    let packed = packed_bytes as usize;
                    self.read_payload(packed)?;
                    let content = &mut self.content[..extent.len().as_usize()];
                    self.unpacker
                        .unpack(&self.payload[..packed], content)
                        .ok_or(Error::Damaged { channel: self.channel })?;
                    self.keep(extent, digest)?;
                }
                Body::Stored { extent, digest } => {
                    std::mem::swap(&mut self.payload, &mut self.content);
                    let read = self.read_payload(extent.len().as_usize());
                    std::mem::swap(&mut self.payload, &mut self.content);
                    read?;
                    self.keep(extent, digest)?;
                }
                Body::Packed { extent, packed_bytes, digest } => {
                    self.packed(extent, packed_bytes as usize, digest)?;
                }
                Body::Filled { extent, word } => {
                    let content = &mut self.content[..extent.len().as_usize()];
                    content.as_chunks_mut().0.fill(word);
                    self.shared.progress.add(Count::Filled, u64::from(extent.count()));
                    self.write(extent)?;
                }
                Body::Zero { extent } => self.zero(extent)?,
                Body::Sync { round, .. } => {
                    let reply = Reply::Synced { round }.encode();
                    let stall = self.shared.stall;
                    self.input.get_mut().send(&reply).map_err(|error| lost(self.channel, stall, error))?;
                }
                Body::End { .. } | Body::Commit => return Ok(()),
            }
        }
    }

    fn read_payload(&mut self, len: usize) -> Result<(), Error> {
        let stall = self.shared.stall;
        self.input.read_exact(&mut self.payload[..len]).map_err(|error| lost(self.channel, stall, error))
    }

    /// Writes the content, if it is what was sent.
    fn keep(&mut self, extent: Extent, digest: u64) -> Result<(), Error> {
        if xxh3_64(&self.content[..extent.len().as_usize()]) != digest {
            return Err(Error::Damaged { channel: self.channel });
        }
        self.shared.progress.add(Count::Data, u64::from(extent.count()));
        self.write(extent)
    }

    /// Takes a base page as the sender's store had packed it, if it can be unpacked.
    fn packed(&mut self, extent: Extent, packed_bytes: usize, digest: u64) -> Result<(), Error> {
        self.read_payload(packed_bytes)?;
        let damaged = Error::Damaged { channel: self.channel };
        let packed = &self.payload[..packed_bytes];
        let content = &mut self.content[..extent.len().as_usize()];
        let is_right = self.shared.codec != Codec::None
            && xxh3_64(packed) == digest
            && pack::unpack(packed, content.len(), 0, content, &mut self.block).is_some();
        if !is_right {
            return Err(damaged);
        }
        self.shared.progress.add(Count::Packed, u64::from(extent.count()));
        let part = self.mark(extent)?;
        let (destination, offset) = (self.shared.destination, extent.offset().get());
        let (packed, content) = (&self.payload[..packed_bytes], &self.content[..extent.len().as_usize()]);
        if part == extent.len() {
            destination.write_packed(offset, packed, content)
        } else {
            destination.write_at(offset, &content[..part.as_usize()])
        }
        .map_err(Error::Destination)
    }

    fn write(&mut self, extent: Extent) -> Result<(), Error> {
        let part = self.mark(extent)?;
        self.shared
            .destination
            .write_at(extent.offset().get(), &self.content[..part.as_usize()])
            .map_err(Error::Destination)
    }

    /// Marks pages as received, and returns how much of them belongs to the image.
    fn mark(&self, extent: Extent) -> Result<Bytes, Error> {
        let Shared { received, geometry, progress, .. } = self.shared;
        let page = OS_PAGE as u64;
        received.mark(extent, |pages, again| {
            if !again {
                let end = geometry.image().get().min(pages.end * page);
                progress.add(Count::ImageBytes, end - pages.start * page);
            }
            Ok::<_, Error>(())
        })?;
        Ok(geometry.part_of_image(extent))
    }

    fn zero(&mut self, extent: Extent) -> Result<(), Error> {
        let Self { shared, content, .. } = self;
        shared.progress.add(Count::Zero, u64::from(extent.count()));
        let image = shared.geometry.image().get();
        shared
            .received
            .mark(extent, |pages, again| {
                let page = OS_PAGE as u64;
                let bytes = pages.start * page..image.min(pages.end * page);
                let count = pages.end - pages.start;
                if !again {
                    shared.progress.add(Count::ImageBytes, bytes.end - bytes.start);
                }
                match shared.zero.action(again) {
                    ZeroAction::Leave => shared.progress.add(Count::ZeroLeft, count),
                    ZeroAction::Check => check(shared, bytes, content)?,
                    ZeroAction::Clear => {
                        shared.progress.add(Count::ZeroCleared, count);
                        shared.destination.clear(bytes)?;
                    }
                    ZeroAction::Discard => {
                        shared.progress.add(Count::ZeroDiscarded, count);
                        shared.destination.discard(bytes)?;
                    }
                }
                Ok(())
            })
            .map_err(Error::Destination)
    }
}

/// Reads pages, and clears those that are not zero.
fn check(shared: &Shared<'_>, bytes: Range<u64>, room: &mut [u8]) -> std::io::Result<()> {
    let content = &mut room[..(bytes.end - bytes.start) as usize];
    shared.destination.read_at(bytes.start, content)?;
    let mut at = bytes.start;
    for page in content.chunks(OS_PAGE) {
        let end = at + page.len() as u64;
        shared.progress.add(Count::ZeroChecked, 1);
        if !is_zero(page) {
            shared.progress.add(Count::ZeroCleared, 1);
            shared.destination.clear(at..end)?;
        }
        at = end;
    }
    Ok(())
}

impl Ended {
    /// Waits until the sender has seen all channels end.
    pub(crate) fn await_commit(mut self) -> Result<Connection, Error> {
        next(&mut self.input, &mut self.inbound, self.channel, self.stall)?;
        let more = !self.input.buffer().is_empty();
        if more {
            return Err(Error::Violation { channel: self.channel, violation: Violation::AfterEnd });
        }
        Ok(self.input.into_inner())
    }
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
