//! Trees of processes in a quarter of the memory they touch: the same output and status as without Pagoda.
//!
//! Each runs twice, natively and under `pagoda run`; the memory is that of all its processes, seen from outside, and
//! nothing is asserted of the time. This target has a harness of its own, so that its table is always printed and its
//! programs run one after another. Arguments name the programs to run; without any, and without `PAGODA_TREES=all`, it is
//! the short one.

#[path = "../support/mod.rs"]
mod support;

mod measure;
mod programs;
mod redis;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

use pagoda_core::size::Bytes;

use measure::{Managed, Run, Scratch};
use programs::Program;
use support::tree;

/// The least budget that is taken.
const BUDGET_BYTES_MIN: u64 = 32 << 20;
/// How far a sample may be above the budget.
const OVERSHOOT_BYTES_MAX: u64 = 64 << 20;
/// The part of its native peak that a tree may hold unmanaged.
const UNMANAGED_PERCENT_MAX: f64 = 5.0;

/// What runs if nothing else is said. The others take minutes: name them, or set `PAGODA_TREES=all`.
const SHORT: [&str; 1] = ["shell-script"];

/// What one program's two runs showed.
struct Row {
    name: &'static str,
    native: Run,
    managed: Managed,
    /// Whether any of it is worth managing.
    small: bool,
}

impl Row {
    fn unmanaged_percent(&self) -> f64 {
        100.0 * self.managed.unmanaged_bytes() as f64 / self.native.peak_bytes.max(1) as f64
    }

    /// What the table says about a row that is not judged by all its figures.
    fn remark(&self) -> &'static str {
        if self.small { "every process is too small to be worth managing" } else { "" }
    }

    /// Every way in which the managed run is not what it has to be.
    fn faults(&self) -> Vec<String> {
        let (native, managed, run) = (&self.native, &self.managed, &self.managed.run);
        let mut faults = Vec::new();
        if native.output != run.output {
            faults.push(format!("its output differs: {} natively, {} managed", native.output, run.output));
        }
        if native.status != run.status {
            faults.push(format!("it ended with {} and natively with {}", run.status, native.status));
        }
        if managed.run_status != "managed" {
            faults.push(format!("it was {} at its end, not managed", managed.run_status));
        }
        let percent = self.unmanaged_percent();
        if percent > UNMANAGED_PERCENT_MAX && !self.small {
            faults.push(format!(
                "{percent:.1}% of its native peak were unmanaged: {} in processes without an engine",
                Bytes::new(run.without_engine_bytes)
            ));
        }
        let limit = managed.budget_bytes + OVERSHOOT_BYTES_MAX + managed.copied_on_write_bytes();
        if run.peak_bytes > limit {
            faults.push(format!(
                "its peak of {} is above the budget of {}, {} for what fork duplicated, and {}",
                Bytes::new(run.peak_bytes),
                Bytes::new(managed.budget_bytes),
                Bytes::new(managed.copied_on_write_bytes()),
                Bytes::new(OVERSHOOT_BYTES_MAX)
            ));
        }
        faults.extend(run.left.iter().map(|what| format!("it left behind: {what}")));
        if !faults.is_empty() {
            faults.push(run.errors.clone());
        }
        faults
    }
}

/// Runs one program natively and then in a quarter of its peak.
fn compare(program: &Program, scratch: &Scratch) -> Row {
    let native = measure::native(program, scratch);
    assert_eq!(native.status.code(), Some(0), "{} fails natively: {}", program.name, native.errors);
    assert!(native.left.is_empty(), "{} leaves something behind natively: {:?}", program.name, native.left);
    assert!(
        native.peak_bytes >= program.native_peak_bytes_min,
        "{} held only {} natively: give it more work",
        program.name,
        Bytes::new(native.peak_bytes)
    );
    let budget_bytes = (native.peak_bytes / 4).max(BUDGET_BYTES_MIN);
    let managed = measure::managed(program, scratch, budget_bytes);
    Row { name: program.name, native, managed, small: program.native_peak_bytes_min == 0 }
}

fn table(rows: &[Row]) {
    println!(
        "\n{:<16} {:>12} {:>10} {:>10} {:>6} {:>9} {:>9} {:>10} {:>9} {:>8} {:>8}",
        "program",
        "native peak",
        "budget",
        "peak",
        "procs",
        "faults",
        "evicted",
        "spilled",
        "unmanaged",
        "native",
        "managed"
    );
    for row in rows {
        let (managed, run) = (&row.managed, &row.managed.run);
        let size = |bytes| Bytes::new(bytes).to_string();
        println!(
            "{:<16} {:>12} {:>10} {:>10} {:>6} {:>9} {:>9} {:>10} {:>8.1}% {:>7.1}s {:>7.1}s {}",
            row.name,
            size(row.native.peak_bytes),
            size(managed.budget_bytes),
            size(run.peak_bytes),
            run.processes_peak,
            managed.counter("faults"),
            managed.counter("evictions"),
            size(managed.counter("spilled_peak_bytes")),
            row.unmanaged_percent(),
            row.native.wall.as_secs_f64(),
            run.wall.as_secs_f64(),
            row.remark(),
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

/// What became of one program.
enum Outcome {
    Ran(Vec<String>),
    Skipped(String),
}

/// Runs one program; its row goes to the table.
fn judge(name: &'static str, refusal: Option<String>, scratch: &Scratch, rows: &mut Vec<Row>) -> Outcome {
    let machine_refuses = refusal.is_some();
    let program = match refusal.map_or_else(|| programs::program(name, scratch), Err) {
        Ok(program) => program,
        Err(reason) => {
            let may_miss = programs::OPTIONAL.contains(&name) && !machine_refuses;
            let no_skips = std::env::var_os("PAGODA_NO_SKIPS").is_some() && !may_miss;
            return if no_skips {
                Outcome::Ran(vec![format!("skipped: {reason}")])
            } else {
                Outcome::Skipped(reason)
            };
        }
    };
    match catch_unwind(AssertUnwindSafe(|| compare(&program, scratch))) {
        Ok(row) => {
            let faults = row.faults();
            rows.push(row);
            Outcome::Ran(faults)
        }
        Err(_) => Outcome::Ran(vec!["see the message above".to_owned()]),
    }
}

fn main() -> ExitCode {
    let names: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let all = std::env::var_os("PAGODA_TREES").is_some_and(|value| value == "all");
    let wanted = |name: &str| match names.is_empty() {
        true => all || SHORT.contains(&name),
        false => names.iter().any(|part| name.contains(part.as_str())),
    };
    if std::env::args().any(|word| word == "--list") {
        programs::NAMES.iter().for_each(|name| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    tree::adopt_orphans();
    let start = Instant::now();
    let wanted: Vec<_> = programs::NAMES.iter().copied().filter(|name| wanted(name)).collect();
    println!("\nrunning {} tests", wanted.len());
    let refusal = nothing_runs();
    let (mut rows, mut passed, mut failed, mut skipped) = (Vec::new(), 0, 0, 0);
    for name in wanted {
        let scratch = Scratch::new();
        match judge(name, refusal.clone(), &scratch, &mut rows) {
            Outcome::Skipped(reason) => {
                eprintln!("SKIPPED {name}: {reason}");
                println!("test {name} ... ignored");
                skipped += 1;
            }
            Outcome::Ran(faults) => {
                println!("test {name} ... {}", if faults.is_empty() { "ok" } else { "FAILED" });
                faults.iter().for_each(|fault| println!("    {fault}"));
                if faults.is_empty() { passed += 1 } else { failed += 1 }
            }
        }
    }
    table(&rows);
    println!(
        "test result: {}. {passed} passed; {failed} failed; {skipped} ignored; 0 measured; 0 filtered out; finished in {:.2}s\n",
        if failed == 0 { "ok" } else { "FAILED" },
        start.elapsed().as_secs_f64()
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
