//! Pairs of a native and a managed run of the same work, where memory suffices. They take turns,
//! and the first pair is discarded.
//!
//! Overhead is the median of the ratios of pairs: noise of the machine meets both runs of a pair.
//! This module must never count a pair of which one run failed.

use pagoda::config::MINIMUM_BUDGET;
use pagoda_core::size::Bytes;

use crate::measure::stats::{Measured, median_of};
use crate::suites::budget::reason;

/// The budget over the native peak.
const HEADROOM: f64 = 1.2;

/// The pairs that count.
pub struct Pairs<S> {
    /// The peak of the native run before all pairs.
    pub peak_bytes: u64,
    pub budget: Bytes,
    pub native: Vec<S>,
    pub managed: Vec<S>,
}

/// The reason why there are no pairs.
#[derive(Debug)]
pub enum Missing {
    /// The work doesn't run natively.
    LeftOut(String),
    /// The work runs natively, but not under Pagoda.
    Failed(String),
}

/// One figure of all pairs, not rounded.
pub struct Compared {
    pub native: Measured,
    pub managed: f64,
    /// Managed over native, of pairs: a time above 1 is slower.
    pub ratio: Measured,
}

impl<S> Pairs<S> {
    /// Runs natively once, for the peak, then one pair that is discarded and `count` pairs.
    /// `sample` is given the budget, or `None` for a native run. The outer error is a signal.
    pub fn measure(
        count: usize,
        peak_bytes: impl Fn(&S) -> u64,
        mut sample: impl FnMut(Option<Bytes>) -> anyhow::Result<S>,
    ) -> anyhow::Result<Result<Self, Missing>> {
        let peak_bytes = match sample(None) {
            Ok(first) => peak_bytes(&first),
            Err(error) => return Ok(Err(Missing::LeftOut(reason(error)?))),
        };
        let budget = Bytes::new(((peak_bytes as f64 * HEADROOM) as u64).next_multiple_of(4096));
        let budget = budget.max(MINIMUM_BUDGET);
        let mut pairs = Self { peak_bytes, budget, native: Vec::new(), managed: Vec::new() };
        for number in 0..=count {
            // The side that runs first changes from pair to pair.
            for managed in if number % 2 == 0 { [false, true] } else { [true, false] } {
                let sample = match sample(managed.then_some(budget)) {
                    Ok(sample) => sample,
                    Err(error) => return Ok(Err(Missing::Failed(reason(error)?))),
                };
                if number > 0 {
                    if managed { pairs.managed.push(sample) } else { pairs.native.push(sample) }
                }
            }
        }
        Ok(Ok(pairs))
    }

    /// The same pairs of a value made of each sample.
    pub fn try_map<T>(self, of: impl Fn(S) -> anyhow::Result<T>) -> anyhow::Result<Pairs<T>> {
        let all = |samples: Vec<S>| samples.into_iter().map(&of).collect::<anyhow::Result<_>>();
        let Self { peak_bytes, budget, native, managed } = self;
        Ok(Pairs { peak_bytes, budget, native: all(native)?, managed: all(managed)? })
    }

    /// Compares one figure. `None` without pairs.
    pub fn compare(&self, figure: impl Fn(&S) -> f64) -> Option<Compared> {
        let both = self.native.iter().zip(&self.managed);
        let ratios: Vec<f64> = both.map(|(native, managed)| figure(managed) / figure(native)).collect();
        Some(Compared {
            native: Measured::of(&self.native.iter().map(&figure).collect::<Vec<_>>())?,
            managed: median_of(&self.managed, &figure)?,
            ratio: Measured::of(&ratios)?,
        })
    }
}
