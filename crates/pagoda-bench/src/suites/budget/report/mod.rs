//! The figures as they are printed: JSON whose keys other tools read (`table.rs` has them for people). Pure.
//!
//! Every figure is a median over the pairs that count; every spread is the least and the greatest of them. A side
//! that could not run has nulls and a reason, never a made-up number.

mod table;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::kernel::{Split, SwapPeak};
use crate::measure::histogram::Percentiles;
use crate::measure::machine::Machine;
use crate::measure::stats::{Measured, median, median_of, median_percentiles, middle, round};
use crate::suites::budget::no_pressure::NoPressure;
use crate::worker::{Pattern, Phase};

/// What `--help` says of the keys.
pub const KEYS: &str = "\
Keys of the JSON; rates, times and ratios, each of one pair, are medians of the pairs that count, with the least and the greatest in
…_least and …_most; what was not measured is null, a part that --only leaves out is missing:
  compressed.PATTERN          data of 3:1 and twice the budget, and in spilled.PATTERN of 2:1 and three times; of the patterns fill,
                              sequential, zipf, random, GiB of touched pages a second: pagoda_gib_s under pagoda run, kernel_gib_s
                              with the same total memory, kernel_uncharged_gib_s with the budget for what is resident and zram
                              charged to nobody, in_thread_gib_s in a library's region whose faults are served in the thread that has
                              them. ratio is Pagoda's over the kernel's, in_thread_ratio that of in_thread, kernel_uncharged_ratio
                              pagoda_gib_s over kernel_uncharged_gib_s. How long first accesses took, p50, p99 and p999 in
                              microseconds: of touches that took more than one pagoda_fault_us, kernel_fault_us,
                              kernel_uncharged_fault_us, in_thread_fault_us; of all pagoda_touch_us, kernel_touch_us. touches is how
                              many a run has, pagoda_faults and kernel_faults how many of them took more than a microsecond
  compressed.setting          how it was measured, and spilled.setting the same: data_bytes; lz4_ratio_4k and lz4_ratio_64k, what LZ4
                              makes of them by 4 and by 64 KiB
  compressed.setting.kernel_split  how the budget was divided: memcg_limit_bytes of the memory group, zram_limit_bytes of memory for zram,
                              zram_disk_bytes of content in it, swap_file_bytes behind it. kernel_splits_tried has each split that
                              was tried, and the geometric_mean_gib_s of its patterns, null if it failed
  compressed.setting.kernel_swap_peak  of the run that took most: zram_memory_bytes, zram_memory_per_content, that over the content it
                              held, swap_file_bytes; kernel_uncharged_swap_peak the same with zram charged to nobody
  compressed.setting.pagoda_anonymous_bytes_peak  the most that the process under Pagoda was seen with
  compressed.setting.pagoda_after_burst_ms  from the end of a burst of all the data until the process, at rest, is within the budget
                              and 16 MiB again
  compressed.setting.pagoda_stats  what `pagoda run --stats` wrote of the last run; the library's pagoda::stats::counters::Stats says what
                              its counters are
  compressed.setting.pagoda_reason, compressed.setting.in_thread_reason, compressed.setting.kernel_reason  why a side failed; missing
                              if it did not
  no_pressure.programs        python3, redis-benchmark, sort, with budget_bytes, 1.2 times native_peak_bytes, of a run before all pairs,
                              or the least budget: native_s, pagoda_s, overhead_percent of the ratio, pairs; or
                              why not: left_out if it does not run natively, failed if not under Pagoda
  no_pressure.churns          the same of malloc, allocations from two threads, and thread, threads that start and end
  no_pressure.overhead_percent_max  the largest of the programs
  no_pressure.malloc_churn_ratio, no_pressure.thread_churn_ratio  time over native time
  kernel                      how its side was made; null if this machine does not allow it, and kernel_reason, missing else, says why
  budget_bytes, pairs         what was run";

/// All that `pagoda bench budget` found out.
#[derive(Serialize)]
pub struct Report {
    pub bench: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compressed: Option<Setting>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spilled: Option<Setting>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_pressure: Option<NoPressure>,
    /// How the kernel's side was made; null if this machine doesn't allow it.
    pub kernel: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_reason: Option<String>,
    pub budget_bytes: u64,
    /// Pairs that count, the discarded first one not included.
    pub pairs: usize,
    pub quick: bool,
    pub machine: Machine,
}

/// One setting: four patterns, and how they were measured.
#[derive(Serialize)]
pub struct Setting {
    #[serde(flatten)]
    pub patterns: BTreeMap<Pattern, Figures>,
    pub setting: Details,
}

/// How a setting was measured.
#[derive(Default, Serialize)]
pub struct Details {
    pub data_bytes: u64,
    /// What LZ4 makes of the data, 4 KiB at a time.
    pub lz4_ratio_4k: f64,
    /// The same, 64 KiB at a time.
    pub lz4_ratio_64k: f64,
    pub kernel_split: Option<Split>,
    pub kernel_splits_tried: Vec<TriedSplit>,
    pub kernel_swap_peak: Option<SwapPeak>,
    pub kernel_uncharged_swap_peak: Option<SwapPeak>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_reason: Option<String>,
    /// The most anonymous memory that the process under Pagoda was seen with, every ten milliseconds.
    pub pagoda_anonymous_bytes_peak: Option<u64>,
    /// How long it took after a burst of all the data until its process was within the budget and 16 MiB again, at rest.
    pub pagoda_after_burst_ms: Option<Measured>,
    /// What `pagoda run --stats` wrote for the last run.
    pub pagoda_stats: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pagoda_reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_thread_reason: Option<String>,
}

/// A division of the budget that was tried, and what it reached over the four patterns.
#[derive(Clone, Serialize)]
pub struct TriedSplit {
    pub split: Split,
    pub geometric_mean_gib_s: Option<f64>,
}

/// The figures of one pattern.
#[derive(Serialize)]
pub struct Figures {
    pub pagoda_gib_s: Option<Measured>,
    pub kernel_gib_s: Option<Measured>,
    /// Pagoda's rate over the kernel's, by pairs: above 1 Pagoda is faster.
    pub ratio: Option<Measured>,
    /// Of touches whose first access took longer than a microsecond.
    pub pagoda_fault_us: Option<Percentiles>,
    pub kernel_fault_us: Option<Percentiles>,
    /// Of all touches.
    pub pagoda_touch_us: Option<Percentiles>,
    pub kernel_touch_us: Option<Percentiles>,
    pub touches: Option<u64>,
    pub pagoda_faults: Option<f64>,
    pub kernel_faults: Option<f64>,
    /// The second row: the whole budget as the plain limit of the group, zram charged to nobody.
    pub kernel_uncharged_gib_s: Option<Measured>,
    pub kernel_uncharged_ratio: Option<f64>,
    pub kernel_uncharged_fault_us: Option<Percentiles>,
    /// The same memory as a library's region whose faults are served in the thread that has them: no handler is woken.
    pub in_thread_gib_s: Option<Measured>,
    /// That rate over the kernel's with the same total memory, by pairs.
    pub in_thread_ratio: Option<Measured>,
    pub in_thread_fault_us: Option<Percentiles>,
}

/// What one pair of runs measured, a side that did not run left out.
#[derive(Default)]
pub struct Pair {
    pub pagoda: Option<Vec<Phase>>,
    pub kernel: Option<Vec<Phase>>,
    pub uncharged: Option<Vec<Phase>>,
    pub in_thread: Option<Vec<Phase>>,
}

type Side = fn(&Pair) -> &Option<Vec<Phase>>;

impl Figures {
    /// The figures of a pattern over all pairs that count.
    pub fn of(pairs: &[Pair], pattern: Pattern) -> Self {
        let phase_of =
            |pair: &Pair, side: Side| side(pair).as_ref()?.iter().find(|p| p.pattern == pattern).cloned();
        let phases = |side: Side| pairs.iter().filter_map(|pair| phase_of(pair, side)).collect::<Vec<_>>();
        let ratios = |of: Side, over: Side| {
            let ratio = |pair| Some(phase_of(pair, of)?.gib_s / phase_of(pair, over)?.gib_s);
            pairs.iter().filter_map(ratio).collect::<Vec<f64>>()
        };
        let rates = |phases: &[Phase]| phases.iter().map(|phase| phase.gib_s).collect::<Vec<_>>();
        let faults = |phases: &[Phase]| median_of(phases, |phase| phase.faults as f64);
        let of = |phases: &[Phase], pick: fn(&Phase) -> Percentiles| {
            median_percentiles(&phases.iter().map(pick).collect::<Vec<_>>())
        };
        let (pagoda, kernel, uncharged) =
            (phases(|p| &p.pagoda), phases(|p| &p.kernel), phases(|p| &p.uncharged));
        let in_thread = phases(|p| &p.in_thread);
        Self {
            pagoda_gib_s: middle(&rates(&pagoda)),
            kernel_gib_s: middle(&rates(&kernel)),
            ratio: middle(&ratios(|p| &p.pagoda, |p| &p.kernel)),
            pagoda_fault_us: of(&pagoda, |p| p.fault_us),
            kernel_fault_us: of(&kernel, |p| p.fault_us),
            pagoda_touch_us: of(&pagoda, |p| p.touch_us),
            kernel_touch_us: of(&kernel, |p| p.touch_us),
            touches: pagoda.first().or(kernel.first()).map(|phase| phase.touches),
            pagoda_faults: faults(&pagoda),
            kernel_faults: faults(&kernel),
            kernel_uncharged_gib_s: middle(&rates(&uncharged)),
            kernel_uncharged_ratio: median(&ratios(|p| &p.pagoda, |p| &p.uncharged)).map(round),
            kernel_uncharged_fault_us: of(&uncharged, |p| p.fault_us),
            in_thread_gib_s: middle(&rates(&in_thread)),
            in_thread_ratio: middle(&ratios(|p| &p.in_thread, |p| &p.kernel)),
            in_thread_fault_us: of(&in_thread, |p| p.fault_us),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::keys::expect_told;
    use crate::suites::budget::no_pressure::{Outcome, Times};
    use pagoda_core::size::Bytes;

    fn phases(gib_s: f64) -> Vec<Phase> {
        let p = Percentiles { p50: 1.0 / gib_s, p99: 2.0, p999: 3.0 };
        let phase = |pattern| Phase {
            pattern,
            touches: 8,
            gib_s,
            faults: 4,
            fault_us: p,
            touch_us: p,
            pages_checked_whole: 1,
        };
        [Pattern::Fill, Pattern::Sequential, Pattern::Zipf, Pattern::Random].map(phase).to_vec()
    }

    fn report(kernel: Option<f64>) -> Report {
        let pair = |pagoda, scale: f64| Pair {
            pagoda: Some(phases(pagoda)),
            kernel: kernel.map(|rate| phases(rate * scale)),
            uncharged: kernel.map(phases),
            in_thread: Some(phases(2.0 * pagoda)),
        };
        let pairs = [pair(2.0, 1.0), pair(4.0, 1.0), pair(3.0, 0.5)];
        let patterns = phases(1.0).iter().map(|p| (p.pattern, Figures::of(&pairs, p.pattern))).collect();
        Report {
            bench: "budget",
            compressed: Some(Setting { patterns, setting: Details::default() }),
            spilled: None,
            no_pressure: None,
            kernel: kernel.map(|_| "memcg"),
            kernel_reason: kernel.is_none().then(|| "not root".to_owned()),
            budget_bytes: 1 << 20,
            pairs: 3,
            quick: false,
            machine: Machine::this(),
        }
    }

    /// With nothing left out.
    fn details() -> Details {
        let split = Split::uncharged(Bytes::mib(1), Bytes::mib(2));
        Details {
            kernel_split: Some(split),
            kernel_splits_tried: vec![TriedSplit { split, geometric_mean_gib_s: Some(1.0) }],
            kernel_swap_peak: Some(SwapPeak::default()),
            kernel_uncharged_swap_peak: Some(SwapPeak::default()),
            pagoda_stats: Some(serde_json::json!({ "counters": { "faults": 1 } })),
            ..Details::default()
        }
    }

    #[test]
    fn each_key_is_in_the_help_and_in_the_figures_of_the_page() {
        let all_of = |names: &[&str]| {
            names.iter().map(|name| (name.to_string(), Outcome::Measured(Times::default()))).collect()
        };
        let no_pressure = NoPressure {
            programs: all_of(&["python3", "redis-benchmark", "sort"]),
            churns: all_of(&["malloc", "thread"]),
            ..NoPressure::default()
        };
        let mut report = Report {
            spilled: report(Some(1.0)).compressed,
            no_pressure: Some(no_pressure),
            ..report(Some(1.0))
        };
        for setting in [&mut report.compressed, &mut report.spilled] {
            setting.as_mut().expect("both were measured").setting = details();
        }
        expect_told("budget", KEYS, &crate::report::json::json(&report).expect("json"));
    }

    #[test]
    fn json_has_the_documented_shape() {
        let json = crate::report::json::json(&report(Some(1.0))).expect("json");
        assert_eq!(json["bench"], "budget");
        for pattern in ["fill", "sequential", "zipf", "random"] {
            let figures = &json["compressed"][pattern];
            assert_eq!((&figures["pagoda_gib_s"], &figures["kernel_gib_s"]), (&3.0.into(), &1.0.into()));
            assert_eq!(figures["ratio"], 4.0, "the median of 2, 4 and 6, not the ratio of medians");
            assert_eq!([&figures["ratio_least"], &figures["ratio_most"]], [2.0, 6.0]);
            assert_eq!(
                (&figures["in_thread_gib_s"], &figures["in_thread_ratio"]),
                (&6.0.into(), &8.0.into())
            );
            for key in ["pagoda_fault_us", "kernel_fault_us", "in_thread_fault_us"] {
                assert!(figures[key]["p50"].is_f64() && figures[key]["p999"].is_f64(), "{key}");
            }
        }
    }

    #[test]
    fn without_the_kernel_there_are_nulls_and_a_reason() {
        let report = report(None);
        let json = crate::report::json::json(&report).expect("json");
        assert!(json.as_object().expect("an object").contains_key("kernel") && json["kernel"].is_null());
        assert_eq!(json["kernel_reason"], "not root");
        assert!(
            json["compressed"]["fill"]["kernel_gib_s"].is_null()
                && json["compressed"]["fill"]["ratio"].is_null()
        );
        assert!(report.table().contains("not root"));
    }
}
