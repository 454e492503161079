//! A sender that switches and is not ours, and memory that is used before all of it has arrived.

use std::collections::BTreeSet;
use std::io;
use std::net::Shutdown;
use std::ops::{ControlFlow, Range};
use std::sync::{Mutex, PoisonError};
use std::thread;

use pagoda_core::migrate::channel::Outbound;
use pagoda_core::migrate::frame::{Body, Frame};
use pagoda_core::migrate::handshake::{Codec, Hello};
use pagoda_core::migrate::reply::Reply;
use pagoda_core::size::Bytes;

use super::{PAGE, connect_with, extent, hello, listen, options};
use crate::error::Error;
use crate::net::connection::Connection;
use crate::net::endpoint::Endpoint;
use crate::net::token::Token;
use crate::progress::Counts;
use crate::receive::destination::{Destination, LateDestination, MemoryDestination};
use crate::receive::page_requests::Wants;
use crate::receive::postcopy_receive::Arrivals;
use crate::{Arrived, Event, ReceiveOptions, receive_late};

/// Memory, and which of its pages have arrived after the switch.
#[derive(Default)]
pub(crate) struct Late {
    pub(crate) memory: MemoryDestination,
    pub(crate) wants: Wants,
    arrived: Mutex<BTreeSet<u64>>,
    /// A page whose content can't be put in place.
    pub(crate) refuses: Option<u64>,
}

impl Late {
    fn note(&self, bytes: Range<u64>) {
        let mut arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        for page in bytes.start / PAGE as u64..bytes.end / PAGE as u64 {
            assert!(arrived.insert(page), "page {page} arrives twice");
        }
    }
    pub(crate) fn arrived(&self) -> Vec<u64> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }
    pub(crate) fn page(&self, page: u64) -> Vec<u8> {
        let mut content = vec![1; PAGE];
        self.memory.read_at(page * PAGE as u64, &mut content).expect("read");
        content
    }
}

impl Destination for Late {
    fn prepare(&mut self, size: Bytes) -> io::Result<()> {
        self.memory.prepare(size)
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.memory.write_at(offset, bytes)
    }
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.memory.read_at(offset, into)
    }
    fn clear(&self, range: Range<u64>) -> io::Result<()> {
        self.memory.clear(range)
    }
    fn discard(&self, range: Range<u64>) -> io::Result<()> {
        self.memory.discard(range)
    }
    fn finish(&mut self) -> io::Result<()> {
        self.memory.finish()
    }
}

impl LateDestination for Late {
    fn owe(&self, range: Range<u64>) -> io::Result<()> {
        self.memory.discard(range)
    }
}

impl Arrivals for Late {
    fn wants(&self) -> &Wants {
        &self.wants
    }
    fn arrive(&self, offset: u64, content: &[u8]) -> io::Result<()> {
        if self.refuses == Some(offset / PAGE as u64) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        self.note(offset..offset + content.len() as u64);
        self.memory.write_at(offset, content)
    }
    fn arrive_zero(&self, range: Range<u64>) -> io::Result<()> {
        self.note(range);
        Ok(())
    }
}

/// A sender over one channel, with its two for page requests.
pub(crate) struct Sender {
    pub(crate) lanes: Vec<Connection>,
    pub(crate) outbound: Outbound,
}

impl Sender {
    pub(crate) fn new(to: &Endpoint, codec: Codec) -> Self {
        let lanes = (0..3).map(|channel| Self::lane(to, codec, channel, None).expect("admitted")).collect();
        Self { lanes, outbound: Outbound::default() }
    }

    /// One of its three.
    pub(crate) fn lane(
        to: &Endpoint,
        codec: Codec,
        channel: u16,
        token: Option<&Token>,
    ) -> Result<Connection, Error> {
        connect_with(to, Hello { switches: true, ..hello(codec, 1, channel) }, token)
    }

    /// One of its three, connected once more after the switch.
    pub(crate) fn lane_again(to: &Endpoint, attempt: u32, channel: u16) -> Result<Connection, Error> {
        connect_with(to, Hello { switches: true, attempt, ..hello(Codec::None, 1, channel) }, None)
    }

    pub(crate) fn say(&mut self, bytes: &[u8]) {
        // The receiver may have closed it already.
        let _ = self.lanes[0].send(bytes);
    }

    pub(crate) fn frame(&mut self, body: Body) {
        let frame = self.outbound.frame(body).encode();
        self.say(&frame);
    }

    /// Announces all that is known before the switch: pages 0..8 and 32..40 are owed, and page 16
    /// holds something.
    pub(crate) fn owe(&mut self) {
        for first in [0, 32] {
            self.frame(Body::Owed { extent: extent(first, 8) });
        }
        self.frame(Body::Filled { extent: extent(16, 1), word: [6; 8] });
    }

    pub(crate) fn end(&mut self) {
        let frames = [self.outbound.sync().0, self.outbound.end()].map(Frame::encode).concat();
        self.say(&frames);
    }

    /// The same, and switches.
    pub(crate) fn switch(&mut self) {
        self.owe();
        self.end();
        let switch = self.outbound.switch().encode();
        self.say(&switch);
        assert_eq!(self.lanes[0].reply(0).expect("a reply"), Reply::Synced { round: 1 });
        assert_eq!(self.lanes[0].reply(0).expect("a reply"), Reply::Switched);
    }

    /// Nothing more comes on any channel.
    pub(crate) fn close(&mut self) {
        for lane in &self.lanes {
            lane.closer().expect("a handle").close(Shutdown::Write);
        }
    }
}

/// Receives all of it from `sender`, a function of the address. `watch` sees the peers that come,
/// up to the switch.
pub(crate) fn receive_all<T: Send>(
    late: &mut Late,
    options: &ReceiveOptions,
    watch: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    sender: impl FnOnce(Endpoint) -> T + Send,
) -> (Result<Counts, Error>, T) {
    let (listener, to) = listen();
    thread::scope(|scope| {
        let sender = scope.spawn(move || sender(to));
        let arrived = receive_late(listener, late, options, watch);
        let received = arrived.and_then(|arrived| match arrived {
            Arrived::Whole(counts) => Ok(counts),
            Arrived::Owed(mut remaining) => {
                remaining.take_over()?;
                remaining.receive(&*late, &mut |_| ControlFlow::Continue(()))
            }
        });
        (received, sender.join().expect("the sender"))
    })
}

/// The same from a sender whose channels are admitted.
pub(crate) fn receive_from<T: Send>(
    late: &mut Late,
    codec: Codec,
    sender: impl FnOnce(&mut Sender) -> T + Send,
) -> (Result<Counts, Error>, T) {
    receive_all(late, &options(), &mut |_| ControlFlow::Continue(()), |to| {
        sender(&mut Sender::new(&to, codec))
    })
}
