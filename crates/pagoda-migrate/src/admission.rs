//! Who may send: one sender, on as many channels as it says, and nobody else.
//!
//! Whoever does not belong is told why and turned away, and must never make the receiver wait for longer.

use std::time::{Duration, Instant};

use pagoda_core::migrate::handshake::{Hello, Refusal};

use crate::connection::Connection;
use crate::error::Error;
use crate::handshake::{self, HANDSHAKE};
use crate::listener::Listener;
use crate::receive::{Event, ReceiveOptions, Watch};
use crate::socket::Socket;

/// How long one look for a connection takes before the caller is asked whether to go on.
const LOOK: Duration = Duration::from_millis(100);

/// Waits for a sender and all its channels.
pub(crate) fn admit_all(
    listener: &Listener,
    options: &ReceiveOptions,
    is_late: bool,
    watch: &mut Watch<'_>,
) -> Result<(Hello, Vec<Connection>), Error> {
    let mut first: Option<Hello> = None;
    let mut channels: Vec<Option<Connection>> = Vec::new();
    let mut until = Instant::now() + options.wait;
    while channels.is_empty() || channels.iter().any(Option::is_none) {
        if watch(Event::Waiting).is_break() {
            return Err(Error::Cancelled);
        }
        let came = listener.accept(LOOK, options.stall).map_err(Error::Listen)?;
        // Whether or not somebody came: strangers that keep coming must not make it wait for longer.
        if Instant::now() >= until {
            return Err(match first {
                None => Error::NobodyCame(options.wait),
                Some(hello) => Error::ChannelsMissing {
                    came: channels.iter().flatten().count(),
                    of: hello.lanes(),
                    within: options.stall,
                },
            });
        }
        let Some(socket) = came else { continue };
        let may_come = |hello: &Hello| match &first {
            None if hello.geometry.image() > options.image_most => Err(Refusal::TooLarge),
            None if hello.switches && !is_late => Err(Refusal::Switches),
            None => Ok(()),
            Some(first) if first.session != hello.session => Err(Refusal::Busy),
            Some(first) => {
                let said = |hello: &Hello| (hello.geometry, hello.codec, hello.switches);
                let belongs = said(first) == said(hello);
                let is_new = channels.get(usize::from(hello.channel)).is_some_and(Option::is_none);
                if belongs && is_new { Ok(()) } else { Err(Refusal::Channel) }
            }
        };
        match admit_one(socket, options, may_come) {
            Ok((hello, connection)) => {
                if first.is_none() {
                    first = Some(hello);
                    channels.resize_with(usize::from(hello.lanes()), || None);
                    until = Instant::now() + options.stall;
                }
                channels[usize::from(hello.channel)] = Some(connection);
            }
            Err(error) => {
                if watch(Event::Turned(&error)).is_break() {
                    return Err(Error::Cancelled);
                }
            }
        }
    }
    let first = first.ok_or(Error::NotPagoda)?;
    Ok((first, channels.into_iter().flatten().collect()))
}

fn admit_one(
    socket: Socket,
    options: &ReceiveOptions,
    may_come: impl FnOnce(&Hello) -> Result<(), Refusal>,
) -> Result<(Hello, Connection), Error> {
    let mut connection = match &options.tls {
        Some(tls) => tls.over(socket)?,
        None => Connection::Plain(socket),
    };
    let limit = options.stall.min(HANDSHAKE);
    let hello = handshake::admit(&mut connection, options.token.as_ref(), limit, may_come)?;
    Ok((hello, connection))
}
