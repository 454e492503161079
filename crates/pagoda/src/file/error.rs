//! The errors of mapping a file, and of reading, writing or syncing a part of it.
//!
//! Each names the attempt and the remedy. None of them ever stands for content: a caller that gets
//! one got no bytes.

use std::path::PathBuf;

use pagoda_core::page::BasePage;
use pagoda_core::size::Bytes;

use crate::error::Errno;
use crate::error::other_process::OtherProcess;
use crate::region::RegionError;

/// Why a file could not be mapped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MapFileError {
    /// It could not be opened.
    #[error("could not open {} ({errno}); name a file that this user may use in this way", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        errno: Errno,
    },
    /// It is something else than a file.
    #[error("{} is {kind}; only a regular file can be mapped", path.display())]
    NotAFile {
        /// The path that was given.
        path: PathBuf,
        /// The kind of file that it is.
        kind: &'static str,
    },
    /// It is longer than can be shown privately with this base page.
    #[error("{} has {len}, which is too long for a private region with base pages of {base}; use larger ones", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// Its length.
        len: Bytes,
        /// The manager's base page.
        base: BasePage,
    },
    /// So many files are shown privately, or images restored from, as one manager can.
    #[error("{} different images and private files are open already; close regions of one of them", limit)]
    TooMany {
        /// The most.
        limit: usize,
    },
    /// The part that was asked for does not begin with an OS page, or has no bytes.
    #[error(
        "{len} at {offset} of a file can't be mapped; give an offset that is a multiple of 4 KiB, and some length"
    )]
    NoPart {
        /// From where on.
        offset: Bytes,
        /// How much, at least.
        len: Bytes,
    },
    /// It ends before the part that was asked for does.
    #[error("{} ends before {len} at {offset}; give it its length before it is mapped, or ask for less", path.display())]
    BeyondEnd {
        /// The file.
        path: PathBuf,
        /// From where on.
        offset: Bytes,
        /// How much, at least.
        len: Bytes,
    },
    /// It has no bytes.
    #[error("{} is empty; give it its length before it is mapped", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// Its file system's files are memory already.
    #[error(
        "{} is on {filesystem}, whose files are memory outside of every budget; put it on a disk, or allow it with `buffered`",
        path.display()
    )]
    InMemory {
        /// The file.
        path: PathBuf,
        /// The kind of file system.
        filesystem: &'static str,
    },
    /// Its file system refuses direct I/O.
    #[error(
        "direct I/O on {} is refused ({errno}); put it on ext4, xfs or another file system that has it, or allow the kernel's \
         cache with `buffered`",
        path.display()
    )]
    NoDirectIo {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        errno: Errno,
    },
    /// The kernel does not copy for this process, which is how a page that can't be read becomes an
    /// error.
    #[error("process_vm_readv is refused ({errno}); allow it in the filter of system calls")]
    Copy {
        /// The kernel's error.
        errno: Errno,
    },
    /// The thread that reads ahead could not be started.
    #[error("could not start a thread that reads ahead ({errno}); raise `ulimit -u`")]
    Thread {
        /// The kernel's error.
        errno: Errno,
    },
    /// The kernel gave no random numbers, which the digests of what the file holds need.
    #[error("can't draw a secret key ({errno}); let the filter of system calls pass getrandom(2)")]
    Random {
        /// What the kernel said.
        errno: Errno,
    },
    /// The manager is of another process.
    #[error(transparent)]
    OtherProcess(#[from] OtherProcess),
    /// The memory could not be had.
    #[error(transparent)]
    Region(#[from] RegionError),
}

/// Why a part of a mapped file could not be read or written, or its writes not be made safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// It reaches beyond the file's end as it was mapped.
    #[error("{len} at {offset} reach beyond the file's end; a file keeps the length that it was mapped with")]
    BeyondEnd {
        /// From where on.
        offset: Bytes,
        /// How much.
        len: Bytes,
    },
    /// There was no memory for it for ten seconds.
    #[error(
        "no memory could be had for ten seconds; raise the budget, or free what can't be moved out of it"
    )]
    NoMemory,
    /// The file was mapped by another process.
    #[error(transparent)]
    OtherProcess(#[from] OtherProcess),
    /// It was mapped to be read.
    #[error("the file was mapped to be read; map it with `writable`")]
    ReadOnly,
    /// The file has become shorter since it was mapped.
    #[error("the file has become shorter since it was mapped; what lay beyond its end is gone: map it anew")]
    Truncated,
    /// Another program changed the file where it was in memory, or pages that were read could not
    /// be dropped then.
    #[error(
        "somebody else has changed the file while it was mapped; let one at a time write it, and map it anew to have what it holds"
    )]
    Changed,
    /// A part of it could not be read once, and is not tried again.
    #[error("the file could not be read at {offset} ({errno}); check its disk, and map it anew")]
    Unreadable {
        /// The OS page.
        offset: Bytes,
        /// The kernel's error.
        errno: Errno,
    },
    /// A part of it could not be written. It is kept, and tried again by the next call.
    #[error("the file could not be written ({errno}); make room or check its disk, and sync again")]
    Unwritten {
        /// The kernel's error.
        errno: Errno,
    },
    /// The disk did not say that all is safe. Something that was written may be lost.
    #[error("the file could not be brought to stable storage ({errno}); check its disk, and write it anew")]
    Unsafe {
        /// The kernel's error.
        errno: Errno,
    },
}
