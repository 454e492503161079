//! Trees of processes under Pagoda beside the same natively: what forks and short processes cost where memory
//! suffices, and what becomes of programs of several processes in half of what they hold.
//!
//! Each is run natively once, to learn its peak; then native and managed runs take turns, in pairs, the first pair
//! discarded, and the medians are told. Both sides have to print the same. What is not installed has nulls and a
//! reason. This module must never count a run that ended with an error.

mod redis;
mod table;
mod work;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use pagoda::config::MINIMUM_BUDGET;
use pagoda_core::size::Bytes;
use serde::Serialize;

use crate::command::{print, progress, this_program};
use crate::measure::machine::Machine;
use crate::measure::memory::descendants_bytes;
use crate::measure::pairs::{Missing, Pairs};
use crate::measure::process::{Cancel, run};
use crate::measure::scratch::Scratch;
use crate::measure::stats::{Measured, round};
use crate::suites::budget::reason;
use crate::{Plan, pagoda_run, warm};
use redis::Bgsave;
use work::Work;

const RUN_LIMIT: Duration = Duration::from_secs(300);
/// Touched and freed before each run, and before each short one.
const WARM: Bytes = Bytes::mib(512);
const WARM_QUICK: Bytes = Bytes::mib(256);
/// The fork and the four trees that are timed as a whole; the latter are run once more, in half of their memory.
const WORKS: usize = 5;

/// What `--help` says of the keys.
const KEYS: &str = "\
Keys of the JSON, medians of the pairs; what is missing is null, and its reason or reasons say why:
  fork_ms                     one fork of a process that holds held_bytes: native, pagoda, and ratio
  spawn_storm, build, jvm, node  from start to end: native_s, pagoda_s with 1.2 times native_peak_bytes, ratio,
                              half_s with half of it (null with --quick and where that is less than the least budget), and
                              half_exceeded_mib over that
  redis_bgsave                while a server saves, in half of its native peak: native_ops, pagoda_ops, kernel_ops, native_p99_ms,
                              p99_ms of Pagoda, kernel_p99_ms, budget_exceeded_mib, budget_bytes; with enough_bytes, 1.2 times
                              native_peak_bytes: enough_ops and enough_p99_ms of Pagoda, and ratio, native_ops over enough_ops
  pairs, quick, machine       what was run, and where";

/// What to measure.
#[derive(Args, Debug)]
#[command(after_long_help = KEYS)]
pub struct TreeArgs {
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// A short run: less memory, fewer processes, one pair, and only the server in half of its memory
    #[arg(long)]
    quick: bool,
    /// Pairs of runs that count, after one that is discarded [default: 3, quick: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    pairs: Option<u16>,
}

/// All that was found out.
#[derive(Serialize)]
struct Tree {
    bench: &'static str,
    fork_ms: Calls,
    spawn_storm: Outcome,
    redis_bgsave: Bgsave,
    build: Outcome,
    jvm: Outcome,
    node: Outcome,
    pairs: usize,
    quick: bool,
    machine: Machine,
}

/// Times of one call, in milliseconds: the medians of medians.
#[derive(Default, Serialize)]
struct Calls {
    native: Option<f64>,
    pagoda: Option<f64>,
    /// Of pairs: above 1 Pagoda is slower.
    ratio: Option<Measured>,
    held_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// Times of one tree, from start to end.
#[derive(Default, Serialize)]
struct Outcome {
    native_s: Option<Measured>,
    /// With 1.2 times the native peak.
    pagoda_s: Option<f64>,
    ratio: Option<Measured>,
    /// With half the native peak; null where that is less than the least budget, and in a short run.
    half_s: Option<f64>,
    /// How far the tree's peak was above that half, in MiB.
    half_exceeded_mib: Option<f64>,
    native_peak_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Whether the reason is Pagoda's.
    #[serde(skip)]
    failed: bool,
}

/// One run: its output, seconds, and the peak of all its processes.
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
    let tree = Tree::measure(&plan, &Cancel::on_signals()?)?;
    plan.progress.finish_and_clear();
    print(&tree, args.json, Tree::table)?;
    Ok(if tree.failed() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

impl Tree {
    fn measure(plan: &Plan, cancel: &Cancel) -> anyhow::Result<Self> {
        let quick = plan.quick;
        let scratch = [Scratch::new()?, Scratch::new()?, Scratch::new()?];
        let bench = Bench { plan, cancel };
        let held = if quick { 128 << 20 } else { 1 << 30 };
        Ok(Self {
            bench: "tree",
            fork_ms: bench.calls(held, work::fork(held, if quick { 8 } else { 32 }))?,
            spawn_storm: bench.tree("spawn storm", work::spawn_storm(if quick { 30 } else { 300 }))?,
            redis_bgsave: {
                plan.progress.set_message("redis");
                redis::measure(plan, cancel)?
            },
            build: bench.tree("build", work::build(&scratch[0], quick))?,
            jvm: bench.tree("jvm", work::jvm(&scratch[1], quick))?,
            node: bench.tree("node", work::node(&scratch[2], quick))?,
            pairs: plan.pairs,
            quick,
            machine: Machine::this(),
        })
    }

    fn outcomes(&self) -> [(&'static str, &Outcome); 4] {
        [("spawn storm", &self.spawn_storm), ("build", &self.build), ("jvm", &self.jvm), ("node", &self.node)]
    }

    fn failed(&self) -> bool {
        self.outcomes().iter().any(|(_, outcome)| outcome.failed)
            || self.redis_bgsave.failed()
            || (self.fork_ms.native.is_some() && self.fork_ms.pagoda.is_none())
    }
}

struct Bench<'a> {
    plan: &'a Plan,
    cancel: &'a Cancel,
}

impl Bench<'_> {
    fn sample(&self, work: &Work, budget: Option<Bytes>) -> anyhow::Result<Sample> {
        let scratch = Scratch::new()?;
        let command = match budget {
            Some(budget) => {
                pagoda_run(&self.plan.program, budget, &scratch.file("stats.json"), work.command.clone())
            }
            None => work.command.clone(),
        };
        warm(if self.plan.quick { WARM_QUICK } else { WARM });
        let mut peak_bytes = 0;
        let finished =
            run(&command, RUN_LIMIT, self.cancel, || peak_bytes = peak_bytes.max(descendants_bytes()));
        self.plan.step();
        let finished = finished?;
        Ok(Sample { output: finished.output, seconds: finished.seconds, peak_bytes })
    }

    /// Pairs in turn. `same`: all have to print the same.
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

    /// A call whose times the work itself prints.
    fn calls(&self, held_bytes: u64, work: anyhow::Result<Work>) -> anyhow::Result<Calls> {
        self.plan.progress.set_message("fork");
        let calls = Calls { held_bytes, ..Calls::default() };
        let pairs = match self.pairs(work, false)? {
            Ok((_, pairs)) => pairs,
            Err(Missing::LeftOut(reason) | Missing::Failed(reason)) => {
                return Ok(Calls { reason: Some(reason), ..calls });
            }
        };
        let time = |sample: Sample| -> anyhow::Result<f64> {
            sample.output.trim().parse().context("reading what the forks took")
        };
        let compared = pairs.try_map(time)?.compare(|time| *time).context("no pair counts")?;
        Ok(Calls {
            native: Some(round(compared.native.median)),
            pagoda: Some(round(compared.managed)),
            ratio: Some(compared.ratio.map(round)),
            ..calls
        })
    }

    /// A tree whose time is that from its start to its end.
    fn tree(&self, name: &'static str, work: anyhow::Result<Work>) -> anyhow::Result<Outcome> {
        self.plan.progress.set_message(name);
        let (work, pairs) = match self.pairs(work, true)? {
            Ok(measured) => measured,
            Err(missing) => {
                let (reason, failed) = match missing {
                    Missing::LeftOut(reason) => (reason, false),
                    Missing::Failed(reason) => (reason, true),
                };
                return Ok(Outcome { reason: Some(reason), failed, ..Outcome::default() });
            }
        };
        let compared = pairs.compare(|sample| sample.seconds).context("no pair counts")?;
        let mut outcome = Outcome {
            native_s: Some(compared.native.map(round)),
            pagoda_s: Some(round(compared.managed)),
            ratio: Some(compared.ratio.map(round)),
            native_peak_bytes: Some(pairs.peak_bytes),
            ..Outcome::default()
        };
        let half = Bytes::new((pairs.peak_bytes / 2) & !4095);
        // Compilers take many times as long in half of their memory, which a short run has no time for.
        if self.plan.quick || half < MINIMUM_BUDGET {
            self.plan.step();
            return Ok(outcome);
        }
        match self.sample(&work, Some(half)) {
            Ok(sample) if sample.output == pairs.native[0].output => {
                let over = sample.peak_bytes.saturating_sub(half.get());
                outcome.half_s = Some(round(sample.seconds));
                outcome.half_exceeded_mib = Some(round(over as f64 / (1u64 << 20) as f64));
            }
            Ok(sample) => {
                outcome.reason = Some(format!("in half of the memory it printed {:?}", sample.output));
                outcome.failed = true;
            }
            Err(error) => {
                outcome.reason = Some(format!("in half of the memory: {}", reason(error)?));
                outcome.failed = true;
            }
        }
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::keys::expect_told;

    #[test]
    fn what_is_not_installed_has_nulls_and_a_reason() {
        let plan = Plan::for_tests();
        let bench = Bench { plan: &plan, cancel: &Cancel::default() };
        let missing = || Err(anyhow::anyhow!("nowhere to be found"));
        let outcome = bench.tree("none", missing()).expect("an outcome");
        assert!(!outcome.failed);
        let json = crate::report::json::json(&outcome).expect("json");
        assert!(json["native_s"].is_null() && json["ratio"].is_null());
        assert_eq!(json["reason"], "nowhere to be found");
        let calls = crate::report::json::json(&bench.calls(1, missing()).expect("an outcome")).expect("json");
        assert!(calls["native"].is_null() && calls["reason"] == "nowhere to be found");
    }

    #[test]
    fn each_key_is_in_the_help() {
        let tree = Tree {
            bench: "tree",
            fork_ms: Calls::default(),
            spawn_storm: Outcome::default(),
            redis_bgsave: Bgsave::default(),
            build: Outcome::default(),
            jvm: Outcome::default(),
            node: Outcome::default(),
            pairs: 1,
            quick: true,
            machine: Machine::this(),
        };
        let json = crate::report::json::json(&tree).expect("json");
        expect_told("tree", KEYS, &json);
    }

    #[test]
    fn a_side_that_can_not_run_is_pagodas_failure() {
        // The plan of tests names no program to run under.
        let plan = Plan::for_tests();
        let bench = Bench { plan: &plan, cancel: &Cancel::default() };
        let work = Work { command: vec!["true".to_owned()] };
        assert!(bench.tree("true", Ok(work)).expect("an outcome").failed);
    }
}
