//! What Pagoda costs where memory suffices: programs of every day and churn, with 1.2 times their native peak.
//!
//! Each is run natively once to learn its peak, then in pairs in turn, the first pair discarded; the overhead is the
//! median of the ratios of pairs. A program that is not installed is left out with a reason. This module must never
//! count a run that ended with an error.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context;
use comfy_table::Table;
use pagoda_core::size::Bytes;
use serde::Serialize;

use crate::load::churn::Churn;
use crate::load::programs::{Program, installed};
use crate::measure::pairs::{Missing, Pairs};
use crate::measure::process::{Cancel, run};
use crate::measure::scratch::Scratch;
use crate::measure::stats::{Measured, round};
use crate::report::table::text_table;
use crate::{Plan, pagoda_run, warm, worker};

const RUN_LIMIT: Duration = Duration::from_secs(120);
/// Touched and freed before each run: what the largest of the programs peaks at.
const WARM: Bytes = Bytes::mib(320);
/// About a second each.
const MALLOC_ROUNDS: u64 = 300_000;
const THREAD_ROUNDS: u64 = 15_000;

/// What was found out.
#[derive(Default, Serialize)]
pub struct NoPressure {
    /// The largest overhead among the programs; null if none ran.
    pub overhead_percent_max: Option<f64>,
    /// Each program, by name.
    pub programs: BTreeMap<String, Outcome>,
    /// Time under Pagoda over native time: allocations from two threads.
    pub malloc_churn_ratio: Option<f64>,
    /// The same for threads that start and end.
    pub thread_churn_ratio: Option<f64>,
    /// How the churns were measured.
    pub churns: BTreeMap<String, Outcome>,
}

/// What became of one program.
#[derive(Serialize)]
#[serde(untagged)]
pub enum Outcome {
    /// It ran.
    Measured(Times),
    /// It could not be run natively: not installed.
    LeftOut { left_out: String },
    /// It ran natively but not under Pagoda.
    Failed { failed: String },
}

/// Times of one program.
#[derive(Default, Serialize)]
pub struct Times {
    pub overhead_percent: f64,
    /// Managed over native, of pairs.
    pub ratio: Measured,
    pub native_s: f64,
    pub pagoda_s: f64,
    pub native_peak_bytes: u64,
    pub budget_bytes: u64,
    pub pairs: usize,
}

/// One timed run: seconds and the peak of anonymous memory.
type Sample = (f64, u64);

impl NoPressure {
    /// Runs everything.
    pub fn measure(plan: &Plan, cancel: &Cancel) -> anyhow::Result<Self> {
        let mut all = Self::default();
        let scratch = Scratch::new()?;
        for (name, program) in installed(&scratch, plan.quick)? {
            let outcome = match program {
                Ok(program) => pairs(plan, |budget| timed(plan, &program, budget, cancel))?,
                Err(left_out) => Outcome::LeftOut { left_out },
            };
            all.programs.insert(name.to_owned(), outcome);
        }
        for (name, rounds) in [("malloc", MALLOC_ROUNDS), ("thread", THREAD_ROUNDS)] {
            let outcome = pairs(plan, |budget| churn(plan, name, rounds, budget, cancel))?;
            all.churns.insert(name.to_owned(), outcome);
        }
        let overheads = all.programs.values().filter_map(Outcome::overhead_percent);
        all.overhead_percent_max = overheads.max_by(f64::total_cmp);
        let ratio = |name| {
            let percent = all.churns.get(name).and_then(Outcome::overhead_percent)?;
            Some(round(1.0 + percent / 100.0))
        };
        (all.malloc_churn_ratio, all.thread_churn_ratio) = (ratio("malloc"), ratio("thread"));
        Ok(all)
    }

    /// Whether something ran natively but not under Pagoda.
    pub fn failed(&self) -> bool {
        self.programs.values().chain(self.churns.values()).any(|o| matches!(o, Outcome::Failed { .. }))
    }

    /// For people.
    pub fn table(&self) -> Table {
        let mut table = text_table(
            ["program", "native s", "pagoda s", "overhead %", "spread", "native peak", "budget"],
            1..,
        );
        let churns = self.churns.iter().map(|(name, outcome)| (format!("{name} churn"), outcome));
        for (name, outcome) in self.programs.iter().map(|(name, o)| (name.clone(), o)).chain(churns) {
            match outcome {
                Outcome::Measured(m) => table.add_row([
                    name,
                    format!("{:.2}", m.native_s),
                    format!("{:.2}", m.pagoda_s),
                    format!("{:+.1}", m.overhead_percent),
                    format!("{:.3}-{:.3}", m.ratio.least, m.ratio.most),
                    Bytes::new(m.native_peak_bytes).to_string(),
                    Bytes::new(m.budget_bytes).to_string(),
                ]),
                Outcome::LeftOut { left_out } => table.add_row([name, format!("left out: {left_out}")]),
                Outcome::Failed { failed } => table.add_row([name, format!("failed: {failed}")]),
            };
        }
        table
    }
}

impl Outcome {
    fn overhead_percent(&self) -> Option<f64> {
        match self {
            Self::Measured(measured) => Some(measured.overhead_percent),
            Self::LeftOut { .. } | Self::Failed { .. } => None,
        }
    }
}

/// Measures pairs of native and managed runs. `sample` is given the budget, or `None` for a native run.
fn pairs(
    plan: &Plan,
    sample: impl FnMut(Option<Bytes>) -> anyhow::Result<Sample>,
) -> anyhow::Result<Outcome> {
    let pairs = match Pairs::measure(plan.program_pairs, |(_, peak): &Sample| *peak, sample)? {
        Ok(pairs) => pairs,
        Err(Missing::LeftOut(why)) => return Ok(Outcome::LeftOut { left_out: format!("natively: {why}") }),
        Err(Missing::Failed(failed)) => return Ok(Outcome::Failed { failed }),
    };
    let compared = pairs.compare(|(seconds, _)| *seconds).context("no pair counts")?;
    Ok(Outcome::Measured(Times {
        overhead_percent: round((compared.ratio.median - 1.0) * 100.0),
        ratio: compared.ratio.map(round),
        native_s: round(compared.native.median),
        pagoda_s: round(compared.managed),
        native_peak_bytes: pairs.peak_bytes,
        budget_bytes: pairs.budget.get(),
        pairs: pairs.native.len(),
    }))
}

fn managed(plan: &Plan, scratch: &Scratch, budget: Option<Bytes>, command: Vec<String>) -> Vec<String> {
    match budget {
        Some(budget) => pagoda_run(&plan.program, budget, &scratch.file("stats.json"), command),
        None => command,
    }
}

fn timed(plan: &Plan, program: &Program, budget: Option<Bytes>, cancel: &Cancel) -> anyhow::Result<Sample> {
    let scratch = Scratch::new()?;
    warm(WARM);
    let sample = program.time(managed(plan, &scratch, budget, program.command.clone()), RUN_LIMIT, cancel);
    plan.step();
    sample
}

fn churn(
    plan: &Plan,
    name: &str,
    rounds: u64,
    budget: Option<Bytes>,
    cancel: &Cancel,
) -> anyhow::Result<Sample> {
    let scratch = Scratch::new()?;
    let rounds = if plan.quick { rounds / 10 } else { rounds };
    let mut words = Vec::from(worker::words(&plan.program, &format!("{name}-churn")));
    words.extend(["--rounds".to_owned(), rounds.to_string()]);
    let command = managed(plan, &scratch, budget, words);
    warm(WARM);
    let finished = run(&command, RUN_LIMIT, cancel, || ());
    plan.step();
    let finished = finished?;
    let churn: Churn = serde_json::from_str(&finished.output).context("reading what the churn printed")?;
    Ok((churn.seconds, finished.anonymous_bytes_peak))
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    fn plan() -> Plan {
        Plan { program_pairs: 3, ..Plan::for_tests() }
    }

    #[test]
    fn the_overhead_is_the_median_of_pairs_and_the_first_pair_is_discarded() {
        let mut times = [9.0, 1.0, 50.0, 2.2, 2.0, 1.0, 1.05, 4.4, 4.0].into_iter();
        let mut budgets = Vec::new();
        let outcome = pairs(&plan(), |budget| {
            budgets.push(budget.map(Bytes::get));
            Ok((times.next().expect("a time"), 100 << 20))
        });
        let Outcome::Measured(measured) = outcome.expect("measured") else { panic!("it ran") };
        assert_eq!((measured.overhead_percent, measured.pairs), (10.0, 3));
        assert_eq!((measured.ratio.least, measured.ratio.most), (1.05, 1.1));
        let budget = Some(120 << 20);
        assert_eq!(budgets, [None, None, budget, budget, None, None, budget, budget, None]);
    }

    #[test]
    fn a_side_that_fails_is_named() {
        let left_out = pairs(&plan(), |_| Err(anyhow!("not here"))).expect("an outcome");
        assert!(matches!(left_out, Outcome::LeftOut { left_out } if left_out.contains("not here")));
        let failed = pairs(&plan(), |budget| budget.map_or(Ok((1.0, 1)), |_| Err(anyhow!("no engine"))));
        assert!(
            matches!(failed.expect("an outcome"), Outcome::Failed { failed } if failed.contains("no engine"))
        );
    }
}
