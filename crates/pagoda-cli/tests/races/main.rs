//! The interleavings that lost data or hung a program in trials of the kernel's interface, against
//! the engine: programs that do the one racy thing again and again, under so little memory that
//! eviction comes by all the time.
//!
//! Each runs for a second, or two in the long form, at two base pages; `PAGODA_RACE_ROUNDS` sets
//! the number of rounds instead, at every base page. `PAGODA_RACE_SEED` repeats a run as far as the
//! threads' own choices go. The seed is printed.

#[path = "../support/mod.rs"]
mod support;

mod discard;
mod pressure;
mod remap;
mod replace;
mod reuse;
mod robust;
mod threads;
mod zero_page;

use std::process::ExitCode;
use std::time::Duration;

use pagoda_linux::testing::length::length;
use pressure::{Arena, Rounds};
use support::managed::{ROLE, Run, longer};
use support::random::mix;
use support::suite::{self, Test};

/// Each waits for its pages half of the time.
const AT_ONCE: usize = 2;

/// The least that is taken.
const BUDGET: &str = "32M";

/// How long each race takes where no number of rounds is given.
fn time() -> Duration {
    Duration::from_millis(length(500, 2000)) * longer()
}

/// The longest time for a round, on a busy machine: longer is a hang.
const ROUND_MS_MAX: u64 = 20;

/// A race: its name, its work in a thread until its rounds are over, the threads that do it, and
/// the counters that show that it was run.
struct Race {
    name: &'static str,
    body: fn(&Arena, u64) -> Result<(), String>,
    threads: u64,
    counters: &'static [&'static str],
}

const RACES: [Race; 7] = [
    Race { name: "reuse", body: reuse::body, threads: 3, counters: &["evictions", "events_unmap"] },
    Race { name: "replace", body: replace::body, threads: 3, counters: &["evictions", "events_unmap"] },
    Race {
        name: "remap",
        body: remap::body,
        threads: 3,
        counters: &["evictions", "events_remap", "events_unmap"],
    },
    Race { name: "discard", body: discard::body, threads: 3, counters: &["evictions", "events_remove"] },
    Race { name: "threads", body: threads::body, threads: 2, counters: &["evictions", "faults_staged"] },
    Race { name: "robust", body: robust::body, threads: 2, counters: &["evictions", "faults_staged"] },
    Race { name: "zero_page", body: zero_page::body, threads: 3, counters: &["evictions", "faults_zero"] },
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == ROLE) {
        return program(&arguments[1..]);
    }
    let rounds = suite::from_environment("PAGODA_RACE_ROUNDS");
    let base_pages: &[&str] = if rounds.is_some() { &["4K", "16K", "64K", "2M"] } else { &["4K", "64K"] };
    let tests = RACES.iter().flat_map(|race| {
        base_pages.iter().map(move |base_page| Test {
            name: format!("race_{}_{}", race.name, base_page.to_lowercase()),
            run: Box::new(move || run(race, base_page, rounds)),
        })
    });
    suite::run(&arguments, tests.collect(), AT_ONCE)
}

fn run(race: &Race, base_page: &str, rounds: Option<u64>) -> Result<String, String> {
    if !suite::can_run("races") {
        return Ok(suite::SKIPPED.to_owned());
    }
    let seed = suite::seed("PAGODA_RACE_SEED");
    let arguments = [race.name.to_owned(), seed.to_string(), rounds.unwrap_or(0).to_string()];
    let limit = rounds.map_or_else(time, |rounds| Duration::from_millis(rounds * ROUND_MS_MAX));
    let run = Run {
        base_page,
        memory: BUDGET,
        arguments: arguments.into(),
        limit: limit + Duration::from_secs(60),
        kills_who_forks: false,
    };
    let told = |error| format!("seed {seed}: {error}");
    let (outcome, counted) = run.run_until_some(race.counters).map_err(told)?;
    Ok(format!("seed {seed}: {}; {counted}", outcome.said.trim()))
}

/// The program: the race's threads beside one that keeps memory short.
fn program(arguments: &[String]) -> ExitCode {
    let race = RACES.iter().find(|race| race.name == arguments[0]).expect("a race");
    let number = |at: usize| arguments[at].parse::<u64>().expect("a number");
    let (seed, rounds) = (number(1), number(2));
    let arena = Arena::new(Rounds::new(rounds, time()));
    let result = std::thread::scope(|scope| {
        let ballast = scope.spawn(|| arena.press(seed));
        let racers: Vec<_> = (0..race.threads)
            .map(|id| {
                let arena = &arena;
                scope.spawn(move || {
                    let result = (race.body)(arena, mix(seed) ^ id);
                    if result.is_err() {
                        arena.end();
                    }
                    result
                })
            })
            .collect();
        let raced = racers.into_iter().try_for_each(|racer| racer.join().expect("a racer does not panic"));
        arena.end();
        raced.and(ballast.join().expect("the ballast does not panic"))
    });
    println!("{}", arena.told());
    match result {
        Ok(()) if arena.seen_out() == 0 => {
            eprintln!("no memory of the race was ever seen swapped out");
            ExitCode::from(10)
        }
        Ok(()) => ExitCode::SUCCESS,
        Err(wrong) => {
            eprintln!("{wrong}");
            ExitCode::from(9)
        }
    }
}
