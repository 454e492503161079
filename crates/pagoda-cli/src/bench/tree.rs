//! Trees of processes under Pagoda beside the same natively: what forks and short processes cost where memory
//! suffices, and what becomes of programs of several processes in half of what they hold.
//!
//! Each is run natively once, to learn its peak; then native and managed runs take turns, in pairs, the first pair
//! discarded, and the medians are told. Both sides have to print the same. What is not installed has nulls and a
//! reason. This module must never count a run that ended with an error.

mod memory;
mod redis;
mod work;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use comfy_table::{CellAlignment, Table};
use indicatif::{ProgressBar, ProgressStyle};
use pagoda::config::MINIMUM_BUDGET;
use pagoda_core::size::Bytes;
use serde::Serialize;

use super::budget::reason;
use super::machine::Machine;
use super::process::{Cancel, run};
use super::report::round;
use super::scratch::Scratch;
use super::stats::{median, spread};
use super::{Plan, pagoda_run, warm};
use memory::descendants_bytes;
use redis::Bgsave;
use work::Work;

const RUN_LIMIT: Duration = Duration::from_secs(300);
/// The budget over the native peak, where memory suffices.
const HEADROOM: f64 = 1.2;
/// Touched and freed before each run.
const WARM: Bytes = Bytes::mib(512);
/// The fork and the four trees that are timed as a whole; the latter are run once more, in half of their memory.
const WORKS: usize = 5;

/// What to measure.
#[derive(Args, Debug)]
pub struct TreeArgs {
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// A short run: less memory, fewer processes, one pair
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
    ratio: Option<f64>,
    ratio_spread: Option<[f64; 2]>,
    held_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// Times of one tree, from start to end.
#[derive(Default, Serialize)]
struct Outcome {
    native_s: Option<f64>,
    /// With 1.2 times the native peak.
    pagoda_s: Option<f64>,
    ratio: Option<f64>,
    ratio_spread: Option<[f64; 2]>,
    /// With half the native peak; null where that is less than the least budget.
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

/// Measured pairs of a native and a managed run, and what is needed for more.
struct Pairs {
    native: Vec<Sample>,
    managed: Vec<Sample>,
    peak_bytes: u64,
}

/// Why there are no pairs.
enum Missing {
    /// It doesn't run natively.
    LeftOut(String),
    /// It runs natively, and not under Pagoda.
    Failed(String),
}

/// Runs `pagoda bench tree`. Exit status 1 if Pagoda's side failed anywhere.
pub fn run_all(args: &TreeArgs) -> anyhow::Result<ExitCode> {
    let pairs = args.pairs.map_or(if args.quick { 1 } else { 3 }, usize::from);
    let of_a_work = 1 + 2 * (1 + pairs);
    let total = of_a_work + (WORKS - 1) * (of_a_work + 1) + redis::runs(pairs);
    // Drawn on standard error, and there only if that is a terminal.
    let progress = ProgressBar::new(total as u64).with_style(
        ProgressStyle::with_template("{msg} [{bar:30}] run {pos} of {len}, {elapsed} gone, {eta} to go")
            .context("the progress bar's template")?,
    );
    let plan = Plan {
        program: std::env::current_exe().context("finding this program")?.display().to_string(),
        budget: MINIMUM_BUDGET,
        pairs,
        program_pairs: pairs,
        quick: args.quick,
        progress,
    };
    let tree = Tree::measure(&plan, &Cancel::on_signals()?)?;
    plan.progress.finish_and_clear();
    if args.json {
        println!("{}", serde_json::to_string(&tree)?);
    } else {
        print!("{}", tree.table());
    }
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

    /// For people.
    fn table(&self) -> String {
        let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"));
        let mut table = Table::new();
        table.load_preset(comfy_table::presets::ASCII_MARKDOWN);
        table.set_header(["tree", "native", "pagoda", "ratio", "in half", "over the half", "why not"]);
        let held = Bytes::new(self.fork_ms.held_bytes);
        let (fork, text) = (&self.fork_ms, |reason: &Option<String>| reason.clone().unwrap_or_default());
        table.add_row([
            format!("fork of {held}, ms"),
            number(fork.native),
            number(fork.pagoda),
            number(fork.ratio),
            "-".to_owned(),
            "-".to_owned(),
            text(&fork.reason),
        ]);
        for (name, outcome) in self.outcomes() {
            table.add_row([
                format!("{name}, s"),
                number(outcome.native_s),
                number(outcome.pagoda_s),
                number(outcome.ratio),
                number(outcome.half_s),
                outcome.half_exceeded_mib.map_or_else(|| "-".to_owned(), |mib| format!("{mib:.1} MiB")),
                text(&outcome.reason),
            ]);
        }
        for column in table.column_iter_mut().skip(1).take(5) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let redis = &self.redis_bgsave;
        let mut save = Table::new();
        save.load_preset(comfy_table::presets::ASCII_MARKDOWN);
        save.set_header(["redis while it saves", "requests/s", "p99 ms"]);
        for (side, ops, p99) in [
            ("native", redis.native_ops, redis.native_p99_ms),
            ("pagoda, half the memory", redis.pagoda_ops, redis.p99_ms),
            ("memory group + zram, the same", redis.kernel_ops, redis.kernel_p99_ms),
        ] {
            save.add_row([side.to_owned(), number(ops), number(p99)]);
        }
        let mut text = format!("{}\n\n{table}\n\n{save}\n", self.machine);
        for (side, reason) in &redis.reasons {
            text += &format!("redis, {side}: {reason}\n");
        }
        text
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
            Some(budget) => pagoda_run(self.plan, budget, &scratch.file("stats.json"), work.command.clone()),
            None => work.command.clone(),
        };
        warm(WARM);
        let mut peak_bytes = 0;
        let finished =
            run(&command, RUN_LIMIT, self.cancel, || peak_bytes = peak_bytes.max(descendants_bytes()));
        self.plan.step();
        let finished = finished?;
        Ok(Sample { output: finished.output, seconds: finished.seconds, peak_bytes })
    }

    /// Pairs in turn, with 1.2 times the native peak.
    fn pairs(
        &self,
        work: anyhow::Result<Work>,
        same: bool,
    ) -> anyhow::Result<Result<(Work, Pairs), Missing>> {
        let first = work.and_then(|work| Ok((self.sample(&work, None)?, work)));
        let (first, work) = match first {
            Ok(first) => first,
            Err(error) => return Ok(Err(Missing::LeftOut(reason(error)?))),
        };
        let budget = Bytes::new(((first.peak_bytes as f64 * HEADROOM) as u64).next_multiple_of(4096));
        let budget = budget.max(MINIMUM_BUDGET);
        let mut pairs = Pairs { native: Vec::new(), managed: Vec::new(), peak_bytes: first.peak_bytes };
        for number in 0..=self.plan.pairs {
            // Who goes first changes from pair to pair.
            for managed in if number % 2 == 0 { [false, true] } else { [true, false] } {
                let sample = match self.sample(&work, managed.then_some(budget)) {
                    Ok(sample) if same && sample.output != first.output => {
                        let wrong =
                            format!("it printed {:?}, and {:?} natively", sample.output, first.output);
                        return Ok(Err(Missing::Failed(wrong)));
                    }
                    Ok(sample) => sample,
                    Err(error) => return Ok(Err(Missing::Failed(reason(error)?))),
                };
                if number > 0 {
                    if managed { pairs.managed.push(sample) } else { pairs.native.push(sample) }
                }
            }
        }
        Ok(Ok((work, pairs)))
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
        let times = |samples: &[Sample]| -> anyhow::Result<Vec<f64>> {
            let time = |sample: &Sample| sample.output.trim().parse().context("reading what the forks took");
            samples.iter().map(time).collect()
        };
        let (native, managed) = (times(&pairs.native)?, times(&pairs.managed)?);
        let ratios = ratios(&native, &managed);
        Ok(Calls {
            native: median(&native).map(round),
            pagoda: median(&managed).map(round),
            ratio: median(&ratios).map(round),
            ratio_spread: spread(&ratios).map(|both| both.map(round)),
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
        let seconds = |samples: &[Sample]| samples.iter().map(|sample| sample.seconds).collect::<Vec<_>>();
        let (native, managed) = (seconds(&pairs.native), seconds(&pairs.managed));
        let ratios = ratios(&native, &managed);
        let mut outcome = Outcome {
            native_s: median(&native).map(round),
            pagoda_s: median(&managed).map(round),
            ratio: median(&ratios).map(round),
            ratio_spread: spread(&ratios).map(|both| both.map(round)),
            native_peak_bytes: Some(pairs.peak_bytes),
            ..Outcome::default()
        };
        let half = Bytes::new((pairs.peak_bytes / 2) & !4095);
        if half < MINIMUM_BUDGET {
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

fn ratios(native: &[f64], managed: &[f64]) -> Vec<f64> {
    native.iter().zip(managed).map(|(native, managed)| managed / native).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_installed_has_nulls_and_a_reason() {
        let plan = Plan::for_tests();
        let bench = Bench { plan: &plan, cancel: &Cancel::default() };
        let missing = || Err(anyhow::anyhow!("nowhere to be found"));
        let outcome = bench.tree("none", missing()).expect("an outcome");
        assert!(!outcome.failed);
        let json = serde_json::to_value(&outcome).expect("json");
        assert!(json["native_s"].is_null() && json["ratio"].is_null());
        assert_eq!(json["reason"], "nowhere to be found");
        let calls = serde_json::to_value(bench.calls(1, missing()).expect("an outcome")).expect("json");
        assert!(calls["native"].is_null() && calls["reason"] == "nowhere to be found");
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
