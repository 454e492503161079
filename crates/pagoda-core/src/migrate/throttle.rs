//! How a writer is slowed down by its own faults: how many of its written pages are to fault again
//! after a round, and how long each of those faults waits.
//!
//! A thread that runs for 1 ms at `percent` 75 owes 3 ms, and its next such fault pays them. So it
//! keeps `100 - percent` of its time whatever it does, and no other thread pays for it. A fault
//! with a small debt does not wait, and the debt is added to the next. Only so many pages
//! fault as are needed to collect all debts of some threads: a fault costs time of its own, which
//! no account knows. This module must never read a clock or know an address.

use std::time::Duration;

use crate::migrate::convergence::THROTTLE_MOST_PERCENT;

/// The longest wait of one fault. What a thread owes beyond that is forgiven, so that a thread that
/// seldom touches such a page never pays for the time in between at once.
pub const WAIT_MOST_NS: u64 = 10_000_000;

/// The shortest: a timer and two wake-ups take a third of it.
pub const WAIT_LEAST_NS: u64 = 200_000;

/// How much of what a thread has waited too long is taken off its next waits: a machine that stood
/// still must not end the throttle.
const CREDIT_MOST_NS: i64 = 100_000_000;

/// Pages are chosen so that the faults of one thread would wait this long each. With up to twenty
/// threads at work each still finds enough of them to pay its debt.
const WAIT_PLANNED_NS: u64 = WAIT_MOST_NS / 20;

/// Accounts of threads. Two threads that share one by chance wait for less.
const ACCOUNTS: usize = 64;

/// How many of the `written` pages of a round that `took` so long are to fault in the next one.
#[must_use]
pub fn pages_to_fault(percent: u8, took: Duration, written: u64) -> u64 {
    let owed_ns = owed(percent, u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    (owed_ns / WAIT_PLANNED_NS).min(written)
}

/// Whether page `nth` of `all` is one of `chosen`, which are spread evenly.
#[must_use]
pub fn is_chosen(nth: u64, chosen: u64, all: u64) -> bool {
    let before = |nth: u64| u128::from(nth) * u128::from(chosen) / u128::from(all.max(1));
    before(nth + 1) > before(nth)
}

/// What a thread owes that ran for `ran_ns`.
fn owed(percent: u8, ran_ns: u64) -> u64 {
    let percent = u64::from(percent.min(THROTTLE_MOST_PERCENT));
    ran_ns.saturating_mul(percent) / (100 - percent)
}

/// What one thread owes.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    /// It has run since then. 0 if it is not known yet.
    since_ns: u64,
    /// Less than nothing after a wait that was longer than it should have been.
    owes_ns: i64,
}

/// The accounts of all threads that touch slowed pages.
#[derive(Debug)]
pub struct Accounts {
    percent: u8,
    threads: [Account; ACCOUNTS],
}

impl Accounts {
    /// No thread owes anything.
    #[must_use]
    pub const fn new(percent: u8) -> Self {
        const NONE: Account = Account { since_ns: 0, owes_ns: 0 };
        Self { percent, threads: [NONE; ACCOUNTS] }
    }

    /// How much time threads lose from now on, at most [`THROTTLE_MOST_PERCENT`].
    pub const fn set_percent(&mut self, percent: u8) {
        self.percent = percent;
    }

    /// How long the fault of `thread` at `now_ns` waits: nothing, or from [`WAIT_LEAST_NS`] to
    /// [`WAIT_MOST_NS`]. The first fault of a thread opens its account.
    #[must_use]
    pub fn wait_ns(&mut self, thread: u32, now_ns: u64) -> u64 {
        let percent = self.percent;
        let account = self.of(thread);
        let since_ns = std::mem::replace(&mut account.since_ns, now_ns.max(1));
        if since_ns == 0 {
            return 0;
        }
        let adds = owed(percent, now_ns.saturating_sub(since_ns)).min(WAIT_MOST_NS);
        account.owes_ns = (account.owes_ns + adds as i64).min(WAIT_MOST_NS as i64);
        match u64::try_from(account.owes_ns) {
            Ok(owes_ns) if owes_ns >= WAIT_LEAST_NS => owes_ns,
            _ => 0,
        }
    }

    /// The fault of `thread` has waited for so long, and runs again at `now_ns`.
    pub fn waited(&mut self, thread: u32, waited_ns: u64, now_ns: u64) {
        let account = self.of(thread);
        account.since_ns = now_ns.max(1);
        let waited_ns = i64::try_from(waited_ns).unwrap_or(i64::MAX);
        account.owes_ns = account.owes_ns.saturating_sub(waited_ns).max(-CREDIT_MOST_NS);
    }

    const fn of(&mut self, thread: u32) -> &mut Account {
        &mut self.threads[thread as usize % ACCOUNTS]
    }
}

#[cfg(test)]
#[path = "throttle_test.rs"]
mod tests;
