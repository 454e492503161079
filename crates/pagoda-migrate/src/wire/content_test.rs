use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use pagoda_core::migrate::digest::BLOCKS;
use pagoda_core::migrate::handshake::Codec;

use super::*;
use crate::net::socket::{Kind, Socket};
use crate::testing::KEY;
use crate::wire::codec::Packer;

const STALL: Duration = Duration::from_secs(20);

/// The second block begins behind five pages.
const FIRST: u64 = 59;

fn content(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

/// Reads content of `len` bytes, of which `sent` are sent, in such parts. Returns the outcome.
fn read(len: usize, sent: usize, wanted: u64, parts: &[usize]) -> (Vec<u8>, Result<(), Error>) {
    let (own, mut other) = UnixStream::pair().expect("a pair");
    other.write_all(&content(len)[..sent]).expect("there is room");
    other.shutdown(Shutdown::Write).expect("open");
    let socket = Socket::new(Kind::Unix(own), STALL).expect("a socket");
    let mut input = BufReader::new(Connection::Plain(socket));
    let digest = ContentDigest::new(KEY, FIRST, len);
    let mut arriving = Arriving::new(Origin::Wire(&mut input), (digest, wanted), 3, STALL);
    let (mut into, mut at) = (vec![0; len], 0);
    let read = parts.iter().try_for_each(|part| {
        at += part;
        arriving.read(&mut into[at - part..at])
    });
    let outcome = read.and_then(|()| arriving.check()).map_err(Error::Destination);
    (into, arriving.explain(outcome))
}

#[test]
fn content_is_checked_for_any_parts_it_is_read_in() {
    const LEN: usize = 40_000;
    let digest = KEY.content(FIRST, &content(LEN), &[None; BLOCKS]);
    for parts in [&[LEN][..], &[LEN, 0], &[0, LEN], &[4096, LEN - 4096], &[1, 0, 9, LEN - 10, 0]] {
        let (found, outcome) = read(LEN, LEN, digest, parts);
        assert!(outcome.is_ok() && found == content(LEN), "{parts:?}: {outcome:?}");
        let (_, outcome) = read(LEN, LEN, digest ^ 1, parts);
        assert!(matches!(outcome, Err(Error::Damaged { channel: 3 })), "{parts:?}: {outcome:?}");
        let (_, outcome) = read(LEN, LEN - 1, digest, parts);
        assert!(matches!(outcome, Err(Error::Lost { channel: 3, .. })), "{parts:?}: {outcome:?}");
    }
}

#[test]
fn packed_content_is_checked_where_it_is_unpacked() {
    let content = vec![7; 8192];
    let mut packed = vec![0; 4096];
    let len = Packer::new(Codec::Lz4).expect("memory").pack(&content, &mut packed).expect("it is small");
    for (digest, len, is_right) in [(0, len, true), (1, len, false), (0, len - 1, false)] {
        let wanted = KEY.block(&content) ^ digest;
        let mut unpacker = Unpacker::new(Codec::Lz4).expect("memory");
        let origin = Origin::Packed(&mut unpacker, &packed[..len]);
        let digest = ContentDigest::new(KEY, 0, content.len());
        let mut arriving = Arriving::new(origin, (digest, wanted), 3, STALL);
        assert!(!arriving.is_in_parts());
        let mut into = vec![0; content.len()];
        let outcome = arriving.read(&mut into).and_then(|()| arriving.check()).map_err(Error::Destination);
        match arriving.explain(outcome) {
            Ok(()) => assert!(is_right && into == content),
            Err(error) => assert!(!is_right && matches!(error, Error::Damaged { channel: 3 }), "{error}"),
        }
    }
}
