//! Trees of processes in a quarter of the memory they touch: the same output and status as without
//! Pagoda.
//!
//! Without arguments, and without `PAGODA_LONG_TESTS`, the short one runs. The others take minutes
//! each.

#[path = "../support/mod.rs"]
mod support;

mod programs;
mod redis;

use std::process::ExitCode;
use std::time::Duration;

use support::comparison::Comparison;

fn main() -> ExitCode {
    let comparison = Comparison {
        names: &programs::NAMES,
        short: &["shell-script"],
        optional: &programs::OPTIONAL,
        program: programs::program,
        // Some of the processes live for a tenth of a second.
        sample_interval: Duration::from_millis(20),
        own_peak_counts: false,
    };
    comparison.main()
}
