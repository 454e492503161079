//! `pagoda run` from the outside: real processes, nothing of the command's own code.

mod counters;
mod managed;
mod manners;
mod progress;
mod refusals;
mod signals;
mod sizes;
#[path = "../support/static_program.rs"]
mod static_program;
mod terminal;

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use pagoda_linux::testing::signals::default_for;

/// Twice the least that is taken.
const BUDGET: &str = "64M";

/// A run that finds no preload library, unless the caller names one.
fn pagoda(options: &[&str], program: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagoda"));
    default_for(&mut command);
    // Where the engine can't serve, the kernel's swap would.
    command.args(["run", "--memory", BUDGET, "--backend", "engine"]).args(options).arg("--").args(program);
    command.env("PAGODA_PRELOAD", "/nonexistent/preload.so").env_remove("LD_PRELOAD");
    command
}

/// A run without an engine: the manners hold with and without one, and so can be seen on any
/// machine.
fn unmanaged(program: &[&str]) -> Command {
    pagoda(&["--best-effort"], program)
}

fn output(command: &mut Command) -> Output {
    command.output().expect("pagoda starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Another process writes it: a process that another test starts at this moment would inherit our
/// descriptor, and the kernel runs no file that is open for writing.
fn executable(directory: &Path, name: &str, content: &[u8]) -> String {
    let path = directory.join(name);
    let mut cat = Command::new("sh");
    let mut cat =
        cat.args(["-c", "cat >\"$0\""]).arg(&path).stdin(Stdio::piped()).spawn().expect("sh starts");
    cat.stdin.take().expect("piped").write_all(content).expect("written");
    assert!(cat.wait().expect("it ends").success());
    set_mode(&path, 0o755);
    path.to_str().expect("a name").to_owned()
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("mode set");
}

/// Says why a test has nothing to see here. Where everything is to be seen, that is a failure.
fn skip(why: impl std::fmt::Display) {
    pagoda_linux::testing::skip::skip("a managed run", why);
}
