//! Trees of processes under Pagoda beside native runs: the cost of forks and short processes where
//! memory suffices, and of multi-process programs in half of their peak.
//!
//! Each runs natively once for its peak. Then native and managed runs take turns in pairs, the
//! first pair discarded, and the medians are reported. Both sides have to print the same. A program
//! that is not installed has nulls and a reason. This module must never count a run that ended with
//! an error.

mod redis;
pub mod table;
mod work;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use pagoda::config::MINIMUM_BUDGET;
use pagoda_core::size::Bytes;
use serde_json::{Value, json};

use crate::command::{print, progress, this_program};
use crate::measure::memory::descendants_bytes;
use crate::measure::pairs::{Missing, Pairs};
use crate::measure::process::{Cancel, run};
use crate::measure::scratch::Scratch;
use crate::measure::stats::round;
use crate::report::json::report;
use crate::suites::budget::reason;
use crate::{Plan, pagoda_run, warm};
use work::Work;

const RUN_LIMIT: Duration = Duration::from_secs(300);
/// Memory to touch and free before each run, and before each short one.
const WARM: Bytes = Bytes::mib(512);
const WARM_QUICK: Bytes = Bytes::mib(256);
/// The fork and the four trees that are timed as a whole. The trees run once more, in half of their
/// memory.
const WORKS: usize = 5;

/// The part of `--help` on the keys.
const KEYS: &str = "\
Keys of the JSON, medians of the pairs; a missing figure is null, and its reason or reasons say why:
  fork_ms                     one fork of a process that holds held_bytes: native, pagoda, and ratio
  spawn_storm, build, jvm, node  from start to end: native_s, pagoda_s with 1.2 times native_peak_bytes, ratio,
                              half_s with half of it (null with --quick and where that is less than the least budget), and
                              half_exceeded_mib over that
  redis_bgsave                while a server saves, in half of its native peak: native_ops, pagoda_ops, kernel_ops, native_p99_ms,
                              p99_ms of Pagoda, kernel_p99_ms, budget_exceeded_mib, budget_bytes; with enough_bytes, 1.2 times
                              native_peak_bytes: enough_ops and enough_p99_ms of Pagoda, and ratio, native_ops over enough_ops
  pairs, quick, machine       the size and kind of the run, and its machine";

/// The options of the bench.
#[derive(Args, Debug)]
#[command(after_long_help = KEYS)]
pub struct TreeArgs {
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// A short run: less memory, fewer processes, one pair, and only the server in half of its
    /// memory
    #[arg(long)]
    quick: bool,
    /// Pairs of runs that count, after one that is discarded [default: 3, quick: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    pairs: Option<u16>,
}

/// One run: its output, its seconds, and the peak of all its processes.
struct Sample {
    output: String,
    seconds: f64,
    peak_bytes: u64,
}

/// Runs `pagoda bench tree`. Exit status 1 if Pagoda's side failed anywhere.
pub fn run_all(args: &TreeArgs) -> anyhow::Result<ExitCode> {
    let pairs = args.pairs.map_or(if args.quick { 1 } else { 3 }, usize::from);
    let of_a_work = 1 + 2 * (1 + pairs);
    let total = of_a_work + (WORKS - 1) * (of_a_work + 1) + redis::runs(pairs);
    let plan = Plan {
        program: this_program()?,
        budget: MINIMUM_BUDGET,
        pairs,
        program_pairs: pairs,
        quick: args.quick,
        progress: progress(total as u64, "run")?,
    };
    let (figures, failed) = Bench { plan: &plan, cancel: &Cancel::on_signals()? }.figures()?;
    plan.progress.finish_and_clear();
    print(&report("tree", args.quick, figures), args.json);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

struct Bench<'a> {
    plan: &'a Plan,
    cancel: &'a Cancel,
}

impl Bench<'_> {
    /// All figures, and whether Pagoda's side failed anywhere.
    fn figures(&self) -> anyhow::Result<(Value, bool)> {
        let quick = self.plan.quick;
        let scratch = [Scratch::new()?, Scratch::new()?, Scratch::new()?];
        let held = if quick { 128 << 20 } else { 1 << 30 };
        let fork = self.calls(held, work::fork(held, if quick { 8 } else { 32 }))?;
        let mut figures = json!({ "fork_ms": fork, "pairs": self.plan.pairs });
        let mut failed = false;
        let mut add = |key: &str, (outcome, has_failed)| {
            figures[key] = outcome;
            failed |= has_failed;
        };
        add("spawn_storm", self.tree("spawn storm", work::spawn_storm(if quick { 30 } else { 300 }))?);
        self.plan.progress.set_message("redis");
        add("redis_bgsave", redis::measure(self.plan, self.cancel)?);
        add("build", self.tree("build", work::build(&scratch[0], quick))?);
        add("jvm", self.tree("jvm", work::jvm(&scratch[1], quick))?);
        add("node", self.tree("node", work::node(&scratch[2], quick))?);
        Ok((figures, failed))
    }

    fn sample(&self, work: &[String], budget: Option<Bytes>) -> anyhow::Result<Sample> {
        let scratch = Scratch::new()?;
        let command = match budget {
            Some(budget) => {
                pagoda_run(&self.plan.program, budget, &scratch.file("stats.json"), work.to_vec())
            }
            None => work.to_vec(),
        };
        warm(if self.plan.quick { WARM_QUICK } else { WARM });
        let mut peak_bytes = 0;
        let finished =
            run(&command, RUN_LIMIT, self.cancel, || peak_bytes = peak_bytes.max(descendants_bytes()));
        self.plan.step();
        let finished = finished?;
        Ok(Sample { output: finished.output, seconds: finished.seconds, peak_bytes })
    }

    /// Runs pairs in turn. `same`: all have to print the same.
    fn pairs(
        &self,
        work: anyhow::Result<Work>,
        same: bool,
    ) -> anyhow::Result<Result<(Work, Pairs<Sample>), Missing>> {
        let work = match work {
            Ok(work) => work,
            Err(error) => return Ok(Err(Missing::LeftOut(reason(error)?))),
        };
        let mut first: Option<String> = None;
        let sample = |budget| {
            let sample = self.sample(&work, budget)?;
            let first = first.get_or_insert_with(|| sample.output.clone());
            if same && sample.output != *first {
                bail!("it printed {:?}, and {first:?} natively", sample.output);
            }
            Ok(sample)
        };
        let pairs = Pairs::measure(self.plan.pairs, |sample: &Sample| sample.peak_bytes, sample)?;
        Ok(pairs.map(|pairs| (work, pairs)))
    }

    /// The figures of a call that the work itself times, in milliseconds: the medians of medians.
    fn calls(&self, held_bytes: u64, work: anyhow::Result<Work>) -> anyhow::Result<Value> {
        self.plan.progress.set_message("fork");
        let mut calls = json!({ "native": null, "pagoda": null, "ratio": null, "held_bytes": held_bytes });
        let pairs = match self.pairs(work, false)? {
            Ok((_, pairs)) => pairs,
            Err(Missing::LeftOut(reason) | Missing::Failed(reason)) => {
                calls["reason"] = reason.into();
                return Ok(calls);
            }
        };
        let time = |sample: Sample| -> anyhow::Result<f64> {
            sample.output.trim().parse().context("reading what the forks took")
        };
        let compared = pairs.try_map(time)?.compare(|time| *time).context("no pair counts")?;
        calls["native"] = round(compared.native.median).into();
        calls["pagoda"] = round(compared.managed).into();
        calls["ratio"] = json!(compared.ratio.map(round));
        Ok(calls)
    }

    /// The figures of a tree timed from its start to its end, and whether Pagoda's side failed. It
    /// has 1.2 times the native peak, and then half of it.
    fn tree(&self, name: &'static str, work: anyhow::Result<Work>) -> anyhow::Result<(Value, bool)> {
        self.plan.progress.set_message(name);
        let keys = ["native_s", "pagoda_s", "ratio", "half_s", "half_exceeded_mib", "native_peak_bytes"];
        let mut outcome: Value = keys.into_iter().map(|key| (key, Value::Null)).collect();
        let (work, pairs) = match self.pairs(work, true)? {
            Ok(measured) => measured,
            Err(missing) => {
                let failed = matches!(missing, Missing::Failed(_));
                let (Missing::LeftOut(reason) | Missing::Failed(reason)) = missing;
                outcome["reason"] = reason.into();
                return Ok((outcome, failed));
            }
        };
        let compared = pairs.compare(|sample| sample.seconds).context("no pair counts")?;
        outcome["native_s"] = json!(compared.native.map(round));
        outcome["pagoda_s"] = round(compared.managed).into();
        outcome["ratio"] = json!(compared.ratio.map(round));
        outcome["native_peak_bytes"] = pairs.peak_bytes.into();
        let half = Bytes::new((pairs.peak_bytes / 2) & !4095);
        // Compilers take many times as long in half of their memory, too long for a short run.
        if self.plan.quick || half < MINIMUM_BUDGET {
            self.plan.step();
            return Ok((outcome, false));
        }
        let why = match self.sample(&work, Some(half)) {
            Ok(sample) if sample.output == pairs.native[0].output => {
                let over = sample.peak_bytes.saturating_sub(half.get());
                outcome["half_s"] = round(sample.seconds).into();
                outcome["half_exceeded_mib"] = round(over as f64 / (1u64 << 20) as f64).into();
                return Ok((outcome, false));
            }
            Ok(sample) => format!("in half of the memory it printed {:?}", sample.output),
            Err(error) => format!("in half of the memory: {}", reason(error)?),
        };
        outcome["reason"] = why.into();
        Ok((outcome, true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::keys::expect_told;

    #[test]
    fn what_is_not_installed_has_nulls_and_a_reason_and_each_key_is_in_the_help() {
        let plan = Plan::for_tests();
        let bench = Bench { plan: &plan, cancel: &Cancel::default() };
        let missing = || Err(anyhow::anyhow!("nowhere to be found"));
        let (outcome, failed) = bench.tree("none", missing()).expect("an outcome");
        let calls = bench.calls(1, missing()).expect("an outcome");
        assert!(!failed && outcome["native_s"].is_null() && calls["native"].is_null());
        assert_eq!([&outcome["reason"], &calls["reason"]], ["nowhere to be found"; 2]);
        let figures = json!({
            "fork_ms": calls, "spawn_storm": outcome, "build": outcome, "jvm": outcome, "node": outcome,
            "redis_bgsave": redis::figures(&Default::default(), &Default::default(), None), "pairs": 1,
        });
        expect_told("tree", KEYS, &report("tree", true, figures));
    }

    #[test]
    fn a_side_that_can_not_run_is_pagodas_failure() {
        // The plan of tests names no program to run under.
        let plan = Plan::for_tests();
        let bench = Bench { plan: &plan, cancel: &Cancel::default() };
        assert!(bench.tree("true", Ok(vec!["true".to_owned()])).expect("an outcome").1);
    }
}
