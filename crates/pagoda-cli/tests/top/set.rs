//! `pagoda set` on a run that goes on: its processes follow, down and up.

use std::process::{Command, Output};

use pagoda_linux::testing::wait::until;

use super::{BUDGET_MIB, HELD_MIB, Managed};

/// Beside the budget a burst may take for a moment.
const SLACK_MIB: u64 = 8;

fn set(managed: &Managed, named: &str, size: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagoda"));
    command.args(["set", named, size]).env("XDG_RUNTIME_DIR", managed.runtime.path());
    command.output().expect("pagoda starts")
}

fn anon_mib(managed: &Managed) -> u64 {
    managed.json()["trees"][0]["anon_bytes"].as_u64().expect("a number") >> 20
}

#[test]
fn a_running_budget_goes_down_and_up_and_the_program_follows() {
    let Some(managed) = Managed::start() else { return };
    let run = managed.run.id().to_string();
    until("it is within its budget", || anon_mib(&managed) <= BUDGET_MIB + SLACK_MIB);
    let said = set(&managed, &run, "36M");
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.status.success() && text.contains("budget 48 MiB -> 36 MiB"), "{said:?}");
    until("it has gone down", || anon_mib(&managed) <= 36 + SLACK_MIB);
    // By the tree's name, which the answer begins with.
    let name = text.split(' ').next().expect("a name");
    assert!(set(&managed, name, "96M").status.success());
    until("it has grown beyond what it began with", || anon_mib(&managed) > BUDGET_MIB + SLACK_MIB);
    assert!(managed.json()["trees"][0]["share_bytes"].as_u64() == Some(96 << 20));
    assert!(HELD_MIB as u64 >= BUDGET_MIB + 2 * SLACK_MIB, "it holds more than it began with");
    for (named, size, says) in [
        (&*run, "31M", "below 32 MiB"),
        (&*run, "97M", "more than 96 MiB"),
        ("1-no-such-tree", "64M", "no such process or tree"),
        (&*run, "lots", "not a size"),
    ] {
        let refused = set(&managed, named, size);
        let error = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(125) && error.contains(says), "{error}");
    }
}

#[test]
fn a_budget_of_zones_is_kept() {
    let Some(managed) = Managed::start_within(&["--zone", "a=32M", "--zone", "b=32M"]) else { return };
    let refused = set(&managed, &managed.run.id().to_string(), "100M");
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(125) && error.contains("divided into zones"), "{error}");
}
