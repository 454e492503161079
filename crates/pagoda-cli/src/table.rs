//! The table that `pagoda run` prints when the program has ended: what it held, what it got, what that took.
//!
//! A row that has nothing to say is left out; a row that says the budget was passed or left is never left out. This
//! module must never compute a figure that the counters don't carry, except shares and ratios of those they do.

use std::fmt::Write;
use std::time::Duration;

use pagoda::counters::{Snapshot, Status};
use pagoda::zones::{ZoneConfig, ZoneStats, age_ratio};
use pagoda_core::size::Bytes;

use crate::supervise::{End, Ended};

/// What the table tells of.
pub struct Summary<'a> {
    /// The program as it was named.
    pub program: &'a str,
    /// How it ended.
    pub ended: Ended,
    /// From start to end.
    pub wall: Duration,
    /// Its counters, and those of all below it.
    pub counters: Snapshot,
    /// The zones of the budget, if it is divided.
    pub zones: &'a [ZoneConfig],
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
    let kept =
        if over == 0 { "within the budget".to_owned() } else { format!("{} over it", Bytes::new(over)) };
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
    if several {
        table.row("processes", counters.processes.to_string(), format_args!("{}", processes(counters)));
    }
    if Status::from_word(counters.status) == Status::Released {
        let back = bytes(counters.brought_back_bytes);
        table.row("forked", back, format_args!("forked: everything brought back, managed no further"));
    } else if counters.forks > 0 {
        let [copied, taken] = [counters.fork_copied_bytes, counters.fork_taken_over_bytes].map(bytes);
        let written = bytes(counters.copied_on_write_peak_bytes);
        table.row(
            "forks",
            counters.forks.to_string(),
            format_args!(
                "children took over {taken} that were out, {copied} were copied to them; at most {written} over budget by copy on \
                 write"
            ),
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
mod tests {
    use super::*;

    fn render_with(counters: Snapshot) -> String {
        let ended = Ended { end: End::Exited(0), resident_peak_bytes: 300 << 20 };
        render(&Summary {
            program: "sort",
            zones: &two_zones(),
            ended,
            wall: Duration::from_millis(1234),
            counters,
            gauges_at_peak: counters.processes > 1,
        })
    }

    fn two_zones() -> [ZoneConfig; 2] {
        ["fast=64M", "slow=192M"].map(|text| text.parse().expect("a zone"))
    }

    #[test]
    fn zones_have_a_row_each_and_their_ages_are_compared() {
        let zoned = Snapshot {
            zone0_bytes: 64 << 20,
            zone0_held_bytes: 60 << 20,
            zone0_free_bytes: 2 << 20,
            zone0_allocated_bytes: 100 << 20,
            zone0_evicted_bytes: 40 << 20,
            zone1_bytes: 192 << 20,
            zone1_held_bytes: 180 << 20,
            zone1_free_bytes: 6 << 20,
            zone1_allocated_bytes: 300 << 20,
            zone1_evicted_bytes: 60 << 20,
            zones_resets: 7,
            ..busy()
        };
        let table = render_with(zoned);
        for says in [
            "zone             64 MiB  fast: gave 100 MiB (25.0%), 40 MiB moved out, 2 MiB free at the end",
            "zone            192 MiB  slow: gave 300 MiB (75.0%), 60 MiB moved out, 6 MiB free at the end",
            "zones' ages        2.00  times as old at eviction in the zone where they get oldest; 7 rounds of turns",
        ] {
            assert!(table.contains(says), "{says}\n{table}");
        }
        assert!(table.lines().all(|line| line.len() <= 110), "{table}");
    }

    fn row<'a>(table: &'a str, name: &str) -> Option<&'a str> {
        table.lines().find(|line| line.trim_start().starts_with(name))
    }

    fn busy() -> Snapshot {
        Snapshot {
            status: Status::Managed as u64,
            budget_bytes: 256 << 20,
            base_page_bytes: 64 << 10,
            anon_peak_bytes: 255 << 20,
            held_peak_bytes: 1 << 30,
            unmanaged_at_peak_bytes: 16 << 20,
            left_thread_bytes: 1 << 20,
            faults: 30,
            faults_zero: 10,
            faults_stored: 20,
            evictions: 40,
            stores: 25,
            stores_zero: 5,
            stored_bytes: 600 << 20,
            stored_peak_bytes: 768 << 20,
            store_memory_bytes: 100 << 20,
            store_memory_peak_bytes: 110 << 20,
            spilled_bytes: 100 << 20,
            spilled_peak_bytes: 128 << 20,
            own_bytes: 8 << 20,
            ..Snapshot::default()
        }
    }

    #[test]
    fn every_figure_is_in_its_row() {
        let table = render_with(busy());
        for (name, says) in [
            ("pagoda:", "sort, exit status 0, 1.23 s"),
            ("budget", "256 MiB  base page 64 KiB"),
            ("peak", "within the budget"),
            ("native peak", "1 GiB  what the program held at most, 4.0 times the budget"),
            ("unmanaged", "16 MiB  1.6% of the native peak; left alone at the end: 1 MiB of threads"),
            ("with files", "300 MiB"),
            ("faults", "30  10 zero, 20 stored"),
            ("evictions", "40  25 went on to the store, 5 of them at no cost"),
            ("stored peak", "768 MiB  before compression, which was 3.0:1 at the end"),
            ("compressed", "110 MiB"),
            ("spilled peak", "128 MiB"),
            ("own", "8 MiB"),
        ] {
            assert!(row(&table, name).is_some_and(|row| row.contains(says)), "{name}: {says}\n{table}");
        }
        assert!(table.lines().count() <= 15 && table.lines().all(|line| line.len() <= 110), "{table}");
        assert_eq!(row(&table, "forked"), None);
    }

    #[test]
    fn a_passed_budget_a_fork_and_children_are_said() {
        let released = Snapshot {
            status: Status::Released as u64,
            anon_peak_bytes: 300 << 20,
            forks: 1,
            brought_back_bytes: 2 << 20,
            children_unmanaged: 3,
            ..busy()
        };
        let table = render_with(released);
        assert!(row(&table, "peak").is_some_and(|row| row.contains("44 MiB over it")), "{table}");
        let forked = "2 MiB  forked: everything brought back, managed no further";
        assert!(row(&table, "forked").is_some_and(|row| row.contains(forked)), "{table}");
        assert!(
            row(&table, "children").is_some_and(|row| row.contains("3  child processes ran unmanaged")),
            "{table}"
        );
    }

    #[test]
    fn a_fork_that_was_served_is_told_with_what_it_copied() {
        let copied = Snapshot {
            forks: 2,
            fork_taken_over_bytes: 9 << 20,
            fork_copied_bytes: 3 << 20,
            copied_on_write_peak_bytes: 5 << 20,
            ..busy()
        };
        let table = render_with(copied);
        let says = "2  children took over 9 MiB that were out, 3 MiB were copied to them; at most 5 MiB over budget by copy on write";
        assert!(row(&table, "forks").is_some_and(|row| row.contains(says)), "{table}");
        assert_eq!(row(&table, "forked"), None);
    }

    #[test]
    fn a_tree_has_its_processes_told_and_a_program_of_one_has_not() {
        let tree = render_with(Snapshot { processes: 412, processes_managed: 3, ..busy() });
        for (name, says) in [
            ("processes", "412  3 managed, 409 too small for an engine, or unmanaged"),
            ("peak", "255 MiB  anonymous memory of all processes by the kernel's count, within the budget"),
            ("native peak", "1 GiB  what the processes held at most, 4.0 times the budget"),
            ("stored peak", "768 MiB  before compression, which was 3.0:1 at the peak"),
        ] {
            assert!(row(&tree, name).is_some_and(|row| row.contains(says)), "{name}: {says}\n{tree}");
        }
        let one = render_with(Snapshot { processes: 1, processes_managed: 1, ..busy() });
        assert_eq!(one, render_with(busy()));
    }

    #[test]
    fn a_program_that_did_nothing_divides_by_no_zero() {
        let table = render_with(Snapshot::default());
        assert!(!table.contains("NaN") && !table.contains("inf"), "{table}");
        assert_eq!(row(&table, "evictions"), None);
    }
}
