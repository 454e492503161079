//! The figures as they are printed in JSON, whose keys other tools read. Pure.
//!
//! Every figure is a median over the rounds that count, every spread the least and the greatest of them. A side that could not
//! run is null and has a reason.

use std::collections::BTreeMap;

use pagoda::ReleasePolicy::{self, Background, OneAtATime, Runs, Workers};
use serde::Serialize;
use serde_json::{Value, json};

use super::figures::{Figures, KernelZram, NeverStored, StarterAlone, StoreFigures, gone_ms};
use super::killed::How;
use super::quiet::Quiet;
use super::trial::{Kind, Outcome, Trial};
use super::{AGING_PERCENT, Kills, Rounds};
use crate::measure::machine::Machine;
use crate::measure::stats::{Measured, middle, middle_of, round};

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
    pub run_kill9_ms: Option<Measured>,
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
    pub close_ms: BTreeMap<&'static str, Vec<Measured>>,
}

/// By key; null where a side did not run.
#[derive(Default, Serialize)]
#[serde(transparent)]
pub struct Ratios(BTreeMap<String, Value>);

impl Ratios {
    fn add(&mut self, key: &str, ratio: Option<Measured>) {
        self.0.insert(key.to_owned(), json!(ratio));
    }
    /// One that is of no round.
    fn add_of_middles(&mut self, key: &str, ratio: Option<f64>) {
        self.0.insert(key.to_owned(), json!(ratio));
    }
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
        measured: &Rounds,
        quiet: Quiet,
        machine: Machine,
    ) -> Option<Self> {
        let of = |wanted: Kind| Some(&*measured.outcomes.iter().find(|(kind, _)| *kind == wanted)?.1);
        let never_stored = of(Kind::NeverStored)?;
        let figures = |policy| Figures::of(of(Kind::Policy(policy))?, never_stored);
        let [one, runs, background, workers] = ReleasePolicy::ALL.map(figures);
        let (one, runs, background, workers) = (one?, runs?, background?, workers?);
        let alone = of(Kind::StarterAlone)?;
        let start_ms = middle_of(alone, |outcome| outcome.starter_start_ms)?;
        let work_ms = middle_of(alone, |outcome| outcome.starter_work_ms)?;
        let killed = |how: How| &measured.kills[how as usize];
        let [zram, never, run] = How::ALL.map(killed);
        let kernel_zram = KernelZram::of(&zram.killed, &never.killed);
        // Where one at a time costs nothing extra there is nothing to compare with.
        let extra = |of: &Figures| {
            (one.extra_ms.median > 0.0).then(|| round(of.extra_ms.median / one.extra_ms.median))
        };
        let over = |wanted: Kind, base: Kind, pick: fn(&Outcome) -> f64| -> Option<Measured> {
            let rounds: Vec<_> = of(wanted)?.iter().zip(of(base)?).collect();
            middle_of(&rounds, |(wanted, base)| pick(wanted) / pick(base))
        };
        let (is_one, is_background) = (Kind::Policy(OneAtATime), Kind::Policy(Background));
        let mut ratios = Ratios::default();
        ratios.add_of_middles("extra_background_vs_one", extra(&background));
        ratios.add_of_middles("extra_workers_vs_one", extra(&workers));
        let starter_start: fn(&Outcome) -> f64 = |outcome| outcome.starter_start_ms;
        let starter_work: fn(&Outcome) -> f64 = |outcome| outcome.starter_work_ms;
        let in_close: fn(&Outcome) -> f64 = |outcome| outcome.in_close_ms;
        let cpu: fn(&Outcome) -> f64 = |outcome| outcome.cpu_ms;
        let stored_back: fn(&Outcome) -> f64 = |outcome| outcome.stored_back_ms;
        ratios.add("cpu_runs_vs_one", over(Kind::Policy(Runs), is_one, cpu));
        for policy in [Background, Workers] {
            let (name, kind) = (policy.name(), Kind::Policy(policy));
            ratios.add(
                &format!("close_{name}_vs_never_stored"),
                over(kind, Kind::NeverStored, Outcome::close_p50_ms),
            );
            for (figure, pick) in [
                ("starter", Outcome::starter_ms as fn(&Outcome) -> f64),
                ("starter_start", starter_start),
                ("starter_work", starter_work),
                ("in_close", in_close),
                ("cpu", cpu),
                ("stored_back", stored_back),
            ] {
                ratios.add(&format!("{figure}_{name}_vs_one"), over(kind, is_one, pick));
            }
        }
        ratios.add("starter_one_vs_alone", over(is_one, Kind::StarterAlone, Outcome::starter_ms));
        let closes = of(is_background)?;
        let vs_zram: Vec<_> = closes.iter().zip(&zram.killed).collect();
        ratios.add(
            "close_vs_kernel_zram",
            middle_of(&vs_zram, |(closed, killed)| closed.close_p50_ms() / killed.gone_p50_ms()),
        );
        let zram_vs_never: Vec<_> = zram.killed.iter().zip(&never.killed).collect();
        ratios.add(
            "kernel_zram_vs_never_swapped",
            middle_of(&zram_vs_never, |(zram, never)| zram.gone_p50_ms() / never.gone_p50_ms()),
        );
        let aged = |times: &[Vec<f64>]| times.iter().filter_map(|times| middle(times)).collect();
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
            never_stored: NeverStored::of(never_stored)?,
            starter_alone: StarterAlone { start_ms, work_ms },
            kernel_zram_reason: reason(&[zram, never]),
            kernel_zram,
            run_kill9_ms: gone_ms(&run.killed),
            run_kill9_stored_percent: middle_of(&run.killed, |killed| killed.stored_percent)
                .map(|percent| percent.median),
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
