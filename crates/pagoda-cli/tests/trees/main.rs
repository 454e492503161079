//! Trees of processes in a quarter of the memory they touch: the same output and status as without
//! Pagoda.
//!
//! Without arguments, and without `PAGODA_TREES=all`, it is the short one that runs.

#[path = "../support/mod.rs"]
mod support;

mod programs;
mod redis;

use std::process::ExitCode;
use std::time::Duration;

use support::comparison::Comparison;

/// The default. The others take minutes: name them, or set `PAGODA_TREES=all`.
const SHORT: [&str; 1] = ["shell-script"];

fn is_short(name: &str) -> bool {
    std::env::var_os("PAGODA_TREES").is_some_and(|value| value == "all") || SHORT.contains(&name)
}

fn main() -> ExitCode {
    let comparison = Comparison {
        names: &programs::NAMES,
        is_short,
        optional: &programs::OPTIONAL,
        program: programs::program,
        // Some of the processes live for a tenth of a second.
        sample_interval: Duration::from_millis(20),
        own_peak_counts: false,
    };
    comparison.main()
}
