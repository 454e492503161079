//! Local sockets that carry descriptors beside their bytes.
//!
//! A handler of page faults gets its peers' descriptors over a socket with a path, and shares its
//! connections with a supervisor over a pair without one. A peer may send as many descriptors as it
//! likes and none at all: those beyond [`DESCRIPTORS_MOST`] are closed by the kernel. This module
//! must never wait, but in [`wait_any`].

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, chmodat, open};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, recvmsg, sendmsg, socket_with, socketpair,
};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Descriptors of one message that are taken: Firecracker sends one, and may send a second.
pub const DESCRIPTORS_MOST: usize = 4;

/// Connections that wait to be accepted: the kernel's own default bound.
const QUEUE: i32 = 4096;

/// Opens a socket, and finds the address of `at` for it. The address has room for 107 bytes, and a
/// path may be longer: so its directory is named by a descriptor, which has to live as long.
pub(crate) fn socket_for(at: &Path) -> io::Result<(OwnedFd, SocketAddrUnix, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let Some(name) = at.file_name() else { return Err(io::ErrorKind::InvalidInput.into()) };
    let directory = at.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = directory.unwrap_or(Path::new("."));
    let directory = open(directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut address = format!("/proc/thread-self/fd/{}/", directory.as_raw_fd()).into_bytes();
    address.extend(name.as_bytes());
    Ok((socket, SocketAddrUnix::new(address)?, directory))
}

/// Listens at `at`, which `mode` (as of chmod) lets others connect to.
///
/// # Errors
/// Those of bind(2), as [`AddrInUse`](io::ErrorKind::AddrInUse) if anything is there.
pub fn listen_at(at: &Path, mode: u32) -> io::Result<OwnedFd> {
    let (listener, address, _directory) = socket_for(at)?;
    bind(&listener, &address)?;
    // No process can connect before it listens.
    chmodat(CWD, at, Mode::from_raw_mode(mode), AtFlags::empty())?;
    listen(&listener, QUEUE)?;
    Ok(listener)
}

/// Connects to the listener at `at`.
///
/// # Errors
/// Those of connect(2); [`ConnectionRefused`](io::ErrorKind::ConnectionRefused) if none listens.
pub fn connect_to(at: &Path) -> io::Result<OwnedFd> {
    let (socket, address, _directory) = socket_for(at)?;
    connect(&socket, &address)?;
    Ok(socket)
}

/// The next connection, or none if none waits.
///
/// # Errors
/// Those of accept(2), as a want of descriptors.
pub fn accept(listener: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
        Ok(connection) => Ok(Some(connection)),
        Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Two ends for messages that stay whole.
///
/// # Errors
/// There is no descriptor.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// The process that made the connection: its number, and a descriptor that becomes readable when
/// it has ended. No descriptor where it has ended already, or is not seen from here.
#[must_use]
pub fn peer_of(connection: &OwnedFd) -> (Option<u32>, Option<OwnedFd>) {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `peer`, for which any numbers are valid. Not
    // by rustix: to it a process of another namespace, whose number is 0, is no value.
    let got = unsafe {
        let (fd, at) = (connection.as_raw_fd(), (&raw mut peer).cast());
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, at, &raw mut len)
    };
    let pid = Pid::from_raw(peer.pid).filter(|_| got == 0 && peer.pid > 0);
    let process = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    (pid.map(|pid| pid.as_raw_nonzero().get().unsigned_abs()), process)
}

/// Sends `bytes` with `descriptors`, of which at most [`DESCRIPTORS_MOST`] are taken. False if
/// there is no room for them now: nothing was sent then.
///
/// # Errors
/// Those of sendmsg(2); the other end is gone.
pub fn send(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<bool> {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MOST))];
    let mut rights = SendAncillaryBuffer::new(&mut room);
    if !descriptors.is_empty() {
        rights.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    match sendmsg(&socket, &[IoSlice::new(bytes)], &mut rights, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
        Ok(_) => Ok(true),
        Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// A message, or the part of a stream that is there.
#[derive(Debug, Default)]
pub struct Received {
    /// Bytes that were put into the caller's buffer; 0 at the end of the connection.
    pub bytes: usize,
    /// The descriptors that came with them.
    pub descriptors: Vec<OwnedFd>,
}

/// Takes the next bytes into `buffer`; none if nothing is there.
///
/// # Errors
/// Those of recvmsg(2).
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Option<Received>> {
    take(socket, buffer, RecvFlags::empty())
}

/// As [`receive`], but all of it stays there, and comes again: of each descriptor this is a copy.
///
/// # Errors
/// As [`receive`].
pub fn peek(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Option<Received>> {
    take(socket, buffer, RecvFlags::PEEK)
}

fn take(socket: impl AsFd, buffer: &mut [u8], flags: RecvFlags) -> io::Result<Option<Received>> {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MOST))];
    let mut rights = RecvAncillaryBuffer::new(&mut room);
    let flags = flags | RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    match recvmsg(&socket, &mut [IoSliceMut::new(buffer)], &mut rights, flags) {
        Ok(message) => {
            let descriptors = rights.drain().filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
                _ => None,
            });
            Ok(Some(Received { bytes: message.bytes, descriptors: descriptors.flatten().collect() }))
        }
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// What a wait looks for at a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// Something to read.
    Input,
    /// The end of the other side alone, whatever there is to read.
    End,
}

/// How a descriptor is after a wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// The awaited event is there, or the other side has ended.
    pub now: bool,
    /// The descriptor itself has failed: a userfaultfd that blocks says so.
    pub failed: bool,
}

/// Waits for any of these, for `timeout_us` at most; a signal ends it, too. All is unready then.
pub fn wait_any<const N: usize>(waits: [(BorrowedFd<'_>, Awaited); N], timeout_us: u32) -> [Ready; N] {
    let mut polled = waits.map(|(fd, awaited)| {
        let flags = match awaited {
            Awaited::Input => PollFlags::IN,
            Awaited::End => PollFlags::RDHUP,
        };
        PollFd::from_borrowed_fd(fd, flags)
    });
    let timeout = Timespec {
        tv_sec: i64::from(timeout_us / 1_000_000),
        tv_nsec: i64::from(timeout_us % 1_000_000) * 1000,
    };
    if !poll(&mut polled, Some(&timeout)).is_ok_and(|count| count > 0) {
        return [Ready::default(); N];
    }
    polled.map(|polled| {
        let flags = polled.revents();
        let now = flags.intersects(PollFlags::IN | PollFlags::RDHUP | PollFlags::HUP);
        Ready { now, failed: flags.intersects(PollFlags::ERR | PollFlags::NVAL) }
    })
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn descriptors_come_with_their_bytes_also_when_they_are_only_looked_at() {
        let directory = tempfile::tempdir().expect("a directory");
        let long = directory.path().join("d".repeat(120));
        std::fs::create_dir(&long).expect("made");
        let at = long.join("socket");
        let listener = listen_at(&at, 0o600).expect("listens, whatever the length of its path");
        assert!(accept(&listener).expect("none failed").is_none());
        assert_eq!(listen_at(&at, 0o600).expect_err("taken").kind(), io::ErrorKind::AddrInUse);
        let peer = connect_to(&at).expect("connected");
        let connection = accept(&listener).expect("accepted").expect("it waits");
        assert_eq!(peer_of(&connection).0, Some(std::process::id()));
        let mut buffer = [0; 16];
        assert!(peek(&connection, &mut buffer).expect("nothing failed").is_none());
        let file = File::open("/dev/null").expect("there");
        assert!(send(&peer, b"hello", &[file.as_fd(), file.as_fd()]).expect("sent"));
        for _ in 0..2 {
            let seen = peek(&connection, &mut buffer).expect("seen").expect("there");
            assert_eq!((&buffer[..seen.bytes], seen.descriptors.len()), (&b"hello"[..], 2));
        }
        let came = receive(&connection, &mut buffer).expect("came").expect("there");
        assert_eq!((came.bytes, came.descriptors.len()), (5, 2));
        assert!(receive(&connection, &mut buffer).expect("nothing failed").is_none());
    }

    #[test]
    fn the_end_is_seen_though_something_is_unread() {
        let (one, other) = pair().expect("a pair");
        assert!(send(&other, b"unread", &[]).expect("sent"));
        let of =
            |timeout_us| wait_any([(one.as_fd(), Awaited::End), (one.as_fd(), Awaited::Input)], timeout_us);
        assert_eq!(of(0).map(|ready| ready.now), [false, true]);
        drop(other);
        // A child that another test forks has the other end, too, until it ends or executes.
        crate::testing::wait::until("its end is seen", || of(0).map(|ready| ready.now) == [true, true]);
    }
}
