//! A clock of the time that a process ran, for timeouts.
//!
//! A process that is stopped (SIGSTOP, a debugger, a suspended machine) makes no progress, and that
//! is no stall. No clock of the kernel leaves such time out, so it is counted in looks: the time
//! between two of them counts for at most [`LONGEST_NS`]. Every waiting loop looks more often than
//! that. This module must never read a clock: the caller passes the time.

use std::sync::atomic::{AtomicU64, Ordering};

/// The longest time between two looks that counts in full: several times the longest sleep of a
/// thread that looks.
pub const LONGEST_NS: u64 = 250_000_000;

/// Its start: later than any time that it is compared with, and never 0, which stands for "not at
/// all".
const BEGIN_NS: u64 = 1 << 42;

/// Such a clock, which any thread may look at. Where several look at once, it may be behind by
/// [`LONGEST_NS`] for a moment.
#[derive(Debug)]
pub struct RanClock {
    looked_ns: AtomicU64,
    ran_ns: AtomicU64,
}

impl RanClock {
    /// A clock without a look yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { looked_ns: AtomicU64::new(0), ran_ns: AtomicU64::new(BEGIN_NS) }
    }

    /// For how long the process ran until `now_ns` of a clock that never goes back.
    pub fn look(&self, now_ns: u64) -> u64 {
        let looked = self.looked_ns.load(Ordering::Acquire);
        let passed = now_ns.saturating_sub(looked).min(LONGEST_NS);
        let is_first =
            self.looked_ns.compare_exchange(looked, now_ns.max(looked), Ordering::AcqRel, Ordering::Relaxed);
        match is_first {
            Ok(_) => self.ran_ns.fetch_add(passed, Ordering::AcqRel) + passed,
            // Another thread has counted it.
            Err(_) => self.ran_ns.load(Ordering::Acquire),
        }
    }
}

impl Default for RanClock {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn time_without_a_look_is_no_time_that_it_ran() {
        let clock = RanClock::new();
        let mut now = 77 * S;
        let begin = clock.look(now);
        assert!(begin > 0);
        let mut ran = 0;
        for look in 0..1000 {
            // Every hundredth time it is stopped, for up to an hour.
            let passed = if look % 100 == 99 { look * 4 * S } else { S / 20 };
            now += passed;
            ran += passed.min(LONGEST_NS);
            assert_eq!(clock.look(now) - begin, ran);
        }
        assert_eq!(clock.look(now - S) - begin, ran, "it never goes back");
        assert_eq!(clock.look(now) - begin, ran);
    }
}
