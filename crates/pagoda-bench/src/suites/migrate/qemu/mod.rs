//! The same cases by QEMU, as the baseline: two processes, its multifd on as many channels, over
//! the same loopback and in the same run.
//!
//! It is the QEMU that PAGODA_QEMU names, or the one on the PATH, with its defaults. The content
//! at the destination is compared. A missing or failing QEMU is a result, and must never end the
//! bench.

pub mod guest;
mod qmp;

use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, ensure};
use pagoda_core::size::Bytes;
use serde_json::json;

use super::cases::{Case, HUGE_BYTES, INCOMPRESSIBLE, digest};
use super::destination::PATIENCE;
use crate::load::data::{PAGE_BYTES, Pages};
use guest::Guest;

const PROGRAM: &str = "qemu-system-x86_64";

/// The variable with the path of another QEMU than that on the PATH.
pub const VARIABLE: &str = "PAGODA_QEMU";

/// The figures of one run.
#[derive(Clone, Copy)]
pub struct QemuRun {
    pub total_ms: f64,
    /// Faults of the destination, from before it listened until it had all.
    pub dest_faults: u64,
    pub dest_rss_bytes: u64,
    /// The part of that in huge pages.
    pub dest_huge_part: f64,
    pub wire_bytes: u64,
    /// As QEMU counts it, in whole ms.
    pub downtime_ms: f64,
    /// OS pages with content.
    pub data_pages: u64,
}

/// The figures of QEMU in its cases.
#[derive(Default)]
pub struct QemuRuns {
    pub version: String,
    pub untouched: Vec<QemuRun>,
    pub full: Vec<QemuRun>,
}

/// QEMU, until its first failure.
pub struct Qemu {
    program: PathBuf,
    runs: QemuRuns,
}

impl Qemu {
    /// Finds QEMU: it is `named`, or on `path`, in the form of the variable.
    pub fn find(named: Option<&OsStr>, path: Option<&OsStr>) -> Result<Self, String> {
        if let Some(named) = named.filter(|named| !named.is_empty()) {
            let program = PathBuf::from(named);
            return match program.is_file() {
                true => Ok(Self { program, runs: QemuRuns::default() }),
                false => Err(format!("{VARIABLE} names {}, which is no file", program.display())),
            };
        }
        let mut candidates =
            std::env::split_paths(path.unwrap_or_default()).map(|folder| folder.join(PROGRAM));
        match candidates.find(|candidate| candidate.is_file()) {
            Some(program) => Ok(Self { program, runs: QemuRuns::default() }),
            None => Err(format!("{PROGRAM} is not on the PATH; Debian's package is qemu-system-x86")),
        }
    }

    /// Moves a guest with the memory of `case`, of which `expected` is the digest. Keeps the
    /// figures if the round counts.
    pub fn measure(
        &mut self,
        case: Case,
        memory: Bytes,
        expected: impl FnOnce() -> anyhow::Result<u64>,
        counts: bool,
    ) -> anyhow::Result<()> {
        if !matches!(case, Case::Untouched | Case::Full) {
            return Ok(());
        }
        let run = self.run(case, memory, expected()?)?;
        let runs = if case == Case::Full { &mut self.runs.full } else { &mut self.runs.untouched };
        runs.extend(counts.then_some(run));
        Ok(())
    }

    /// Moves such a guest once.
    pub fn run(&mut self, case: Case, memory: Bytes, expected: u64) -> anyhow::Result<QemuRun> {
        let source = Guest::start(&self.program, memory, false)?;
        source.qmp.version().clone_into(&mut self.runs.version);
        let data_pages = fill(&source, case, memory.as_usize()).context("filling QEMU's memory")?;
        let destination = Guest::start(&self.program, memory, true)?;
        // The last step that takes memory is done: the destination gets the memory given back now.
        super::warm_huge(memory)?;
        let (run, destination) = migrate(source, destination, data_pages)?;
        let there = digest(memory, |offset, into| destination.read_at(offset, into))?;
        ensure!(there == expected, "what has arrived by QEMU is not what was sent");
        Ok(run)
    }

    pub fn into_runs(self) -> QemuRuns {
        self.runs
    }
}

/// Writes the content of the case. Returns the pages with content.
fn fill(guest: &Guest, case: Case, len: usize) -> anyhow::Result<u64> {
    let pages = Pages::new(1, INCOMPRESSIBLE);
    let (mut block, mut data_pages) = (vec![0; HUGE_BYTES], 0);
    for first in (0..len / PAGE_BYTES).step_by(HUGE_BYTES / PAGE_BYTES) {
        let offset = first * PAGE_BYTES;
        let block = &mut block[..HUGE_BYTES.min(len - offset)];
        match case.uses(first) {
            None => continue,
            Some(false) => block.fill(0),
            Some(true) => {
                pages.fill(first as u64, block);
                data_pages += (block.len() / PAGE_BYTES) as u64;
            }
        }
        guest.write_at(offset as u64, block)?;
    }
    Ok(data_pages)
}

/// Moves `source` to `destination`, and returns the destination.
fn migrate(mut source: Guest, mut destination: Guest, data_pages: u64) -> anyhow::Result<(QemuRun, Guest)> {
    let mut work = || -> anyhow::Result<QemuRun> {
        let before = destination.minor_faults()?;
        destination.qmp.execute("migrate-incoming", &json!({ "uri": "tcp:127.0.0.1:0" }))?;
        let listens = destination.qmp.execute("query-migrate", &json!({}))?;
        let port = listens.pointer("/socket-address/0/port").and_then(|port| port.as_str());
        let uri = format!("tcp:127.0.0.1:{}", port.context("QEMU does not say where it listens")?);
        let started = Instant::now();
        source.qmp.execute("migrate", &json!({ "uri": uri }))?;
        destination.qmp.await_migration(PATIENCE)?;
        let total_ms = started.elapsed().as_secs_f64() * 1e3;
        source.qmp.await_migration(PATIENCE)?;
        let sent = source.qmp.execute("query-migrate", &json!({}))?;
        let wire_bytes = sent.pointer("/ram/transferred").and_then(|bytes| bytes.as_u64());
        let downtime_ms = sent.get("downtime").and_then(|ms| ms.as_f64());
        Ok(QemuRun {
            total_ms,
            dest_faults: destination.minor_faults()?.saturating_sub(before),
            dest_rss_bytes: destination.rss_bytes()?,
            dest_huge_part: destination.huge_part()?,
            wire_bytes: wire_bytes.context("QEMU does not say what it has sent")?,
            downtime_ms: downtime_ms.context("QEMU does not say how long it stood still")?,
            data_pages,
        })
    };
    match work() {
        Ok(run) => Ok((run, destination)),
        Err(error) => {
            let said = [source.into_errors(), destination.into_errors()].join(" ");
            Err(if said.trim().is_empty() { error } else { error.context(said.trim().to_owned()) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_on_the_path_is_missing_with_a_reason() {
        for path in [None, Some(OsStr::new("")), Some(OsStr::new("/nonexistent:/proc/self"))] {
            let why = Qemu::find(None, path).err().expect("it is not there");
            assert!(why.contains(PROGRAM) && why.contains("PATH"), "{why}");
        }
    }

    #[test]
    fn the_variable_comes_before_the_path() {
        let none = Some(OsStr::new("/nonexistent"));
        let this = std::env::current_exe().expect("a path");
        let found = Qemu::find(Some(this.as_os_str()), none).map(|qemu| qemu.program);
        assert_eq!(found, Ok(this));
        let why = Qemu::find(none, Some(OsStr::new("/usr/bin"))).err().expect("it is not there");
        assert!(why.contains(VARIABLE) && why.contains("/nonexistent"), "{why}");
    }
}
