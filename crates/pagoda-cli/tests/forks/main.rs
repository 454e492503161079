//! Seeded trees of processes in too little memory, with every byte against a shadow: a forked
//! process holds its parent's memory of that moment, for every later step of the parent and every
//! order of their ends.
//!
//! `PAGODA_FORK_ROUNDS` sets the number of forks, at every base page; `PAGODA_FORK_SEED` repeats a
//! run as far as the processes' own choices go. The seed is printed when something is wrong.

#[path = "../torture/area.rs"]
mod area;
#[path = "../torture/files.rs"]
mod files;
#[path = "../torture/heap.rs"]
mod heap;
#[path = "../support/mod.rs"]
mod support;

mod borrow;
mod family;
mod faults;
mod lent;
mod paced;
mod plots;
mod racing;
mod rounds;
mod torture;

use std::process::ExitCode;
use std::time::Duration;

use pagoda_linux::testing::heap::share_one_on_brk;
use pagoda_linux::testing::length::length;
use pagoda_linux::testing::process::end_at_once;
use support::managed::{ROLE, Run};
use support::suite::{self, Test};

/// Each waits for its pages half of the time.
const AT_ONCE: usize = 2;

/// The least that is taken.
const BUDGET: &str = "32M";

/// The longest time for a fork and all checks of its children, on a busy machine: longer is a hang.
const ROUND_MS_MAX: u64 = 1500;

/// A test: its name, the program's work for a seed and a number of forks, and the number of forks
/// of the normal form and of the long one.
struct Kind {
    name: &'static str,
    body: fn(u64, u64) -> Result<String, String>,
    memory: &'static str,
    short: u64,
    long: u64,
    /// The counters that must not be 0.
    counters: &'static [&'static str],
    /// The counters that must not be more.
    most: &'static [(&'static str, u64)],
}

const COUNTERS: [&str; 3] = ["forks", "evictions", "faults_stored"];

const KINDS: [Kind; 5] = [
    Kind {
        name: "torture",
        body: torture::body,
        memory: BUDGET,
        short: 3,
        long: 24,
        counters: &COUNTERS,
        most: &[],
    },
    Kind {
        name: "rounds",
        body: rounds::body,
        memory: BUDGET,
        short: 6,
        long: 100,
        counters: &COUNTERS,
        most: &[],
    },
    Kind {
        name: "faults",
        body: faults::body,
        memory: BUDGET,
        short: 3,
        long: 24,
        counters: &COUNTERS,
        most: &[],
    },
    Kind {
        name: "lent",
        body: lent::body,
        memory: BUDGET,
        short: 1,
        long: 10,
        counters: &["forks", "fork_lent_bytes", "faults_spilled"],
        // All its spill files together.
        most: &[("spilled_peak_bytes", lent::SPILLED_MAX)],
    },
    Kind {
        name: "paced",
        body: paced::body,
        memory: paced::MEMORY,
        short: 1,
        long: 6,
        counters: &["forks", "evictions", "held_writes"],
        most: &[("copied_on_write_peak_bytes", paced::COPIED_MAX)],
    },
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == ROLE) {
        return program(&arguments[1..]);
    }
    let forks = suite::from_environment("PAGODA_FORK_ROUNDS");
    let tests = KINDS.iter().flat_map(|kind| {
        // At 4 KiB the others take minutes.
        let base_pages: &[&str] = match forks {
            Some(_) => &["4K", "16K", "64K", "2M"],
            None if kind.name != "faults" => &["64K"],
            None => &["4K", "64K"],
        };
        base_pages.iter().map(move |base_page| Test {
            name: format!("forks_{}_{}", kind.name, base_page.to_lowercase()),
            run: Box::new(move || run(kind, base_page, forks.unwrap_or(length(kind.short, kind.long)))),
        })
    });
    suite::run(&arguments, tests.collect(), AT_ONCE)
}

fn run(kind: &Kind, base_page: &str, forks: u64) -> Result<String, String> {
    if !suite::can_run("forks") {
        return Ok(suite::SKIPPED.to_owned());
    }
    let seed = suite::seed("PAGODA_FORK_SEED");
    let run = Run {
        base_page,
        memory: kind.memory,
        arguments: vec![kind.name.to_owned(), seed.to_string(), forks.to_string()],
        // Only a hang takes this long: those whose pages lie in the file wait for the disk, 54 s on
        // one of 400 MB/s.
        limit: Duration::from_millis(180_000 + forks * ROUND_MS_MAX),
        kills_who_forks: kind.name == "torture",
    };
    let told = |error| format!("seed {seed}: {error}");
    let (outcome, counted) = run.run_until_some(kind.counters).map_err(told)?;
    let mut said = format!("{}; {counted}", outcome.said.trim());
    for (counter, most) in kind.most {
        let count = outcome.counter(counter).map_err(told)?;
        said += &format!(", {counter} {count}");
        if count > *most {
            return Err(told(format!("more than {most}: {said}")));
        }
    }
    Ok(format!("seed {seed}: {said}"))
}

/// The program, or the executable that it runs anew.
fn program(arguments: &[String]) -> ExitCode {
    let number = |at: usize| arguments[at].parse::<u64>().expect("a number");
    // Half of all seeds have one heap, on brk, that all threads share and that shrinks when its top
    // is free.
    if number(1).is_multiple_of(2) {
        share_one_on_brk();
    }
    let result = match KINDS.iter().find(|kind| kind.name == arguments[0]) {
        Some(kind) => (kind.body)(number(1), number(2)),
        None => family::executed(number(1)),
    };
    match result {
        Ok(said) => {
            println!("{said}");
            ExitCode::SUCCESS
        }
        Err(wrong) => {
            family::complain(&wrong);
            // At once: threads that go on must not add to it, and nothing is to be torn down.
            end_at_once(family::WRONG)
        }
    }
}
