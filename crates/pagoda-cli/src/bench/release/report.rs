//! The figures as they are printed: JSON whose keys other tools read, and a table for people.
//!
//! Every figure is a median over the rounds that count, every spread the least and the greatest of them.

use std::collections::BTreeMap;
use std::fs;

use comfy_table::{CellAlignment, Table};
use pagoda::ReleasePolicy;
use pagoda_core::size::Bytes;
use serde::Serialize;

use super::super::machine::Machine;
use super::super::report::round;
use super::super::stats::{median, spread};
use super::trial::{Kind, Outcome, Trial};
use super::{AGING_PERCENT, STORED_PERCENT};

/// All that was found out.
#[derive(Serialize)]
pub struct Report {
    bench: &'static str,
    owners: usize,
    owner_bytes: u64,
    base_page_bytes: u64,
    stored_percent: f64,
    aging: Aging,
    policies: BTreeMap<&'static str, Figures>,
    never_stored: NeverStored,
    starter_alone: StarterAlone,
    ratios: Ratios,
    rounds: usize,
    quick: bool,
    machine: Machine,
    quiet: Quiet,
}

/// One owner that closes alone, the longer in the background the more of it stored.
#[derive(Serialize)]
struct Aging {
    stored_percent: [f64; AGING_PERCENT.len()],
    close_ms: BTreeMap<&'static str, Vec<f64>>,
}

/// One policy.
#[derive(Serialize)]
struct Figures {
    close_ms_p50: f64,
    close_ms_p99: f64,
    /// Of the rounds' medians.
    close_ms_spread: [f64; 2],
    /// What closing takes longer than for owners that have nothing stored.
    extra_ms: f64,
    /// Until the last frame of the last owner was back, by the engine's ledger.
    frames_back_ms: f64,
    frames_back_ms_spread: [f64; 2],
    /// Until the last stored page of the last owner was freed.
    stored_back_ms: f64,
    stored_back_ms_spread: [f64; 2],
    starter_start_ms: f64,
    starter_start_ms_spread: [f64; 2],
    starter_work_ms: f64,
    starter_work_ms_spread: [f64; 2],
    /// Of the release, in all threads.
    cpu_ms: f64,
    cpu_ms_spread: [f64; 2],
    /// Of that, what was done before a close returned: what the owners waited for, without the noise of their scheduling.
    in_close_ms: f64,
    lock_wait_ms: f64,
    locks: f64,
    peak_queued_bytes: u64,
    queued: u64,
    inline: u64,
    /// Freed before the owner's last frame was back.
    early: u64,
}

#[derive(Serialize)]
struct NeverStored {
    close_ms_p50: f64,
    close_ms_spread: [f64; 2],
}

#[derive(Serialize)]
struct StarterAlone {
    start_ms: f64,
    start_ms_spread: [f64; 2],
    work_ms: f64,
    work_ms_spread: [f64; 2],
}

/// Of medians.
#[derive(Serialize)]
struct Ratios {
    extra_background_vs_one: Option<f64>,
    extra_workers_vs_one: Option<f64>,
    close_background_vs_never_stored: f64,
    close_workers_vs_never_stored: f64,
    /// Start and work together.
    starter_background_vs_one: f64,
    starter_workers_vs_one: f64,
    starter_one_vs_alone: f64,
    in_close_background_vs_one: f64,
    in_close_workers_vs_one: f64,
    cpu_runs_vs_one: f64,
    cpu_background_vs_one: f64,
    cpu_workers_vs_one: f64,
    stored_back_background_vs_one: f64,
    stored_back_workers_vs_one: f64,
}

/// How quiet the machine was while it was measured.
#[derive(Serialize)]
pub struct Quiet {
    /// Processor time of all others, in percent of all processors.
    others_busy_percent: f64,
    /// The load average of a minute when it began and when it ended.
    load_average: [f64; 2],
    #[serde(skip)]
    begun: Times,
}

/// Processor time since the machine and this program were started, in ticks.
#[derive(Clone, Copy, Default)]
struct Times {
    all: f64,
    busy: f64,
    own: f64,
}

impl Times {
    fn now() -> Self {
        let numbers =
            |text: &str| text.split_whitespace().filter_map(|word| word.parse().ok()).collect::<Vec<f64>>();
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let all = numbers(stat.lines().next().unwrap_or_default());
        // The name may hold anything and ends at the last parenthesis; user and system time are the 14th and 15th field.
        let own = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let own = own
            .rsplit_once(')')
            .map(|(_, rest)| rest.split_whitespace().skip(11).take(2).collect::<Vec<_>>().join(" "));
        let idle: f64 = all.iter().skip(3).take(2).sum();
        // Guest time is part of user time.
        let sum: f64 = all.iter().take(8).sum();
        Self { all: sum, busy: sum - idle, own: numbers(&own.unwrap_or_default()).iter().sum() }
    }
}

fn load_average() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0.0)
}

impl Quiet {
    pub fn begin() -> Self {
        Self { others_busy_percent: 0.0, load_average: [load_average(); 2], begun: Times::now() }
    }
    pub fn end(mut self) -> Self {
        let now = Times::now();
        let others = (now.busy - self.begun.busy) - (now.own - self.begun.own);
        self.others_busy_percent = round(100.0 * others.max(0.0) / (now.all - self.begun.all).max(1.0));
        self.load_average[1] = load_average();
        self
    }
}

fn middle(outcomes: &[Outcome], of: impl Fn(&Outcome) -> f64) -> Option<(f64, [f64; 2])> {
    let values: Vec<f64> = outcomes.iter().map(of).collect();
    Some((round(median(&values)?), spread(&values)?.map(round)))
}

fn close_ms(outcomes: &[Outcome]) -> Option<(f64, f64, [f64; 2])> {
    let mut all: Vec<f64> = outcomes.iter().flat_map(|outcome| outcome.close_ms.iter().copied()).collect();
    all.sort_by(f64::total_cmp);
    let p99 = *all.get((all.len() * 99).div_ceil(100).max(1) - 1)?;
    let of_rounds: Vec<f64> = outcomes.iter().filter_map(|outcome| median(&outcome.close_ms)).collect();
    Some((round(median(&all)?), round(p99), spread(&of_rounds)?.map(round)))
}

impl Figures {
    fn of(outcomes: &[Outcome], never_ms: f64) -> Option<Self> {
        let (close_ms_p50, close_ms_p99, close_ms_spread) = close_ms(outcomes)?;
        let (frames_back_ms, frames_back_ms_spread) = middle(outcomes, |outcome| outcome.frames_back_ms)?;
        let (stored_back_ms, stored_back_ms_spread) = middle(outcomes, |outcome| outcome.stored_back_ms)?;
        let (starter_start_ms, starter_start_ms_spread) =
            middle(outcomes, |outcome| outcome.starter_start_ms)?;
        let (starter_work_ms, starter_work_ms_spread) = middle(outcomes, |outcome| outcome.starter_work_ms)?;
        let (cpu_ms, cpu_ms_spread) = middle(outcomes, |outcome| outcome.cpu_ms)?;
        let most = |of: fn(&Outcome) -> u64| outcomes.iter().map(of).max().unwrap_or(0);
        Some(Self {
            close_ms_p50,
            close_ms_p99,
            close_ms_spread,
            extra_ms: round(close_ms_p50 - never_ms),
            frames_back_ms,
            frames_back_ms_spread,
            stored_back_ms,
            stored_back_ms_spread,
            starter_start_ms,
            starter_start_ms_spread,
            starter_work_ms,
            starter_work_ms_spread,
            cpu_ms,
            cpu_ms_spread,
            in_close_ms: middle(outcomes, |outcome| outcome.in_close_ms)?.0,
            lock_wait_ms: middle(outcomes, |outcome| outcome.lock_wait_ms)?.0,
            locks: middle(outcomes, |outcome| outcome.locks as f64)?.0,
            peak_queued_bytes: most(|outcome| outcome.peak_queued_bytes),
            queued: most(|outcome| outcome.queued),
            inline: most(|outcome| outcome.inline),
            early: most(|outcome| outcome.early),
        })
    }
    fn starter_ms(&self) -> f64 {
        self.starter_start_ms + self.starter_work_ms
    }
}

impl Report {
    /// Of what was measured. None if that is nothing.
    pub fn new(
        trial: Trial,
        rounds: usize,
        quick: bool,
        outcomes: &[(Kind, Vec<Outcome>)],
        aging: &[(ReleasePolicy, Vec<Vec<f64>>)],
        quiet: Quiet,
        machine: Machine,
    ) -> Option<Self> {
        let of = |wanted: Kind| Some(&*outcomes.iter().find(|(kind, _)| *kind == wanted)?.1);
        let (never_ms, _, never_spread) = close_ms(of(Kind::NeverStored)?)?;
        let figures = |policy| Figures::of(of(Kind::Policy(policy))?, never_ms);
        let [one, runs, background, workers] = ReleasePolicy::ALL.map(figures);
        let (one, runs, background, workers) = (one?, runs?, background?, workers?);
        let alone = of(Kind::StarterAlone)?;
        let (start_ms, start_ms_spread) = middle(alone, |outcome| outcome.starter_start_ms)?;
        let (work_ms, work_ms_spread) = middle(alone, |outcome| outcome.starter_work_ms)?;
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
        };
        let aged =
            |times: &Vec<Vec<f64>>| times.iter().filter_map(|times| median(times).map(round)).collect();
        Some(Self {
            bench: "release",
            owners: trial.owners,
            owner_bytes: trial.owner.get(),
            base_page_bytes: trial.base.bytes() as u64,
            stored_percent: STORED_PERCENT,
            aging: Aging {
                stored_percent: AGING_PERCENT,
                close_ms: aging.iter().map(|(policy, times)| (policy.name(), aged(times))).collect(),
            },
            policies: ReleasePolicy::ALL
                .map(ReleasePolicy::name)
                .into_iter()
                .zip([one, runs, background, workers])
                .collect(),
            never_stored: NeverStored { close_ms_p50: never_ms, close_ms_spread: never_spread },
            starter_alone: StarterAlone { start_ms, start_ms_spread, work_ms, work_ms_spread },
            ratios,
            rounds,
            quick,
            machine,
            quiet,
        })
    }

    /// For people.
    pub fn table(&self) -> String {
        let mut table = Table::new();
        table.load_preset(comfy_table::presets::ASCII_MARKDOWN);
        table.set_header([
            "policy",
            "close ms",
            "p99",
            "extra",
            "frames back",
            "stored back",
            "starter",
            "work",
            "CPU ms",
            "in close",
            "lock wait",
            "queued",
            "inline",
            "early",
        ]);
        let range = |value: f64, [least, most]: [f64; 2]| format!("{value:.1} ({least:.1}-{most:.1})");
        for name in ReleasePolicy::ALL.map(ReleasePolicy::name) {
            let figures = &self.policies[name];
            table.add_row([
                name.to_owned(),
                range(figures.close_ms_p50, figures.close_ms_spread),
                format!("{:.1}", figures.close_ms_p99),
                format!("{:.1}", figures.extra_ms),
                range(figures.frames_back_ms, figures.frames_back_ms_spread),
                range(figures.stored_back_ms, figures.stored_back_ms_spread),
                range(figures.starter_start_ms, figures.starter_start_ms_spread),
                range(figures.starter_work_ms, figures.starter_work_ms_spread),
                range(figures.cpu_ms, figures.cpu_ms_spread),
                format!("{:.2}", figures.in_close_ms),
                format!("{:.2}", figures.lock_wait_ms),
                figures.queued.to_string(),
                figures.inline.to_string(),
                figures.early.to_string(),
            ]);
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let mut aging = Table::new();
        aging.load_preset(comfy_table::presets::ASCII_MARKDOWN);
        let header = self.aging.stored_percent.map(|percent| format!("{percent} % stored"));
        aging.set_header(["one owner closes, ms".to_owned()].into_iter().chain(header));
        for name in ReleasePolicy::ALL.map(ReleasePolicy::name) {
            let times = self.aging.close_ms[name].iter().map(|time| format!("{time:.1}"));
            aging.add_row([name.to_owned()].into_iter().chain(times));
        }
        let (never, alone) = (&self.never_stored, &self.starter_alone);
        format!(
            "{}\n\n{} owners of {} in base pages of {}, {} % stored, close at once; median (least-greatest) of {} rounds\n\n{table}\n\n\
             nothing stored: close {}; starter alone: {}, work {}\n\n{aging}\n\n\
             others used {:.0} % of the processors, load average {:.1} to {:.1}\n",
            self.machine,
            self.owners,
            Bytes::new(self.owner_bytes),
            Bytes::new(self.base_page_bytes),
            self.stored_percent,
            self.rounds,
            range(never.close_ms_p50, never.close_ms_spread),
            range(alone.start_ms, alone.start_ms_spread),
            range(alone.work_ms, alone.work_ms_spread),
            self.quiet.others_busy_percent,
            self.quiet.load_average[0],
            self.quiet.load_average[1],
        )
    }
}

#[cfg(test)]
#[path = "report_test.rs"]
mod tests;
