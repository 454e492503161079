//! `--explain`: what each row of the table means, and what to do about it.
//!
//! The rows are those of `table`, by their names and in their order; a test holds both together.
//! This module must never have a figure: those are the table's.

use std::fmt::Write;

/// A row: its name, its meaning, and what to do next where there is anything to do.
type Row = (&'static str, &'static str, &'static str);

const ROWS: [Row; 25] = [
    ("budget", "what the program may hold in memory, and the unit in which it is moved", ""),
    (
        "peak",
        "the most that the kernel counted: anonymous memory, Pagoda's own included",
        "much over the budget: a burst outran eviction; give a smaller --memory, or accept it",
    ),
    (
        "native peak",
        "the most that the program held, in memory or not: its peak without Pagoda",
        "a budget of this size costs next to nothing; half of it is a good first try",
    ),
    (
        "unmanaged",
        "the part of that which stays where it is, by reason: no budget can be below it",
        "near the budget: give more, or see the caveats for the reason that is named",
    ),
    ("group", "the most memory of the control group, in a run by the kernel's swap", ""),
    ("with files", "the largest resident set; pages of files are the kernel's to drop", ""),
    (
        "faults",
        "touches of missing memory: zero: new; staged: still in a frame; stored: swapped in",
        "many stored: the budget is below what is in use; many zero and staged are cheap",
    ),
    (
        "waited",
        "faults that found no free memory and waited until some was moved out",
        "more than a hundredth of the faults: raise --memory",
    ),
    ("evictions", "base pages that were moved out; those that stayed in frames cost least", ""),
    (
        "pinned",
        "times that a page could not be moved: a device holds it, or a process shares it",
        "many, and the peak is over the budget: the program pins its memory (io_uring, RDMA)",
    ),
    (
        "thrashing",
        "the program waited long for memory that it had before",
        "raise --memory to the size that the row names",
    ),
    (
        "stored peak",
        "the most that was swapped out, before compression",
        "a ratio near 1:1: the data does not compress; let it spill to a fast disk, --store-dir",
    ),
    ("compressed", "the most memory that swapped-out pages took; a part of the budget", ""),
    (
        "spilled peak",
        "the most that was in the store's file",
        "much, and it is slow: give more --memory, or a faster disk by --store-dir",
    ),
    (
        "remote peak",
        "the most that was at the remote store, and how often that failed",
        "failures: see that the server keeps everything (noeviction) and can be reached",
    ),
    ("zone", "one kind of memory: what it gave, what was moved out of it, what is free", ""),
    (
        "zones' ages",
        "how evenly zones share: 1 is fair; the oldest pages against the youngest",
        "far above 1: one zone is too large for its part; change the sizes of --zone",
    ),
    ("own", "Pagoda's tables, stacks and heap; a part of the peak", ""),
    ("traced", "events that --trace kept, and dropped", "look at them: pagoda trace FILE"),
    ("processes", "how many there were, and how many were large enough to be moved in and out", ""),
    (
        "core",
        "core dumps, of which those are whole before which all was swapped in",
        "without room: free memory, or raise the group's limit, and run it again",
    ),
    (
        "released",
        "everything was brought back, and the budget ended there",
        "a fork needs CAP_SYS_PTRACE to stay managed; pagoda doctor says how to get it",
    ),
    ("forks", "forks, what children took over or got copied, and what copying cost", ""),
    ("rights", "times a thread of Pagoda's kept rights that the program had given up", ""),
    (
        "children",
        "processes below the program that ran outside the budget",
        "static, setuid and musl programs: use others, leave room, or --backend kernel",
    ),
];

/// Columns of the names.
const NAME_COLUMNS: usize = 12;

/// The rows of this table, or all rows without one; a line or two each.
pub fn explain(table: Option<&str>) -> String {
    let mut text = "What the rows mean, and what to do next (->):\n".to_owned();
    let is_shown = |name: &str| table.is_none_or(|table| names(table).any(|row| row == name));
    for (name, means, next) in ROWS.iter().filter(|(name, ..)| is_shown(name)) {
        // Writing to a string does not fail.
        let _ = writeln!(text, "  {name:<NAME_COLUMNS$}  {means}");
        if !next.is_empty() {
            let _ = writeln!(text, "  {:<NAME_COLUMNS$}  -> {next}", "");
        }
    }
    text.push_str(
        "More: `pagoda top` while it runs, --stats FILE for all counters, --trace FILE for each fault.\n",
    );
    text
}

/// The names of a table's rows. Its first line is the program's.
fn names(table: &str) -> impl Iterator<Item = &str> {
    let lines = table.lines().filter_map(|line| line.strip_prefix("  "));
    lines.filter_map(|line| line.get(..NAME_COLUMNS)).map(str::trim_end)
}

#[cfg(test)]
#[path = "explain_test.rs"]
mod tests;
