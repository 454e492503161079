//! A descriptor kept for a fork: the kernel tells of a fork by a descriptor, and where it can make
//! none the forking thread waits for good.
//!
//! A program may lower its limit of descriptors to next to nothing, soft and hard. The limit holds
//! for the numbers in the engine's table, too. So the lowest number of that table is taken at the
//! start, and is free for the moment in which a fork needs it. Only a hard limit of 0 leaves no
//! room, which [`has_room`] tells before a fork.
//!
//! The soft limit is raised to the hard one for that moment. The program may see that, and a limit
//! that it sets in that moment is undone. This module must never touch a table that is the
//! program's.

use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The one of this process.
static SPARE: Spare = Spare::new();

/// The number of the descriptor that is kept, or one of the two below.
struct Spare(AtomicI32);

/// The engine has no table of its own: nothing is kept.
const NEVER: i32 = -1;
/// It is in use, and is to be kept again.
const LENT: i32 = -2;

/// Keeps one in the table of the calling thread, which is new, empty and of the engine alone.
pub fn keep_first() {
    SPARE.keep();
}

/// Whether a fork of this process can be told of.
#[must_use]
pub fn has_room() -> bool {
    getrlimit(Resource::Nofile).maximum != Some(0)
}

/// Calls `read`, which may bring descriptors, and calls it with more room for them where it fails
/// for want of that (`EMFILE`). Calls don't overlap: the caller holds the gate.
pub(crate) fn with_room<T>(read: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    SPARE.with_room(read)
}

impl Spare {
    const fn new() -> Self {
        Self(AtomicI32::new(NEVER))
    }

    /// Only the lowest number is of use. As long as a fork has that, each call tries anew.
    fn keep(&self) {
        // A name that is there in every process, and nothing of it but the name.
        let opened = openat(CWD, c"/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        let lowest = opened.ok().filter(|opened| opened.as_raw_fd() == 0);
        self.0.store(lowest.map_or(LENT, IntoRawFd::into_raw_fd), Ordering::Release);
    }

    fn with_room<T>(&self, mut read: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
        if self.0.load(Ordering::Acquire) == LENT {
            self.keep();
        }
        match read() {
            Err(Errno::MFILE) => {}
            result => return result,
        }
        let limit = getrlimit(Resource::Nofile);
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
        let mut result = read();
        if let Err(Errno::MFILE) = result
            && let Some(spare) = self.lend()
        {
            drop(spare);
            result = read();
        }
        let _ = setrlimit(Resource::Nofile, limit);
        result
    }

    fn lend(&self) -> Option<OwnedFd> {
        let spare = self.0.load(Ordering::Acquire);
        if spare < 0 || self.0.compare_exchange(spare, LENT, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return None;
        }
        // SAFETY: `keep` opened it and gave it up to this word, from which it is taken once; only
        // threads of the engine, in whose table it is, come here.
        Some(unsafe { OwnedFd::from_raw_fd(spare) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::thread::{leave_files, sleep_us, spawn_raw};
    use std::sync::atomic::AtomicU32;

    static DONE: AtomicU32 = AtomicU32::new(0);

    #[test]
    fn a_full_table_has_room_for_one_descriptor_more_each_time() {
        let body = || {
            leave_files().expect("a table of its own");
            let spare = Spare::new();
            spare.keep();
            let open = || openat(CWD, c"/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
            let mut failed_for = 0;
            for _ in 0..3 {
                // As if the table were full: the first tries fail, and the last one comes when the
                // spare is free.
                let opened = spare.with_room(|| {
                    let opened = open()?;
                    if opened.as_raw_fd() == 0 {
                        return Ok(opened);
                    }
                    failed_for += 1;
                    Err(Errno::MFILE)
                });
                assert_eq!(opened.map(|fd| fd.as_raw_fd()), Ok(0));
            }
            assert_eq!(failed_for, 6);
            DONE.store(1, Ordering::Release);
        };
        spawn_raw(c"spare", Box::new(body)).expect("a thread");
        while DONE.load(Ordering::Acquire) == 0 {
            sleep_us(1000);
        }
    }
}
