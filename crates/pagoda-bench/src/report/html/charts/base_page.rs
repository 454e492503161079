//! Bars of `pagoda bench base-page`. Pure. Never computes more than a ratio.

use serde_json::Value;

use super::super::svg::Chart;
use super::super::svg::Side::{Baseline, Kernel, Pagoda, Published};
use super::{Bars, GIB_S, Named};

/// Sides by their place in the JSON.
const SIDES: [Named; 8] = [
    (Baseline, "kernel, 4 KiB", "/kernel/4k"),
    (Kernel, "kernel, 2 MiB", "/kernel/thp"),
    (Kernel, "kernel, 64 KiB", "/kernel/mthp64k"),
    (Pagoda, "Pagoda, 4 KiB", "/clusters/4K"),
    (Pagoda, "Pagoda, 16 KiB", "/clusters/16K"),
    (Pagoda, "Pagoda, 64 KiB", "/clusters/64K"),
    (Pagoda, "Pagoda, 64 KiB, in thread", "/clusters/64K_in_thread"),
    (Pagoda, "Pagoda, by density", "/clusters/auto"),
];

/// The charts of `pagoda bench base-page`.
pub fn base_page(json: &Value) -> Vec<Chart> {
    let of = |pattern: &str, key: &str| Bars::of(json).each("*", &format!("*/{pattern}/{key}"), &SIDES);
    let over_touched = |pattern: &str, key: &str| {
        SIDES.iter().fold(Bars::of(json), |bars, (side, label, place)| {
            let at = |key: &str| format!("{place}/{pattern}/{key}");
            bars.ratio_of_counts(*side, *label, &at(key), &at("touched"))
        })
    };
    let mut charts = vec![
        of("dense", "faults").chart("Every page touched: faults", "faults, less is better"),
        of("dense", "table_bytes").chart("Every page touched: page tables", "bytes, less is better"),
        of("dense", "first_touch_gib_s")
            .figure(Pagoda, "Pagoda, 64 KiB, fault-around", "/fault_around/first_touch_gib_s")
            .figure(Pagoda, "the same, in thread", "/fault_around/in_thread_first_touch_gib_s")
            .chart("Every page touched for the first time", GIB_S),
        over_touched("sparse16", "resident_after_5s").chart(
            "One page of 16 touched: memory 5 s later",
            "memory over what was touched, less is better",
        ),
        of("mixed", "first_touch_gib_s")
            .chart("Runs and gaps of 1 to 16 pages touched for the first time", GIB_S),
        over_touched("mixed", "resident")
            .chart("Runs and gaps: memory", "memory over what was touched, less is better"),
        of("dense", "random_load_ns")
            .chart("Loads from pages drawn at random", "nanoseconds, less is better"),
    ];
    if json.pointer("/map_touch_16mib_ratio_vs_thp/kernel_thp").is_some() {
        let published = Bars::of(json).known(Published, "a kernel with 64 KiB pages", 1.0 - 0.7598).known(
            Baseline,
            "kernel, 2 MiB",
            1.0,
        );
        let sides = [
            (Kernel, "kernel, 4 KiB", "kernel_4k"),
            (Kernel, "kernel, 64 KiB", "kernel_mthp64k"),
            (Pagoda, "Pagoda, if nothing is said", "pagoda"),
            (Pagoda, "Pagoda, 64 KiB", "pagoda_64k"),
            (Pagoda, "Pagoda, 64 KiB, in thread", "pagoda_in_thread"),
        ];
        charts.push(
            published
                .each("*", "/map_touch_16mib_ratio_vs_thp/*", &sides)
                .chart("Mapping and touching 16 MiB", "time over huge pages, less is better"),
        );
    }
    if json.pointer("/redis/get_ratio_vs_4k/kernel_4k").is_some() {
        let published = Bars::of(json).known(Published, "a kernel with 64 KiB pages", 3.5).known(
            Baseline,
            "kernel, 4 KiB",
            1.0,
        );
        let sides = [
            (Kernel, "kernel, 2 MiB", "kernel_thp"),
            (Pagoda, "Pagoda, 64 KiB", "pagoda_64k"),
            (Pagoda, "Pagoda, 2 MiB", "pagoda_2m"),
        ];
        charts.push(
            published
                .each("*", "/redis/get_ratio_vs_4k/*", &sides)
                .chart("redis, GET with 64 requests on their way", "rate over 4 KiB, more is better"),
        );
    }
    charts
}
