//! What an ordinary user has, and what is left where userfaultfd is denied: the other tests pass there as well, and
//! say what they skipped.
//!
//! The test executables that are run are those that lie beside this one, built by the same command.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::SystemTime;

use pagoda_linux::testing::sandbox::{Denial, without_userfaultfd};
use pagoda_linux::testing::skip::skip;

/// `nobody`: neither a user with rights nor one who owns anything here.
const NOBODY: u32 = 65534;

/// The newest executable of test target `name`.
fn test_executable(name: &str) -> Option<PathBuf> {
    let own = std::env::current_exe().expect("a path");
    let beside = fs::read_dir(own.parent().expect("a directory")).expect("readable").flatten();
    let candidates = beside.filter_map(|entry| {
        let path = entry.path();
        let (stem, hash) = path.file_name()?.to_str()?.rsplit_once('-')?;
        let is_hash = hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        (stem == name && is_hash).then(|| Some((modified(&path)?, path))).flatten()
    });
    candidates.max().map(|(_, path)| path)
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).ok()?.modified().ok()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a test target as `restrict` makes it, and gives what it said.
fn run(name: &str, restrict: impl Fn(&mut Command)) -> Option<Output> {
    let Some(executable) = test_executable(name) else {
        skip(name, "its test executable is not built; run the tests of the whole workspace");
        return None;
    };
    let mut command = Command::new(executable);
    // What it has to skip here is the point, and has to be told.
    command.arg("--nocapture").env_remove("PAGODA_NO_SKIPS").current_dir("/");
    restrict(&mut command);
    let output = command.output().unwrap_or_else(|error| panic!("{name} does not start: {error}"));
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{name}: {}\n{out}\n{error}", output.status);
    assert!(out.contains("test result: ok"), "{name}: {out}");
    let skipped: Vec<_> = error.lines().filter(|line| line.starts_with("SKIPPED ")).collect();
    println!("{name}: {} skipped", skipped.len());
    skipped.iter().for_each(|line| println!("    {line}"));
    Some(output)
}

fn as_ordinary_user(command: &mut Command) {
    command.uid(NOBODY).gid(NOBODY).env_remove("XDG_RUNTIME_DIR").env("HOME", "/nonexistent");
}

/// An ordinary user must be able to reach what was built.
fn reachable(path: &Path) -> bool {
    let mut command = Command::new("test");
    command.arg("-x").arg(path);
    as_ordinary_user(&mut command);
    command.status().is_ok_and(|status| status.success())
}

#[test]
fn the_tests_pass_where_userfaultfd_is_denied_and_say_what_they_skipped() {
    for name in ["region", "run", "doctor"] {
        let Some(output) = run(name, |command| without_userfaultfd(command, Denial::NotPermitted)) else {
            continue;
        };
        if name != "doctor" {
            let error = text(&output.stderr);
            assert!(error.contains("SKIPPED "), "{name} said nothing of what it skipped: {error}");
        }
    }
}

#[test]
fn the_tests_pass_as_an_ordinary_user() {
    if !rustix::process::geteuid().is_root() {
        // Then all of them run as one anyway.
        return;
    }
    let own = std::env::current_exe().expect("a path");
    if !reachable(&own) {
        return skip("the tests as an ordinary user", format!("{} can't be reached by one", own.display()));
    }
    for name in ["region", "run", "doctor"] {
        run(name, as_ordinary_user);
    }
}

#[test]
fn a_run_without_userfaultfd_is_refused_in_one_line_unless_that_is_allowed() {
    let pagoda = |options: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pagoda"));
        command.args(["run", "--memory", "64M"]).args(options).args(["--", "echo", "ran"]);
        without_userfaultfd(&mut command, Denial::NotPermitted);
        command.output().expect("pagoda starts")
    };
    let refused = pagoda(&[]);
    let error = text(&refused.stderr);
    assert_eq!((refused.status.code(), text(&refused.stdout).as_str()), (Some(125), ""), "{error}");
    assert!(error.starts_with("pagoda: ") && error.lines().count() == 1, "{error}");
    assert!(error.contains("userfaultfd") && error.contains("pagoda doctor"), "{error}");
    let allowed = pagoda(&["--best-effort"]);
    let error = text(&allowed.stderr);
    assert_eq!((allowed.status.code(), text(&allowed.stdout).as_str()), (Some(0), "ran\n"), "{error}");
    assert!(error.starts_with("pagoda: budget: NOT ENFORCED") && error.lines().count() == 1, "{error}");
}
