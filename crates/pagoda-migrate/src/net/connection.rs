//! One channel's connection: a socket, in TLS or plain, with whole reads and writes.

use std::io::{self, ErrorKind, Read, Write};
use std::time::Duration;

use pagoda_core::migrate::reply::{REPLY_BYTES, Reply};
use rustls::{ClientConnection, ServerConnection, StreamOwned};

use crate::error::Error;
use crate::net::socket::{Closer, Deadline, Socket};

/// A connection; reading and writing it may block for its stall.
pub(crate) enum Connection {
    Plain(Socket),
    Client(Box<StreamOwned<ClientConnection, Socket>>),
    Server(Box<StreamOwned<ServerConnection, Socket>>),
}

impl Connection {
    fn socket(&self) -> &Socket {
        match self {
            Self::Plain(socket) => socket,
            Self::Client(stream) => stream.get_ref(),
            Self::Server(stream) => stream.get_ref(),
        }
    }

    /// From now on all must be done by then; `None` lifts it.
    pub(crate) fn set_deadline(&mut self, deadline: Option<Deadline>) {
        match self {
            Self::Plain(socket) => socket,
            Self::Client(stream) => stream.get_mut(),
            Self::Server(stream) => stream.get_mut(),
        }
        .set_deadline(deadline);
    }

    /// How long reading or writing it may block.
    pub(crate) fn stall(&self) -> Duration {
        self.socket().stall()
    }

    pub(crate) fn closer(&self) -> io::Result<Closer> {
        self.socket().closer()
    }

    /// Reads as many bytes as there are in a message.
    pub(crate) fn read_message<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Writes all of it, and keeps nothing back.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)?;
        self.flush()
    }

    /// The next reply.
    pub(crate) fn reply(&mut self, channel: u16) -> Result<Reply, Error> {
        let bytes: [u8; REPLY_BYTES] =
            self.read_message().map_err(|error| lost(channel, self.socket().stall(), error))?;
        match Reply::decode(&bytes) {
            Ok(Reply::Failed(failure)) => Err(Error::Peer(failure)),
            Ok(reply) => Ok(reply),
            Err(_) => Err(Error::Damaged { channel }),
        }
    }
}

/// The meaning of a connection's error on a channel that may stand still for `stall`.
pub(crate) fn lost(channel: u16, stall: Duration, error: io::Error) -> Error {
    if let Some(tls) = tls_error(&error) {
        return tls;
    }
    match error.kind() {
        ErrorKind::TimedOut => Error::Stalled { channel, after: stall },
        kind @ ErrorKind::UnexpectedEof => {
            Error::Lost { channel, error: io::Error::new(kind, "the other side has closed it") }
        }
        _ => Error::Lost { channel, error },
    }
}

/// The error as one of TLS, if it is: not of a peer that just went away.
pub(crate) fn tls_error(error: &io::Error) -> Option<Error> {
    let inner = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    Some(Error::Tls(inner.to_string()))
}

impl Read for Connection {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(into),
            Self::Client(stream) => stream.read(into),
            Self::Server(stream) => stream.read(into),
        }
    }
}

impl Write for Connection {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write(from),
            Self::Client(stream) => stream.write(from),
            Self::Server(stream) => stream.write(from),
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.flush(),
            Self::Client(stream) => stream.flush(),
            Self::Server(stream) => stream.flush(),
        }
    }
}
