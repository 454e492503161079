//! Releasing what a closing owner has in the store: in batches, and in the background.
//!
//! Freeing a stored page takes longer than taking it out of the page table, and whoever closes gains nothing by waiting for
//! it. So the handles are gathered into [batches](batch), handed over through a bounded [queue], and freed by workers. The
//! mechanism is that of Zhiguo Jiang's series "mm: tlb swap entries batch async release" (2024), with what its reviewers
//! asked for: every bound is stated, a worker that does not run matters to nobody, and everything handed over can be waited
//! for and taken back.
//!
//! ```text
//! close ─► gather ─► batch ─► queue ─► worker, or whoever needs the room first ─► freed
//!            └─ no batch left, few entries, worker stalled ─────────────────────► freed inline
//! ```
//!
//! Queued and inline together are freed, at every end. This module must never free anything itself, know a lock, or
//! look at a clock.

pub mod batch;
pub mod gather;
pub mod queue;

/// An owner with fewer entries frees them itself: that takes about as long as waking a worker.
pub const LEAST_ENTRIES: u64 = 32;

/// How the stored entries of a closing owner are released.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ReleasePolicy {
    /// Each by itself, by whoever closes: the baseline.
    OneAtATime,
    /// Runs of neighbours together, by whoever closes: what batches gain without a second thread.
    Runs,
    /// Handed over to one worker: the mechanism as posted.
    #[default]
    Background,
    /// Handed over to several workers, each with a queue of its own. They share the store's lock, and measure no better than
    /// one.
    Workers,
}

/// The workers of [`ReleasePolicy::Workers`]. A second one goes on while the first is not scheduled; more would wait for each
/// other.
pub const WORKERS_MAX: usize = 2;

impl ReleasePolicy {
    /// All of them, the baseline first.
    pub const ALL: [Self; 4] = [Self::OneAtATime, Self::Runs, Self::Background, Self::Workers];

    /// Its name in figures.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OneAtATime => "one-at-a-time",
            Self::Runs => "runs",
            Self::Background => "background",
            Self::Workers => "workers",
        }
    }

    /// How many workers it has, and queues.
    #[must_use]
    pub const fn workers(self) -> usize {
        match self {
            Self::OneAtATime | Self::Runs => 0,
            Self::Background => 1,
            Self::Workers => WORKERS_MAX,
        }
    }
}
