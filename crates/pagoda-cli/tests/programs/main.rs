//! Well-known programs in a quarter of the memory they touch: the same output and status as without Pagoda.
//!
//! Each runs twice, natively and under `pagoda run`; nothing is asserted of the time that takes. A program that is
//! not installed is skipped by name. This target has a harness of its own, so that its table is always printed and
//! its programs run one after another. Arguments name the programs to run.

mod client;
mod data;
mod measure;
mod programs;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

use pagoda_core::size::Bytes;

use measure::{Managed, Native, Scratch};
use programs::Program;

/// What a program's native peak is at least, so that a quarter of it says something.
const NATIVE_PEAK_BYTES_MIN: u64 = 200 << 20;
/// The least budget that is taken.
const BUDGET_BYTES_MIN: u64 = 32 << 20;
/// How far a sample may be above the budget.
const OVERSHOOT_BYTES_MAX: u64 = 64 << 20;
/// The part of its native peak that a program may hold unmanaged.
const UNMANAGED_PERCENT_MAX: f64 = 5.0;

/// What one program's two runs showed.
struct Row {
    name: &'static str,
    native: Native,
    managed: Managed,
}

impl Row {
    fn unmanaged_percent(&self) -> f64 {
        100.0 * self.managed.counter("unmanaged_at_peak_bytes") as f64 / self.native.peak_bytes as f64
    }

    /// Every way in which the managed run is not what it has to be.
    fn faults(&self) -> Vec<String> {
        let (native, managed) = (&self.native, &self.managed);
        let mut faults = Vec::new();
        if native.output != managed.output {
            faults
                .push(format!("its output differs: {} natively, {} managed", native.output, managed.output));
        }
        if native.status != managed.status {
            faults.push(format!("it ended with {} and natively with {}", managed.status, native.status));
        }
        if managed.run_status != "managed" {
            faults.push(format!("it was {} at its end, not managed", managed.run_status));
        }
        let percent = self.unmanaged_percent();
        if percent > UNMANAGED_PERCENT_MAX {
            faults.push(format!("{percent:.1}% of its native peak were unmanaged"));
        }
        let limit = managed.budget_bytes + OVERSHOOT_BYTES_MAX;
        if managed.peak_bytes > limit {
            faults.push(format!(
                "its peak of {} is above the budget of {} by more than {}",
                Bytes::new(managed.peak_bytes),
                Bytes::new(managed.budget_bytes),
                Bytes::new(OVERSHOOT_BYTES_MAX)
            ));
        }
        if !faults.is_empty() {
            faults.push(managed.errors.clone());
        }
        faults
    }
}

/// Runs one program natively and then in a quarter of its peak.
fn compare(program: &Program, scratch: &Scratch) -> Row {
    let native = measure::native(program, scratch);
    assert_eq!(native.status.code(), Some(0), "{} fails natively: {}", program.name, native.errors);
    assert!(
        native.peak_bytes >= program.native_peak_bytes_min,
        "{} touched only {} natively: give it more work",
        program.name,
        Bytes::new(native.peak_bytes)
    );
    let budget_bytes = (native.peak_bytes / 4).max(BUDGET_BYTES_MIN);
    let managed = measure::managed(program, scratch, budget_bytes);
    Row { name: program.name, native, managed }
}

fn table(rows: &[Row]) {
    println!(
        "\n{:<12} {:>12} {:>11} {:>11} {:>9} {:>9} {:>11} {:>9} {:>8} {:>8}",
        "program",
        "native peak",
        "budget",
        "peak",
        "faults",
        "evicted",
        "spilled",
        "unmanaged",
        "native",
        "managed"
    );
    for row in rows {
        let size = |bytes| Bytes::new(bytes).to_string();
        println!(
            "{:<12} {:>12} {:>11} {:>11} {:>9} {:>9} {:>11} {:>8.1}% {:>7.1}s {:>7.1}s",
            row.name,
            size(row.native.peak_bytes),
            size(row.managed.budget_bytes),
            size(row.managed.peak_bytes),
            row.managed.counter("faults"),
            row.managed.counter("evictions"),
            size(row.managed.counter("spilled_peak_bytes")),
            row.unmanaged_percent(),
            row.native.wall.as_secs_f64(),
            row.managed.wall.as_secs_f64(),
        );
    }
    println!();
}

/// Why nothing can be seen here at all, if so.
fn nothing_runs() -> Option<String> {
    if let Err(missing) = pagoda_linux::probe::can_run() {
        return Some(missing.to_string());
    }
    let library = std::path::Path::new(env!("CARGO_BIN_EXE_pagoda")).with_file_name("libpagoda_preload.so");
    (!library.is_file())
        .then(|| format!("{} is not built; run `cargo build --release` first", library.display()))
}

fn main() -> ExitCode {
    let names: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let wanted = |name: &str| names.is_empty() || names.iter().any(|part| name.contains(part.as_str()));
    if std::env::args().any(|word| word == "--list") {
        programs::NAMES.iter().for_each(|name| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    let start = Instant::now();
    let no_skips = std::env::var_os("PAGODA_NO_SKIPS").is_some();
    let wanted: Vec<_> = programs::NAMES.iter().copied().filter(|name| wanted(name)).collect();
    println!("\nrunning {} tests", wanted.len());
    let refusal = nothing_runs();
    let scratch = Scratch::new();
    let (mut rows, mut passed, mut failed, mut skipped) = (Vec::new(), 0, 0, 0);
    for name in wanted {
        let program = refusal.clone().map_or_else(|| programs::program(name, &scratch), Err);
        let faults = match program {
            Err(reason) if no_skips => vec![format!("skipped: {reason}")],
            Err(reason) => {
                eprintln!("SKIPPED {name}: {reason}");
                println!("test {name} ... ignored");
                skipped += 1;
                continue;
            }
            Ok(program) => match catch_unwind(AssertUnwindSafe(|| compare(&program, &scratch))) {
                Ok(row) => {
                    let faults = row.faults();
                    rows.push(row);
                    faults
                }
                Err(_) => vec!["see the message above".to_owned()],
            },
        };
        println!("test {name} ... {}", if faults.is_empty() { "ok" } else { "FAILED" });
        faults.iter().for_each(|fault| println!("    {fault}"));
        if faults.is_empty() { passed += 1 } else { failed += 1 }
    }
    table(&rows);
    println!(
        "test result: {}. {passed} passed; {failed} failed; {skipped} ignored; 0 measured; 0 filtered out; finished in {:.2}s\n",
        if failed == 0 { "ok" } else { "FAILED" },
        start.elapsed().as_secs_f64()
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
