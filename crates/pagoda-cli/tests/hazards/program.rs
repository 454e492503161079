//! Building a program in C, and running it natively and under `pagoda run` with an end to its time.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use pagoda_linux::testing::skip::skip;

/// A program that hangs is ended after this time, in seconds, and its test fails by the status of
/// timeout(1), 124.
const LIMIT_S: &str = "120";

/// A compiled program, removed when this value goes.
pub struct Program {
    directory: tempfile::TempDir,
}

impl Program {
    /// Builds `tests/hazards/c/NAME.c`. None, with a line that says why, where nothing can be
    /// managed.
    pub fn build(name: &str, flags: &[&str]) -> Option<Self> {
        pagoda_linux::probe::can_run().map_err(|why| skip(name, why)).ok()?;
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
        let program = Self { directory };
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hazards/c").join(format!("{name}.c"));
        let built = Command::new("cc")
            .args(["-O1", "-w", "-pthread", "-o"])
            .arg(program.path())
            .arg(source)
            .args(flags)
            .arg("-ldl")
            .output()
            .expect("a C compiler");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        Some(program)
    }

    /// The executable.
    pub fn path(&self) -> PathBuf {
        self.directory.path().join("program")
    }

    /// The directory that goes with this value.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The program by itself.
    pub fn native(&self, arguments: &[&str]) -> Command {
        let mut command = limited();
        command.arg(self.path()).args(arguments);
        command
    }

    /// `pagoda run` of it with these options, of which `--memory` or `--zone` is one.
    pub fn managed(&self, options: &[&str], arguments: &[&str]) -> Command {
        self.managed_by(&[], options, arguments)
    }

    /// The same by a command that executes it, as setpriv(1).
    pub fn managed_by(&self, by: &[&str], options: &[&str], arguments: &[&str]) -> Command {
        let mut command = limited();
        command.args(by).arg(env!("CARGO_BIN_EXE_pagoda")).arg("run").args(options).arg("--");
        command.arg(self.path()).args(arguments);
        command
    }

    /// `pagoda run` of any command with these options.
    pub fn managed_command(options: &[&str], words: impl Iterator<Item = OsString>) -> Command {
        let mut command = limited();
        command.arg(env!("CARGO_BIN_EXE_pagoda")).arg("run").args(options).arg("--").args(words);
        command
    }

    /// Runs it natively and under `pagoda run --quiet --memory MEMORY`. The two have to end alike,
    /// the managed run without a complaint of Pagoda's.
    pub fn ends_alike(&self, memory: &str, arguments: &[&str]) {
        self.ends_as(&output(&mut self.native(arguments)), memory, arguments);
    }

    /// Runs it under `pagoda run --quiet --memory MEMORY`: it has to end as this native run did,
    /// without a complaint of Pagoda's.
    pub fn ends_as(&self, native: &Output, memory: &str, arguments: &[&str]) {
        let managed = output(&mut self.managed(&["--quiet", "--memory", memory], arguments));
        let of_managed = said(&managed);
        assert_eq!(
            managed.status.code(),
            native.status.code(),
            "{arguments:?}: {of_managed}\n{}",
            said(native)
        );
        assert!(!of_managed.contains("pagoda:"), "{arguments:?}: {of_managed}");
    }
}

/// timeout(1) with [`LIMIT_S`], without an inherited engine.
fn limited() -> Command {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", LIMIT_S]).stdin(Stdio::null());
    command.env_remove("LD_PRELOAD").env_remove("PAGODA_PRELOAD").env_remove("PAGODA_CONFIG");
    command
}

/// Runs a command to its end.
pub fn output(command: &mut Command) -> Output {
    command.output().expect("it starts")
}

/// The output of a run, of both streams.
pub fn said(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat()
}
