//! The figures of one side, over the rounds that count. Pure.
//!
//! Every figure is a median, every spread the least and the greatest of the rounds.

use serde::Serialize;

use super::killed::Killed;
use super::store::Stored;
use super::trial::Outcome;
use crate::measure::histogram::Percentiles;
use crate::measure::stats::{Measured, median, median_percentiles, middle, middle_of, round};

/// One policy.
#[derive(Serialize)]
pub struct Figures {
    pub close_ms_p50: Measured,
    pub close_ms_p99: Measured,
    /// What closing takes longer than for owners that have nothing stored, in the same round.
    pub extra_ms: Measured,
    /// Until the last frame of the last owner was back, by the engine's ledger.
    pub frames_back_ms: Measured,
    /// Until the last stored page of the last owner was freed.
    pub stored_back_ms: Measured,
    pub starter_start_ms: Measured,
    pub starter_work_ms: Measured,
    /// Of the release, in all threads.
    pub cpu_ms: Measured,
    /// Of that, what was done before a close returned: what the owners waited for, without the noise of their scheduling.
    pub in_close_ms: Measured,
    pub lock_wait_ms: Measured,
    pub locks: Measured,
    pub peak_queued_bytes: u64,
    pub queued: u64,
    pub inline: u64,
    /// Freed before the owner's last frame was back.
    pub early: u64,
    /// What the owners had in memory when they were told to close.
    pub resident_bytes: u64,
}

#[derive(Serialize)]
pub struct NeverStored {
    pub close_ms_p50: Measured,
    pub resident_bytes: u64,
}

#[derive(Serialize)]
pub struct StarterAlone {
    pub start_ms: Measured,
    pub work_ms: Measured,
}

/// The kernel's side. Its processes are killed beside the same starter, on plain memory.
#[derive(Serialize)]
pub struct KernelZram {
    /// Until a process is reaped.
    pub kill_ms: Measured,
    /// The same resident pages, and nothing swapped.
    pub kill_never_swapped_ms: Measured,
    /// Until the memory and the slots of the last one are back.
    pub back_ms: Measured,
    pub stored_percent: f64,
    pub starter_start_ms: Measured,
    pub starter_work_ms: Measured,
}

#[derive(Serialize)]
pub struct StoreFigures {
    /// By one thread.
    pub compress_gib_s: Measured,
    /// By its processor time.
    pub compress_cpu_gib_s: Measured,
    /// Of a page of 64 KiB in compressed memory, until all of it has been touched. The spreads are those of the medians.
    pub fetch_us: Fetch,
    /// Until its first byte was there.
    pub fetch_first_us: Fetch,
    pub fetch_in_thread_us: Fetch,
    pub fetch_first_in_thread_us: Fetch,
    /// All memory that stands behind the store, beyond what it holds.
    pub waste_percent: Measured,
}

/// One way to fetch a page.
#[derive(Serialize)]
pub struct Fetch {
    pub p50: Measured,
    pub p99: f64,
    pub p999: f64,
}

/// Of several times in each round: of all, with the least and the greatest of the rounds' own.
struct Several {
    p50: Measured,
    p99: Measured,
}

/// The 99th percentile. None of nothing.
fn p99(times: &[f64]) -> Option<f64> {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get((sorted.len() * 99).div_ceil(100).max(1) - 1).copied()
}

fn several<T>(rounds: &[T], of: impl Fn(&T) -> &[f64]) -> Option<Several> {
    let all: Vec<f64> = rounds.iter().flat_map(|round| of(round).iter().copied()).collect();
    let measured = |figure: fn(&[f64]) -> Option<f64>| {
        let of_rounds = middle(&rounds.iter().filter_map(|round| figure(of(round))).collect::<Vec<_>>())?;
        Some(Measured { median: round(figure(&all)?), ..of_rounds })
    };
    Some(Several { p50: measured(median)?, p99: measured(p99)? })
}

pub fn gone_ms(killed: &[Killed]) -> Option<Measured> {
    several(killed, |killed| &killed.gone_ms).map(|several| several.p50)
}

impl NeverStored {
    pub fn of(outcomes: &[Outcome]) -> Option<Self> {
        let close = several(outcomes, |outcome| &outcome.close_ms)?;
        Some(Self {
            close_ms_p50: close.p50,
            resident_bytes: middle_of(outcomes, |outcome| outcome.resident_bytes as f64)?.median as u64,
        })
    }
}

impl KernelZram {
    pub fn of(zram: &[Killed], never: &[Killed]) -> Option<Self> {
        Some(Self {
            kill_ms: gone_ms(zram)?,
            kill_never_swapped_ms: gone_ms(never)?,
            back_ms: middle_of(zram, |killed| killed.back_ms)?,
            stored_percent: middle_of(zram, |killed| killed.stored_percent)?.median,
            starter_start_ms: middle_of(zram, |killed| killed.starter_start_ms)?,
            starter_work_ms: middle_of(zram, |killed| killed.starter_work_ms)?,
        })
    }
}

impl StoreFigures {
    pub fn of(rounds: &[Stored]) -> Option<Self> {
        let fetch = |of: fn(&Stored) -> Percentiles| {
            let percentiles = median_percentiles(&rounds.iter().map(of).collect::<Vec<_>>())?;
            let p50 = middle_of(rounds, |stored| of(stored).p50)?;
            Some(Fetch { p50, p99: percentiles.p99, p999: percentiles.p999 })
        };
        Some(Self {
            compress_gib_s: middle_of(rounds, |stored| stored.compress_gib_s)?,
            compress_cpu_gib_s: middle_of(rounds, |stored| stored.compress_cpu_gib_s)?,
            fetch_us: fetch(|stored| stored.fetch_us)?,
            fetch_first_us: fetch(|stored| stored.fetch_first_us)?,
            fetch_in_thread_us: fetch(|stored| stored.fetch_in_thread_us)?,
            fetch_first_in_thread_us: fetch(|stored| stored.fetch_first_in_thread_us)?,
            waste_percent: middle_of(rounds, |stored| stored.waste_percent)?,
        })
    }
}

impl Figures {
    /// Of a policy's rounds, and those of owners that stored nothing.
    pub fn of(outcomes: &[Outcome], never: &[Outcome]) -> Option<Self> {
        let close = several(outcomes, |outcome| &outcome.close_ms)?;
        let rounds: Vec<_> = outcomes.iter().zip(never).collect();
        let most = |of: fn(&Outcome) -> u64| outcomes.iter().map(of).max().unwrap_or(0);
        Some(Self {
            close_ms_p50: close.p50,
            close_ms_p99: close.p99,
            extra_ms: middle_of(&rounds, |(outcome, never)| outcome.close_p50_ms() - never.close_p50_ms())?,
            frames_back_ms: middle_of(outcomes, |outcome| outcome.frames_back_ms)?,
            stored_back_ms: middle_of(outcomes, |outcome| outcome.stored_back_ms)?,
            starter_start_ms: middle_of(outcomes, |outcome| outcome.starter_start_ms)?,
            starter_work_ms: middle_of(outcomes, |outcome| outcome.starter_work_ms)?,
            cpu_ms: middle_of(outcomes, |outcome| outcome.cpu_ms)?,
            in_close_ms: middle_of(outcomes, |outcome| outcome.in_close_ms)?,
            lock_wait_ms: middle_of(outcomes, |outcome| outcome.lock_wait_ms)?,
            locks: middle_of(outcomes, |outcome| outcome.locks as f64)?,
            peak_queued_bytes: most(|outcome| outcome.peak_queued_bytes),
            queued: most(|outcome| outcome.queued),
            inline: most(|outcome| outcome.inline),
            early: most(|outcome| outcome.early),
            resident_bytes: middle_of(outcomes, |outcome| outcome.resident_bytes as f64)?.median as u64,
        })
    }
}
