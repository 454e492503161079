//! The errors of a remote store.
//!
//! They are there in a build without one, too. None of them ever stands for content.

use std::fmt;
use std::io;

use pagoda_core::size::Bytes;

/// How a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// The server's memory, or the limit of this store there, is full.
    #[error("the remote store is full")]
    Full,
    /// The server did not answer in time.
    #[error("the remote store did not answer in time")]
    TimedOut,
    /// There is no connection, or it broke.
    #[error("the remote store was cut off: {0}")]
    CutOff(RemoteErrno),
    /// The server answered something else than it was asked for, or that it won't.
    #[error("the remote store refused what it was asked")]
    Refused,
    /// The cluster says that it is down, or has no node for this part of its keys.
    #[error("the remote store's cluster is down, or nobody serves a part of it")]
    Down,
    /// The nodes of the cluster sent from one to the other, or to where it can't be followed.
    #[error(
        "the remote store's cluster sent on without end, or not to a literal address where it can be reached; have its \
         nodes announce theirs"
    )]
    Astray,
    /// The server does not have the stored object: it was restarted without its content, or another
    /// client deleted it.
    #[error("the remote store has lost what was stored there")]
    Gone,
}

/// An error number of the operating system, shown as its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteErrno(pub(super) i32);

impl fmt::Display for RemoteErrno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

/// `EPIPE`: the other side has closed the connection.
pub(super) const CLOSED: RemoteErrno = RemoteErrno(32);

impl RemoteError {
    /// The error number that says the same.
    #[must_use]
    pub fn raw_errno(self) -> i32 {
        match self {
            Self::Full => 28,
            Self::TimedOut => 110,
            Self::CutOff(RemoteErrno(errno)) => errno,
            Self::Refused => 71,
            Self::Down => 112,
            Self::Astray => 78,
            Self::Gone => 61,
        }
    }
}

impl From<io::Error> for RemoteError {
    fn from(error: io::Error) -> Self {
        match (error.kind(), error.raw_os_error()) {
            (io::ErrorKind::TimedOut, _) => Self::TimedOut,
            (_, Some(errno)) => Self::CutOff(RemoteErrno(errno)),
            (io::ErrorKind::UnexpectedEof | io::ErrorKind::WriteZero, None) => Self::CutOff(CLOSED),
            (_, None) => Self::Refused,
        }
    }
}

/// Why a remote store can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteOpenError {
    /// It could not be reached, or did not answer.
    #[error("the remote store can't be used: {0}; check its address, password and that it is running")]
    Unusable(#[from] RemoteError),
    /// It throws content away when its memory is short. Of a cluster, one of the nodes does.
    #[error(
        "the remote store evicts what is stored there when its memory is short; set its maxmemory-policy to noeviction"
    )]
    Evicts,
    /// It is a cluster, and a database was named.
    #[error("the remote store is a cluster, which has no database but 0; name none")]
    ClusterDatabase,
    /// This build has no remote store.
    #[error("this build has no remote store; build pagoda with its feature `redis`")]
    LeftOut,
    /// Less room there than one batch takes.
    #[error("a remote store needs a limit of {least} at least, not {limit}; raise it")]
    Limit {
        /// The limit that was given.
        limit: Bytes,
        /// The least that it needs.
        least: Bytes,
    },
}
