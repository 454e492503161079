//! A TCP connection that never waits past a deadline, for threads that have no thread-local
//! storage.
//!
//! The standard one goes through the C library, and its timeouts start anew with every byte that
//! comes. Here system calls are made directly, and connecting, writing and reading all end by one
//! moment that the caller sets. This module must never resolve names: that is the C library's
//! business, on a thread of its own making.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use pagoda_core::time::ran_clock::LONGEST_NS;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

use crate::io::wait::{Wait, wait_for};
use crate::process::caller::ran_ns;

/// The longest single wait: time in which the process is stopped does not count.
const SLICE_NS: u64 = LONGEST_NS / 4;

/// A connection. Dropping it closes it.
#[derive(Debug)]
pub struct TcpConnection {
    socket: OwnedFd,
    deadline_ns: u64,
}

impl TcpConnection {
    /// Connects to a literal address, by `deadline_ns` of [`ran_ns`]. That deadline holds until
    /// another one is set.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] past the deadline, and those of connect(2).
    pub fn connect(address: SocketAddr, deadline_ns: u64) -> io::Result<Self> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
        // A request is sent at once: the answer is waited for.
        sockopt::set_tcp_nodelay(&socket, true)?;
        let connection = Self { socket, deadline_ns };
        match net::connect(&connection.socket, &address) {
            Ok(()) => {}
            Err(Errno::INPROGRESS | Errno::INTR) => {
                connection.wait(PollFlags::OUT)?;
                sockopt::socket_error(&connection.socket)??;
            }
            Err(error) => return Err(error.into()),
        }
        Ok(connection)
    }

    /// The deadline of the calls that follow, in nanoseconds of [`ran_ns`].
    pub fn set_deadline_ns(&mut self, deadline_ns: u64) {
        self.deadline_ns = deadline_ns;
    }

    /// Waits until the socket is ready for something, or has failed.
    fn wait(&self, flags: PollFlags) -> io::Result<()> {
        loop {
            let left_ns = self.deadline_ns.saturating_sub(ran_ns());
            if left_ns == 0 {
                return Err(Errno::TIMEDOUT.into());
            }
            match wait_for(self.socket.as_fd(), flags, left_ns.min(SLICE_NS)) {
                Wait::NotReady => {}
                Wait::Ready => return Ok(()),
                Wait::Refused(error) => return Err(error.into()),
            }
        }
    }

    /// Does an operation that may not be possible yet, by the deadline.
    fn when_ready(
        &self,
        flags: PollFlags,
        mut transfer: impl FnMut(&OwnedFd) -> rustix::io::Result<usize>,
    ) -> io::Result<usize> {
        loop {
            match transfer(&self.socket) {
                Err(Errno::AGAIN) => self.wait(flags)?,
                Err(Errno::INTR) => {}
                other => return Ok(other?),
            }
        }
    }
}

impl Read for TcpConnection {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.when_ready(PollFlags::IN, |socket| {
            net::recv(socket, &mut *into, RecvFlags::empty()).map(|(count, _)| count)
        })
    }
}

impl Write for TcpConnection {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        // A signal for a connection that is closed would reach the program.
        self.when_ready(PollFlags::OUT, |socket| net::send(socket, from, SendFlags::NOSIGNAL))
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn soon() -> u64 {
        ran_ns() + 50_000_000
    }

    #[test]
    fn sent_bytes_arrive_and_the_end_is_seen() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let echo = std::thread::spawn(move || {
            let (mut peer, _) = listener.accept().expect("a connection");
            let mut seen = [0; 5];
            peer.read_exact(&mut seen).expect("five bytes");
            peer.write_all(&seen).expect("open");
        });
        let mut connection =
            TcpConnection::connect(address, ran_ns() + 5_000_000_000).expect("there is a listener");
        connection.write_all(b"hello").expect("open");
        let mut back = Vec::new();
        connection.read_to_end(&mut back).expect("closed in the end");
        assert_eq!(back, b"hello");
        echo.join().expect("it went well");
    }

    #[test]
    fn a_peer_that_says_or_takes_nothing_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let mut connection = TcpConnection::connect(address, soon()).expect("there is a listener");
        let _peer = listener.accept().expect("connected");
        connection.set_deadline_ns(soon());
        let error = connection.read(&mut [0; 8]).expect_err("nothing comes");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        connection.set_deadline_ns(soon());
        let error = connection.write_all(&vec![1; 64 << 20]).expect_err("no peer reads so much");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn a_missing_listener_is_an_error_at_once() {
        let address = TcpListener::bind("127.0.0.1:0").and_then(|gone| gone.local_addr()).expect("a port");
        let error =
            TcpConnection::connect(address, ran_ns() + 5_000_000_000).expect_err("there is no listener");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }
}
