//! Well-known programs of one process in a quarter of the memory they touch: the same output and
//! status as without Pagoda.
//!
//! Without arguments, and without `PAGODA_LONG_TESTS`, the short ones run.

#[path = "../support/mod.rs"]
mod support;

mod client;
mod data;
mod programs;

use std::process::ExitCode;
use std::time::Duration;

use support::comparison::Comparison;

fn main() -> ExitCode {
    let comparison = Comparison {
        names: &programs::NAMES,
        short: &["sort", "python3", "redis-server", "sqlite3"],
        optional: &[],
        program: programs::program,
        sample_interval: Duration::from_millis(10),
        own_peak_counts: true,
    };
    comparison.main()
}
