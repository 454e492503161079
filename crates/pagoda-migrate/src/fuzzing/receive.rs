//! A channel's bytes after the handshake, through the whole receiver. Nothing panics, nothing is
//! written outside of the image or into another channel's stripes, and owed pages arrive once.

use std::io::{self, Write};
use std::net::Shutdown;
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pagoda_core::migrate::channel::Outbound;
use pagoda_core::migrate::digest::{BLOCKS, DigestKey};
use pagoda_core::migrate::frame::{Body, FRAME_BYTES, Frame};
use pagoda_core::migrate::geometry::{Extent, Geometry};
use pagoda_core::migrate::handshake::Codec;
use pagoda_core::migrate::pages::PageSet;
use pagoda_core::migrate::received::{ReceivedMap, words_for};
use pagoda_core::migrate::zero::ZeroPolicy;
use pagoda_core::page::OS_PAGE;
use pagoda_core::size::Bytes;
use pagoda_linux::mem::words::zeroed_words;

use super::{Got, message};
use crate::net::connection::Connection;
use crate::net::socket::{Kind, Socket};
use crate::progress::Progress;
use crate::receive::apply::{Apply, Unshown};
use crate::receive::destination::{Destination, LateDestination};
use crate::receive::offers::Offers;
use crate::receive::page_requests::Wants;
use crate::receive::postcopy_receive::{Arrivals, Shown};
use crate::wire::codec::Unpacker;
use crate::wire::frame_reader::{Inlet, Shared};
use crate::workers::Orders;

/// Three stripes of two channels, the last of them cut within a page.
const IMAGE: Bytes = Bytes::new((5 << 20) + 100);
const CHANNELS: u16 = 2;

/// The key of the session.
const KEY: DigestKey = DigestKey::of_session([7; 16]);

/// The most that is read of an input: it has to fit into a socket buffer, because no thread reads
/// while it is written.
const INPUT_MOST: usize = 64 << 10;

/// Nothing is waited for: all has been said before it is read.
const STALL: Duration = Duration::from_secs(5);

/// The first byte of the input chooses the channel and its codec; the second, whether frames are
/// numbered and digested correctly, and the policy for zeroes. Headers follow, each with as much
/// payload as it says or as there is.
pub fn receive(input: &[u8]) -> Got {
    let [which, how, rest @ ..] = &input[..input.len().min(INPUT_MOST)] else { return Got::Nowhere };
    let Some(geometry) = Geometry::new(IMAGE, CHANNELS) else { return Got::Nowhere };
    let codec = Codec::ALL[usize::from(*which / 4) % Codec::ALL.len()];
    let (channel, is_late, is_asked) = (u16::from(*which % 2), which % 4 >= 2, which % 4 == 3);
    let says = if how % 2 == 0 { rest.to_vec() } else { mended(rest, codec) };
    let (own, other) = UnixStream::pair().expect("a pair");
    (&other).write_all(&says).expect("there is room");
    other.shutdown(Shutdown::Write).expect("open");
    let connection = Connection::Plain(Socket::new(Kind::Unix(own), STALL).expect("a socket"));
    let set = |words: u64| zeroed_words(Bytes::new(words).as_usize());
    let owed = PageSet::new(set(PageSet::words_for(geometry.pages())));
    let pages = set(PageSet::words_for(geometry.pages()));
    let image = Image { geometry, channel, arrived: PageSet::new(pages), wants: Wants::default() };
    let progress = Progress::new(IMAGE);
    let unshown = Unshown {
        destination: &image,
        late: is_late.then_some((&image as &dyn LateDestination, &owed)),
        geometry,
        zero: ZeroPolicy::ALL[usize::from(*how / 2) % ZeroPolicy::ALL.len()],
        received: ReceivedMap::new(set(words_for(geometry.pages())), geometry.pages()),
        offers: Offers::none(geometry),
        progress: &progress,
        ends: OnceLock::new(),
    };
    let shown = Shown { arrivals: &image, owed: &owed };
    let apply: &dyn Apply = if is_asked { &shown } else { &unshown };
    let shared = Shared { apply, geometry, codec, key: KEY, stall: STALL, progress: &progress };
    let orders = Orders::default();
    let whole = if is_asked {
        owed.add(0..geometry.pages());
        let mut inlet = Inlet::asked(&shared, CHANNELS, connection, &orders).expect("memory");
        let mut rounds = 0;
        while inlet.round().is_ok() {
            rounds += 1;
        }
        rounds > 0
    } else {
        Inlet::new(&shared, channel, connection, &orders).expect("memory").run_to_end().is_ok()
    };
    let counts = progress.counts();
    let named =
        counts.data_pages + counts.packed_pages + counts.filled_pages + counts.zero_pages + counts.owed_pages;
    match whole {
        true => Got::ToTheEnd,
        false if named > 0 => Got::Somewhere,
        false => Got::Nowhere,
    }
}

/// The same with right checksums, numbers and digests, as far as its headers mean something.
fn mended(mut rest: &[u8], codec: Codec) -> Vec<u8> {
    let (mut outbound, mut says) = (Outbound::default(), Vec::new());
    let mut unpacker = Unpacker::new(codec).expect("memory");
    while let Some(header) = message::<FRAME_BYTES>(rest) {
        rest = &rest[FRAME_BYTES..];
        let Ok(said) = Frame::decode(&header) else {
            says.extend(header);
            break;
        };
        let (payload, behind) = rest.split_at(said.body.payload_bytes().min(rest.len()));
        rest = behind;
        let frame = match said.body {
            Body::Sync { .. } => outbound.sync().0,
            Body::End { .. } => outbound.end(),
            Body::Switch => outbound.switch(),
            Body::Last => outbound.last(),
            Body::Commit => outbound.clone().commit(),
            Body::Data { extent, packed_bytes, digest } => {
                let mut content = vec![0; extent.len().as_usize()];
                let unpacked = unpacker.unpack(payload, &mut content);
                let digest =
                    unpacked.map_or(digest, |()| KEY.content(extent.first(), &content, &[None; BLOCKS]));
                outbound.frame(Body::Data { extent, packed_bytes, digest })
            }
            Body::Stored { extent, .. } => {
                let digest = KEY.content(extent.first(), payload, &[None; BLOCKS]);
                outbound.frame(Body::Stored { extent, digest })
            }
            Body::Packed { extent, packed_bytes, .. } => {
                outbound.frame(Body::Packed { extent, packed_bytes, digest: KEY.block(payload) })
            }
            body => outbound.frame(body),
        };
        says.extend(frame.encode());
        says.extend(payload);
    }
    says.extend(rest);
    says
}

/// Checks its arguments.
struct Image {
    geometry: Geometry,
    channel: u16,
    arrived: PageSet,
    wants: Wants,
}

impl Image {
    /// Panics unless all of it is in this channel's stripes of the image.
    fn check(&self, range: Range<u64>) {
        assert!(range.start < range.end && range.end <= IMAGE.get(), "{range:?}");
        assert!(range.start.is_multiple_of(OS_PAGE as u64), "{range:?}");
        let pages = range.start / OS_PAGE as u64..range.end.div_ceil(OS_PAGE as u64);
        let extent = Extent::new(pages.start, (pages.end - pages.start) as u32).expect("of one stripe");
        assert!(self.geometry.owns(self.channel, extent), "{range:?} is another channel's");
    }

    /// Panics unless it is the first time.
    fn arrive_once(&self, offset: u64, len: u64) {
        let pages = offset / OS_PAGE as u64..(offset + len) / OS_PAGE as u64;
        assert!(pages.start < pages.end && pages.end <= self.geometry.pages(), "{pages:?}");
        assert!(!self.arrived.has_any(pages.clone()), "{pages:?} again");
        self.arrived.add(pages);
    }
}

/// The last bytes that were read, so that the compiler keeps the read.
static READ: AtomicU64 = AtomicU64::new(0);

impl Destination for Image {
    fn prepare(&mut self, _size: Bytes) -> io::Result<()> {
        unreachable!("a channel prepares nothing")
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.check(offset..offset + bytes.len() as u64);
        Ok(())
    }
    fn write_packed(&self, offset: u64, packed: &[u8], content: &[u8]) -> io::Result<bool> {
        assert!(!packed.is_empty() && packed.len() < content.len());
        self.write_at(offset, content)?;
        Ok(packed.len().is_multiple_of(2))
    }
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.check(offset..offset + into.len() as u64);
        // Now zero and now not.
        into.fill((READ.fetch_add(1, Ordering::Relaxed) % 2) as u8);
        Ok(())
    }
    fn clear(&self, range: Range<u64>) -> io::Result<()> {
        self.check(range);
        Ok(())
    }
    fn discard(&self, range: Range<u64>) -> io::Result<()> {
        self.check(range);
        Ok(())
    }
    fn finish(&mut self) -> io::Result<()> {
        unreachable!("a channel shows nothing")
    }
}

impl LateDestination for Image {
    fn owe(&self, range: Range<u64>) -> io::Result<()> {
        self.check(range.start..range.end.min(IMAGE.get()));
        Ok(())
    }
}

impl Arrivals for Image {
    fn wants(&self) -> &Wants {
        &self.wants
    }
    fn arrive(&self, offset: u64, content: &[u8]) -> io::Result<()> {
        self.arrive_once(offset, content.len() as u64);
        Ok(())
    }
    fn arrive_zero(&self, range: Range<u64>) -> io::Result<()> {
        self.arrive_once(range.start, range.end - range.start);
        Ok(())
    }
}
