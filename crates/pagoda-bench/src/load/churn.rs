//! Churn without pressure: allocations and threads that come and go. This load costs a pager its
//! events.
//!
//! Part of the worker process. It must never keep memory beyond its rounds, so that runs compare.

use std::hint::black_box;
use std::thread;
use std::time::Instant;

use crate::load::data::{PAGE_BYTES, Random};
use anyhow::anyhow;

/// Threads of the allocation churn: as many as the smallest measured machine has processors.
const MALLOC_THREADS: u64 = 2;
/// Allocations that each thread keeps alive. Together they hold about 200 MiB, so that 1.2 times
/// the peak has room for an engine.
const LIVE: usize = 512;
/// Memory that the thread churn holds meanwhile, for the same reason.
const BALLAST_BYTES: usize = 256 << 20;
/// The part of its stack that each of its threads touches.
const STACK_TOUCHED_BYTES: usize = 16 << 10;

/// Churns allocations in two threads. Each replaces one of its 512 allocations `rounds` times by
/// one of 1 KiB to 1 MiB (each power of two as likely), and writes to every page of it. Returns the
/// seconds of all rounds, as [`threads`] does.
pub fn malloc(rounds: u64) -> f64 {
    let start = Instant::now();
    let churn = |seed| {
        let mut random = Random::new(seed);
        let mut live: Vec<Vec<u8>> = vec![Vec::new(); LIVE];
        for _ in 0..rounds {
            let bytes = 1usize << (10 + random.below(11));
            let slot = random.below(LIVE as u64) as usize;
            // Freed before the next allocation, as most programs do.
            live[slot] = Vec::new();
            let mut fresh: Vec<u8> = Vec::with_capacity(bytes);
            for spare in fresh.spare_capacity_mut().iter_mut().step_by(PAGE_BYTES) {
                spare.write(1);
            }
            live[slot] = black_box(fresh);
        }
    };
    thread::scope(|scope| {
        for seed in 0..MALLOC_THREADS {
            scope.spawn(move || churn(seed));
        }
    });
    start.elapsed().as_secs_f64()
}

/// Starts a thread and joins it, `rounds` times; each touches 16 KiB of its stack.
pub fn threads(rounds: u64) -> anyhow::Result<f64> {
    let mut ballast = vec![0u8; BALLAST_BYTES];
    for byte in ballast.iter_mut().step_by(PAGE_BYTES) {
        *byte = 1;
    }
    let start = Instant::now();
    for round in 0..rounds {
        let thread = thread::Builder::new().spawn(move || {
            let mut stack = [0u8; STACK_TOUCHED_BYTES];
            stack[round as usize % STACK_TOUCHED_BYTES] = 1;
            black_box(&mut stack);
        })?;
        thread.join().map_err(|_| anyhow!("a thread of the churn panicked"))?;
    }
    let seconds = start.elapsed().as_secs_f64();
    black_box(ballast);
    Ok(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn churns_end_and_take_time() {
        assert!(malloc(50) > 0.0);
        assert!(threads(3).expect("threads") > 0.0);
    }
}
