//! Each row is there when it has something to say, with the figures that it says.

use super::*;

fn render_with(counters: Stats) -> String {
    let ended = Ended { end: End::Exited(0), resident_peak_bytes: 300 << 20, is_replaced: false };
    render(&Summary {
        is_replaced: false,
        program: "sort",
        zones: &two_zones(),
        ended,
        wall: Duration::from_millis(1234),
        counters,
        budget_most: Bytes::ZERO,
        gauges_at_peak: counters.processes > 1,
        trace: None,
    })
}

fn two_zones() -> [ZoneConfig; 2] {
    ["fast=64M", "slow=192M"].map(|text| text.parse().expect("a zone"))
}

#[test]
fn zones_have_a_row_each_and_their_ages_are_compared() {
    let zoned = crate::stats_with(busy(), |stats| {
        stats.zone0_bytes = 64 << 20;
        stats.zone0_held_bytes = 60 << 20;
        stats.zone0_free_bytes = 2 << 20;
        stats.zone0_allocated_bytes = 100 << 20;
        stats.zone0_evicted_bytes = 40 << 20;
        stats.zone1_bytes = 192 << 20;
        stats.zone1_held_bytes = 180 << 20;
        stats.zone1_free_bytes = 6 << 20;
        stats.zone1_allocated_bytes = 300 << 20;
        stats.zone1_evicted_bytes = 60 << 20;
        stats.zones_resets = 7;
    });
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

fn busy() -> Stats {
    crate::stats_with(Stats::default(), |stats| {
        stats.status = Status::Managed as u64;
        stats.budget_bytes = 256 << 20;
        stats.base_page_bytes = 64 << 10;
        stats.anon_peak_bytes = 255 << 20;
        stats.held_peak_bytes = 1 << 30;
        stats.unmanaged_at_peak_bytes = 16 << 20;
        stats.left_thread_bytes = 1 << 20;
        stats.faults = 30;
        stats.faults_zero = 10;
        stats.faults_stored = 20;
        stats.evictions = 40;
        stats.evict_busy = 9;
        stats.stores = 25;
        stats.stores_zero = 5;
        stats.stored_bytes = 600 << 20;
        stats.stored_peak_bytes = 768 << 20;
        stats.store_memory_bytes = 100 << 20;
        stats.store_memory_peak_bytes = 110 << 20;
        stats.spilled_bytes = 100 << 20;
        stats.spilled_peak_bytes = 128 << 20;
        stats.own_bytes = 8 << 20;
    })
}

#[test]
fn a_program_that_thrashed_is_told_a_budget_that_ends_it() {
    let waited = |ms: u64| {
        let stats = crate::stats_with(busy(), |stats| {
            stats.refault_wait_ns = ms * 1_000_000;
            stats.refault_distance_bytes = 100 << 20;
        });
        render_with(stats)
    };
    let table = waited(900);
    let says =
        "thrashing         0.9 s  were waited for swapped-out pages; raise the budget to about 356 MiB";
    assert!(table.contains(says), "{table}");
    assert_eq!(row(&waited(100), "thrashing"), None, "less than a tenth of its 1.2 s");
}

#[test]
fn a_budget_that_was_made_smaller_is_told_and_the_peak_is_held_against_the_largest() {
    let ended = Ended { end: End::Exited(0), resident_peak_bytes: 0, is_replaced: false };
    let table = render(&Summary {
        is_replaced: false,
        program: "sort",
        zones: &[],
        ended,
        wall: Duration::from_secs(1),
        counters: crate::stats_with(busy(), |stats| stats.anon_peak_bytes = 300 << 20),
        budget_most: Bytes::mib(512),
        gauges_at_peak: false,
        trace: None,
    });
    assert!(
        row(&table, "budget").is_some_and(|row| row.contains("at the end; 512 MiB at most before")),
        "{table}"
    );
    assert!(row(&table, "peak").is_some_and(|row| row.contains("within the budget")), "{table}");
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
        ("pinned", "9  times an OS page was left where it is, pinned, or shared with another process"),
        ("evictions", "40  25 went on to the store, 5 of them at no cost"),
        ("stored peak", "768 MiB  before compression, which was 3.0:1 at the end"),
        ("compressed", "110 MiB"),
        ("spilled peak", "128 MiB"),
        ("own", "8 MiB"),
    ] {
        assert!(row(&table, name).is_some_and(|row| row.contains(says)), "{name}: {says}\n{table}");
    }
    assert!(table.lines().count() <= 15 && table.lines().all(|line| line.len() <= 110), "{table}");
    assert_eq!(row(&table, "released"), None);
}

#[test]
fn a_passed_budget_a_fork_and_children_are_said() {
    let released = crate::stats_with(busy(), |stats| {
        stats.status = Status::Released as u64;
        stats.anon_peak_bytes = 300 << 20;
        stats.forks = 1;
        stats.brought_back_bytes = 2 << 20;
        stats.children_unmanaged = 3;
        stats.rights_kept = 2;
    });
    let table = render_with(released);
    assert!(
        row(&table, "rights").is_some_and(|row| row.contains("2  times a thread of Pagoda's")),
        "{table}"
    );
    assert!(row(&table, "peak").is_some_and(|row| row.contains("44 MiB over it")), "{table}");
    let released = "2 MiB  everything brought back, managed no further: see docs/caveats.md";
    assert!(row(&table, "released").is_some_and(|row| row.contains(released)), "{table}");
    assert!(
        row(&table, "children").is_some_and(|row| row.contains("3  child processes ran unmanaged")),
        "{table}"
    );
}

#[test]
fn a_fork_that_was_served_is_shown_with_its_copied_bytes() {
    let copied = crate::stats_with(busy(), |stats| {
        stats.forks = 2;
        stats.fork_taken_over_bytes = 9 << 20;
        stats.fork_lent_bytes = 7 << 20;
        stats.fork_copied_bytes = 3 << 20;
        stats.copied_on_write_peak_bytes = 5 << 20;
    });
    let table = render_with(copied);
    let says = "2  children took over 9 MiB that were out (7 MiB in its file), 3 MiB were copied; at most 5 MiB over budget by copy \
                on write";
    assert!(row(&table, "forks").is_some_and(|row| row.contains(says)), "{table}");
    assert_eq!(row(&table, "released"), None);
}

#[test]
fn a_tree_has_its_processes_told_and_a_program_of_one_has_not() {
    let tree = render_with(crate::stats_with(busy(), |stats| {
        stats.processes = 412;
        stats.processes_managed = 3;
    }));
    for (name, says) in [
        ("processes", "412  3 managed, 409 too small for an engine, or unmanaged"),
        ("peak", "255 MiB  anonymous memory of all processes by the kernel's count, within the budget"),
        ("native peak", "1 GiB  what the processes held at most, 4.0 times the budget"),
        ("stored peak", "768 MiB  before compression, which was 3.0:1 at the peak"),
    ] {
        assert!(row(&tree, name).is_some_and(|row| row.contains(says)), "{name}: {says}\n{tree}");
    }
    let one = render_with(crate::stats_with(busy(), |stats| {
        stats.processes = 1;
        stats.processes_managed = 1;
    }));
    assert_eq!(one, render_with(busy()));
}

#[test]
fn a_program_that_did_nothing_divides_by_no_zero() {
    let table = render_with(Stats::default());
    assert!(!table.contains("NaN") && !table.contains("inf"), "{table}");
    assert_eq!(row(&table, "evictions"), None);
    assert_eq!(row(&table, "pinned"), None);
}
