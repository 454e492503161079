//! How many forks were announced, and how many of them are over.
//!
//! Counters alone: the waits are in `fork/inflight.rs`.

use std::sync::atomic::{AtomicU32, AtomicU64};

/// The number of announced forks, and of those that no thread has to wait for any more: they were
/// served, or failed.
#[derive(Debug, Default)]
pub(crate) struct Announcements {
    pub(crate) made: AtomicU64,
    pub(crate) over: AtomicU64,
    /// When one that is served got on last.
    pub(crate) went_on_ns: AtomicU64,
    /// The thread of a child that reads the stream just now; 0 if there is none.
    pub(crate) reader: AtomicU32,
}
