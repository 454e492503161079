//! Bars of `pagoda bench base-page`. Pure.

use serde_json::Value;

use super::super::svg::{Chart, Side};
use super::{Bars, GIB_S};

/// Sides by their place in the JSON.
const SIDES: [(&str, &str, Side); 8] = [
    ("/kernel/4k", "kernel, 4 KiB", Side::Baseline),
    ("/kernel/thp", "kernel, 2 MiB", Side::Kernel),
    ("/kernel/mthp64k", "kernel, 64 KiB", Side::Kernel),
    ("/clusters/4K", "Pagoda, 4 KiB", Side::Pagoda),
    ("/clusters/16K", "Pagoda, 16 KiB", Side::Pagoda),
    ("/clusters/64K", "Pagoda, 64 KiB", Side::Pagoda),
    ("/clusters/64K_in_thread", "Pagoda, 64 KiB, in thread", Side::Pagoda),
    ("/clusters/auto", "Pagoda, by density", Side::Pagoda),
];

/// Figures by name.
fn by_name<'a>(bars: Bars<'a>, group: &str, sides: &[(Side, &str, &str)]) -> Bars<'a> {
    sides
        .iter()
        .fold(bars, |bars, (side, label, name)| bars.figure(*side, *label, &format!("{group}/{name}")))
}

/// Of `pagoda bench base-page`.
pub fn base_page(json: &Value) -> Vec<Chart> {
    let of = |pattern: &str, key: &str| {
        SIDES.iter().fold(Bars::of(json), |bars, (place, label, side)| {
            bars.figure(*side, *label, &format!("{place}/{pattern}/{key}"))
        })
    };
    let over_touched = |pattern: &str, key: &str| {
        SIDES.iter().fold(Bars::of(json), |bars, (place, label, side)| {
            let at = |key: &str| format!("{place}/{pattern}/{key}");
            bars.ratio_of_counts(*side, *label, &at(key), &at("touched"))
        })
    };
    let mut charts = vec![
        of("dense", "faults").chart("Every page touched: faults", "faults, less is better"),
        of("dense", "table_bytes").chart("Every page touched: page tables", "bytes, less is better"),
        of("dense", "first_touch_gib_s")
            .figure(Side::Pagoda, "Pagoda, 64 KiB, fault-around", "/fault_around/first_touch_gib_s")
            .figure(Side::Pagoda, "the same, in thread", "/fault_around/in_thread_first_touch_gib_s")
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
        let published = Bars::of(json)
            .known(Side::Published, "a kernel with 64 KiB pages", 1.0 - 0.7598)
            .known(Side::Baseline, "kernel, 2 MiB", 1.0);
        let sides = [
            (Side::Kernel, "kernel, 4 KiB", "kernel_4k"),
            (Side::Kernel, "kernel, 64 KiB", "kernel_mthp64k"),
            (Side::Pagoda, "Pagoda, if nothing is said", "pagoda"),
            (Side::Pagoda, "Pagoda, 64 KiB", "pagoda_64k"),
            (Side::Pagoda, "Pagoda, 64 KiB, in thread", "pagoda_in_thread"),
        ];
        charts.push(
            by_name(published, "/map_touch_16mib_ratio_vs_thp", &sides)
                .chart("Mapping and touching 16 MiB", "time over huge pages, less is better"),
        );
    }
    if json.pointer("/redis/get_ratio_vs_4k/kernel_4k").is_some() {
        let published = Bars::of(json).known(Side::Published, "a kernel with 64 KiB pages", 3.5).known(
            Side::Baseline,
            "kernel, 4 KiB",
            1.0,
        );
        let sides = [
            (Side::Kernel, "kernel, 2 MiB", "kernel_thp"),
            (Side::Pagoda, "Pagoda, 64 KiB", "pagoda_64k"),
            (Side::Pagoda, "Pagoda, 2 MiB", "pagoda_2m"),
        ];
        charts.push(
            by_name(published, "/redis/get_ratio_vs_4k", &sides)
                .chart("redis, GET with 64 requests on their way", "rate over 4 KiB, more is better"),
        );
    }
    charts
}
