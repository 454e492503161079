//! A managed program most of whose memory is at a Redis server: a real one, which is killed and started anew in the middle.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use pagoda_linux::testing::redis::RedisServer;

const BUDGET: &str = "64M";
/// More than three times the budget, of what does not shrink.
const FILL: usize = 200 << 20;
const STEP: usize = 4096;
const ROLE: &str = "PAGODA_TEST_REMOTE_FILLER";

fn word(at: usize) -> u64 {
    (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The program that is managed, which is this test's own binary: it fills its memory, waits for a line, and reads it.
#[test]
fn filler() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let mut random = 1u64;
    let mut next = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        random ^ random >> 33
    };
    let mut filled: Vec<u64> = (0..FILL / 8).map(|_| next()).collect();
    for at in (0..filled.len()).step_by(STEP / 8) {
        filled[at] = word(at);
    }
    println!("\nfilled");
    std::io::stdin().read_line(&mut String::new()).expect("a line");
    let wrong = (0..filled.len()).step_by(STEP / 8).filter(|at| filled[*at] != word(*at)).count();
    println!("\nwrong {wrong}");
}

fn begin(server: &RedisServer, stats: &Path) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagoda"));
    command.args(["run", "-q", "-m", BUDGET, "--file-limit", "0", "--remote-store"]);
    command.arg(format!("redis://{}", server.address())).arg("--stats").arg(stats).arg("--");
    command.arg(std::env::current_exe().expect("a path")).args(["--exact", "filler", "--nocapture"]);
    command.env(ROLE, "1").env_remove("PAGODA_PRELOAD").stdin(Stdio::piped()).stdout(Stdio::piped());
    command.stderr(Stdio::piped()).spawn().expect("pagoda starts")
}

/// Reads what it says up to this line.
fn wait_for(child: &mut Child, line: &str) -> BufReader<std::process::ChildStdout> {
    let mut said = BufReader::new(child.stdout.take().expect("piped"));
    let mut text = String::new();
    while said.read_line(&mut text).expect("text") > 0 {
        if text.ends_with(&format!("{line}\n")) {
            return said;
        }
    }
    let output = child.stderr.take().map(|errors| std::io::read_to_string(errors).expect("text"));
    panic!("it did not say {line}: {text}{output:?}");
}

#[test]
fn a_program_whose_memory_is_at_a_server_reads_it_right_or_is_ended() {
    if let Err(why) = pagoda_linux::probe::can_run() {
        assert!(std::env::var_os("PAGODA_NO_SKIPS").is_none(), "skipped: {why}");
        return eprintln!("SKIPPED memory at a server: {why}");
    }
    for stays_dead in [false, true] {
        let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
        let kept = ["--appendonly", "yes"];
        let Some(mut server) = RedisServer::start(scratch.path(), &kept) else { return };
        let stats = scratch.path().join("stats.json");
        let mut child = begin(&server, &stats);
        let said = wait_for(&mut child, "filled");
        server.kill();
        let stdin = child.stdin.take().expect("piped");
        std::io::Write::write_all(&mut &stdin, b"\n").expect("it reads");
        if !stays_dead {
            std::thread::sleep(std::time::Duration::from_millis(500));
            server.restart(&kept);
        }
        let text = std::io::read_to_string(said).expect("text");
        let output = child.wait_with_output().expect("it ends");
        let errors = String::from_utf8_lossy(&output.stderr);
        if stays_dead {
            assert_eq!(output.status.code(), Some(125), "{errors}");
            assert!(errors.contains("could not be read back from the store"), "{errors}");
            assert!(!text.contains("wrong"), "it never read anything else: {text}");
        } else {
            assert!(output.status.success() && text.contains("wrong 0\n"), "{text}{errors}");
        }
        let told: serde_json::Value =
            serde_json::from_slice(&fs::read(&stats).expect("--stats")).expect("JSON");
        let counters = &told["counters"];
        let most = counters["remote_peak_bytes"].as_u64().expect("a counter");
        assert!(most > FILL as u64 / 2, "most of it was there: {told}");
        assert!(counters["remote_failures"].as_u64().expect("a counter") > 0, "{told}");
    }
}
