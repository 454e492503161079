//! Well-known programs of one process in a quarter of the memory they touch: the same output and
//! status as without Pagoda.

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
        is_short: |_| true,
        optional: &[],
        program: programs::program,
        sample_interval: Duration::from_millis(10),
        own_peak_counts: true,
    };
    comparison.main()
}
