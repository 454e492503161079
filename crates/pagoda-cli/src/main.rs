//! The `pagoda` command: run programs within a memory budget, and show the features of the machine.
#![forbid(unsafe_code)]

mod bench;
mod custody;
mod doctor;
mod exit_error;
mod export;
mod image;
mod latency;
mod manual;
mod migrate;
mod output_file;
mod program;
mod remote_image;
mod run;
mod serve;
mod set;
mod top;
mod trace;

use std::fmt;
use std::io::Write;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};

use exit_error::ExitError;

/// Statistics that differ: from outside their crate they are not built by their fields.
#[cfg(test)]
fn stats_with(mut stats: pagoda::Stats, change: impl FnOnce(&mut pagoda::Stats)) -> pagoda::Stats {
    change(&mut stats);
    stats
}

/// Programs within a memory budget, by userspace virtual memory.
#[derive(Parser)]
#[command(name = "pagoda", version)]
struct Arguments {
    #[command(subcommand)]
    command: Subcommands,
}

#[derive(Subcommand)]
enum Subcommands {
    Run(run::RunArgs),
    Doctor(doctor::DoctorArgs),
    Top(top::TopArgs),
    Set(set::SetArgs),
    Export(export::ExportArgs),
    Trace(trace::TraceArgs),
    Send(migrate::send::SendArgs),
    Recv(migrate::recv::RecvArgs),
    Image(image::ImageArgs),
    Serve(serve::ServeArgs),
    /// Measure against the kernel, side by side on this machine.
    Bench(pagoda_bench::BenchArgs),
    Completions(manual::CompletionsArgs),
    Man(manual::ManArgs),
}

/// Prints to standard error. A standard error that is closed is no reason to fail.
fn print_error(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Says one line of our own on standard error.
fn say(line: impl fmt::Display) {
    print_error(&format!("pagoda: {line}\n"));
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return usage(error),
    };
    // The alternate form has the causes in the same line.
    let own = |error: anyhow::Error| ExitError::own(format_args!("{error:#}"));
    let outcome = match arguments.command {
        Subcommands::Run(args) => run::run(&args),
        Subcommands::Doctor(args) => doctor::run(&args).map_err(own),
        Subcommands::Top(args) => top::run(&args),
        Subcommands::Set(args) => set::run(&args),
        Subcommands::Export(args) => export::run(&args),
        Subcommands::Trace(args) => trace::run(&args),
        Subcommands::Send(args) => migrate::send::run(&args),
        Subcommands::Recv(args) => migrate::recv::run(&args),
        Subcommands::Image(args) => image::run(&args),
        Subcommands::Serve(args) => serve::run(&args),
        Subcommands::Bench(_) => bench::run(),
        Subcommands::Completions(args) => Ok(manual::completions(&args)),
        Subcommands::Man(args) => manual::man(&args),
    };
    outcome.unwrap_or_else(|error| {
        say(&error);
        error.exit_code()
    })
}

/// Help and version as they come; of an error one line, since a status of 2 or a page of usage
/// could as well be the program's.
fn usage(error: clap::Error) -> ExitCode {
    use ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};
    match error.kind() {
        DisplayHelp | DisplayVersion => {
            // To a closed standard output nothing can be said.
            let _ = error.print();
            ExitCode::SUCCESS
        }
        DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            ExitError::own("").exit_code()
        }
        _ => {
            let text = error.render().to_string();
            let first = text.split("\n\n").next().unwrap_or_default();
            let words: Vec<_> = first.trim_start_matches("error: ").split_whitespace().collect();
            let named = std::env::args_os().nth(1).and_then(|name| name.into_string().ok());
            let command =
                named.as_deref().filter(|name| Arguments::command().find_subcommand(name).is_some());
            let help = command.map_or("pagoda --help".to_owned(), |name| format!("pagoda {name} --help"));
            say(format_args!("{}{}; see `{help}`", words.join(" "), meant(&error, named.as_deref())));
            ExitError::own("").exit_code()
        }
    }
}

/// The word that a wrong one looks like; of a command that is a program's name, how to run that.
fn meant(error: &clap::Error, named: Option<&str>) -> String {
    let kinds = [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg];
    let suggested = kinds.into_iter().find_map(|kind| match error.get(kind)? {
        ContextValue::String(word) => Some(word.clone()),
        ContextValue::Strings(words) => words.last().cloned(),
        _ => None,
    });
    let Some(named) = named.filter(|_| error.kind() == ErrorKind::InvalidSubcommand) else {
        return suggested.map_or_else(String::new, |word| format!("; did you mean `{word}`?"));
    };
    // To clap two letters in the wrong order are not alike, and `sort` is like `export`.
    let is_near = |name: &&str| strsim::damerau_levenshtein(name, named) <= 1;
    let arguments = Arguments::command();
    let near = arguments.get_subcommands().map(clap::Command::get_name).find(is_near).map(str::to_owned);
    let path = std::env::var_os("PATH");
    if near.is_none() && program::find(named.as_ref(), path.as_deref()).is_ok() {
        return format!("; to run a program: `pagoda run --memory SIZE -- {named}`");
    }
    near.or(suggested).map_or_else(String::new, |word| format!("; did you mean `{word}`?"))
}
