//! Access patterns: the order in which pages are touched, so that all sides see the same one.
//!
//! This module must never hold a table as long as the data: on either side it would be memory
//! within the budget.

use crate::load::data::{Random, mix};

/// Gray's generator of Zipf-distributed ranks, as YCSB uses it.
pub struct Zipf {
    n: u64,
    theta: f64,
    alpha: f64,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    /// A generator of ranks `0..n`, rank `k` with a weight of `1 / (k + 1)^theta`; `theta` is below
    /// 1. Takes time in proportion to `n`.
    pub fn new(n: u64, theta: f64) -> Self {
        let sum = |n: u64| (1..=n).map(|k| (k as f64).powf(-theta)).sum::<f64>();
        let zeta = sum(n);
        let eta = (1.0 - (2.0 / n as f64).powf(1.0 - theta)) / (1.0 - sum(2) / zeta);
        Self { n, theta, alpha: 1.0 / (1.0 - theta), zeta, eta }
    }

    /// The next rank.
    pub fn rank(&self, random: &mut Random) -> u64 {
        let u = random.unit();
        let uz = u * self.zeta;
        if uz < 1.0 {
            return 0;
        }
        if uz < 1.0 + 0.5f64.powf(self.theta) {
            return 1;
        }
        let rank = (self.n as f64 * (self.eta * u - self.eta + 1.0).powf(self.alpha)) as u64;
        rank.min(self.n - 1)
    }
}

/// A permutation of `0..n` that needs no table: a small Feistel network, walked until it lands
/// below `n`.
pub struct Scatter {
    n: u64,
    half_bits: u32,
    seed: u64,
}

impl Scatter {
    /// The permutation of a seed.
    pub fn new(n: u64, seed: u64) -> Self {
        let bits = 64 - n.saturating_sub(1).leading_zeros();
        Self { n, half_bits: bits.div_ceil(2).max(1), seed }
    }

    /// The place of `x`, which is below `n`.
    pub fn place(&self, mut x: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        loop {
            let (mut left, mut right) = (x >> self.half_bits, x & mask);
            for round in 0..4u64 {
                (left, right) = (right, left ^ (mix(right ^ mix(self.seed ^ round)) & mask));
            }
            x = (left << self.half_bits) | right;
            if x < self.n {
                return x;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scatter_is_a_permutation() {
        for n in [1, 2, 3, 1000, 4096] {
            let scatter = Scatter::new(n, 7);
            let mut places: Vec<u64> = (0..n).map(|x| scatter.place(x)).collect();
            places.sort_unstable();
            assert!(places.iter().copied().eq(0..n), "{n}");
        }
    }

    #[test]
    fn zipf_gives_the_first_ranks_their_share() {
        let (n, draws) = (10_000, 200_000);
        let zipf = Zipf::new(n, 0.99);
        let mut random = Random::new(3);
        let mut counts = vec![0u32; n as usize];
        for _ in 0..draws {
            counts[zipf.rank(&mut random) as usize] += 1;
        }
        let zeta: f64 = (1..=n).map(|k| (k as f64).powf(-0.99)).sum();
        let head: u32 = counts[..100].iter().sum();
        let expected = (1..=100).map(|k| f64::from(k).powf(-0.99)).sum::<f64>() / zeta * f64::from(draws);
        assert!((f64::from(head) / expected - 1.0).abs() < 0.05, "{head} of {expected}");
        assert!(counts[0] > counts[10] && counts[10] > counts[1000]);
    }
}
