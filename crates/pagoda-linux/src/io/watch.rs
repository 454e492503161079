//! A watch over a descriptor, which can be told not to wake those that wait for it.
//!
//! A message that is posted to a userfaultfd wakes every thread that polls it. If one thread is
//! known to read, the others are woken for nothing, and each on a processor of its own. An epoll of
//! one descriptor stands between them: its mask can be changed. This module must never lose a
//! wake-up: what came meanwhile is seen when the watch wakes again.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll;
use rustix::io::Errno;

/// A descriptor that is ready when the watched one is.
#[derive(Debug)]
pub(crate) struct Watch(OwnedFd);

impl Watch {
    pub(crate) fn new(of: BorrowedFd<'_>) -> Result<Self, Errno> {
        let fd = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&fd, of, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        Ok(Self(fd))
    }

    /// Whether those that wait are woken. If this fails it stays as it was.
    pub(crate) fn wakes(&self, of: BorrowedFd<'_>, wakes: bool) {
        let flags = if wakes { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        let _ = epoll::modify(&self.0, of, epoll::EventData::new_u64(0), flags);
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use rustix::event::PollFlags;

    use super::*;
    use crate::io::wait::{Wait, wait_for};

    #[test]
    fn what_came_while_it_did_not_wake_is_seen_afterwards() {
        let (mut one, mut other) = UnixStream::pair().expect("a pair");
        let watch = Watch::new(one.as_fd()).expect("a watch");
        let wait = || wait_for(watch.as_fd(), PollFlags::IN, 1_000_000);
        assert_eq!(wait(), Wait::NotReady);
        watch.wakes(one.as_fd(), false);
        other.write_all(b"x").expect("room");
        assert_eq!(wait(), Wait::NotReady, "it wakes nobody");
        watch.wakes(one.as_fd(), true);
        assert_eq!(wait(), Wait::Ready);
        one.read_exact(&mut [0]).expect("one byte");
        assert_eq!(wait(), Wait::NotReady);
    }
}
