//! The figures of one side, over the rounds that count. Pure.
//!
//! Every figure is a median, every spread the least and the greatest of the rounds.

use serde::Serialize;

use super::killed::Killed;
use super::store::Stored;
use super::trial::Outcome;
use crate::measure::histogram::Percentiles;
use crate::measure::stats::{median, median_percentiles, middle_of, round, spread};

/// One policy.
#[derive(Serialize)]
pub struct Figures {
    pub close_ms_p50: f64,
    pub close_ms_p99: f64,
    /// Of each round's own.
    pub close_ms_p99_spread: [f64; 2],
    /// Of the rounds' medians.
    pub close_ms_spread: [f64; 2],
    /// What closing takes longer than for owners that have nothing stored, in the same round.
    pub extra_ms: f64,
    pub extra_ms_spread: [f64; 2],
    /// Until the last frame of the last owner was back, by the engine's ledger.
    pub frames_back_ms: f64,
    pub frames_back_ms_spread: [f64; 2],
    /// Until the last stored page of the last owner was freed.
    pub stored_back_ms: f64,
    pub stored_back_ms_spread: [f64; 2],
    pub starter_start_ms: f64,
    pub starter_start_ms_spread: [f64; 2],
    pub starter_work_ms: f64,
    pub starter_work_ms_spread: [f64; 2],
    /// Of the release, in all threads.
    pub cpu_ms: f64,
    pub cpu_ms_spread: [f64; 2],
    /// Of that, what was done before a close returned: what the owners waited for, without the noise of their scheduling.
    pub in_close_ms: f64,
    pub in_close_ms_spread: [f64; 2],
    pub lock_wait_ms: f64,
    pub lock_wait_ms_spread: [f64; 2],
    pub locks: f64,
    pub locks_spread: [f64; 2],
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
    pub close_ms_p50: f64,
    pub close_ms_spread: [f64; 2],
    pub resident_bytes: u64,
}

#[derive(Serialize)]
pub struct StarterAlone {
    pub start_ms: f64,
    pub start_ms_spread: [f64; 2],
    pub work_ms: f64,
    pub work_ms_spread: [f64; 2],
}

/// The kernel's side. Its processes are killed beside the same starter, on plain memory.
#[derive(Serialize)]
pub struct KernelZram {
    /// Until a process is reaped.
    pub kill_ms: f64,
    pub kill_ms_spread: [f64; 2],
    /// The same resident pages, and nothing swapped.
    pub kill_never_swapped_ms: f64,
    pub kill_never_swapped_ms_spread: [f64; 2],
    /// Until the memory and the slots of the last one are back.
    pub back_ms: f64,
    pub back_ms_spread: [f64; 2],
    pub stored_percent: f64,
    pub starter_start_ms: f64,
    pub starter_start_ms_spread: [f64; 2],
    pub starter_work_ms: f64,
    pub starter_work_ms_spread: [f64; 2],
}

#[derive(Serialize)]
pub struct StoreFigures {
    /// By one thread.
    pub compress_gib_s: f64,
    pub compress_gib_s_spread: [f64; 2],
    /// By its processor time.
    pub compress_cpu_gib_s: f64,
    pub compress_cpu_gib_s_spread: [f64; 2],
    /// Of a page of 64 KiB in compressed memory, until all of it has been touched. The spreads are those of the medians.
    pub fetch_us: Percentiles,
    pub fetch_us_spread: [f64; 2],
    /// Until its first byte was there.
    pub fetch_first_us: Percentiles,
    pub fetch_first_us_spread: [f64; 2],
    pub fetch_in_thread_us: Percentiles,
    pub fetch_in_thread_us_spread: [f64; 2],
    pub fetch_first_in_thread_us: Percentiles,
    pub fetch_first_in_thread_us_spread: [f64; 2],
    /// All memory that stands behind the store, beyond what it holds.
    pub waste_percent: f64,
    pub waste_percent_spread: [f64; 2],
}

/// Of several times in each round.
struct Several {
    p50: f64,
    p99: f64,
    /// Of the rounds' medians, and of their 99th percentiles.
    spread: [f64; 2],
    p99_spread: [f64; 2],
}

/// The 99th percentile. None of nothing.
fn p99(times: &[f64]) -> Option<f64> {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get((sorted.len() * 99).div_ceil(100).max(1) - 1).copied()
}

fn several<T>(rounds: &[T], of: impl Fn(&T) -> &[f64]) -> Option<Several> {
    let all: Vec<f64> = rounds.iter().flat_map(|round| of(round).iter().copied()).collect();
    let of_rounds = |figure: fn(&[f64]) -> Option<f64>| {
        spread(&rounds.iter().filter_map(|round| figure(of(round))).collect::<Vec<_>>())
    };
    Some(Several {
        p50: round(median(&all)?),
        p99: round(p99(&all)?),
        spread: of_rounds(median)?.map(round),
        p99_spread: of_rounds(p99)?.map(round),
    })
}

pub fn gone_ms(killed: &[Killed]) -> Option<(f64, [f64; 2])> {
    several(killed, |killed| &killed.gone_ms).map(|several| (several.p50, several.spread))
}

impl NeverStored {
    pub fn of(outcomes: &[Outcome]) -> Option<Self> {
        let close = several(outcomes, |outcome| &outcome.close_ms)?;
        Some(Self {
            close_ms_p50: close.p50,
            close_ms_spread: close.spread,
            resident_bytes: middle_of(outcomes, |outcome| outcome.resident_bytes as f64)?.0 as u64,
        })
    }
}

impl KernelZram {
    pub fn of(zram: &[Killed], never: &[Killed]) -> Option<Self> {
        let (kill_ms, kill_ms_spread) = gone_ms(zram)?;
        let (kill_never_swapped_ms, kill_never_swapped_ms_spread) = gone_ms(never)?;
        let (back_ms, back_ms_spread) = middle_of(zram, |killed| killed.back_ms)?;
        let (starter_start_ms, starter_start_ms_spread) = middle_of(zram, |killed| killed.starter_start_ms)?;
        let (starter_work_ms, starter_work_ms_spread) = middle_of(zram, |killed| killed.starter_work_ms)?;
        Some(Self {
            kill_ms,
            kill_ms_spread,
            kill_never_swapped_ms,
            kill_never_swapped_ms_spread,
            back_ms,
            back_ms_spread,
            stored_percent: middle_of(zram, |killed| killed.stored_percent)?.0,
            starter_start_ms,
            starter_start_ms_spread,
            starter_work_ms,
            starter_work_ms_spread,
        })
    }
}

impl StoreFigures {
    pub fn of(rounds: &[Stored]) -> Option<Self> {
        let (compress_gib_s, compress_gib_s_spread) = middle_of(rounds, |stored| stored.compress_gib_s)?;
        let (compress_cpu_gib_s, compress_cpu_gib_s_spread) =
            middle_of(rounds, |stored| stored.compress_cpu_gib_s)?;
        let (waste_percent, waste_percent_spread) = middle_of(rounds, |stored| stored.waste_percent)?;
        let fetch = |of: fn(&Stored) -> Percentiles| {
            let percentiles = median_percentiles(&rounds.iter().map(of).collect::<Vec<_>>())?;
            Some((percentiles, middle_of(rounds, |stored| of(stored).p50)?.1))
        };
        let (fetch_us, fetch_us_spread) = fetch(|stored| stored.fetch_us)?;
        let (fetch_first_us, fetch_first_us_spread) = fetch(|stored| stored.fetch_first_us)?;
        let (fetch_in_thread_us, fetch_in_thread_us_spread) = fetch(|stored| stored.fetch_in_thread_us)?;
        let (fetch_first_in_thread_us, fetch_first_in_thread_us_spread) =
            fetch(|stored| stored.fetch_first_in_thread_us)?;
        Some(Self {
            compress_gib_s,
            compress_gib_s_spread,
            compress_cpu_gib_s,
            compress_cpu_gib_s_spread,
            fetch_us,
            fetch_us_spread,
            fetch_first_us,
            fetch_first_us_spread,
            fetch_in_thread_us,
            fetch_in_thread_us_spread,
            fetch_first_in_thread_us,
            fetch_first_in_thread_us_spread,
            waste_percent,
            waste_percent_spread,
        })
    }
}

impl Figures {
    /// Of a policy's rounds, and those of owners that stored nothing.
    pub fn of(outcomes: &[Outcome], never: &[Outcome]) -> Option<Self> {
        let close = several(outcomes, |outcome| &outcome.close_ms)?;
        let rounds: Vec<_> = outcomes.iter().zip(never).collect();
        let (extra_ms, extra_ms_spread) =
            middle_of(&rounds, |(outcome, never)| outcome.close_p50_ms() - never.close_p50_ms())?;
        let (frames_back_ms, frames_back_ms_spread) = middle_of(outcomes, |outcome| outcome.frames_back_ms)?;
        let (stored_back_ms, stored_back_ms_spread) = middle_of(outcomes, |outcome| outcome.stored_back_ms)?;
        let (starter_start_ms, starter_start_ms_spread) =
            middle_of(outcomes, |outcome| outcome.starter_start_ms)?;
        let (starter_work_ms, starter_work_ms_spread) =
            middle_of(outcomes, |outcome| outcome.starter_work_ms)?;
        let (cpu_ms, cpu_ms_spread) = middle_of(outcomes, |outcome| outcome.cpu_ms)?;
        let (in_close_ms, in_close_ms_spread) = middle_of(outcomes, |outcome| outcome.in_close_ms)?;
        let (lock_wait_ms, lock_wait_ms_spread) = middle_of(outcomes, |outcome| outcome.lock_wait_ms)?;
        let (locks, locks_spread) = middle_of(outcomes, |outcome| outcome.locks as f64)?;
        let most = |of: fn(&Outcome) -> u64| outcomes.iter().map(of).max().unwrap_or(0);
        Some(Self {
            close_ms_p50: close.p50,
            close_ms_p99: close.p99,
            close_ms_p99_spread: close.p99_spread,
            close_ms_spread: close.spread,
            extra_ms,
            extra_ms_spread,
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
            in_close_ms,
            in_close_ms_spread,
            lock_wait_ms,
            lock_wait_ms_spread,
            locks,
            locks_spread,
            peak_queued_bytes: most(|outcome| outcome.peak_queued_bytes),
            queued: most(|outcome| outcome.queued),
            inline: most(|outcome| outcome.inline),
            early: most(|outcome| outcome.early),
            resident_bytes: middle_of(outcomes, |outcome| outcome.resident_bytes as f64)?.0 as u64,
        })
    }
}
