//! The pace of copies on write: which writes to memory that a fork shares wait, and for how long.
//!
//! A write to a shared page makes a copy, which takes memory that no fault of ours has asked for.
//! So writes are held where the copies would not fit the budget. A held write goes on at once while
//! its copy fits. Beyond that it pays: its handler evicts as much as the copy takes. Where nothing
//! can be evicted it goes on after [`WAIT_MOST_NS`] all the same. This module must never read a
//! clock: the caller passes the time.

use crate::size::Bytes;

/// The longest wait of a held write.
pub const WAIT_MOST_NS: u64 = 20_000_000;

/// How long after a fork its parent begins to hold writes. A child that executes another program
/// has done so by then, and nothing is shared: such a fork costs no protection.
pub const HOLD_AFTER_NS: u64 = 4_000_000;

/// The part of a process's share by which copies may exceed it without a wait: one in this. All
/// members of a tree together exceed the budget by the same part.
const SLACK_SHARE: u64 = 32;

/// The most of it.
const SLACK_MOST: Bytes = Bytes::mib(4);

/// The account of a process that shares memory.
#[derive(Clone, Copy, Debug)]
pub struct Account {
    /// The process's share of the budget.
    pub budget: Bytes,
    /// The memory that it holds of it.
    pub held: Bytes,
}

impl Account {
    /// Whether copies of so much go on without a wait.
    fn fits(&self, copies: Bytes) -> bool {
        self.held.saturating_add(copies) <= self.budget.saturating_add(self.slack())
    }

    fn slack(&self) -> Bytes {
        Bytes::new(self.budget.get() / SLACK_SHARE).min(SLACK_MOST)
    }

    /// Whether writes to `shared` bytes are to be held: copies of all of them would not fit.
    #[must_use]
    pub fn holds(&self, shared: Bytes) -> bool {
        shared > self.slack() && !self.fits(shared)
    }

    /// Whether a held write goes on that makes `copies`, for which its handler has evicted `paid`,
    /// and which waits since `waited_ns`.
    #[must_use]
    pub fn goes_on(&self, copies: Bytes, paid: Bytes, waited_ns: u64) -> bool {
        self.fits(copies.saturating_sub(paid)) || paid >= copies || waited_ns >= WAIT_MOST_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: Bytes = Bytes::new(64 << 10);

    fn account(budget_mib: u64, held_mib: u64) -> Account {
        Account { budget: Bytes::mib(budget_mib), held: Bytes::mib(held_mib) }
    }

    #[test]
    fn writes_are_held_only_where_all_copies_would_not_fit() {
        assert!(!account(64, 30).holds(Bytes::mib(30)));
        assert!(!account(64, 32).holds(Bytes::mib(34)), "a little more may be held for a moment");
        assert!(account(64, 34).holds(Bytes::mib(34)));
        assert!(account(64, 60).holds(Bytes::mib(60)));
        assert!(!account(64, 90).holds(Bytes::mib(2)), "there is little to copy");
    }

    #[test]
    fn a_held_write_waits_for_room_or_for_as_much_as_was_evicted_or_for_twenty_milliseconds() {
        let waits = |account: Account, paid, ms: u64| !account.goes_on(PAGE, paid, ms * 1_000_000);
        assert!(!waits(account(64, 60), Bytes::ZERO, 0));
        assert!(!waits(account(64, 65), Bytes::ZERO, 0));
        assert!(waits(account(64, 66), Bytes::ZERO, 0));
        assert!(waits(account(64, 200), Bytes::new(4096), 19));
        assert!(!waits(account(64, 200), PAGE, 0), "it has paid");
        assert!(!waits(account(64, 200), Bytes::ZERO, 20));
    }

    #[test]
    fn the_members_of_a_tree_exceed_its_budget_by_little_together() {
        let over = |share: u64| {
            let budget = Bytes::mib(share);
            let goes_on = |held| Account { budget, held }.goes_on(PAGE, Bytes::ZERO, 0);
            (0..)
                .map(|page| budget.get() + page * PAGE.get())
                .take_while(|held| goes_on(Bytes::new(*held)))
                .count()
        };
        assert_eq!([over(64), over(16), over(1024)], [32, 8, 64]);
    }
}
