//! `pagoda bench migrate`: its keys, and those of its figures that no noise moves.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::process::Command;

use pagoda_linux::testing::skip::{skip, tell};
use serde_json::Value;

/// The other faults of the receiving threads, beside those for placing pages: a few pages of their
/// own.
const FEW: f64 = 64.0;

/// The faults of a process that does nothing but start and listen, at most. The buffers of two
/// channels would be 2,048 more if they took one for each page.
const PROCESS_MOST: f64 = 1000.0;

/// The memory of a short run, and a huge frame, of which `sparse` uses one page.
const MEMORY: f64 = (64 << 20) as f64;
const HUGE: f64 = (2 << 20) as f64;

/// Whether memory that asks for huge pages may get them.
fn has_huge_pages() -> bool {
    let setting = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    setting.is_ok_and(|setting| !setting.contains("[never]"))
}

/// The report of a short run with `path` as the PATH; none where there are no managers.
fn report_with(path: &OsStr, memory: &[&str]) -> Option<Value> {
    if !pagoda::userfaultfd_allows_managers() {
        skip("the bench of migration", "this machine offers no userfaultfd with UFFDIO_MOVE");
        return None;
    }
    let ran = Command::new(env!("CARGO_BIN_EXE_pagoda-bench"))
        .args(["migrate", "--quick", "--json"])
        .args(memory)
        .env("PATH", path)
        .env_remove("PAGODA_QEMU")
        .output()
        .expect("run");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    Some(serde_json::from_slice(&ran.stdout).expect("JSON"))
}

/// Whether any process has `word` among its arguments.
fn is_running_with(word: &str) -> bool {
    let folders = fs::read_dir("/proc").expect("/proc").flatten();
    let lines = folders.filter_map(|folder| fs::read(folder.path().join("cmdline")).ok());
    lines
        .flat_map(|line| line.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect::<Vec<_>>())
        .any(|argument| argument == word.as_bytes())
}

#[test]
fn the_bench_moves_every_case_and_counts_the_faults_of_others() {
    // A program of the name of QEMU's that sends no greeting: it is told of, and ends nothing.
    let folder = tempfile::tempdir().expect("a folder");
    std::os::unix::fs::symlink("/bin/false", folder.path().join("qemu-system-x86_64")).expect("a link");
    let Some(report) = report_with(folder.path().as_os_str(), &[]) else { return };
    let number = |path: &str| {
        report.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("no {path} in {report}"))
    };
    for codec in ["none", "lz4", "zlib", "zstd"] {
        assert!(number(&format!("/codecs/{codec}/wire_bytes")) > 0.0);
    }
    for case in ["untouched", "resident-zeros", "idle", "full", "sparse"] {
        for way in ["check-then-clear", "received-map", "drop", "placed", "huge-frames", "thp"] {
            for figure in ["total_ms", "downtime_ms"] {
                assert!(number(&format!("/cases/{case}/{way}/{figure}")) > 0.0);
            }
        }
        for ratio in ["drop_time", "placed_time", "huge_frames_time"] {
            assert!(number(&format!("/ratios/{ratio}/{case}")) > 0.0);
        }
    }
    // One fault for each page that is looked at, and none for those that were never named.
    let of = |case: &str, what: &str| number(&format!("/cases/{case}/{what}"));
    let one_each = |faults: f64, pages: f64| assert!((0.0..=FEW).contains(&(faults - pages)), "{report}");
    let zeros = of("resident-zeros", "zero_pages");
    one_each(of("resident-zeros", "check-then-clear/faults_by_cause/zero_check"), zeros);
    assert_eq!(of("resident-zeros", "received-map/faults_by_cause/zero_check"), 0.0);
    let data = of("full", "data_pages");
    one_each(of("full", "received-map/faults_by_cause/data_write"), data);
    if has_huge_pages() {
        let others = of("full", "received-map/dest_faults") - data;
        assert!(others < PROCESS_MOST, "{others} faults are not for a page: {report}");
        // In huge pages one fault brings many.
        assert!(of("full", "thp/faults_by_cause/data_write") < data / 10.0, "{report}");
    }
    // The policies differ in the policy: where they put content they fault alike.
    one_each(of("full", "drop/faults_by_cause/data_write"), data);
    for way in ["placed", "huge-frames"] {
        assert!(of("full", &format!("{way}/faults_by_cause/data_write")) < data / 10.0, "{report}");
    }
    assert!(of("untouched", "placed/wire_bytes") < 10_000.0);
    // One page of each 2 MiB, and nothing beside it that another case has filled.
    assert_eq!((of("sparse", "data_pages"), of("sparse", "zero_pages")), (MEMORY / HUGE, 0.0));
    assert_eq!((of("untouched", "data_pages"), of("untouched", "zero_pages")), (0.0, 0.0));
    // The ways by which arrived pages came to their places, all of them.
    for way in ["placed", "huge-frames"] {
        let (moved, copied) = (format!("{way}/moved_bytes"), format!("{way}/copied_bytes"));
        let arrived = of("full", &moved) + of("full", &copied);
        assert!((0.9..=1.0).contains(&(arrived / (data * 4096.0))), "{way}: {report}");
    }
    assert_eq!(of("full", "drop/moved_bytes") + of("full", "drop/copied_bytes"), 0.0);
    // Sparse content takes no huge frames, wherever it arrives.
    let sparse = of("sparse", "huge-frames/dest_rss") - of("untouched", "huge-frames/dest_rss");
    assert!(sparse < 1_048_576.0, "{report}");
    assert_eq!(number("/stored/reinflated_pages"), 0.0);
    assert!(number("/wire/bytes_per_zero_page") < 1.0);
    assert!(number("/wire/memory_read_gib_s") > 0.0 && number("/ratios/zero_scan_of_memory") > 0.0);
    for side in ["pagoda", "thp"] {
        assert!(number(&format!("/sizes/64/{side}/total_ms")) > 0.0);
    }
    assert!(report["sizes"]["64"]["ratio_vs_qemu"].is_null(), "{report}");
    assert!(report["qemu"].is_null(), "{report}");
    let why = report["qemu_reason"].as_str().expect("a reason");
    assert!(!why.is_empty(), "{report}");
    assert!(report.pointer("/ratios/full_to_qemu_rate").is_none());
    for figure in ["postcopy_downtime_ms", "max_fault_us", "fully_resident_ms"] {
        assert!(number(&format!("/live/{figure}")) > 0.0, "{figure}");
    }
    assert!(number("/postcopy/read_us_max") >= number("/postcopy/read_us_p999") / 1.01, "{report}");
    assert!(number("/recovery/points") >= 4.0 && number("/tls_ratio") > 0.0, "{report}");
    assert_eq!((number("/recovery/lost"), number("/recovery/twice")), (0.0, 0.0), "{report}");
    assert!(number("/live/rounds") >= 1.0 && number("/loopback_limit_gib_s") > 0.0);
}

#[test]
fn qemu_moves_the_same_memory_and_is_gone_afterwards() {
    const QEMU: &str = "qemu-system-x86_64";
    let path = env::var_os("PATH").unwrap_or_default();
    if !env::split_paths(&path).any(|folder| folder.join(QEMU).is_file()) {
        // Also where no other test may be skipped: it is far larger than all else that tests need
        // together.
        return tell("QEMU beside the bench of migration", format!("{QEMU} is not on the PATH"));
    }
    // A size that no other test has.
    let Some(report) = report_with(&path, &["--memory", "70M", "--sizes", "70M"]) else { return };
    let number = |path: &str| {
        report.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("no {path} in {report}"))
    };
    assert!(report["qemu"]["version"].as_str().is_some_and(|version| version.contains('.')), "{report}");
    assert!(report["qemu_reason"].is_null(), "{report}");
    for case in ["untouched", "full"] {
        assert!(number(&format!("/qemu/{case}/total_ms")) > 0.0);
        assert!(number(&format!("/qemu/{case}/dest_faults")) > 0.0);
    }
    // All of its content went over.
    let content = number("/cases/full/data_pages") * 4096.0;
    assert!(number("/qemu/full/wire_bytes") > content && number("/qemu/full/dest_rss") > content, "{report}");
    assert!(number("/qemu/downtime_ms") >= 0.0 && number("/sizes/70/ratio_vs_qemu") > 0.0, "{report}");
    if has_huge_pages() {
        assert!(number("/qemu/thp") > 0.5, "{report}");
    }
    assert!(number("/ratios/untouched_to_qemu_time") > 0.0 && number("/ratios/full_to_qemu_rate") > 0.0);
    assert!(!is_running_with(&format!("{}k", 70 << 10)), "one was left behind");
}
