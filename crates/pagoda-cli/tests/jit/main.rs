//! Memory operations of run-time compilers and collectors, and other things that come between a
//! program and its faults: protections that change while content is swapped out, guard pages,
//! stacks that grow, signal handlers on stacks that are swapped out, other users of userfaultfd,
//! system call filters, programs with rights of their own.
//!
//! Each runs for a second, or two in the long form, beside a thread that keeps memory short; a
//! round counts only if it saw memory of its own swapped out before. `PAGODA_JIT_SEED` repeats a
//! run as far as the threads' own choices go. The seed is printed.

#[path = "../races/pressure.rs"]
#[allow(dead_code, reason = "the races use the rest")]
mod pressure;
#[path = "../support/mod.rs"]
mod support;

mod code;
mod filtered;
mod grows_down;
mod partly_forked;
mod protections;
mod registered;
mod rights;
mod rounds;
mod signals;
mod wiped;

use std::process::ExitCode;
use std::time::Duration;

use pagoda_linux::testing::length::length;
use pressure::{Arena, Rounds};
use support::managed::{ROLE, Run, longer};
use support::suite::{self, Test};

/// Each waits for its pages half of the time, and for the end of its run.
const AT_ONCE: usize = 3;

/// The least that is taken.
const BUDGET: &str = "32M";

/// How long each case takes.
fn time() -> Duration {
    Duration::from_millis(length(500, 2000)) * longer()
}

/// A case: its name, its work in a thread until its rounds are over, and the counters that show
/// that it was run.
struct Case {
    name: &'static str,
    body: fn(&Arena, u64) -> Result<(), String>,
    counters: &'static [&'static str],
}

const CASES: [Case; 12] = [
    Case { name: "read_only", body: protections::read_only, counters: &["evictions", "faults_stored"] },
    Case { name: "guard_pages", body: protections::guard_pages, counters: &["evictions", "faults_stored"] },
    Case { name: "code", body: code::body, counters: &["evictions", "faults_stored"] },
    Case { name: "code_heap", body: code::heap, counters: &["evictions", "faults_stored"] },
    Case { name: "grows_down", body: grows_down::body, counters: &["evictions", "faults_stored"] },
    Case {
        name: "alternate_stack",
        body: signals::alternate_stack,
        counters: &["evictions", "faults_stored"],
    },
    Case { name: "own_handlers", body: signals::own_handlers, counters: &["evictions", "faults_stored"] },
    Case { name: "registered", body: registered::body, counters: &["evictions", "left_registered_bytes"] },
    Case { name: "filtered_thread", body: filtered::thread, counters: &["evictions", "faults_stored"] },
    Case { name: "filtered_child", body: filtered::child, counters: &["evictions", "forks"] },
    Case {
        name: "partly_forked",
        body: partly_forked::body,
        counters: &["evictions", "forks", "fork_taken_over_bytes"],
    },
    Case {
        name: "wiped",
        body: wiped::body,
        // The C library's forks, and those past it.
        counters: &["evictions", "forks", "fork_taken_over_bytes", "fork_copied_bytes"],
    },
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == ROLE) {
        return program(&arguments[1..]);
    }
    let cases = CASES.iter().flat_map(|case| {
        ["4K", "64K"].map(|base_page| Test {
            name: format!("jit_{}_{}", case.name, base_page.to_lowercase()),
            run: Box::new(move || run(case, base_page)),
        })
    });
    let rights = Test { name: "jit_rights".to_owned(), run: Box::new(rights::run) };
    suite::run(&arguments, cases.chain([rights]).collect(), AT_ONCE)
}

fn run(case: &Case, base_page: &str) -> Result<String, String> {
    if !suite::can_run("jit") {
        return Ok(suite::SKIPPED.to_owned());
    }
    let seed = suite::seed("PAGODA_JIT_SEED");
    let arguments = vec![case.name.to_owned(), seed.to_string()];
    let run = Run {
        base_page,
        memory: BUDGET,
        arguments,
        limit: time() + Duration::from_secs(60),
        kills_who_forks: false,
    };
    let told = |error| format!("seed {seed}: {error}");
    let (outcome, counted) = run.run_until_some(case.counters).map_err(told)?;
    Ok(format!("seed {seed}: {}; {counted}", outcome.said.trim()))
}

/// The program: the case beside a thread that keeps memory short.
fn program(arguments: &[String]) -> ExitCode {
    let case = CASES.iter().find(|case| case.name == arguments[0]).expect("a case");
    let seed = arguments[1].parse::<u64>().expect("a number");
    let arena = Arena::new(Rounds::new(0, time()));
    let result = std::thread::scope(|scope| {
        let ballast = scope.spawn(|| arena.press(seed));
        let done = (case.body)(&arena, seed);
        arena.end();
        done.and(ballast.join().expect("the ballast does not panic"))
    });
    println!("{}", arena.told());
    match result {
        Ok(()) if arena.seen_out() == 0 => {
            eprintln!("no memory of the case was ever seen swapped out");
            ExitCode::from(10)
        }
        Ok(()) => ExitCode::SUCCESS,
        Err(wrong) => {
            eprintln!("{wrong}");
            ExitCode::from(9)
        }
    }
}
