//! Random numbers that a seed repeats, and the seeds of a test that makes several runs.
//!
//! This module must never use a clock or anything else that is not the same the next time.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::testing::length::is_long;

/// SplitMix64's step: every bit of the result depends on every bit of `x`.
pub fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A stream of random numbers.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// The stream of `seed` for one of several users of it.
    pub fn new(seed: u64, user: u64) -> Self {
        Self(mix(seed ^ mix(user)))
    }
    /// Any number.
    #[expect(
        clippy::should_implement_trait,
        reason = "it has no end: an iterator's caller would have to unwrap each"
    )]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }
    /// Any number but 0.
    pub fn stamp(&mut self) -> u64 {
        self.next() | 1 << 63
    }
    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
    /// A number from `from` to `to`, both included.
    pub fn between(&mut self, from: usize, to: usize) -> usize {
        from + self.below(to - from + 1)
    }
    /// True once in `n` times.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
    /// A range of `0..len` that is not empty; short ones are the rule. `len` is not 0.
    pub fn range(&mut self, len: usize) -> std::ops::Range<usize> {
        let most = if self.one_in(4) { len } else { len.min(24) };
        let count = self.between(1, most);
        let from = self.below(len - count + 1);
        from..from + count
    }
}

/// The seeds of a test's runs: as many as `PAGODA_RUNS` says, or `default`; or the one that
/// `PAGODA_SEED` says.
#[must_use]
pub fn runs(default: u64) -> std::ops::Range<u64> {
    match number("PAGODA_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("PAGODA_RUNS").unwrap_or(default),
    }
}

/// Whether a test ends before this seed: in the normal form after `short` of them, if it has seen
/// enough.
#[must_use]
pub fn may_end(seed: u64, short: u64, has_seen_enough: bool) -> bool {
    let is_asked = is_long() || number("PAGODA_SEED").or(number("PAGODA_RUNS")).is_some();
    has_seen_enough && seed >= short && !is_asked
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Does `run` for each of the seeds, `threads` of them at a time: for runs that mostly wait.
///
/// # Panics
/// If one of the runs does.
pub fn each_at_once(seeds: std::ops::Range<u64>, threads: u64, run: impl Fn(u64) + Sync) {
    let next = AtomicU64::new(seeds.start);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let numbers = std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed));
                numbers.take_while(|seed| *seed < seeds.end).for_each(&run);
            });
        }
    });
}
