//! `pagoda bench all`: every bench as a process of its own, one after the other, and one page of
//! their figures, with the heat map of a traced program.
//!
//! A bench that fails is reported with its message, and the rest go on. A signal is passed on to
//! the running bench, which is waited for, so that it undoes its set-up; no page is written then.
//! This module must never measure anything itself.

pub(crate) mod traced;

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use crate::command::this_program;
use crate::list::{BENCHES, Entry};
use crate::measure::machine::Machine;
use crate::measure::process::{Cancel, Ended, Running};
use crate::report::html::{About, Outcome, page};
use crate::suites::budget::reason;

/// The time of all quick benches and the trace. The promise is five minutes, and the last bench may
/// take [`GRACE`] to end. A bench that doesn't fit is ended, and the page says so.
pub const QUICK: Duration = Duration::from_secs(265);
/// The limit of one full bench: several times the slowest on a quiet machine.
const FULL: Duration = Duration::from_secs(7200);
/// The time that a bench which was asked to end has to undo its set-up.
pub const GRACE: Duration = Duration::from_secs(30);

/// The benches to run, and the page to write.
#[derive(Args, Debug)]
pub struct AllArgs {
    /// Short runs: five minutes at most, for a first look
    #[arg(long)]
    quick: bool,
    /// The page to write
    #[arg(long, value_name = "FILE")]
    html: PathBuf,
    /// Of all benches only these, for tests
    #[arg(long, value_name = "NAME", hide = true)]
    only: Vec<String>,
}

impl AllArgs {
    fn benches(&self) -> impl Iterator<Item = &'static Entry> {
        BENCHES.iter().filter(|entry| self.only.is_empty() || self.only.iter().any(|name| name == entry.name))
    }
}

/// Runs `pagoda bench all`. Exit status 1 if a bench failed.
pub fn run(args: &AllArgs) -> anyhow::Result<ExitCode> {
    let program = this_program()?;
    let is_new = !args.html.exists();
    // Opened before any measurement, so that none is in vain. The old content stays until the new
    // page is ready.
    let writable = OpenOptions::new().write(true).create(true).truncate(false).open(&args.html);
    let mut file = writable.with_context(|| format!("opening {}", args.html.display()))?;
    let (heat, outcomes) = match run_all(&program, args) {
        Ok(all) => all,
        Err(error) => {
            if is_new {
                // If the file is gone already, nothing is left to do.
                let _ = std::fs::remove_file(&args.html);
            }
            return Err(error);
        }
    };
    let about = About {
        machine: Machine::this().to_string(),
        version: env!("CARGO_PKG_VERSION"),
        when: utc(SystemTime::now()),
        quick: args.quick,
    };
    let html = page(&about, &outcomes, &heat);
    file.set_len(0)
        .and_then(|()| file.write_all(html.as_bytes()))
        .with_context(|| args.html.display().to_string())?;
    for Outcome { entry, failure, seconds, .. } in &outcomes {
        let first = failure.as_deref().and_then(|why| why.lines().next()).unwrap_or("measured");
        println!("{:<8} {seconds:>5.0} s  {first}", entry.name);
    }
    let failed = outcomes.iter().any(|outcome| outcome.failure.is_some());
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Draws the heat map, and runs every bench.
fn run_all(program: &str, args: &AllArgs) -> anyhow::Result<(String, Vec<Outcome>)> {
    let cancel = Cancel::on_signals()?;
    let progress = progress(args.benches().count())?;
    let deadline = args.quick.then(|| Instant::now() + QUICK);
    progress.set_message("trace");
    let heat = traced::figure(program, &cancel)?;
    let command = |entry: &Entry| {
        let words = [program, entry.name, "--json"].into_iter().chain(args.quick.then_some("--quick"));
        words.map(str::to_owned).collect()
    };
    let outcomes = run_benches(args.benches(), deadline, command, &progress, &cancel)?;
    progress.finish_and_clear();
    Ok((heat, outcomes))
}

/// Runs one bench after the other, all by the deadline if there is one.
fn run_benches(
    benches: impl Iterator<Item = &'static Entry>,
    deadline: Option<Instant>,
    command: impl Fn(&Entry) -> Vec<String>,
    progress: &ProgressBar,
    cancel: &Cancel,
) -> anyhow::Result<Vec<Outcome>> {
    let one = |entry: &'static Entry| {
        progress.set_message(entry.name);
        let limit = deadline.map_or(FULL, |at| at.saturating_duration_since(Instant::now()));
        let outcome = outcome(&command(entry), entry, limit, cancel);
        progress.inc(1);
        outcome
    };
    benches.map(one).collect()
}

fn progress(benches: usize) -> anyhow::Result<ProgressBar> {
    // Drawn on standard error, and there only if that is a terminal.
    let style = ProgressStyle::with_template("{msg} {spinner} bench {pos} of {len} done, {elapsed} gone")
        .context("the progress bar's template")?;
    let progress = ProgressBar::new(benches as u64).with_style(style);
    progress.enable_steady_tick(Duration::from_secs(1));
    Ok(progress)
}

/// Runs one bench to its end.
fn outcome(
    command: &[String],
    entry: &'static Entry,
    limit: Duration,
    cancel: &Cancel,
) -> anyhow::Result<Outcome> {
    let begun = Instant::now();
    let ended = Running::start(command).and_then(|bench| bench.ended_within(limit, GRACE, cancel));
    let (json, failure) = match ended {
        Ok(Ended { status, output, errors }) => {
            let json = serde_json::from_str::<Value>(&output);
            let failure = match &json {
                Ok(_) if status.success() => None,
                Ok(_) => {
                    Some(format!("a side of it failed ({status}): the figures below say which\n{errors}"))
                }
                Err(error) if status.success() => Some(format!("it printed no JSON: {error}")),
                Err(_) => Some(format!("{}\n{status}", errors.trim())),
            };
            (json.ok(), failure)
        }
        Err(error) => (None, Some(reason(error)?)),
    };
    Ok(Outcome { entry, json, failure, seconds: begun.elapsed().as_secs_f64() })
}

/// The date and time to the minute.
fn utc(now: SystemTime) -> String {
    let now = time::OffsetDateTime::from(now);
    let (date, hour, minute) = (now.date(), now.hour(), now.minute());
    format!("{date} {hour:02}:{minute:02} UTC")
}

#[cfg(test)]
mod tests;
