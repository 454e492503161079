//! `pagoda bench migrate`: its keys, and those of its figures that no noise moves.

use std::process::Command;

use serde_json::Value;

/// The pages of the two channels' buffers, which are touched for the first time, too.
const BUFFER_PAGES: f64 = 2.0 * 512.0;

#[test]
fn the_bench_moves_every_case_and_counts_what_others_fault_for() {
    if !pagoda::userfaultfd_allows_managers() {
        assert!(std::env::var_os("PAGODA_NO_SKIPS").is_none(), "skipping is not allowed here");
        eprintln!("SKIPPED the bench of migration: this machine offers no userfaultfd with UFFDIO_MOVE");
        return;
    }
    let ran = Command::new(env!("CARGO_BIN_EXE_pagoda"))
        .args(["bench", "migrate", "--quick", "--json"])
        .output()
        .expect("run");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let report: Value = serde_json::from_slice(&ran.stdout).expect("JSON");
    let number = |path: &str| {
        report.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("no {path} in {report}"))
    };
    for codec in ["none", "lz4", "zlib", "zstd"] {
        assert!(number(&format!("/codecs/{codec}/wire_bytes")) > 0.0);
    }
    for case in ["untouched", "resident-zeros", "idle", "full", "sparse"] {
        for policy in ["check-then-clear", "received-map", "drop"] {
            assert!(number(&format!("/cases/{case}/{policy}/total_ms")) > 0.0);
        }
    }
    // One fault for each page that is looked at, and none for those that were never named.
    let of = |case: &str, what: &str| number(&format!("/cases/{case}/{what}"));
    let one_each =
        |faults: f64, pages: f64| assert!((0.0..=BUFFER_PAGES).contains(&(faults - pages)), "{report}");
    let zeros = of("resident-zeros", "zero_pages");
    one_each(of("resident-zeros", "check-then-clear/faults_by_cause/zero_check"), zeros);
    assert_eq!(of("resident-zeros", "received-map/faults_by_cause/zero_check"), 0.0);
    let data = of("full", "data_pages");
    one_each(of("full", "received-map/faults_by_cause/data_write"), data);
    assert!(of("full", "drop/faults_by_cause/data_write") < data / 10.0, "{report}");
    assert!(of("untouched", "drop/wire_bytes") < 10_000.0);
    assert_eq!(number("/stored/reinflated_pages"), 0.0);
    assert!(number("/wire/bytes_per_zero_page") < 1.0);
    assert!(report["qemu"].is_null() && report["qemu_reason"].is_string());
    for figure in ["postcopy_downtime_ms", "max_fault_us", "fully_resident_ms"] {
        assert!(number(&format!("/live/{figure}")) > 0.0, "{figure}");
    }
    assert!(number("/live/rounds") >= 1.0 && number("/loopback_limit_gib_s") > 0.0);
}
