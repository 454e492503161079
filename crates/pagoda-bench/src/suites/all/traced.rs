//! The heat map of `pagoda bench all`: a program over its budget, traced as any program is.
//!
//! This module must never fail the benches: a missing map leaves its reason in its place.

use std::fs;
use std::time::Duration;

use anyhow::{Context, ensure};

use crate::command::pagoda;
use crate::measure::process::{Cancel, Cancelled, Ended, Running};
use crate::measure::scratch::Scratch;
use crate::report::html::escaped;
use crate::suites::all::GRACE;
use crate::worker;

/// Several times the usual time on a quiet machine.
pub const LIMIT: Duration = Duration::from_secs(30);

/// The traced work: data of twice the budget, filled, read in order, then touched unevenly and at
/// random.
const WORK: [&str; 10] =
    ["--data", "134217728", "--ratio", "3", "--passes", "1", "--zipf", "20000", "--random", "5000"];

/// Runs the program, and returns the figure for the page. The only error is a request to end.
pub fn figure(program: &str, cancel: &Cancel) -> anyhow::Result<String> {
    match drawn(program, cancel) {
        Err(error) if !error.is::<Cancelled>() => {
            Ok(format!("<p class=\"failed\">{}</p>\n", escaped(&format!("{error:#}"))))
        }
        drawn_or_cancelled => drawn_or_cancelled,
    }
}

fn drawn(program: &str, cancel: &Cancel) -> anyhow::Result<String> {
    let scratch = Scratch::new()?;
    let (file, page) = (scratch.file("trace"), scratch.file("trace.html"));
    let (pagoda, trace, html) = (pagoda(program), file.display().to_string(), page.display().to_string());
    let run = [&pagoda, "run", "--quiet", "--memory", "64M", "--trace", &trace, "--"].map(str::to_owned);
    let work = worker::words(program, "patterns").into_iter().chain(WORK.map(str::to_owned));
    ended_well(&run.into_iter().chain(work).collect::<Vec<_>>(), cancel)?;
    ended_well(&[&pagoda, "trace", &trace, "--html", &html].map(str::to_owned), cancel)?;
    let page = fs::read_to_string(&page).with_context(|| page.display().to_string())?;
    let begin = page.find("<figure>").context("the page of the trace has no figure")?;
    let end = page.rfind("</figure>").context("the figure of the trace does not end")?;
    Ok(page[begin..end].to_owned() + "</figure>\n")
}

/// Fails with the command's message, unless the command succeeds in time.
fn ended_well(command: &[String], cancel: &Cancel) -> anyhow::Result<()> {
    let Ended { status, errors, .. } = Running::start(command)?.ended_within(LIMIT, GRACE, cancel)?;
    ensure!(status.success(), "{errors}\n{status}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_not_be_traced_is_told_in_place_of_the_map() {
        let figure = figure("/nonexistent/pagoda-bench", &Cancel::default());
        let figure = figure.expect("the benches go on");
        assert!(figure.contains("failed") && figure.contains("starting /nonexistent/pagoda"), "{figure}");
    }
}
