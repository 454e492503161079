//! `pagoda bench all` from the outside: asked to end, it leaves nothing.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Only ever reached by a test that fails.
const PATIENCE: Duration = Duration::from_secs(60);

fn children(pid: u32) -> Vec<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|number| number.parse().ok()).collect()
}

#[test]
fn an_interrupted_run_ends_its_bench_and_writes_no_page() {
    let scratch = tempfile::tempdir().expect("a directory");
    let (page, before) = (scratch.path().join("report.html"), scratch.path().join("before.html"));
    std::fs::write(&before, "of yesterday").expect("written");
    for (path, left) in [(&page, None), (&before, Some("of yesterday"))] {
        let mut all = Command::new(env!("CARGO_BIN_EXE_pagoda"))
            .args(["bench", "all", "--quick", "--html"])
            .arg(path)
            .stdout(Stdio::null())
            .spawn()
            .expect("it starts");
        let begun = Instant::now();
        let bench = loop {
            if let [bench] = children(all.id())[..] {
                break bench;
            }
            assert!(begun.elapsed() < PATIENCE, "no bench was started");
            std::thread::sleep(Duration::from_millis(5));
        };
        kill_process(Pid::from_child(&all), Signal::TERM).expect("sent");
        let status = loop {
            if let Some(status) = all.try_wait().expect("our own child") {
                break status;
            }
            assert!(begun.elapsed() < PATIENCE, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        };
        assert_eq!(status.code(), Some(143));
        assert!(!std::path::Path::new(&format!("/proc/{bench}")).exists(), "its bench goes on");
        assert_eq!(std::fs::read_to_string(path).ok().as_deref(), left);
    }
}

#[test]
fn a_page_that_can_not_be_written_is_said_before_anything_runs() {
    let all = ["bench", "all", "--html", "/nonexistent/report.html"];
    let output = Command::new(env!("CARGO_BIN_EXE_pagoda")).args(all).output().expect("it runs");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(125), "{errors}");
    assert!(errors.contains("/nonexistent/report.html") && errors.lines().count() == 1, "{errors}");
}
