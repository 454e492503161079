//! A sender that is not ours: rounds that ours does not make, and channels that don't belong.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use pagoda_core::migrate::channel::Outbound;
use pagoda_core::migrate::frame::{Body, Frame};
use pagoda_core::migrate::geometry::{Geometry, IMAGE_MOST};
use pagoda_core::migrate::handshake::{ANSWER_BYTES, Answer, Codec, GREETING_BYTES, Hello, Refusal, VERSION};
use pagoda_core::migrate::zero::ZeroPolicy;
use pagoda_linux::procfs::pagemap::{PagemapScanner, Presence};

use super::*;
use crate::net::endpoint::Endpoint;
use crate::receive::destination::{ImageDestination, MemoryDestination};
use crate::testing::{IMAGE, PAGE, connect, digest, extent, hello, options, receive_from};

/// A whole sender of one channel: rounds of runs of pages, each of one byte.
fn send_rounds(to: &Endpoint, rounds: &[&[(u64, u32, u8)]]) {
    let mut connection = connect(to, hello(Codec::None, 1, 0)).expect("admitted");
    let mut outbound = Outbound::default();
    for round in rounds {
        for &(first, count, byte) in *round {
            let (extent, content) = (extent(first, count), vec![byte; count as usize * PAGE]);
            let body = match byte {
                0 => Body::Zero { extent },
                byte if byte % 2 == 0 => Body::Filled { extent, word: [byte; 8] },
                _ => Body::Stored { extent, digest: digest(extent, &content) },
            };
            connection.send(&outbound.frame(body).encode()).expect("sent");
            if byte % 2 == 1 {
                connection.send(&content).expect("sent");
            }
        }
        let (sync, round) = outbound.sync();
        connection.send(&sync.encode()).expect("sent");
        assert_eq!(connection.reply(0).expect("a reply"), Reply::Synced { round });
    }
    connection.send(&outbound.end().encode()).expect("sent");
    connection.send(&outbound.commit().encode()).expect("sent");
    while connection.reply(0).expect("a reply") != Reply::Finished {}
}

/// Its touched pages, and those of them that hold memory: a page that was only read is the kernel's
/// zero page.
fn present_pages(memory: &MemoryDestination) -> (usize, usize) {
    let range = memory.addresses().expect("prepared");
    let (mut touched, mut held) = (0, 0);
    let count = |run: std::ops::Range<usize>, presence| {
        touched += run.len() / PAGE;
        held += if presence == Presence::Memory { run.len() / PAGE } else { 0 };
    };
    PagemapScanner::new().expect("pagemap").populated_runs(range.start, range.end, count).expect("scanned");
    (touched, held)
}

/// Pages 0..8: zero, data, zero. 8..16: data, zero, data. 16..24: zero and zero again. 24..32:
/// data. 32..64: zero.
const ROUNDS: [&[(u64, u32, u8)]; 3] = [
    &[(0, 8, 0), (8, 8, 3), (16, 8, 0), (24, 4, 5), (28, 4, 6), (32, 32, 0)],
    &[(0, 8, 7), (8, 8, 0), (16, 8, 0)],
    &[(0, 8, 0), (8, 8, 9)],
];

#[test]
fn zero_data_zero_ends_as_zero_under_each_policy_and_only_drop_gives_the_frames_back() {
    for (zero, touched, held) in
        [(ZeroPolicy::CheckThenClear, 64, 24), (ZeroPolicy::ReceivedMap, 32, 32), (ZeroPolicy::Drop, 16, 16)]
    {
        let mut memory = MemoryDestination::new();
        // With any earlier content.
        memory.prepare(IMAGE).expect("memory");
        memory.write_at(0, &vec![0xee; 64 * PAGE]).expect("written");
        let (received, ()) =
            receive_from(&mut memory, &ReceiveOptions { zero, ..options() }, |to| send_rounds(&to, &ROUNDS));
        let counts = received.expect("received");
        assert_eq!(present_pages(&memory), (touched, held), "{zero}");
        let mut content = vec![1; IMAGE.as_usize()];
        memory.read_at(0, &mut content).expect("read");
        let expected = [(0..8, 0), (8..16, 9), (16..24, 0), (24..28, 5), (28..32, 6), (32..2048, 0)];
        for (pages, byte) in expected {
            assert!(
                content[pages.start * PAGE..pages.end * PAGE].iter().all(|b| *b == byte),
                "{zero}: {byte}"
            );
        }
        let first_zero = 16 + 32;
        let again = 8 + 8 + 8;
        let (left, checked, discarded) =
            (counts.zero_left_pages, counts.zero_checked_pages, counts.zero_discarded_pages);
        match zero {
            ZeroPolicy::CheckThenClear => {
                assert_eq!((left, checked, discarded), (0, first_zero + again, 0));
                assert_eq!(counts.zero_cleared_pages, 16, "those that had content");
            }
            ZeroPolicy::ReceivedMap => {
                assert_eq!((left, checked, discarded), (first_zero, 0, 0));
                assert_eq!(counts.zero_cleared_pages, again);
            }
            ZeroPolicy::Drop => {
                assert_eq!((left, checked, discarded), (first_zero, 0, again));
                assert_eq!(counts.zero_cleared_pages, 0);
            }
        }
    }
}

#[test]
fn zero_data_zero_is_a_hole_again_in_a_file() {
    use std::os::unix::fs::MetadataExt;

    let directory = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let path = directory.path().join("image");
    let mut file = ImageDestination::new(path.clone()).expect("nothing is there");
    let (received, ()) = receive_from(&mut file, &options(), |to| send_rounds(&to, &ROUNDS));
    received.expect("received");
    let metadata = path.metadata().expect("metadata");
    assert_eq!((metadata.len(), metadata.blocks() * 512), (IMAGE.get(), 16 * PAGE as u64));
}

#[test]
fn strangers_are_refused_and_the_sender_still_gets_in() {
    let mut memory = MemoryDestination::new();
    let refused = |outcome: Result<Connection, Error>, refusal| {
        assert!(matches!(outcome, Err(Error::Refused(was)) if was == refusal), "not {refusal:?}");
    };
    let with = |image, channels| Geometry::new(image, channels).expect("a geometry");
    let (received, ()) = receive_from(&mut memory, &options(), |to| {
        let own = hello(Codec::None, 2, 0);
        refused(connect(&to, Hello { geometry: with(IMAGE_MOST, 2), ..own }), Refusal::TooLarge);
        refused(connect(&to, Hello { switches: true, ..own }), Refusal::Switches);
        // A silent peer is waited for no longer than a handshake may take; a peer that leaves, not
        // at all.
        let Endpoint::Tcp { port, .. } = &to else { unreachable!("TCP") };
        drop(TcpStream::connect(("127.0.0.1", *port)).expect("connected"));
        let mut stranger = TcpStream::connect(("127.0.0.1", *port)).expect("connected");
        let _ = stranger.write_all(&[b'G'; 200]);
        let mut first = connect(&to, own).expect("admitted");
        refused(connect(&to, own), Refusal::Channel);
        let second = Hello { channel: 1, ..own };
        refused(connect(&to, Hello { session: [8; 16], ..second }), Refusal::Busy);
        refused(connect(&to, Hello { codec: Codec::Lz4, ..second }), Refusal::Channel);
        refused(connect(&to, Hello { geometry: with(Bytes::mib(4), 2), ..second }), Refusal::Channel);
        let mut second = connect(&to, second).expect("admitted");
        let mut outbounds = [Outbound::default(), Outbound::default()];
        for (connection, outbound) in [&mut first, &mut second].into_iter().zip(&mut outbounds) {
            let frames = [outbound.sync().0, outbound.end()].map(Frame::encode).concat();
            connection.send(&frames).expect("sent");
        }
        let [outbound, _] = outbounds;
        first.send(&outbound.commit().encode()).expect("sent");
        assert_eq!(first.reply(0).expect("a reply"), Reply::Synced { round: 1 });
        assert_eq!(first.reply(0).expect("a reply"), Reply::Finished);
    });
    received.expect("received");
}

/// Of a version whose messages may be shorter, and that says nothing else.
#[test]
fn a_sender_of_another_version_is_refused_with_both_named() {
    let (listener, to) = crate::testing::listen();
    let Endpoint::Tcp { port, .. } = &to else { unreachable!("TCP") };
    let mut stranger = TcpStream::connect(("127.0.0.1", *port)).expect("connected");
    let mut start = *b"PagodaMv\0\0";
    start[8..].copy_from_slice(&(VERSION + 7).to_le_bytes());
    stranger.write_all(&start).expect("sent");
    let mut told = String::new();
    let received = crate::receive(listener, &mut MemoryDestination::new(), &options(), &mut |event| {
        let Event::Turned(error) = event else { return ControlFlow::Continue(()) };
        assert!(matches!(error, Error::OtherVersion(version) if *version == VERSION + 7), "{error}");
        told = error.to_string();
        ControlFlow::Break(())
    });
    assert!(matches!(received, Err(Error::Cancelled)), "{received:?}");
    let both = [VERSION, VERSION + 7].map(|version| version.to_string());
    assert!(both.iter().all(|version| told.contains(version)), "{told}");
    let mut answer = vec![0; GREETING_BYTES + ANSWER_BYTES];
    stranger.read_exact(&mut answer).expect("an answer");
    let answer = answer[GREETING_BYTES..].try_into().expect("its length");
    assert_eq!(Answer::decode(answer), Ok(Answer::Refused(Refusal::Version)));
}

#[test]
fn silent_strangers_hold_no_sender_up() {
    let mut memory = MemoryDestination::new();
    let (received, ()) = receive_from(&mut memory, &options(), |to| {
        let Endpoint::Tcp { port, .. } = &to else { unreachable!("TCP") };
        let silent = || -> Vec<_> {
            (0..20).map(|_| TcpStream::connect(("127.0.0.1", *port)).expect("connected")).collect()
        };
        // Each of them alone would be heard for 10 s, and the sender waits for 20.
        let before = silent();
        let first = connect(&to, hello(Codec::None, 2, 0)).expect("admitted");
        let between = silent();
        let second = connect(&to, hello(Codec::None, 2, 1)).expect("admitted");
        // The longest-waiting peer had to leave for the others: it reads nothing else after the
        // greeting, or before.
        let mut heard = Vec::new();
        let mut longest = &before[0];
        longest.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
        longest.read_to_end(&mut heard).expect("the end");
        assert!([0, GREETING_BYTES].contains(&heard.len()), "{heard:?}");
        drop((first, second, between));
    });
    assert!(matches!(received, Err(Error::Lost { .. })), "{received:?}");
}

#[test]
fn channels_that_do_not_come_are_not_waited_for() {
    let mut memory = MemoryDestination::new();
    let options = ReceiveOptions { stall: Duration::from_secs(1), ..options() };
    let (received, _connection) =
        receive_from(&mut memory, &options, |to| connect(&to, hello(Codec::None, 3, 2)).expect("admitted"));
    assert!(matches!(received, Err(Error::ChannelsMissing { came: 1, of: 3, .. })), "{received:?}");
    assert_eq!(memory.size(), Bytes::ZERO, "nothing was made");
}

#[test]
fn strangers_that_keep_coming_do_not_make_it_wait_for_longer() {
    let mut memory = MemoryDestination::new();
    let options = ReceiveOptions { wait: Duration::from_secs(1), ..options() };
    let (received, ended) = receive_from(&mut memory, &options, |to| {
        let Endpoint::Tcp { port, .. } = &to else { unreachable!("TCP") };
        let until = Instant::now() + Duration::from_secs(20);
        // Until the listener is gone.
        while TcpStream::connect(("127.0.0.1", *port)).is_ok() {
            if Instant::now() >= until {
                return false;
            }
            thread::sleep(Duration::from_millis(1));
        }
        true
    });
    assert!(ended, "it waits for as long as strangers come");
    assert!(matches!(received, Err(Error::NobodyCame(_))), "{received:?}");
}
