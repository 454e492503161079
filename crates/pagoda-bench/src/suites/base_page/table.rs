//! The figures of the bench as tables for people. Pure. Never computes a figure.

use pagoda_core::size::Bytes;
use serde_json::Value;

use super::FILE_BYTES;
use super::pattern::Pattern;
use crate::report::table::{Column, fill, grid, members, table as text_table};

const COLUMNS: [Column; 9] = [
    ("faults", "{faults}"),
    ("table", "{table_bytes:b}"),
    ("resident", "{resident:b}"),
    ("of touched", "{of_touched:2}"),
    ("after 5 s", "{resident_after_5s:b}"),
    ("first touch GiB/s", "{first_touch_gib_s:2s}"),
    ("random load ns", "{random_load_ns:1}"),
    ("TLB misses", "{tlb_misses}"),
    ("contiguous %", "{contiguous_percent:1}"),
];

const REDIS: [Column; 3] = [("GET/s", "{get_ops:0}"), ("SET/s", "{set_ops:0}"), ("p50 ms", "{p50_ms:3}")];

const SV39: &str = "\nSv39 as published, computed: {table_bytes_64k:b} of tables at 64 KiB and {table_bytes_4k:b} at 4 KiB, \
{tlb_reach_ratio:0} times the TLB reach\n";

/// The tables for people.
pub fn table(report: &Value) -> String {
    let above = "{buffer_bytes:b} touched for the first time, then read at random; medians of {rounds} rounds (least-greatest)\n";
    let mut text = fill(above, report);
    for pattern in Pattern::ALL.map(Pattern::name) {
        text += &format!("\n{pattern}\n{}\n", pattern_table(report, pattern));
    }
    if report["fault_around"].is_object() {
        text += &fill(
            "\ndense with fault-around at 64 KiB: {faults} faults, {first_touch_gib_s:2} GiB/s, \
             in thread {in_thread_first_touch_gib_s:2}\n",
            &report["fault_around"],
        );
    }
    let break_even = report["break_even_density"].as_f64().map_or("at no density".to_owned(), |density| {
        format!("from {:.0}% of each 64 KiB on", 100.0 * density)
    });
    text += &format!("\ntouching 64 KiB at 64 KiB takes no longer than at 4 KiB {break_even}\n");
    text += &format!("\nmapping and touching a buffer, us\n{}\n", sweep_table(report));
    let ratios = members(report, "/map_touch_16mib_ratio_vs_thp");
    let ratios = ratios.filter(|(side, _)| !side.ends_with("_least") && !side.ends_with("_most"));
    let ratios = ratios.map(|(side, ratio)| fill(&format!("{side} {{:2}}"), ratio)).collect::<Vec<_>>();
    text += &format!("16 MiB over the kernel's huge pages: {}\n", ratios.join(", "));
    text += &format!("\n{} of a file, from open to close, GiB/s\n", Bytes::new(FILE_BYTES as u64));
    for (side, rate) in members(report, "/open2close_gib_s").filter(|(side, _)| *side != "why") {
        text += &format!("{side}: {}\n", fill("{:2}", rate));
    }
    let sides = members(report, "/redis")
        .filter(|(side, figures)| figures.get("get_ops").is_some() && *side != "why");
    let redis = text_table(["side"], &REDIS, sides.map(|(side, figures)| ([side.clone()], figures)));
    text += &fill("\nredis, {redis/keys} keys\n", report);
    text += &format!("{redis}\n{}", fill(SV39, &report["sv39"]));
    for group in ["/clusters/why", "/kernel/why", "/redis/why"] {
        for (what, why) in members(report, group) {
            text += &format!("no {what}: {}\n", fill("{}", why));
        }
    }
    for (what, key) in [("TLB misses", "tlb_misses_why"), ("contiguity", "contiguous_percent_why")] {
        if let Some(why) = report[key].as_str() {
            text += &format!("no {what}: {why}\n");
        }
    }
    text
}

fn pattern_table(report: &Value, pattern: &str) -> String {
    let groups = [("Pagoda", "/clusters"), ("kernel", "/kernel")];
    let rows = groups.into_iter().flat_map(|(who, group)| {
        members(report, group).filter_map(move |(name, rows)| {
            let mut row = rows.get(pattern)?.clone();
            row["of_touched"] = (row["resident"].as_f64()? / row["touched"].as_f64()?).into();
            Some((format!("{who} {name}"), row))
        })
    });
    let rows: Vec<_> = rows.collect();
    text_table(["side"], &COLUMNS, rows.iter().map(|(name, row)| ([name.clone()], row)))
}

fn sweep_table(report: &Value) -> String {
    let sizes = report["sweep_mib"].as_array().into_iter().flatten();
    let header = std::iter::once("side".to_owned()).chain(sizes.map(|mib| format!("{mib} MiB")));
    let rows = members(report, "/map_touch_us").filter_map(|(side, times)| {
        let times = times.as_array()?.iter().map(|us| fill("{:0}", us));
        Some(std::iter::once(side.clone()).chain(times).collect())
    });
    grid(header, 1.., rows)
}
