//! Sockets on which every wait has a limit: TCP and Unix.
//!
//! A socket has a *stall*: how long one read or write may wait until a byte moves. For the
//! handshake it has a deadline beside it, so that a peer that sends a byte now and then can't hold
//! it up. Both are measured in time that this process ran: where both sides are stopped, neither
//! gives the other up. This module must never wait for longer than a slice at a time.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use pagoda_core::migrate::rate::queue_bytes;
use pagoda_core::time::ran_clock::LONGEST_NS;
use pagoda_linux::io::socket_queue::shortest_round_trip;
use pagoda_linux::process::thread::ran_ns;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{
    Timeout, set_socket_recv_buffer_size, set_socket_send_buffer_size, set_socket_timeout, socket_error,
};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::net::endpoint::Endpoint;

/// The longest single wait: time in which the process is stopped does not count.
const SLICE: Duration = Duration::from_nanos(LONGEST_NS / 4);

/// A moment of the time that this process ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Deadline(u64);

impl Deadline {
    /// In so long.
    pub(crate) fn after(limit: Duration) -> Self {
        let limit_ns = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        Self(ran_ns().saturating_add(limit_ns))
    }

    /// Whether it has come.
    pub(crate) fn is_over(self) -> bool {
        ran_ns() >= self.0
    }
}

#[derive(Debug)]
pub(crate) enum Kind {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A connected socket.
#[derive(Debug)]
pub(crate) struct Socket {
    kind: Kind,
    stall: Duration,
    deadline: Option<Deadline>,
}

impl Socket {
    /// One that is connected.
    pub(crate) fn new(kind: Kind, stall: Duration) -> io::Result<Self> {
        if let Kind::Tcp(stream) = &kind {
            // Replies are small and waited for.
            stream.set_nodelay(true)?;
        }
        let slice = Some(stall.min(SLICE));
        match &kind {
            Kind::Tcp(stream) => {
                stream.set_read_timeout(slice).and_then(|()| stream.set_write_timeout(slice))
            }
            Kind::Unix(stream) => {
                stream.set_read_timeout(slice).and_then(|()| stream.set_write_timeout(slice))
            }
        }?;
        Ok(Self { kind, stall, deadline: None })
    }

    /// Connects to one address. Blocks for as long as `limit`, for each address that the name has.
    pub(crate) fn connect(to: &Endpoint, limit: Duration, stall: Duration) -> io::Result<Self> {
        match to {
            Endpoint::Unix(path) => Self::new(Kind::Unix(connect_unix(path, limit)?), stall),
            Endpoint::Tcp { host, port } => {
                let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
                for address in (host.as_str(), *port).to_socket_addrs()? {
                    match connect_tcp(address, limit) {
                        Ok(stream) => return Self::new(Kind::Tcp(stream), stall),
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
            // A channel has one of them.
            Endpoint::Several(_) => Err(ErrorKind::InvalidInput.into()),
        }
    }

    /// How long one read or write may wait.
    pub(crate) const fn stall(&self) -> Duration {
        self.stall
    }

    /// From now on all must be done by then; `None` lifts it.
    pub(crate) fn set_deadline(&mut self, deadline: Option<Deadline>) {
        self.deadline = deadline;
    }

    /// Does a transfer that may have to wait, within the stall and the deadline.
    fn in_time(&mut self, mut transfer: impl FnMut(&mut Kind) -> io::Result<usize>) -> io::Result<usize> {
        if self.deadline.is_some_and(Deadline::is_over) {
            return Err(ErrorKind::TimedOut.into());
        }
        let stall = Deadline::after(self.stall);
        let until = self.deadline.map_or(stall, |deadline| deadline.min(stall));
        loop {
            match transfer(&mut self.kind) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                other => return other,
            }
            if until.is_over() {
                return Err(ErrorKind::TimedOut.into());
            }
        }
    }

    /// A second handle to the connection, with which others can end it.
    pub(crate) fn closer(&self) -> io::Result<Closer> {
        Ok(Closer(match &self.kind {
            Kind::Tcp(stream) => Kind::Tcp(stream.try_clone()?),
            Kind::Unix(stream) => Kind::Unix(stream.try_clone()?),
        }))
    }
}

/// Connects. The standard library's limit goes on while this process is stopped.
fn connect_tcp(to: SocketAddr, stall: Duration) -> io::Result<TcpStream> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    let until = Deadline::after(stall);
    match connect(&socket, &to) {
        Ok(()) => {}
        Err(Errno::INPROGRESS | Errno::INTR) => {
            while !is_writable(&socket)? {
                if until.is_over() {
                    return Err(ErrorKind::TimedOut.into());
                }
            }
            socket_error(&socket)??;
        }
        Err(error) => return Err(error.into()),
    }
    let stream = TcpStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Whether it can be written to, or has failed, within a slice.
fn is_writable(socket: &OwnedFd) -> io::Result<bool> {
    let slice = Timespec::try_from(SLICE).map_err(io::Error::other)?;
    match poll(&mut [PollFd::new(socket, PollFlags::OUT)], Some(&slice)) {
        Ok(count) => Ok(count > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Connects. While the listener's queue is full, the standard library's connect has no limit.
fn connect_unix(path: &Path, stall: Duration) -> io::Result<UnixStream> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(stall.min(SLICE)))?;
    let address = SocketAddrUnix::new(path)?;
    let until = Deadline::after(stall);
    loop {
        match connect(&socket, &address) {
            Ok(()) => return Ok(socket.into()),
            Err(Errno::AGAIN | Errno::INTR) if !until.is_over() => {}
            Err(Errno::AGAIN | Errno::INTR) => return Err(ErrorKind::TimedOut.into()),
            Err(error) => return Err(error.into()),
        }
    }
}

impl Read for Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.in_time(|kind| match kind {
            Kind::Tcp(stream) => stream.read(into),
            Kind::Unix(stream) => stream.read(into),
        })
    }
}

impl Write for Socket {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.in_time(|kind| match kind {
            Kind::Tcp(stream) => stream.write(from),
            Kind::Unix(stream) => stream.write(from),
        })
    }

    /// Nothing is held back here.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Ends a connection that another thread may be waiting on: that thread sees its end at once.
#[derive(Debug)]
pub(crate) struct Closer(Kind);

impl Closer {
    /// Bounds the bytes that are on the way at a time. The kernel makes the buffers large, for the
    /// longest lines.
    pub(crate) fn shorten_queue(&self) {
        let socket = match &self.0 {
            Kind::Tcp(stream) => stream.as_fd(),
            Kind::Unix(stream) => stream.as_fd(),
        };
        let bytes = queue_bytes(shortest_round_trip(socket).unwrap_or_default());
        // The kernel has limits of its own. Longer queues are slower for some, and no error.
        let _ = (set_socket_send_buffer_size(socket, bytes), set_socket_recv_buffer_size(socket, bytes));
    }

    pub(crate) fn close(&self, how: Shutdown) {
        // One that is closed already can't be closed.
        let _ = match &self.0 {
            Kind::Tcp(stream) => stream.shutdown(how),
            Kind::Unix(stream) => stream.shutdown(how),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::listener::Listener;

    #[test]
    fn a_silent_peer_is_not_waited_for() {
        let any = Endpoint::Tcp { host: "127.0.0.1".to_owned(), port: 0 };
        let listener = Listener::bind(&any).expect("a port");
        let stall = Duration::from_millis(50);
        assert!(listener.accept(Duration::from_millis(1), stall).expect("looked").is_none());
        let mut client =
            Socket::connect(&listener.endpoint().expect("an address"), stall, stall).expect("connected");
        let mut server = listener.accept(Duration::from_secs(5), stall).expect("looked").expect("accepted");
        let error = server.read(&mut [0]).expect_err("nothing comes");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        server.set_deadline(Some(Deadline::after(Duration::ZERO)));
        client.write_all(b"late").expect("written");
        assert_eq!(server.read(&mut [0]).expect_err("too late").kind(), ErrorKind::TimedOut);
        server.set_deadline(None);
        let mut word = [0; 4];
        server.read_exact(&mut word).expect("read");
        assert_eq!(&word, b"late");
        server.closer().expect("a handle").close(Shutdown::Both);
        assert_eq!(client.read(&mut word).expect("the end"), 0);
    }

    #[test]
    fn little_is_on_the_way_once_the_queue_is_short() {
        let any = Endpoint::Tcp { host: "127.0.0.1".to_owned(), port: 0 };
        let listener = Listener::bind(&any).expect("a port");
        let stall = Duration::from_millis(200);
        let mut client =
            Socket::connect(&listener.endpoint().expect("an address"), stall, stall).expect("connected");
        let server = listener.accept(Duration::from_secs(5), stall).expect("looked").expect("accepted");
        for socket in [&client, &server] {
            socket.closer().expect("a handle").shorten_queue();
        }
        let mut written = 0;
        // Nothing is read. Otherwise it takes megabytes.
        while let Ok(bytes) = client.write(&[1; 4096]) {
            written += bytes;
        }
        assert!(written > 0 && written < 1 << 20, "{written} bytes");
    }

    #[test]
    fn a_listener_that_accepts_no_peer_is_not_waited_for() {
        use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};

        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("socket");
        let listener = socket(AddressFamily::UNIX, SocketType::STREAM, None).expect("a socket");
        bind(&listener, &SocketAddrUnix::new(&path).expect("a short path")).expect("bound");
        listen(&listener, 0).expect("it listens");
        let to = Endpoint::Unix(path);
        let stall = Duration::from_millis(50);
        let _first = Socket::connect(&to, stall, stall).expect("one has room");
        // In a thread: the connect may block without end, and the test is about that.
        let (said, is_said) = std::sync::mpsc::channel();
        std::thread::spawn(move || said.send(Socket::connect(&to, stall, stall).map(drop)));
        let second = is_said.recv_timeout(Duration::from_secs(20)).expect("it returns");
        assert_eq!(second.expect_err("it is never accepted").kind(), ErrorKind::TimedOut);
    }
}
