//! How long a fork under pressure waits for room.
//!
//! A child holds all that its parent had out until its own engine has evicted it. So that several forks in a row don't add
//! up, each waits until the claims of the tree are back within its budget: not longer than they fall, and a second at
//! most. This module must never read a clock: it is told the time.

use crate::size::Bytes;

/// What is out of a process whose forks need not wait.
pub const OUT_MOST: Bytes = Bytes::mib(16);

/// By how much the tree may exceed its budget when a process forks.
const SLACK: Bytes = Bytes::mib(16);

/// How long a fork waits while claims don't fall: some looks of the other members.
const PROGRESS_NS: u64 = 40_000_000;

/// How long it waits in all.
const PATIENCE_NS: u64 = 1_000_000_000;

/// A fork that waits.
#[derive(Clone, Copy, Debug)]
pub struct ForkWait {
    budget: Bytes,
    begin_ns: u64,
    least: Bytes,
    least_ns: u64,
}

impl ForkWait {
    /// It begins, in a tree with `budget`.
    #[must_use]
    pub fn new(budget: Bytes, now_ns: u64) -> Self {
        Self { budget, begin_ns: now_ns, least: Bytes::new(u64::MAX), least_ns: now_ns }
    }

    /// Whether it is to wait on, now that all members claim `claimed`.
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

    /// For how many milliseconds it waits if that is claimed at each.
    fn waits(claimed_mib: impl Fn(u64) -> u64) -> u64 {
        let mut wait = ForkWait::new(Bytes::mib(64), 0);
        (0..).find(|&ms| !wait.goes_on(Bytes::mib(claimed_mib(ms)), ms * MS)).expect("it ends")
    }

    #[test]
    fn it_ends_with_room_without_progress_or_with_patience() {
        assert_eq!(waits(|_| 80), 0);
        assert_eq!(waits(|ms| 180 - ms), 100);
        assert_eq!(waits(|_| 200), 41);
        assert_eq!(waits(|ms| 100_000 - ms), 1001);
        // Claims that rise and fall back make no progress.
        assert_eq!(waits(|ms| 200 + ms % 2), 41);
    }
}
