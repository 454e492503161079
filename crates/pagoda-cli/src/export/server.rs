//! An HTTP server for one page, for clients that may be slow, many, or hostile.
//!
//! One thread waits for all connections at once. Each has a deadline, from its first moment to its
//! last byte, and a bound for what it may send; there is a bound for their number, at which the
//! oldest makes room. A connection is good for one request. This module must never wait for a
//! client, and never keep more of one than its head.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Connections at once: Prometheus has one, and two of them and a browser have a dozen. At this
/// number the oldest is closed.
const CONNECTIONS_MAX: usize = 64;

/// From its beginning to its end a connection has this long: what Prometheus waits by default.
pub const CONNECTION_TIME: Duration = Duration::from_secs(10);

/// The head of a request: several times that of a browser's.
const HEAD_BYTES_MAX: usize = 8 << 10;

/// The lines of a head; a browser sends twenty.
const HEADERS_MAX: usize = 64;

/// A read or a write at a time: the others are looked at in between.
const PIECE_BYTES: usize = 64 << 10;

/// When the process has too many descriptors open, or no memory: the time until the next try.
const REST: Duration = Duration::from_millis(100);

/// An answer.
pub struct Answer {
    /// Like `200 OK`.
    pub status: &'static str,
    /// Its `Content-Type`.
    pub content_type: &'static str,
    /// Its content.
    pub body: String,
}

impl Answer {
    fn refusal(status: &'static str) -> Self {
        Self { status, content_type: "text/plain; charset=utf-8", body: format!("{status}\n") }
    }

    fn bytes(&self, with_body: bool) -> Vec<u8> {
        let head = format!(
            "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            self.status,
            self.content_type,
            self.body.len()
        );
        [head.as_str(), if with_body { &self.body } else { "" }].concat().into_bytes()
    }
}

struct Connection {
    stream: TcpStream,
    deadline: Instant,
    head: Vec<u8>,
    /// The answer and how much of it was sent, once the head is whole.
    answer: Option<(Vec<u8>, usize)>,
}

/// Whether a connection goes on.
#[derive(PartialEq, Eq)]
enum Goes {
    On,
    Ended,
}

/// A page by its path, for a header `Accept`; nothing where there is none.
type Page<'a> = &'a mut dyn FnMut(&str, &str) -> Option<Answer>;

/// Serves pages until the listener can't be waited for, and returns why. A connection has so much
/// `time`.
pub fn serve(listener: &TcpListener, time: Duration, page: Page) -> io::Error {
    if let Err(error) = listener.set_nonblocking(true) {
        return error;
    }
    let mut connections: Vec<Connection> = Vec::new();
    loop {
        let (listens, ready) = match wait(listener, &connections) {
            Ok(ready) => ready,
            Err(error) => return error,
        };
        let now = Instant::now();
        let mut ready = ready.into_iter();
        connections.retain_mut(|connection| {
            let is_ready = ready.next().unwrap_or(false);
            now < connection.deadline && (!is_ready || connection.advance(page) == Goes::On)
        });
        if listens && let Err(error) = accept(listener, time, &mut connections) {
            // The kernel's shortage; nothing of a client's gets here.
            tell_and_rest(&error);
        }
    }
}

/// Waits until the listener or a connection is ready, or the next deadline is there.
fn wait(listener: &TcpListener, connections: &[Connection]) -> io::Result<(bool, Vec<bool>)> {
    let next = connections.iter().map(|connection| connection.deadline).min();
    let left = next.map(|next| next.saturating_duration_since(Instant::now()));
    // Rounded up, so that the deadline has passed then.
    let left = left.map(|left| left + Duration::from_millis(1));
    let timeout = left.and_then(|left| Timespec::try_from(left).ok());
    let mut fds = vec![PollFd::new(listener, PollFlags::IN)];
    fds.extend(connections.iter().map(|connection| {
        let flags = if connection.answer.is_some() { PollFlags::OUT } else { PollFlags::IN };
        PollFd::new(&connection.stream, flags)
    }));
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
    Ok((ready.next().unwrap_or(false), ready.collect()))
}

fn accept(listener: &TcpListener, time: Duration, connections: &mut Vec<Connection>) -> io::Result<()> {
    match listener.accept() {
        Ok((stream, _)) => {
            if connections.len() >= CONNECTIONS_MAX {
                connections.remove(0);
            }
            stream.set_nonblocking(true)?;
            let deadline = Instant::now() + time;
            connections.push(Connection { stream, deadline, head: Vec::new(), answer: None });
            Ok(())
        }
        // It has gone again.
        Err(error) if is_nothing(&error) || error.kind() == ErrorKind::ConnectionAborted => Ok(()),
        Err(error) => Err(error),
    }
}

fn tell_and_rest(error: &io::Error) {
    crate::say(format_args!(
        "a connection was not taken ({error}); raise `ulimit -n`, or end other programs"
    ));
    std::thread::sleep(REST);
}

impl Connection {
    /// Reads or writes a piece.
    fn advance(&mut self, page: Page) -> Goes {
        if self.answer.is_none() && self.read(page) == Goes::Ended {
            return Goes::Ended;
        }
        self.write()
    }

    fn read(&mut self, page: Page) -> Goes {
        let mut piece = [0; HEAD_BYTES_MAX];
        match self.stream.read(&mut piece[..HEAD_BYTES_MAX - self.head.len()]) {
            Ok(0) => return Goes::Ended,
            Ok(count) => self.head.extend_from_slice(&piece[..count]),
            Err(error) if is_nothing(&error) => return Goes::On,
            Err(_) => return Goes::Ended,
        }
        self.answer = answer(&self.head, page).map(|bytes| (bytes, 0));
        Goes::On
    }

    fn write(&mut self) -> Goes {
        let Some((bytes, sent)) = &mut self.answer else { return Goes::On };
        let piece = &bytes[*sent..bytes.len().min(*sent + PIECE_BYTES)];
        match self.stream.write(piece) {
            Ok(count) => *sent += count,
            Err(error) if is_nothing(&error) => return Goes::On,
            Err(_) => return Goes::Ended,
        }
        if *sent < bytes.len() { Goes::On } else { Goes::Ended }
    }
}

fn is_nothing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// The answer to a head, or nothing as long as it is not whole.
fn answer(head: &[u8], page: Page) -> Option<Vec<u8>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let is_whole = match request.parse(head) {
        Ok(status) => status.is_complete(),
        Err(httparse::Error::TooManyHeaders) => return refused("431 Request Header Fields Too Large"),
        Err(_) => return refused("400 Bad Request"),
    };
    if !is_whole {
        let is_full = head.len() >= HEAD_BYTES_MAX;
        return if is_full { refused("431 Request Header Fields Too Large") } else { None };
    }
    let with_body = match request.method {
        Some("GET") => true,
        Some("HEAD") => false,
        _ => return refused("405 Method Not Allowed"),
    };
    let accept = request.headers.iter().find(|header| header.name.eq_ignore_ascii_case("accept"));
    let accept = accept.and_then(|header| std::str::from_utf8(header.value).ok()).unwrap_or_default();
    let path = request.path.unwrap_or_default().split('?').next().unwrap_or_default();
    let found = page(path, accept).unwrap_or_else(|| Answer::refusal("404 Not Found"));
    Some(found.bytes(with_body))
}

fn refused(status: &'static str) -> Option<Vec<u8>> {
    Some(Answer::refusal(status).bytes(true))
}

#[cfg(test)]
#[path = "server_test.rs"]
mod tests;
