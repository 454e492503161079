//! Any bytes as what either side of a migration may be sent: nothing panics, and what is taken means itself.
//!
//! Checksums are made right first, or no input would get past them.
#![no_main]

use std::convert::Infallible;
use std::sync::atomic::AtomicU64;

use libfuzzer_sys::fuzz_target;
use pagoda_core::migrate::channel::Inbound;
use pagoda_core::migrate::frame::{Body, FRAME_BYTES, Frame, PAYLOAD_MOST};
use pagoda_core::migrate::geometry::Geometry;
use pagoda_core::migrate::handshake::{ANSWER_BYTES, Answer, GREETING_BYTES, Greeting, HELLO_BYTES, Hello};
use pagoda_core::migrate::received::{ReceivedMap, words_for};
use pagoda_core::migrate::reply::{REPLY_BYTES, Reply};
use pagoda_core::size::Bytes;
use xxhash_rust::xxh3::xxh3_64;

/// The first bytes of the input as a message with a right checksum.
fn message<const N: usize>(input: &[u8]) -> Option<[u8; N]> {
    let mut bytes = *input.first_chunk::<N>()?;
    let checksum = xxh3_64(&bytes[..N - 8]);
    bytes[N - 8..].copy_from_slice(&checksum.to_le_bytes());
    Some(bytes)
}

fuzz_target!(|input: &[u8]| {
    if let Some(bytes) = message::<GREETING_BYTES>(input) {
        assert!(Greeting::decode(&bytes).map_or(true, |said| said.encode() == bytes));
    }
    if let Some(bytes) = message::<ANSWER_BYTES>(input) {
        assert!(Answer::decode(&bytes).map_or(true, |said| said.encode() == bytes));
    }
    if let Some(bytes) = message::<REPLY_BYTES>(input) {
        assert!(Reply::decode(&bytes).map_or(true, |said| said.encode() == bytes));
    }
    if let Some(bytes) = message::<HELLO_BYTES>(input) {
        assert!(Hello::decode(&bytes).map_or(true, |said| said.encode() == bytes));
    }
    let (Some((&size, rest)), Some(geometry)) = (input.split_first(), Geometry::new(Bytes::mib(7), 2)) else {
        return;
    };
    let mut inbound = Inbound::new(geometry, u16::from(size % 2));
    let words = (0..words_for(geometry.pages())).map(|_| AtomicU64::new(0)).collect();
    let received: ReceivedMap = ReceivedMap::new(words, geometry.pages());
    for piece in rest.chunks(FRAME_BYTES) {
        let Some(bytes) = message::<FRAME_BYTES>(piece) else { return };
        let Ok(frame) = Frame::decode(&bytes) else { return };
        assert!(frame.encode() == bytes && frame.body.payload_bytes() <= PAYLOAD_MOST);
        if inbound.accept(frame).is_err() {
            return;
        }
        if frame.body == Body::Switch {
            inbound = inbound.go_on();
        }
        if let Some(extent) = frame.body.extent() {
            let Ok(()) = received.mark(extent, |pages, _| {
                assert!(pages.start < pages.end && pages.end <= geometry.pages());
                Ok::<_, Infallible>(())
            });
        }
    }
});
