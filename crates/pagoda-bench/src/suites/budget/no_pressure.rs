//! The cost of Pagoda where memory suffices: everyday programs and churn, with 1.2 times their
//! native peak.
//!
//! Each runs natively once for its peak, then in pairs in turn, the first pair discarded. The
//! overhead is the median of the ratios of pairs. A program that is not installed is left out with
//! a reason. This module must never count a run that ended with an error.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context;
use pagoda_core::size::Bytes;
use serde_json::{Value, json};

use crate::load::programs::{Program, installed};
use crate::measure::pairs::{Missing, Pairs};
use crate::measure::process::{Cancel, run};
use crate::measure::scratch::Scratch;
use crate::measure::stats::round;
use crate::report::table::{fill, grid, members};
use crate::{Plan, pagoda_run, warm, worker};

const RUN_LIMIT: Duration = Duration::from_secs(120);
/// Memory to touch and free before each run: the greatest peak of the programs.
const WARM: Bytes = Bytes::mib(320);
/// Rounds of about a second each.
const MALLOC_ROUNDS: u64 = 300_000;
const THREAD_ROUNDS: u64 = 15_000;

/// One timed run: seconds and the peak of anonymous memory.
type Sample = (f64, u64);

/// Runs everything. Returns the figures, and whether a program ran natively but not under Pagoda.
pub fn measure(plan: &Plan, cancel: &Cancel) -> anyhow::Result<(Value, bool)> {
    let scratch = Scratch::new()?;
    let (mut programs, mut churns) = (BTreeMap::new(), BTreeMap::new());
    for (name, program) in installed(&scratch, plan.quick)? {
        let outcome = match program {
            Ok(program) => pairs(plan, |budget| timed(plan, &program, budget, cancel))?,
            Err(left_out) => json!({ "left_out": left_out }),
        };
        programs.insert(name, outcome);
    }
    for (name, rounds) in [("malloc", MALLOC_ROUNDS), ("thread", THREAD_ROUNDS)] {
        churns.insert(name, pairs(plan, |budget| churn(plan, name, rounds, budget, cancel))?);
    }
    let overhead = |outcome: &Value| outcome["overhead_percent"].as_f64();
    let ratio = |name| Some(round(1.0 + overhead(churns.get(name)?)? / 100.0));
    let failed = programs.values().chain(churns.values()).any(|outcome| outcome.get("failed").is_some());
    let figures = json!({
        "overhead_percent_max": programs.values().filter_map(overhead).max_by(f64::total_cmp),
        "malloc_churn_ratio": ratio("malloc"),
        "thread_churn_ratio": ratio("thread"),
        "programs": programs,
        "churns": churns,
    });
    Ok((figures, failed))
}

/// The tables for people.
pub fn table(no_pressure: &Value) -> String {
    let cells = |name: String, outcome: &Value| {
        let figures =
            ["{native_s:2}", "{pagoda_s:2}", "{overhead_percent}", "{ratio_least:3}-{ratio_most:3}"];
        let sizes = ["{native_peak_bytes:b}", "{budget_bytes:b}"];
        match (outcome["left_out"].as_str(), outcome["failed"].as_str()) {
            (Some(why), _) => vec![name, format!("left out: {why}")],
            (_, Some(why)) => vec![name, format!("failed: {why}")],
            _ => {
                let cells = figures.into_iter().chain(sizes).map(|cell| fill(cell, outcome));
                let mut cells: Vec<_> = std::iter::once(name).chain(cells).collect();
                cells[3] = format!("{:+.1}", outcome["overhead_percent"].as_f64().unwrap_or(f64::NAN));
                cells
            }
        }
    };
    let programs = members(no_pressure, "/programs").map(|(name, outcome)| cells(name.clone(), outcome));
    let churns =
        members(no_pressure, "/churns").map(|(name, outcome)| cells(format!("{name} churn"), outcome));
    let header = ["program", "native s", "pagoda s", "overhead %", "spread", "native peak", "budget"];
    grid(header, 1.., programs.chain(churns))
}

/// Measures pairs of native and managed runs. `sample` is given the budget, or `None` for a native
/// run. The ratio is managed over native.
fn pairs(plan: &Plan, sample: impl FnMut(Option<Bytes>) -> anyhow::Result<Sample>) -> anyhow::Result<Value> {
    let pairs = match Pairs::measure(plan.program_pairs, |(_, peak): &Sample| *peak, sample)? {
        Ok(pairs) => pairs,
        Err(Missing::LeftOut(why)) => return Ok(json!({ "left_out": format!("natively: {why}") })),
        Err(Missing::Failed(why)) => return Ok(json!({ "failed": why })),
    };
    let compared = pairs.compare(|(seconds, _)| *seconds).context("no pair counts")?;
    Ok(json!({
        "overhead_percent": round((compared.ratio.median - 1.0) * 100.0),
        "ratio": compared.ratio.map(round),
        "native_s": round(compared.native.median),
        "pagoda_s": round(compared.managed),
        "native_peak_bytes": pairs.peak_bytes,
        "budget_bytes": pairs.budget.get(),
        "pairs": pairs.native.len(),
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
    let words = worker::command(&plan.program, &format!("{name}-churn"), [("--rounds", rounds.to_string())]);
    let command = managed(plan, &scratch, budget, words);
    warm(WARM);
    let finished = run(&command, RUN_LIMIT, cancel, || ());
    plan.step();
    let finished = finished?;
    Ok((finished.printed()?, finished.anonymous_bytes_peak))
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
        let measured = outcome.expect("measured");
        assert_eq!((&measured["overhead_percent"], &measured["pairs"]), (&10.0.into(), &3.into()));
        assert_eq!([&measured["ratio"]["least"], &measured["ratio"]["most"]], [1.05, 1.1]);
        let budget = Some(120 << 20);
        assert_eq!(budgets, [None, None, budget, budget, None, None, budget, budget, None]);
    }

    #[test]
    fn a_side_that_fails_is_named() {
        let left_out = pairs(&plan(), |_| Err(anyhow!("not here"))).expect("an outcome");
        assert_eq!(left_out["left_out"], "natively: not here");
        let failed = pairs(&plan(), |budget| budget.map_or(Ok((1.0, 1)), |_| Err(anyhow!("no engine"))));
        assert_eq!(failed.expect("an outcome")["failed"], "no engine");
    }
}
