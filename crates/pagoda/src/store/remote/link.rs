//! One connection to a server of a remote store: its requests and answers.
//!
//! It connects when it is first used, and anew after an error that leaves unclear which request the
//! next answer is for. Requests are pipelined. The `redis` crate parses the answers, from a reader
//! that ends at a deadline and after a number of bytes, whatever the server sends. Nothing here
//! uses thread-local storage, so that threads of the engine can.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::SocketAddr;

use pagoda_linux::io::tcp::TcpConnection;
use redis::{Cmd, Parser, Value};

use super::RemoteAddress;

/// How a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// The server's memory, or the limit of this store there, is full.
    #[error("the remote store is full")]
    Full,
    /// The server did not answer in time.
    #[error("the remote store did not answer in time")]
    TimedOut,
    /// There is no connection, or it broke.
    #[error("the remote store was cut off: {0}")]
    CutOff(RemoteErrno),
    /// The server answered something else than it was asked for, or that it won't.
    #[error("the remote store refused what it was asked")]
    Refused,
    /// The cluster says that it is down, or has no node for this part of its keys.
    #[error("the remote store's cluster is down, or nobody serves a part of it")]
    Down,
    /// The nodes of the cluster sent from one to the other, or to where it can't be followed.
    #[error(
        "the remote store's cluster sent on without end, or not to a literal address where it can be reached; have its \
         nodes announce theirs"
    )]
    Astray,
    /// The server does not have the stored object: it was restarted without its content, or another
    /// client deleted it.
    #[error("the remote store has lost what was stored there")]
    Gone,
}

/// An error number of the operating system, shown as its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteErrno(i32);

impl fmt::Display for RemoteErrno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

/// `EPIPE`: the other side has closed the connection.
const CLOSED: RemoteErrno = RemoteErrno(32);

impl RemoteError {
    /// The error number that says the same.
    #[must_use]
    pub fn raw_errno(self) -> i32 {
        match self {
            Self::Full => 28,
            Self::TimedOut => 110,
            Self::CutOff(RemoteErrno(errno)) => errno,
            Self::Refused => 71,
            Self::Down => 112,
            Self::Astray => 78,
            Self::Gone => 61,
        }
    }
}

impl From<io::Error> for RemoteError {
    fn from(error: io::Error) -> Self {
        match (error.kind(), error.raw_os_error()) {
            (io::ErrorKind::TimedOut, _) => Self::TimedOut,
            (_, Some(errno)) => Self::CutOff(RemoteErrno(errno)),
            (io::ErrorKind::UnexpectedEof | io::ErrorKind::WriteZero, None) => Self::CutOff(CLOSED),
            (_, None) => Self::Refused,
        }
    }
}

/// A connection, open or not.
pub(super) struct Link {
    address: RemoteAddress,
    open: Option<Open>,
    #[cfg(test)]
    pub faults: crate::store::fault_injection::Faults,
}

struct Open {
    connection: TcpConnection,
    parser: Parser,
}

/// The rest of a connection that the parser may read.
struct Bounded<'a> {
    connection: &'a mut TcpConnection,
    left: usize,
    failure: Option<RemoteError>,
}

impl Read for Bounded<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let len = into.len().min(self.left);
        let outcome = self.connection.read(&mut into[..len]);
        match &outcome {
            Ok(0) if len > 0 => self.failure = Some(RemoteError::CutOff(CLOSED)),
            Ok(0) => self.failure = Some(RemoteError::Refused),
            Ok(count) => self.left -= count,
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(CLOSED.0);
                self.failure = Some(io::Error::from_raw_os_error(errno).into());
            }
        }
        outcome
    }
}

impl Open {
    fn connect(address: &RemoteAddress, deadline_ns: u64) -> Result<Self, RemoteError> {
        let connection = TcpConnection::connect(address.socket, deadline_ns)?;
        let mut open = Self { connection, parser: Parser::new() };
        let mut requests = Vec::new();
        if address.user.is_some() || address.password.is_some() {
            let mut auth = redis::cmd("AUTH");
            if let Some(user) = &address.user {
                auth.arg(user);
            }
            // A user without a password is accepted with any.
            requests.push(auth.arg(address.password.as_deref().unwrap_or_default()).clone());
        }
        if address.database != 0 {
            requests.push(redis::cmd("SELECT").arg(address.database).clone());
        }
        for answer in open.ask(&packed(&requests), requests.len(), SMALL_ANSWER)? {
            if answer != Value::Okay {
                return Err(RemoteError::Refused);
            }
        }
        Ok(open)
    }

    fn ask(&mut self, request: &[u8], answers: usize, bytes_max: usize) -> Result<Vec<Value>, RemoteError> {
        self.connection.write_all(request)?;
        let mut reader = Bounded { connection: &mut self.connection, left: bytes_max, failure: None };
        let mut values = Vec::with_capacity(answers);
        for _ in 0..answers {
            let value = self.parser.parse_value(&mut reader);
            values.push(value.map_err(|_| reader.failure.unwrap_or(RemoteError::Refused))?);
        }
        Ok(values)
    }
}

/// The most bytes of answers without content, one for each request of a pipeline: a line.
pub(super) const SMALL_ANSWER: usize = 4 << 10;

/// Requests as they are sent, one behind the other.
pub(super) fn packed(requests: &[Cmd]) -> Vec<u8> {
    let mut bytes = Vec::new();
    pack_into(&mut bytes, requests);
    bytes
}

/// Adds requests as they are sent.
pub(super) fn pack_into(bytes: &mut Vec<u8>, requests: &[Cmd]) {
    requests.iter().for_each(|request| request.write_packed_command(bytes));
}

impl Link {
    pub fn new(address: RemoteAddress) -> Self {
        Self {
            address,
            open: None,
            #[cfg(test)]
            faults: crate::store::fault_injection::Faults::default(),
        }
    }

    /// Which server it is to.
    pub fn node(&self) -> SocketAddr {
        self.address.socket
    }

    /// Sends requests and returns their answers, `answers` of them and `bytes_max` in all, by
    /// `deadline_ns`. They may be errors of the server's.
    ///
    /// On an error it is not known whether anything was done.
    pub fn ask(
        &mut self,
        request: &[u8],
        answers: usize,
        bytes_max: usize,
        deadline_ns: u64,
    ) -> Result<Vec<Value>, RemoteError> {
        // It comes back only if every answer was read to its end.
        let mut open = match self.open.take() {
            Some(open) => open,
            #[cfg(test)]
            None if !self.faults.connect() => return Err(RemoteError::CutOff(CLOSED)),
            None => Open::connect(&self.address, deadline_ns)?,
        };
        open.connection.set_deadline_ns(deadline_ns);
        #[cfg(test)]
        let fault = self.faults.draw();
        #[cfg(test)]
        open.fail_before(request, fault)?;
        let values = open.ask(request, answers, bytes_max)?;
        #[cfg(test)]
        let values = fail_after(values, fault)?;
        self.open = Some(open);
        Ok(values)
    }
}

#[cfg(test)]
use crate::store::fault_injection::Fault;

#[cfg(test)]
impl Open {
    fn fail_before(&mut self, request: &[u8], fault: Option<Fault>) -> Result<(), RemoteError> {
        match fault {
            Some(Fault::Error) => Err(RemoteError::CutOff(CLOSED)),
            Some(Fault::Short) => {
                self.connection.write_all(&request[..request.len() / 2])?;
                Err(RemoteError::CutOff(CLOSED))
            }
            _ => Ok(()),
        }
    }
}

/// The server has done it, and that is not known, or not believed.
#[cfg(test)]
fn fail_after(mut values: Vec<Value>, fault: Option<Fault>) -> Result<Vec<Value>, RemoteError> {
    match fault {
        Some(Fault::Disconnect) => return Err(RemoteError::TimedOut),
        Some(Fault::Corrupt) => match values.last_mut() {
            Some(Value::BulkString(bytes)) => bytes.iter_mut().for_each(|byte| *byte ^= 0x10),
            Some(other) => *other = Value::Int(-7),
            None => {}
        },
        _ => {}
    }
    Ok(values)
}
