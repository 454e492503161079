//! The benches of Pagoda: its sides and the kernel's, in turns, on the machine at hand. `pagoda
//! bench` starts this program.
//!
//! Each bench prints JSON, or a table for people. `list.rs` lists them, and `suites/all` runs all
//! of them for one page. The measured processes are workers, this same program (`worker`). A
//! program runs under Pagoda by the command `pagoda run` beside this one. A library's figures come
//! from the public interface of `pagoda`. A bench must never reach around either.
#![forbid(unsafe_code)]

mod command;
mod kernel;
mod list;
mod load;
mod measure;
mod report;
mod suites;
mod worker;

pub use report::html::{document, escaped};
pub use suites::snapshot::peers::{cloud_hypervisor, firecracker};

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};
use indicatif::ProgressBar;
use pagoda_core::size::Bytes;
use serde_json::json;

use load::data;
use measure::process::{Cancel, Cancelled};
use suites::budget::Load;
use suites::budget::no_pressure;
use suites::budget::report::KEYS;
use suites::{all, base_page, budget, clear, counters, migrate, programs, release, snapshot, tree, zones};

/// The part of `--help` on the keys of all benches.
const COMMON_KEYS: &str = "\
Each bench prints JSON with --json, and its `--help` explains the keys. Keys of all of them:
  …_least, …_most             beside a median of several rounds or pairs, the least and the greatest of them
  bench, quick                the name of the bench, and whether it was a short run
  machine                     of the run: cpu, cores, memory_bytes, kernel, governor of the frequency, transparent_huge_pages,
                              page_cluster (the kernel's swap readahead), cgroup (its version); null where there is none";

/// The bench to run.
#[derive(Args, Debug)]
#[command(after_long_help = COMMON_KEYS)]
pub struct BenchArgs {
    #[command(subcommand)]
    bench: Option<Bench>,
}

#[derive(Subcommand, Debug)]
enum Bench {
    /// Running over a memory budget, against the kernel's zram and swap with the same total memory
    Budget(BudgetArgs),
    /// Real programs at 3/4, 1/2 and 1/4 of their native peak, against the kernel's swap with the
    /// same total memory
    Programs(programs::ProgramsArgs),
    /// Trees of processes: fork, short processes, a server that saves, builds, a JVM and node,
    /// beside native runs
    Tree(tree::TreeArgs),
    /// Clearing huge frames in different orders, against clearing them from the beginning and
    /// against the kernel's huge pages
    Clear(clear::ClearArgs),
    /// Zones to take frames from: the fair policy and its baselines by counts, and streams over a
    /// file beside the kernel's mmap
    Zones(zones::ZonesArgs),
    /// Closing owners with most of their memory stored: its release by policy, beside an owner that
    /// starts, and against being killed with as much in the kernel's zram
    Release(release::ReleaseArgs),
    /// Restoring memory from an image: its first byte, a scattered working set beside mmap and
    /// reading, and the pause of saving
    Snapshot(snapshot::SnapshotArgs),
    /// Moving a live region: zero pages at the destination, codecs, a region that is written
    /// meanwhile, stored pages
    Migrate(migrate::MigrateArgs),
    /// Base pages of 4, 16 and 64 KiB by density, against the kernel's small, huge and 64 KiB
    /// pages: faults, tables, memory, time
    BasePage(base_page::BasePageArgs),
    /// The cost of counting and timing a fault, over the time to serve it
    ///
    /// The JSON has `counting_ns`, the counting calls of one fault by one thread,
    /// `counting_at_once_ns`, the same while all handlers do nothing else, `clock_ns`, one read of
    /// the clock, `service_us`, the median time of a fault in a managed program,
    /// `counting_percent`, the calls over that, and `timing_percent`, the calls and the clock over
    /// it; each with the least and the greatest of the rounds. `faults` of a round, `handlers` and
    /// `rounds` are the size of the run.
    Counters(counters::CountersArgs),
    /// Every bench, one HTML page of all their figures, and a heat map of a traced program
    All(all::AllArgs),
    /// The process that a bench measures
    #[command(hide = true)]
    Worker(worker::WorkerArgs),
}

#[derive(Args, Debug)]
#[command(after_long_help = KEYS)]
struct BudgetArgs {
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// A short run: a small budget, few touches, one pair
    #[arg(long)]
    quick: bool,
    /// The budget; the data is twice and three times that [default: 256M, quick: 64M]
    #[arg(long, value_name = "SIZE")]
    budget: Option<Bytes>,
    /// Pairs of runs that count, after one that is discarded [default: 3, quick: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    pairs: Option<u16>,
    /// Measure this alone; can be given more than once
    #[arg(long, value_enum)]
    only: Vec<Part>,
    /// Remove memory groups, zram devices and swap files that a killed run left, and do nothing
    /// else
    #[arg(long)]
    cleanup: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// 3:1 data, twice the budget
    Compressed,
    /// 2:1 data, three times the budget
    Spilled,
    /// Programs and churn with 1.2 times their native peak
    NoPressure,
}

/// The settings that all parts of a run share.
pub(crate) struct Plan {
    /// The path of this program.
    program: String,
    budget: Bytes,
    pairs: usize,
    program_pairs: usize,
    quick: bool,
    progress: ProgressBar,
}

impl Plan {
    /// Counts one run as done.
    fn step(&self) {
        self.progress.inc(1);
    }

    #[cfg(test)]
    fn for_tests() -> Self {
        let (budget, progress) = (Bytes::mib(16), ProgressBar::hidden());
        Self {
            program: "/nonexistent/pagoda-bench".to_owned(),
            budget,
            pairs: 1,
            program_pairs: 1,
            quick: true,
            progress,
        }
    }
}

/// Pairs of the programs: their times differ by a few percent from run to run, and the overhead is
/// smaller than that.
const PROGRAM_PAIRS: usize = 7;

/// The list of benches, as `pagoda bench` without a name prints it.
pub fn list() -> String {
    list::text()
}

/// The `--help` of a bench, with that of all.
#[cfg(test)]
fn help(name: &str) -> String {
    let mut command = BenchArgs::augment_args(clap::Command::new("bench"));
    let bench = command.find_subcommand_mut(name).expect("there is one of that name");
    bench.render_long_help().to_string() + COMMON_KEYS
}

/// The command line of `pagoda-bench`.
#[derive(Parser)]
#[command(name = "pagoda-bench", version)]
struct Arguments {
    #[command(flatten)]
    bench: BenchArgs,
}

/// The exit status of an error, the same as of `pagoda`.
const OWN_ERROR: u8 = 125;

/// The program `pagoda-bench`. Exit status 1 if Pagoda's side failed anywhere, 128 + n after a
/// signal.
pub fn main() -> ExitCode {
    run(&Arguments::parse().bench).unwrap_or_else(|error| {
        // If standard error is closed the message is lost. The alternate form has the causes in one
        // line.
        let _ = writeln!(std::io::stderr(), "pagoda: {error:#}");
        ExitCode::from(OWN_ERROR)
    })
}

fn run(args: &BenchArgs) -> anyhow::Result<ExitCode> {
    let Some(bench) = &args.bench else {
        print!("{}", list());
        return Ok(ExitCode::SUCCESS);
    };
    let result = match bench {
        Bench::Budget(args) if args.cleanup => clean_up(),
        Bench::Budget(args) => budget(args),
        Bench::Programs(args) => programs::run(args),
        Bench::Tree(args) => tree::run_all(args),
        Bench::Clear(args) => clear::run(args),
        Bench::Zones(args) => zones::run(args),
        Bench::Release(args) => release::run(args),
        Bench::Snapshot(args) => snapshot::run(args),
        Bench::Migrate(args) => migrate::run(args),
        Bench::BasePage(args) => base_page::run(args),
        Bench::Counters(args) => counters::run(args),
        Bench::All(args) => all::run(args),
        Bench::Worker(args) => worker::run(args),
    };
    match result {
        Ok(code) => Ok(code),
        Err(error) => match error.downcast_ref::<Cancelled>() {
            Some(Cancelled(signal)) => Ok(ExitCode::from(128 + signal)),
            None => Err(error),
        },
    }
}

fn clean_up() -> anyhow::Result<ExitCode> {
    for what in kernel::clean_up()? {
        println!("removed {what}");
    }
    Ok(ExitCode::SUCCESS)
}

fn budget(args: &BudgetArgs) -> anyhow::Result<ExitCode> {
    let wanted = |part| args.only.is_empty() || args.only.contains(&part);
    let pairs = args.pairs.map_or(if args.quick { 1 } else { 3 }, usize::from);
    let mut plan = Plan {
        program: command::this_program()?,
        budget: args.budget.unwrap_or(Bytes::mib(if args.quick { 64 } else { 256 })),
        pairs,
        program_pairs: if args.quick { 1 } else { pairs.max(PROGRAM_PAIRS) },
        quick: args.quick,
        progress: ProgressBar::hidden(),
    };
    let runs = |part, runs: usize| if wanted(part) { runs as u64 } else { 0 };
    let total = runs(Part::Compressed, 4 + 4 * plan.pairs)
        + runs(Part::Spilled, 4 + 4 * plan.pairs)
        + runs(Part::NoPressure, 5 * (1 + 2 * (1 + plan.program_pairs)));
    plan.progress = command::progress(total, "run")?;
    let cancel = Cancel::on_signals()?;
    let (mut figures, mut kernel_reason, mut failed) = (json!({}), None, false);
    for (part, name, load) in [
        (Part::Compressed, "compressed", Load { ratio: 3.0, budgets: 2 }),
        (Part::Spilled, "spilled", Load { ratio: 2.0, budgets: 3 }),
    ] {
        if wanted(part) {
            plan.progress.set_message(name);
            let setting = budget::measure(&plan, load, &mut kernel_reason, &cancel)?;
            failed |= setting.setting.pagoda_reason.is_some() || setting.setting.in_thread_reason.is_some();
            figures[name] = json!(setting);
        }
    }
    if wanted(Part::NoPressure) {
        plan.progress.set_message("no pressure");
        let (no_pressure, has_failed) = no_pressure::measure(&plan, &cancel)?;
        failed |= has_failed;
        figures["no_pressure"] = no_pressure;
    }
    plan.progress.finish_and_clear();
    figures["kernel"] = json!(kernel_reason.is_none().then_some("memory group + zram (lz4) + swap file"));
    if let Some(reason) = kernel_reason {
        figures["kernel_reason"] = reason.into();
    }
    figures["budget_bytes"] = plan.budget.get().into();
    figures["pairs"] = plan.pairs.into();
    let report = report::json::report("budget", args.quick, figures);
    command::print(&report, args.json);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Touches memory and frees it. A virtual machine's host takes back freed memory after a few
/// seconds, and the next first touch costs up to ten times more: the next run must not pay for it.
fn warm(bytes: Bytes) {
    let mut memory = vec![0u8; bytes.as_usize()];
    for byte in memory.iter_mut().step_by(data::PAGE_BYTES) {
        *byte = 1;
    }
    std::hint::black_box(&mut memory);
}

/// The command line that runs a program under Pagoda.
fn pagoda_run(this_program: &str, budget: Bytes, stats: &Path, command: Vec<String>) -> Vec<String> {
    let (budget, stats) = (budget.get().to_string(), stats.display().to_string());
    let words =
        [&command::pagoda(this_program), "run", "--memory", &budget, "--quiet", "--stats", &stats, "--"];
    words.into_iter().map(str::to_owned).chain(command).collect()
}
