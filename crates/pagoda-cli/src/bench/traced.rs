//! The heat map of `pagoda bench all`: a program over its budget, traced as any program is, and drawn.
//!
//! This module must never fail the benches: why there is no map is told in its place.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::all::{Ended, finish};
use super::html::escaped;
use super::process::Cancel;
use super::scratch::Scratch;
use crate::trace;

/// Several times what it takes on a quiet machine.
const LIMIT: Duration = Duration::from_secs(30);

/// What is traced: twice the budget, filled, read in order, and then touched unevenly and at random.
const WORK: [&str; 12] = [
    "bench-worker",
    "patterns",
    "--data",
    "134217728",
    "--ratio",
    "3",
    "--passes",
    "1",
    "--zipf",
    "20000",
    "--random",
    "5000",
];

/// Runs it, and returns the figure for the page.
pub fn figure(program: &Path, cancel: &Cancel) -> anyhow::Result<String> {
    let scratch = Scratch::new()?;
    let file = scratch.file("trace");
    let mut command = Command::new(program);
    command
        .args(["run", "--quiet", "--memory", "64M", "--trace"])
        .arg(&file)
        .arg("--")
        .arg(program)
        .args(WORK);
    let why = match finish(command, LIMIT, cancel)? {
        Ok(Ended { status, .. }) if status.success() => match trace::file::read(&file) {
            Ok(trace) => return Ok(trace::figure(&trace)),
            Err(refusal) => refusal.to_string(),
        },
        Ok(Ended { status, errors, .. }) => format!("{}\n{status}", errors.trim()),
        Err(late) => late,
    };
    Ok(format!("<p class=\"failed\">{}</p>\n", escaped(&why)))
}
