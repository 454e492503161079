//! Listeners for senders: TCP and Unix sockets, with a limit on every wait.
//!
//! The trouble of one connection must never end a listener.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::net::endpoint::Endpoint;
use crate::net::socket::{Kind, Socket};

#[derive(Debug)]
enum ListenerKind {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

/// The outcome of one wait for a connection.
#[derive(Debug)]
pub(crate) enum Accepted {
    /// A connection.
    Connection(Socket),
    /// None came in time, or the bell rang.
    None,
    /// A connection waits, and the process or the machine has no descriptor or memory for it. It
    /// stays in the queue.
    NoRoom,
}

/// A socket that waits for senders, or several. Dropping it ends that, and removes a Unix socket's
/// file.
#[derive(Debug)]
pub struct Listener {
    all: Vec<ListenerKind>,
    /// The first to be looked at: connections to one must not keep others waiting.
    turn: AtomicUsize,
}

impl Listener {
    /// Listens there.
    ///
    /// # Errors
    /// Those of bind(2). A Unix socket's path that exists is in use, whether or not a process still
    /// listens there.
    pub fn bind(at: &Endpoint) -> io::Result<Self> {
        let all = at.each().iter().map(ListenerKind::bind).collect::<io::Result<Vec<_>>>()?;
        if all.is_empty() {
            return Err(ErrorKind::InvalidInput.into());
        }
        Ok(Self { all, turn: AtomicUsize::new(0) })
    }

    /// Where it listens: with the port that it got.
    ///
    /// # Errors
    /// Those of getsockname(2).
    pub fn endpoint(&self) -> io::Result<Endpoint> {
        match &self.all[..] {
            [one] => one.endpoint(),
            all => all.iter().map(ListenerKind::endpoint).collect::<io::Result<_>>().map(Endpoint::Several),
        }
    }

    /// The next connection, if one comes within `limit` and before there is something to read from
    /// `bell`.
    pub(crate) fn accept_or(
        &self,
        bell: &UnixStream,
        limit: Duration,
        stall: Duration,
    ) -> io::Result<Accepted> {
        self.accept_with(Some(bell), limit, stall)
    }

    /// The next connection, if one comes within `limit`.
    #[cfg(test)]
    pub(crate) fn accept(&self, limit: Duration, stall: Duration) -> io::Result<Option<Socket>> {
        match self.accept_with(None, limit, stall)? {
            Accepted::Connection(socket) => Ok(Some(socket)),
            Accepted::None => Ok(None),
            Accepted::NoRoom => Err(Errno::MFILE.into()),
        }
    }

    fn accept_with(
        &self,
        bell: Option<&UnixStream>,
        limit: Duration,
        stall: Duration,
    ) -> io::Result<Accepted> {
        let until = Instant::now() + limit;
        loop {
            match self.try_accept() {
                Ok(kind) => {
                    let blocks = match &kind {
                        Kind::Tcp(stream) => stream.set_nonblocking(false),
                        Kind::Unix(stream) => stream.set_nonblocking(false),
                    };
                    // Options fail where the peer has reset the connection already.
                    if let Ok(socket) = blocks.and_then(|()| Socket::new(kind, stall)) {
                        return Ok(Accepted::Connection(socket));
                    }
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) if is_one_of(&error, &OF_ONE_CONNECTION) => {}
                Err(error) if is_one_of(&error, &NO_ROOM) => return Ok(Accepted::NoRoom),
                Err(error) => return Err(error),
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.await_connection(bell, left)? {
                return Ok(Accepted::None);
            }
        }
    }

    /// A connection that waits at any of the sockets. Any other failure than that there is none
    /// comes first.
    fn try_accept(&self) -> io::Result<Kind> {
        let first = self.turn.fetch_add(1, Ordering::Relaxed) % self.all.len();
        let (before, from) = self.all.split_at(first);
        let mut none = ErrorKind::WouldBlock.into();
        for one in from.iter().chain(before) {
            match one.accept() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => none = error,
                other => return other,
            }
        }
        Err(none)
    }

    /// Returns when a connection may have come, when the bell rings, or after `limit`; true if it
    /// rings. A sender waits for each of its channels in turn, so that polling would add up.
    fn await_connection(&self, bell: Option<&UnixStream>, limit: Duration) -> io::Result<bool> {
        let limit = Timespec::try_from(limit).map_err(io::Error::other)?;
        // Each once: a connection may come between two looks at the same socket.
        let sockets = self.all.iter().map(ListenerKind::as_fd).chain(bell.map(AsFd::as_fd));
        let mut looks: Vec<_> = sockets.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        match poll(&mut looks, Some(&limit)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let (sockets, bell) = looks.split_at(self.all.len());
        let is_ready = |looks: &[PollFd<'_>]| looks.iter().any(|look| !look.revents().is_empty());
        Ok(!is_ready(sockets) && is_ready(bell))
    }
}

impl ListenerKind {
    fn bind(at: &Endpoint) -> io::Result<Self> {
        match at {
            Endpoint::Tcp { host, port } => {
                let listener = TcpListener::bind((host.as_str(), *port))?;
                listener.set_nonblocking(true)?;
                Ok(Self::Tcp(listener))
            }
            Endpoint::Unix(path) => {
                let listener = UnixListener::bind(path)?;
                let listener = Self::Unix(listener, path.clone());
                if let Self::Unix(socket, _) = &listener {
                    socket.set_nonblocking(true)?;
                }
                Ok(listener)
            }
            // No list is within a list.
            Endpoint::Several(_) => Err(ErrorKind::InvalidInput.into()),
        }
    }

    fn endpoint(&self) -> io::Result<Endpoint> {
        match self {
            Self::Tcp(listener) => {
                let address = listener.local_addr()?;
                Ok(Endpoint::Tcp { host: address.ip().to_string(), port: address.port() })
            }
            Self::Unix(_, path) => Ok(Endpoint::Unix(path.clone())),
        }
    }

    fn accept(&self) -> io::Result<Kind> {
        match self {
            Self::Tcp(listener) => listener.accept().map(|(stream, _)| Kind::Tcp(stream)),
            Self::Unix(listener, _) => listener.accept().map(|(stream, _)| Kind::Unix(stream)),
        }
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener, _) => listener.as_fd(),
        }
    }
}

/// Errors of accept(2) which belong to one connection that is gone already. The next one may be
/// fine.
const OF_ONE_CONNECTION: [Errno; 9] = [
    Errno::CONNABORTED,
    Errno::PROTO,
    Errno::NOPROTOOPT,
    Errno::OPNOTSUPP,
    Errno::NETDOWN,
    Errno::NETUNREACH,
    Errno::HOSTDOWN,
    Errno::HOSTUNREACH,
    Errno::NONET,
];

/// Errors of accept(2) which say that it can be tried again once there is room.
const NO_ROOM: [Errno; 4] = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];

fn is_one_of(error: &io::Error, errnos: &[Errno]) -> bool {
    errnos.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

impl Drop for ListenerKind {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_its_peer_has_reset_does_not_end_a_listener() {
        let listener = Listener::bind(&"tcp://127.0.0.1:0".parse().expect("an address")).expect("bound");
        let Ok(Endpoint::Tcp { host, port }) = listener.endpoint() else { panic!("it is TCP") };
        for _ in 0..8 {
            let stream = std::net::TcpStream::connect((host.as_str(), port)).expect("connected");
            // Closing with a linger time of zero resets the connection.
            rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).expect("set");
        }
        let _last = std::net::TcpStream::connect((host.as_str(), port)).expect("connected");
        let mut taken = 0;
        while let Accepted::Connection(_) = listener
            .accept_with(None, Duration::from_millis(200), Duration::from_secs(1))
            .expect("it goes on")
        {
            taken += 1;
        }
        assert!(taken >= 1, "the last one is whole");
    }
}
