//! The sender: introduces itself on every channel, lets each carry its stripes, and commits when
//! all have arrived.
//!
//! It only ever reads the source. It must never commit an image that was not all sent, or that
//! changed meanwhile.

pub(crate) mod source;
pub(crate) mod stripes;

use std::io::ErrorKind;
use std::net::Shutdown;
use std::ops::ControlFlow;
use std::sync::Mutex;
use std::time::Duration;

use pagoda_core::migrate::channel::Outbound;
use pagoda_core::migrate::digest::DigestKey;
use pagoda_core::migrate::frame::FRAME_BYTES;
use pagoda_core::migrate::geometry::{Geometry, STRIPE_BYTES};
use pagoda_core::migrate::handshake::{Codec, Hello, PROOF_BYTES};
use pagoda_core::migrate::rate::Line;
use pagoda_core::migrate::reply::Reply;
use pagoda_core::size::Bytes;
use pagoda_linux::process::child::random_bytes;

use crate::error::Error;
use crate::net::connection::{Connection, lost};
use crate::net::endpoint::Endpoint;
use crate::net::handshake;
use crate::net::socket::{Closer, Socket};
use crate::net::tls::ClientTls;
use crate::net::token::Token;
use crate::progress::{Counts, Progress};
use crate::receive::options::RECOVER_FOR;
use crate::send::source::Source;
use crate::wire::frame_writer::{Outlet, Shared};
use crate::workers;

/// How to send: by default over 2 channels, packed with LZ4 where that saves time, in the clear,
/// without a limit, and with 30 s of patience, 60 s after a switch.
#[derive(Clone)]
pub struct SendOptions {
    /// How many connections, from 1 to
    /// [`CHANNELS_MAX`](pagoda_core::migrate::geometry::CHANNELS_MAX).
    pub channels: u16,
    /// How content is packed.
    pub codec: Codec,
    /// Whether it is packed only where that saves time: each channel tries both ways, time and
    /// again. Otherwise all content is that gets shorter.
    pub only_if_faster: bool,
    /// The token that the receiver demands, if it does.
    pub token: Option<Token>,
    /// TLS; plain without.
    pub tls: Option<ClientTls>,
    /// How much all channels together may send in a second, if there is a limit.
    pub bandwidth: Option<Bytes>,
    /// How long a channel may stand still.
    pub stall: Duration,
    /// How long all channels are tried to be connected once more after a switch, without a page
    /// that arrives meanwhile. With zero the owed pages are lost with the first channel.
    pub recover_for: Duration,
}

impl Default for SendOptions {
    fn default() -> Self {
        Self {
            channels: 2,
            codec: Codec::default(),
            only_if_faster: true,
            token: None,
            tls: None,
            bandwidth: None,
            stall: Duration::from_secs(30),
            recover_for: RECOVER_FOR,
        }
    }
}

/// Sends an image. Blocks until the receiver has confirmed it, or something has failed; no wait in
/// it is longer than the stall, except that of the system's resolver for a name. `watch` ends it by
/// [`ControlFlow::Break`]: it is called before each channel is connected, and from then on about
/// ten times a second.
///
/// # Errors
/// See [`Error`]. The source is as it was.
pub fn send(
    source: &dyn Source,
    to: &Endpoint,
    options: &SendOptions,
    watch: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
) -> Result<Counts, Error> {
    let (size, channels) = (source.size(), options.channels);
    let geometry = Geometry::new(size, channels).ok_or(Error::Geometry { size, channels })?;
    check_bandwidth(options)?;
    let hello = new_hello(geometry, (false, true), options.codec)?;
    let connections = connect(hello, to, options, options.stall, watch)?;
    let progress = Progress::new(source.size());
    let shared = Shared {
        geometry,
        codec: options.codec,
        key: DigestKey::of_session(hello.session),
        only_if_faster: options.only_if_faster,
        stall: options.stall,
        progress: &progress,
        line: options.bandwidth.map(|per_s| Mutex::new(Line::new(per_s))),
    };
    let closers: Vec<_> =
        connections.iter().map(Connection::closer).collect::<Result<_, _>>().map_err(Error::System)?;
    let (shared, orders) = (&shared, &workers::Orders::default());
    let tasks = (0..).zip(connections).map(|(channel, connection)| {
        move || {
            let mut outlet = Outlet::new(shared, channel, connection, orders)?;
            let offered = outlet.offered()?;
            stripes::send_all(source, &mut outlet, &offered)?;
            outlet.sync()?;
            outlet.end()?;
            Ok(outlet.into_parts())
        }
    });
    let mut look = || watch(&progress);
    let ended = workers::run(orders, tasks.collect(), &closers, Shutdown::Write, &mut look)?;
    if !source.is_unchanged().map_err(Error::Source)? {
        return Err(Error::SourceChanged);
    }
    // The others stay open until the receiver has read all of them.
    commit_all(ended, orders, &closers, options.stall, &mut look)?;
    Ok(progress.counts())
}

/// Commits the frames of all channels, which have ended. A caller that cancels meanwhile can't know
/// whether the image is kept.
pub(crate) fn commit_all(
    ended: Vec<(Connection, Outbound)>,
    orders: &workers::Orders,
    closers: &[Closer],
    stall: Duration,
    look: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<(), Error> {
    let mut ended = ended.into_iter();
    let (connection, outbound) = ended.next().ok_or(Error::Unconfirmed)?;
    let commit = || commit(connection, outbound, stall);
    workers::run(orders, vec![commit], &closers[..1], Shutdown::Write, look).map_err(
        |error| match error {
            // The receiver may keep it all the same.
            Error::Cancelled => Error::Unconfirmed,
            error => error,
        },
    )?;
    Ok(())
}

/// Each channel books the line for a frame at a time, and may have to wait for one of every other:
/// it must not look dead to the receiver meanwhile.
pub(crate) fn check_bandwidth(options: &SendOptions) -> Result<(), Error> {
    let Some(per_s) = options.bandwidth else { return Ok(()) };
    let turn = u128::from(options.channels) * (STRIPE_BYTES + FRAME_BYTES) as u128;
    let carried = u128::from(per_s.get()) * options.stall.as_millis() / 1000;
    if turn * 2 <= carried { Ok(()) } else { Err(Error::TooSlow { bandwidth: per_s, stall: options.stall }) }
}

/// The hello of a new migration; the channel is the caller's to set.
///
/// # Errors
/// If the system has no randomness to give.
pub(crate) fn new_hello(
    geometry: Geometry,
    (switches, resumes): (bool, bool),
    codec: Codec,
) -> Result<Hello, Error> {
    let session = random_bytes().map_err(Error::System)?;
    let (nonce, proof) = ([0; PROOF_BYTES], [0; PROOF_BYTES]);
    Ok(Hello { session, geometry, channel: 0, switches, attempt: 0, resumes, codec, nonce, proof })
}

/// Connects all channels; with those for page requests, if it may switch. No step of it takes
/// longer than `limit`.
pub(crate) fn connect(
    hello: Hello,
    to: &Endpoint,
    options: &SendOptions,
    limit: Duration,
    watch: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
) -> Result<Vec<Connection>, Error> {
    let nothing_yet = Progress::new(hello.geometry.image());
    let mut connections = Vec::with_capacity(usize::from(hello.lanes()));
    for channel in 0..hello.lanes() {
        if watch(&nothing_yet).is_break() {
            return Err(Error::Cancelled);
        }
        let mut connection = connect_one(channel, to, options, limit)?;
        handshake::introduce(&mut connection, Hello { channel, ..hello }, options.token.as_ref(), limit)?;
        connections.push(connection);
    }
    Ok(connections)
}

/// Connects one channel, over its address or the next one that answers.
fn connect_one(
    channel: u16,
    to: &Endpoint,
    options: &SendOptions,
    limit: Duration,
) -> Result<Connection, Error> {
    let mut last = None;
    for address in to.in_turn(channel) {
        match Socket::connect(address, limit, options.stall) {
            Ok(socket) => {
                return match &options.tls {
                    Some(tls) => tls.over(socket, address),
                    None => Ok(Connection::Plain(socket)),
                };
            }
            Err(error) => last = Some(error),
        }
    }
    Err(Error::Connect(last.unwrap_or_else(|| ErrorKind::InvalidInput.into())))
}

/// Says on channel 0 that all is there, and waits until the receiver has it for good.
fn commit(mut connection: Connection, outbound: Outbound, stall: Duration) -> Result<(), Error> {
    connection.send(&outbound.commit().encode()).map_err(|error| lost(0, stall, error))?;
    loop {
        match connection.reply(0) {
            Ok(Reply::Working) => {}
            Ok(Reply::Finished) => return Ok(()),
            Ok(_) => return Err(Error::StrangeReply { channel: 0 }),
            Err(Error::Peer(failure)) => return Err(Error::Peer(failure)),
            // It may have kept it just before it went away.
            Err(_) => return Err(Error::Unconfirmed),
        }
    }
}

#[cfg(test)]
mod tests;
