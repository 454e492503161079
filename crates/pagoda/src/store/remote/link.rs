//! One connection to a server of a remote store: its requests and answers.
//!
//! It connects when it is first used, and anew after an error that leaves unclear which request the
//! next answer is for. Requests are pipelined. The `redis` crate parses the answers, from a reader
//! that ends at a deadline and after a number of bytes, whatever the server sends. Nothing here
//! uses thread-local storage, so that threads of the engine can.

use std::io::{self, Read, Write};
use std::net::SocketAddr;

use pagoda_linux::io::tcp::TcpConnection;
use redis::{Cmd, Parser, Value};

use super::RemoteAddress;
use super::error::{CLOSED, RemoteError};

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
