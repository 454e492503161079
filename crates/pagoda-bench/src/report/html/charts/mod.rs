//! Which figures of a bench's JSON become bars. Pure.
//!
//! A figure that is null or not there becomes no bar: a side that could not run has none. This module must never compute
//! more than a ratio.

mod base_page;
mod migrate;

use serde_json::Value;

pub use base_page::base_page;
pub use migrate::migrate;

use super::svg::{Bar, Chart, Side};
use crate::suites::zones::PUBLISHED;

/// Medians, and better the larger.
const GIB_S: &str = "GiB/s, more is better";
const OVER_NATIVE: &str = "time over native, less is better";

fn number(json: &Value, path: &str) -> Option<f64> {
    json.pointer(path)?.as_f64()
}

/// The least and the greatest value of a figure.
fn spread(json: &Value, path: &str) -> Option<[f64; 2]> {
    Some([number(json, &format!("{path}_least"))?, number(json, &format!("{path}_most"))?])
}

/// Collects bars.
struct Bars<'a> {
    json: &'a Value,
    bars: Vec<Bar>,
}

impl<'a> Bars<'a> {
    fn of(json: &'a Value) -> Self {
        Self { json, bars: Vec::new() }
    }
    fn known(mut self, side: Side, label: impl Into<String>, value: f64) -> Self {
        self.bars.push(Bar { label: label.into(), side, value, spread: None });
        self
    }
    /// The number at a path, with its least and its greatest value where it has them.
    fn figure(mut self, side: Side, label: impl Into<String>, path: &str) -> Self {
        if let Some(value) = number(self.json, path) {
            let spread = spread(self.json, path);
            self.bars.push(Bar { label: label.into(), side, value, spread });
        }
        self
    }
    /// One count over another: of what has no spread.
    fn ratio_of_counts(mut self, side: Side, label: impl Into<String>, path: &str, over: &str) -> Self {
        if let (Some(value), Some(over)) = (number(self.json, path), number(self.json, over))
            && over > 0.0
        {
            self.bars.push(Bar { label: label.into(), side, value: value / over, spread: None });
        }
        self
    }
    fn chart(self, title: impl Into<String>, unit: &'static str) -> Chart {
        Chart { title: title.into(), unit, bars: self.bars }
    }
}

/// Of `pagoda bench budget`.
pub fn budget(json: &Value) -> Vec<Chart> {
    const PATTERNS: [&str; 4] = ["fill", "sequential", "zipf", "random"];
    let mut charts = Vec::new();
    for (setting, title) in [
        ("compressed", "Twice the budget, 3:1 data"),
        ("spilled", "Three times the budget, 2:1 data, spilled"),
    ] {
        let (mut rates, mut faults) = (Bars::of(json), Bars::of(json));
        for pattern in PATTERNS {
            let at = |key: &str| format!("/{setting}/{pattern}/{key}");
            rates = rates
                .figure(Side::Kernel, format!("{pattern}, zram and swap"), &at("kernel_gib_s"))
                .figure(Side::Pagoda, format!("{pattern}, Pagoda"), &at("pagoda_gib_s"))
                .figure(Side::Pagoda, format!("{pattern}, faults in thread"), &at("in_thread_gib_s"));
            faults = faults
                .figure(Side::Kernel, format!("{pattern}, zram and swap"), &at("kernel_fault_us/p99"))
                .figure(Side::Pagoda, format!("{pattern}, Pagoda"), &at("pagoda_fault_us/p99"))
                .figure(Side::Pagoda, format!("{pattern}, faults in thread"), &at("in_thread_fault_us/p99"));
        }
        charts.push(rates.chart(title, GIB_S));
        charts.push(faults.chart(format!("{title}: faults, p99"), "microseconds, less is better"));
    }
    let mut programs = Bars::of(json).known(Side::Baseline, "native", 1.0);
    for group in ["programs", "churns"] {
        let outcomes = json.pointer(&format!("/no_pressure/{group}")).and_then(Value::as_object);
        for (name, outcome) in outcomes.into_iter().flatten() {
            if let Some(percent) = number(outcome, "/overhead_percent") {
                let (side, spread) = (Side::Pagoda, spread(outcome, "/ratio"));
                let label = if group == "churns" { format!("{name} churn") } else { name.clone() };
                programs.bars.push(Bar { label, side, value: 1.0 + percent / 100.0, spread });
            }
        }
    }
    charts.push(programs.chart("Where memory suffices, 1.2 times the native peak", OVER_NATIVE));
    charts
}

/// Of `pagoda bench tree`.
pub fn tree(json: &Value) -> Vec<Chart> {
    const TREES: [(&str, &str); 4] =
        [("spawn_storm", "short processes"), ("build", "a build"), ("jvm", "a JVM"), ("node", "node")];
    let mut ratios = Bars::of(json).known(Side::Baseline, "native", 1.0);
    ratios = ratios.figure(Side::Pagoda, "a call of fork", "/fork_ms/ratio");
    let mut halves = Bars::of(json);
    for (key, name) in TREES {
        ratios = ratios.figure(Side::Pagoda, name, &format!("/{key}/ratio"));
        halves = halves
            .figure(Side::Baseline, format!("{name}, native"), &format!("/{key}/native_s"))
            .figure(Side::Pagoda, format!("{name}, in half"), &format!("/{key}/half_s"));
    }
    let side = |key: &str| format!("/redis_bgsave/{key}");
    let requests = Bars::of(json)
        .figure(Side::Baseline, "native", &side("native_ops"))
        .figure(Side::Kernel, "half the memory, zram", &side("kernel_ops"))
        .figure(Side::Pagoda, "half the memory, Pagoda", &side("pagoda_ops"))
        .figure(Side::Pagoda, "1.2 times the memory, Pagoda", &side("enough_ops"));
    let waits = Bars::of(json)
        .figure(Side::Baseline, "native", &side("native_p99_ms"))
        .figure(Side::Kernel, "half the memory, zram", &side("kernel_p99_ms"))
        .figure(Side::Pagoda, "half the memory, Pagoda", &side("p99_ms"))
        .figure(Side::Pagoda, "1.2 times the memory, Pagoda", &side("enough_p99_ms"));
    vec![
        ratios.chart("Where memory suffices, 1.2 times the native peak", OVER_NATIVE),
        halves.chart("In half of the native peak", "seconds, less is better"),
        requests.chart("redis while it saves", "requests a second, more is better"),
        waits.chart("redis while it saves, p99", "milliseconds, less is better"),
    ]
}

/// Of `pagoda bench programs`.
pub fn programs(json: &Value) -> Vec<Chart> {
    const PARTS: [(&str, &str); 3] = [("three_quarters", "3/4"), ("half", "half"), ("quarter", "a quarter")];
    let programs = json.pointer("/programs").and_then(Value::as_object);
    let of_part = |(part, title): (&str, &str)| {
        programs?.values().any(|figures| figures.get(part).is_some()).then_some(())?;
        let mut bars = Bars::of(json).known(Side::Baseline, "native", 1.0);
        for (name, figures) in programs.into_iter().flatten() {
            let at = |key: &str| number(figures, &format!("/{part}/{key}"));
            let alive = figures.pointer(&format!("/{part}/kernel/end")).is_some_and(|end| end == "ok");
            let native = number(figures, "/native/s").filter(|_| alive);
            if let (Some(kernel), Some(native)) = (at("kernel/s"), native) {
                bars = bars.known(Side::Kernel, format!("{name}, zram and swap"), kernel / native);
            }
            if let Some(ratio) = at("ratio_native") {
                bars = bars.known(Side::Pagoda, format!("{name}, Pagoda"), ratio);
            }
        }
        Some(bars.chart(format!("Programs in {title} of their native peak"), OVER_NATIVE))
    };
    PARTS.into_iter().filter_map(of_part).collect()
}

/// Of `pagoda bench clear`.
pub fn clear(json: &Value) -> Vec<Chart> {
    let mut charts = Vec::new();
    let rows = json.pointer("/anon_w_seq").and_then(Value::as_array);
    for row in rows.into_iter().flatten() {
        let processes = row.pointer("/processes").and_then(Value::as_u64).unwrap_or(0);
        let bars = Bars::of(row)
            .known(Side::Published, "converge, 72 processes, 36 cores", 1.283)
            .known(Side::Baseline, "ascending", 1.0)
            .figure(Side::Kernel, "the kernel's huge pages", "/ratio_kernel_thp_vs_ascending")
            .figure(Side::Pagoda, "converge (the published order)", "/ratio_converge_vs_ascending")
            .figure(Side::Pagoda, "reverse in each page", "/ratio_reverse_in_page_vs_ascending")
            .figure(Side::Pagoda, "neighbourhood", "/ratio_neighbourhood_vs_ascending")
            .figure(Side::Pagoda, "streaming", "/ratio_streaming_vs_ascending");
        charts.push(bars.chart(
            format!("anon-w-seq, {processes} processes"),
            "rate over clearing from the beginning, more is better",
        ));
    }
    const ORDERS: [&str; 5] = ["ascending", "converge", "reverse-in-page", "neighbourhood", "streaming"];
    let side = |order: &str| if order == "ascending" { Side::Baseline } else { Side::Pagoda };
    for (part, beside) in [("orders", "alone"), ("pressure", "beside a thrasher of the cache")] {
        let of = |key: &str| {
            ORDERS.iter().fold(Bars::of(json), |bars, order| {
                bars.figure(side(order), *order, &format!("/{part}/{order}/{key}"))
            })
        };
        charts.push(of("first_touch_ns").chart(
            format!("First touch of the page that was waited for, {beside}"),
            "nanoseconds, less is better",
        ));
        charts.push(of("total_us").chart(
            format!("Clearing 2 MiB and touching the page, {beside}"),
            "microseconds, less is better",
        ));
    }
    charts.push(
        Bars::of(json)
            .figure(Side::Kernel, "the kernel's huge page", "/fault/kernel_thp_us")
            .figure(Side::Pagoda, "a huge frame, cleared in the fault", "/fault/pagoda_us")
            .figure(Side::Pagoda, "a huge frame, cleared ahead", "/fault/pagoda_prezeroed_us")
            .figure(Side::Pagoda, "in thread, cleared in the fault", "/fault/in_thread_us")
            .figure(Side::Pagoda, "in thread, cleared ahead", "/fault/in_thread_prezeroed_us")
            .chart("From a touch to its return, 2 MiB", "microseconds, less is better"),
    );
    charts
}

/// Of `pagoda bench release`.
pub fn release(json: &Value) -> Vec<Chart> {
    const POLICIES: [(&str, Side); 4] = [
        ("one-at-a-time", Side::Baseline),
        ("runs", Side::Baseline),
        ("background", Side::Pagoda),
        ("workers", Side::Pagoda),
    ];
    let ratios = Bars::of(json)
        .known(Side::Published, "an application's start, 8 GB phone", 1204.0 / 1512.0)
        .known(Side::Published, "a camera's preview, 8 GB phone", 205.0 / 352.0)
        .known(Side::Baseline, "one at a time", 1.0)
        .figure(Side::Pagoda, "in the background", "/ratios/starter_background_vs_one")
        .figure(Side::Pagoda, "in the background, more workers", "/ratios/starter_workers_vs_one")
        .figure(Side::Pagoda, "in the background, the start", "/ratios/starter_start_background_vs_one")
        .figure(Side::Pagoda, "in the background, its work", "/ratios/starter_work_background_vs_one");
    let of = |key: &str| {
        POLICIES.iter().fold(Bars::of(json), |bars, (policy, side)| {
            bars.figure(*side, *policy, &format!("/policies/{policy}/{key}"))
        })
    };
    let fetches = Bars::of(json)
        .figure(Side::Pagoda, "the first byte, p50", "/store/fetch_first_us/p50")
        .figure(Side::Pagoda, "all of it, p50", "/store/fetch_us/p50")
        .figure(Side::Pagoda, "all of it, p99", "/store/fetch_us/p99")
        .figure(Side::Pagoda, "in thread, the first byte, p50", "/store/fetch_first_in_thread_us/p50")
        .figure(Side::Pagoda, "in thread, all of it, p50", "/store/fetch_in_thread_us/p50")
        .figure(Side::Pagoda, "in thread, all of it, p99", "/store/fetch_in_thread_us/p99");
    let mut aging = Bars::of(json);
    let shares = json.pointer("/aging/stored_percent").and_then(Value::as_array);
    for (at, percent) in shares.into_iter().flatten().enumerate() {
        for (policy, side) in [("one-at-a-time", Side::Baseline), ("background", Side::Pagoda)] {
            aging = aging.figure(
                side,
                format!("{percent}% stored, {policy}"),
                &format!("/aging/close_ms/{policy}/{at}"),
            );
        }
    }
    vec![
        ratios.chart("An owner that starts while others close", "time over one at a time, less is better"),
        of("starter_start_ms")
            .figure(Side::Baseline, "nobody closes", "/starter_alone/start_ms")
            .chart("The start of an owner while others close", "milliseconds, less is better"),
        of("close_ms_p50")
            .figure(Side::Baseline, "nothing was stored", "/never_stored/close_ms_p50")
            .figure(Side::Kernel, "killed, as much in zram", "/kernel_zram/kill_ms")
            .figure(Side::Kernel, "killed, nothing was swapped", "/kernel_zram/kill_never_swapped_ms")
            .figure(Side::Pagoda, "killed under pagoda run", "/run_kill9_ms")
            .chart("Closing an owner, or killing it", "milliseconds, less is better"),
        of("cpu_ms").chart("Processor time of the release, all threads", "milliseconds, less is better"),
        aging.chart(
            "Closing by how much is stored, as published after 0 to 15 minutes",
            "milliseconds, less is better",
        ),
        fetches.chart("64 KiB back from compressed memory", "microseconds, less is better"),
    ]
}

/// Of `pagoda bench counters`.
pub fn counters(json: &Value) -> Vec<Chart> {
    let costs = Bars::of(json)
        .figure(Side::Pagoda, "counting, one thread", "/counting_ns")
        .figure(Side::Pagoda, "counting, all handlers at once", "/counting_at_once_ns")
        .figure(Side::Pagoda, "one read of the clock", "/clock_ns");
    let part = Bars::of(json).figure(Side::Pagoda, "counting", "/counting_percent").figure(
        Side::Pagoda,
        "counting and the clock",
        "/timing_percent",
    );
    vec![
        costs.chart("Counting and timing one fault", "nanoseconds, less is better"),
        part.chart("Of what serving a fault takes", "percent of the median, less is better"),
    ]
}

/// Of `pagoda bench zones`.
pub fn zones(json: &Value) -> Vec<Chart> {
    const POLICIES: [(&str, Side); 4] = [
        ("first-fit", Side::Baseline),
        ("reset-on-failure", Side::Baseline),
        ("first-version", Side::Baseline),
        ("fair", Side::Pagoda),
    ];
    let counts = |case: &str, key: &str, published: f64| {
        let merged = Bars::of(json).known(Side::Published, "fair, as merged", published);
        POLICIES.iter().fold(merged, |bars, (policy, side)| {
            bars.figure(*side, *policy, &format!("/cases/{case}/{policy}/{key}"))
        })
    };
    let mut shares = Bars::of(json).known(Side::Published, "fair, as merged", 6000.0 / 8000.0).known(
        Side::Published,
        "first version",
        7900.0 / 8000.0,
    );
    for (policy, side) in POLICIES {
        let of = |zone: usize| number(json, &format!("/cases/C/{policy}/shares/{zone}"));
        if let (Some(first), Some(second)) = (of(0), of(1))
            && first + second > 0.0
        {
            let (label, value) = (policy.to_owned(), first / (first + second));
            shares.bars.push(Bar { label, side, value, spread: None });
        }
    }
    let mut gains = Bars::of(json);
    for (threads, published) in PUBLISHED {
        let here = format!("/tiobench/seq_read/{threads}/ratio_fair_vs_reset");
        gains = gains.known(Side::Published, format!("{threads} threads, published"), published).figure(
            Side::Pagoda,
            format!("{threads} threads"),
            &here,
        );
    }
    let mut streams = Bars::of(json).figure(Side::Kernel, "mmap", "/kernel_mmap/seq_read_mib_s").figure(
        Side::Kernel,
        "mmap, told to read ahead",
        "/kernel_mmap/seq_read_advised_mib_s",
    );
    for (policy, side) in POLICIES {
        streams = streams.figure(side, policy, &format!("/tiobench/seq_read/1/{policy}/mib_s"));
    }
    vec![
        counts("A", "scans", 1000.0).chart("A: both zones short, scans", "scans, less is better"),
        counts("B", "scans", 1010.0).chart("B: one short, one used up, scans", "scans, less is better"),
        shares.chart("C: 3:1 beside a remote zone, what the first zone gave", "share, 0.75 is right"),
        counts("D", "resets", 19.0).chart("D: nothing short, resets", "resets, less is better"),
        gains.chart(
            "Streaming reads of twice the memory, fair over reset on failure",
            "ratio, more is better",
        ),
        streams.chart("Streaming reads of twice the memory, one thread", "MiB/s, more is better"),
        Bars::of(json)
            .figure(Side::Baseline, "without a cache", "/alloc_ns/cold")
            .figure(Side::Pagoda, "with a cache", "/alloc_ns/warm")
            .chart("One allocation", "nanoseconds, less is better"),
    ]
}
