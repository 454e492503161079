//! The figures of a bench's JSON that become bars. Pure.
//!
//! A figure that is null or missing becomes no bar: a side that could not run has none. This module
//! must never compute more than a ratio.

mod base_page;
mod migrate;

use serde_json::Value;

pub use base_page::base_page;
pub use migrate::migrate;

use super::svg::Side::{Baseline, Kernel, Pagoda, Published};
use super::svg::{Bar, Chart, Side};
use crate::suites::zones::PUBLISHED;

/// Units of medians: throughput, and time over the native run.
const GIB_S: &str = "GiB/s, more is better";
const OVER_NATIVE: &str = "time over native, less is better";

fn number(json: &Value, path: &str) -> Option<f64> {
    json.pointer(path)?.as_f64()
}

/// The least and the greatest value of a figure.
fn spread(json: &Value, path: &str) -> Option<[f64; 2]> {
    Some([number(json, &format!("{path}_least"))?, number(json, &format!("{path}_most"))?])
}

/// A side of a chart: its label, and its name in a path.
type Named<'a> = (Side, &'a str, &'a str);

/// A chart under construction.
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
    /// Adds the number at a path, with its least and greatest values where it has them.
    fn figure(mut self, side: Side, label: impl Into<String>, path: &str) -> Self {
        if let Some(value) = number(self.json, path) {
            let spread = spread(self.json, path);
            self.bars.push(Bar { label: label.into(), side, value, spread });
        }
        self
    }
    /// Adds a figure for each of `sides`. Its label and name take the place of the `*` of both.
    fn each(self, label: &str, path: &str, sides: &[Named]) -> Self {
        sides.iter().fold(self, |bars, (side, named, name)| {
            bars.figure(*side, label.replace('*', named), &path.replace('*', name))
        })
    }
    /// Adds one count over another. Counts have no spread.
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

/// The charts of `pagoda bench budget`.
pub fn budget(json: &Value) -> Vec<Chart> {
    const PATTERNS: [&str; 4] = ["fill", "sequential", "zipf", "random"];
    const SIDES: [Named; 3] = [
        (Kernel, "zram and swap", "kernel"),
        (Pagoda, "Pagoda", "pagoda"),
        (Pagoda, "faults in thread", "in_thread"),
    ];
    let mut charts = Vec::new();
    for (setting, title) in [
        ("compressed", "Twice the budget, 3:1 data"),
        ("spilled", "Three times the budget, 2:1 data, spilled"),
    ] {
        let (mut rates, mut faults) = (Bars::of(json), Bars::of(json));
        for pattern in PATTERNS {
            let label = format!("{pattern}, *");
            rates = rates.each(&label, &format!("/{setting}/{pattern}/*_gib_s"), &SIDES);
            faults = faults.each(&label, &format!("/{setting}/{pattern}/*_fault_us/p99"), &SIDES);
        }
        charts.push(rates.chart(title, GIB_S));
        charts.push(faults.chart(format!("{title}: faults, p99"), "microseconds, less is better"));
    }
    let mut programs = Bars::of(json).known(Baseline, "native", 1.0);
    for group in ["programs", "churns"] {
        let outcomes = json.pointer(&format!("/no_pressure/{group}")).and_then(Value::as_object);
        for (name, outcome) in outcomes.into_iter().flatten() {
            if let Some(percent) = number(outcome, "/overhead_percent") {
                let (side, spread) = (Pagoda, spread(outcome, "/ratio"));
                let label = if group == "churns" { format!("{name} churn") } else { name.clone() };
                programs.bars.push(Bar { label, side, value: 1.0 + percent / 100.0, spread });
            }
        }
    }
    charts.push(programs.chart("Where memory suffices, 1.2 times the native peak", OVER_NATIVE));
    charts
}

/// The charts of `pagoda bench tree`.
pub fn tree(json: &Value) -> Vec<Chart> {
    const TREES: [(&str, &str); 4] =
        [("spawn_storm", "short processes"), ("build", "a build"), ("jvm", "a JVM"), ("node", "node")];
    let mut ratios = Bars::of(json).known(Baseline, "native", 1.0);
    ratios = ratios.figure(Pagoda, "a call of fork", "/fork_ms/ratio");
    let mut halves = Bars::of(json);
    for (key, name) in TREES {
        ratios = ratios.figure(Pagoda, name, &format!("/{key}/ratio"));
        halves = halves.figure(Baseline, format!("{name}, native"), &format!("/{key}/native_s")).figure(
            Pagoda,
            format!("{name}, in half"),
            &format!("/{key}/half_s"),
        );
    }
    let redis = |names: [&str; 4]| {
        let [native, kernel, half, enough] = names;
        let sides = [
            (Baseline, "native", native),
            (Kernel, "half the memory, zram", kernel),
            (Pagoda, "half the memory, Pagoda", half),
            (Pagoda, "1.2 times the memory, Pagoda", enough),
        ];
        Bars::of(json).each("*", "/redis_bgsave/*", &sides)
    };
    let requests = redis(["native_ops", "kernel_ops", "pagoda_ops", "enough_ops"]);
    let waits = redis(["native_p99_ms", "kernel_p99_ms", "p99_ms", "enough_p99_ms"]);
    vec![
        ratios.chart("Where memory suffices, 1.2 times the native peak", OVER_NATIVE),
        halves.chart("In half of the native peak", "seconds, less is better"),
        requests.chart("redis while it saves", "requests a second, more is better"),
        waits.chart("redis while it saves, p99", "milliseconds, less is better"),
    ]
}

/// The charts of `pagoda bench programs`.
pub fn programs(json: &Value) -> Vec<Chart> {
    const PARTS: [(&str, &str); 3] = [("three_quarters", "3/4"), ("half", "half"), ("quarter", "a quarter")];
    let programs = json.pointer("/programs").and_then(Value::as_object);
    let of_part = |(part, title): (&str, &str)| {
        programs?.values().any(|figures| figures.get(part).is_some()).then_some(())?;
        let mut bars = Bars::of(json).known(Baseline, "native", 1.0);
        for (name, figures) in programs.into_iter().flatten() {
            let at = |key: &str| number(figures, &format!("/{part}/{key}"));
            let alive = figures.pointer(&format!("/{part}/kernel/end")).is_some_and(|end| end == "ok");
            let native = number(figures, "/native/s").filter(|_| alive);
            if let (Some(kernel), Some(native)) = (at("kernel/s"), native) {
                bars = bars.known(Kernel, format!("{name}, zram and swap"), kernel / native);
            }
            if let Some(ratio) = at("ratio_native") {
                bars = bars.known(Pagoda, format!("{name}, Pagoda"), ratio);
            }
        }
        Some(bars.chart(format!("Programs in {title} of their native peak"), OVER_NATIVE))
    };
    PARTS.into_iter().filter_map(of_part).collect()
}

/// The charts of `pagoda bench clear`.
pub fn clear(json: &Value) -> Vec<Chart> {
    const RATIOS: [Named; 5] = [
        (Kernel, "the kernel's huge pages", "kernel_thp"),
        (Pagoda, "converge (the published order)", "converge"),
        (Pagoda, "reverse in each page", "reverse_in_page"),
        (Pagoda, "neighbourhood", "neighbourhood"),
        (Pagoda, "streaming", "streaming"),
    ];
    const FAULTS: [Named; 5] = [
        (Kernel, "the kernel's huge page", "kernel_thp"),
        (Pagoda, "a huge frame, cleared in the fault", "pagoda"),
        (Pagoda, "a huge frame, cleared ahead", "pagoda_prezeroed"),
        (Pagoda, "in thread, cleared in the fault", "in_thread"),
        (Pagoda, "in thread, cleared ahead", "in_thread_prezeroed"),
    ];
    let mut charts = Vec::new();
    let rows = json.pointer("/anon_w_seq").and_then(Value::as_array);
    for row in rows.into_iter().flatten() {
        let processes = row.pointer("/processes").and_then(Value::as_u64).unwrap_or(0);
        let bars = Bars::of(row)
            .known(Published, "converge, 72 processes, 36 cores", 1.283)
            .known(Baseline, "ascending", 1.0)
            .each("*", "/ratio_*_vs_ascending", &RATIOS);
        charts.push(bars.chart(
            format!("anon-w-seq, {processes} processes"),
            "rate over clearing from the beginning, more is better",
        ));
    }
    const ORDERS: [&str; 5] = ["ascending", "converge", "reverse-in-page", "neighbourhood", "streaming"];
    let orders = ORDERS.map(|order| (if order == "ascending" { Baseline } else { Pagoda }, order, order));
    for (part, beside) in [("orders", "alone"), ("pressure", "beside a thrasher of the cache")] {
        let of = |key: &str| Bars::of(json).each("*", &format!("/{part}/*/{key}"), &orders);
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
            .each("*", "/fault/*_us", &FAULTS)
            .chart("From a touch to its return, 2 MiB", "microseconds, less is better"),
    );
    charts
}

/// The charts of `pagoda bench snapshot`.
pub fn snapshot(json: &Value) -> Vec<Chart> {
    const SIDES: [Named; 6] = [
        (Kernel, "mmap", "mmap"),
        (Kernel, "mmap, populated", "populate"),
        (Baseline, "read whole", "eager"),
        (Baseline, "demand by 4 KiB", "demand_4k"),
        (Pagoda, "image", "image"),
        (Pagoda, "image, working set", "recorded"),
    ];
    let of = |how: &str| Bars::of(json).each("*", &format!("/working_set/*_{how}_ms"), &SIDES);
    vec![
        of("warm").chart("A scattered working set, from the page cache", "milliseconds, less is better"),
        of("cold").chart("A scattered working set, from the disk", "milliseconds, less is better"),
    ]
}

/// The charts of `pagoda bench release`.
pub fn release(json: &Value) -> Vec<Chart> {
    const POLICIES: [Named; 4] = [
        (Baseline, "one-at-a-time", "one-at-a-time"),
        (Baseline, "runs", "runs"),
        (Pagoda, "background", "background"),
        (Pagoda, "workers", "workers"),
    ];
    const RATIOS: [Named; 4] = [
        (Pagoda, "in the background", "background"),
        (Pagoda, "in the background, more workers", "workers"),
        (Pagoda, "in the background, the start", "start_background"),
        (Pagoda, "in the background, its work", "work_background"),
    ];
    const FETCHES: [Named; 6] = [
        (Pagoda, "the first byte, p50", "first_us/p50"),
        (Pagoda, "all of it, p50", "us/p50"),
        (Pagoda, "all of it, p99", "us/p99"),
        (Pagoda, "in thread, the first byte, p50", "first_in_thread_us/p50"),
        (Pagoda, "in thread, all of it, p50", "in_thread_us/p50"),
        (Pagoda, "in thread, all of it, p99", "in_thread_us/p99"),
    ];
    let ratios = Bars::of(json)
        .known(Published, "an application's start, 8 GB phone", 1204.0 / 1512.0)
        .known(Published, "a camera's preview, 8 GB phone", 205.0 / 352.0)
        .known(Baseline, "one at a time", 1.0)
        .each("*", "/ratios/starter_*_vs_one", &RATIOS);
    let of = |key: &str| Bars::of(json).each("*", &format!("/policies/*/{key}"), &POLICIES);
    let fetches = Bars::of(json).each("*", "/store/fetch_*", &FETCHES);
    let mut aging = Bars::of(json);
    let shares = json.pointer("/aging/stored_percent").and_then(Value::as_array);
    for (at, percent) in shares.into_iter().flatten().enumerate() {
        let path = format!("/aging/close_ms/*/{at}");
        aging = aging.each(&format!("{percent}% stored, *"), &path, &[POLICIES[0], POLICIES[2]]);
    }
    vec![
        ratios.chart("An owner that starts while others close", "time over one at a time, less is better"),
        of("starter_start_ms")
            .figure(Baseline, "nobody closes", "/starter_alone/start_ms")
            .chart("The start of an owner while others close", "milliseconds, less is better"),
        of("close_ms_p50")
            .figure(Baseline, "nothing was stored", "/never_stored/close_ms_p50")
            .figure(Kernel, "killed, as much in zram", "/kernel_zram/kill_ms")
            .figure(Kernel, "killed, nothing was swapped", "/kernel_zram/kill_never_swapped_ms")
            .figure(Pagoda, "killed under pagoda run", "/run_kill9_ms")
            .chart("Closing an owner, or killing it", "milliseconds, less is better"),
        of("cpu_ms").chart("Processor time of the release, all threads", "milliseconds, less is better"),
        aging.chart(
            "Closing by how much is stored, as published after 0 to 15 minutes",
            "milliseconds, less is better",
        ),
        fetches.chart("64 KiB back from compressed memory", "microseconds, less is better"),
    ]
}

/// The charts of `pagoda bench counters`.
pub fn counters(json: &Value) -> Vec<Chart> {
    let costs = Bars::of(json)
        .figure(Pagoda, "counting, one thread", "/counting_ns")
        .figure(Pagoda, "counting, all handlers at once", "/counting_at_once_ns")
        .figure(Pagoda, "one read of the clock", "/clock_ns");
    let part = Bars::of(json).figure(Pagoda, "counting", "/counting_percent").figure(
        Pagoda,
        "counting and the clock",
        "/timing_percent",
    );
    vec![
        costs.chart("Counting and timing one fault", "nanoseconds, less is better"),
        part.chart("Of what serving a fault takes", "percent of the median, less is better"),
    ]
}

/// The charts of `pagoda bench zones`.
pub fn zones(json: &Value) -> Vec<Chart> {
    const POLICIES: [Named; 4] = [
        (Baseline, "first-fit", "first-fit"),
        (Baseline, "reset-on-failure", "reset-on-failure"),
        (Baseline, "first-version", "first-version"),
        (Pagoda, "fair", "fair"),
    ];
    let counts = |case: &str, key: &str, published: f64| {
        let merged = Bars::of(json).known(Published, "fair, as merged", published);
        merged.each("*", &format!("/cases/{case}/*/{key}"), &POLICIES)
    };
    let mut shares = Bars::of(json).known(Published, "fair, as merged", 6000.0 / 8000.0).known(
        Published,
        "first version",
        7900.0 / 8000.0,
    );
    for (side, policy, _) in POLICIES {
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
        gains = gains.known(Published, format!("{threads} threads, published"), published).figure(
            Pagoda,
            format!("{threads} threads"),
            &here,
        );
    }
    let streams = Bars::of(json).figure(Kernel, "mmap", "/kernel_mmap/seq_read_mib_s").figure(
        Kernel,
        "mmap, told to read ahead",
        "/kernel_mmap/seq_read_advised_mib_s",
    );
    let streams = streams.each("*", "/tiobench/seq_read/1/*/mib_s", &POLICIES);
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
            .figure(Baseline, "without a cache", "/alloc_ns/cold")
            .figure(Pagoda, "with a cache", "/alloc_ns/warm")
            .chart("One allocation", "nanoseconds, less is better"),
    ]
}
