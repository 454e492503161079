//! The pages that come with a fault beyond its own, and the switch that keeps them from coming.

use std::fs;
use std::process::{Command, Stdio};

const ROLE: &str = "PAGODA_TEST_SEQUENTIAL_READER";
const BUDGET: &str = "48M";
/// Four times the budget of content that shrinks to a fraction, so that all of it stays in the
/// compressed memory.
const FILL: usize = 192 << 20;
const STEP: usize = 4096;
/// The direction in which it is read.
const DIRECTION: &str = "PAGODA_TEST_DIRECTION";

fn word(at: usize) -> u64 {
    (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The program that is managed, which is this test's own binary: it fills its memory, and reads it
/// twice in one direction.
#[test]
fn reader() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let mut filled = vec![0u64; FILL / 8];
    let firsts = (0..filled.len()).step_by(STEP / 8);
    firsts.clone().for_each(|at| filled[at] = word(at));
    for _ in 0..2 {
        let is_right = |at| filled[at] == word(at);
        let is_all_right = match std::env::var(DIRECTION).as_deref() {
            Ok("down") => firsts.clone().rev().all(is_right),
            _ => firsts.clone().all(is_right),
        };
        assert!(is_all_right, "a wrong byte");
    }
}

fn counters(options: &[&str], direction: &str) -> serde_json::Value {
    let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let stats = scratch.path().join("stats.json");
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagoda"));
    command.args(["run", "-q", "-m", BUDGET, "--file-limit", "0", "--stats"]).arg(&stats).args(options);
    command.arg("--").arg(std::env::current_exe().expect("a path")).args(["--exact", "fetch_ahead::reader"]);
    command.env(ROLE, "1").env(DIRECTION, direction).env_remove("PAGODA_PRELOAD").stdin(Stdio::null());
    let output = command.output().expect("pagoda starts");
    assert!(output.status.success(), "{output:?}");
    let told: serde_json::Value = serde_json::from_slice(&fs::read(&stats).expect("--stats")).expect("JSON");
    assert_eq!(told["status"], "managed", "{told}");
    told["counters"].clone()
}

#[test]
fn a_sequential_reader_gets_more_than_it_faulted_for_unless_that_is_switched_off() {
    if let Err(why) = pagoda_linux::probe::can_run() {
        return pagoda_linux::testing::skip::skip("fetching ahead", why);
    }
    // An eighth of the pages that it reads: a busy machine has fewer ready frames.
    let many = (FILL / (64 << 10)) as u64 / 4;
    for (options, direction, fetches) in
        [(&[][..], "up", true), (&[], "down", true), (&["--no-fetch-ahead"], "down", false)]
    {
        let counters = counters(options, direction);
        let count = |name: &str| counters[name].as_u64().expect("a counter");
        assert!(count("faults_stored") > 0, "it reads stored pages: {counters}");
        let ahead = count("fetched_ahead");
        let is_right = if fetches { ahead > many } else { ahead == 0 };
        assert!(is_right, "{options:?}, {direction}: {counters}");
        assert_eq!(count("filled_around"), 0, "a program's first touches are served one by one: {counters}");
    }
}
