//! The reasons why the engine could not start, or had to stop, for the counters file and for
//! people.
//!
//! Each error is one small `Copy` value with a stable number, so that a process that is about to
//! end can leave it in its counters and `pagoda run` can say it in words afterwards. Showing one
//! must never allocate, and must never ask the C library for a message: the threads that show it
//! have no C library state.

pub(crate) mod abort_hook;
mod immovable;
pub(crate) mod other_process;
mod start;
mod stop;

use std::fmt;

use crate::stats::counters::Stats;

pub use abort_hook::set_abort_hook;
pub use immovable::{Immovable, Obstacle};
pub use start::StartError;
pub use stop::StopReason;

/// The operating system's error number, 0 if there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// No error number.
    pub const NONE: Self = Self(0);
}

const ENOMEM: Errno = Errno(12);
const ENFILE: Errno = Errno(23);
const EMFILE: Errno = Errno(24);

impl From<&std::io::Error> for Errno {
    fn from(error: &std::io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(0))
    }
}

impl fmt::Display for Errno {
    /// `EPERM: not permitted`; the numbers are those that Linux has on every machine Pagoda runs
    /// on.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            0 => "no error number",
            1 => "EPERM: not permitted",
            2 => "ENOENT: no such file or directory",
            4 => "EINTR: interrupted",
            5 => "EIO: input/output error",
            9 => "EBADF: bad file descriptor",
            11 => "EAGAIN: resource temporarily unavailable",
            12 => "ENOMEM: out of memory",
            13 => "EACCES: permission denied",
            14 => "EFAULT: bad address",
            16 => "EBUSY: busy",
            17 => "EEXIST: exists already",
            19 => "ENODEV: no such device",
            20 => "ENOTDIR: not a directory",
            22 => "EINVAL: invalid argument",
            23 => "ENFILE: too many open files in the system",
            24 => "EMFILE: too many open files in the process",
            25 => "ENOTTY: unknown request",
            27 => "EFBIG: file too large",
            28 => "ENOSPC: no space left",
            30 => "EROFS: read-only file system",
            38 => "ENOSYS: not implemented",
            32 => "EPIPE: closed by the other side",
            61 => "ENODATA: not there any more",
            71 => "EPROTO: not what was asked for",
            78 => "EREMCHG: sent on to where it can't be followed",
            95 => "EOPNOTSUPP: not supported",
            104 => "ECONNRESET: connection broken",
            110 => "ETIMEDOUT: no answer in time",
            111 => "ECONNREFUSED: nobody listens there",
            112 => "EHOSTDOWN: the cluster is down",
            113 => "EHOSTUNREACH: host not reached",
            122 => "EDQUOT: quota exceeded",
            other => return write!(f, "error {other}"),
        })
    }
}

/// The failure that a counters file tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The engine did not start.
    Start(StartError),
    /// The engine ended the process.
    Stop(StopReason),
    /// A number that this version does not know.
    Unknown {
        /// The number.
        code: u64,
        /// The operating system's error number that came with it.
        errno: Errno,
    },
}

impl Failure {
    /// Reads the failure from a process's counters; `None` without one.
    #[must_use]
    pub fn from_snapshot(counters: &Stats) -> Option<Self> {
        let errno = Errno(i32::try_from(counters.error_errno).unwrap_or(0));
        let code = counters.error_code;
        if code == 0 {
            return None;
        }
        let start = StartError::from_code(code, errno).map(Self::Start);
        let stop = || {
            Some(Self::Stop(match StopReason::from_code(code, errno)? {
                StopReason::NothingEvictable(_) => StopReason::NothingEvictable(Immovable::of(counters)),
                reason => reason,
            }))
        };
        Some(start.or_else(stop).unwrap_or(Self::Unknown { code, errno }))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start(error) => error.fmt(f),
            Self::Stop(reason) => reason.fmt(f),
            Self::Unknown { code, errno } => write!(
                f,
                "Pagoda stopped for reason {code} ({errno}), which this pagoda does not know; use the command and \
                 the preload library of one version"
            ),
        }
    }
}

#[cfg(test)]
mod tests;
