//! The table that `pagoda run` prints when the program has ended: its memory, its faults, and their
//! cost.
//!
//! A row that has nothing to say is left out; a row that says the budget was passed or left is
//! never left out. This module must never compute a figure that the counters don't carry, except
//! shares and ratios of those they do.

use std::fmt::{Display, Write};
use std::time::Duration;

use pagoda::frames::zones::{ZoneConfig, ZoneStats, age_ratio};
use pagoda::stats::counters::{Stats, Status};
use pagoda_core::budget::thrashing::advice;
use pagoda_core::size::Bytes;

use crate::run::supervise::{End, Ended};
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
    pub counters: Stats,
    /// The zones of the budget, if it is divided.
    pub zones: &'a [ZoneConfig],
    /// The trace, if there is one.
    pub trace: Option<&'a Header>,
    /// The largest budget that it had: it may have been changed while it ran.
    pub budget_most: Bytes,
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
    let mut table = Table::of(summary.program, summary.ended, summary.wall);
    memory(&mut table, summary);
    faults_and_evictions(&mut table, &summary.counters);
    thrashing(&mut table, summary);
    store(&mut table, summary);
    zones(&mut table, summary);
    table.row("own", bytes(summary.counters.own_bytes), format_args!("Pagoda's tables, stacks and heap"));
    if let Some(Header { events, dropped, untraced, .. }) = summary.trace {
        let says = format_args!("faults and evictions; {dropped} dropped, {untraced} processes not traced");
        table.row("traced", events, says);
    }
    processes(&mut table, &summary.counters);
    table.0
}

/// The budget, and the memory held within it and beside it.
fn memory(table: &mut Table, summary: &Summary) {
    let counters = &summary.counters;
    let base_page = Bytes::new(counters.base_page_bytes);
    let most = summary.budget_most.get().max(counters.budget_bytes);
    let changed = match most > counters.budget_bytes {
        true => format!(", at the end; {} at most before", summary.budget_most),
        false => String::new(),
    };
    table.row("budget", bytes(counters.budget_bytes), format_args!("base page {base_page}{changed}"));
    let over = counters.anon_peak_bytes.saturating_sub(most);
    let kept = match over {
        _ if summary.is_replaced => "NOT ENFORCED: the program was replaced".to_owned(),
        0 => "within the budget".to_owned(),
        over => format!("{} over it", Bytes::new(over)),
    };
    let (of_all, holder) =
        if counters.processes > 1 { (" of all processes", "the processes") } else { ("", "the program") };
    let peak = bytes(counters.anon_peak_bytes);
    table.row("peak", peak, format_args!("anonymous memory{of_all} by the kernel's count, {kept}"));
    let times = ratio(counters.held_peak_bytes, counters.budget_bytes);
    let says = format_args!("what {holder} held at most, {times:.1} times the budget");
    table.row("native peak", bytes(counters.held_peak_bytes), says);
    table.row("unmanaged", bytes(counters.unmanaged_at_peak_bytes), unmanaged(summary));
    let resident = bytes(summary.ended.resident_peak_bytes);
    table.row("with files", resident, "largest resident set, file-backed pages included");
}

fn faults_and_evictions(table: &mut Table, counters: &Stats) {
    let kinds = [
        ("zero", counters.faults_zero),
        ("staged", counters.faults_staged),
        ("stored", counters.faults_stored),
        ("there already", counters.faults_spurious),
    ];
    let kinds = kinds.map(|(name, count)| (name, count.to_string(), count));
    table.row("faults", counters.faults, named("", &kinds));
    table.count("waited", counters.faults_throttled, "faults that waited for memory");
    let free = counters.stores_zero + counters.stores_same;
    let went_on = format!("{} went on to the store, {free} of them at no cost", counters.stores);
    table.count("evictions", counters.evictions, went_on);
    let says = "times an OS page was left where it is, pinned, or shared with another process";
    table.count("pinned", counters.evict_busy, says);
}

/// Whether the program waited long for memory that it had before.
fn thrashing(table: &mut Table, summary: &Summary) {
    let counters = &summary.counters;
    let [budget, lacks, held] =
        [counters.budget_bytes, counters.refault_distance_bytes, counters.held_peak_bytes].map(Bytes::new);
    let wall_ns = u64::try_from(summary.wall.as_nanos()).unwrap_or(u64::MAX);
    if let Some(enough) = advice(budget, lacks, held, counters.refault_wait_ns, wall_ns) {
        let waited = format!("{:.1} s", Duration::from_nanos(counters.refault_wait_ns).as_secs_f64());
        let says = format!("were waited for swapped-out pages; raise the budget to about {enough}");
        table.row("thrashing", waited, says);
    }
}

/// The stored memory, by place.
fn store(table: &mut Table, summary: &Summary) {
    let counters = &summary.counters;
    table.size("stored peak", counters.stored_peak_bytes, stored(summary));
    let says = "peak of the store's memory, part of the budget";
    table.size("compressed", counters.store_memory_peak_bytes, says);
    table.size("spilled peak", counters.spilled_peak_bytes, "in the store directory's file");
    let failures = counters.remote_failures;
    let says = format!("at the remote store, which failed to do what it was asked {failures} times");
    table.size("remote peak", counters.remote_peak_bytes, says);
}

/// How many processes there were, what their forks took, and which were not managed.
fn processes(table: &mut Table, counters: &Stats) {
    if counters.processes > 1 {
        let others = counters.processes.saturating_sub(counters.processes_managed);
        let kinds =
            [("managed", counters.processes_managed), ("too small for an engine, or unmanaged", others)];
        let kinds = kinds.map(|(name, count)| (name, count.to_string(), count));
        table.row("processes", counters.processes, named("", &kinds));
    }
    let (whole, left_out) = (counters.cores_whole, counters.cores_left_out);
    let says = format!(
        "core dumps: {whole} whole, {left_out} without what was swapped out: no room for it, or no time"
    );
    table.count("core", whole + left_out, says);
    if Status::from_word(counters.status) == Status::Released && whole == 0 {
        let back = bytes(counters.brought_back_bytes);
        table.row("released", back, "everything brought back, managed no further: see docs/caveats.md");
    } else {
        let [copied, taken, lent] =
            [counters.fork_copied_bytes, counters.fork_taken_over_bytes, counters.fork_lent_bytes].map(bytes);
        let written = bytes(counters.copied_on_write_peak_bytes);
        let says = format!(
            "children took over {taken} that were out ({lent} in its file), {copied} were copied; at most {written} over \
             budget by copy on write"
        );
        table.count("forks", counters.forks, says);
    }
    let says = "times a thread of Pagoda's kept rights that the program had given up";
    table.count("rights", counters.rights_kept, says);
    let says = "child processes ran unmanaged, outside the budget";
    table.count("children", counters.children_unmanaged, says);
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

/// A table of a run, row by row.
pub struct Table(String);

impl Table {
    /// With its first line: the program, its end and its time.
    pub fn of(program: &str, ended: Ended, wall: Duration) -> Self {
        let end = match ended.end {
            End::Exited(status) => format!("exit status {status}"),
            End::Killed(signal) => format!("ended by signal {signal}"),
        };
        let mut table = Self(String::new());
        table.line(format_args!("pagoda: {program}, {end}, {:.2} s", wall.as_secs_f64()));
        table
    }
    /// All lines, with a line break at each one's end.
    pub fn text(self) -> String {
        self.0
    }
    fn line(&mut self, text: std::fmt::Arguments) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "{text}");
    }
    /// A row that is never left out.
    pub fn row(&mut self, name: &str, value: impl Display, says: impl Display) {
        self.line(format_args!("  {name:<12} {value:>10}  {says}"));
    }
    /// A row of a count that has nothing to say when it is 0.
    fn count(&mut self, name: &str, count: u64, says: impl Display) {
        if count > 0 {
            self.row(name, count, says);
        }
    }
    /// A row of a size that has nothing to say when it is 0.
    pub fn size(&mut self, name: &str, size: u64, says: impl Display) {
        if size > 0 {
            self.row(name, bytes(size), says);
        }
    }
}

/// So many bytes, in their unit.
pub fn bytes(count: u64) -> String {
    Bytes::new(count).to_string()
}

/// `0` where there is nothing to compare with.
pub fn ratio(part: u64, whole: u64) -> f64 {
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
