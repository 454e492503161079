//! The runs of a test that wait most of their time, several at a time.
//!
//! This module must never choose which runs there are: each seed runs once, as it would alone.

use std::ops::Range;
use std::sync::Mutex;
use std::thread;

/// Calls `run` for each of these seeds, in order, `threads` of them at a time.
///
/// # Panics
/// If a run does. Runs that have begun end first, and the other threads begin the rest.
pub fn each(seeds: Range<u64>, threads: usize, run: impl Fn(u64) + Sync) {
    let seeds = Mutex::new(seeds);
    let next = || seeds.lock().expect("nothing panics with it").next();
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(seed) = next() {
                    run(seed);
                }
            });
        }
    });
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn each_seed_runs_once_and_as_many_at_a_time_as_was_asked() {
        let (ran, meet) = (Mutex::new(Vec::new()), Barrier::new(3));
        each(5..11, 3, |seed| {
            meet.wait();
            ran.lock().expect("no panic").push(seed);
        });
        let mut ran = ran.into_inner().expect("no panic");
        ran.sort_unstable();
        assert_eq!(ran, [5, 6, 7, 8, 9, 10]);
    }

    #[test]
    fn a_run_that_fails_fails_the_test() {
        assert!(catch_unwind(|| each(0..4, 2, |seed| assert_ne!(seed, 2))).is_err());
    }
}
