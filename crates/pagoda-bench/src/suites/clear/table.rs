//! The figures of the bench as tables for people. Pure. Never computes a figure.

use serde_json::Value;

use crate::report::table::{Column, fill, grid, members, table as text_table};

const ORDERS: [Column; 9] = [
    ("cleared after target", "{cleared_after_target_max}"),
    ("extents", "{extents_max}"),
    ("clear us", "{clear_us:1}"),
    ("first touch ns", "{first_touch_ns:0}"),
    ("of ascending", "{first_touch_ratio_vs_ascending:2}"),
    ("write all us", "{write_all_us:1}"),
    ("total us", "{total_us:1s}"),
    ("IPC", "{ipc:2}"),
    ("cache misses %", "{cache_miss_percent:2}"),
];

const CHOICE: [Column; 6] = [
    ("at once", "{clearing_at_once}"),
    ("streaming us", "{streaming_us:1}"),
    ("neighbourhood us", "{neighbourhood_us:1}"),
    ("chosen us", "{chosen_us:1}"),
    ("streaming chosen %", "{chosen_streaming_percent:0}"),
    ("chosen vs better", "{ratio_chosen_vs_better:2}"),
];

const BASE: [Column; 10] = [
    ("busy threads", "{busy_threads}"),
    ("kernel, 4 KiB", "{kernel/touch_us:1} ({kernel/whole_us:1})"),
    ("Pagoda", "{pagoda/touch_us:1} ({pagoda/whole_us:1})"),
    ("frame ready", "{pagoda_ready/touch_us:1} ({pagoda_ready/whole_us:1})"),
    ("in thread", "{in_thread/touch_us:1} ({in_thread/whole_us:1})"),
    ("in thread, frame ready", "{in_thread_ready/touch_us:1} ({in_thread_ready/whole_us:1})"),
    ("ready vs not", "{ratio_ready:2}"),
    ("in thread", "{ratio_in_thread_ready:2}"),
    ("CPU us a frame", "{ready_cpu_us:1}"),
    ("contiguous %", "{ready_contiguous_percent:1}"),
];

const PROCESSES: [Column; 9] = [
    ("cache each", "{llc_bytes_per_process:b}"),
    ("kernel THP", "{kernel_thp_gib_s:2}"),
    ("ascending", "{ascending_gib_s:2}"),
    ("converge", "{converge_gib_s:2}"),
    ("reverse-in-page", "{reverse_in_page_gib_s:2}"),
    ("neighbourhood", "{neighbourhood_gib_s:2}"),
    ("streaming", "{streaming_gib_s:2}"),
    ("converge vs ascending", "{ratio_converge_vs_ascending:3s}"),
    ("best vs kernel", "{ratio_best_vs_kernel:3s}"),
];

/// The rows of faults: name, time, and time of writing all of the frame.
const FAULTS: [[&str; 3]; 6] = [
    ["kernel, 4 KiB", "kernel_4k_us", ""],
    ["kernel, THP", "kernel_thp_us", "{kernel_thp_write_all_us:1}"],
    ["Pagoda, cleared in the fault", "pagoda_us", ""],
    [
        "Pagoda, {taken_percent:0}% cleared ahead at {clearing_cpu_us:0} us",
        "pagoda_prezeroed_us",
        "{write_all_us:1}",
    ],
    ["Pagoda in thread, cleared in the fault", "in_thread_us", ""],
    ["Pagoda in thread, cleared ahead", "in_thread_prezeroed_us", ""],
];

const ABOVE: &str =
    "last-level cache {llc_bytes:b}; into the cache by {cached_kernel}, past it by {streaming_kernel}; \
medians of {rounds} rounds (least-greatest)

clearing a huge frame, touching its target, writing all of it
";

const READY: &str = "huge frames cleared ahead beside them, {taken_percent:0}% of those that were taken: first touch {first_touch_ns:0} ns, \
writing all {write_all_us:1} us; the kernel's THP {kernel_thp_write_all_us:1} us
";

const ANON_W_SEQ: &str = "anon-w-seq, GiB/s of all processes by processor time; our orders clear in place, the kernel's side has its fault in it,
on {processors} processors; published: {published/processes} processes on as many, {published/llc_bytes_per_process:b} of cache each, which \
is that of {published/processes_for_its_share} processes here (--processes), +{published/gain_percent:1} %";

/// The tables for people.
pub fn table(report: &Value) -> String {
    let rows = |key: &str| report[key].as_array().into_iter().flatten();
    let plain = |columns: &[Column], key: &str| text_table([], columns, rows(key).map(|row| ([], row)));
    let mut text = fill(ABOVE, report);
    text += &format!("{}\n", orders(&report["orders"]));
    text += &fill("\nthe same beside {thrashers} threads that thrash the cache\n", report);
    text += &format!("{}\n{}", orders(&report["pressure"]), fill(READY, &report["pressure"]["prezeroed"]));
    if report.get("perf_reason").is_some() {
        text += &fill("no figures of the processor's counters: {perf_reason}\n", report);
    }
    let processes = rows("anon_w_seq").map(|row| ([row["processes"].to_string()], row));
    for (about, table) in [
        (
            "threads that clear at the same time, in two orders and as an engine chooses",
            plain(&CHOICE, "choice"),
        ),
        ("from touch to return", faults(&report["fault"], &report["orders"]["prezeroed"])),
        ("the same of base pages of 64 KiB, us, and with all of it written", plain(&BASE, "base")),
        (&fill(ANON_W_SEQ, report), text_table(["processes"], &PROCESSES, processes)),
    ] {
        text += &format!("\n{about}\n{table}\n");
    }
    text
}

/// The table of one part of the orders.
pub fn orders(orders: &Value) -> String {
    let rows: Vec<_> = members(orders, "")
        .filter(|(name, _)| *name != "prezeroed")
        .map(|(name, figures)| {
            let mut row = figures.clone();
            for key in ["ipc", "cache_miss_percent"] {
                row[key] = figures["perf"][key].clone();
            }
            (name, row)
        })
        .collect();
    text_table(["order"], &ORDERS, rows.iter().map(|(name, row)| ([(*name).clone()], row)))
}

fn faults(fault: &Value, ready: &Value) -> String {
    let us = |key: &str| fault[key].as_f64().unwrap_or(f64::NAN);
    let rows = FAULTS.map(|[name, key, write]| {
        let ratio = format!("{:.2}", us(key) / us("kernel_thp_us"));
        vec![fill(name, ready), format!("{:.1}", us(key)), ratio, fill(write, ready)]
    });
    grid(["fault", "us", "of kernel THP", "writing the frame us"], 1.., rows)
}
