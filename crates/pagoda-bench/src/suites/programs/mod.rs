//! Real programs over a budget: natively, with the kernel's swap at the same total memory, and
//! under `pagoda run`, in turn.
//!
//! Each runs natively twice, for its peak and for its time, and then at a part of that peak. Its
//! standard output is compared by a digest. This module must never run two sides at once, nor count
//! a run whose output differs.

mod catalogue;
mod runner;
mod splits;
pub mod table;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use clap::{Args, ValueEnum};
use indicatif::ProgressBar;
use pagoda::config::MINIMUM_BUDGET;
use pagoda_core::size::Bytes;
use serde::Serialize;
use serde_json::{Value, json};

use crate::command::{print, progress, this_program};
use crate::measure::memory::descendants_bytes;
use crate::measure::process::Cancel;
use crate::measure::scratch::Scratch;
use crate::measure::stats::round;
use crate::report::json;
use crate::suites::budget::{noted, reason};
use crate::{kernel, pagoda_run, warm};
use catalogue::Program;
use runner::End;
use splits::{Kernel, Ratio};

/// Enough for a side that is thirty times slower than the slowest program.
const LIMIT_S: u16 = 90;

/// The part of `--help` on the keys.
const KEYS: &str = "\
Keys of the JSON; a timeout counts as its limit:
  programs                    by name: duckdb, gcc, go, imagemagick, java, memcached, node, numpy, postgres, python, redis, sort, sqlite
  programs.NAME.native        s, seconds of a run of its own, and peak_mib, the anonymous memory of all its processes
  programs.NAME.three_quarters, programs.NAME.half, programs.NAME.quarter
                              with that part of the peak: budget_mib, pagoda, kernel (null where this machine has no such side),
                              ratio_kernel, Pagoda's time over the kernel's where both lived, and ratio_native, over the native time
  programs.NAME.half.pagoda   s, end (ok, wrong, killed or timeout), faults, us_per_fault, the time over the native one for each of
                              them, and over_mib, the peak over the budget
  programs.NAME.half.kernel   memory group, zram and a swap file: the best of three splits whose peaks together kept to 1.03 of the
                              budget: s, end, memcg_peak_mib, zram_peak_mib
  skipped                     by name: the reason
  kernel_reason               why the kernel's side is missing, if it is
  quick, machine              the kind of run, and its machine";

/// The options of the bench.
#[derive(Args, Debug)]
#[command(after_long_help = KEYS)]
pub struct ProgramsArgs {
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// A short run: one program in half of its memory
    #[arg(long)]
    quick: bool,
    /// This program alone; can be given more than once
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// This part of the native peak alone; can be given more than once
    #[arg(long, value_enum)]
    at: Vec<Part>,
    /// The longest time of one run, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = LIMIT_S, value_parser = clap::value_parser!(u16).range(1..=3600))]
    limit: u16,
}

/// A part of the native peak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    ThreeQuarters,
    Half,
    Quarter,
}

impl Part {
    const ALL: [Self; 3] = [Self::ThreeQuarters, Self::Half, Self::Quarter];

    fn of(self, peak_bytes: u64) -> Bytes {
        let quarters = 3 - self as u64;
        Bytes::new((peak_bytes / 4 * quarters) & !4095)
    }
}

/// The figures at one budget.
#[derive(Serialize)]
struct At {
    budget_mib: f64,
    pagoda: Pagoda,
    kernel: Option<Kernel>,
    ratio_kernel: Option<f64>,
    ratio_native: Option<f64>,
}

/// One run under Pagoda.
#[derive(Debug, Serialize)]
struct Pagoda {
    s: f64,
    end: End,
    faults: Option<u64>,
    us_per_fault: Option<f64>,
    over_mib: Option<f64>,
}

/// The native runs, and their results that the other sides need.
pub struct Native {
    command: Vec<String>,
    seconds: f64,
    peak_bytes: u64,
    digest: u64,
}

/// The state that all runs share.
pub struct Bench<'a> {
    program: String,
    limit: Duration,
    cancel: &'a Cancel,
    progress: ProgressBar,
}

fn mib(bytes: u64) -> f64 {
    round(bytes as f64 / (1u64 << 20) as f64)
}

/// Runs `pagoda bench programs`. Exit status 1 if Pagoda's side failed anywhere.
pub fn run(args: &ProgramsArgs) -> anyhow::Result<ExitCode> {
    let (programs, parts) = args.plan()?;
    // A killed run can have left swap, which is fast memory for the next programs.
    kernel::clean_up()?;
    let cancel = Cancel::on_signals()?;
    let bench = Bench {
        program: this_program()?,
        limit: Duration::from_secs(args.limit.into()),
        cancel: &cancel,
        progress: progress((programs.len() * parts.len()) as u64, "budget")?,
    };
    let (mut figures, mut skipped) = (BTreeMap::new(), BTreeMap::new());
    let mut kernel_reason = None;
    for program in &programs {
        bench.progress.set_message(program.name);
        match bench.figures(program, &parts, &mut kernel_reason) {
            Ok(of_program) => drop(figures.insert(program.name, of_program)),
            Err(error) => drop(skipped.insert(program.name, reason(error)?)),
        }
    }
    bench.progress.finish_and_clear();
    print(&report(args.quick, &figures, &skipped, kernel_reason), args.json);
    let ends = figures.values().flat_map(|(_, parts)| parts.values()).map(|at| at.pagoda.end);
    let failed = ends.into_iter().any(|end| matches!(end, End::Wrong | End::Killed));
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The figures of one program: its native run, and the parts of the peak that are a budget.
type Figures = (Value, BTreeMap<Part, At>);

fn report(
    quick: bool,
    figures: &BTreeMap<&str, Figures>,
    skipped: &BTreeMap<&str, String>,
    kernel_reason: Option<String>,
) -> Value {
    let of_program = |(native, parts): &Figures| {
        let mut figures = json!(parts);
        figures["native"] = native.clone();
        figures
    };
    let programs: BTreeMap<_, _> =
        figures.iter().map(|(name, figures)| (*name, of_program(figures))).collect();
    let mut all = json!({ "programs": programs, "skipped": skipped });
    if let Some(reason) = kernel_reason {
        all["kernel_reason"] = reason.into();
    }
    json::report("programs", quick, all)
}

impl ProgramsArgs {
    fn plan(&self) -> anyhow::Result<(Vec<Program>, Vec<Part>)> {
        let quick = self.quick && self.only.is_empty();
        let programs = if quick { vec![catalogue::QUICK] } else { catalogue::chosen(&self.only)? };
        let parts = if !self.at.is_empty() {
            self.at.clone()
        } else if self.quick {
            vec![Part::Half]
        } else {
            Part::ALL.to_vec()
        };
        Ok((programs, parts))
    }
}

impl Bench<'_> {
    /// Runs one program with each budget. An error is a signal, or the reason to skip it.
    fn figures(
        &self,
        program: &Program,
        parts: &[Part],
        kernel_reason: &mut Option<String>,
    ) -> anyhow::Result<Figures> {
        let scratch = Scratch::new()?;
        let native = self.native((program.prepare)(&scratch)?)?;
        let mut of_parts = BTreeMap::new();
        let mut ratio = Ratio::default();
        for (turn, &part) in parts.iter().enumerate() {
            let budget = part.of(native.peak_bytes);
            if budget >= MINIMUM_BUDGET {
                let at = self.at(&native, budget, turn % 2 == 0, &mut ratio, kernel_reason)?;
                of_parts.insert(part, at);
            }
            self.progress.inc(1);
        }
        if of_parts.is_empty() {
            let peak = Bytes::new(native.peak_bytes);
            bail!("no part of its native peak of {peak} is a budget: the least is {MINIMUM_BUDGET}");
        }
        Ok((json!({ "s": round(native.seconds), "peak_mib": mib(native.peak_bytes) }), of_parts))
    }

    /// Runs it natively, twice: sampling the memory of the first run must not slow the timed one.
    fn native(&self, command: Vec<String>) -> anyhow::Result<Native> {
        let mut peak_bytes = 0;
        let look = || peak_bytes = peak_bytes.max(descendants_bytes());
        let first = runner::run(&command, None, self.limit, self.cancel, look)?;
        if first.end != End::Ok {
            bail!("natively it does not end well: {}", first.errors);
        }
        let native = Native { command, seconds: 0.0, peak_bytes, digest: first.digest };
        self.warm(&native);
        let second = runner::run(&native.command, Some(first.digest), self.limit, self.cancel, || ())?;
        if second.end != End::Ok {
            bail!("natively it prints another thing each time");
        }
        Ok(Native { seconds: second.seconds, ..native })
    }

    fn at(
        &self,
        native: &Native,
        budget: Bytes,
        kernel_first: bool,
        ratio: &mut Ratio,
        kernel_reason: &mut Option<String>,
    ) -> anyhow::Result<At> {
        let mut kernel = || -> anyhow::Result<Option<Kernel>> {
            if kernel_reason.is_some() {
                return Ok(None);
            }
            Ok(noted(splits::best(self, native, budget, ratio), kernel_reason)?.flatten())
        };
        let (kernel, pagoda) = if kernel_first {
            let kernel = kernel()?;
            (kernel, self.pagoda(native, budget)?)
        } else {
            let pagoda = self.pagoda(native, budget)?;
            (kernel()?, pagoda)
        };
        Ok(At::of(native, budget, pagoda, kernel))
    }

    fn pagoda(&self, native: &Native, budget: Bytes) -> anyhow::Result<Pagoda> {
        let scratch = Scratch::new()?;
        let stats = scratch.file("stats.json");
        let command = pagoda_run(&self.program, budget, &stats, native.command.clone());
        self.warm(native);
        let ran = runner::run(&command, Some(native.digest), self.limit, self.cancel, || ())?;
        let counter = |name| counter(&stats, name);
        let faults = counter("faults");
        let added_us = (ran.seconds - native.seconds).max(0.0) * 1e6;
        let us_per_fault = faults.filter(|&faults| faults > 0).map(|faults| round(added_us / faults as f64));
        let over_mib = counter("anon_peak_bytes").map(|peak| mib(peak.saturating_sub(budget.get())));
        Ok(Pagoda { s: round(ran.seconds), end: ran.end, faults, us_per_fault, over_mib })
    }

    /// Warms as much memory as a run needs in total.
    fn warm(&self, native: &Native) {
        warm(Bytes::new(native.peak_bytes));
    }
}

/// A counter of a run, if it wrote its figures.
fn counter(stats: &Path, name: &str) -> Option<u64> {
    let json: serde_json::Value = serde_json::from_str(&fs::read_to_string(stats).ok()?).ok()?;
    json["counters"][name].as_u64()
}

impl At {
    fn of(native: &Native, budget: Bytes, pagoda: Pagoda, kernel: Option<Kernel>) -> Self {
        let counts = |end| matches!(end, End::Ok | End::Timeout);
        let over = |s: f64| counts(pagoda.end).then(|| round(pagoda.s / s));
        let ratio_kernel = kernel.filter(|kernel| counts(kernel.end)).and_then(|kernel| over(kernel.s));
        let ratio_native = over(native.seconds);
        Self { budget_mib: mib(budget.get()), pagoda, kernel, ratio_kernel, ratio_native }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::keys::expect_told;

    fn native() -> Native {
        Native { command: Vec::new(), seconds: 2.0, peak_bytes: 200 << 20, digest: 1 }
    }

    fn pagoda(s: f64, end: End) -> Pagoda {
        Pagoda { s, end, faults: Some(10), us_per_fault: Some(1.0), over_mib: Some(0.0) }
    }

    fn kernel(s: f64, end: End) -> Option<Kernel> {
        Some(Kernel { s, end, memcg_peak_mib: 1.0, zram_peak_mib: 1.0 })
    }

    #[test]
    fn a_ratio_is_of_sides_that_lived_and_a_timeout_counts_as_its_limit() {
        let budget = Part::Quarter.of(native().peak_bytes);
        assert_eq!((budget, Part::ThreeQuarters.of(200 << 20)), (Bytes::mib(50), Bytes::mib(150)));
        let ratios = |pagoda, kernel| {
            let at = At::of(&native(), budget, pagoda, kernel);
            (at.ratio_kernel, at.ratio_native)
        };
        assert_eq!(ratios(pagoda(6.0, End::Ok), kernel(4.0, End::Ok)), (Some(1.5), Some(3.0)));
        assert_eq!(ratios(pagoda(60.0, End::Timeout), kernel(4.0, End::Ok)), (Some(15.0), Some(30.0)));
        assert_eq!(ratios(pagoda(6.0, End::Ok), kernel(1.0, End::Killed)), (None, Some(3.0)));
        assert_eq!(ratios(pagoda(6.0, End::Wrong), kernel(4.0, End::Ok)), (None, None));
        assert_eq!(ratios(pagoda(6.0, End::Ok), None), (None, Some(3.0)));
    }

    #[test]
    fn each_key_is_in_the_help() {
        let at = At::of(&native(), Bytes::mib(50), pagoda(6.0, End::Ok), kernel(4.0, End::Ok));
        let figures = (json!({ "s": 2.0, "peak_mib": 200.0 }), BTreeMap::from([(Part::Half, at)]));
        let figures = BTreeMap::from([("sort", figures)]);
        let json = report(false, &figures, &BTreeMap::new(), Some("no zram".to_owned()));
        assert_eq!(json["programs"]["sort"]["half"]["ratio_kernel"], 1.5);
        expect_told("programs", KEYS, &json);
        assert!(table::table(&json).contains("| sort    | 50 MiB, 1/2 |     2.00 |     4.00 |     6.00 |"));
    }

    #[test]
    fn an_unknown_program_is_refused_with_those_there_are() {
        let error = catalogue::chosen(&["nethack".to_owned()]).err().expect("refused").to_string();
        assert!(error.contains("nethack") && error.contains("sqlite"), "{error}");
        assert_eq!(catalogue::chosen(&["go".to_owned()]).expect("there").len(), 1);
    }
}
