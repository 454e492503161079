//! Streaks: a thread that faults again and again within a moment.
//!
//! Such a thread waits for faults more than it computes, so that it and its handler are best kept
//! on one processor. This module only tells which threads these are, by the times of their faults.
//! It must never be asked about anything else, such as which thread may be held.

/// Faults that make a streak.
pub const STREAK_FAULTS: usize = 4;

/// The time within which they come: a few times what a fault takes that wakes another processor.
pub const WITHIN_US: u64 = 1000;

/// How long after its last fault a streak is over: longer than a fault whose content is read from a
/// file, and short enough that a thread that computes again is let go at once.
pub const OVER_US: u64 = 3000;

/// Threads whose faults are followed at the same time; of more, the one that faulted longest ago is
/// forgotten.
const FOLLOWED: usize = 16;

/// The last faults of a thread.
#[derive(Clone, Copy, Debug, Default)]
struct Followed {
    thread: u32,
    faults: usize,
    times_us: [u64; STREAK_FAULTS],
}

impl Followed {
    fn last_us(&self) -> u64 {
        self.times_us[(self.faults + STREAK_FAULTS - 1) % STREAK_FAULTS]
    }
}

/// The threads that faulted last.
#[derive(Debug, Default)]
pub struct Streaks {
    threads: [Followed; FOLLOWED],
}

impl Streaks {
    /// `thread` faults now. Returns whether it is in a streak.
    pub fn fault(&mut self, thread: u32, now_us: u64) -> bool {
        let at = self.threads.iter().position(|one| one.thread == thread).unwrap_or_else(|| {
            let oldest = (0..FOLLOWED).min_by_key(|at| self.threads[*at].last_us()).unwrap_or(0);
            self.threads[oldest] = Followed { thread, ..Followed::default() };
            oldest
        });
        let one = &mut self.threads[at];
        let place = one.faults % STREAK_FAULTS;
        let first_us = std::mem::replace(&mut one.times_us[place], now_us);
        one.faults += 1;
        one.faults > STREAK_FAULTS && now_us.saturating_sub(first_us) <= WITHIN_US
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_in_quick_succession_are_a_streak_and_slow_ones_are_not() {
        let mut streaks = Streaks::default();
        for fault in 0..STREAK_FAULTS as u64 {
            assert!(!streaks.fault(7, 5000 + fault * 50), "too few yet");
        }
        assert!(streaks.fault(7, 5000 + 200));
        assert!(streaks.fault(7, 5000 + 250));
        assert!(!streaks.fault(7, 9000), "it has computed meanwhile");
        for fault in 0..100 {
            assert!(!streaks.fault(8, 20_000 + fault * (WITHIN_US / 3)), "too slow");
        }
    }

    #[test]
    fn many_threads_are_told_apart() {
        let mut streaks = Streaks::default();
        // Each faults seldom, all together often.
        for fault in 0..1000u64 {
            let thread = 1 + fault % FOLLOWED as u64;
            assert!(!streaks.fault(thread as u32, 10_000 + fault * 40), "fault {fault}");
        }
        // One more than are followed: some are forgotten, and no streak is made up of two threads.
        for fault in 0..1000u64 {
            let thread = 1 + fault % (FOLLOWED as u64 + 5);
            assert!(!streaks.fault(thread as u32, 100_000 + fault * 100), "fault {fault}");
        }
    }
}
