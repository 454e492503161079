//! A parent's offer to its forked child to take over what the child lacks: its descriptor of userfaultfd, and a stream on which the
//! content comes.
//!
//! The child takes both out of the descriptor table of the parent's thread that serves the fork, so that nothing of it ever
//! is in the program's table. Who of the two comes first decides: the child accepts or refuses, or the parent revokes. This
//! module must never let both serve the child's faults.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, getppid, pidfd_getfd, pidfd_open};

use crate::thread::current_id;
use crate::uffd::Uffd;

/// Words of an offer in a page.
pub(crate) const WORDS: usize = 6;

/// `PIDFD_THREAD` (Linux 6.9): a descriptor of a thread, with its own table.
const PIDFD_THREAD: u32 = 0o200;

/// What an offer came to, in the lowest bits of its word; above is its number.
const OPEN: u64 = 0;
const ACCEPTED: u64 = 1;
const REFUSED: u64 = 2;
const REVOKED: u64 = 3;
const STATES: u64 = 4;

/// What an offer came to so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nobody has said anything.
    Open,
    /// The child serves itself from now on, and wants the content.
    Accepted,
    /// The child wants everything copied.
    Refused,
}

/// An offer, as the child sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    process: u32,
    thread: u32,
    uffd: u32,
    stream: u32,
    /// Where the word is.
    word: u64,
    number: u64,
}

impl Offer {
    pub(crate) fn to_words(self) -> [u64; WORDS] {
        let [process, thread, uffd, stream] =
            [self.process, self.thread, self.uffd, self.stream].map(u64::from);
        [process, thread, uffd, stream, self.word, self.number]
    }

    pub(crate) fn from_words([process, thread, uffd, stream, word, number]: [u64; WORDS]) -> Self {
        let [process, thread, uffd, stream] = [process, thread, uffd, stream].map(|word| word as u32);
        Self { process, thread, uffd, stream, word, number }
    }

    fn settle(self, how: u64) -> bool {
        let word = std::ptr::with_exposed_provenance::<AtomicU64>(self.word as usize);
        // SAFETY: the address comes from the parent, by a page that only it and the kernel write: it is that of its `Offers`, which
        // is never unmapped and inherited, aligned to a page, and used by nobody but as an atomic.
        let word = unsafe { &*word };
        let open = self.number * STATES + OPEN;
        let settled = self.number * STATES + how;
        word.compare_exchange(open, settled, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// In the child: takes the descriptors, into the calling thread's table. The parent serves faults on.
    ///
    /// # Errors
    /// What the kernel said: before Linux 6.9, without the right to trace the parent, without a free descriptor; and `ESRCH` if the
    /// child can't see its parent.
    pub fn descriptors(self) -> io::Result<(Uffd, Stream)> {
        // In a namespace of its own a number may be another process's.
        if getppid().map(Pid::as_raw_nonzero).map(|pid| pid.get().cast_unsigned()) != Some(self.process) {
            return Err(io::Error::from_raw_os_error(Errno::SRCH.raw_os_error()));
        }
        let thread = thread_descriptor(self.thread)?;
        let get = |number: u32| pidfd_getfd(&thread, number.cast_signed(), PidfdGetfdFlags::empty());
        Ok((Uffd::of_parent(get(self.uffd)?), Stream(get(self.stream)?)))
    }

    /// In the child: from now on it serves its faults itself. False if the parent came first and has revoked the offer.
    #[must_use]
    pub fn accept(self) -> bool {
        self.settle(ACCEPTED)
    }

    /// In the child: it wants everything copied; see [`Doorbell::wait_for_everything`](crate::doorbell::Doorbell::wait_for_everything).
    pub fn refuse(self) {
        let _ = self.settle(REFUSED);
    }
}

fn thread_descriptor(id: u32) -> io::Result<OwnedFd> {
    let id = Pid::from_raw(id.cast_signed())
        .ok_or_else(|| io::Error::from_raw_os_error(Errno::SRCH.raw_os_error()))?;
    Ok(pidfd_open(id, PidfdFlags::from_bits_retain(PIDFD_THREAD))?)
}

/// Makes offers, one at a time. The word is on a page that children share, for good.
#[derive(Debug)]
pub struct Offers {
    word: usize,
}

/// An offer that was made, as the parent sees it.
#[derive(Debug)]
pub struct Made<'a> {
    offers: &'a Offers,
    pub(crate) offer: Offer,
    stream: Stream,
    /// The child's end: kept open until it has one of its own.
    _theirs: OwnedFd,
}

impl Offers {
    /// None where children could not take what is offered.
    #[must_use]
    pub fn new() -> Option<Self> {
        thread_descriptor(current_id()).ok()?;
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing.
        let at = unsafe {
            mmap_anonymous(std::ptr::null_mut(), 4096, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED)
        };
        Some(Self { word: at.ok()?.expose_provenance() })
    }

    fn word(&self) -> &AtomicU64 {
        let word = std::ptr::with_exposed_provenance::<AtomicU64>(self.word);
        // SAFETY: the page was made by `new`, is never unmapped, and is used by nobody but as an atomic.
        unsafe { &*word }
    }

    /// Offers the descriptor of a child, as long as what is returned lives. One at a time. `patience` is the longest that either
    /// side waits for the other within the stream; it is not 0.
    ///
    /// # Errors
    /// What socketpair(2) said.
    pub fn make(&self, child: &Uffd, patience: Duration) -> io::Result<Made<'_>> {
        let (mine, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        for end in [&mine, &theirs] {
            set_socket_timeout(end, Timeout::Send, Some(patience))?;
            set_socket_timeout(end, Timeout::Recv, Some(patience))?;
        }
        let number = self.word().load(Ordering::Acquire) / STATES + 1;
        self.word().store(number * STATES + OPEN, Ordering::Release);
        let raw = |end: BorrowedFd<'_>| end.as_raw_fd().cast_unsigned();
        let offer = Offer {
            process: std::process::id(),
            thread: current_id(),
            uffd: raw(child.as_fd()),
            stream: raw(theirs.as_fd()),
            word: self.word as u64,
            number,
        };
        Ok(Made { offers: self, offer, stream: Stream(mine), _theirs: theirs })
    }
}

impl Made<'_> {
    /// What it came to.
    #[must_use]
    pub fn state(&self) -> State {
        match self.offers.word().load(Ordering::Acquire) % STATES {
            OPEN => State::Open,
            ACCEPTED => State::Accepted,
            _ => State::Refused,
        }
    }

    /// Takes it back. False if the child came first and has accepted it.
    #[must_use]
    pub fn revoke(&self) -> bool {
        self.offer.settle(REVOKED) || self.state() != State::Accepted
    }

    /// The stream to a child that has accepted. The child's end is its own alone from now on.
    #[must_use]
    pub fn into_stream(self) -> Stream {
        self.stream
    }
}

/// One end of a stream between parent and child.
#[derive(Debug)]
pub struct Stream(OwnedFd);

impl Stream {
    /// Sends all of it.
    ///
    /// # Errors
    /// `EPIPE`: the other side is gone. `EAGAIN`: it took nothing for as long as the stream's patience.
    pub fn send(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match send(&self.0, bytes, SendFlags::NOSIGNAL) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Fills all of `into`.
    ///
    /// # Errors
    /// `UnexpectedEof`: the other side is gone. `EAGAIN`: nothing came for as long as the stream's patience.
    pub fn receive(&self, mut into: &mut [u8]) -> io::Result<()> {
        while !into.is_empty() {
            match recv(&self.0, &mut *into, RecvFlags::empty()) {
                Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok((received, _)) => into = &mut into[received..],
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
