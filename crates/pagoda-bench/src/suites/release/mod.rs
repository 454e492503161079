//! The cost of closing owners, by each way to release their stored memory, beside an owner that
//! starts.
//!
//! Some owners with most of their pages stored close at once while another one starts and works.
//! The policies take turns with each other, with owners that have the same resident pages and
//! nothing stored, and with a starter alone (`trial.rs`, all of it real memory of a library's
//! manager). Two more sides are processes killed under the kernel's zram and under `pagoda run`
//! (`killed.rs`), and the store itself (`store.rs`). The first round is discarded. This module must
//! never time the filling, and never leave a side out without its reason.

pub mod holder;
mod killed;
mod layouts;
mod quiet;
mod report;
mod starter;
mod store;
pub mod table;
mod trial;
pub mod unmapping;

use std::ops::RangeInclusive;
use std::process::ExitCode;

use clap::Args;
use indicatif::ProgressBar;
use pagoda::ReleasePolicy;
use pagoda_core::page::BasePage;
use pagoda_core::size::Bytes;

use crate::command;
use crate::measure::process::Cancel;
use crate::measure::turns::{round_numbers, turns};
use crate::report::json;
use crate::suites::budget::noted;
use killed::{How, Killed, Killing};
use layouts::{Layouts, Order};
use quiet::Quiet;
use store::Stored;
use trial::{Kind, Outcome, Trial};
use unmapping::Unmapping;

/// The swapped-out part of a background process after 0, 1, 5, 10 and 15 minutes, in percent. The
/// series measured 30.87, 57.03, 63.97, 64.69 and 64.72.
const AGING_PERCENT: [f64; 5] = [30.9, 57.0, 64.0, 64.7, 64.7];
/// The most rounds of that which count, after one that is discarded. Each is a few milliseconds of
/// closing and a second of filling.
const AGING_ROUNDS: usize = 6;
/// The stored part of the owners that close together.
const STORED_PERCENT: f64 = 64.7;
/// The least content that the store is measured with: tables come in pieces.
const STORE_LEAST: Bytes = Bytes::mib(64);

/// The part of `--help` on the keys.
const KEYS: &str = "\
Keys of the JSON, medians of the rounds, with the least and the greatest in …_least and …_most; a side that could not run is null, and its
…_reason says why:
  policies.POLICY             one-at-a-time, runs, background, workers, spans; owners that close at the same time: close_ms_p50 and
                              close_ms_p99, extra_ms over owners that stored nothing, by round,
                              frames_back_ms, stored_back_ms, starter_start_ms and starter_work_ms of the starter meanwhile, cpu_ms,
                              in_close_ms, lock_wait_ms, locks, peak_queued_bytes; queued, inline and early: pages by the way of their release;
                              resident_bytes that the owners had in memory when they were told to close
  never_stored, starter_alone  owners that stored nothing, with the same resident_bytes; the starter alone: start_ms,
                              work_ms
  processors                  those that the starter and the closing threads had together
  layouts.ORDER.BASE.POLICY   one owner that closes alone, by how it was stored: in_order, shuffled, or in order and rewritten, half of it
                              at random; in base pages of 4K and 64K; by background, spans and one-at-a-time: queued_percent of the pages,
                              inline, close_ms, stored_back_ms, and extra_vs_one, the close beyond that of never_stored over the like
                              of one-at-a-time; in_close_ms and in_close_vs_one, the processor time of the closing thread alone
  longest_fault_wait_beside_munmap_us, longest_fault_wait_alone_us  the longest first touch of another thread under pagoda run while most
                              of a large range that is unmapped is stored, which takes munmap_ms, and with nothing beside it
  exit_spilled_ms             the exit of that program with as much stored, until pagoda run has ended, too
  aging                       close_ms of one owner alone, by how much of it is stored: stored_percent
  kernel_zram                 processes that are killed with as much in zram: kill_ms, back_ms, kill_never_swapped_ms, and the starter
  run_kill9_ms                programs under pagoda run that are killed, run_kill9_stored_percent of them stored
  ratios                      each over its like one-at-a-time, the median of the rounds in each of which both ran:
                              starter_background_vs_one, starter_workers_vs_one, starter_spans_vs_one of the starter's start and work, and apart
                              starter_start_background_vs_one, starter_work_background_vs_one, starter_start_workers_vs_one,
                              starter_work_workers_vs_one, starter_start_spans_vs_one, starter_work_spans_vs_one; of in_close_ms
                              in_close_background_vs_one, in_close_workers_vs_one, in_close_spans_vs_one; of
                              cpu_ms cpu_runs_vs_one, cpu_background_vs_one, cpu_workers_vs_one, cpu_spans_vs_one; of stored_back_ms
                              stored_back_background_vs_one, stored_back_workers_vs_one, stored_back_spans_vs_one. So, too, over others:
                              close_background_vs_never_stored, close_workers_vs_never_stored, close_spans_vs_never_stored; starter_one_vs_alone;
                              close_vs_kernel_zram, in the background over a killed process; kernel_zram_vs_never_swapped. Of the
                              medians, because extra_ms may be nothing in a round: extra_background_vs_one,
                              extra_workers_vs_one, extra_spans_vs_one of extra_ms
  store                       compress_gib_s, compress_cpu_gib_s, fetch_us of a page until all of it is back and fetch_first_us until
                              its first part is, served in the thread fetch_in_thread_us and fetch_first_in_thread_us, each with p50,
                              p99 and p999; waste_percent
  owners, owner_bytes, base_page_bytes, stored_percent, rounds  the size of the run
  quiet                       other load of the machine: others_busy_percent of all processors, load_average of a minute
                              before and after";

/// The options of the bench.
#[derive(Args, Debug)]
#[command(after_long_help = KEYS)]
pub struct ReleaseArgs {
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// A short run: small owners, one round, and none discarded
    #[arg(long)]
    quick: bool,
    /// Owners that close at once [default: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    owners: Option<u16>,
    /// What each of them has [default: 512M, quick: 32M]
    #[arg(long, value_name = "SIZE")]
    owner: Option<Bytes>,
    /// Their base page: the smaller, the more there is to release [default: 4K, as the kernel's
    /// swap entries are]
    #[arg(long, value_name = "SIZE")]
    base_page: Option<BasePage>,
    /// Rounds that count, after one that is discarded [default: 6, quick: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: Option<u16>,
}

/// The figures of one way to be killed.
#[derive(Default)]
struct Kills {
    killed: Vec<Killed>,
    /// The reason why it could not run; it is not tried again.
    reason: Option<String>,
}

/// The figures of the rounds that count.
struct Rounds {
    outcomes: Vec<(Kind, Vec<Outcome>)>,
    /// In the order of [`How::ALL`].
    kills: [Kills; How::ALL.len()],
    stored: Vec<Stored>,
    aging: Aged,
    layouts: Layouts,
    unmapping: Vec<Unmapping>,
    /// The reason why that could not run.
    unmapping_reason: Option<String>,
    quiet: Quiet,
}

/// Closing times by policy, and by the stored part.
type Aged = Vec<(ReleasePolicy, Vec<Vec<f64>>)>;

/// Runs `pagoda bench release`. Exit status 1 if `pagoda run` could not run.
pub fn run(args: &ReleaseArgs) -> anyhow::Result<ExitCode> {
    command::needs_managers()?;
    let owners = args.owners.map_or(2, usize::from);
    let owner = args.owner.unwrap_or(Bytes::mib(if args.quick { 32 } else { 512 }));
    let base = args.base_page.unwrap_or(BasePage::K4);
    let rounds = args.rounds.map_or(if args.quick { 1 } else { 6 }, usize::from);
    let aging_rounds = rounds.min(AGING_ROUNDS);
    let layout_rounds = rounds.min(layouts::ROUNDS);
    let together =
        Trial { owners, owner, base, stored_percent: STORED_PERCENT, order: Order::ByAddress, starter: true };
    let numbers = |rounds| round_numbers(args.quick, rounds);
    let trials = |rounds| numbers(rounds).count();
    let runs = trials(rounds) * (kinds().len() + How::ALL.len() + 1)
        + trials(aging_rounds) * AGING_PERCENT.len() * ReleasePolicy::ALL.len()
        + trials(layout_rounds) * layouts::TRIALS
        + rounds;
    let bench = Bench {
        together,
        program: command::this_program()?,
        progress: command::progress(runs as u64, "run")?,
        cancel: Cancel::on_signals()?,
    };
    let mut measured = Rounds {
        outcomes: kinds().into_iter().map(|kind| (kind, Vec::new())).collect(),
        kills: std::array::from_fn(|_| Kills::default()),
        stored: Vec::new(),
        aging: Vec::new(),
        layouts: Layouts::default(),
        unmapping: Vec::new(),
        unmapping_reason: None,
        quiet: Quiet::begin(),
    };
    for round in numbers(rounds) {
        bench.round(round, &mut measured)?;
    }
    measured.aging = bench.aging(numbers(aging_rounds))?;
    bench.progress.set_message("layouts");
    let tick = || bench.progress.inc(1);
    measured.layouts = Layouts::measure(together, numbers(layout_rounds), &bench.cancel, tick)?;
    bench.progress.set_message("unmapping");
    for _ in 0..rounds {
        let unmapping = unmapping::measure(&bench.program, owner, STORED_PERCENT, &bench.cancel);
        measured.unmapping.extend(noted(unmapping, &mut measured.unmapping_reason)?);
        bench.progress.inc(1);
    }
    bench.progress.finish_and_clear();
    measured.quiet = measured.quiet.end();
    let report = json::report("release", args.quick, measured.figures(together, rounds));
    command::print(&report, args.json);
    Ok(if measured.failed() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

struct Bench {
    together: Trial,
    /// The path of this program.
    program: String,
    progress: ProgressBar,
    cancel: Cancel,
}

impl Bench {
    /// Runs all sides once: our own in turns, the first round discarded.
    fn round(&self, number: usize, measured: &mut Rounds) -> anyhow::Result<()> {
        for side in turns(number, measured.outcomes.len()) {
            let (kind, outcomes) = &mut measured.outcomes[side];
            self.progress.set_message(kind.name());
            outcomes.push(self.together.run(*kind, &self.cancel)?);
            self.progress.inc(1);
        }
        let killing = Killing { trial: self.together, program: &self.program, cancel: &self.cancel };
        for (how, kills) in How::ALL.into_iter().zip(&mut measured.kills) {
            self.progress.set_message(how.name());
            if kills.reason.is_none() {
                kills.killed.extend(noted(killing.run(how), &mut kills.reason)?);
            }
            self.progress.inc(1);
        }
        self.progress.set_message("store");
        measured.stored.push(Stored::measure(self.together.owner.max(STORE_LEAST), &self.cancel)?);
        self.progress.inc(1);
        if number == 0 {
            measured.outcomes.iter_mut().for_each(|(_, outcomes)| outcomes.clear());
            measured.kills.iter_mut().for_each(|kills| kills.killed.clear());
            measured.stored.clear();
        }
        Ok(())
    }

    /// The milliseconds of one owner that closes alone, by policy and by its stored part. The
    /// policies take turns, and the first round is discarded.
    fn aging(&self, numbers: RangeInclusive<usize>) -> anyhow::Result<Aged> {
        self.progress.set_message("aging");
        let mut all = ReleasePolicy::ALL.map(|policy| (policy, vec![Vec::new(); AGING_PERCENT.len()]));
        for number in numbers {
            for (stage, stored_percent) in AGING_PERCENT.into_iter().enumerate() {
                for side in turns(number, all.len()) {
                    let (policy, times) = &mut all[side];
                    let trial = Trial { owners: 1, stored_percent, starter: false, ..self.together };
                    let outcome = trial.run(Kind::Policy(*policy), &self.cancel)?;
                    times[stage].extend(outcome.close_ms.into_iter().filter(|_| number > 0));
                    self.progress.inc(1);
                }
            }
        }
        Ok(all.into())
    }
}

/// The kinds of run that take turns.
fn kinds() -> Vec<Kind> {
    let policies = ReleasePolicy::ALL.map(Kind::Policy);
    policies.into_iter().chain([Kind::NeverStored, Kind::StarterAlone]).collect()
}
