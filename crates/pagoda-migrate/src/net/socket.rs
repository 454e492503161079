//! Sockets on which every wait has a limit: TCP and Unix.
//!
//! A socket has a *stall*: how long one read or write may wait until a byte moves. For the
//! handshake it has a deadline beside it, so that a peer that sends a byte now and then can't hold
//! it up.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::retry_on_intr;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::net::endpoint::Endpoint;

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
    deadline: Option<Instant>,
}

impl Socket {
    /// One that is connected.
    pub(crate) fn new(kind: Kind, stall: Duration) -> io::Result<Self> {
        if let Kind::Tcp(stream) = &kind {
            // Replies are small and waited for.
            stream.set_nodelay(true)?;
        }
        let socket = Self { kind, stall, deadline: None };
        socket.set_timeouts(stall)?;
        Ok(socket)
    }

    /// Connects. Blocks for as long as the stall, for each address that the name has.
    pub(crate) fn connect(to: &Endpoint, stall: Duration) -> io::Result<Self> {
        match to {
            Endpoint::Unix(path) => Self::new(Kind::Unix(connect_unix(path, stall)?), stall),
            Endpoint::Tcp { host, port } => {
                let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
                for address in (host.as_str(), *port).to_socket_addrs()? {
                    match TcpStream::connect_timeout(&address, stall) {
                        Ok(stream) => return Self::new(Kind::Tcp(stream), stall),
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
        }
    }

    /// How long one read or write may wait.
    pub(crate) const fn stall(&self) -> Duration {
        self.stall
    }

    /// From now on all must be done by then; `None` lifts it.
    pub(crate) fn set_deadline(&mut self, deadline: Option<Instant>) -> io::Result<()> {
        self.deadline = deadline;
        self.set_timeouts(self.stall)
    }

    fn set_timeouts(&self, timeout: Duration) -> io::Result<()> {
        match &self.kind {
            Kind::Tcp(stream) => {
                stream.set_read_timeout(Some(timeout)).and_then(|()| stream.set_write_timeout(Some(timeout)))
            }
            Kind::Unix(stream) => {
                stream.set_read_timeout(Some(timeout)).and_then(|()| stream.set_write_timeout(Some(timeout)))
            }
        }
    }

    /// Before each wait.
    fn prepare(&self) -> io::Result<()> {
        let Some(deadline) = self.deadline else { return Ok(()) };
        match deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            Some(left) => self.set_timeouts(left.min(self.stall)),
            None => Err(ErrorKind::TimedOut.into()),
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

/// Connects. While the listener's queue is full, the standard library's connect has no limit.
fn connect_unix(path: &Path, stall: Duration) -> io::Result<UnixStream> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(stall))?;
    let address = SocketAddrUnix::new(path)?;
    retry_on_intr(|| connect(&socket, &address)).map_err(|errno| timed_out(errno.into()))?;
    Ok(socket.into())
}

/// The kernel's error when a timeout has passed.
fn timed_out(error: io::Error) -> io::Error {
    if error.kind() == ErrorKind::WouldBlock { ErrorKind::TimedOut.into() } else { error }
}

impl Read for Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.prepare()?;
        match &mut self.kind {
            Kind::Tcp(stream) => stream.read(into),
            Kind::Unix(stream) => stream.read(into),
        }
        .map_err(timed_out)
    }
}

impl Write for Socket {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.prepare()?;
        match &mut self.kind {
            Kind::Tcp(stream) => stream.write(from),
            Kind::Unix(stream) => stream.write(from),
        }
        .map_err(timed_out)
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
            Socket::connect(&listener.endpoint().expect("an address"), stall).expect("connected");
        let mut server = listener.accept(Duration::from_secs(5), stall).expect("looked").expect("accepted");
        let error = server.read(&mut [0]).expect_err("nothing comes");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        server.set_deadline(Some(Instant::now())).expect("set");
        client.write_all(b"late").expect("written");
        assert_eq!(server.read(&mut [0]).expect_err("too late").kind(), ErrorKind::TimedOut);
        server.set_deadline(None).expect("lifted");
        let mut word = [0; 4];
        server.read_exact(&mut word).expect("read");
        assert_eq!(&word, b"late");
        server.closer().expect("a handle").close(Shutdown::Both);
        assert_eq!(client.read(&mut word).expect("the end"), 0);
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
        let _first = Socket::connect(&to, stall).expect("one has room");
        // In a thread: the connect may block without end, and the test is about that.
        let (said, is_said) = std::sync::mpsc::channel();
        std::thread::spawn(move || said.send(Socket::connect(&to, stall).map(drop)));
        let second = is_said.recv_timeout(Duration::from_secs(20)).expect("it returns");
        assert_eq!(second.expect_err("it is never accepted").kind(), ErrorKind::TimedOut);
    }
}
