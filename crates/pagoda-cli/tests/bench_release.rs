//! `pagoda bench release`: its keys, its figures that no noise moves, and that it leaves the
//! machine as it was. Never checks a time.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pagoda_linux::testing::skip::skip;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

#[path = "support/bench_left.rs"]
mod bench_left;

use bench_left::left_by;

/// The limit of a wait, reached only by a test that fails.
const PATIENCE: Duration = Duration::from_secs(180);

fn can_run() -> bool {
    let can = pagoda::userfaultfd_allows_managers();
    if !can {
        skip("the bench of releasing", "this machine offers no userfaultfd with UFFDIO_MOVE");
    }
    can
}

fn bench() -> Child {
    Command::new(env!("CARGO_BIN_EXE_pagoda-bench"))
        .args(["release", "--quick", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts")
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
    for policy in ["background", "workers", "spans"] {
        let (queued, inline) = released(policy);
        assert_eq!(queued + inline, all, "{policy}");
    }
    assert_eq!(released("spans"), (all, 0.0));
    for layout in ["in_order", "shuffled", "rewritten"] {
        for base in ["4K", "64K"] {
            for policy in ["background", "spans"] {
                let of = |key: &str| number(&format!("/layouts/{layout}/{base}/{policy}/{key}"));
                assert_eq!((of("queued_percent"), of("inline")), (100.0, 0.0), "{layout} {base} {policy}");
            }
        }
    }
    if !report["exit_spilled_ms"].is_null() {
        assert!(number("/longest_fault_wait_beside_munmap_us") > 0.0 && number("/munmap_ms") > 0.0);
    }
    // The cost of closing is compared with owners of the same resident memory and nothing stored.
    let never = number("/never_stored/resident_bytes");
    for policy in ["one-at-a-time", "runs", "background", "workers", "spans"] {
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
    // The directory appears with the first processes to be killed, whether the kernel's side can be
    // set up or not.
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
