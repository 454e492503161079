//! The table that `pagoda run` prints when the program has ended: its memory, its faults, and their
//! cost.
//!
//! A row that has nothing to say is left out; a row that says the budget was passed or left is
//! never left out. This module must never compute a figure that the counters don't carry, except
//! shares and ratios of those they do.

use std::fmt::Write;
use std::time::Duration;

use pagoda::frames::zones::{ZoneConfig, ZoneStats, age_ratio};
use pagoda::stats::counters::{Snapshot, Status};
use pagoda_core::size::Bytes;

use crate::supervise::{End, Ended};
use crate::trace::file::Header;

/// The subject of the table.
pub struct Summary<'a> {
    /// The program as it was named.
    pub program: &'a str,
    /// How it ended.
    pub ended: Ended,
    /// It was replaced by a program that is not managed.
    pub is_replaced: bool,
    /// From start to end.
    pub wall: Duration,
    /// Its counters, and those of all below it.
    pub counters: Snapshot,
    /// The zones of the budget, if it is divided.
    pub zones: &'a [ZoneConfig],
    /// The trace, if there is one.
    pub trace: Option<&'a Header>,
    /// The gauges are those of the moment when most was held, not of the end.
    pub gauges_at_peak: bool,
}

impl Summary<'_> {
    fn when(&self) -> &'static str {
        if self.gauges_at_peak { "at the peak" } else { "at the end" }
    }
}

/// The table, with a line break at each line's end.
pub fn render(summary: &Summary) -> String {
    let counters = &summary.counters;
    let mut table = Table(String::new());
    let end = match summary.ended.end {
        End::Exited(status) => format!("exit status {status}"),
        End::Killed(signal) => format!("ended by signal {signal}"),
    };
    table.line(format_args!("pagoda: {}, {end}, {:.2} s", summary.program, summary.wall.as_secs_f64()));
    let base_page = Bytes::new(counters.base_page_bytes);
    table.row("budget", bytes(counters.budget_bytes), format_args!("base page {base_page}"));
    let over = counters.anon_peak_bytes.saturating_sub(counters.budget_bytes);
    let kept = match over {
        _ if summary.is_replaced => "NOT ENFORCED: the program was replaced".to_owned(),
        0 => "within the budget".to_owned(),
        over => format!("{} over it", Bytes::new(over)),
    };
    let several = counters.processes > 1;
    let whose = if several { "anonymous memory of all processes" } else { "anonymous memory" };
    table.row("peak", bytes(counters.anon_peak_bytes), format_args!("{whose} by the kernel's count, {kept}"));
    let who = if several { "the processes" } else { "the program" };
    let times = ratio(counters.held_peak_bytes, counters.budget_bytes);
    table.row(
        "native peak",
        bytes(counters.held_peak_bytes),
        format_args!("what {who} held at most, {times:.1} times the budget"),
    );
    table.row("unmanaged", bytes(counters.unmanaged_at_peak_bytes), format_args!("{}", unmanaged(summary)));
    let resident = bytes(summary.ended.resident_peak_bytes);
    table.row("with files", resident, format_args!("largest resident set, file-backed pages included"));
    table.row("faults", counters.faults.to_string(), format_args!("{}", faults(counters)));
    if counters.faults_throttled > 0 {
        table.row(
            "waited",
            counters.faults_throttled.to_string(),
            format_args!("faults that waited for memory"),
        );
    }
    if counters.evictions > 0 {
        let free = counters.stores_zero + counters.stores_same;
        let went_on = format!("{} went on to the store, {free} of them at no cost", counters.stores);
        table.row("evictions", counters.evictions.to_string(), format_args!("{went_on}"));
    }
    if counters.evict_busy > 0 {
        let says =
            format_args!("times an OS page was left where it is, pinned, or shared with another process");
        table.row("pinned", counters.evict_busy.to_string(), says);
    }
    if counters.stored_peak_bytes > 0 {
        table.row("stored peak", bytes(counters.stored_peak_bytes), format_args!("{}", stored(summary)));
    }
    if counters.store_memory_peak_bytes > 0 {
        let peak = bytes(counters.store_memory_peak_bytes);
        table.row("compressed", peak, format_args!("peak of the store's memory, part of the budget"));
    }
    if counters.spilled_peak_bytes > 0 {
        table.row(
            "spilled peak",
            bytes(counters.spilled_peak_bytes),
            format_args!("in the store directory's file"),
        );
    }
    if counters.remote_peak_bytes > 0 {
        let failures = counters.remote_failures;
        table.row(
            "remote peak",
            bytes(counters.remote_peak_bytes),
            format_args!("at the remote store, which failed to do what it was asked {failures} times"),
        );
    }
    zones(&mut table, summary);
    table.row("own", bytes(counters.own_bytes), format_args!("Pagoda's tables, stacks and heap"));
    if let Some(Header { events, dropped, untraced, .. }) = summary.trace {
        let says = format_args!("faults and evictions; {dropped} dropped, {untraced} processes not traced");
        table.row("traced", events.to_string(), says);
    }
    if several {
        table.row("processes", counters.processes.to_string(), format_args!("{}", processes(counters)));
    }
    if Status::from_word(counters.status) == Status::Released {
        let back = bytes(counters.brought_back_bytes);
        table.row(
            "released",
            back,
            format_args!("everything brought back, managed no further: see docs/caveats.md"),
        );
    } else if counters.forks > 0 {
        let [copied, taken, lent] =
            [counters.fork_copied_bytes, counters.fork_taken_over_bytes, counters.fork_lent_bytes].map(bytes);
        let written = bytes(counters.copied_on_write_peak_bytes);
        table.row(
            "forks",
            counters.forks.to_string(),
            format_args!(
                "children took over {taken} that were out ({lent} in its file), {copied} were copied; at most {written} over \
                 budget by copy on write"
            ),
        );
    }
    if counters.rights_kept > 0 {
        let count = counters.rights_kept.to_string();
        table.row(
            "rights",
            count,
            format_args!("times a thread of Pagoda's kept rights that the program had given up"),
        );
    }
    if counters.children_unmanaged > 0 {
        let count = counters.children_unmanaged.to_string();
        table.row("children", count, format_args!("child processes ran unmanaged, outside the budget"));
    }
    table.0
}

/// A row for each zone, and how their pages' ages compare.
fn zones(table: &mut Table, summary: &Summary) {
    let zones = ZoneStats::all(&summary.counters);
    let gave: u64 = zones.iter().map(|zone| zone.allocated.get()).sum();
    for (named, zone) in summary.zones.iter().zip(&zones) {
        let share = 100.0 * ratio(zone.allocated.get(), gave);
        let [allocated, evicted, free] =
            [zone.allocated, zone.evicted, zone.free].map(|size| size.get() >> 20);
        let when = summary.when();
        table.row(
            "zone",
            zone.bytes.to_string(),
            format_args!(
                "{}: gave {allocated} MiB ({share:.1}%), {evicted} MiB moved out, {free} MiB free {when}",
                named.name
            ),
        );
    }
    if let Some(ages) = age_ratio(&zones) {
        let resets = summary.counters.zones_resets;
        let says = format_args!(
            "times as old at eviction in the zone where they get oldest; {resets} rounds of turns"
        );
        table.row("zones' ages", format!("{ages:.2}"), says);
    }
}

struct Table(String);

impl Table {
    fn line(&mut self, text: std::fmt::Arguments) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "{text}");
    }
    fn row(&mut self, name: &str, value: String, says: std::fmt::Arguments) {
        self.line(format_args!("  {name:<12} {value:>10}  {says}"));
    }
}

fn bytes(count: u64) -> String {
    Bytes::new(count).to_string()
}

/// `0` where there is nothing to compare with.
fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// Names those of the counts that are not zero, `; a, b` or nothing.
fn named(lead: &str, counts: &[(&str, String, u64)]) -> String {
    let shown: Vec<_> =
        counts.iter().filter(|(.., n)| *n > 0).map(|(name, text, _)| format!("{text} {name}")).collect();
    if shown.is_empty() { String::new() } else { format!("{lead}{}", shown.join(", ")) }
}

fn unmanaged(summary: &Summary) -> String {
    let counters = &summary.counters;
    let percent = 100.0 * ratio(counters.unmanaged_at_peak_bytes, counters.held_peak_bytes);
    let reasons = [
        ("locked", counters.left_locked_bytes),
        ("read-only", counters.left_readonly_bytes),
        ("executable", counters.left_executable_bytes),
        ("shared", counters.left_shared_bytes),
        ("kept from children", counters.left_unforked_bytes),
        ("registered by the program", counters.left_registered_bytes),
        ("of threads", counters.left_thread_bytes),
        ("too small or young", counters.left_small_bytes),
    ];
    let reasons = reasons.map(|(name, count)| (name, bytes(count), count));
    let lead = format!("; left alone {}: ", summary.when());
    format!("{percent:.1}% of the native peak{}", named(&lead, &reasons))
}

fn faults(counters: &Snapshot) -> String {
    let kinds = [
        ("zero", counters.faults_zero),
        ("staged", counters.faults_staged),
        ("stored", counters.faults_stored),
        ("there already", counters.faults_spurious),
    ];
    named("", &kinds.map(|(name, count)| (name, count.to_string(), count)))
}

fn processes(counters: &Snapshot) -> String {
    let others = counters.processes.saturating_sub(counters.processes_managed);
    let kinds = [("managed", counters.processes_managed), ("too small for an engine, or unmanaged", others)];
    named("", &kinds.map(|(name, count)| (name, count.to_string(), count)))
}

fn stored(summary: &Summary) -> String {
    let counters = &summary.counters;
    let spilled = counters.spilled_bytes.saturating_add(counters.remote_bytes);
    let takes = counters.store_memory_bytes.saturating_add(spilled);
    if counters.stored_bytes == 0 || takes == 0 {
        return "before compression".to_owned();
    }
    let ratio = ratio(counters.stored_bytes, takes);
    format!("before compression, which was {ratio:.1}:1 {}", summary.when())
}

#[cfg(test)]
#[path = "table_test.rs"]
mod tests;
