//! `pagoda set`: another budget for a run that goes on.
//!
//! The tree's file is found as `pagoda top` finds it, and checked as a member checks it. This
//! module must never write to a file that is not this user's own tree file.

use std::io::Write;
use std::process::ExitCode;

use pagoda::frames::zones::ZoneStats;
use pagoda::tree::Tree;
use pagoda_core::size::Bytes;

use crate::exit_error::ExitError;
use crate::top::find::{self, Finder};

/// Change the budget of a `pagoda run` while it goes on.
///
/// The processes find it within a tenth of a second. A larger budget is used from then on; to a
/// smaller one they go down as fast as their memory can be compressed, and nothing is lost. It can
/// be twice what the run began with, and 32 MiB at least. A run with zones keeps its budget.
#[derive(clap::Args, Debug)]
pub struct SetArgs {
    /// A process below the `pagoda run`, that one itself, or its tree's name as `pagoda export`
    /// tells it, like 4711-18c2-0.
    #[arg(value_name = "PID|TREE")]
    tree: String,
    /// The budget from now on, like 512M.
    #[arg(value_name = "SIZE", allow_negative_numbers = true)]
    size: Bytes,
}

/// Runs it. Exit status 125 if there is no such tree, or it keeps its budget.
pub fn run(args: &SetArgs) -> Result<ExitCode, ExitError> {
    let tree = chosen(&args.tree)?;
    let name = tree.label();
    let own = |error: &dyn std::fmt::Display| {
        ExitError::own(format!("could not change the budget of {}: {error}", args.tree))
    };
    if ZoneStats::all(&tree.view.totals).len() > 1 {
        return Err(own(&"it is divided into zones, whose sizes hold as long as the run; begin it again"));
    }
    let opened = Tree::open(&tree.path);
    let before = opened.map_err(|error| own(&error))?.set_budget(args.size).map_err(|error| own(&error))?;
    let program = tree.program().unwrap_or("its program has ended");
    let line =
        format!("{name} ({program}): budget {before} -> {}, {} claimed now\n", args.size, tree.view.claimed);
    // To a closed standard output nothing can be said.
    let _ = std::io::stdout().write_all(line.as_bytes());
    Ok(ExitCode::SUCCESS)
}

/// The tree that is meant: by its name, by its maker, or by a process of it.
fn chosen(named: &str) -> Result<find::Tree, ExitError> {
    let pid: Option<u32> = named.parse().ok();
    let finder = Finder::new(std::env::var_os("XDG_RUNTIME_DIR"), pid);
    let mut look = finder.look();
    look.trees.retain(|tree| pid.is_some() || tree.label() == named);
    // A `pagoda run` below another one is a member of that, and means its own.
    let own = look.trees.iter().position(|tree| Some(tree.maker) == pid).unwrap_or(0);
    if look.trees.is_empty() {
        let refused = look.rejected.iter().map(|why| format!("; {why}")).collect::<String>();
        return Err(ExitError::own(format!(
            "could not find {named}: no such process or tree runs under `pagoda run` of this user{refused}; `pagoda top \
             --once` lists those that do"
        )));
    }
    Ok(look.trees.swap_remove(own))
}
