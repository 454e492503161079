//! The figures of the bench as tables for people. Pure. Never computes a figure.

use pagoda_core::zone::ZonePolicy;
use pagoda_core::zone::reclaim::ZoneReclaim;
use serde_json::Value;

use crate::report::table::{Column, fill, grid, members, table as text_table};

const CASES: [Column; 7] = [
    ("resets", "{resets}"),
    ("scans", "{scans}"),
    ("visits", "{zone_visits}"),
    ("skips", "{skips}"),
    ("shares", "{shares/0}:{shares/1}"),
    ("spills", "{spills}"),
    ("wake-ups", "{wake_ups}"),
];

const ENGINES: [Column; 7] = [
    ("shares %", "{shares_percent/0:1}:{shares_percent/1:1}"),
    ("error %", "{share_error_percent:2}"),
    ("resets", "{resets}"),
    ("shortages", "{shortages}"),
    ("frames", "{frames}"),
    ("age ratio", "{age_ratio:2}"),
    ("MB/s", "{mb_s:0}"),
];

const AGES: [Column; 6] = [
    ("MiB/s", "{mib_s:0}"),
    ("age ratio", "{age_ratio:2}"),
    ("gone %", "{gone_percent:1}"),
    ("first zone %", "{first_zone_percent:1}"),
    ("resets", "{resets:0}"),
    ("shortages", "{shortages:0}"),
];

const READS: [&str; 6] = [
    "{allocs_by_zone/0}:{allocs_by_zone/1}",
    "{resets}",
    "{shortages}",
    "{evicted_before_use}",
    "{read_twice_mib:1}",
    "{age_ratio:2}",
];

const BELOW: &str = "\
fair, 3:1, {share_threads} threads with caches of {cache_frames} frames: {share_allocations/0}:{share_allocations/1}, \
{share_error_percent} % from its share at most
an allocation: {alloc_ns/warm:1} ns ({alloc_ns/warm_least:1}-{alloc_ns/warm_most:1}) with a cache, \
{alloc_ns/cold:1} ns ({alloc_ns/cold_least:1}-{alloc_ns/cold_most:1}) without; median of {pairs} pairs (least-greatest)
";

const PLACEMENT: &str = "\
a hot set of {placement/hot_bytes:b} in the slow one of zones of {placement/zones_bytes/0:b} and {placement/zones_bytes/1:b}: \
{placement/hot_in_fast_percent/0s:0} % of it in the fast one, after 1 s {placement/hot_in_fast_percent/1s:0} %, after 2 s \
{placement/hot_in_fast_percent/2s:0} % (unmoved {placement/unmoved_hot_in_fast_percent:0} %); {placement/moved_pages} base \
pages moved, {placement/sampled_pages} sampled, reads {placement/slowdown_while_moving:2} times slower meanwhile
";

const FILE: &str = "a file of {file_bytes:b} over zones of {zones_bytes/0:b} and {zones_bytes/1:b}; what is cached is read again at \
{cached_reread_mib_s:0} MiB/s";

const MMAP: &str = "the kernel's mmap in a memory group of the same size: {kernel_mmap/seq_read_mib_s:0} MiB/s \
({kernel_mmap/seq_read_advised_mib_s:0} with MADV_SEQUENTIAL); fair over it: {ratio_vs_mmap:2} ({ratio_vs_mmap_advised:2})";

/// The tables for people.
pub fn table(report: &Value) -> String {
    let policies = ZonePolicy::ALL.map(ZonePolicy::name);
    let cases = members(report, "/cases").flat_map(|(case, figures)| {
        policies.map(|policy| ([case.clone(), policy.to_owned()], &figures[policy]))
    });
    let cases = text_table(["case", "policy"], &CASES, cases);
    let engines = members(report, "/engine").map(|(policy, outcome)| ([policy.clone()], outcome));
    let engines = text_table(["engine"], &ENGINES, engines);
    let placement = report.get("placement").map(|_| fill(PLACEMENT, report)).unwrap_or_default();
    let (ages, streams) = (ages(report), streams(report));
    format!("\n{cases}\n\n{engines}\n\n{ages}{streams}\n{}{placement}", fill(BELOW, report))
}

fn ages(report: &Value) -> String {
    let Some(figures) = report.get("ages") else { return String::new() };
    let lists = ZoneReclaim::ALL.map(ZoneReclaim::name).into_iter();
    let policies = [ZonePolicy::ResetOnFailure, ZonePolicy::Fair].map(ZonePolicy::name);
    let rows = lists.flat_map(|list| policies.map(|policy| (list, policy))).flat_map(|(list, policy)| {
        members(&figures[list][policy], "")
            .map(move |(readers, row)| ([list.to_owned(), policy.to_owned(), readers.clone()], row))
    });
    format!("{}\n\n", text_table(["ages", "policy", "readers"], &AGES, rows))
}

fn streams(report: &Value) -> String {
    if report.get("tiobench_reason").is_some() {
        return fill("no streams over a file: {tiobench_reason}\n", report);
    }
    let names = ZonePolicy::ALL.map(ZonePolicy::name);
    let (mut rates, mut counts) = (Vec::new(), Vec::new());
    for (pattern, rows) in members(report, "/tiobench") {
        let mut rows: Vec<_> = members(rows, "").collect();
        rows.sort_by_key(|(threads, _)| threads.len());
        for (threads, row) in rows {
            let mut cells = vec![pattern.clone(), threads.clone()];
            cells.extend(names.map(|name| fill("{mib_s:0}", &row[name])));
            cells.push(fill("{ratio_fair_vs_reset:3}", row));
            cells.push(if row["published_ratio"].is_null() {
                "-".to_owned()
            } else {
                fill("{published_ratio:3}", row)
            });
            rates.push(cells);
            for name in names.into_iter().filter(|_| pattern == "seq_read") {
                let mut figures = row[name].clone();
                let bytes = figures["bytes_read_twice"].as_f64().unwrap_or(0.0);
                figures["read_twice_mib"] = (bytes / f64::from(1 << 20)).into();
                let cells = READS.map(|cell| fill(cell, &figures));
                counts.push([name.to_owned(), threads.clone()].into_iter().chain(cells).collect());
            }
        }
    }
    let header = ["MiB/s", "threads"].into_iter().chain(names).chain(["fair/reset", "published"]);
    let rates = grid(header, 1.., rates);
    let header =
        ["seq_read", "threads", "frames", "resets", "shortages", "unused", "read twice MiB", "age ratio"];
    let counts = grid(header, 1.., counts);
    let is_missing = report["kernel_mmap"].get("reason").is_some();
    let of_kernel =
        fill(if is_missing { "nothing of the kernel's mmap: {kernel_mmap/reason}" } else { MMAP }, report);
    format!("{}\n{of_kernel}\n\n{rates}\n\n{counts}\n", fill(FILE, report))
}
