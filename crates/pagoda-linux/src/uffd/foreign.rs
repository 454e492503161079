//! The userfaultfd of another process: its descriptor came over a socket, its faults are served
//! here.
//!
//! A VMM that restores a snapshot gives its descriptor to a handler in a process of its own
//! (Firecracker's protocol). The sender is not trusted: its descriptor may be no userfaultfd, may
//! block, and may have features that the protocol does not know. A blocking read would hold its
//! thread for good, so no read here ever waits. Messages are read into words that another process
//! may share, so that an event outlives a handler that is killed right after the read.
//!
//! This module must never serve memory of this process, and never wait.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl, readlink};
use rustix::io::Errno;
use rustix::ioctl::{self, Opcode, Updater};

use crate::mem::range::PageRange;
use crate::uffd::fault_address::FaultAddress;
use crate::uffd::{BATCH, GROUP, Progress, Stop, Uffd, ZeroCall, raw};

/// Words of one message of the kernel.
pub const MESSAGE_WORDS: usize = 4;

/// Words that one read may fill.
pub const ROOM_WORDS: usize = BATCH * MESSAGE_WORDS;

const UFFDIO_CONTINUE: Opcode = ioctl::opcode::read_write::<ZeroCall>(GROUP, 7);

/// A page that is hardly ever mapped. A call on it tells whether there is memory at all.
const TOP_PAGE: usize = 0x7fff_ffff_d000;

/// What can come of a fault's or an event's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForeignMessage {
    /// A thread waits for a page.
    Fault(FaultAddress),
    /// This range is about to be discarded: it reads zero afterwards.
    Remove(PageRange),
    /// This range is not there any more.
    Unmap(PageRange),
    /// A mapping has moved, the process has forked, or a message that this version does not know:
    /// none is part of the protocol.
    Unexpected,
}

/// A descriptor of another process's memory.
#[derive(Debug)]
pub struct ForeignUffd(Uffd);

impl ForeignUffd {
    /// Takes a descriptor that came over a socket.
    ///
    /// # Errors
    /// It is no userfaultfd ([`InvalidData`](io::ErrorKind::InvalidData)), or its flags can't be
    /// changed.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        let link = readlink(format!("/proc/self/fd/{}", fd.as_raw_fd()), Vec::new())?;
        if link.to_bytes() != b"anon_inode:[userfaultfd]" {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the descriptor is no userfaultfd"));
        }
        // A poll of one that blocks says "error" at once.
        fcntl_setfl(&fd, fcntl_getfl(&fd)? | OFlags::NONBLOCK)?;
        Ok(Self(Uffd::of_parent(fd)))
    }

    /// Fills `to` with `from`, atomically page by page, where it is missing. Wakes threads that
    /// wait there.
    pub fn copy(&self, to: usize, from: &[u8]) -> Progress {
        // SAFETY: the kernel writes to the address space that the descriptor was made in, and
        // there only to missing pages of ranges that were registered on it. This process gives
        // no descriptor of its own to a socket, but for that of `entrusted.rs`. So it is another's
        // memory; and registering was its owner's consent to exactly this.
        unsafe { self.0.copy(to, from) }
    }

    /// Maps the shared zero page wherever `range` is missing. Not for huge pages of hugetlbfs.
    pub fn zero(&self, range: PageRange) -> Progress {
        self.0.zero(range)
    }

    /// Refuses the missing pages of `range`: a thread that touches one gets SIGBUS. Linux 6.6.
    pub fn poison(&self, range: PageRange) -> Progress {
        self.0.poison(range)
    }

    /// Ends the registration of `range`: missing pages read zero, without this handler.
    ///
    /// # Errors
    /// The memory is gone, or was never registered.
    pub fn unregister(&self, range: PageRange) -> Result<(), Errno> {
        self.0.unregister(range)
    }

    /// Wakes all threads that wait in `range`. Those whose page is still missing fault again, and
    /// their faults are told again.
    pub fn wake(&self, range: PageRange) {
        self.0.wake(range);
    }

    /// Whether the memory is gone: its process has ended, or executed another program.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        // Before Linux 6.6 the kernel does not know the call, and the peer's process has to tell.
        self.0.poison(PageRange::page(TOP_PAGE)).stop == Some(Stop::Gone)
    }

    /// Whether any userfaultfd has memory of its owner registered at `range`. No page is changed.
    #[must_use]
    pub fn is_registered(&self, range: PageRange) -> bool {
        let mut call = ZeroCall { range: raw(range), mode: 0, zeroed: 0 };
        // SAFETY: the opcode is UFFDIO_CONTINUE, whose argument is a `struct uffdio_continue`, laid
        // out as ZeroCall. It maps pages of files in memory alone: in private memory, which is all
        // that a VMM gives to a handler, it only says whether there is any.
        let done = unsafe { ioctl::ioctl(&self.0, Updater::<UFFDIO_CONTINUE, ZeroCall>::new(&mut call)) };
        done != Err(Errno::NOENT)
    }

    /// Reads up to [`BATCH`] messages into `room`, [`MESSAGE_WORDS`] words each, and returns how
    /// many there were. Never waits, also if the sender has made the descriptor a blocking one.
    ///
    /// # Errors
    /// `EINVAL` if its owner has never shaken hands with the kernel.
    ///
    /// # Panics
    /// If `room` has not [`ROOM_WORDS`] words.
    pub fn read(&self, room: &[AtomicU64]) -> Result<usize, Errno> {
        assert_eq!(room.len(), ROOM_WORDS, "room for a whole batch");
        let fd = self.0.as_fd().as_raw_fd();
        let part = libc::iovec { iov_base: room.as_ptr().cast_mut().cast(), iov_len: size_of_val(room) };
        // SAFETY: the kernel writes plain words into atomics that live through the call; their
        // other readers see old or new words. An offset of -1 means none.
        let got = unsafe { libc::preadv2(fd, &raw const part, 1, -1, libc::RWF_NOWAIT) };
        let got = match usize::try_from(got).map_err(|_| last_errno()) {
            Err(Errno::OPNOTSUPP) => {
                // An older kernel: `new` has made it a descriptor that does not block.
                // SAFETY: as above.
                let got = unsafe { libc::readv(fd, &raw const part, 1) };
                usize::try_from(got).map_err(|_| last_errno())
            }
            got => got,
        };
        let bytes = match got {
            Ok(bytes) => bytes,
            Err(Errno::AGAIN | Errno::INTR | Errno::NOMEM | Errno::MFILE | Errno::NFILE) => return Ok(0),
            Err(errno) => return Err(errno),
        };
        let count = bytes / size_of::<[u64; MESSAGE_WORDS]>();
        for message in room.chunks_exact(MESSAGE_WORDS).take(count) {
            if event_of(message) == EVENT_FORK {
                let child = message[1].load(Ordering::Relaxed) as u32 as i32;
                // SAFETY: with this event the kernel has just put a new descriptor of this number
                // into our table, and no other code knows of it. It is closed here.
                drop(unsafe { OwnedFd::from_raw_fd(child) });
            }
        }
        Ok(count)
    }
}

impl AsFd for ForeignUffd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

const EVENT_FAULT: u8 = 0x12;
const EVENT_FORK: u8 = 0x13;
const EVENT_REMOVE: u8 = 0x15;
const EVENT_UNMAP: u8 = 0x16;

fn event_of(message: &[AtomicU64]) -> u8 {
    message[0].load(Ordering::Relaxed) as u8
}

/// What the message in these [`MESSAGE_WORDS`] words says; none if there is no message.
#[must_use]
pub fn decode(message: &[AtomicU64]) -> Option<ForeignMessage> {
    let [first, second] = [1, 2].map(|at: usize| message[at].load(Ordering::Relaxed) as usize);
    let range = |of: fn(PageRange) -> ForeignMessage| {
        PageRange::covering(first, second).map_or(ForeignMessage::Unexpected, of)
    };
    match event_of(message) {
        0 => None,
        EVENT_FAULT => Some(ForeignMessage::Fault(FaultAddress::of_byte(second))),
        EVENT_REMOVE => Some(range(ForeignMessage::Remove)),
        EVENT_UNMAP => Some(range(ForeignMessage::Unmap)),
        _ => Some(ForeignMessage::Unexpected),
    }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_userfaultfd_is_taken() {
        for path in ["/dev/null", "/proc/self/status", "/"] {
            let other = OwnedFd::from(std::fs::File::open(path).expect("there"));
            let why = ForeignUffd::new(other).expect_err("no userfaultfd");
            assert_eq!(why.kind(), io::ErrorKind::InvalidData, "{path}");
        }
    }

    #[test]
    fn a_read_never_waits_though_the_owner_makes_it_blocking() {
        let Ok(own) = Uffd::open(crate::uffd::Mode::UserOnly, 0) else {
            return crate::testing::skip::skip("foreign descriptors", "no userfaultfd");
        };
        let foreign = ForeignUffd::new(own.as_fd().try_clone_to_owned().expect("a copy")).expect("one");
        let room = [const { AtomicU64::new(0) }; ROOM_WORDS];
        assert_eq!(foreign.read(&room), Ok(0));
        fcntl_setfl(&own, OFlags::empty()).expect("it blocks");
        // Kernels that can't be asked not to wait (before 6.10) say so, and a poll says "error".
        let mut bytes = [0; 32];
        let asked = rustix::io::preadv2(
            &own,
            &mut [io::IoSliceMut::new(&mut bytes)],
            u64::MAX,
            rustix::io::ReadWriteFlags::NOWAIT,
        );
        if asked != Err(Errno::OPNOTSUPP) {
            assert_eq!(foreign.read(&room), Ok(0));
        }
        assert!(!foreign.is_gone() && decode(&room[..MESSAGE_WORDS]).is_none());
    }
}
