//! The errors of reading, writing, or paging out a part of a region.
//!
//! Each names the attempt and the remedy. None of them ever stands for content.

use crate::error::other_process::OtherProcess;
use crate::store::PutError;

/// Why a part of a region could not be read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// The region is of another process.
    #[error(transparent)]
    OtherProcess(#[from] OtherProcess),
    /// The region would hold more than its limit.
    #[error(
        "the region has reached its limit; discard what it needs no more, or make it with a larger limit"
    )]
    LimitReached,
    /// Its protection does not allow the access.
    #[error("a part of it is protected; allow the access by `protect`")]
    Protected,
    /// A part of it is swapped out, or is just being moved.
    #[error("a part of it is swapped out; prefetch it, or use the call that waits")]
    WouldBlock,
    /// A part of a region that was received will never arrive: its sender was lost, or the
    /// connection to it.
    #[error(
        "a part of what was to be read is lost with the host that it was on; close the region, and start again from what was \
         saved"
    )]
    Lost,
    /// The image that the region was restored from is damaged there, or can't be read; or the file
    /// that it shows privately can't be read there, or is shorter by now.
    #[error(
        "the image or file is damaged or unreadable at offset {offset}; get another copy of it, and begin anew"
    )]
    Damaged {
        /// Where its OS page begins in the region, in bytes.
        offset: usize,
    },
}

/// Why a part of a region could not be paged out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PageOutError {
    /// The region is of another process.
    #[error(transparent)]
    OtherProcess(#[from] OtherProcess),
    /// The store did not take it.
    #[error(transparent)]
    Store(#[from] PutError),
}
