//! The process that is measured: the same program, with the same arguments, under Pagoda and under the kernel.
//!
//! It knows nothing of either, does one work, and prints one line of JSON. It must never outlive who started it.

mod patterns;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::churn;
use super::clear::writer;
use super::migrate::{destination, guest};
use super::release::holder;
use super::zones::kernel_mmap;
pub use patterns::{Pattern, Phase};
use patterns::{PatternArgs, patterns};

/// What the worker does. Hidden: `pagoda bench` starts it.
#[derive(Args, Debug)]
pub struct WorkerArgs {
    #[command(subcommand)]
    work: Work,
}

#[derive(Subcommand, Debug)]
enum Work {
    /// Fills memory and touches it in patterns.
    Patterns(PatternArgs),
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
    /// Receives one migration.
    MigrateDestination(destination::DestinationArgs),
    /// Reads a file by mmap, once.
    FileStream(kernel_mmap::StreamArgs),
    /// Becomes QEMU.
    Qemu(guest::QemuArgs),
}

/// Runs the worker. Prints one line of JSON; ends with an error if memory read wrong.
pub fn run(args: &WorkerArgs) -> anyhow::Result<ExitCode> {
    // A benchmark that is killed must not leave its worker filling memory.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    match &args.work {
        Work::Patterns(args) => println!("{}", serde_json::to_string(&patterns(args)?)?),
        Work::MallocChurn { rounds } => println!("{}", serde_json::to_string(&churn::malloc(*rounds)?)?),
        Work::ThreadChurn { rounds } => println!("{}", serde_json::to_string(&churn::threads(*rounds)?)?),
        Work::AnonWriter(args) => println!("{}", serde_json::to_string(&writer::run(args)?)?),
        Work::Hold(args) => return holder::run(args),
        Work::MigrateDestination(args) => println!("{}", serde_json::to_string(&destination::run(args)?)?),
        Work::FileStream(args) => println!("{}", serde_json::to_string(&kernel_mmap::stream(args)?)?),
        Work::Qemu(args) => return Err(guest::become_qemu(args)),
    }
    Ok(ExitCode::SUCCESS)
}
