//! `pagoda bench`: becomes the program `pagoda-bench`, which lies beside this one.
//!
//! `pagoda` has the command line of the benches, for its help and its completions; the benches are
//! a program of their own. `cargo run` builds only the program that it runs: there cargo brings the
//! others up to date first. Under cargo, this module must never start the benches of another build.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use crate::exit_error::ExitError;

const FILE_NAME: &str = "pagoda-bench";

/// Becomes `pagoda-bench` with the words after `bench`. Returns only if it can't.
pub fn run() -> Result<ExitCode, ExitError> {
    let executable = std::env::current_exe().map_err(|error| {
        ExitError::own(format!(
            "could not tell where pagoda is installed ({error}); start {FILE_NAME} by its path"
        ))
    })?;
    let directory = executable.parent().unwrap_or(Path::new("/"));
    if let Some(mut build) = build(directory, |name| std::env::var_os(name)) {
        let status =
            build.status().map_err(|error| ExitError::own(format!("could not start cargo ({error})")))?;
        if !status.success() {
            return Err(ExitError::own("cargo could not build the benches; its errors are above"));
        }
    }
    let program = directory.join(FILE_NAME);
    let error = Command::new(&program).args(std::env::args_os().skip(2)).exec();
    Err(ExitError::own(format!(
        "could not start {} ({error}); install it beside pagoda: `cargo build --release` makes both",
        program.display()
    )))
}

/// The command that brings all of the workspace up to date, if cargo has started this program.
fn build(directory: &Path, variable: impl Fn(&str) -> Option<OsString>) -> Option<Command> {
    let (cargo, package) = (variable("CARGO")?, variable("CARGO_MANIFEST_DIR")?);
    // Any program that cargo starts may run an installed `pagoda`.
    if variable("CARGO_PKG_NAME")? != env!("CARGO_PKG_NAME") {
        return None;
    }
    let profile = directory.file_name().filter(|name| *name != "debug").unwrap_or("dev".as_ref());
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--profile"]).arg(profile);
    command.arg("--manifest-path").arg(Path::new(&package).join("../../Cargo.toml"));
    Some(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_brings_the_benches_up_to_date_only_when_it_runs_this_package() {
        let of = |name: &str, package: &str| match name {
            "CARGO" => Some(OsString::from("/bin/cargo")),
            "CARGO_MANIFEST_DIR" => Some(OsString::from("/src/crates/pagoda-cli")),
            "CARGO_PKG_NAME" => Some(OsString::from(package)),
            _ => None,
        };
        let built = |directory: &str, package: &str| {
            let command = build(Path::new(directory), |name| of(name, package))?;
            Some(
                command
                    .get_args()
                    .map(|word| word.to_string_lossy().into_owned())
                    .collect::<Vec<_>>()
                    .join(" "),
            )
        };
        let manifest = "--manifest-path /src/crates/pagoda-cli/../../Cargo.toml";
        for (directory, profile) in [("/target/release", "release"), ("/target/debug", "dev")] {
            let expected = format!("build --quiet --profile {profile} {manifest}");
            assert_eq!(built(directory, env!("CARGO_PKG_NAME")), Some(expected));
        }
        assert_eq!(built("/target/release", "another"), None);
        assert!(build(Path::new("/usr/bin"), |_| None).is_none());
    }
}
