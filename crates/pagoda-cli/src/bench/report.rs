//! The figures as they are printed: JSON whose keys other tools read (`table.rs` has them for people). Pure.
//!
//! Every figure is a median over the pairs that count; every spread is the least and the greatest of them. A side
//! that could not run has nulls and a reason, never a made-up number.

mod table;

use std::collections::BTreeMap;

use serde::Serialize;

use super::histogram::Percentiles;
use super::kernel::{Split, SwapPeak};
use super::machine::Machine;
use super::no_pressure::NoPressure;
use super::stats::{median, median_of, median_percentiles, middle, round};
use super::worker::{Pattern, Phase};

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
    pub pagoda_after_burst_ms: Option<f64>,
    pub pagoda_after_burst_ms_spread: Option<[f64; 2]>,
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
    pub pagoda_gib_s: Option<f64>,
    pub kernel_gib_s: Option<f64>,
    /// Pagoda's rate over the kernel's, by pairs: above 1 Pagoda is faster.
    pub ratio: Option<f64>,
    /// Of touches whose first access took longer than a microsecond.
    pub pagoda_fault_us: Option<Percentiles>,
    pub kernel_fault_us: Option<Percentiles>,
    pub pagoda_gib_s_spread: Option<[f64; 2]>,
    pub kernel_gib_s_spread: Option<[f64; 2]>,
    pub ratio_spread: Option<[f64; 2]>,
    /// Of all touches.
    pub pagoda_touch_us: Option<Percentiles>,
    pub kernel_touch_us: Option<Percentiles>,
    pub touches: Option<u64>,
    pub pagoda_faults: Option<f64>,
    pub kernel_faults: Option<f64>,
    /// The second row: the whole budget as the plain limit of the group, zram charged to nobody.
    pub kernel_uncharged_gib_s: Option<f64>,
    pub kernel_uncharged_gib_s_spread: Option<[f64; 2]>,
    pub kernel_uncharged_ratio: Option<f64>,
    pub kernel_uncharged_fault_us: Option<Percentiles>,
    /// The same memory as a library's region whose faults are served in the thread that has them: no handler is woken.
    pub in_thread_gib_s: Option<f64>,
    pub in_thread_gib_s_spread: Option<[f64; 2]>,
    /// That rate over the kernel's with the same total memory, by pairs.
    pub in_thread_ratio: Option<f64>,
    pub in_thread_ratio_spread: Option<[f64; 2]>,
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
        let (pagoda_gib_s, pagoda_gib_s_spread) = middle(&rates(&pagoda)).unzip();
        let (kernel_gib_s, kernel_gib_s_spread) = middle(&rates(&kernel)).unzip();
        let (ratio, ratio_spread) = middle(&ratios(|p| &p.pagoda, |p| &p.kernel)).unzip();
        let (kernel_uncharged_gib_s, kernel_uncharged_gib_s_spread) = middle(&rates(&uncharged)).unzip();
        let (in_thread_gib_s, in_thread_gib_s_spread) = middle(&rates(&in_thread)).unzip();
        let (in_thread_ratio, in_thread_ratio_spread) =
            middle(&ratios(|p| &p.in_thread, |p| &p.kernel)).unzip();
        Self {
            pagoda_gib_s,
            kernel_gib_s,
            ratio,
            pagoda_fault_us: of(&pagoda, |p| p.fault_us),
            kernel_fault_us: of(&kernel, |p| p.fault_us),
            pagoda_gib_s_spread,
            kernel_gib_s_spread,
            ratio_spread,
            pagoda_touch_us: of(&pagoda, |p| p.touch_us),
            kernel_touch_us: of(&kernel, |p| p.touch_us),
            touches: pagoda.first().or(kernel.first()).map(|phase| phase.touches),
            pagoda_faults: faults(&pagoda),
            kernel_faults: faults(&kernel),
            kernel_uncharged_gib_s,
            kernel_uncharged_gib_s_spread,
            kernel_uncharged_ratio: median(&ratios(|p| &p.pagoda, |p| &p.uncharged)).map(round),
            kernel_uncharged_fault_us: of(&uncharged, |p| p.fault_us),
            in_thread_gib_s,
            in_thread_gib_s_spread,
            in_thread_ratio,
            in_thread_ratio_spread,
            in_thread_fault_us: of(&in_thread, |p| p.fault_us),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::BUDGET_KEYS;
    use super::super::command::expect_documented;
    use super::*;

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
            uncharged: None,
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

    #[test]
    fn json_has_the_documented_shape() {
        let report = Report { no_pressure: Some(NoPressure::default()), ..report(Some(1.0)) };
        let json = serde_json::to_value(report).expect("json");
        assert_eq!(json["bench"], "budget");
        expect_documented(BUDGET_KEYS, &json);
        for pattern in ["fill", "sequential", "zipf", "random"] {
            let figures = &json["compressed"][pattern];
            assert_eq!((&figures["pagoda_gib_s"], &figures["kernel_gib_s"]), (&3.0.into(), &1.0.into()));
            assert_eq!(figures["ratio"], 4.0, "the median of 2, 4 and 6, not the ratio of medians");
            assert_eq!(figures["ratio_spread"], serde_json::json!([2.0, 6.0]));
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
        let json = serde_json::to_value(&report).expect("json");
        assert!(json.as_object().expect("an object").contains_key("kernel") && json["kernel"].is_null());
        assert_eq!(json["kernel_reason"], "not root");
        assert!(
            json["compressed"]["fill"]["kernel_gib_s"].is_null()
                && json["compressed"]["fill"]["ratio"].is_null()
        );
        assert!(report.table().contains("not root"));
    }
}
