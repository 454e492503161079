//! Running over budget: the worker's patterns under Pagoda and under the kernel, pair by pair.
//!
//! The sides take turns, and the first one changes. Memory is touched and freed just before each
//! run, because a virtual machine's host takes back idle memory. The first pair is discarded. This
//! module must never give one side a different worker, seed or amount of memory than the other.

pub(crate) mod no_pressure;
pub(crate) mod report;

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use pagoda_core::size::Bytes;

use crate::kernel::{KernelSide, Split, SwapPeak};
use crate::load::data::{PAGE_BYTES, Pages};
use crate::measure::process::{Cancel, Cancelled, run};
use crate::measure::scratch::Scratch;
use crate::measure::stats::{geometric_mean, middle};
use crate::suites::budget::report::{Details, Pair, Setting, TriedSplit, figures};
use crate::worker::{self, Pattern, Phase};
use crate::{Plan, pagoda_run, warm};

/// Ample for a run that pages every touch to a slow disk at the default budget.
const RUN_LIMIT: Duration = Duration::from_secs(300);

/// The excess over the budget that counts as within it: the growth between two samples.
const OVER_AFTER_BURST: u64 = 16 << 20;

/// The data of one setting.
#[derive(Clone, Copy)]
pub struct Load {
    /// The ratio by which LZ4 compresses the data.
    pub ratio: f64,
    /// The data over the budget.
    pub budgets: u64,
}

/// Runs one setting. A kernel side that can't be set up leaves its reason in `kernel_reason`, and
/// is not tried again.
pub fn measure(
    plan: &Plan,
    load: Load,
    kernel_reason: &mut Option<String>,
    cancel: &Cancel,
) -> anyhow::Result<Setting> {
    let data = Bytes::new(plan.budget.get() * load.budgets);
    let sample = Pages::new(1, load.ratio);
    let mut details = Details {
        data_bytes: data.get(),
        lz4_ratio_4k: sample.lz4_ratio(1),
        lz4_ratio_64k: sample.lz4_ratio(16),
        ..Details::default()
    };
    let bench = Bench { plan, load, data, cancel };
    let mut split = bench.best_split(&mut details, kernel_reason)?;
    let (mut pairs, mut after_burst_ms) = (Vec::new(), Vec::new());
    // The pair of number 0 is the discarded one. On the kernel's side the trial of splits took its
    // place.
    for number in 0..=plan.pairs {
        let mut pair = Pair::default();
        let kernel_first = number % 2 == 0;
        if kernel_first && number > 0 {
            pair.kernel = bench.kernel(&mut split, number, &mut details, kernel_reason)?;
        }
        if details.pagoda_reason.is_none() {
            pair.pagoda = bench.pagoda(number, &mut details)?;
        }
        if number > 0 && details.pagoda_reason.is_none() {
            after_burst_ms.extend(bench.after_burst_ms(number, &mut details)?);
        }
        if details.in_thread_reason.is_none() {
            pair.in_thread = bench.in_thread(number, &mut details)?;
        }
        if !kernel_first {
            pair.kernel = bench.kernel(&mut split, number, &mut details, kernel_reason)?;
        }
        if number > 0 {
            if split.is_some() {
                pair.uncharged = bench.uncharged(number, &mut details)?;
            }
            pairs.push(pair);
        }
    }
    let patterns = [Pattern::Fill, Pattern::Sequential, Pattern::Zipf, Pattern::Random];
    let patterns: BTreeMap<_, _> = patterns.into_iter().map(|p| (p, figures(&pairs, p))).collect();
    details.kernel_split = split;
    details.pagoda_after_burst_ms = middle(&after_burst_ms);
    Ok(Setting { patterns, setting: details })
}

struct Bench<'a> {
    plan: &'a Plan,
    load: Load,
    data: Bytes,
    cancel: &'a Cancel,
}

impl Bench<'_> {
    /// Runs the kernel's side with each sensible split. Returns the best; `None` if none ran.
    fn best_split(
        &self,
        details: &mut Details,
        kernel_reason: &mut Option<String>,
    ) -> anyhow::Result<Option<Split>> {
        let (budget, ratio) = (self.plan.budget, self.load.ratio);
        let fitting = Split::fitting(budget, self.data, ratio);
        let fits = fitting.memcg_limit_bytes + fitting.zram_disk_bytes >= self.data.get();
        // Where all fits, the derived split needs some slack: the kernel keeps slots of pages that
        // are in memory too, and the overflow goes to the file. Where it can't fit, the best split
        // depends on the speed of disk and codec.
        let just_fits = fitting.memcg_limit_bytes as f64 / budget.get() as f64;
        let resident = if fits { [0.9 * just_fits, 0.8 * just_fits] } else { [0.5, 0.25] };
        let candidates = resident.map(|share| Split::with_resident(budget, self.data, ratio, share));
        let mut best: Option<(f64, Split)> = None;
        for candidate in candidates {
            let mut split = Some(candidate);
            let phases = self.kernel(&mut split, 0, details, kernel_reason)?;
            let mean = phases
                .map(|phases| geometric_mean(&phases.iter().map(|phase| phase.gib_s).collect::<Vec<_>>()));
            details.kernel_splits_tried.push(TriedSplit { split: candidate, geometric_mean_gib_s: mean });
            if let Some(mean) = mean.filter(|&mean| best.is_none_or(|(best, _)| mean > best)) {
                best = Some((mean, candidate));
            }
        }
        details.kernel_swap_peak = None;
        if best.is_some() {
            details.kernel_reason = None;
        }
        Ok(best.map(|(_, split)| split))
    }

    /// Runs the kernel with the same total memory. A failure removes the split, so that it is not
    /// tried again.
    fn kernel(
        &self,
        split: &mut Option<Split>,
        number: usize,
        details: &mut Details,
        kernel_reason: &mut Option<String>,
    ) -> anyhow::Result<Option<Vec<Phase>>> {
        let Some(chosen) = split.filter(|_| kernel_reason.is_none()) else { return Ok(None) };
        let measured = match noted(KernelSide::set_up(&chosen), kernel_reason)? {
            Some(side) => noted(self.under(side, number), &mut details.kernel_reason)?,
            None => None,
        };
        let Some((phases, peak)) = measured else {
            *split = None;
            return Ok(None);
        };
        keep_peak(&mut details.kernel_swap_peak, peak);
        Ok(Some(phases))
    }

    /// Runs the kernel with the whole budget for resident memory.
    fn uncharged(&self, number: usize, details: &mut Details) -> anyhow::Result<Option<Vec<Phase>>> {
        let side = KernelSide::set_up(&Split::uncharged(self.plan.budget, self.data))?;
        let measured = noted(self.under(side, number), &mut details.kernel_reason)?;
        Ok(measured.map(|(phases, peak)| {
            keep_peak(&mut details.kernel_uncharged_swap_peak, peak);
            phases
        }))
    }

    fn under(&self, mut side: KernelSide, number: usize) -> anyhow::Result<(Vec<Phase>, SwapPeak)> {
        let mut command = self.worker(number);
        command.extend(["--join".to_owned(), side.procs().display().to_string()]);
        self.warm();
        let mut ticks = 0u32;
        let finished = run(&command, RUN_LIMIT, self.cancel, || {
            ticks += 1;
            if ticks.is_multiple_of(10) {
                side.sample();
            }
        });
        self.plan.step();
        Ok((finished?.printed()?, side.peak()))
    }

    /// Runs under Pagoda. A failure is noted, and not tried again.
    fn pagoda(&self, number: usize, details: &mut Details) -> anyhow::Result<Option<Vec<Phase>>> {
        let scratch = Scratch::new()?;
        let stats = scratch.file("stats.json");
        let command = pagoda_run(&self.plan.program, self.plan.budget, &stats, self.worker(number));
        self.warm();
        let finished = run(&command, RUN_LIMIT, self.cancel, || ());
        self.plan.step();
        let measured = finished.and_then(|finished| Ok((finished.printed()?, finished.anonymous_bytes_peak)));
        let Some((phases, peak)) = noted(measured, &mut details.pagoda_reason)? else { return Ok(None) };
        if number > 0 {
            details.pagoda_anonymous_bytes_peak =
                Some(peak.max(details.pagoda_anonymous_bytes_peak.unwrap_or(0)));
        }
        let written = fs::read_to_string(&stats).ok();
        details.pagoda_stats = written.and_then(|text| serde_json::from_str(&text).ok());
        Ok(Some(phases))
    }

    /// The time until Pagoda is within the budget again, once all of the data has been written at
    /// full speed and the program rests. A failure is noted, and not tried again.
    fn after_burst_ms(&self, number: usize, details: &mut Details) -> anyhow::Result<Option<f64>> {
        let scratch = Scratch::new()?;
        let options = [
            ("--data", self.data.get().to_string()),
            ("--ratio", self.load.ratio.to_string()),
            ("--seed", (number + 1).to_string()),
            ("--within", (self.plan.budget.get() + OVER_AFTER_BURST).to_string()),
        ];
        let command = worker::command(&self.plan.program, "burst", options);
        let command = pagoda_run(&self.plan.program, self.plan.budget, &scratch.file("stats.json"), command);
        self.warm();
        let finished = run(&command, RUN_LIMIT, self.cancel, || ());
        noted(finished.and_then(|finished| finished.printed()), &mut details.pagoda_reason)
    }

    /// Runs the same worker in a region of the library, with the same budget. A failure is noted,
    /// and not tried again.
    fn in_thread(&self, number: usize, details: &mut Details) -> anyhow::Result<Option<Vec<Phase>>> {
        let scratch = Scratch::new()?;
        let mut command = self.worker(number);
        command.extend(["--library".to_owned(), self.plan.budget.get().to_string()]);
        command.extend(["--spill".to_owned(), scratch.path().display().to_string()]);
        self.warm();
        let finished = run(&command, RUN_LIMIT, self.cancel, || ());
        self.plan.step();
        noted(finished.and_then(|finished| finished.printed()), &mut details.in_thread_reason)
    }

    fn worker(&self, number: usize) -> Vec<String> {
        let pages = self.data.get() / PAGE_BYTES as u64;
        let (passes, zipf, random) =
            if self.plan.quick { (1, pages / 4, pages / 16) } else { (2, pages, pages / 4) };
        let options = [
            ("--data", self.data.get().to_string()),
            ("--ratio", self.load.ratio.to_string()),
            // Another seed for each pair, the same for both sides.
            ("--seed", (number + 1).to_string()),
            ("--passes", passes.to_string()),
            ("--zipf", zipf.to_string()),
            ("--random", random.to_string()),
        ];
        worker::command(&self.plan.program, "patterns", options)
    }

    /// Warms as much memory as a run needs in total.
    fn warm(&self) {
        warm(Bytes::new(self.plan.budget.get() * 5 / 4));
    }
}

fn keep_peak(kept: &mut Option<SwapPeak>, peak: SwapPeak) {
    if kept.is_none_or(|kept| peak.zram_memory_bytes >= kept.zram_memory_bytes) {
        *kept = Some(peak);
    }
}

/// The result of a run. A failed one gives `None`, and `why` has its reason. A signal is passed on.
pub fn noted<T>(result: anyhow::Result<T>, why: &mut Option<String>) -> anyhow::Result<Option<T>> {
    result.map(Some).or_else(|error| {
        *why = Some(reason(error)?);
        Ok(None)
    })
}

/// The reason why a run failed. A signal is passed on: it ends all runs.
pub fn reason(error: anyhow::Error) -> anyhow::Result<String> {
    if error.is::<Cancelled>() { Err(error) } else { Ok(format!("{error:#}")) }
}
