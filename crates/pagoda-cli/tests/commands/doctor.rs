//! `pagoda doctor` as a person runs it: on this machine, and with userfaultfd taken away.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use pagoda_linux::probe;
use pagoda_linux::testing::sandbox::{self, Denial};
use pagoda_linux::testing::skip::skip;

fn doctor(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagoda"));
    command.arg("doctor").args(arguments);
    command
}

/// Runs it where neither the device nor the system call is to be had.
fn without_userfaultfd(arguments: &[&str], denial: Denial) -> Output {
    let mut command = doctor(arguments);
    sandbox::without_userfaultfd(&mut command, denial);
    command.output().expect("run")
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

/// A path of a preload library, which doctor looks for and does not load.
fn library(directory: &Path, name: &str) -> PathBuf {
    let path = directory.join(name);
    fs::write(&path, "").expect("written");
    path
}

#[test]
fn it_agrees_with_the_probe_and_exits_so() {
    let works = probe::can_run().is_ok();
    let directory = tempfile::tempdir().expect("a directory");
    let library = library(directory.path(), "p.so");
    let output = doctor(&[]).env("PAGODA_PRELOAD", &library).output().expect("run");
    let first = text(&output).lines().next().expect("a line").to_owned();
    let told = json(&doctor(&["--json"]).env("PAGODA_PRELOAD", &library).output().expect("run"));
    // Where the probe fails a run may still be had by the kernel's swap.
    let starts = works || told["backend"] == "kernel";
    assert_eq!(output.status.code(), Some(i32::from(!starts)), "{first}");
    assert_eq!(first == "pagoda run: works here", works, "{first}");
    assert_eq!(told["works"], starts);
}

#[test]
fn it_does_not_say_works_where_a_run_would_not_start() {
    if let Err(why) = probe::can_run() {
        // It says so of that then, and the kernel's swap needs no library.
        return skip("what a run takes beside the kernel's part", why);
    }
    let directory = tempfile::tempdir().expect("a directory");
    let good = library(directory.path(), "p.so");
    let blank = library(directory.path(), "p q.so");
    let absent = directory.path().join("absent.so");
    for (library, store) in [(&blank, "/var/tmp"), (&absent, "/var/tmp"), (&good, "/proc")] {
        let with = |mut command: Command| {
            command.env("PAGODA_PRELOAD", library).env("PAGODA_STORE", store);
            command.output().expect("run")
        };
        let output = with(doctor(&[]));
        assert_eq!(output.status.code(), Some(1), "{}", text(&output));
        assert!(text(&output).starts_with("pagoda run: does not work here: "), "{}", text(&output));
        let mut run = Command::new(env!("CARGO_BIN_EXE_pagoda"));
        run.args(["run", "--memory", "64M", "--backend", "engine", "true"]);
        assert_eq!(with(run).status.code(), Some(125));
    }
}

#[test]
fn where_userfaultfd_is_denied_it_names_the_reason_and_the_mend() {
    for denial in [Denial::NotPermitted, Denial::NotImplemented] {
        let output = without_userfaultfd(&[], denial);
        let text = text(&output);
        let output = without_userfaultfd(&["--json"], denial);
        let json = json(&output);
        // By the kernel's swap, where that is to be had.
        let row = |row: &&serde_json::Value| row["id"] == "kernel_swap";
        let rows = json["rows"].as_array().expect("a list");
        let works = rows.iter().find(row).expect("a row")["state"] == "ok";
        assert_eq!(output.status.code(), Some(i32::from(!works)), "{text}");
        let verdict = if works {
            "works here by the kernel's swap (--backend kernel), not by the engine"
        } else {
            "does not work here"
        };
        assert!(text.starts_with(&format!("pagoda run: {verdict}: no full userfaultfd: ")), "{text}");
        assert_eq!((&json["works"], &json["way"]), (&works.into(), &serde_json::Value::Null));
        assert_eq!(json["backend"], if works { "kernel".into() } else { serde_json::Value::Null });
        let mut run = Command::new(env!("CARGO_BIN_EXE_pagoda"));
        sandbox::without_userfaultfd(run.args(["run", "--memory", "64M", "--quiet", "--", "true"]), denial);
        let ran = run.output().expect("run");
        // Another run by the kernel's swap may go on.
        let refused = String::from_utf8_lossy(&ran.stderr).contains("another run by the kernel's swap");
        assert!(ran.status.success() == works || refused, "{ran:?}");
        let mends = json["mends"].as_array().expect("a list");
        assert!(
            mends.iter().any(|mend| mend["id"].as_str().is_some_and(|id| id.starts_with("userfaultfd.")))
        );
    }
}
