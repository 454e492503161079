//! `pagoda trace`: the file of `pagoda run --trace`, in numbers or as a page with a heat map.
//!
//! The file is read and nothing else: this module must never need the run, or the machine that it
//! was on.

pub mod file;
pub mod heat;
pub mod summary;

use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use pagoda_bench::{document, escaped};

use crate::exit_error::ExitError;
use file::Trace;
use heat::Heat;
use summary::Summary;

/// Show a file that `pagoda run --trace` wrote.
///
/// The faults of all processes by kind, with how long they took, the evictions, and where they
/// were.
#[derive(clap::Args, Debug)]
pub struct TraceArgs {
    /// The file.
    file: PathBuf,
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
    /// Write a page with a heat map of the address space: time, addresses, faults and evictions.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Runs it. Exit status 125 if the file is no trace, or the page can't be written.
pub fn run(args: &TraceArgs) -> Result<ExitCode, ExitError> {
    let trace = file::read(&args.file)?;
    let summary = Summary::of(&trace);
    if let Some(path) = &args.html {
        write_page(path, &page(&trace, &summary))?;
    }
    let text = if args.json {
        serde_json::to_string(&summary).map_err(ExitError::own)? + "\n"
    } else {
        summary.table()
    };
    // To a closed standard output nothing can be said.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(ExitCode::SUCCESS)
}

fn write_page(path: &Path, page: &str) -> Result<(), ExitError> {
    std::fs::write(path, page).map_err(|error| {
        ExitError::own(format!(
            "{} can't be written ({error}); give another file: --html FILE",
            path.display()
        ))
    })
}

/// One page that needs nothing outside of itself.
fn page(trace: &Trace, summary: &Summary) -> String {
    let title = format!("A trace of {}", trace.header.command.first().map_or("a program", String::as_str));
    let body = format!(
        "<h1>{}</h1>\n<p><code>{}</code></p>\n{}<pre>{}</pre>\n",
        escaped(&title),
        escaped(&trace.header.command.join(" ")),
        figure(trace),
        escaped(&summary.table()),
    );
    document(&title, &body)
}

/// The heat map with its caption, to stand in a page.
pub fn figure(trace: &Trace) -> String {
    let heat = Heat::of(trace);
    let svg = heat.svg();
    let mut figure = "<figure><figcaption>Faults and evictions by address and time</figcaption>".to_owned();
    // Writing to a string does not fail.
    let _ = if svg.is_empty() {
        write!(figure, "<p>Nothing was faulted for or moved out.</p></figure>")
    } else {
        write!(figure, "<div>{}</div>{svg}</figure>", escaped(&heat.caption()))
    };
    figure + "\n"
}
