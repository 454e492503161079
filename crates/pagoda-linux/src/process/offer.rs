//! A parent's offer to its forked child to take over its missing pages: the child's userfaultfd
//! descriptor, and a stream on which the content comes. With them come, if the parent has a spill
//! file, that file and the places of it that the child holds.
//!
//! The child takes all of them out of the descriptor table of the parent's thread that serves the
//! fork, so that no such descriptor is ever in the program's table. The first of the two decides:
//! the child accepts or refuses, or the parent revokes. This module must never let both serve the
//! child's faults.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown, socketpair,
};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, getppid, pidfd_getfd, pidfd_open};

use crate::io::direct_file::DirectFile;
use crate::io::holds::{Holds, HoldsFile};
use crate::mem::own_memory::declare;
use crate::mem::range::PageRange;
use crate::process::caller::current_id;
use crate::process::identity::is_stopped;
use crate::uffd::Uffd;

/// Words of an offer in a page.
pub(crate) const WORDS: usize = 8;

/// In place of a descriptor: there is none.
const NONE: u32 = u32::MAX;

/// `PIDFD_THREAD` (Linux 6.9): a descriptor of a thread, with its own table.
const PIDFD_THREAD: u32 = 0o200;

/// The outcome of an offer, in the lowest bits of its word; above is its number.
const OPEN: u64 = 0;
const ACCEPTED: u64 = 1;
const REFUSED: u64 = 2;
const REVOKED: u64 = 3;
const STATES: u64 = 4;

/// The outcome of an offer so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Neither side has decided.
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
    /// The parent's file, and the child's holds on it; none if there is none.
    lent: [u32; 2],
    /// Where the word is.
    word: u64,
    number: u64,
}

impl Offer {
    pub(crate) fn to_words(self) -> [u64; WORDS] {
        let [process, thread, uffd, stream] =
            [self.process, self.thread, self.uffd, self.stream].map(u64::from);
        let [file, holds] = self.lent.map(u64::from);
        [process, thread, uffd, stream, file, holds, self.word, self.number]
    }

    pub(crate) fn from_words(
        [process, thread, uffd, stream, file, holds, word, number]: [u64; WORDS],
    ) -> Self {
        let [process, thread, uffd, stream] = [process, thread, uffd, stream].map(|word| word as u32);
        let lent = [file, holds].map(|word| word as u32);
        Self { process, thread, uffd, stream, lent, word, number }
    }

    fn settle(self, how: u64) -> bool {
        let open = self.number * STATES + OPEN;
        let settled = self.number * STATES + how;
        self.shared().word.compare_exchange(open, settled, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn shared(&self) -> &Shared {
        let shared = std::ptr::with_exposed_provenance::<Shared>(self.word as usize);
        // SAFETY: the address comes from the parent, by a page that only it and the kernel write:
        // it is that of its `Offers`, which is never unmapped and inherited, aligned to a page,
        // zeroed when it is made, and only ever used as these atomics.
        unsafe { &*shared }
    }

    /// In the child: takes the descriptors, into the calling thread's table. The parent serves
    /// faults on. All of them or none: loans are named by places, which are worth nothing without
    /// the file.
    ///
    /// # Errors
    /// The kernel's: before Linux 6.9, without the right to trace the parent, without a free
    /// descriptor; `ESRCH` if the child can't see its parent; and those of [`Holds::of`]. The child
    /// has to refuse the offer then.
    pub fn descriptors(self) -> io::Result<Taken> {
        // In a namespace of its own a number may be another process's.
        if getppid().map(Pid::as_raw_nonzero).map(|pid| pid.get().cast_unsigned()) != Some(self.process) {
            return Err(io::Error::from_raw_os_error(Errno::SRCH.raw_os_error()));
        }
        let thread = thread_descriptor(self.thread)?;
        let get = |number: u32| pidfd_getfd(&thread, number.cast_signed(), PidfdGetfdFlags::empty());
        let (uffd, end) = (Uffd::of_parent(get(self.uffd)?), get(self.stream)?);
        let stream = Stream { end, peer: self.thread, patience: PATIENCE };
        let lent = match self.lent {
            [NONE, _] | [_, NONE] => None,
            [file, holds] => Some(Lent { file: get(file)?.into(), holds: Holds::of(get(holds)?)? }),
        };
        Ok(Taken { uffd, stream, lent })
    }

    /// In the child, by the thread that reads the stream: from now on it serves its faults itself.
    /// False if the parent came first and has revoked the offer.
    #[must_use]
    pub fn accept(self) -> bool {
        self.shared().reader.store(current_id(), Ordering::Relaxed);
        self.settle(ACCEPTED)
    }

    /// In the child: it wants everything copied; see
    /// [`Doorbell::wait_for_everything`](crate::process::doorbell::Doorbell::wait_for_everything).
    pub fn refuse(self) {
        let _ = self.settle(REFUSED);
    }
}

/// The parts of an offer that a child has taken.
#[derive(Debug)]
pub struct Taken {
    /// Its own descriptor.
    pub uffd: Uffd,
    /// Its missing pages come here.
    pub stream: Stream,
    /// The parent's loan to it.
    pub lent: Option<Lent>,
}

/// A parent's file, which its child reads.
#[derive(Debug)]
pub struct Lent {
    /// The file. It is there as long as a process has it open.
    pub file: DirectFile,
    /// Which places of it the child holds.
    pub holds: Holds,
}

/// A descriptor of a thread (Linux 6.9).
pub(crate) fn thread_descriptor(id: u32) -> io::Result<OwnedFd> {
    let id = Pid::from_raw(id.cast_signed())
        .ok_or_else(|| io::Error::from_raw_os_error(Errno::SRCH.raw_os_error()))?;
    Ok(pidfd_open(id, PidfdFlags::from_bits_retain(PIDFD_THREAD))?)
}

/// The beginning of the page that parent and children share.
#[repr(C)]
struct Shared {
    /// The number of the offer and its outcome.
    word: AtomicU64,
    /// The child's thread that reads the stream, once it has accepted.
    reader: AtomicU32,
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
    _theirs: Stream,
}

impl Offers {
    /// None where children could not take an offer.
    #[must_use]
    pub fn new() -> Option<Self> {
        thread_descriptor(current_id()).ok()?;
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing.
        let at = unsafe {
            mmap_anonymous(std::ptr::null_mut(), 4096, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED)
        };
        let word = at.ok()?.expose_provenance();
        // In a child it may come to lie within memory that its parent has managed. Without it
        // children get copies.
        declare(PageRange::at(word, 4096)).then_some(Self { word })
    }

    fn shared(&self) -> &Shared {
        let shared = std::ptr::with_exposed_provenance::<Shared>(self.word);
        // SAFETY: the page was made by `new` and zeroed by the kernel, is never unmapped, and is
        // only ever used as these atomics.
        unsafe { &*shared }
    }

    fn word(&self) -> &AtomicU64 {
        &self.shared().word
    }

    /// Offers the descriptor of a child, as long as the result lives. One at a time. The `lent`
    /// file is open as long, too.
    ///
    /// # Errors
    /// Those of socketpair(2).
    pub fn make(&self, child: &Uffd, lent: Option<(&DirectFile, &HoldsFile)>) -> io::Result<Made<'_>> {
        let (mine, theirs) = Stream::pair(PATIENCE)?;
        let number = self.word().load(Ordering::Acquire) / STATES + 1;
        self.word().store(number * STATES + OPEN, Ordering::Release);
        let raw = |end: BorrowedFd<'_>| end.as_raw_fd().cast_unsigned();
        let offer = Offer {
            process: std::process::id(),
            thread: current_id(),
            uffd: raw(child.as_fd()),
            stream: raw(theirs.end.as_fd()),
            lent: lent.map_or([NONE; 2], |(file, holds)| [raw(file.as_fd()), raw(holds.as_fd())]),
            word: self.word as u64,
            number,
        };
        Ok(Made { offers: self, offer, stream: mine, _theirs: theirs })
    }
}

impl Made<'_> {
    /// Its outcome.
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
        Stream { peer: self.offers.shared().reader.load(Ordering::Acquire), ..self.stream }
    }
}

/// One end of a stream between parent and child.
#[derive(Debug)]
pub struct Stream {
    end: OwnedFd,
    /// The thread at the other end; 0 if it is not known.
    peer: u32,
    patience: Duration,
}

/// The longest that either side waits for the other while that runs.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long one call waits: then it is looked whether the other side is stopped.
const SLICE: Duration = Duration::from_millis(100);

impl Stream {
    /// Both ends of one. `patience` is the longest that either waits for the other while that runs;
    /// it is not 0.
    ///
    /// # Errors
    /// Those of socketpair(2).
    pub fn pair(patience: Duration) -> io::Result<(Self, Self)> {
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        for end in [&one, &other] {
            set_socket_timeout(end, Timeout::Send, Some(SLICE))?;
            set_socket_timeout(end, Timeout::Recv, Some(SLICE))?;
        }
        Ok((Self { end: one, peer: 0, patience }, Self { end: other, peer: 0, patience }))
    }

    /// The thread at the other end, if it is known.
    #[must_use]
    pub fn peer(&self) -> Option<u32> {
        Some(self.peer).filter(|peer| *peer != 0)
    }

    /// Whether the other side has closed it, which the kernel does for a process that ends or
    /// executes another program, once none of the threads that had it runs any more. Never waits.
    /// For a side to which nothing is sent.
    #[must_use]
    pub fn is_over(&self) -> bool {
        match recv(&self.end, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((received, _)) => received == 0,
            // Any other answer is no end: a caller that takes a living side for gone overwrites the
            // pages that it reads.
            Err(error) => error == Errno::CONNRESET,
        }
    }

    /// Ends it for both sides.
    pub fn end(&self) {
        // That of one that is over already says so.
        let _ = shutdown(&self.end, Shutdown::Both);
    }

    /// Sends all of it.
    ///
    /// # Errors
    /// `EPIPE`: the other side is gone. `EAGAIN`: it ran, and took nothing for as long as the
    /// stream's patience.
    pub fn send(&self, mut bytes: &[u8]) -> io::Result<()> {
        let mut waited = Duration::ZERO;
        while !bytes.is_empty() {
            match send(&self.end, bytes, SendFlags::NOSIGNAL) {
                Ok(sent) => (bytes, waited) = (&bytes[sent..], Duration::ZERO),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if self.waits_on(&mut waited) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Fills all of `into`.
    ///
    /// # Errors
    /// `UnexpectedEof`: the other side is gone. `EAGAIN`: it ran, and nothing came for as long as
    /// the stream's patience.
    pub fn receive(&self, mut into: &mut [u8]) -> io::Result<()> {
        let mut waited = Duration::ZERO;
        while !into.is_empty() {
            match recv(&self.end, &mut *into, RecvFlags::empty()) {
                Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok((received, _)) => (into, waited) = (&mut into[received..], Duration::ZERO),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if self.waits_on(&mut waited) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Another slice has passed without a byte: whether to wait for one more. A side that is
    /// stopped (SIGSTOP, a debugger) will go on, or end and close the stream; only while it runs
    /// does it use up the patience.
    fn waits_on(&self, waited: &mut Duration) -> bool {
        if !self.peer().is_some_and(is_stopped) {
            *waited += SLICE;
        }
        *waited < self.patience
    }
}

#[cfg(test)]
#[path = "offer_test.rs"]
mod tests;
