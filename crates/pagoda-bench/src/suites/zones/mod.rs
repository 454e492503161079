//! The zone policies side by side, by counts that no noise can move, and the cost of one
//! allocation.
//!
//! The counts are those of the four cases in `pagoda_core::zone::cases`. The share error is that of
//! the fair policy without pressure: as many threads as may serve faults, each with its cache, at
//! two zones of 3:1. Costs are medians over pairs of runs that take turns, the first pair
//! discarded. No memory is moved for these: they must never be read as figures of the engine. Those
//! are of [`engine`], a real one, and of [`tiobench`], with streams over a file beside the kernel's
//! own.

mod ages;
mod content;
mod engine;
pub mod kernel_mmap;
mod placement;
pub mod table;
mod tiobench;

use std::collections::BTreeMap;
use std::hint::black_box;
use std::process::ExitCode;
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::Instant;

use anyhow::anyhow;
use clap::Args;
use indicatif::ProgressBar;
use pagoda_core::budget::watermark::{HANDLERS_MAX, Watermarks};
use pagoda_core::page::BasePage;
use pagoda_core::size::Bytes;
use pagoda_core::zone::cache::{FrameCache, cache_frames};
use pagoda_core::zone::cases::{Case, LOCAL_ZONES};
use pagoda_core::zone::{Counters, Grant, Shortage, Zone, ZonePolicy, Zones};
use serde_json::{Value, json};

use crate::command;
use crate::measure::process::Cancel;
use crate::measure::stats::{middle, round};
use crate::report::json::report;

pub use tiobench::PUBLISHED;

/// Allocations over which the shares are counted.
const SHARED_ALLOCATIONS: u32 = 100_000;
/// Frames that a thread keeps before it gives them back: all threads together stay far above the
/// watermarks.
const KEPT_FRAMES: usize = 64;
/// The budgets of the zones, in proportion to their watermarks.
const BUDGETS: [Bytes; LOCAL_ZONES] = [Bytes::mib(1536), Bytes::mib(512)];
/// Enough free frames that no timed allocation fails.
const TIMED_FREE_FRAMES: u64 = 1 << 40;

/// The part of `--help` on the keys.
const KEYS: &str = "\
Keys of the JSON; POLICY is fair, reset-on-failure, first-version (of the fair one, with its bug), first-fit, global-list
or weighted-interleave (weights of 1):
  cases.CASE.POLICY           counts of allocating from two local zones: A, both are short of frames; B, the first is, and the second's
                              batch is used up; C, 3:1 beside a remote zone; D, 3:1 alone. resets of the batches; scans, passes over the
                              zones; zone_visits, zones that passes looked at; skips of zones whose batch was used up; shares, frames by
                              local zone; spills, frames of the remote one; wake_ups, allocations that failed
  share_error_percent         fair, without pressure: how far the worst zone is from its ideal part, in percent of that, of
                              share_allocations, by zones of 3:1, of share_threads threads with caches of cache_frames frames
  alloc_ns                    one allocation by one thread: warm through a cache, cold without one
  engine.POLICY               a real engine of two zones of 1:3, by fair, reset-on-failure, first-fit; nothing without managers.
                              shares_percent by zone and share_error_percent of the frames given without pressure; then, of streams over
                              twice the budget, resets, shortages (no zone had a frame above its low watermark), frames that were given,
                              mb_s, and age_ratio, the age of evicted pages in one zone over that in the other
  ages.LIST.POLICY.READERS    so many readers of one stream through a region of twice the memory, 192 and 64 MiB, that read each block
                              again when the stream is behind_percent of memory further; LIST is one-list or per-zone, POLICY fair or
                              reset-on-failure; nothing without managers. Medians of rounds: mib_s; age_ratio; gone_percent, blocks that
                              were not there the second time; first_zone_percent, the larger zone's part of all frames; resets;
                              shortages. ages.LIST.ratio_fair_vs_reset.READERS.ratio is of mib_s, the median of rounds
  placement                   a hot set of hot_bytes in the slow one of zones_bytes, cold pages in the fast one; nothing without managers.
                              hot_in_fast_percent at 0s, 1s and 2s, the least of the rounds; unmoved_hot_in_fast_percent, after 2 s
                              without moves; of the last round moved_pages and sampled_pages, base pages, and cold_in_fast_bytes, which
                              stayed; slowdown_while_moving, the rate of reads without moves over that with them in the first 2 s, the
                              median of rounds
  tiobench.PATTERN.THREADS    of seq_read, seq_write, rand_read, rand_write. Of each POLICY mib_s of all rounds, and of
                              the same run, the one in the middle: allocs_by_zone, frames of the larger zone and of the smaller; resets;
                              shortages; evicted_before_use, base pages that were read ahead in vain; bytes_read_twice; age_ratio, null
                              unless both zones evicted pages. ratio_fair_vs_reset, fair over reset-on-failure, is the median of the
                              rounds; published_ratio, of seq_read, as the patch's author measured
  tiobench_reason             why nothing streams; missing if it does
  kernel_mmap                 one thread in a memory group of the zones' size: seq_read_mib_s, seq_read_advised_mib_s after
                              MADV_SEQUENTIAL, medians; null if it did not run, and a reason, missing else
  ratio_vs_mmap, ratio_vs_mmap_advised  seq_read of fair by one thread over these, the median of rounds in which both ran; null
                              without them
  cached_reread_mib_s         the rate of reading resident pages again; null if nothing streams
  zones_bytes, file_bytes     the smaller zone and the larger, and the file of the streams
  block_bytes, touches        bytes of one sequential read or write; pages that a random run touches
  rounds, pairs               of each row of the streams, and of timed allocations";

/// The options of the bench.
#[derive(Args, Debug)]
#[command(after_long_help = KEYS)]
pub struct ZonesArgs {
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// A short run: fewer allocations, one round, a small file, fewer threads
    #[arg(long)]
    quick: bool,
    /// Rounds that count: of each row of the streams, and pairs of timed allocations after one that
    /// is discarded [default: 3, quick: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    pairs: Option<u16>,
    /// The rows of one pattern of the streams alone; more than once for some [default: all]
    #[arg(long, value_name = "PATTERN")]
    only: Vec<tiobench::Pattern>,
    /// The rows of so many threads alone; more than once for some [default: 1, 2, 4, 8, 16; quick:
    /// 1, 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    threads: Vec<u8>,
}

/// Runs `pagoda bench zones`.
pub fn run(args: &ZonesArgs) -> anyhow::Result<ExitCode> {
    let pairs = args.pairs.map_or(if args.quick { 1 } else { 3 }, usize::from);
    let mut plan = tiobench::Plan::new(args.quick, pairs, command::this_program()?);
    if !args.only.is_empty() {
        plan.patterns.retain(|pattern| args.only.contains(pattern));
    }
    if !args.threads.is_empty() {
        plan.threads = args.threads.iter().map(|threads| usize::from(*threads)).collect();
        plan.threads.sort_unstable();
        plan.threads.dedup();
    }
    let ages = ages::Plan::new(args.quick, pairs);
    let runs = plan.runs() + ages.runs();
    let progress = command::progress(3 + (pairs + runs) as u64, "run")?;
    let allocations = if args.quick { 1 << 20 } else { 1 << 24 };
    let cancel = Cancel::on_signals()?;
    let report = measure(pairs, args.quick, allocations, (&plan, &ages), &progress, &cancel)?;
    progress.finish_and_clear();
    command::print(&report, args.json);
    Ok(ExitCode::SUCCESS)
}

/// The figures of the policies in a real engine.
fn engines(passes: u32) -> anyhow::Result<BTreeMap<&'static str, Value>> {
    let mut outcomes = BTreeMap::new();
    for policy in [ZonePolicy::Fair, ZonePolicy::ResetOnFailure, ZonePolicy::FirstFit] {
        outcomes.extend(engine::run(policy, passes)?.map(|outcome| (policy.name(), outcome)));
    }
    Ok(outcomes)
}

/// The counts of every policy in one case.
fn counts(case: Case) -> BTreeMap<&'static str, Value> {
    let of = |policy| {
        let Counters { allocated_frames, resets, scans, zone_visits, skips, spilled_frames, wake_ups } =
            case.run(policy);
        let shares: [u64; LOCAL_ZONES] = std::array::from_fn(|zone| allocated_frames[zone]);
        json!({
            "resets": resets, "scans": scans, "zone_visits": zone_visits, "skips": skips,
            "shares": shares, "spills": spilled_frames, "wake_ups": wake_ups,
        })
    };
    ZonePolicy::ALL.map(|policy| (policy.name(), of(policy))).into()
}

fn local_zones() -> anyhow::Result<[Zone; LOCAL_ZONES]> {
    let base = BasePage::K64;
    let [first, second] = BUDGETS.map(|budget| Watermarks::new(budget, base, HANDLERS_MAX));
    Ok([Zone::new(&first?, base), Zone::new(&second?, base)])
}

/// Frames of each zone that threads with caches get.
fn shares(local: &[Zone; LOCAL_ZONES], most: u32) -> anyhow::Result<[u64; LOCAL_ZONES]> {
    let zones = Mutex::new(Zones::new(ZonePolicy::Fair, local, &[]));
    let start = Barrier::new(HANDLERS_MAX as usize);
    let one_thread = || -> Result<[u64; LOCAL_ZONES], Shortage> {
        let (cache, mut kept, mut got) = (FrameCache::default(), Vec::new(), [0; LOCAL_ZONES]);
        start.wait();
        for _ in 0..SHARED_ALLOCATIONS / HANDLERS_MAX {
            let zone = cache.allocate(|| lock(&zones).allocate(most), |rest| lock(&zones).take_back(rest))?;
            got[zone.index()] += 1;
            kept.push(Grant { zone, frames: 1 });
            if kept.len() == KEPT_FRAMES {
                let mut zones = lock(&zones);
                kept.drain(..).for_each(|grant| zones.give_back(grant));
            }
        }
        Ok(got)
    };
    let mut sums = [0; LOCAL_ZONES];
    thread::scope(|scope| {
        let threads: Vec<_> = (0..HANDLERS_MAX).map(|_| scope.spawn(one_thread)).collect();
        for thread in threads {
            let got = thread.join().map_err(|_| anyhow!("a thread of the benchmark panicked"))??;
            sums.iter_mut().zip(got).for_each(|(sum, got)| *sum += got);
        }
        Ok(sums)
    })
}

fn lock(zones: &Mutex<Zones>) -> std::sync::MutexGuard<'_, Zones> {
    zones.lock().expect("whoever panics with it ends the benchmark")
}

fn share_error_percent(local: &[Zone], got: &[u64]) -> f64 {
    let batches = || local.iter().map(|zone| (zone.high_frames - zone.low_frames) as f64);
    let (cycle, total) = (batches().sum::<f64>(), got.iter().sum::<u64>() as f64);
    let errors = batches().zip(got).map(|(batch, got)| {
        let ideal = total * batch / cycle;
        (*got as f64 - ideal).abs() / ideal * 100.0
    });
    errors.fold(0.0, f64::max)
}

/// Times `allocations` with a cache and without, in turns.
fn costs(
    local: &[Zone],
    most: u32,
    pairs: usize,
    allocations: u32,
    progress: &ProgressBar,
) -> anyhow::Result<Value> {
    let (mut warm, mut cold) = (Vec::new(), Vec::new());
    for pair in 0..=pairs {
        let cache = FrameCache::default();
        let with = time_ns(local, allocations, |zones| {
            cache.allocate(|| lock(zones).allocate(most), |rest| lock(zones).take_back(rest))
        })?;
        let without = time_ns(local, allocations, |zones| lock(zones).allocate(1))?;
        if pair > 0 {
            warm.push(with);
            cold.push(without);
        }
        progress.inc(1);
    }
    Ok(json!({ "warm": middle(&warm), "cold": middle(&cold) }))
}

/// The time of one of `allocations`.
fn time_ns<T>(
    local: &[Zone],
    allocations: u32,
    mut allocate: impl FnMut(&Mutex<Zones>) -> Result<T, Shortage>,
) -> Result<f64, Shortage> {
    let endless: Vec<Zone> =
        local.iter().map(|zone| Zone { free_frames: TIMED_FREE_FRAMES, ..*zone }).collect();
    let zones = Mutex::new(Zones::new(ZonePolicy::Fair, &endless, &[]));
    let start = Instant::now();
    for _ in 0..allocations {
        black_box(allocate(black_box(&zones))?);
    }
    Ok(start.elapsed().as_nanos() as f64 / f64::from(allocations))
}

/// Measures all figures of the report.
fn measure(
    pairs: usize,
    quick: bool,
    allocations: u32,
    (plan, ages_plan): (&tiobench::Plan, &ages::Plan),
    progress: &ProgressBar,
    cancel: &Cancel,
) -> anyhow::Result<Value> {
    progress.set_message("shares");
    let local = local_zones()?;
    let most = cache_frames(&local, HANDLERS_MAX);
    let got = shares(&local, most)?;
    progress.inc(1);
    progress.set_message("engine");
    let engine = engines(if quick { 1 } else { 3 })?;
    progress.inc(1);
    let placement = placement::run(quick, pairs)?;
    let ages = ages::measure(ages_plan, progress, cancel)?;
    let mut figures = tiobench::measure(plan, progress, cancel)?;
    figures.as_object_mut().expect("an object").extend(placement.map(|row| ("placement".to_owned(), row)));
    progress.set_message("costs");
    figures["engine"] = json!(engine);
    figures.as_object_mut().expect("an object").extend(ages.map(|rows| ("ages".to_owned(), rows)));
    figures["cases"] = json!(BTreeMap::from(Case::ALL.map(|case| (case.name(), counts(case)))));
    figures["share_error_percent"] = round(share_error_percent(&local, &got)).into();
    figures["share_allocations"] = json!(got);
    figures["share_threads"] = HANDLERS_MAX.into();
    figures["cache_frames"] = most.into();
    figures["alloc_ns"] = costs(&local, most, pairs, allocations, progress)?;
    figures["pairs"] = pairs.into();
    Ok(report("zones", quick, figures))
}

#[cfg(test)]
mod tests {
    use pagoda_linux::testing::skip::{skip, skip_without_moves};

    use super::*;

    #[test]
    fn counts_shares_and_streams_have_the_documented_shape() {
        // The test's program is no worker: the kernel has no side.
        let plan = tiobench::Plan::tiny();
        let ages = ages::Plan::new(true, 1);
        let json = measure(1, true, 1000, (&plan, &ages), &ProgressBar::hidden(), &Cancel::default());
        let json = json.expect("no pressure");
        check_counts(&json);
        check_streams(&json);
    }

    fn check_counts(json: &Value) {
        crate::report::keys::expect_told("zones", KEYS, json);
        let count = |case: &str, policy: &str, key: &str| json["cases"][case][policy][key].clone();
        for (policy, resets, scans) in
            [("fair", 0, 1000), ("reset-on-failure", 1000, 2000), ("first-version", 0, 2000)]
        {
            assert_eq!(
                (count("A", policy, "resets"), count("A", policy, "scans")),
                (resets.into(), scans.into())
            );
        }
        assert_eq!(count("B", "fair", "scans"), 1010);
        assert_eq!(count("C", "fair", "shares"), serde_json::json!([6000, 2000]));
        assert_eq!(count("C", "first-version", "shares"), serde_json::json!([7900, 100]));
        assert_eq!(count("D", "fair", "resets"), 19);
        for case in json["cases"].as_object().expect("an object").values() {
            assert_eq!(case.as_object().expect("an object").len(), ZonePolicy::ALL.len());
        }
        if !skip_without_moves("zones of an engine") {
            let fair = &json["engine"]["fair"];
            assert!(fair["share_error_percent"].as_f64().is_some_and(|error| error <= 1.0), "{fair}");
            assert!(
                fair["age_ratio"].is_f64() && fair["frames"].as_u64() > fair["resets"].as_u64(),
                "{fair}"
            );
        }
        assert!(json["alloc_ns"]["warm"].is_f64() && json["alloc_ns"]["cold"].is_f64());
        let shares = json["share_allocations"].as_array().expect("two zones");
        let shares: Vec<u64> = shares.iter().filter_map(Value::as_u64).collect();
        assert_eq!(shares.iter().sum::<u64>(), u64::from(SHARED_ALLOCATIONS));
        assert!(json["share_error_percent"].as_f64().is_some_and(|error| error <= 1.0), "{shares:?}");
        let table = table::table(json);
        assert!(
            table.contains(&format!("{}:{}", shares[0], shares[1])) && table.contains("7900:100"),
            "{table}"
        );
    }

    #[test]
    fn a_hot_set_gets_into_the_fast_zone() {
        if skip_without_moves("pages that change zones") {
            return;
        }
        let row = placement::run(true, 1).expect("right bytes").expect("a row");
        let percent = |key: &str| row["hot_in_fast_percent"][key].as_f64().expect("a number");
        assert!(percent("0s") <= 20.0 && percent("2s") > percent("0s"), "{row}");
        assert!(row["unmoved_hot_in_fast_percent"].as_f64().is_some_and(|percent| percent <= 20.0), "{row}");
        assert!(row["moved_pages"].as_u64().is_some_and(|pages| pages > 0), "{row}");
        assert!(row["slowdown_while_moving"].is_f64(), "{row}");
    }

    fn check_streams(json: &Value) {
        if let Some(reason) = json["tiobench_reason"].as_str() {
            return skip("streams over a file", reason);
        }
        assert_eq!(json["file_bytes"], 32 << 20, "twice the memory");
        for pattern in ["seq_read", "seq_write", "rand_read", "rand_write"] {
            for threads in ["1", "3"] {
                let row = &json["tiobench"][pattern][threads];
                for policy in ZonePolicy::ALL.map(ZonePolicy::name) {
                    let cell = &row[policy];
                    assert!(
                        cell["mib_s"].as_f64().is_some_and(|rate| rate > 0.0),
                        "{pattern} {threads} {cell}"
                    );
                    for key in ["resets", "shortages", "evicted_before_use", "bytes_read_twice"] {
                        assert!(cell[key].is_u64(), "{pattern} {threads} {policy} {key}");
                    }
                    let frames: u64 = (0..2).filter_map(|zone| cell["allocs_by_zone"][zone].as_u64()).sum();
                    assert!(frames > 0, "{pattern} {threads} {cell}");
                    if pattern == "seq_read" {
                        // All of it came through the zones, and a second read of a page was
                        // counted.
                        let twice = cell["bytes_read_twice"].as_u64().expect("a number");
                        assert!(frames << 16 >= (32 << 20) + twice / 2, "{threads} {cell}");
                        assert!(cell["age_ratio"].is_f64(), "both zones moved pages out: {cell}");
                    }
                }
                assert!(row["ratio_fair_vs_reset"].is_f64());
                let published = pattern == "seq_read" && threads == "1";
                assert_eq!(
                    row["published_ratio"].as_f64(),
                    published.then_some(1.1045),
                    "{pattern} {threads}"
                );
            }
        }
        assert!(json["cached_reread_mib_s"].as_f64().is_some_and(|rate| rate > 0.0));
        assert!(json["kernel_mmap"]["seq_read_mib_s"].is_null() && json["kernel_mmap"]["reason"].is_string());
        assert!(json["ratio_vs_mmap"].is_null());
        let table = table::table(json);
        assert!(table.contains("| seq_read   |       1 |") && table.contains("1.105"), "{table}");
    }

    #[test]
    fn the_share_error_is_that_of_the_worst_zone() {
        let zone = |batch: u64| Zone { free_frames: 0, low_frames: 5, high_frames: 5 + batch };
        assert_eq!(share_error_percent(&[zone(3), zone(1)], &[75, 25]), 0.0);
        assert_eq!(share_error_percent(&[zone(3), zone(1)], &[70, 30]), 20.0);
    }
}
