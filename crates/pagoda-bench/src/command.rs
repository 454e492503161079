//! Steps that all commands of `pagoda bench` share: find this program, check the machine, draw
//! progress, print. In one place, so that all benches look alike. Never measures.

use std::path::Path;

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use crate::list::BENCHES;
use crate::measure::machine::Machine;

/// The path of this program, which also runs the measured processes.
pub fn this_program() -> anyhow::Result<String> {
    Ok(std::env::current_exe().context("finding this program")?.display().to_string())
}

/// The path of `pagoda`, which lies beside this program.
pub fn pagoda(this_program: &str) -> String {
    Path::new(this_program).with_file_name("pagoda").display().to_string()
}

/// Fails where this machine allows no managers for libraries.
pub fn needs_managers() -> anyhow::Result<()> {
    if !pagoda::userfaultfd_allows_managers() {
        bail!("this machine offers no userfaultfd with UFFDIO_MOVE; `pagoda doctor` says why");
    }
    Ok(())
}

/// A progress bar of `steps`, each a `unit`. Drawn on standard error, and only on a terminal.
pub fn progress(steps: u64, unit: &str) -> anyhow::Result<ProgressBar> {
    let template = format!("{{msg}} [{{bar:30}}] {unit} {{pos}} of {{len}}, {{elapsed}} gone, {{eta}} to go");
    let style = ProgressStyle::with_template(&template).context("the progress bar's template")?;
    Ok(ProgressBar::new(steps).with_style(style))
}

/// Prints the report of one of [`BENCHES`]: as JSON on one line, or its machine and its tables.
pub fn print(report: &Value, json: bool) {
    if json {
        println!("{report}");
    } else if let Some(bench) = BENCHES.iter().find(|bench| report["bench"] == bench.name) {
        print!("{}\n{}", Machine::this(), (bench.table)(report));
    }
}
