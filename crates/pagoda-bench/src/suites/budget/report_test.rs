use super::*;
use crate::report::json::report;
use crate::report::keys::expect_told;
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

fn setting(kernel: Option<f64>, setting: Details) -> Setting {
    let pair = |pagoda, scale: f64| Pair {
        pagoda: Some(phases(pagoda)),
        kernel: kernel.map(|rate| phases(rate * scale)),
        uncharged: kernel.map(phases),
        in_thread: Some(phases(2.0 * pagoda)),
    };
    let pairs = [pair(2.0, 1.0), pair(4.0, 1.0), pair(3.0, 0.5)];
    let patterns = phases(1.0).iter().map(|p| (p.pattern, figures(&pairs, p.pattern))).collect();
    Setting { patterns, setting }
}

/// Details with nothing left out.
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
    let times = json!({
        "overhead_percent": 0, "ratio": Measured::once(1.0), "native_s": 1, "pagoda_s": 1,
        "native_peak_bytes": 1, "budget_bytes": 1, "pairs": 1,
    });
    let no_pressure = json!({
        "overhead_percent_max": 0, "malloc_churn_ratio": 1, "thread_churn_ratio": 1,
        "programs": { "python3": times, "redis-benchmark": times, "sort": times },
        "churns": { "malloc": times, "thread": times },
    });
    let setting = || setting(Some(1.0), details());
    let figures = json!({
        "compressed": setting(), "spilled": setting(), "no_pressure": no_pressure,
        "kernel": "memcg", "budget_bytes": 1 << 20, "pairs": 3,
    });
    expect_told("budget", KEYS, &report("budget", true, figures));
}

#[test]
fn ratios_are_of_pairs() {
    let json = report("budget", true, json!({ "compressed": setting(Some(1.0), Details::default()) }));
    for pattern in ["fill", "sequential", "zipf", "random"] {
        let figures = &json["compressed"][pattern];
        assert_eq!([&figures["pagoda_gib_s"], &figures["kernel_gib_s"]], [3.0, 1.0]);
        assert_eq!(figures["ratio"], 4.0, "the median of 2, 4 and 6, not the ratio of medians");
        assert_eq!([&figures["ratio_least"], &figures["ratio_most"]], [2.0, 6.0]);
        assert_eq!([&figures["in_thread_gib_s"], &figures["in_thread_ratio"]], [6.0, 8.0]);
    }
}

#[test]
fn without_the_kernel_there_are_nulls_and_a_reason() {
    let figures = json!({
        "compressed": setting(None, Details::default()), "kernel": null, "kernel_reason": "not root",
    });
    let json = report("budget", true, figures);
    let fill = &json["compressed"]["fill"];
    assert!(fill["kernel_gib_s"].is_null() && fill["ratio"].is_null());
    assert!(table(&json).contains("not root"));
}
