//! `pagoda bench release`: its keys, those of its figures that no noise moves, and that it leaves the machine as it was.

use std::cell::RefCell;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pagoda_linux::cgroup::Controller;
use pagoda_linux::swapfile::{Label, owner};
use pagoda_linux::testing::skip::skip;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Only ever reached by a test that fails.
const PATIENCE: Duration = Duration::from_secs(180);

fn can_run() -> bool {
    let can = pagoda::userfaultfd_allows_managers();
    if !can {
        skip("the bench of releasing", "this machine offers no userfaultfd with UFFDIO_MOVE");
    }
    can
}

fn bench() -> Child {
    Command::new(env!("CARGO_BIN_EXE_pagoda"))
        .args(["bench", "release", "--quick", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts")
}

/// Groups of a bench.
fn groups(prefix: &str) -> Vec<String> {
    let names = RefCell::new(Vec::new());
    if let Ok(controller) = Controller::find() {
        let look = |name: &str| {
            names.borrow_mut().extend(name.starts_with(prefix).then(|| name.to_owned()));
            false
        };
        assert!(controller.remove_where(look).expect("listed").is_empty());
    }
    names.into_inner()
}

/// Everything that a bench of this number sets up and has not undone.
fn left_by(pid: u32) -> Vec<String> {
    let prefix = format!("pagoda-bench-{pid}-");
    let mut left = groups(&prefix);
    let names = |directory: &str| -> Vec<String> {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    };
    left.extend(names("/var/tmp").into_iter().filter(|name| name.starts_with(&prefix)));
    left.extend(names("/sys/block").into_iter().filter(|name| {
        let node = Path::new("/dev").join(name);
        name.starts_with("zram") && owner(&node, Label::new("pagoda-bench")) == Some(pid)
    }));
    left.extend(names("/proc").into_iter().filter(|number| {
        let command = std::fs::read(format!("/proc/{number}/cmdline")).unwrap_or_default();
        number.parse::<u32>().is_ok() && String::from_utf8_lossy(&command).contains(&prefix)
    }));
    left
}

#[test]
fn the_bench_has_its_keys_and_counts_every_stored_page_once() {
    if !can_run() {
        return;
    }
    let bench = bench();
    let pid = bench.id();
    let ran = bench.wait_with_output().expect("it ends");
    let report: Value = serde_json::from_slice(&ran.stdout).expect("JSON");
    assert_eq!(ran.status.success(), report["run_kill9_ms"].is_number(), "{}: {report}", ran.status);
    let number = |path: &str| {
        report.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("no {path} in {report}"))
    };
    let released = |policy: &str| {
        let of = |key: &str| number(&format!("/policies/{policy}/{key}"));
        (of("queued"), of("inline"))
    };
    let (none, all) = released("one-at-a-time");
    assert!(none == 0.0 && all > 0.0, "{report}");
    assert_eq!(released("runs"), (0.0, all));
    for policy in ["background", "workers"] {
        let (queued, inline) = released(policy);
        assert_eq!(queued + inline, all, "{policy}");
    }
    // What closing costs is compared with owners that have the same in memory and nothing stored.
    let never = number("/never_stored/resident_bytes");
    for policy in ["one-at-a-time", "runs", "background", "workers"] {
        let resident = number(&format!("/policies/{policy}/resident_bytes"));
        assert!(never > 0.0 && (never - resident).abs() <= never / 50.0, "{policy}: {resident}, not {never}");
    }
    for key in ["compress_gib_s", "fetch_us/p50", "fetch_us/p99", "fetch_in_thread_us/p50", "waste_percent"] {
        assert!(number(&format!("/store/{key}")) > 0.0, "{key}");
    }
    if report["kernel_zram"].is_null() {
        skip("the kernel's zram", &report["kernel_zram_reason"]);
    } else {
        assert!((number("/kernel_zram/stored_percent") - 64.7).abs() < 10.0, "{report}");
        assert!(
            number("/kernel_zram/kill_never_swapped_ms") > 0.0
                && number("/ratios/close_vs_kernel_zram") > 0.0
        );
    }
    if report["run_kill9_ms"].is_null() {
        skip("pagoda run", &report["run_kill9_reason"]);
    } else {
        assert!(number("/run_kill9_stored_percent") > 25.0, "{report}");
    }
    assert_eq!(left_by(pid), Vec::<String>::new());
}

#[test]
fn asked_to_end_while_processes_wait_to_be_killed_it_leaves_nothing() {
    if !can_run() {
        return;
    }
    let mut bench = bench();
    let (pid, begun) = (bench.id(), Instant::now());
    // The directory comes with the first processes that are to be killed, whether the kernel's side can be set up or not.
    while left_by(pid).is_empty() {
        assert!(bench.try_wait().expect("our own child").is_none(), "it ended before it set anything up");
        assert!(begun.elapsed() < PATIENCE, "nothing was set up");
        std::thread::sleep(Duration::from_millis(5));
    }
    kill_process(Pid::from_child(&bench), Signal::TERM).expect("sent");
    let status = loop {
        if let Some(status) = bench.try_wait().expect("our own child") {
            break status;
        }
        assert!(begun.elapsed() < PATIENCE, "it does not end");
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(status.code(), Some(143));
    assert_eq!(left_by(pid), Vec::<String>::new());
}
