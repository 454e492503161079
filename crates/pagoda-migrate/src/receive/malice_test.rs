//! Every malicious or damaged message on the wire is noticed, and nothing is shown.

use std::net::Shutdown;

use pagoda_core::migrate::channel::{Outbound, Violation};
use pagoda_core::migrate::frame::{Body, FRAME_BYTES, Frame};
use pagoda_core::migrate::handshake::Codec;
use pagoda_linux::testing::directory::names;
use proptest::prelude::*;
use twox_hash::XxHash3_64;

use crate::error::Error;
use crate::net::endpoint::Endpoint;
use crate::receive::destination::{Destination, ImageDestination, MemoryDestination};
use crate::testing::tampering::Tampering;
use crate::testing::{
    IMAGE, PAGE, connect, digest, eight_pages, extent, hello, is_damaged, is_lost, is_violation, options,
    owes, packed, receive_from,
};
use crate::wire::codec::Packer;

/// A sender's bytes after its handshake, and the expected outcome.
struct Malice {
    what: &'static str,
    codec: Codec,
    says: Vec<u8>,
    is_noticed: fn(&Error) -> bool,
}

fn frame(sequence: u64, body: Body) -> Vec<u8> {
    Frame { sequence, body }.encode().to_vec()
}

/// A header with any fields and a right checksum.
fn raw_header(kind: u8, count: u32, first: u64, what: u64) -> Vec<u8> {
    let mut bytes = vec![kind, 0, 0, 0];
    bytes.extend(count.to_le_bytes());
    for field in [0, first, what, 0] {
        bytes.extend(field.to_le_bytes());
    }
    bytes.extend(XxHash3_64::oneshot(&bytes).to_le_bytes());
    assert_eq!(bytes.len(), FRAME_BYTES);
    bytes
}

fn is_not_owned(error: &Error) -> bool {
    matches!(error, Error::Violation { violation: Violation::NotOwned(_), .. })
}

fn malices() -> Vec<Malice> {
    let malice = |what, says, is_noticed| Malice { what, codec: Codec::None, says, is_noticed };
    let zero = |first, count| Body::Zero { extent: extent(first, count) };
    let page = vec![3; PAGE];
    let stored = |digest| [frame(0, Body::Stored { extent: extent(0, 1), digest }), page.clone()].concat();
    let sync = |sequence, round, pages| frame(sequence, Body::Sync { round, pages });
    let end = |sequence| frame(sequence, Body::End { round: 1 });
    let mut all = vec![
        malice("a page beyond the image", frame(0, zero(IMAGE.get() / PAGE as u64, 1)), is_not_owned),
        malice("an extent half beyond", frame(0, zero(IMAGE.get() / PAGE as u64 + 512, 1)), is_not_owned),
        malice("another channel's stripe", frame(0, zero(512, 1)), is_not_owned),
        malice("an extent over two stripes", raw_header(4, 513, 0, 0), is_damaged),
        malice("an extent that wraps", raw_header(4, 1, u64::MAX, 0), is_damaged),
        malice("no pages", raw_header(4, 0, 0, 0), is_damaged),
        malice("a payload longer than its pages", raw_header(1, 1, 0, 1 << 40), is_damaged),
        malice("a payload of nothing", raw_header(1, 1, 0, 0), is_damaged),
        malice("an unknown kind", raw_header(12, 0, 0, 0), is_damaged),
        malice("the last round of some pages", raw_header(11, 1, 0, 0), is_damaged),
        malice("pages that are owed without an agreement", raw_header(9, 1, 0, 0), owes),
        malice("words that are zero", raw_header(3, 1, 0, 0), is_damaged),
        malice(
            "noise",
            (0..4096_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect(),
            is_damaged,
        ),
        malice("a wrong digest", stored(1), is_damaged),
        malice("a frame that is missing", frame(1, zero(0, 1)), is_violation),
        malice("a frame twice", [frame(0, zero(0, 1)), frame(0, zero(0, 1))].concat(), is_violation),
        malice("a round with other pages", [frame(0, zero(0, 2)), sync(1, 1, 1)].concat(), is_violation),
        malice("the second round first", sync(0, 2, 0), is_violation),
        malice("an end without a round", end(0), is_violation),
        malice("a commit without an end", [sync(0, 1, 0), frame(1, Body::Commit)].concat(), is_violation),
        malice("a switch without an end", [sync(0, 1, 0), frame(1, Body::Switch)].concat(), is_violation),
        malice("a half frame", frame(0, zero(0, 1))[..20].to_vec(), is_lost),
        malice("a half payload", stored(digest(extent(0, 1), &page))[..FRAME_BYTES + 9].to_vec(), |e| {
            matches!(e, Error::Lost { .. })
        }),
        malice("an end, and nothing of the other channel", [sync(0, 1, 0), end(1)].concat(), |e| {
            matches!(e, Error::Lost { .. })
        }),
        malice(
            "a commit, and nothing of the other channel",
            [sync(0, 1, 0), end(1), frame(2, Body::Commit)].concat(),
            is_lost,
        ),
    ];
    all.extend(malices_of_the_last_round());
    all.extend(bombs());
    all
}

fn malices_of_the_last_round() -> [Malice; 4] {
    let malice = |what, says, is_noticed| Malice { what, codec: Codec::None, says, is_noticed };
    let zero = |first, count| Body::Zero { extent: extent(first, count) };
    let sync = |sequence, round, pages| frame(sequence, Body::Sync { round, pages });
    [
        malice("the last round first", frame(0, Body::Last), is_violation),
        malice(
            "the last round in the middle of one",
            [sync(0, 1, 0), frame(1, zero(0, 1)), frame(2, Body::Last)].concat(),
            is_violation,
        ),
        malice(
            "a page beyond the image in the last round",
            [sync(0, 1, 0), frame(1, Body::Last), frame(2, zero(IMAGE.get() / PAGE as u64, 1))].concat(),
            is_not_owned,
        ),
        malice(
            "the last round, and nothing of the other channel",
            [
                sync(0, 1, 0),
                frame(1, Body::Last),
                frame(2, zero(512, 1)),
                sync(3, 2, 1),
                frame(4, Body::End { round: 2 }),
            ]
            .concat(),
            is_lost,
        ),
    ]
}

/// As much as packs best, said to be one page.
fn bombs() -> Vec<Malice> {
    let mut all = Vec::new();
    for codec in Codec::ALL {
        let (zeroes, mut packed) = (vec![0; 2 << 20], vec![0; 2 << 20]);
        let len = Packer::new(codec).expect("memory").pack(&zeroes, &mut packed);
        let len = len.map_or(100, |len| len.min(PAGE - 1));
        let body = Body::Data {
            extent: extent(0, 1),
            packed_bytes: len as u32,
            digest: digest(extent(0, 1), &zeroes[..PAGE]),
        };
        let says = [frame(0, body), packed[..len].to_vec()].concat();
        all.push(Malice { what: "a bomb", codec, says, is_noticed: is_damaged });
        let says = [frame(0, body), vec![0x5a; len]].concat();
        all.push(Malice { what: "noise as payload", codec, says, is_noticed: is_damaged });
    }
    all
}

/// Says it on channel 0 of two, and closes.
fn be_malicious(to: &Endpoint, codec: Codec, says: &[u8]) {
    let mut connections = [0, 1].map(|channel| connect(to, hello(codec, 2, channel)).expect("admitted"));
    // The receiver may have closed it already.
    let _ = connections[0].send(says);
    connections.iter().for_each(|connection| connection.closer().expect("a handle").close(Shutdown::Write));
}

#[test]
fn malice_is_noticed_and_nothing_is_shown() {
    let directory = tempfile::tempdir_in("/var/tmp").expect("a directory");
    for Malice { what, codec, says, is_noticed } in malices() {
        let mut file = ImageDestination::new(directory.path().join("image")).expect("nothing is there");
        let (received, ()) = receive_from(&mut file, &options(), |to| be_malicious(&to, codec, &says));
        drop(file);
        let error = received.expect_err(what);
        assert!(is_noticed(&error), "{what}, {codec}: {error}");
        assert_eq!(names(directory.path()), [""; 0], "{what}, {codec}");
    }
}

/// A whole channel as its bytes, of a sender of 2 MiB in one channel.
fn whole_channel(codec: Codec) -> (Vec<u8>, Vec<u8>) {
    let content = eight_pages();
    let mut image = vec![0; IMAGE.as_usize()];
    image[..content.len()].copy_from_slice(&content);
    let mut outbound = Outbound::default();
    let mut says = packed(&mut outbound, codec, extent(0, 8), &content);
    says.extend(outbound.frame(Body::Zero { extent: extent(64, 8) }).encode());
    says.extend(outbound.sync().0.encode());
    says.extend(outbound.end().encode());
    says.extend(outbound.commit().encode());
    (says, image)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// For any tampering with the bytes of a channel, the image is right or it is not there.
    #[test]
    fn a_channel_that_was_tampered_with_is_refused(
        codec in prop::sample::select(&Codec::ALL[..]), tampering in Tampering::any()
    ) {
        let (mut says, image) = whole_channel(codec);
        tampering.happen_to(&mut says);
        let mut memory = MemoryDestination::new();
        let (received, ()) = receive_from(&mut memory, &options(), |to| {
            let mut connection = connect(&to, hello(codec, 1, 0)).expect("admitted");
            let _ = connection.send(&says);
            connection.closer().expect("a handle").close(Shutdown::Write);
            // Until the receiver is done with it.
            while connection.reply(0).is_ok() {}
        });
        match received {
            Ok(_) => {
                let mut content = vec![1; image.len()];
                memory.read_at(0, &mut content).expect("read");
                prop_assert!(content == image);
            }
            Err(error) => {
                prop_assert!(tampering.changes_something(), "{}", error);
            }
        }
    }
}
