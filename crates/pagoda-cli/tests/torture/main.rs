//! Seeded threads that do to managed memory all that a program may do, with every byte against a
//! shadow.
//!
//! `PAGODA_TORTURE_SECONDS` is the time for each base page (1 by default, 7 in the long form),
//! `PAGODA_TORTURE_SEED` repeats a run as far as the threads' own choices go; it is printed when
//! something is wrong.

#[path = "../support/mod.rs"]
mod support;

mod area;
mod files;
mod heap;
mod history;
mod worker;

use std::process::ExitCode;
use std::time::Duration;

use pagoda_linux::testing::length::length;
use support::managed::{ROLE, Run};
use support::suite::{self, Test};

/// Each waits for its pages half of the time.
const AT_ONCE: usize = 2;

/// The least budget: about a quarter of the threads' memory.
const BUDGET: &str = "32M";

/// Somewhat less than the threads' memory: at first memory is only followed, and then there is no
/// room for it.
const BUDGETS_TO_FOLLOW: [&str; 4] = ["60M", "68M", "76M", "84M"];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == ROLE) {
        let number = |at: usize| arguments[at].parse().expect("a number");
        return worker::program(number(1), number(2));
    }
    let tests = ["4K", "16K", "64K", "2M"].map(|base_page| Test {
        name: format!("torture_{}", base_page.to_lowercase()),
        run: Box::new(move || torture(base_page)),
    });
    let followed = Test { name: "torture_followed".to_owned(), run: Box::new(followed) };
    suite::run(&arguments, tests.into_iter().chain([followed]).collect(), AT_ONCE)
}

fn torture(base_page: &str) -> Result<String, String> {
    let names = ["evictions", "stores", "faults_stored", "events_unmap", "events_remap", "events_remove"];
    let seconds = suite::from_environment("PAGODA_TORTURE_SECONDS").unwrap_or_else(|| length(1, 7));
    run(base_page, BUDGET, seconds, &names)
}

/// Where it ends that memory is only followed, among threads that do everything to it meanwhile.
fn followed() -> Result<String, String> {
    let names = ["followed_peak_bytes", "evictions", "events_unmap", "events_remap", "events_remove"];
    let seconds = suite::from_environment("PAGODA_TORTURE_SECONDS")
        .map_or_else(|| length(1, 2), |seconds| seconds.div_ceil(4));
    let runs = BUDGETS_TO_FOLLOW.iter().zip(["64K", "4K", "16K", "64K"]);
    let told: Result<Vec<String>, String> =
        runs.map(|(budget, base_page)| run(base_page, budget, seconds, &names)).collect();
    Ok(told?.join("; "))
}

fn run(base_page: &str, budget: &'static str, seconds: u64, names: &[&str]) -> Result<String, String> {
    if !suite::can_run("torture") {
        return Ok(suite::SKIPPED.to_owned());
    }
    let seed = suite::seed("PAGODA_TORTURE_SEED");
    let run = Run {
        base_page,
        memory: budget,
        arguments: vec![seed.to_string(), seconds.to_string()],
        limit: Duration::from_secs(seconds * 3 + 120),
        kills_who_forks: false,
    };
    let told = |error| format!("seed {seed}, budget {budget}: {error}");
    let (outcome, counted) = run.run_until_some(names).map_err(told)?;
    Ok(format!("seed {seed}: {counted}; {}", outcome.said.trim()))
}
