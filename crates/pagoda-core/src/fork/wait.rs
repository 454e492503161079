//! Fork wait: how long a fork under pressure waits for room.
//!
//! A child holds every page that its parent had swapped out, until its own engine has evicted them.
//! So that several forks in a row don't add up, each waits until the claims of the tree are back
//! within its budget. It stops waiting when the claims stop falling, and after a second at most.
//! This module must never read a clock: the caller passes the time.

use crate::size::Bytes;

/// The swapped-out size up to which the forks of a process need not wait.
pub const OUT_MOST: Bytes = Bytes::mib(16);

/// The excess over the tree's budget up to which a fork does not wait.
const SLACK: Bytes = Bytes::mib(16);

/// How long a fork waits while claims don't fall: a few checks of the other members.
const PROGRESS_NS: u64 = 40_000_000;

/// The longest wait.
const PATIENCE_NS: u64 = 1_000_000_000;

/// A waiting fork.
#[derive(Clone, Copy, Debug)]
pub struct ForkWait {
    budget: Bytes,
    begin_ns: u64,
    least: Bytes,
    least_ns: u64,
}

impl ForkWait {
    /// Begins a wait in a tree with `budget`.
    #[must_use]
    pub fn new(budget: Bytes, now_ns: u64) -> Self {
        Self { budget, begin_ns: now_ns, least: Bytes::new(u64::MAX), least_ns: now_ns }
    }

    /// Whether to go on waiting, now that all members claim `claimed`.
    pub fn goes_on(&mut self, claimed: Bytes, now_ns: u64) -> bool {
        if claimed < self.least {
            (self.least, self.least_ns) = (claimed, now_ns);
        }
        claimed > self.budget.saturating_add(SLACK)
            && now_ns.saturating_sub(self.least_ns) <= PROGRESS_NS
            && now_ns.saturating_sub(self.begin_ns) <= PATIENCE_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// The wait in milliseconds if `claimed_mib` is claimed at each of them.
    fn waits(claimed_mib: impl Fn(u64) -> u64) -> u64 {
        let mut wait = ForkWait::new(Bytes::mib(64), 0);
        (0..).find(|&ms| !wait.goes_on(Bytes::mib(claimed_mib(ms)), ms * MS)).expect("it ends")
    }

    #[test]
    fn a_wait_ends_with_room_or_without_progress_or_after_a_second() {
        assert_eq!(waits(|_| 80), 0);
        assert_eq!(waits(|ms| 180 - ms), 100);
        assert_eq!(waits(|_| 200), 41);
        assert_eq!(waits(|ms| 100_000 - ms), 1001);
        // Claims that rise and fall back make no progress.
        assert_eq!(waits(|ms| 200 + ms % 2), 41);
    }
}
