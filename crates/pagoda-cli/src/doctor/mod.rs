//! `pagoda doctor`: the features of this machine, their consequences, and how to mend missing ones.
//!
//! The probe and the installation find out, `rows` has the consequences, `remedies` the steps that
//! mend them; this file only prints. It must never change the machine's settings, and never say
//! that something works which was not tried.

mod remedies;
mod rows;

use std::io::{self, Write};
use std::process::ExitCode;

use comfy_table::{ContentArrangement, Table, presets};
use pagoda_linux::probe::{self, Report};
use serde::Serialize;

use crate::run::Installation;
use remedies::Mend;
pub use remedies::in_one_line;
use rows::Row;

/// Says what this machine allows and how to mend missing features.
///
/// Exits with 0 if `pagoda run` works here, with 1 if not.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct DoctorArgs {
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// The output of `--json`.
#[derive(Serialize)]
struct Findings {
    /// Whether `pagoda run` works here.
    works: bool,
    /// The one that it works by without options: `engine`, or `kernel` for the kernel's swap.
    backend: Option<&'static str>,
    /// Why the engine does not work.
    reason: Option<String>,
    /// The way to a userfaultfd that it takes.
    way: Option<String>,
    rows: Vec<Row>,
    mends: Vec<Mend>,
}

impl Findings {
    fn new(report: &Report, installation: &Installation) -> Self {
        let rows = rows::rows(report, installation);
        let mends = remedies::mends(report, &rows);
        let missing = report.run.err().map(|missing| missing.to_string());
        let not_installed = || {
            let Installation { preload, store_directory, .. } = installation;
            let refused = preload.as_ref().err().or(store_directory.as_ref().err());
            refused.map(ToString::to_string)
        };
        // A run takes the kernel's swap only where the machine refuses the engine.
        let is_by_kernel = missing.is_some()
            && rows::kernel_swap(report, installation).is_ok()
            && installation.store_directory.is_ok();
        let reason = missing.or_else(not_installed);
        let backend = match (&reason, is_by_kernel) {
            (None, _) => Some("engine"),
            (Some(_), true) => Some("kernel"),
            (Some(_), false) => None,
        };
        Self {
            works: backend.is_some(),
            backend,
            reason,
            way: report.run.ok().map(|access| access.way.to_string()),
            rows,
            mends,
        }
    }

    fn headline(&self) -> String {
        match (&self.reason, self.works) {
            (None, _) => "pagoda run: works here".to_owned(),
            (Some(reason), true) => {
                format!(
                    "pagoda run: works here by the kernel's swap (--backend kernel), not by the engine: {reason}"
                )
            }
            (Some(reason), false) => format!("pagoda run: does not work here: {reason}"),
        }
    }
}

/// Probes and prints to standard output. The exit code is 0 if `pagoda run` works here, 1
/// otherwise.
///
/// # Errors
/// If standard output can't be written; a reader that went away is not an error.
pub fn run(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let findings = Findings::new(&probe::report(), &Installation::find());
    let mut out = io::stdout().lock();
    let printed = if args.json {
        let text = serde_json::to_string_pretty(&findings)?;
        writeln!(out, "{text}")
    } else {
        print(&mut out, &findings)
    };
    match printed.and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        printed => printed?,
    }
    Ok(if findings.works { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(out: &mut impl Write, findings: &Findings) -> io::Result<()> {
    /// Columns where standard output is no terminal, which would tell.
    const WIDTH_DEFAULT: u16 = 120;
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY).set_content_arrangement(ContentArrangement::Dynamic);
    if table.width().is_none() {
        table.set_width(WIDTH_DEFAULT);
    }
    table.set_header(["what", "state", "found", "consequence"]);
    for row in &findings.rows {
        table.add_row([row.what, row.state.name(), &row.found, row.consequence]);
    }
    writeln!(out, "{}\n{table}", findings.headline())?;
    for mend in &findings.mends {
        writeln!(out, "\n{}:", mend.what)?;
        for line in mend.steps.lines() {
            writeln!(out, "    {line}")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
