//! How many forks were announced, and how many of them are over.
//!
//! Counters alone: the waits are in `fork/inflight.rs`.

use std::sync::atomic::AtomicU64;

/// How many forks were announced, and of how many of them nobody has to wait for anything more: those that were served, or failed.
#[derive(Debug, Default)]
pub(crate) struct Announcements {
    pub(crate) made: AtomicU64,
    pub(crate) over: AtomicU64,
    /// When one that is served got on last.
    pub(crate) went_on_ns: AtomicU64,
}
