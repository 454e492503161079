//! Messages and headers: nothing panics, and an accepted message encodes to itself.

use std::convert::Infallible;
use std::sync::atomic::AtomicU64;

use pagoda_core::migrate::channel::{Inbound, Outbound};
use pagoda_core::migrate::frame::{Body, FRAME_BYTES, Frame, PAYLOAD_MOST};
use pagoda_core::migrate::geometry::Geometry;
use pagoda_core::migrate::handshake::{Answer, Greeting, Hello};
use pagoda_core::migrate::kept::Kept;
use pagoda_core::migrate::missing::Missing;
use pagoda_core::migrate::pages::PageSet;
use pagoda_core::migrate::received::{ReceivedMap, words_for};
use pagoda_core::migrate::reply::Reply;
use pagoda_core::size::Bytes;

use super::{Got, message};

/// The input as each message of a handshake, as a reply, and as the headers of a channel. The first
/// byte chooses the channel, and whether frames are numbered correctly.
pub fn wire(input: &[u8]) -> Got {
    let mut got = comes_back(input, |bytes| Greeting::decode(bytes).ok().map(Greeting::encode));
    got = got.max(comes_back(input, |bytes| Answer::decode(bytes).ok().map(Answer::encode)));
    got = got.max(comes_back(input, |bytes| Reply::decode(bytes).ok().map(Reply::encode)));
    got = got.max(comes_back(input, |bytes| Hello::decode(bytes).ok().map(Hello::encode)));
    got = got.max(comes_back(input, |bytes| Kept::decode(bytes).ok().map(Kept::encode)));
    got = got.max(comes_back(input, |bytes| Missing::decode(bytes).ok().map(Missing::encode)));
    let (Some((&kind, rest)), Some(geometry)) = (input.split_first(), Geometry::new(Bytes::mib(7), 2)) else {
        return got;
    };
    let words = |count: u64| (0..count).map(|_| AtomicU64::new(0)).collect();
    let received: ReceivedMap = ReceivedMap::new(words(words_for(geometry.pages())), geometry.pages());
    let owed = PageSet::new(words(PageSet::words_for(geometry.pages())));
    // Unchanged; or numbered as by a sender, without which hardly any input passes the first
    // frames.
    let (as_said, mut outbound) = (kind % 2 == 0, Outbound::default());
    // Of one of the two channels, or of one for page requests: it begins after the switch, where
    // all is owed.
    let channel = u16::from(kind / 2 % 3);
    let is_asked = channel == geometry.channels();
    let (mut switched, mut is_last) = (is_asked, false);
    let mut inbound = if is_asked { Inbound::asked(geometry) } else { Inbound::new(geometry, channel) };
    if is_asked {
        owed.add(0..geometry.pages());
    }
    for piece in rest.chunks(FRAME_BYTES) {
        let Some(bytes) = message::<FRAME_BYTES>(piece) else { return got };
        let Ok(said) = Frame::decode(&bytes) else { return got };
        assert!(said.encode() == bytes && said.body.payload_bytes() <= PAYLOAD_MOST);
        let frame = match said.body {
            _ if as_said => said,
            Body::Sync { .. } => outbound.sync().0,
            Body::End { .. } => outbound.end(),
            Body::Switch => outbound.switch(),
            Body::Last => outbound.last(),
            Body::Commit => outbound.clone().commit(),
            body => outbound.frame(body),
        };
        if inbound.accept(frame).is_err() {
            return got;
        }
        got = Got::Somewhere;
        if frame.body == Body::Switch {
            assert!(!switched, "two switches");
            (inbound, switched, is_last) = (inbound.go_on(), true, false);
        }
        is_last |= frame.body == Body::Last;
        let Some(extent) = frame.body.extent() else { continue };
        assert!(if is_asked || is_last { geometry.has(extent) } else { geometry.owns(channel, extent) });
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
    Got::ToTheEnd
}

/// The input as a message that `again` takes and says once more: the same is said.
fn comes_back<const N: usize>(input: &[u8], again: impl Fn(&[u8; N]) -> Option<[u8; N]>) -> Got {
    let Some(said) = message::<N>(input) else { return Got::Nowhere };
    let Some(again) = again(&said) else { return Got::Nowhere };
    assert!(again == said);
    Got::Somewhere
}
