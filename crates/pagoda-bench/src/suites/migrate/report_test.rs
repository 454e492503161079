use std::time::Duration;

use clap::{Args, FromArgMatches};
use pagoda::migrate::{Counts, Moved};

use super::*;
use crate::report::json::report;
use crate::report::keys::expect_told;
use crate::suites::migrate::cut_line::Seen;
use crate::suites::migrate::destination::Arrived;
use crate::suites::migrate::{KEYS, MigrateArgs};

/// An outcome of moving 64 MiB of `case`.
fn outcome_of(case: Case) -> Outcome {
    let count = |used| (0..1 << 14).filter(|page| case.uses(*page) == Some(used)).count() as u64;
    let counts = Counts { data_pages: count(true), zero_pages: count(false), ..Counts::default() };
    let moved = Moved { counts, pace: Pace::default(), downtime: Duration::ZERO, owed_for: None };
    let (arrived, seen) = (Arrived::default(), Seen::default());
    Outcome { moved, arrived, seen, took: Duration::from_millis(1), cpu_ms: 1.0 }
}

fn run(total_ms: f64) -> QemuRun {
    QemuRun {
        total_ms,
        dest_faults: 7,
        dest_rss_bytes: 1 << 20,
        dest_huge_part: 0.5,
        wire_bytes: 10,
        downtime_ms: 3.0,
        data_pages: 1 << 18,
    }
}

#[test]
fn each_key_is_in_the_help_and_figures_are_medians() {
    let full = outcome_of(Case::Full);
    let measured = Outcomes {
        cases: Case::ALL.map(|case| (case, Way::ALL.map(|way| (way, vec![outcome_of(case)])).into())).into(),
        codecs: Codec::ALL.map(|codec| (codec, vec![full])).into(),
        tls: vec![full],
        live: vec![full],
        late: vec![full],
        recovery: Recovery::default(),
        throttled: PERCENT
            .map(|percent| Throttled { percent, outcome: full, before_s: 2.0, during_s: Some(1.0) })
            .into(),
        stored: vec![full],
        limits: vec![1.0],
        sizes: vec![Sized {
            memory: Bytes::mib(64),
            pagoda: vec![full],
            thp: vec![full],
            qemu: vec![run(2000.0)],
        }],
        qemu: Ok(QemuRuns {
            version: "7.2".to_owned(),
            untouched: vec![run(100.0), run(900.0), run(200.0)],
            full: vec![run(500.0)],
        }),
        scan: Some(Scan { cached_gib_s: 1.0, memory_gib_s: 1.0, memory_read_gib_s: 1.0 }),
    };
    let mut report = report("migrate", true, figures(&measured, Bytes::mib(64), 1));
    expect_told("migrate", KEYS, &report);
    assert_eq!([&report["qemu"]["untouched"]["total_ms"], &report["qemu"]["full"]["gib_s"]], [200.0, 2.0]);
    assert_eq!(report["ratios"]["untouched_to_qemu_time"], 0.005);
    assert_eq!([&report["qemu"]["thp"], &report["qemu"]["downtime_ms"]], [0.5, 3.0]);
    // 56 MiB in a ms, over half a GiB a second.
    assert_eq!(report["sizes"]["64"]["ratio_vs_qemu"], 109.375);
    assert!(table(&report).contains("| full           |            | QEMU 7.2"), "{}", table(&report));
    // A part alone has its own line and no other.
    let only = MigrateArgs::augment_args(clap::Command::new("migrate"));
    let only = only.try_get_matches_from(["migrate", "--only", "throttled"]).expect("options");
    MigrateArgs::from_arg_matches(&only).expect("options").leave_out(&mut report);
    let text = table(&report);
    let lines: Vec<_> = text.lines().filter(|line| !line.starts_with('|') && !line.is_empty()).collect();
    assert!(matches!(lines[..], [line] if line.starts_with("throttled: a writer of 2 pages/s")), "{text}");
}
