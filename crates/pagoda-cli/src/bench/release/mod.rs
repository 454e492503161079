//! What closing owners cost, by each way to release what they have in the store, beside an owner that starts.
//!
//! Some owners with most of their pages stored close at once while another one starts and works. The policies take turns with
//! each other, with owners that have the same resident pages and nothing stored, and with a starter alone; the first
//! round is discarded. Everything is real memory of a library's manager. This module must never time the filling.

mod report;
mod trial;

use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use pagoda::ReleasePolicy;
use pagoda_core::page::BasePage;
use pagoda_core::size::Bytes;

use super::machine::Machine;
use report::{Quiet, Report};
use trial::{Kind, Outcome, Trial};

/// How much of a process that is in the background was swapped after 0, 1, 5, 10 and 15 minutes, in percent: the series'
/// measurement, which names these as 30.87, 57.03, 63.97, 64.69 and 64.72.
const AGING_PERCENT: [f64; 5] = [30.9, 57.0, 64.0, 64.7, 64.7];
/// What the owners have stored that close together.
const STORED_PERCENT: f64 = 64.7;

/// What to measure.
#[derive(Args, Debug)]
pub struct ReleaseArgs {
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// A short run: small owners, one round
    #[arg(long)]
    quick: bool,
    /// Owners that close at once [default: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    owners: Option<u16>,
    /// What each of them has [default: 512M, quick: 32M]
    #[arg(long, value_name = "SIZE")]
    owner: Option<Bytes>,
    /// Their base page: the smaller, the more there is to release [default: 4K, as the kernel's swap entries are]
    #[arg(long, value_name = "SIZE")]
    base_page: Option<BasePage>,
    /// Rounds that count, after one that is discarded [default: 6, quick: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: Option<u16>,
}

/// Runs `pagoda bench release`.
pub fn run(args: &ReleaseArgs) -> anyhow::Result<ExitCode> {
    if !pagoda::userfaultfd_allows_managers() {
        bail!("this machine offers no userfaultfd with UFFDIO_MOVE; `pagoda doctor` says why");
    }
    let owners = args.owners.map_or(2, usize::from);
    let owner = args.owner.unwrap_or(Bytes::mib(if args.quick { 32 } else { 512 }));
    let base = args.base_page.unwrap_or(BasePage::K4);
    let rounds = args.rounds.map_or(if args.quick { 1 } else { 6 }, usize::from);
    let aging_rounds = rounds.div_ceil(2);
    let together = Trial { owners, owner, base, stored_percent: STORED_PERCENT, starter: true };
    let runs = (rounds + 1) * kinds().len() + aging_rounds * AGING_PERCENT.len() * ReleasePolicy::ALL.len();
    // Drawn on standard error, and there only if that is a terminal.
    let progress = ProgressBar::new(runs as u64).with_style(
        ProgressStyle::with_template("{msg} [{bar:30}] run {pos} of {len}, {elapsed} gone, {eta} to go")
            .context("the progress bar's template")?,
    );
    let quiet = Quiet::begin();
    let mut outcomes: Vec<(Kind, Vec<Outcome>)> =
        kinds().into_iter().map(|kind| (kind, Vec::new())).collect();
    for round in 0..=rounds {
        for (kind, outcomes) in &mut outcomes {
            progress.set_message(kind.name());
            let outcome = together.run(*kind)?;
            if round > 0 {
                outcomes.push(outcome);
            }
            progress.inc(1);
        }
    }
    let mut aging = Vec::new();
    for policy in ReleasePolicy::ALL {
        progress.set_message("aging");
        let mut close_ms = Vec::new();
        for stored_percent in AGING_PERCENT {
            let trial = Trial { owners: 1, owner, base, stored_percent, starter: false };
            let mut times = Vec::new();
            for _ in 0..aging_rounds {
                times.extend(trial.run(Kind::Policy(policy))?.close_ms);
                progress.inc(1);
            }
            close_ms.push(times);
        }
        aging.push((policy, close_ms));
    }
    progress.finish_and_clear();
    let report = Report::new(together, rounds, args.quick, &outcomes, &aging, quiet.end(), Machine::this())
        .context("no round was measured")?;
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print!("{}", report.table());
    }
    Ok(ExitCode::SUCCESS)
}

/// What takes turns.
fn kinds() -> Vec<Kind> {
    let policies = ReleasePolicy::ALL.map(Kind::Policy);
    policies.into_iter().chain([Kind::NeverStored, Kind::StarterAlone]).collect()
}
