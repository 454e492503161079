//! Release of the store entries of a closing owner: in batches, and in the background.
//!
//! Freeing a stored page takes longer than unmapping it, and the closing thread gains nothing by
//! waiting. So the handles are gathered into [batches](batch), handed over through a bounded
//! [queue], and freed by workers. The mechanism is that of Zhiguo Jiang's series "mm: tlb swap
//! entries batch async release" (2024), with the requests of its reviewers: every bound is stated,
//! nothing depends on a worker that does not run, and a caller can wait for everything handed over
//! and take it back.
//!
//! ```text
//! close ─► gather ─► batch ─► queue ─► worker, or a thread that needs the room first ─► freed
//!            └─ no batch left, few entries, worker stalled ────────────────────────► freed inline
//! ```
//!
//! At every end, the queued and the inline entries together are all freed. This module must never
//! free anything itself, know a lock, or read a clock.

pub mod batch;
pub mod gather;
pub mod queue;
pub mod spans;

/// An owner with fewer entries frees them inline: that takes about as long as waking a worker.
pub const LEAST_ENTRIES: u64 = 32;

/// How the stored entries of a closing owner are released.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ReleasePolicy {
    /// One entry at a time, by the closing thread: the baseline.
    OneAtATime,
    /// Runs of consecutive handles, by the closing thread: the gain of batches without a second
    /// thread.
    Runs,
    /// Written to batches of words by the closing thread and handed over to one worker: the
    /// mechanism as posted.
    Background,
    /// Handed over to several workers, each with its own queue. They share the store's lock, and
    /// measure no better than one.
    Workers,
    /// The owner's table is handed over as it is, and one worker walks it: the closing thread does
    /// not look at any entry.
    #[default]
    Spans,
}

/// The number of workers of [`ReleasePolicy::Workers`]. A second one makes progress while the first
/// is not scheduled; more would wait for each other.
pub const WORKERS_MAX: usize = 2;

impl ReleasePolicy {
    /// All policies, the baseline first.
    pub const ALL: [Self; 5] = [Self::OneAtATime, Self::Runs, Self::Background, Self::Workers, Self::Spans];

    /// The policy's name in figures.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OneAtATime => "one-at-a-time",
            Self::Runs => "runs",
            Self::Background => "background",
            Self::Workers => "workers",
            Self::Spans => "spans",
        }
    }

    /// The number of workers, and of queues.
    #[must_use]
    pub const fn workers(self) -> usize {
        match self {
            Self::OneAtATime | Self::Runs => 0,
            Self::Background | Self::Spans => 1,
            Self::Workers => WORKERS_MAX,
        }
    }
}
