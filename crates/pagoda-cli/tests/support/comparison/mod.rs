//! Well-known programs, each run twice, natively and under `pagoda run` in a quarter of its native
//! peak: the same output and status, and memory within the budget, that of all its processes seen
//! from outside. Nothing is asserted of the time.
//!
//! The target that runs them has a harness of its own, so that its table is always printed and its
//! programs run one after another. Arguments name the programs to run. One that is not there must
//! never pass: it is skipped by name.

pub mod digest;
pub mod measure;
pub mod program;
mod row;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use pagoda_core::size::Bytes;
use pagoda_linux::testing::length::is_long;
use pagoda_linux::testing::skip;

use super::tree;
use measure::Scratch;
use program::Program;
use row::Row;

/// The least budget that is taken.
const BUDGET_BYTES_MIN: u64 = 32 << 20;

/// Programs to be compared.
pub struct Comparison {
    /// In the order in which they run.
    pub names: &'static [&'static str],
    /// Those that run if none is named. The long form has all.
    pub short: &'static [&'static str],
    /// Programs that are too large to install for a test: without them it says SKIPPED also where
    /// nothing else may be.
    pub optional: &'static [&'static str],
    /// The program of a name, ready to run; or why it can't.
    pub program: fn(&'static str, &Scratch) -> Result<Program, String>,
    /// How often the processes are looked at: often enough for the peak of those that live short,
    /// and each look at a large one that is not alone walks its page tables.
    pub sample_interval: Duration,
    /// Whether Pagoda's own peak counts, too. Of one process it is the kernel's, taken more often.
    pub own_peak_counts: bool,
}

/// The outcome of one program.
enum Outcome {
    Ran(Vec<String>),
    Skipped(String),
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

/// Further native runs, if none saw the program's least peak.
const NATIVE_RUNS_MORE: u32 = 4;

impl Comparison {
    /// Runs the programs that the command line names, and prints their rows.
    pub fn main(&self) -> ExitCode {
        let names: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
        if std::env::args().any(|word| word == "--list") {
            self.names.iter().for_each(|name| println!("{name}: test"));
            return ExitCode::SUCCESS;
        }
        let is_wanted = |name: &&str| match names.is_empty() {
            true => is_long() || self.short.contains(name),
            false => names.iter().any(|part| name.contains(part.as_str())),
        };
        let wanted: Vec<_> = self.names.iter().copied().filter(is_wanted).collect();
        tree::adopt_orphans();
        let start = Instant::now();
        println!("\nrunning {} tests", wanted.len());
        let refusal = nothing_runs();
        let (mut rows, mut passed, mut failed, mut skipped) = (Vec::new(), 0, 0, 0);
        for name in wanted {
            match self.judge(name, refusal.clone(), &mut rows) {
                Outcome::Skipped(reason) => {
                    skip::tell(name, reason);
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
        row::print(&rows);
        println!(
            "test result: {}. {passed} passed; {failed} failed; {skipped} ignored; 0 measured; 0 filtered out; finished in {:.2}s\n",
            if failed == 0 { "ok" } else { "FAILED" },
            start.elapsed().as_secs_f64()
        );
        if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    /// Runs one program; its row goes to the table.
    fn judge(&self, name: &'static str, refusal: Option<String>, rows: &mut Vec<Row>) -> Outcome {
        let scratch = Scratch::new();
        let machine_refuses = refusal.is_some();
        let program = match refusal.map_or_else(|| (self.program)(name, &scratch), Err) {
            Ok(program) => program,
            Err(reason) => {
                let may_miss = self.optional.contains(&name) && !machine_refuses;
                let no_skips = std::env::var_os("PAGODA_NO_SKIPS").is_some() && !may_miss;
                return if no_skips {
                    Outcome::Ran(vec![format!("skipped: {reason}")])
                } else {
                    Outcome::Skipped(reason)
                };
            }
        };
        let compared = catch_unwind(AssertUnwindSafe(|| {
            let row = self.compare(&program, &scratch);
            let faults = row.faults();
            (row, faults)
        }));
        match compared {
            Ok((row, faults)) => {
                rows.push(row);
                Outcome::Ran(faults)
            }
            Err(_) => Outcome::Ran(vec!["see the message above".to_owned()]),
        }
    }

    /// Runs one program natively and then in a quarter of its peak.
    fn compare(&self, program: &Program, scratch: &Scratch) -> Row {
        let native = || measure::native(program, scratch, self.sample_interval);
        let (mut most, name) = (native(), program.name);
        // On a busy machine the looks at a short program may all miss its peak.
        for _ in 0..NATIVE_RUNS_MORE {
            if most.peak_bytes >= program.native_peak_bytes_min {
                break;
            }
            let again = native();
            most = if again.peak_bytes > most.peak_bytes { again } else { most };
        }
        let native = most;
        assert_eq!(native.status.code(), Some(0), "{name} fails natively: {}", native.errors);
        assert!(native.left.is_empty(), "{name} leaves something behind natively: {:?}", native.left);
        assert!(
            native.peak_bytes >= program.native_peak_bytes_min,
            "{name} held only {} natively: give it more work",
            Bytes::new(native.peak_bytes)
        );
        let budget_bytes = (native.peak_bytes / 4).max(BUDGET_BYTES_MIN);
        let mut managed = measure::managed(program, scratch, self.sample_interval, budget_bytes);
        if self.own_peak_counts {
            managed.run.peak_bytes = managed.run.peak_bytes.max(managed.counter("anon_peak_bytes"));
        }
        Row { name, native, managed, small: program.native_peak_bytes_min == 0 }
    }
}
