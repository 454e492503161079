//! The printed figures: JSON with keys that other tools read, and tables for people. Pure.
//!
//! Every figure is a median over the pairs that count; every spread is the least and the greatest
//! of them. A side that could not run has nulls and a reason, never a made-up number.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};

use crate::kernel::{Split, SwapPeak};
use crate::measure::histogram::Percentiles;
use crate::measure::stats::{Measured, median, median_of, median_percentiles, middle, middle_of, round};
use crate::report::table::{Column, fill, table as text_table};
use crate::suites::budget::no_pressure;
use crate::worker::{Pattern, Phase};

/// The part of `--help` on the keys.
pub const KEYS: &str = "\
Keys of the JSON; rates, times and ratios, each of one pair, are medians of the pairs that count, with the least and the greatest in
…_least and …_most; an unmeasured figure is null, a part that --only leaves out is missing:
  compressed.PATTERN          data of 3:1 and twice the budget, and in spilled.PATTERN of 2:1 and three times; of the patterns fill,
                              sequential, zipf, random, GiB of touched pages a second: pagoda_gib_s under pagoda run, kernel_gib_s
                              with the same total memory, kernel_uncharged_gib_s with the budget for resident memory and zram
                              charged to no group, in_thread_gib_s in a library's region whose faults are served in the faulting
                              thread. ratio is Pagoda's over the kernel's, in_thread_ratio that of in_thread, kernel_uncharged_ratio
                              pagoda_gib_s over kernel_uncharged_gib_s. Latencies of first accesses, p50, p99 and p999 in
                              microseconds: of touches that took more than one pagoda_fault_us, kernel_fault_us,
                              kernel_uncharged_fault_us, in_thread_fault_us; of all pagoda_touch_us, kernel_touch_us. touches is the
                              number of a run, pagoda_faults and kernel_faults of those that took more than a microsecond
  compressed.setting          how it was measured, and spilled.setting the same: data_bytes; lz4_ratio_4k and lz4_ratio_64k, by LZ4
                              for 4 and for 64 KiB at a time
  compressed.setting.kernel_split  how the budget was divided: memcg_limit_bytes of the memory group, zram_limit_bytes of memory for zram,
                              zram_disk_bytes of content in it, swap_file_bytes behind it. kernel_splits_tried has each split that
                              was tried, and the geometric_mean_gib_s of its patterns, null if it failed
  compressed.setting.kernel_swap_peak  of the run that took most: zram_memory_bytes, zram_memory_per_content, that over the content it
                              held, swap_file_bytes; kernel_uncharged_swap_peak the same with zram charged to no group
  compressed.setting.pagoda_anonymous_bytes_peak  the most that the process under Pagoda was seen with
  compressed.setting.pagoda_after_burst_ms  from the end of a burst of all the data until the process, at rest, is within the budget
                              and 16 MiB again
  compressed.setting.pagoda_stats  the file of `pagoda run --stats` of the last run; the library's pagoda::stats::counters::Stats explains
                              its counters
  compressed.setting.pagoda_reason, compressed.setting.in_thread_reason, compressed.setting.kernel_reason  why a side failed; missing
                              if it did not
  no_pressure.programs        python3, redis-benchmark, sort, with budget_bytes, 1.2 times native_peak_bytes, of a run before all pairs,
                              or the least budget: native_s, pagoda_s, overhead_percent of the ratio, pairs; or
                              why not: left_out if it does not run natively, failed if not under Pagoda
  no_pressure.churns          the same of malloc, allocations from two threads, and thread, threads that start and end
  no_pressure.overhead_percent_max  the largest of the programs
  no_pressure.malloc_churn_ratio, no_pressure.thread_churn_ratio  time over native time
  kernel                      how its side was made; null if this machine does not allow it, and kernel_reason, missing else, says why
  budget_bytes, pairs         the size of the run";

/// One setting: four patterns, and how they were measured.
#[derive(Serialize)]
pub struct Setting {
    #[serde(flatten)]
    pub patterns: BTreeMap<Pattern, Value>,
    pub setting: Details,
}

/// How a setting was measured.
#[derive(Default, Serialize)]
pub struct Details {
    pub data_bytes: u64,
    /// The ratio of LZ4 for the data, 4 KiB at a time.
    pub lz4_ratio_4k: f64,
    /// The ratio of LZ4 for the data, 64 KiB at a time.
    pub lz4_ratio_64k: f64,
    pub kernel_split: Option<Split>,
    pub kernel_splits_tried: Vec<TriedSplit>,
    pub kernel_swap_peak: Option<SwapPeak>,
    pub kernel_uncharged_swap_peak: Option<SwapPeak>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_reason: Option<String>,
    /// The peak of anonymous memory of the process under Pagoda, sampled every ten milliseconds.
    pub pagoda_anonymous_bytes_peak: Option<u64>,
    /// The time after a burst of all the data until its resting process was within the budget and
    /// 16 MiB again.
    pub pagoda_after_burst_ms: Option<Measured>,
    /// The file of `pagoda run --stats` of the last run.
    pub pagoda_stats: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pagoda_reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_thread_reason: Option<String>,
}

/// A tried split of the budget, and its result over the four patterns.
#[derive(Clone, Serialize)]
pub struct TriedSplit {
    pub split: Split,
    pub geometric_mean_gib_s: Option<f64>,
}

/// The phases of one pair of runs. A side that did not run is left out.
#[derive(Default)]
pub struct Pair {
    pub pagoda: Option<Vec<Phase>>,
    pub kernel: Option<Vec<Phase>>,
    pub uncharged: Option<Vec<Phase>>,
    pub in_thread: Option<Vec<Phase>>,
}

type Side = fn(&Pair) -> &Option<Vec<Phase>>;

/// The figures of a pattern over all pairs that count. A side that did not run has nulls.
pub fn figures(pairs: &[Pair], pattern: Pattern) -> Value {
    let phase_of =
        |pair: &Pair, side: Side| side(pair).as_ref()?.iter().find(|p| p.pattern == pattern).cloned();
    let phases = |side: Side| pairs.iter().filter_map(|pair| phase_of(pair, side)).collect::<Vec<_>>();
    let ratios = |of: Side, over: Side| {
        let ratio = |pair| Some(phase_of(pair, of)?.gib_s / phase_of(pair, over)?.gib_s);
        pairs.iter().filter_map(ratio).collect::<Vec<f64>>()
    };
    let rate = |phases: &[Phase]| middle_of(phases, |phase| phase.gib_s);
    let faults = |phases: &[Phase]| median_of(phases, |phase| phase.faults as f64);
    let of = |phases: &[Phase], pick: fn(&Phase) -> Percentiles| {
        median_percentiles(&phases.iter().map(pick).collect::<Vec<_>>())
    };
    let (pagoda, kernel, uncharged, in_thread) =
        (phases(|p| &p.pagoda), phases(|p| &p.kernel), phases(|p| &p.uncharged), phases(|p| &p.in_thread));
    json!({
        "pagoda_gib_s": rate(&pagoda),
        "kernel_gib_s": rate(&kernel),
        "ratio": middle(&ratios(|p| &p.pagoda, |p| &p.kernel)),
        "pagoda_fault_us": of(&pagoda, |p| p.fault_us),
        "kernel_fault_us": of(&kernel, |p| p.fault_us),
        "pagoda_touch_us": of(&pagoda, |p| p.touch_us),
        "kernel_touch_us": of(&kernel, |p| p.touch_us),
        "touches": pagoda.first().or(kernel.first()).map(|phase| phase.touches),
        "pagoda_faults": faults(&pagoda),
        "kernel_faults": faults(&kernel),
        "kernel_uncharged_gib_s": rate(&uncharged),
        "kernel_uncharged_ratio": median(&ratios(|p| &p.pagoda, |p| &p.uncharged)).map(round),
        "kernel_uncharged_fault_us": of(&uncharged, |p| p.fault_us),
        "in_thread_gib_s": rate(&in_thread),
        "in_thread_ratio": middle(&ratios(|p| &p.in_thread, |p| &p.kernel)),
        "in_thread_fault_us": of(&in_thread, |p| p.fault_us),
    })
}

const COLUMNS: [Column; 9] = [
    ("pagoda GiB/s", "{pagoda_gib_s:2s}"),
    ("kernel GiB/s", "{kernel_gib_s:2s}"),
    ("ratio", "{ratio:2s}"),
    ("zram uncharged GiB/s", "{kernel_uncharged_gib_s:2s}"),
    ("in thread GiB/s", "{in_thread_gib_s:2s}"),
    ("its ratio", "{in_thread_ratio:2s}"),
    ("pagoda fault us 50/99/99.9%", "{pagoda_fault_us:0p}"),
    ("kernel fault us 50/99/99.9%", "{kernel_fault_us:0p}"),
    ("in thread fault us 50/99/99.9%", "{in_thread_fault_us:0p}"),
];

/// The tables for people.
pub fn table(report: &Value) -> String {
    let mut text = String::new();
    for name in ["compressed", "spilled"] {
        let Some(setting) = report.get(name) else { continue };
        let details = &setting["setting"];
        text += &format!("\n{name}: ");
        text += &fill("{data_bytes:b} of data in ", details);
        text += &fill("{budget_bytes:b}; ", report);
        text += &fill("LZ4 {lz4_ratio_4k:2}:1 by 4 KiB, {lz4_ratio_64k:2}:1 by 64 KiB; ", details);
        text += &fill("median of {pairs} pairs (least-greatest)\n", report);
        let patterns = ["fill", "sequential", "zipf", "random"];
        text += &text_table(["pattern"], &COLUMNS, patterns.map(|of| ([of.to_owned()], &setting[of])));
        text += "\n";
        if details["pagoda_after_burst_ms"].is_number() {
            let took = "{pagoda_after_burst_ms:0s} ms\n";
            text += "pagoda within the budget and 16 MiB again, after a burst of all the data: ";
            text += &fill(took, details);
        }
        for (key, side) in
            [("pagoda_reason", "pagoda"), ("kernel_reason", "kernel"), ("in_thread_reason", "in thread")]
        {
            if let Some(reason) = details[key].as_str() {
                text += &format!("{side} did not run: {reason}\n");
            }
        }
    }
    if report.get("kernel_reason").is_some() {
        text += &fill("\nno comparison with the kernel: {kernel_reason}\n", report);
    }
    if let Some(figures) = report.get("no_pressure") {
        text += "\nno pressure: budget 1.2 times the native peak\n";
        text += &format!("{}\n", no_pressure::table(figures));
    }
    text
}

#[cfg(test)]
#[path = "report_test.rs"]
mod tests;
