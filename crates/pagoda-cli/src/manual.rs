//! Manual pages and shell completions, made from the command line itself, so that they can't say
//! anything else.
//!
//! This module must never have a word of its own about a command.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::exit_error::ExitError;

/// Print what a shell needs to complete our commands and options.
///
/// For bash: pagoda completions bash > ~/.local/share/bash-completion/completions/pagoda
#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

/// Write the manual pages, one for each command.
///
/// Then, for example: man DIR/pagoda-run.1
#[derive(Args, Debug)]
pub struct ManArgs {
    /// Where; it is made if it is not there.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Prints completions.
pub fn completions(args: &CompletionsArgs) -> ExitCode {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut crate::Arguments::command(), "pagoda", &mut text);
    // To a closed standard output nothing can be said.
    let _ = std::io::stdout().write_all(&text);
    ExitCode::SUCCESS
}

/// Writes the manual pages.
pub fn man(args: &ManArgs) -> Result<ExitCode, ExitError> {
    fs::create_dir_all(&args.directory)
        .and_then(|()| clap_mangen::generate_to(crate::Arguments::command(), &args.directory))
        .map_err(|error| {
            let shown = args.directory.display();
            ExitError::own(format!("{shown} can't be written ({error}); name another directory"))
        })?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
#[path = "manual_test.rs"]
mod tests;
