//! `pagoda top`: where the memory of managed programs is, and its cost, while they run.
//!
//! It reads the files that the processes below each `pagoda run` share (`pagoda::tree::View`),
//! twice or once a second, and writes nothing: no process notices. This module must never ask a
//! process for anything.

mod columns;
mod describe;
mod draw;
pub mod find;
mod plain;
pub mod rows;
mod screen;
mod state;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;

use crate::exit_error::ExitError;
use find::{Finder, Look};
use rows::{Group, groups};
use screen::Ended;

/// Show managed programs while they run.
///
/// One line for each `pagoda run` of this user, and one for each process below it; and of each
/// manager of a library that publishes (`ManagerBuilder::publish`) its process and its largest
/// regions, with how they are migrated: share of the budget, anonymous memory by the kernel's
/// count, all memory held, resident, staged and stored (before compression), the store's memory and
/// file, faults a second by kind, and how long it takes to serve them, by kind, too (the median and
/// p99). The programs don't notice.
///
/// Keys: q quits, s and S choose the column that orders, r reverses, / filters by name or number, f
/// freezes, the arrows select the line that is told in words below the table, with its zones or its
/// migration.
#[derive(clap::Args, Debug)]
pub struct TopArgs {
    /// Only the tree that has this process, or that this `pagoda run` made; or this process's
    /// manager.
    pid: Option<u32>,
    /// Print a table once, after one interval, and end.
    #[arg(long)]
    once: bool,
    /// The same as JSON.
    #[arg(long)]
    json: bool,
    /// Seconds between two looks.
    #[arg(long, short, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    interval: Duration,
}

/// The output of `--json`.
#[derive(Serialize)]
struct Report<'a> {
    version: &'static str,
    interval_s: f64,
    trees: &'a [Group],
    /// Files that have a tree file's name and are none, each with its reason.
    rejected: &'a [String],
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "it is not a number".to_owned())?;
    if (0.1..=3600.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err("it is not between 0.1 and 3600".to_owned())
    }
}

/// Runs it. Exit status 125 if the named process is not managed, 128 + n after a signal.
pub fn run(args: &TopArgs) -> Result<ExitCode, ExitError> {
    let finder = Finder::new(std::env::var_os("XDG_RUNTIME_DIR"), args.pid);
    if let Some(pid) = args.pid {
        let look = finder.look();
        if look.trees.is_empty() {
            return Err(nobody(pid, &look));
        }
    }
    if args.once || args.json {
        let (before, now) = screen::look_twice(&finder, args.interval);
        return print(args, &before, &now);
    }
    if !std::io::stdout().is_terminal() {
        return Err(ExitError::own("standard output is no terminal; add --once or --json"));
    }
    let ended = screen::show(&finder, args.interval).map_err(|error| {
        ExitError::own(format!("the terminal can't be used ({error}); add --once or --json"))
    })?;
    Ok(match ended {
        Ended::Quit => ExitCode::SUCCESS,
        Ended::Signal(number) => ExitCode::from(128 + number),
    })
}

fn nobody(pid: u32, look: &Look) -> ExitError {
    let refused = look.rejected.iter().map(|why| format!("; {why}")).collect::<String>();
    ExitError::own(format!(
        "no process {pid} runs under `pagoda run` of this user, or publishes{refused}; `pagoda top --once` lists those \
         that do"
    ))
}

fn print(args: &TopArgs, before: &Look, now: &Look) -> Result<ExitCode, ExitError> {
    let trees = groups(Some(before), now);
    let text = if args.json {
        let seconds = now.at.duration_since(before.at).as_secs_f64();
        let version = env!("CARGO_PKG_VERSION");
        let report = Report { version, interval_s: seconds, trees: &trees, rejected: &now.rejected };
        serde_json::to_string(&report).map_err(ExitError::own)? + "\n"
    } else {
        for why in &now.rejected {
            crate::say(why);
        }
        plain::table(&trees)
    };
    // To a closed standard output nothing can be said.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(ExitCode::SUCCESS)
}
