//! Any bytes as what either side of a migration may be sent: nothing panics, and what is taken means itself.
//!
//! Checksums are made right first, or no input would get past them.
#![no_main]

use std::convert::Infallible;
use std::sync::atomic::AtomicU64;

use libfuzzer_sys::fuzz_target;
use pagoda_core::migrate::channel::{Inbound, Outbound};
use pagoda_core::migrate::frame::{Body, FRAME_BYTES, Frame, PAYLOAD_MOST};
use pagoda_core::migrate::geometry::Geometry;
use pagoda_core::migrate::handshake::{ANSWER_BYTES, Answer, GREETING_BYTES, Greeting, HELLO_BYTES, Hello};
use pagoda_core::migrate::pages::PageSet;
use pagoda_core::migrate::received::{ReceivedMap, words_for};
use pagoda_core::migrate::reply::{REPLY_BYTES, Reply};
use pagoda_core::size::Bytes;
use twox_hash::XxHash3_64;

/// The first bytes of the input as a message with a right checksum.
fn message<const N: usize>(input: &[u8]) -> Option<[u8; N]> {
    let mut bytes = *input.first_chunk::<N>()?;
    let checksum = XxHash3_64::oneshot(&bytes[..N - 8]);
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
    let (Some((&kind, rest)), Some(geometry)) = (input.split_first(), Geometry::new(Bytes::mib(7), 2)) else {
        return;
    };
    let words = |count: u64| (0..count).map(|_| AtomicU64::new(0)).collect();
    let received: ReceivedMap = ReceivedMap::new(words(words_for(geometry.pages())), geometry.pages());
    let owed = PageSet::new(words(PageSet::words_for(geometry.pages())));
    // As it is; or numbered as by a sender, without which hardly any input gets past the first frames.
    let (as_said, mut outbound) = (kind % 2 == 0, Outbound::default());
    // Of one of the two channels, or of one on which pages are asked for: it begins after the switch, where all is owed.
    let channel = u16::from(kind / 2 % 3);
    let is_asked = channel == geometry.channels();
    let mut switched = is_asked;
    let mut inbound = if is_asked { Inbound::asked(geometry) } else { Inbound::new(geometry, channel) };
    if is_asked {
        owed.add(0..geometry.pages());
    }
    for piece in rest.chunks(FRAME_BYTES) {
        let Some(bytes) = message::<FRAME_BYTES>(piece) else { return };
        let Ok(said) = Frame::decode(&bytes) else { return };
        assert!(said.encode() == bytes && said.body.payload_bytes() <= PAYLOAD_MOST);
        let frame = match said.body {
            _ if as_said => said,
            Body::Sync { .. } => outbound.sync().0,
            Body::End { .. } => outbound.end(),
            Body::Switch => outbound.switch(),
            Body::Commit => outbound.clone().commit(),
            body => outbound.frame(body),
        };
        if inbound.accept(frame).is_err() {
            return;
        }
        if frame.body == Body::Switch {
            assert!(!switched, "two switches");
            (inbound, switched) = (inbound.go_on(), true);
        }
        let Some(extent) = frame.body.extent() else { continue };
        assert!(if is_asked { geometry.has(extent) } else { geometry.owns(channel, extent) });
        let pages = extent.first()..extent.end();
        match frame.body {
            Body::Owed { .. } => {
                assert!(!switched, "pages are owed after the switch");
                owed.add(pages);
            }
            _ if switched => {
                let before = owed.count();
                let taken = u64::from(owed.take(pages.clone()).count());
                assert!(!owed.has_any(pages) && owed.count() == before - taken);
            }
            _ => {
                let Ok(()) = received.mark(extent, |pages, _| {
                    assert!(pages.start < pages.end && pages.end <= geometry.pages());
                    Ok::<_, Infallible>(())
                });
            }
        }
    }
});
