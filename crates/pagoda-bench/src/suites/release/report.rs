//! The printed figures in JSON, whose keys other tools read. Pure.
//!
//! Every figure is a median over the rounds that count, every spread the least and the greatest of
//! them. A side that could not run is null and has a reason, never a made-up number.

use std::collections::BTreeMap;

use pagoda::ReleasePolicy::{self, Background, OneAtATime, Runs, Spans, Workers};
use serde_json::{Value, json};

use super::killed::{How, Killed};
use super::store::Stored;
use super::trial::{Kind, Outcome, Trial};
use super::unmapping::Unmapping;
use super::{AGING_PERCENT, Kills, Rounds};
use crate::measure::histogram::Percentiles;
use crate::measure::stats::{Measured, median, median_of, middle, middle_of, round};

/// The key of a figure, and its place in an outcome.
type Figure = (&'static str, fn(&Outcome) -> f64);

/// The 99th percentile. `None` of nothing.
fn p99(times: &[f64]) -> Option<f64> {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get((sorted.len() * 99).div_ceil(100).max(1) - 1).copied()
}

/// A figure of several times in each round: over all times, with the least and the greatest of the
/// rounds' own figures.
fn of_all<T>(rounds: &[T], times: fn(&T) -> &[f64], figure: fn(&[f64]) -> Option<f64>) -> Option<Measured> {
    let all: Vec<f64> = rounds.iter().flat_map(times).copied().collect();
    let of_rounds = middle(&rounds.iter().filter_map(|round| figure(times(round))).collect::<Vec<_>>())?;
    Some(Measured { median: round(figure(&all)?), ..of_rounds })
}

/// One figure over another of the same round.
fn over<A, B>(of: &[A], base: &[B], ratio: impl Fn(&A, &B) -> f64) -> Option<Measured> {
    middle_of(&of.iter().zip(base).collect::<Vec<_>>(), |(of, base)| ratio(of, base))
}

fn close_ms_p50(outcomes: &[Outcome]) -> Option<Measured> {
    of_all(outcomes, |outcome| &outcome.close_ms, median)
}

fn gone_ms(killed: &[Killed]) -> Option<Measured> {
    of_all(killed, |killed| &killed.gone_ms, median)
}

fn resident_bytes(outcomes: &[Outcome]) -> Option<u64> {
    median_of(outcomes, |outcome| outcome.resident_bytes as f64).map(|bytes| bytes as u64)
}

/// The closing time beyond that of owners with nothing stored, in the same round.
fn extra_ms(outcomes: &[Outcome], never: &[Outcome]) -> Option<Measured> {
    over(outcomes, never, |outcome, never| outcome.close_p50_ms() - never.close_p50_ms())
}

/// The figures of a policy, by its rounds and those of owners that stored nothing.
fn policy(outcomes: &[Outcome], never: &[Outcome]) -> Value {
    let most = |of: fn(&Outcome) -> u64| outcomes.iter().map(of).max().unwrap_or(0);
    let mut figures = json!({
        "close_ms_p50": close_ms_p50(outcomes),
        "close_ms_p99": of_all(outcomes, |outcome| &outcome.close_ms, p99),
        "extra_ms": extra_ms(outcomes, never),
        "peak_queued_bytes": most(|outcome| outcome.peak_queued_bytes),
        "queued": most(|outcome| outcome.queued),
        "inline": most(|outcome| outcome.inline),
        "early": most(|outcome| outcome.early),
        "resident_bytes": resident_bytes(outcomes),
    });
    let middles: [Figure; 8] = [
        ("frames_back_ms", |outcome| outcome.frames_back_ms),
        ("stored_back_ms", |outcome| outcome.stored_back_ms),
        ("starter_start_ms", |outcome| outcome.starter_start_ms),
        ("starter_work_ms", |outcome| outcome.starter_work_ms),
        ("cpu_ms", |outcome| outcome.cpu_ms),
        ("in_close_ms", |outcome| outcome.in_close_ms),
        ("lock_wait_ms", |outcome| outcome.lock_wait_ms),
        ("locks", |outcome| outcome.locks as f64),
    ];
    for (key, of) in middles {
        figures[key] = json!(middle_of(outcomes, of));
    }
    figures
}

/// The processes killed under the kernel, beside the same starter on plain memory. Null if one of
/// the two sides did not run.
fn kernel_zram(zram: &[Killed], never: &[Killed]) -> Option<Value> {
    Some(json!({
        "kill_ms": gone_ms(zram)?,
        "kill_never_swapped_ms": gone_ms(never)?,
        "back_ms": middle_of(zram, |killed| killed.back_ms),
        "stored_percent": stored_percent(zram),
        "starter_start_ms": middle_of(zram, |killed| killed.starter_start_ms),
        "starter_work_ms": middle_of(zram, |killed| killed.starter_work_ms),
    }))
}

fn stored_percent(killed: &[Killed]) -> Option<f64> {
    median_of(killed, |killed| killed.stored_percent).map(round)
}

fn store(rounds: &[Stored]) -> Value {
    let fetch = |of: fn(&Stored) -> Percentiles| {
        let of_rounds = |pick: fn(&Percentiles) -> f64| median_of(rounds, |stored| pick(&of(stored)));
        json!({
            "p50": middle_of(rounds, |stored| of(stored).p50), "p99": of_rounds(|us| us.p99), "p999": of_rounds(|us| us.p999),
        })
    };
    json!({
        "compress_gib_s": middle_of(rounds, |stored| stored.compress_gib_s),
        "compress_cpu_gib_s": middle_of(rounds, |stored| stored.compress_cpu_gib_s),
        "fetch_us": fetch(|stored| stored.fetch_us),
        "fetch_first_us": fetch(|stored| stored.fetch_first_us),
        "fetch_in_thread_us": fetch(|stored| stored.fetch_in_thread_us),
        "fetch_first_in_thread_us": fetch(|stored| stored.fetch_first_in_thread_us),
        "waste_percent": middle_of(rounds, |stored| stored.waste_percent),
    })
}

impl Rounds {
    fn of(&self, wanted: Kind) -> &[Outcome] {
        self.outcomes.iter().find(|(kind, _)| *kind == wanted).map_or(&[], |(_, outcomes)| outcomes)
    }

    /// The ratios by key; null where a side did not run.
    fn ratios(&self) -> Value {
        let one = self.of(Kind::Policy(OneAtATime));
        let never = self.of(Kind::NeverStored);
        let [zram, never_swapped, _] = self.kills.each_ref().map(|kills| kills.killed.as_slice());
        let cpu: fn(&Outcome) -> f64 = |outcome| outcome.cpu_ms;
        let of_one =
            |of: &[Outcome], pick: fn(&Outcome) -> f64| over(of, one, |of, one| pick(of) / pick(one));
        let mut ratios = json!({
            "cpu_runs_vs_one": of_one(self.of(Kind::Policy(Runs)), cpu),
            "starter_one_vs_alone": over(one, self.of(Kind::StarterAlone), |one, alone| {
                one.starter_ms() / alone.starter_ms()
            }),
            "close_vs_kernel_zram": over(self.of(Kind::Policy(Background)), zram, |closed, killed| {
                closed.close_p50_ms() / killed.gone_p50_ms()
            }),
            "kernel_zram_vs_never_swapped": over(zram, never_swapped, |zram, never| {
                zram.gone_p50_ms() / never.gone_p50_ms()
            }),
        });
        let figures: [Figure; 6] = [
            ("starter", Outcome::starter_ms),
            ("starter_start", |outcome| outcome.starter_start_ms),
            ("starter_work", |outcome| outcome.starter_work_ms),
            ("in_close", |outcome| outcome.in_close_ms),
            ("cpu", cpu),
            ("stored_back", |outcome| outcome.stored_back_ms),
        ];
        for policy in [Background, Workers, Spans] {
            let (name, outcomes) = (policy.name(), self.of(Kind::Policy(policy)));
            let close = over(outcomes, never, |of, never| of.close_p50_ms() / never.close_p50_ms());
            ratios[format!("close_{name}_vs_never_stored")] = json!(close);
            for (figure, pick) in figures {
                ratios[format!("{figure}_{name}_vs_one")] = json!(of_one(outcomes, pick));
            }
            // Over all rounds. Where one at a time costs nothing extra there is no ratio.
            let [of, one] = [outcomes, one].map(|of| extra_ms(of, never).map_or(0.0, f64::from));
            ratios[format!("extra_{name}_vs_one")] = json!((one > 0.0).then(|| round(of / one)));
        }
        ratios
    }

    /// All figures of `trial`.
    pub fn figures(&self, trial: Trial, rounds: usize) -> Value {
        let never = self.of(Kind::NeverStored);
        let alone = self.of(Kind::StarterAlone);
        let policies = ReleasePolicy::ALL.map(|of| (of.name(), policy(self.of(Kind::Policy(of)), never)));
        let aged = |times: &Vec<Vec<f64>>| times.iter().filter_map(|times| middle(times)).collect::<Vec<_>>();
        let aged: BTreeMap<_, _> =
            self.aging.iter().map(|(policy, times)| (policy.name(), aged(times))).collect();
        let [zram, never_swapped, run] = &self.kills;
        let unmapping = |of: fn(&Unmapping) -> f64| middle_of(&self.unmapping, of);
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let mut figures = json!({
            "owners": trial.owners,
            "owner_bytes": trial.owner.get(),
            "base_page_bytes": trial.base.bytes(),
            "stored_percent": trial.stored_percent,
            "rounds": rounds,
            "aging": { "stored_percent": AGING_PERCENT, "close_ms": aged },
            "policies": BTreeMap::from(policies),
            "never_stored": { "close_ms_p50": close_ms_p50(never), "resident_bytes": resident_bytes(never) },
            "starter_alone": {
                "start_ms": middle_of(alone, |outcome| outcome.starter_start_ms),
                "work_ms": middle_of(alone, |outcome| outcome.starter_work_ms),
            },
            "processors": processors,
            "layouts": self.layouts.figures(),
            "longest_fault_wait_beside_munmap_us": unmapping(|of| of.longest_beside_us),
            "longest_fault_wait_alone_us": unmapping(|of| of.longest_alone_us),
            "munmap_ms": unmapping(|of| of.unmapped_ms),
            "exit_spilled_ms": unmapping(|of| of.exit_ms),
            "kernel_zram": kernel_zram(&zram.killed, &never_swapped.killed),
            "run_kill9_ms": gone_ms(&run.killed),
            "run_kill9_stored_percent": stored_percent(&run.killed),
            "ratios": self.ratios(),
            "store": store(&self.stored),
            "quiet": self.quiet,
        });
        let reason = |kills: [&Kills; 2]| kills.into_iter().find_map(|kills| kills.reason.clone());
        let reasons = [
            ("kernel_zram_reason", reason([zram, never_swapped])),
            ("run_kill9_reason", reason([run; 2])),
            ("exit_spilled_reason", self.unmapping_reason.clone()),
        ];
        for (key, reason) in reasons {
            if let Some(reason) = reason {
                figures[key] = reason.into();
            }
        }
        figures
    }

    /// Whether `pagoda run` could not run.
    pub fn failed(&self) -> bool {
        self.kills[How::PagodaRun as usize].reason.is_some()
    }
}

#[cfg(test)]
#[path = "report_test.rs"]
mod tests;
