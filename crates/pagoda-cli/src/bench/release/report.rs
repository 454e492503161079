//! The figures as they are printed in JSON, whose keys other tools read. Pure.
//!
//! Every figure is a median over the rounds that count, every spread the least and the greatest of them. A side that could not
//! run is null and has a reason.

use std::collections::BTreeMap;

use pagoda::ReleasePolicy::{self, Background, OneAtATime, Runs, Workers};
use serde::Serialize;

use super::super::machine::Machine;
use super::super::stats::{median, middle_of, round};
use super::figures::{Figures, KernelZram, NeverStored, StarterAlone, StoreFigures, close_ms, gone_ms};
use super::killed::How;
use super::quiet::Quiet;
use super::trial::{Kind, Outcome, Trial};
use super::{AGING_PERCENT, Kills, Measured};

/// All that was found out.
#[derive(Serialize)]
pub struct Report {
    pub bench: &'static str,
    pub owners: usize,
    pub owner_bytes: u64,
    pub base_page_bytes: u64,
    pub stored_percent: f64,
    pub aging: Aging,
    pub policies: BTreeMap<&'static str, Figures>,
    pub never_stored: NeverStored,
    pub starter_alone: StarterAlone,
    /// As many processes, killed, with as much in the kernel's zram.
    pub kernel_zram: Option<KernelZram>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_zram_reason: Option<String>,
    /// As many programs, killed, each under a `pagoda run` of its own: until that has ended, too.
    pub run_kill9_ms: Option<f64>,
    pub run_kill9_ms_spread: Option<[f64; 2]>,
    pub run_kill9_stored_percent: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_kill9_reason: Option<String>,
    pub ratios: Ratios,
    pub store: StoreFigures,
    pub rounds: usize,
    pub quick: bool,
    pub machine: Machine,
    pub quiet: Quiet,
}

/// One owner that closes alone, the longer in the background the more of it stored.
#[derive(Serialize)]
pub struct Aging {
    pub stored_percent: [f64; AGING_PERCENT.len()],
    pub close_ms: BTreeMap<&'static str, Vec<f64>>,
}

/// Medians of the rounds' ratios; of what is extra, and of the kernel's side, ratios of the medians.
#[derive(Serialize)]
pub struct Ratios {
    pub extra_background_vs_one: Option<f64>,
    pub extra_workers_vs_one: Option<f64>,
    pub close_background_vs_never_stored: f64,
    pub close_workers_vs_never_stored: f64,
    pub close_background_vs_never_stored_spread: [f64; 2],
    /// Start and work together.
    pub starter_background_vs_one: f64,
    pub starter_background_vs_one_spread: [f64; 2],
    pub starter_workers_vs_one: f64,
    pub starter_workers_vs_one_spread: [f64; 2],
    pub starter_one_vs_alone: f64,
    pub starter_start_background_vs_one: f64,
    pub starter_start_background_vs_one_spread: [f64; 2],
    pub starter_work_background_vs_one: f64,
    pub starter_work_background_vs_one_spread: [f64; 2],
    pub in_close_background_vs_one: f64,
    pub in_close_workers_vs_one: f64,
    pub cpu_runs_vs_one: f64,
    pub cpu_background_vs_one: f64,
    pub cpu_workers_vs_one: f64,
    pub stored_back_background_vs_one: f64,
    pub stored_back_workers_vs_one: f64,
    /// In the background, over until the kernel has reaped a killed process with as much in zram.
    pub close_vs_kernel_zram: Option<f64>,
    pub kernel_zram_vs_never_swapped: Option<f64>,
}

/// Why one of them did not run.
fn reason(kills: &[&Kills]) -> Option<String> {
    kills.iter().find_map(|kills| kills.reason.clone())
}

impl Report {
    /// Of what was measured. None if that is nothing.
    pub fn new(
        trial: Trial,
        rounds: usize,
        quick: bool,
        measured: &Measured,
        quiet: Quiet,
        machine: Machine,
    ) -> Option<Self> {
        let of = |wanted: Kind| Some(&*measured.outcomes.iter().find(|(kind, _)| *kind == wanted)?.1);
        let (never_ms, _, never_spread) = close_ms(of(Kind::NeverStored)?)?;
        let figures = |policy| Figures::of(of(Kind::Policy(policy))?, never_ms);
        let [one, runs, background, workers] = ReleasePolicy::ALL.map(figures);
        let (one, runs, background, workers) = (one?, runs?, background?, workers?);
        let alone = of(Kind::StarterAlone)?;
        let (start_ms, start_ms_spread) = middle_of(alone, |outcome| outcome.starter_start_ms)?;
        let (work_ms, work_ms_spread) = middle_of(alone, |outcome| outcome.starter_work_ms)?;
        let killed = |how: How| &measured.kills[how as usize];
        let [zram, never, run] = How::ALL.map(killed);
        let kernel_zram = KernelZram::of(&zram.killed, &never.killed);
        let run_kill9 = gone_ms(&run.killed);
        // Where one at a time costs nothing extra there is nothing to compare with.
        let extra = |of: &Figures| (one.extra_ms > 0.0).then(|| round(of.extra_ms / one.extra_ms));
        let over = |wanted: Kind, base: Kind, pick: fn(&Outcome) -> f64| -> Option<(f64, [f64; 2])> {
            let rounds: Vec<_> = of(wanted)?.iter().zip(of(base)?).collect();
            middle_of(&rounds, |(wanted, base)| pick(wanted) / pick(base))
        };
        let policy = |policy| Kind::Policy(policy);
        let vs_one = |wanted: ReleasePolicy, pick| over(policy(wanted), policy(OneAtATime), pick);
        let vs_never = |wanted| over(policy(wanted), Kind::NeverStored, Outcome::close_p50_ms);
        let start = |outcome: &Outcome| outcome.starter_start_ms;
        let work = |outcome: &Outcome| outcome.starter_work_ms;
        let cpu = |outcome: &Outcome| outcome.cpu_ms;
        let in_close = |outcome: &Outcome| outcome.in_close_ms;
        let stored_back = |outcome: &Outcome| outcome.stored_back_ms;
        let ratios = Ratios {
            extra_background_vs_one: extra(&background),
            extra_workers_vs_one: extra(&workers),
            close_background_vs_never_stored: vs_never(Background)?.0,
            close_workers_vs_never_stored: vs_never(Workers)?.0,
            close_background_vs_never_stored_spread: vs_never(Background)?.1,
            starter_background_vs_one: vs_one(Background, Outcome::starter_ms)?.0,
            starter_background_vs_one_spread: vs_one(Background, Outcome::starter_ms)?.1,
            starter_workers_vs_one: vs_one(Workers, Outcome::starter_ms)?.0,
            starter_workers_vs_one_spread: vs_one(Workers, Outcome::starter_ms)?.1,
            starter_one_vs_alone: over(policy(OneAtATime), Kind::StarterAlone, Outcome::starter_ms)?.0,
            starter_start_background_vs_one: vs_one(Background, start)?.0,
            starter_start_background_vs_one_spread: vs_one(Background, start)?.1,
            starter_work_background_vs_one: vs_one(Background, work)?.0,
            starter_work_background_vs_one_spread: vs_one(Background, work)?.1,
            in_close_background_vs_one: vs_one(Background, in_close)?.0,
            in_close_workers_vs_one: vs_one(Workers, in_close)?.0,
            cpu_runs_vs_one: vs_one(Runs, cpu)?.0,
            cpu_background_vs_one: vs_one(Background, cpu)?.0,
            cpu_workers_vs_one: vs_one(Workers, cpu)?.0,
            stored_back_background_vs_one: vs_one(Background, stored_back)?.0,
            stored_back_workers_vs_one: vs_one(Workers, stored_back)?.0,
            close_vs_kernel_zram: kernel_zram
                .as_ref()
                .map(|zram| round(background.close_ms_p50 / zram.kill_ms)),
            kernel_zram_vs_never_swapped: kernel_zram
                .as_ref()
                .map(|zram| round(zram.kill_ms / zram.kill_never_swapped_ms)),
        };
        let aged =
            |times: &Vec<Vec<f64>>| times.iter().filter_map(|times| median(times).map(round)).collect();
        Some(Self {
            bench: "release",
            owners: trial.owners,
            owner_bytes: trial.owner.get(),
            base_page_bytes: trial.base.bytes() as u64,
            stored_percent: trial.stored_percent,
            aging: Aging {
                stored_percent: AGING_PERCENT,
                close_ms: measured.aging.iter().map(|(policy, times)| (policy.name(), aged(times))).collect(),
            },
            policies: ReleasePolicy::ALL
                .map(ReleasePolicy::name)
                .into_iter()
                .zip([one, runs, background, workers])
                .collect(),
            never_stored: NeverStored { close_ms_p50: never_ms, close_ms_spread: never_spread },
            starter_alone: StarterAlone { start_ms, start_ms_spread, work_ms, work_ms_spread },
            kernel_zram_reason: reason(&[zram, never]),
            kernel_zram,
            run_kill9_ms: run_kill9.map(|(ms, _)| ms),
            run_kill9_ms_spread: run_kill9.map(|(_, spread)| spread),
            run_kill9_stored_percent: middle_of(&run.killed, |killed| killed.stored_percent)
                .map(|(percent, _)| percent),
            run_kill9_reason: reason(&[run]),
            ratios,
            store: StoreFigures::of(&measured.stored)?,
            rounds,
            quick,
            machine,
            quiet,
        })
    }
}

#[cfg(test)]
#[path = "report_test.rs"]
mod tests;
