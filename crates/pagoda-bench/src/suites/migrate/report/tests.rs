//! The report of rounds that never were, but have everything that a round has.

use std::time::Duration;

use pagoda::migrate::{Codec, Counts, Moved, Pace};
use pagoda_core::size::Bytes;

use super::super::cases::Case;
use super::super::destination::Arrived;
use super::super::qemu::{QemuRun, QemuRuns};
use super::super::trial::Outcome;
use super::super::{KEYS, Way};
use super::{Outcomes, Report, Scan, Setting};
use crate::measure::machine::Machine;
use crate::report::keys::expect_told;

/// What moving 64 MiB of `case` took.
fn outcome_of(case: Case) -> Outcome {
    let count = |used| (0..1 << 14).filter(|page| case.uses(*page) == Some(used)).count() as u64;
    let counts = Counts { data_pages: count(true), zero_pages: count(false), ..Counts::default() };
    let moved = Moved { counts, pace: Pace::default(), downtime: Duration::ZERO, owed_for: None };
    Outcome { moved, arrived: Arrived::default(), took: Duration::from_millis(1), cpu_ms: 1.0 }
}

#[test]
fn each_key_is_in_the_help_and_in_the_figures_of_the_page() {
    let run = QemuRun { total_ms: 1.0, dest_faults: 1, dest_rss_bytes: 1, wire_bytes: 1, data_pages: 1 };
    let full = outcome_of(Case::Full);
    let measured = Outcomes {
        cases: Case::ALL.map(|case| (case, Way::ALL.map(|way| (way, vec![outcome_of(case)])).into())).into(),
        codecs: Codec::ALL.map(|codec| (codec, vec![full])).into(),
        live: vec![full],
        late: vec![full],
        stored: vec![full],
        limits: vec![1.0],
        qemu: Ok(QemuRuns { version: "7.2".to_owned(), untouched: vec![run], full: vec![run] }),
        scan: Scan { cached_gib_s: 1.0, memory_gib_s: 1.0, memory_read_gib_s: 1.0 },
    };
    let setting = Setting { memory: Bytes::mib(64), rounds: 1, quick: true };
    let report = Report::new(&setting, &measured, Machine::this()).expect("a round");
    expect_told("migrate", KEYS, &crate::report::json::json(&report).expect("json"));
}
