//! A receiver that is not ours: for any message or silence of it, the sender ends with a reason.

use std::io;
use std::ops::Range;
use std::thread;

use pagoda_core::migrate::frame::{Body, Frame};
use pagoda_core::migrate::handshake::{
    ANSWER_BYTES, Answer, GREETING_BYTES, Greeting, HELLO_BYTES, VERSION, VERSION_BYTES, version_of,
};
use pagoda_core::migrate::kept::Kept;

use super::*;
use crate::testing::{listen, token};

const SIZE: u64 = 3 << 20;
/// The patience with a receiver that only keeps the sender waiting.
const STALL: Duration = Duration::from_secs(1);

/// An image that has one page with content between two holes, and must not be read elsewhere.
struct OnePage;

impl Source for OnePage {
    fn size(&self) -> Bytes {
        Bytes::new(SIZE)
    }
    fn data_in(&self, range: Range<u64>) -> io::Result<Option<Range<u64>>> {
        let page = 8192..12288;
        Ok((range.start < page.end && page.start < range.end).then(|| page.start.max(range.start)..page.end))
    }
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        assert_eq!((offset, into.len()), (8192, 4096), "a hole is read");
        into.iter_mut().enumerate().for_each(|(i, byte)| *byte = i as u8);
        Ok(())
    }
    fn is_unchanged(&self) -> io::Result<bool> {
        Ok(true)
    }
}

/// Sends over one channel to `receiver`.
fn send_to(token: Option<Token>, receiver: impl FnOnce(Connection) + Send) -> Result<Counts, Error> {
    let (listener, to) = listen();
    let options =
        SendOptions { channels: 1, codec: Codec::None, token, stall: STALL, ..SendOptions::default() };
    thread::scope(|scope| {
        scope.spawn(move || {
            let long = Duration::from_secs(20);
            let socket = listener.accept(long, long).expect("looked").expect("a sender");
            receiver(Connection::Plain(socket));
        });
        send(&OnePage, &to, &options, &mut |_| ControlFlow::Continue(()))
    })
}

/// Admits the sender, and takes its frames up to the end of its round.
fn to_sync(connection: &mut Connection) -> Vec<Frame> {
    let heard = handshake::hear(connection, None, Duration::from_secs(20)).expect("heard");
    handshake::answer(connection, heard, |_| Ok(())).expect("admitted");
    connection.send(&Kept::End.encode()).expect("sent");
    let mut frames: Vec<Frame> = Vec::new();
    while !matches!(frames.last(), Some(Frame { body: Body::Sync { .. }, .. })) {
        let frame = next(connection);
        let mut payload = vec![0; frame.body.payload_bytes()];
        io::Read::read_exact(connection, &mut payload).expect("a payload");
        frames.push(frame);
    }
    frames
}

fn next(connection: &mut Connection) -> Frame {
    Frame::decode(&connection.read_message().expect("a header")).expect("a frame")
}

fn say(connection: &mut Connection, reply: Reply) {
    connection.send(&reply.encode()).expect("sent");
}

#[test]
fn holes_are_neither_read_nor_sent() {
    let sent = send_to(None, |mut connection| {
        let frames = to_sync(&mut connection);
        assert_eq!(frames.len(), 2, "{frames:?}");
        assert_eq!(frames[0].body.extent().map(|extent| (extent.first(), extent.count())), Some((2, 1)));
        say(&mut connection, Reply::Synced { round: 1 });
        assert_eq!(next(&mut connection).body, Body::End { round: 1 });
        assert_eq!(next(&mut connection).body, Body::Commit);
        // A slow disk: longer in all than the sender waits for one word.
        for _ in 0..4 {
            thread::sleep(STALL / 3);
            say(&mut connection, Reply::Working);
        }
        say(&mut connection, Reply::Finished);
    });
    let counts = sent.expect("sent");
    assert_eq!((counts.data_pages, counts.zero_pages, counts.image_bytes), (1, 0, SIZE));
}

#[test]
fn a_peer_that_is_no_receiver_gets_no_frame() {
    let greeting = |version, wants_token| Greeting { version, wants_token, nonce: [1; PROOF_BYTES] }.encode();
    let sent = send_to(None, |mut connection| connection.send(&[b'x'; GREETING_BYTES]).expect("sent"));
    assert!(matches!(sent, Err(Error::NotPagoda)), "{sent:?}");
    // It hears of this side's version, so that it can name both as well.
    let sent = send_to(None, |mut connection| {
        connection.send(&greeting(VERSION + 1, false)).expect("sent");
        let start: [u8; VERSION_BYTES] = connection.read_message().expect("a version");
        assert_eq!(version_of(&start), Some(VERSION));
    });
    let error = sent.map(drop).expect_err("another version");
    assert!(matches!(error, Error::OtherVersion(version) if version == VERSION + 1), "{error}");
    let both = [VERSION, VERSION + 1].map(|version| version.to_string());
    assert!(both.iter().all(|version| error.to_string().contains(version)), "{error}");
    let sent = send_to(None, |_connection| thread::sleep(2 * STALL));
    assert!(matches!(sent, Err(Error::Silent(STALL))), "{sent:?}");
    // It says that it has the token, and has not.
    let sent = send_to(Some(token("the token of the sender")), |mut connection| {
        connection.send(&greeting(VERSION, true)).expect("sent");
        let _: [u8; HELLO_BYTES] = connection.read_message().expect("a hello");
        let answer: [u8; ANSWER_BYTES] = Answer::Taken { proof: [9; PROOF_BYTES] }.encode();
        connection.send(&answer).expect("sent");
        assert!(connection.read_message::<1>().is_err(), "a frame was sent");
    });
    assert!(matches!(sent, Err(Error::ReceiverUnproven)), "{sent:?}");
}

#[test]
fn a_receiver_that_answers_wrongly_or_not_at_all_has_not_got_it() {
    type Receiver = fn(Connection);
    type Is = fn(&Error) -> bool;
    let after_commit = |connection: &mut Connection| {
        to_sync(connection);
        say(connection, Reply::Synced { round: 1 });
        (next(connection), next(connection))
    };
    let cases: [(&str, Receiver, Is); 4] = [
        (
            "another round",
            |mut connection| {
                to_sync(&mut connection);
                say(&mut connection, Reply::Synced { round: 2 });
            },
            |error| matches!(error, Error::StrangeReply { .. }),
        ),
        (
            "finished before the end",
            |mut connection| {
                to_sync(&mut connection);
                say(&mut connection, Reply::Finished);
            },
            |error| matches!(error, Error::StrangeReply { .. }),
        ),
        (
            "noise",
            |mut connection| {
                to_sync(&mut connection);
                connection.send(&[0x33; 24]).expect("sent");
            },
            |error| matches!(error, Error::Damaged { .. }),
        ),
        (
            "nothing",
            |mut connection| {
                to_sync(&mut connection);
                thread::sleep(2 * STALL);
            },
            |error| matches!(error, Error::Stalled { after: STALL, .. }),
        ),
    ];
    for (what, receiver, is_right) in cases {
        let error = send_to(None, receiver).expect_err(what);
        assert!(is_right(&error), "{what}: {error}");
    }
    let sent = send_to(None, |mut connection| {
        after_commit(&mut connection);
    });
    assert!(matches!(sent, Err(Error::Unconfirmed)), "{sent:?}");
    let sent = send_to(None, |mut connection| {
        after_commit(&mut connection);
        say(&mut connection, Reply::Failed(pagoda_core::migrate::reply::Failure::Destination));
    });
    assert!(matches!(sent, Err(Error::Peer(_))), "{sent:?}");
}
