//! A sender that switches and is not ours: what it owes, what it brings, and whatever malice can say before the switch and after.

use std::collections::BTreeSet;
use std::io;
use std::net::Shutdown;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use pagoda_core::migrate::channel::{Outbound, Violation};
use pagoda_core::migrate::frame::{Body, Frame};
use pagoda_core::migrate::geometry::Extent;
use pagoda_core::migrate::handshake::Codec;
use proptest::prelude::*;
use xxhash_rust::xxh3::xxh3_64;

use super::tests::{IMAGE, PAGE, connect, extent, hello, options};
use super::*;
use crate::asking::Wants;
use crate::codec::Packer;
use crate::destination::MemoryDestination;
use crate::endpoint::Endpoint;
use crate::remaining::Arrivals;

/// Memory, and which of its pages have arrived after the switch.
#[derive(Default)]
struct Late {
    memory: MemoryDestination,
    wants: Wants,
    arrived: Mutex<BTreeSet<u64>>,
}

impl Late {
    fn note(&self, bytes: Range<u64>) {
        let mut arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        for page in bytes.start / PAGE as u64..bytes.end / PAGE as u64 {
            assert!(arrived.insert(page), "page {page} arrives twice");
        }
    }
    fn arrived(&self) -> Vec<u64> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }
    fn page(&self, page: u64) -> Vec<u8> {
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
        self.note(offset..offset + content.len() as u64);
        self.memory.write_at(offset, content)
    }
    fn arrive_zero(&self, range: Range<u64>) -> io::Result<()> {
        self.note(range);
        Ok(())
    }
}

/// A sender over one channel, with its two on which pages are asked for.
struct Sender {
    lanes: Vec<Connection>,
    outbound: Outbound,
}

impl Sender {
    fn new(to: &Endpoint, codec: Codec) -> Self {
        let hello = |channel| Hello { switches: true, ..hello(codec, 1, channel) };
        let lanes = (0..3).map(|channel| connect(to, hello(channel)).expect("admitted")).collect();
        Self { lanes, outbound: Outbound::default() }
    }

    fn say(&mut self, bytes: &[u8]) {
        // The receiver may have closed it already.
        let _ = self.lanes[0].send(bytes);
    }

    fn frame(&mut self, body: Body) {
        let frame = self.outbound.frame(body).encode();
        self.say(&frame);
    }

    /// Says all that is known before the switch: pages 0..8 and 32..40 are owed, and page 16 holds something.
    fn owe(&mut self) {
        for first in [0, 32] {
            self.frame(Body::Owed { extent: extent(first, 8) });
        }
        self.frame(Body::Filled { extent: extent(16, 1), word: [6; 8] });
    }

    fn end(&mut self) {
        let frames = [self.outbound.sync().0, self.outbound.end()].map(Frame::encode).concat();
        self.say(&frames);
    }

    /// The same, and switches.
    fn switch(&mut self) {
        self.owe();
        self.end();
        let switch = self.outbound.switch().encode();
        self.say(&switch);
        assert_eq!(self.lanes[0].reply(0).expect("a reply"), Reply::Synced { round: 1 });
        assert_eq!(self.lanes[0].reply(0).expect("a reply"), Reply::Switched);
    }

    /// Nothing more comes on any channel.
    fn close(&mut self) {
        for lane in &self.lanes {
            lane.closer().expect("a handle").close(Shutdown::Write);
        }
    }
}

/// Receives from `sender`, all of it.
fn receive_from<T: Send>(
    late: &mut Late,
    codec: Codec,
    sender: impl FnOnce(&mut Sender) -> T + Send,
) -> (Result<Counts, Error>, T) {
    let listener = Listener::bind(&"127.0.0.1:0".parse().expect("an address")).expect("a port");
    let to = listener.endpoint().expect("an address");
    thread::scope(|scope| {
        let sender = scope.spawn(move || sender(&mut Sender::new(&to, codec)));
        let arrived = receive_late(listener, late, &options(), &mut |_| ControlFlow::Continue(()));
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

fn stored(extent: Extent, byte: u8) -> (Body, Vec<u8>) {
    let content = vec![byte; extent.len().as_usize()];
    (Body::Stored { extent, digest: xxh3_64(&content) }, content)
}

#[test]
fn what_is_waited_for_is_asked_for_and_the_rest_comes_in_the_background() {
    let mut late = Late::default();
    late.wants.want(3);
    let (received, ()) = receive_from(&mut late, Codec::None, |sender| {
        sender.switch();
        // Whichever of the two asks; the other says now and then that it is there.
        let (mut outbound, mut asked) = (Outbound::default(), None);
        while asked.is_none() {
            for lane in [1, 2] {
                let reply = sender.lanes[lane].reply(lane as u16).expect("a reply");
                if reply == (Reply::Wanted { page: 0 }) {
                    asked = Some(lane);
                    break;
                }
                assert_eq!(reply, Reply::Working);
            }
        }
        let lane = asked.expect("it was asked");
        let (body, content) = stored(extent(0, 8), 3);
        let answer = [outbound.frame(body).encode().to_vec(), content, outbound.sync().0.encode().to_vec()];
        sender.lanes[lane].send(&answer.concat()).expect("sent");
        sender.frame(Body::Zero { extent: extent(32, 4) });
        sender.frame(Body::Filled { extent: extent(36, 4), word: [4; 8] });
        sender.end();
        assert_eq!(sender.lanes[0].reply(0).expect("a reply"), Reply::Synced { round: 2 });
        for lane in [1, 2] {
            while sender.lanes[lane].reply(lane as u16).expect("a reply") != Reply::Finished {}
        }
    });
    let counts = received.expect("received");
    assert_eq!((counts.owed_pages, counts.asked, counts.zero_pages), (16, 1, 4));
    assert_eq!(late.arrived(), (0..8).chain(32..40).collect::<Vec<_>>());
    for (page, byte) in [(0, 3), (7, 3), (8, 0), (16, 6), (32, 0), (36, 4), (39, 4)] {
        assert_eq!(late.page(page), vec![byte; PAGE], "page {page}");
    }
}

fn is_not_owed(error: &Error) -> bool {
    matches!(error, Error::Violation { violation: Violation::NotOwed(_), .. })
}
fn owes(error: &Error) -> bool {
    matches!(error, Error::Violation { violation: Violation::Owes, .. })
}
fn is_violation(error: &Error) -> bool {
    matches!(error, Error::Violation { .. })
}
fn is_lost(error: &Error) -> bool {
    matches!(error, Error::Lost { .. })
}

type Malice = (&'static str, fn(&mut Sender), fn(&Error) -> bool);

const BEFORE: [Malice; 8] = [
    (
        "pages that are owed and come all the same",
        |sender| sender.frame(Body::Zero { extent: extent(7, 1) }),
        is_not_owed,
    ),
    (
        "content of a page that is owed",
        |sender| sender.frame(Body::Filled { extent: extent(33, 9), word: [1; 8] }),
        is_not_owed,
    ),
    ("pages that are owed twice", |sender| sender.frame(Body::Owed { extent: extent(7, 2) }), owes),
    (
        "more that is owed than there is",
        |sender| {
            sender.frame(Body::Owed { extent: extent(IMAGE.get() / PAGE as u64, 1) });
        },
        is_violation,
    ),
    (
        "a switch in the middle",
        |sender| {
            let switch = sender.outbound.switch().encode();
            sender.say(&switch);
        },
        is_violation,
    ),
    (
        "a commit with pages owed",
        |sender| {
            sender.end();
            let commit = sender.outbound.clone().commit().encode();
            sender.say(&commit);
        },
        owes,
    ),
    (
        "something behind the switch",
        |sender| {
            sender.end();
            let switch = sender.outbound.switch().encode();
            let zero = sender.outbound.frame(Body::Zero { extent: extent(0, 1) }).encode();
            sender.say(&[switch, zero].concat());
            // Until it is refused.
            while sender.lanes[0].reply(0).is_ok_and(|reply| reply != Reply::Switched) {}
        },
        |error| {
            matches!(error, Error::Violation { violation: Violation::AfterEnd | Violation::Owes, .. })
                || is_lost(error)
        },
    ),
    ("no switch", |sender| sender.end(), is_lost),
];

const AFTER: [Malice; 9] = [
    ("a page that is not owed", |sender| sender.frame(Body::Zero { extent: extent(16, 1) }), is_not_owed),
    (
        "pages of which half are owed",
        |sender| sender.frame(Body::Filled { extent: extent(4, 8), word: [1; 8] }),
        is_not_owed,
    ),
    (
        "a page twice",
        |sender| {
            sender.frame(Body::Zero { extent: extent(0, 8) });
            sender.frame(Body::Filled { extent: extent(7, 1), word: [1; 8] });
        },
        is_not_owed,
    ),
    ("more that is owed", |sender| sender.frame(Body::Owed { extent: extent(64, 1) }), owes),
    (
        "another switch",
        |sender| {
            let switch = sender.outbound.switch().encode();
            sender.say(&switch);
        },
        is_violation,
    ),
    (
        "an end with pages owed",
        |sender| {
            sender.frame(Body::Zero { extent: extent(0, 8) });
            sender.end();
        },
        owes,
    ),
    (
        "an answer to what was not asked",
        |sender| {
            let zero = Outbound::default().frame(Body::Zero { extent: extent(0, 8) }).encode();
            sender.lanes[1].send(&zero).expect("sent");
            sender.frame(Body::Zero { extent: extent(32, 8) });
            sender.end();
        },
        owes,
    ),
    ("noise", |sender| sender.say(&[0x5a; 4096]), |error| matches!(error, Error::Damaged { .. })),
    ("nothing", |_| {}, is_lost),
];

#[test]
fn malice_before_the_switch_is_noticed_and_nothing_is_shown() {
    for (what, malice, is_noticed) in BEFORE {
        let mut late = Late::default();
        let (received, ()) = receive_from(&mut late, Codec::None, |sender| {
            sender.owe();
            malice(sender);
            sender.close();
        });
        let error = received.map(drop).expect_err(what);
        assert!(is_noticed(&error), "{what}: {error}");
        assert_eq!(late.arrived(), [0; 0], "{what}");
    }
    // A switch for nothing.
    let (received, ()) = receive_from(&mut Late::default(), Codec::None, |sender| {
        sender.end();
        let switch = sender.outbound.switch().encode();
        sender.say(&switch);
    });
    assert!(owes(&received.map(drop).expect_err("nothing is owed")));
}

#[test]
fn malice_after_the_switch_is_noticed_and_overwrites_nothing() {
    for (what, malice, is_noticed) in AFTER {
        let mut late = Late::default();
        let (received, ()) = receive_from(&mut late, Codec::None, |sender| {
            sender.switch();
            malice(sender);
            sender.close();
        });
        let error = received.map(drop).expect_err(what);
        assert!(is_noticed(&error), "{what}: {error}");
        assert_eq!(late.page(16), vec![6; PAGE], "{what}");
        assert!(late.arrived().iter().all(|page| late.page(*page) == vec![0; PAGE]), "{what}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever happens to what follows the switch: a page that arrives is right, and all of them are or it fails.
    #[test]
    fn what_arrives_is_what_was_sent_whatever_was_tampered_with(
        codec in prop::sample::select(&Codec::ALL[..]), how in 0u8..5, at: prop::sample::Index,
        noise in prop::collection::vec(any::<u8>(), 1..100)
    ) {
        let content: Vec<u8> = (0..8 * PAGE).map(|i| (i / 5) as u8).collect();
        let mut late = Late::default();
        let (received, ()) = receive_from(&mut late, codec, |sender| {
            sender.switch();
            let (mut says, mut packed) = (Vec::new(), vec![0; content.len()]);
            let digest = xxh3_64(&content);
            match Packer::new(codec).expect("memory").pack(&content, &mut packed) {
                Some(len) => {
                    let body = Body::Data { extent: extent(0, 8), packed_bytes: len as u32, digest };
                    says.extend([&sender.outbound.frame(body).encode(), &packed[..len]].concat());
                }
                None => {
                    let body = Body::Stored { extent: extent(0, 8), digest };
                    says.extend([&sender.outbound.frame(body).encode()[..], &content].concat());
                }
            }
            says.extend(sender.outbound.frame(Body::Zero { extent: extent(32, 8) }).encode());
            says.extend([sender.outbound.sync().0, sender.outbound.end()].map(Frame::encode).concat());
            let at = at.index(says.len());
            let until = says.len().min(at + noise.len());
            match how {
                0 => says.truncate(at),
                1 => says[at..until].copy_from_slice(&noise[..until - at]),
                2 => drop(says.splice(at..at, noise)),
                3 => drop(says.drain(at..until)),
                _ => {}
            }
            sender.say(&says);
            sender.lanes[0].closer().expect("a handle").close(Shutdown::Write);
            // Until the receiver is done with it.
            while sender.lanes[1].reply(1).is_ok_and(|reply| reply == Reply::Working) {}
        });
        let arrived = late.arrived();
        for &page in &arrived {
            let at = page as usize * PAGE;
            let right = if page < 8 { content[at..at + PAGE].to_vec() } else { vec![0; PAGE] };
            prop_assert!(late.page(page) == right, "page {}", page);
        }
        match received {
            Ok(_) => prop_assert_eq!(arrived.len(), 16),
            Err(error) => prop_assert!(how < 4, "{}", error),
        }
    }
}
