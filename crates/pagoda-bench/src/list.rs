//! The list of benches: what each shows, its time, and how its figures are drawn.
//!
//! `pagoda bench` without a name prints this list, and `pagoda bench all` works through it. Each
//! bench must have an entry; a test compares with the command line. Never runs a bench itself.

use std::fmt::Write;

use serde_json::Value;

use crate::report::html::{Chart, charts};
use crate::suites::{base_page, budget, clear, counters, migrate, programs, release, snapshot, tree, zones};

/// One bench.
pub struct Entry {
    /// Its subcommand.
    pub name: &'static str,
    /// A sentence about the bench, without its full stop.
    pub shows: &'static str,
    /// Minutes it takes on two idle processors; on busy ones several times that.
    takes_min: u32,
    /// Seconds it takes with `--quick`: all of them fit in the time that `all --quick` has.
    takes_quick_s: u32,
    /// The tables for people, from its JSON, below the line of the machine.
    pub table: fn(&Value) -> String,
    /// The plots of its JSON.
    pub charts: fn(&Value) -> Vec<Chart>,
}

/// All benches, in the order in which `all` runs them. The longest are last, so that only they are
/// cut where time runs out.
pub static BENCHES: [Entry; 10] = [
    Entry {
        name: "zones",
        shows: "Zones to take frames from: the fair policy and its baselines by counts, and streams over a file beside the kernel's mmap",
        takes_min: 4,
        takes_quick_s: 15,
        table: zones::table::table,
        charts: charts::zones,
    },
    Entry {
        name: "counters",
        shows: "The cost of counting and timing a fault, over the time to serve it",
        takes_min: 1,
        takes_quick_s: 2,
        table: counters::table,
        charts: charts::counters,
    },
    Entry {
        name: "clear",
        shows: "Clearing huge frames in different orders, against clearing from the beginning and the kernel's huge pages",
        takes_min: 2,
        takes_quick_s: 20,
        table: clear::table::table,
        charts: charts::clear,
    },
    Entry {
        name: "base-page",
        shows: "Base pages of 4, 16 and 64 KiB by density, against the kernel's small, huge and 64 KiB pages: faults, tables, memory, time",
        takes_min: 4,
        takes_quick_s: 30,
        table: base_page::table::table,
        charts: charts::base_page,
    },
    Entry {
        name: "release",
        shows: "Closing owners with most of their memory stored, by policy, beside an owner that starts, and against being killed \
                with as much in the kernel's zram",
        takes_min: 5,
        takes_quick_s: 10,
        table: release::table::table,
        charts: charts::release,
    },
    Entry {
        name: "snapshot",
        shows: "Restoring memory from an image: its first byte, a scattered working set beside mmap and reading, and the pause of saving",
        takes_min: 3,
        takes_quick_s: 20,
        table: snapshot::table::table,
        charts: charts::snapshot,
    },
    Entry {
        name: "migrate",
        shows: "Moving a live region: zero pages at the destination by policy, codecs, a region that is written meanwhile, stored pages",
        takes_min: 12,
        takes_quick_s: 18,
        table: migrate::report::table,
        charts: charts::migrate,
    },
    Entry {
        name: "budget",
        shows: "Running over a memory budget against the kernel's zram and swap with the same total memory, and the cost of \
                Pagoda where memory suffices",
        takes_min: 15,
        takes_quick_s: 35,
        table: budget::report::table,
        charts: charts::budget,
    },
    Entry {
        name: "tree",
        shows: "Trees of processes: fork, short processes, a server that saves, a build, a JVM and node, beside native runs",
        takes_min: 6,
        takes_quick_s: 50,
        table: tree::table::table,
        charts: charts::tree,
    },
    Entry {
        name: "programs",
        shows: "Real programs at 3/4, 1/2 and 1/4 of their native peak, against the kernel's swap with the same total memory",
        takes_min: 30,
        takes_quick_s: 12,
        table: programs::table::table,
        charts: charts::programs,
    },
];

/// The list as text for people.
pub fn text() -> String {
    let mut text = String::new();
    for Entry { name, shows, takes_min, takes_quick_s, .. } in &BENCHES {
        let _ = writeln!(text, "{name:<9} {shows}");
        let _ = writeln!(text, "{:9} about {takes_min} min, with --quick {takes_quick_s} s", "");
    }
    text + "\nall       all of them, as one HTML page: pagoda bench all [--quick] --html report.html\n\
            \nA bench has its own options: pagoda bench NAME --help. On a machine that does\nother things it takes longer, and its figures are none.\n"
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use crate::suites::all::{self, traced};

    use super::*;

    #[test]
    fn every_bench_of_the_command_line_has_its_line_and_all_quick_ones_fit() {
        let mut command = crate::Arguments::command();
        command.build();
        let benches = command.get_subcommands().filter(|command| !command.is_hide_set());
        let mut named: Vec<_> = benches.map(clap::Command::get_name).collect();
        named.retain(|name| !["all", "help"].contains(name));
        let mut listed: Vec<_> = BENCHES.iter().map(|entry| entry.name).collect();
        named.sort_unstable();
        listed.sort_unstable();
        assert_eq!(named, listed);
        let text = text();
        let quick_s: u32 = BENCHES.iter().map(|entry| entry.takes_quick_s).sum();
        assert!(u64::from(quick_s) + traced::LIMIT.as_secs() <= all::QUICK.as_secs(), "{quick_s} s");
        for entry in &BENCHES {
            assert!(text.contains(entry.shows) && !entry.shows.ends_with('.'), "{}", entry.name);
        }
    }
}
