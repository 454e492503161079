//! The figures as they are printed in JSON, whose keys other tools read. Pure.
//!
//! Every figure is a median over the rounds that count, every spread the least and the greatest of them. A side that could not
//! run is null and has a reason.

use std::collections::BTreeMap;

use pagoda::ReleasePolicy;
use serde::Serialize;

use super::super::machine::Machine;
use super::super::stats::{median, middle_of, round};
use super::figures::{Figures, KernelZram, NeverStored, StarterAlone, StoreFigures, close_ms, gone_ms};
use super::killed::How;
use super::quiet::Quiet;
use super::trial::{Kind, Trial};
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

/// Of medians.
#[derive(Serialize)]
pub struct Ratios {
    pub extra_background_vs_one: Option<f64>,
    pub extra_workers_vs_one: Option<f64>,
    pub close_background_vs_never_stored: f64,
    pub close_workers_vs_never_stored: f64,
    /// Start and work together.
    pub starter_background_vs_one: f64,
    pub starter_workers_vs_one: f64,
    pub starter_one_vs_alone: f64,
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
        let ratio = |pick: fn(&Figures) -> f64, of: &Figures| round(pick(of) / pick(&one));
        let ratios = Ratios {
            extra_background_vs_one: extra(&background),
            extra_workers_vs_one: extra(&workers),
            close_background_vs_never_stored: round(background.close_ms_p50 / never_ms),
            close_workers_vs_never_stored: round(workers.close_ms_p50 / never_ms),
            starter_background_vs_one: ratio(Figures::starter_ms, &background),
            starter_workers_vs_one: ratio(Figures::starter_ms, &workers),
            starter_one_vs_alone: round(one.starter_ms() / (start_ms + work_ms)),
            in_close_background_vs_one: ratio(|figures| figures.in_close_ms, &background),
            in_close_workers_vs_one: ratio(|figures| figures.in_close_ms, &workers),
            cpu_runs_vs_one: ratio(|figures| figures.cpu_ms, &runs),
            cpu_background_vs_one: ratio(|figures| figures.cpu_ms, &background),
            cpu_workers_vs_one: ratio(|figures| figures.cpu_ms, &workers),
            stored_back_background_vs_one: ratio(|figures| figures.stored_back_ms, &background),
            stored_back_workers_vs_one: ratio(|figures| figures.stored_back_ms, &workers),
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
