//! Readers of one stream that read each block again, after nearly as much as memory holds: by
//! policy, and by whether zones are reclaimed each by itself.
//!
//! A region of twice the memory is read in order, by 1 to 16 threads together. Each block is read
//! twice: as the stream comes to it, and again when the stream is [`BEHIND`] of memory further.
//! Pages that all live equally long are still there by then. If those of one zone are evicted
//! younger, they are gone. All sides run in turns, each another time first. Each page is compared
//! with its written content: this module must never report a run with a wrong byte.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{anyhow, ensure};
use indicatif::ProgressBar;
use pagoda::frames::zones::{Place, ZoneStats, age_ratio};
use pagoda::{Bytes, Manager, Region, ZonePolicy, ZoneReclaim};
use serde::Serialize;
use serde_json::{Value, json};

use super::tiobench::{BLOCK_BYTES, PUBLISHED, mib_s};
use crate::load::data::PAGE_BYTES;
use crate::measure::process::Cancel;
use crate::measure::stats::{Measured, middle, round};
use crate::measure::turns::turns;

/// How far behind the stream it is read again, as a part of the memory.
const BEHIND: f64 = 0.85;

/// The policies that are compared.
const POLICIES: [ZonePolicy; 2] = [ZonePolicy::ResetOnFailure, ZonePolicy::Fair];

/// The runs to do.
pub(super) struct Plan {
    /// The larger zone, which is asked first, and the smaller one.
    pub(super) zones: [Bytes; 2],
    pub(super) readers: Vec<usize>,
    pub(super) rounds: usize,
    /// How often the stream goes through the region.
    pub(super) passes: usize,
}

/// The least rounds of a row that is no quick one.
const ROUNDS_LEAST: usize = 15;

impl Plan {
    pub(super) fn new(quick: bool, rounds: usize) -> Self {
        let [large, small] = if quick { [24, 8] } else { [192, 64] };
        Self {
            zones: [Bytes::mib(large), Bytes::mib(small)],
            readers: if quick { vec![1, 4] } else { PUBLISHED.map(|(readers, _)| readers).into() },
            rounds: if quick { rounds } else { rounds.max(ROUNDS_LEAST) },
            passes: if quick { 1 } else { 2 },
        }
    }

    fn memory(&self) -> Bytes {
        self.zones[0].saturating_add(self.zones[1])
    }

    /// The number of runs.
    pub(super) fn runs(&self) -> usize {
        self.readers.len() * self.rounds * sides().len()
    }
}

/// The outcome of one run.
#[derive(Clone, Copy)]
struct Outcome {
    mib_s: f64,
    age_ratio: f64,
    gone_percent: f64,
    resets: f64,
    shortages: f64,
    first_zone_percent: f64,
}

/// The figures of one side, all of them medians of its rounds.
#[derive(Serialize)]
struct Row {
    mib_s: Option<Measured>,
    age_ratio: Option<Measured>,
    gone_percent: Option<Measured>,
    first_zone_percent: Option<Measured>,
    resets: Option<Measured>,
    shortages: Option<Measured>,
}

fn sides() -> Vec<(ZoneReclaim, ZonePolicy)> {
    ZoneReclaim::ALL.into_iter().flat_map(|reclaim| POLICIES.map(|policy| (reclaim, policy))).collect()
}

/// Runs all of it; `None` where this machine has no managers.
pub(super) fn measure(plan: &Plan, progress: &ProgressBar, cancel: &Cancel) -> anyhow::Result<Option<Value>> {
    if !pagoda::userfaultfd_allows_managers() {
        return Ok(None);
    }
    let (sides, mut turn) = (sides(), 0);
    let mut figures = json!({});
    for &readers in &plan.readers {
        progress.set_message(format!("ages by {readers}"));
        let mut outcomes: BTreeMap<usize, Vec<Outcome>> = BTreeMap::new();
        for _ in 0..plan.rounds {
            for side in turns(turn, sides.len()) {
                cancel.check()?;
                let (reclaim, policy) = sides[side];
                outcomes.entry(side).or_default().push(run(plan, reclaim, policy, readers)?);
                progress.inc(1);
            }
            turn += 1;
        }
        let of = |side: usize| &outcomes[&side];
        for (side, (reclaim, policy)) in sides.iter().enumerate() {
            figures[reclaim.name()][policy.name()][readers.to_string()] = json!(row(of(side)));
        }
        for (number, reclaim) in ZoneReclaim::ALL.iter().enumerate() {
            let [reset, fair] = [of(2 * number), of(2 * number + 1)];
            let ratios: Vec<f64> =
                fair.iter().zip(reset).map(|(fair, reset)| fair.mib_s / reset.mib_s).collect();
            figures[reclaim.name()]["ratio_fair_vs_reset"][readers.to_string()] =
                json!({ "ratio": middle(&ratios) });
        }
    }
    figures["behind_percent"] = (100.0 * BEHIND).into();
    figures["rounds"] = plan.rounds.into();
    Ok(Some(figures))
}

fn row(outcomes: &[Outcome]) -> Row {
    let of = |figure: fn(&Outcome) -> f64| middle(&outcomes.iter().map(figure).collect::<Vec<_>>());
    Row {
        mib_s: of(|run| run.mib_s),
        age_ratio: of(|run| run.age_ratio),
        gone_percent: of(|run| run.gone_percent),
        first_zone_percent: of(|run| run.first_zone_percent),
        resets: of(|run| run.resets),
        shortages: of(|run| run.shortages),
    }
}

fn run(plan: &Plan, reclaim: ZoneReclaim, policy: ZonePolicy, readers: usize) -> anyhow::Result<Outcome> {
    let manager = Manager::builder()
        .user_mode_only(true)
        .zone("large", plan.zones[0], Place::Local)
        .zone("small", plan.zones[1], Place::Local)
        .tune(|tuning| tuning.zone_policy(policy).zone_reclaim(reclaim))
        .build()?;
    let mut region = manager.region(Bytes::new(2 * plan.memory().get())).create()?;
    for offset in (0..region.len()).step_by(PAGE_BYTES) {
        region.write_at(offset, &word(offset))?;
    }
    let zones = || -> Vec<ZoneStats> { manager.zones().into_iter().map(|(_, zone)| zone).collect() };
    let (before, zones_before) = (manager.stats(), zones());
    let blocks = region.len() / BLOCK_BYTES;
    let behind = (BEHIND * plan.memory().get() as f64) as usize / BLOCK_BYTES;
    let (next, start) = (AtomicUsize::new(0), Instant::now());
    let read = std::thread::scope(|scope| {
        let one = || stream(&region, &next, (plan.passes * blocks, behind));
        let workers: Vec<_> = (0..readers).map(|_| scope.spawn(one)).collect();
        workers.into_iter().try_fold(0, |sum, worker| {
            let read = worker.join().map_err(|_| anyhow!("a thread of the benchmark panicked"))??;
            anyhow::Ok(sum + read)
        })
    })?;
    let seconds = start.elapsed().as_secs_f64();
    let (after, zones_after) = (manager.stats(), zones());
    ensure!(zones_after.len() == 2, "the engine has {} zones", zones_after.len());
    let since: Vec<ZoneStats> = zones_after
        .iter()
        .zip(&zones_before)
        .map(|(after, before)| {
            let mut zone = *after;
            zone.evicted = after.evicted.saturating_sub(before.evicted);
            zone.allocated = after.allocated.saturating_sub(before.allocated);
            zone
        })
        .collect();
    let allocated: u64 = since.iter().map(|zone| zone.allocated.get()).sum();
    // Each block has to come once. Others had been read before, and were gone.
    let again = allocated as f64 / BLOCK_BYTES as f64 - (plan.passes * blocks) as f64;
    Ok(Outcome {
        mib_s: round(mib_s(read * BLOCK_BYTES, seconds)),
        age_ratio: age_ratio(&since).unwrap_or(f64::NAN),
        gone_percent: 100.0 * again / (plan.passes * blocks - behind) as f64,
        resets: (after.zones_resets - before.zones_resets) as f64,
        shortages: (after.zones_short - before.zones_short) as f64,
        first_zone_percent: 100.0 * since[0].allocated.get() as f64 / allocated as f64,
    })
}

/// Reads blocks as their turn comes, each again when the stream is so far beyond it. Returns how
/// many.
fn stream(region: &Region, next: &AtomicUsize, (end, behind): (usize, usize)) -> anyhow::Result<usize> {
    let (blocks, mut read) = (region.len() / BLOCK_BYTES, 0);
    let mut block = vec![0; BLOCK_BYTES];
    loop {
        let at = next.fetch_add(1, Ordering::Relaxed);
        if at >= end {
            return Ok(read);
        }
        for at in [Some(at), at.checked_sub(behind)].into_iter().flatten() {
            let offset = at % blocks * BLOCK_BYTES;
            region.read_at(offset, &mut block)?;
            for (page, content) in block.chunks_exact(PAGE_BYTES).enumerate() {
                let offset = offset + page * PAGE_BYTES;
                ensure!(content[..8] == word(offset), "the page at {offset} reads other than it was written");
            }
            read += 1;
        }
    }
}

/// The word written to the page at `offset`.
fn word(offset: usize) -> [u8; 8] {
    (offset as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()
}
