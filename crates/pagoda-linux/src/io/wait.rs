//! Waiting for a descriptor, under any limit of descriptors.
//!
//! poll(2) refuses to look at one descriptor if the process may have none (`RLIMIT_NOFILE` of 0),
//! open or not, and a program may set that limit at any time. select(2) does not check it. This
//! module must never take a refusal for "nothing is ready".

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::event::{FdSetElement, PollFd, PollFlags, Timespec, fd_set_insert, poll, select};
use rustix::io::Errno;

/// Descriptors that select(2) is asked about: those below this number.
const SELECTED: usize = 1024;

/// The outcome of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The descriptor is ready, or has failed: the next call on it says which.
    Ready,
    /// The time is over, or a signal came.
    NotReady,
    /// The kernel, or a filter of system calls, does not let this thread wait. The caller pauses
    /// for a moment and tries the call that it waits for.
    Refused(Errno),
}

/// Waits until `fd` is ready for all of `flags` (`IN` or `OUT`), for `timeout_ns` at most.
pub(crate) fn wait_for(fd: BorrowedFd<'_>, flags: PollFlags, timeout_ns: u64) -> Wait {
    let timeout = Timespec {
        tv_sec: (timeout_ns / 1_000_000_000) as i64,
        tv_nsec: (timeout_ns % 1_000_000_000) as i64,
    };
    let polled = poll(&mut [PollFd::from_borrowed_fd(fd, flags)], Some(&timeout));
    let ready = match polled {
        // Of all that poll(2) is given here only the number of descriptors can be invalid.
        Err(Errno::INVAL) => wait_by_select(fd, flags, &timeout),
        polled => polled,
    };
    match ready {
        Ok(0) | Err(Errno::INTR) => Wait::NotReady,
        Ok(_) => Wait::Ready,
        Err(errno) => Wait::Refused(errno),
    }
}

fn wait_by_select(fd: BorrowedFd<'_>, flags: PollFlags, timeout: &Timespec) -> Result<usize, Errno> {
    let number = fd.as_raw_fd();
    if number.cast_unsigned() as usize >= SELECTED {
        return Err(Errno::INVAL);
    }
    let mut set = [FdSetElement::default(); SELECTED / (8 * size_of::<FdSetElement>())];
    fd_set_insert(&mut set, number);
    let (reads, writes) =
        if flags.contains(PollFlags::OUT) { (None, Some(&mut set[..])) } else { (Some(&mut set[..]), None) };
    // SAFETY: the only descriptor in the set is borrowed, and so open.
    let ready = unsafe { select(number + 1, reads, writes, None, Some(timeout)) }?;
    Ok(ready.cast_unsigned() as usize)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn select_says_the_same_as_poll_and_knows_descriptors_of_low_numbers_alone() {
        let (mut one, mut other) = UnixStream::pair().expect("a pair");
        let timeout = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        type Way = fn(BorrowedFd<'_>, PollFlags, &Timespec) -> Result<usize, Errno>;
        let ways: [Way; 2] = [wait_by_select, |fd, flags, timeout| {
            poll(&mut [PollFd::from_borrowed_fd(fd, flags)], Some(timeout))
        }];
        for way in ways {
            assert_eq!(way(one.as_fd(), PollFlags::IN, &timeout), Ok(0));
            assert_eq!(way(one.as_fd(), PollFlags::OUT, &timeout), Ok(1));
            other.write_all(b"x").expect("room");
            assert_eq!(way(one.as_fd(), PollFlags::IN, &timeout), Ok(1));
            one.read_exact(&mut [0]).expect("one byte");
        }
        drop(other);
        // With patience: a child that another test forks has the other end, too, until it executes.
        assert_eq!(
            wait_for(one.as_fd(), PollFlags::IN, 30_000_000_000),
            Wait::Ready,
            "its end is something to read"
        );
        // SAFETY: the number is not used: it is refused before.
        let high = unsafe { BorrowedFd::borrow_raw(SELECTED as i32) };
        assert_eq!(wait_by_select(high, PollFlags::IN, &timeout), Err(Errno::INVAL));
    }
}
