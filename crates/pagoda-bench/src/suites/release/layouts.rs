//! One owner that closes alone, by the order in which its pages were stored.
//!
//! Pages that are stored in ascending order get neighbouring numbers in the store, which a release
//! can name as a run. Pages stored in any other order don't. This module must never compare owners
//! with different resident memory.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use pagoda::ReleasePolicy::{Background, OneAtATime, Spans};
use pagoda_core::page::BasePage;
use serde_json::{Value, json};

use super::trial::{Kind, Outcome, Trial};
use crate::measure::process::Cancel;
use crate::measure::stats::{median_of, middle_of, round};
use crate::measure::turns::turns;

/// The order in which an owner's pages are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// By address.
    ByAddress,
    /// At random.
    Shuffled,
    /// By address, and then half of them are written again, at random, and stored anew.
    Rewritten,
}

impl Order {
    pub const ALL: [Self; 3] = [Self::ByAddress, Self::Shuffled, Self::Rewritten];

    /// Its key in figures.
    pub fn name(self) -> &'static str {
        match self {
            Self::ByAddress => "in_order",
            Self::Shuffled => "shuffled",
            Self::Rewritten => "rewritten",
        }
    }
}

const BASES: [BasePage; 2] = [BasePage::K4, BasePage::K64];
const KINDS: [Kind; 4] =
    [Kind::Policy(OneAtATime), Kind::Policy(Background), Kind::Policy(Spans), Kind::NeverStored];
/// The most rounds that count, after one that is discarded: each fills 24 owners.
pub const ROUNDS: usize = 3;

/// How many trials a round has.
pub const TRIALS: usize = Order::ALL.len() * BASES.len() * KINDS.len();

/// The outcomes of one layout, by kind.
struct Layout {
    order: Order,
    base: BasePage,
    outcomes: [Vec<Outcome>; KINDS.len()],
}

/// The outcomes of all layouts.
#[derive(Default)]
pub struct Layouts(Vec<Layout>);

impl Layouts {
    /// Closes one owner of each kind in each layout, in turns. Calls `tick` after each.
    pub fn measure(
        trial: Trial,
        numbers: RangeInclusive<usize>,
        cancel: &Cancel,
        tick: impl Fn(),
    ) -> anyhow::Result<Self> {
        let mut all = Vec::new();
        for (order, base) in Order::ALL.into_iter().flat_map(|order| BASES.map(|base| (order, base))) {
            let trial = Trial { owners: 1, starter: false, order, base, ..trial };
            let mut outcomes = [const { Vec::new() }; KINDS.len()];
            for number in numbers.clone() {
                for side in turns(number, KINDS.len()) {
                    let outcome = trial.run(KINDS[side], cancel)?;
                    if number > 0 {
                        outcomes[side].push(outcome);
                    }
                    tick();
                }
            }
            all.push(Layout { order, base, outcomes });
        }
        Ok(Self(all))
    }

    /// The figures by layout, base page and policy.
    pub fn figures(&self) -> Value {
        let mut all: BTreeMap<&str, BTreeMap<String, Value>> = BTreeMap::new();
        for layout in &self.0 {
            all.entry(layout.order.name()).or_default().insert(layout.base.to_string(), layout.figures());
        }
        json!(all)
    }
}

impl Layout {
    fn figures(&self) -> Value {
        let [one, background, spans, never] = &self.outcomes;
        let extra = |of: &[Outcome]| {
            let pairs: Vec<_> = of.iter().zip(never).collect();
            median_of(&pairs, |(of, never)| of.close_p50_ms() - never.close_p50_ms())
        };
        let extra_of_one = extra(one).filter(|ms| *ms > 0.0);
        let in_close = |of: &[Outcome]| median_of(of, |outcome| outcome.in_close_ms);
        let policy = |of: &[Outcome]| {
            let share = |outcome: &Outcome| {
                100.0 * outcome.queued as f64 / (outcome.queued + outcome.inline).max(1) as f64
            };
            json!({
                "queued_percent": median_of(of, share).map(round),
                "inline": of.iter().map(|outcome| outcome.inline).max(),
                // Where one at a time costs nothing extra there is no ratio.
                "extra_vs_one": extra(of).zip(extra_of_one).map(|(of, one)| round(of / one)),
                "close_ms": middle_of(of, Outcome::close_p50_ms),
                "in_close_ms": middle_of(of, |outcome| outcome.in_close_ms),
                "in_close_vs_one": in_close(of).zip(in_close(one)).map(|(of, one)| round(of / one)),
                "stored_back_ms": middle_of(of, |outcome| outcome.stored_back_ms),
            })
        };
        json!({
            "background": policy(background),
            "spans": policy(spans),
            "one-at-a-time": policy(one),
            "never_stored": { "close_ms": middle_of(never, Outcome::close_p50_ms) },
        })
    }
}

#[cfg(test)]
impl Layouts {
    /// Layouts in which each kind closes in a time of its own.
    pub fn canned(outcome: fn(f64, f64) -> Outcome) -> Self {
        let layouts = Order::ALL.into_iter().flat_map(|order| BASES.map(|base| (order, base)));
        let outcomes = || [20.0, 11.0, 11.0, 10.0].map(|ms| vec![outcome(ms, 1.0)]);
        Self(layouts.map(|(order, base)| Layout { order, base, outcomes: outcomes() }).collect())
    }
}
