//! Bars of `pagoda bench base-page`. Pure.

use serde_json::Value;

use super::super::svg::{Chart, Side};
use super::{Bars, GIB_S, number};

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
            bars.ratio(*side, *label, &at(key), &at("touched"))
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
    let sizes = json.pointer("/sweep_mib").and_then(Value::as_array);
    let at_16 = sizes.and_then(|sizes| sizes.iter().position(|mib| mib.as_u64() == Some(16)));
    if let Some(at) = at_16 {
        let path = |side: &str| format!("/map_touch_us/{side}/{at}");
        let over = path("kernel_thp");
        charts.push(
            Bars::of(json)
                .known(Side::Published, "a kernel with 64 KiB pages", 1.0 - 0.7598)
                .known(Side::Baseline, "kernel, 2 MiB", 1.0)
                .ratio(Side::Kernel, "kernel, 4 KiB", &path("kernel_4k"), &over)
                .ratio(Side::Kernel, "kernel, 64 KiB", &path("kernel_mthp64k"), &over)
                .ratio(Side::Pagoda, "Pagoda, 64 KiB", &path("pagoda"), &over)
                .ratio(Side::Pagoda, "Pagoda, 64 KiB, in thread", &path("pagoda_in_thread"), &over)
                .chart("Mapping and touching 16 MiB", "time over huge pages, less is better"),
        );
    }
    if number(json, "/redis/kernel_4k/get_ops").is_some() {
        let get = |side: &str| format!("/redis/{side}/get_ops");
        let over = get("kernel_4k");
        charts.push(
            Bars::of(json)
                .known(Side::Published, "a kernel with 64 KiB pages", 3.5)
                .known(Side::Baseline, "kernel, 4 KiB", 1.0)
                .ratio(Side::Kernel, "kernel, 2 MiB", &get("kernel_thp"), &over)
                .ratio(Side::Pagoda, "Pagoda, 64 KiB", &get("pagoda_64k"), &over)
                .ratio(Side::Pagoda, "Pagoda, 2 MiB", &get("pagoda_2m"), &over)
                .chart("redis, GET with 64 requests on their way", "rate over 4 KiB, more is better"),
        );
    }
    charts
}
