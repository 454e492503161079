//! `pagoda run --backend kernel`: a program within its budget by the kernel's own swap.
//!
//! It needs nothing inside the program, so it serves static and setuid programs and those of
//! another C library. It takes root and a memory cgroup of version 1. The program, and all that it
//! starts, run in a group of their own; a thread of ours steers its limit and the swap behind it
//! (`pagoda_core::budget::steering`). Everything is undone when the program has ended, or by the
//! run's guard if pagoda is killed. This module must never change swap or groups of others, nor
//! leave a program without the thread that steers it.

mod ground;
mod guard;
mod note;
mod pilot;
mod report;

use std::fs::File;
use std::path::Path;
use std::process::ExitCode;

use clap::ValueEnum;
use pagoda_core::budget::steering::{Areas, Steering};
use pagoda_core::size::Bytes;
use pagoda_linux::process::child;
use pagoda_linux::swap::cgroup::{Controller, Version};
use pagoda_linux::swap::{freezer, zram};
use rustix::fs::{Access, access};

use super::progress::{Progress, When};
use super::supervise::End;
use super::{Run, RunArgs, paths, store_directory};
use crate::exit_error::{ExitError, OWN_ERROR};
use ground::{Ground, Places};
use guard::Guard;
use note::Note;
pub use pilot::Figures;
use pilot::Pilot;

/// The keeper of the budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// The engine where it gets into the program, else the kernel where that is possible.
    #[default]
    Auto,
    /// Pagoda's engine, inside the program.
    Engine,
    /// The kernel's swap: a memory cgroup (version 1), zram and a swap file. Needs root.
    Kernel,
}

/// Whether the kernel's swap can serve a run with these options. The error names the thing that is
/// missing.
pub fn available(args: &RunArgs) -> Result<Places, String> {
    let of_the_engine = [
        ("--zone", !args.zone.is_empty()),
        ("--remote-store", args.remote_store.is_some()),
        ("--trace", args.trace.is_some()),
    ];
    if let Some((option, _)) = of_the_engine.iter().find(|(_, is_given)| *is_given) {
        return Err(format!("it has no {option}; leave that out"));
    }
    places()
}

/// The groups for a run by the kernel's swap, if this process may make them. Nothing is made. The
/// error names the thing that is missing.
pub fn places() -> Result<Places, String> {
    if !rustix::process::geteuid().is_root() {
        return Err("it needs root; run pagoda as root".to_owned());
    }
    let memory = Controller::below_own()
        .ok_or("no memory controller is mounted; mount a memory cgroup of version 1")?;
    if memory.version() == Version::V2 {
        let refusal =
            "this machine's memory cgroup is of version 2, with which it was not tested; it takes version 1";
        return Err(refusal.to_owned());
    }
    let freezer =
        freezer::below_own().ok_or("no freezer is mounted; mount the freezer cgroup of version 1")?;
    for path in [memory.root(), &freezer, Path::new(zram::CONTROL)] {
        // The module may not be loaded yet.
        if path.exists() && access(path, Access::WRITE_OK).is_err() {
            return Err(format!("{} can't be written; run pagoda with all rights of root", path.display()));
        }
    }
    Ok(Places { memory, freezer })
}

/// Runs the program by the kernel's swap.
pub(super) fn run(run: Run, places: &Places) -> Result<ExitCode, ExitError> {
    let ground = match prepare(&run, places) {
        Ok(ground) => ground,
        Err(refusal) if run.args.best_effort => return run.unmanaged(&refusal),
        Err(refusal) => return Err(refusal),
    };
    let (ground, steering, budget) = ground;
    let mut command = run.command();
    let open =
        |path| File::options().write(true).open(path).map_err(|error| refused("open its group", &error));
    let [memory, freezer] = ground.procs();
    child::join_before_exec(&mut command, [open(memory)?, open(freezer)?]);
    let mut pilot = None;
    let (ended, wall) = run.supervise(&mut command, || {
        let default = if run.args.quiet { When::Never } else { When::Auto };
        let progress = Progress::new(run.args.progress.unwrap_or(default));
        pilot = Some(Pilot::start(ground, steering, budget, progress));
    })?;
    let flown = match pilot {
        Some(Ok(pilot)) => pilot.finish().ok_or("it failed; please report this".to_owned()),
        Some(Err(error)) => Err(format!("{error}; raise `ulimit -u`")),
        None => Err("it never started; please report this".to_owned()),
    };
    // Without it the group was undone, and the program ended with it.
    let (mut ground, figures) =
        flown.map_err(|error| ExitError::own(format!("the thread that steers the run was lost: {error}")))?;
    let left = ground.kill();
    drop(ground);
    let exit_status = if figures.is_given_up { OWN_ERROR } else { ended.end.status() };
    let line = line(&figures, budget, left, ended.end);
    report::tell(run, &report::Ran { ended, wall, budget, figures, exit_status, line });
    Ok(ExitCode::from(exit_status))
}

/// The group and the swap, set up for a program that has not started.
fn prepare(run: &Run, places: &Places) -> Result<(Ground, Steering, Bytes), ExitError> {
    let (budget, smaller) = run.group.fitting(run.asked, &[])?;
    let file_limit = run.args.file_limit;
    let directory = store_directory(run.args.store_dir.as_deref(), file_limit)?;
    let file_most = file_limit.map_or_else(|| paths::default_file_limit(&directory), Ok)?;
    let note = Note::take()?;
    let guard =
        Guard::start(&note).map_err(|error| refused("start the process that guards the run", &error))?;
    let mut steering = Steering::new(budget, file_most);
    let (zram, file) = (steering.first_zram(), steering.first_file());
    let mut ground = Ground::set_up(places, steering.limit(), &directory, (note, guard))
        .map_err(|error| refused("set up control groups for memory and the freezer", &error))?;
    ground.add_zram(zram).map_err(|error| refused("set up zram", &error))?;
    steering.added(Areas::AddZram(zram), zram);
    if file > Bytes::ZERO {
        ground.add_file(file).map_err(|error| {
            refused(&format!("set up a swap file in {} (--store-dir)", directory.display()), &error)
        })?;
        steering.added(Areas::AddFile(file), file);
    }
    // Said even with --quiet: it differs from the request.
    smaller.iter().for_each(crate::say);
    Ok((ground, steering, budget))
}

fn refused(what: &str, error: &std::io::Error) -> ExitError {
    ExitError::own(format!(
        "--backend kernel: could not {what} ({error}); it needs all rights of root, the zram module and a disk that can \
         hold swap"
    ))
}

/// The line after the run, if one is needed.
fn line(figures: &Figures, budget: Bytes, left: usize, end: End) -> Option<String> {
    if figures.is_given_up {
        return Some(format!(
            "the program's memory fits neither the budget of {budget} nor the swap file, and it waited ten seconds for \
             more; give more (--memory, --file-limit)"
        ));
    }
    if figures.oom_kills > 0 {
        return Some(format!(
            "the kernel ended {} process(es) of the program for want of memory; give the machine or the group above more",
            figures.oom_kills
        ));
    }
    if left > 0 {
        return Some(format!(
            "{left} process(es) that the program left running were ended: without pagoda they had no budget"
        ));
    }
    // The kernel counts no system call that failed at the limit.
    let is_failed = match end {
        End::Exited(status) => status != 0,
        End::Killed(signal) => [libc::SIGABRT, libc::SIGBUS, libc::SIGSEGV].contains(&signal),
    };
    (is_failed && figures.held_peak_bytes > budget.get()).then(|| {
        "the program failed after it had outgrown the budget: a system call may have found no memory (EFAULT, ENOMEM); \
         if so, give more (--memory), or use the engine (--backend engine)"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_failed_beyond_its_budget_may_have_found_no_memory() {
        let says = |held, end| {
            let figures = Figures { held_peak_bytes: held, ..Figures::default() };
            line(&figures, Bytes::mib(1), 0, end).is_some_and(|line| line.contains("EFAULT, ENOMEM"))
        };
        let (within, beyond) = (1 << 20, (1 << 20) + 1);
        for end in [End::Exited(2), End::Killed(libc::SIGSEGV)] {
            assert!(says(beyond, end) && !says(within, end), "{end:?}");
        }
        for end in [End::Exited(0), End::Killed(libc::SIGTERM)] {
            assert!(!says(beyond, end), "{end:?}");
        }
    }
}
