//! The measured process: the same program, with the same arguments, under Pagoda and under the
//! kernel.
//!
//! It knows nothing of either, does one work, and prints one line of JSON. It must never outlive
//! its parent, `pagoda run` or the bench.

mod burst;
mod patterns;

use std::fs;
use std::os::unix::process::parent_id;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};

use crate::load::churn;
use crate::load::data::Pages;
use crate::suites::base_page::redis;
use crate::suites::clear::writer;
use crate::suites::migrate::{destination, guest};
use crate::suites::release::{holder, unmapping};
use crate::suites::zones::kernel_mmap;
pub use patterns::{Pattern, Phase};
use patterns::{PatternArgs, patterns};

/// The work of the worker. Hidden: `pagoda bench` starts it.
#[derive(Args, Debug)]
pub struct WorkerArgs {
    /// The process number of the bench that it works for, its parent or the parent of that.
    #[arg(long)]
    bench: Option<u32>,
    #[command(subcommand)]
    work: Work,
}

/// The data that is written into memory.
#[derive(Args, Debug)]
struct DataArgs {
    /// Bytes of data.
    #[arg(long = "data")]
    bytes: u64,
    /// The ratio by which LZ4 compresses it.
    #[arg(long)]
    ratio: f64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl DataArgs {
    fn pages(&self) -> Pages {
        Pages::new(self.seed, self.ratio)
    }
}

#[derive(Subcommand, Debug)]
enum Work {
    /// Fills memory and touches it in patterns.
    Patterns(PatternArgs),
    /// Fills memory, and waits until it is within its budget.
    Burst(burst::BurstArgs),
    /// Allocates and frees from several threads.
    MallocChurn {
        #[arg(long)]
        rounds: u64,
    },
    /// Starts and joins threads.
    ThreadChurn {
        #[arg(long)]
        rounds: u64,
    },
    /// Writes a huge area again and again, its frames cleared by the kernel or by itself.
    AnonWriter(writer::WriterArgs),
    /// Fills memory and waits to be killed.
    Hold(holder::HolderArgs),
    /// Fills memory, unmaps it beside faults, fills it again and exits.
    Unmap(unmapping::UnmapperArgs),
    /// Receives one migration.
    MigrateDestination(destination::DestinationArgs),
    /// Reads a file by mmap, once.
    FileStream(kernel_mmap::StreamArgs),
    /// Becomes QEMU.
    Qemu(guest::QemuArgs),
    /// Becomes a program that gets small pages alone.
    SmallPages(redis::SmallPagesArgs),
}

/// The words that start a worker of this process, before the options of its work.
pub fn words(program: &str, work: &str) -> [String; 5] {
    [program, "worker", "--bench", &std::process::id().to_string(), work].map(str::to_owned)
}

/// The command line of a worker of this process, with the options of its work.
pub fn command<const N: usize>(program: &str, work: &str, options: [(&str, String); N]) -> Vec<String> {
    let options = options.into_iter().flat_map(|(name, value)| [name.to_owned(), value]);
    words(program, work).into_iter().chain(options).collect()
}

/// Joins a memory group by its `cgroup.procs` file, if there is one.
pub fn join(procs: Option<&Path>) -> anyhow::Result<()> {
    let Some(procs) = procs else { return Ok(()) };
    let joining = || format!("joining the memory group by {}", procs.display());
    fs::write(procs, std::process::id().to_string()).with_context(joining)
}

/// Whether `ancestor` started this process, directly or through parents between.
fn descends_from(ancestor: u32) -> bool {
    let mut pid = Some(parent_id());
    while let Some(parent) = pid {
        if parent == ancestor {
            return true;
        }
        pid = parent_of(parent);
    }
    false
}

/// The parent of a process. `None` if it has ended, and for the first process.
fn parent_of(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    line.trim().parse().ok().filter(|parent| *parent != 0)
}

/// Runs the worker. Prints one line of JSON; ends with an error if memory read wrong.
pub fn run(args: &WorkerArgs) -> anyhow::Result<ExitCode> {
    // A killed benchmark must not leave its worker filling memory.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    // A benchmark killed before that call has sent no signal.
    if let Some(bench) = args.bench
        && !descends_from(bench)
    {
        bail!("the bench that started this, process {bench}, has ended");
    }
    match &args.work {
        Work::Patterns(args) => println!("{}", serde_json::to_string(&patterns(args)?)?),
        Work::Burst(args) => println!("{}", serde_json::to_string(&burst::burst(args)?)?),
        Work::MallocChurn { rounds } => println!("{}", churn::malloc(*rounds)),
        Work::ThreadChurn { rounds } => println!("{}", serde_json::to_string(&churn::threads(*rounds)?)?),
        Work::AnonWriter(args) => println!("{}", serde_json::to_string(&writer::run(args)?)?),
        Work::Hold(args) => return holder::run(args),
        Work::Unmap(args) => return unmapping::run(args),
        Work::MigrateDestination(args) => println!("{}", serde_json::to_string(&destination::run(args)?)?),
        Work::FileStream(args) => println!("{}", serde_json::to_string(&kernel_mmap::stream(args)?)?),
        Work::Qemu(args) => return Err(guest::become_qemu(args)),
        Work::SmallPages(args) => return Err(redis::become_small(args)),
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn who_started_this_is_told_from_who_has_ended_and_from_others() {
        let parent = parent_id();
        assert!(descends_from(parent) && parent_of(parent).is_none_or(descends_from));
        assert!(!descends_from(std::process::id()));
        let mut child = Command::new("true").spawn().expect("true starts");
        let pid = child.id();
        assert!(!descends_from(pid));
        child.wait().expect("it ends");
        assert!(!descends_from(pid) && parent_of(pid).is_none());
    }
}
