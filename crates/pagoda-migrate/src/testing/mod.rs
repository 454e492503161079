//! Parts of a sender that is not ours, for the tests of its effects on a receiver.

pub(crate) mod late;
pub(crate) mod tampering;

use std::ops::ControlFlow;
use std::thread;
use std::time::Duration;

use pagoda_core::migrate::channel::{Outbound, Violation};
use pagoda_core::migrate::digest::{BLOCKS, DigestKey};
use pagoda_core::migrate::frame::Body;
use pagoda_core::migrate::geometry::{Extent, Geometry};
use pagoda_core::migrate::handshake::{Codec, Hello, PROOF_BYTES};
use pagoda_core::size::Bytes;

use crate::error::Error;
use crate::net::connection::Connection;
use crate::net::endpoint::Endpoint;
use crate::net::handshake;
use crate::net::listener::Listener;
use crate::net::socket::Socket;
use crate::net::token::Token;
use crate::progress::Counts;
use crate::receive::destination::Destination;
use crate::wire::codec::Packer;
use crate::{ReceiveOptions, receive};

pub(crate) const IMAGE: Bytes = Bytes::mib(8);
pub(crate) const PAGE: usize = 4096;

/// The session of all tests, and the key of its digests.
const SESSION: [u8; 16] = [7; 16];
pub(crate) const KEY: DigestKey = DigestKey::of_session(SESSION);

/// Long enough for a busy machine where nothing should stall.
const STALL: Duration = Duration::from_secs(20);

pub(crate) fn options() -> ReceiveOptions {
    ReceiveOptions {
        image_most: IMAGE,
        wait: STALL,
        stall: STALL,
        recover_for: Duration::ZERO,
        ..ReceiveOptions::default()
    }
}

pub(crate) fn token(text: &str) -> Token {
    Token::new(text.as_bytes()).expect("long enough")
}

/// A listener at any port, and where it is.
pub(crate) fn listen() -> (Listener, Endpoint) {
    let listener = Listener::bind(&"127.0.0.1:0".parse().expect("an address")).expect("a port");
    let to = listener.endpoint().expect("an address");
    (listener, to)
}

pub(crate) fn hello(codec: Codec, channels: u16, channel: u16) -> Hello {
    let geometry = Geometry::new(IMAGE, channels).expect("a geometry");
    let (nonce, proof) = ([0; PROOF_BYTES], [0; PROOF_BYTES]);
    let (switches, attempt, resumes) = (false, 0, false);
    Hello { session: SESSION, geometry, channel, switches, attempt, resumes, codec, nonce, proof }
}

pub(crate) fn connect(to: &Endpoint, hello: Hello) -> Result<Connection, Error> {
    connect_with(to, hello, None)
}

pub(crate) fn connect_with(to: &Endpoint, hello: Hello, token: Option<&Token>) -> Result<Connection, Error> {
    let mut connection = Connection::Plain(Socket::connect(to, STALL, STALL).map_err(Error::Connect)?);
    handshake::introduce(&mut connection, hello, token, STALL)?;
    Ok(connection)
}

/// Receives from `sender`, a function of the address.
pub(crate) fn receive_from<T: Send>(
    destination: &mut dyn Destination,
    options: &ReceiveOptions,
    sender: impl FnOnce(Endpoint) -> T + Send,
) -> (Result<Counts, Error>, T) {
    let (listener, to) = listen();
    thread::scope(|scope| {
        let sender = scope.spawn(move || sender(to));
        let received = receive(listener, destination, options, &mut |_| ControlFlow::Continue(()));
        (received, sender.join().expect("the sender"))
    })
}

pub(crate) fn extent(first: u64, count: u32) -> Extent {
    Extent::new(first, count).expect("an extent")
}

/// The digest of content in the session of all tests.
pub(crate) fn digest(extent: Extent, content: &[u8]) -> u64 {
    KEY.content(extent.first(), content, &[None; BLOCKS])
}

/// Eight pages that can be packed.
pub(crate) fn eight_pages() -> Vec<u8> {
    (0..8 * PAGE).map(|i| (i / 5) as u8).collect()
}

/// A sender's frame of `content`, packed if that makes it smaller.
pub(crate) fn packed(outbound: &mut Outbound, codec: Codec, extent: Extent, content: &[u8]) -> Vec<u8> {
    let (digest, mut packed) = (digest(extent, content), vec![0; content.len()]);
    let (body, payload) = match Packer::new(codec).expect("memory").pack(content, &mut packed) {
        Some(len) => (Body::Data { extent, packed_bytes: len as u32, digest }, &packed[..len]),
        None => (Body::Stored { extent, digest }, content),
    };
    [&outbound.frame(body).encode(), payload].concat()
}

pub(crate) fn is_damaged(error: &Error) -> bool {
    matches!(error, Error::Damaged { .. })
}
pub(crate) fn is_violation(error: &Error) -> bool {
    matches!(error, Error::Violation { .. })
}
pub(crate) fn owes(error: &Error) -> bool {
    matches!(error, Error::Violation { violation: Violation::Owes, .. })
}
pub(crate) fn is_lost(error: &Error) -> bool {
    matches!(error, Error::Lost { .. })
}
