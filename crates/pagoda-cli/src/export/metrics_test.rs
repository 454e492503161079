//! Every answer is one that a strict reader takes, whatever processes are called, and has the
//! counters of its trees.

use std::time::Instant;

use pagoda::stats::latencies::Latencies;
use pagoda::tree::{MemberView, RegionView, RegionsView, View};
use pagoda_linux::process::identity::Identity;

use super::*;

#[path = "../../tests/support/openmetrics.rs"]
mod openmetrics;

use openmetrics::{Family, Labels};

fn member(pid: u32, held_bytes: u64) -> MemberView {
    let counters = crate::stats_with(Stats::default(), |stats| stats.held_bytes = held_bytes);
    let identity = Identity::new(pid, 1).expect("fits");
    MemberView { identity, is_first: pid == 100, counters, latencies: Latencies::default() }
}

fn tree(file: &str, name: &str, regions: Option<RegionsView>) -> Tree {
    let totals = crate::stats_with(Stats::default(), |stats| {
        stats.budget_bytes = 64 << 20;
        stats.evictions = 12;
        stats.refault_wait_ns = 1_500_000_000;
        stats.zone0_bytes = 40 << 20;
        stats.zone1_bytes = 24 << 20;
        stats.zone1_allocated_bytes = 5;
        stats.zones_resets = 3;
    });
    let faults = [
        (FaultKind::Zero, 500),
        (FaultKind::Zero, 1_023),
        (FaultKind::Spilled, 1_024),
        (FaultKind::Spilled, u64::MAX),
    ];
    let members = vec![member(100, 7), member(101, 9)];
    let view =
        View { totals, latencies: Latencies::of_faults(&faults), claimed: Bytes::mib(60), members, regions };
    Tree { path: file.into(), maker: 99, view, names: vec![name.to_owned(), "child".to_owned()] }
}

fn families_of(trees: Vec<Tree>) -> std::collections::BTreeMap<String, Family> {
    let look = Look { at: Instant::now(), trees, rejected: vec!["a file".to_owned()] };
    let text = render(&look, &[], Format::OpenMetrics);
    openmetrics::read(&text).unwrap_or_else(|why| panic!("{why}\n{text}"))
}

/// The value of the one sample that has these labels.
fn value(family: &Family, of: &[(&str, &str)]) -> f64 {
    let has =
        |labels: &Labels| of.iter().all(|(name, value)| labels.get(*name).is_some_and(|is| is == value));
    let mut found = family.samples.iter().filter(|(_, labels, _)| has(labels));
    let (Some(one), None) = (found.next(), found.next()) else { panic!("{of:?} of {family:?}") };
    one.2
}

#[test]
fn faults_are_counted_by_kind_and_by_how_long_they_took() {
    let families = families_of(vec![tree("/run/pagoda-99-1-0", "sort", None)]);
    let faults = &families["pagoda_faults"];
    assert_eq!((value(faults, &[("kind", "zero")]), value(faults, &[("kind", "spilled")])), (2.0, 2.0));
    let took = &families["pagoda_fault_duration_seconds"];
    let until = |kind, most| value(took, &[("kind", kind), ("le", most), ("tree", "99-1-0")]);
    assert_eq!((until("zero", "0.000001023"), until("spilled", "0.000001023")), (2.0, 0.0));
    assert_eq!((until("spilled", "0.000002047"), until("spilled", "+Inf")), (1.0, 2.0));
    assert_eq!(value(&families["pagoda_refault_wait_seconds"], &[]), 1.5);
    assert_eq!(families["pagoda_evictions"].samples[0].0, "pagoda_evictions_total");
    assert_eq!(value(&families["pagoda_files_rejected"], &[]), 1.0);
}

#[test]
fn every_counter_is_a_metric_once() {
    let families = families_of(vec![tree("/run/pagoda-99-1-0", "sort", None)]);
    for counter in Counter::ALL {
        let name = counter.name().replace("_ns", "_seconds");
        let is_there = families.contains_key(&format!("pagoda_{name}"));
        let is_in_another =
            name.starts_with("faults_") || name.starts_with("zone0") || !stands_alone(counter);
        assert!(is_there || is_in_another, "{name}");
    }
    for name in ["budget_bytes", "faults_throttled", "zones_resets", "left_locked_bytes"] {
        assert!(!families[&format!("pagoda_{name}")].samples.is_empty(), "{name}");
    }
    assert!(!families.contains_key("pagoda_owner_pid") && !families.contains_key("pagoda_faults_zero"));
}

#[test]
fn zones_processes_and_regions_have_a_label_each() {
    let region =
        RegionView { start: 0x7000, len: Bytes::mib(4), stored: Bytes::mib(1), ..Default::default() };
    let regions = RegionsView { all: 1, shown: vec![region] };
    let families = families_of(vec![
        tree("/run/pagoda-99-1-0", "sort", None),
        tree("/run/pagoda-99-2-0", "server", Some(regions)),
    ]);
    let at = ("tree", "99-2-0");
    assert_eq!(value(&families["pagoda_zone_allocated_bytes"], &[at, ("zone", "1")]), 5.0);
    assert_eq!(families["pagoda_zone_bytes"].samples.len(), 4);
    assert_eq!(value(&families["pagoda_process_held_bytes"], &[at, ("pid", "101"), ("name", "child")]), 9.0);
    assert_eq!(
        value(&families["pagoda_region_stored_bytes"], &[at, ("region", "0x7000")]),
        f64::from(1 << 20)
    );
    assert_eq!(value(&families["pagoda_tree"], &[at, ("kind", "library"), ("program", "server")]), 1.0);
}

#[test]
fn neither_a_name_nor_a_file_that_is_found_twice_breaks_the_answer() {
    let name = "a\"},\\{b=\"\u{e9}";
    let families =
        families_of(vec![tree("/run/pagoda-99-1-0", name, None), tree("/tmp/pagoda-99-1-0", name, None)]);
    assert_eq!(value(&families["pagoda_evictions"], &[("program", name)]), 12.0);
    assert!(families_of(Vec::new())["pagoda_evictions"].samples.is_empty());
}

#[test]
fn of_many_processes_those_that_hold_most_are_told() {
    let mut many = tree("/run/pagoda-99-1-0", "make", None);
    many.view.members = (0..200).map(|at| member(1000 + at, u64::from(at))).collect();
    many.names = vec!["cc".to_owned(); 200];
    let families = families_of(vec![many]);
    let told = &families["pagoda_process_held_bytes"].samples;
    assert_eq!(told.len(), PROCESSES_MAX);
    assert!(told.iter().all(|(_, _, held)| *held >= 200.0 - PROCESSES_MAX as f64));
}

/// The dashboard's own.
const DASHBOARD: &str = include_str!("../../../../docs/grafana.json");

#[test]
fn the_dashboard_asks_for_metrics_that_there_are() {
    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).expect("JSON");
    let families = families_of(vec![tree("/run/pagoda-99-1-0", "sort", None)]);
    let known = |name: &str| {
        ["", "_total", "_info", "_bucket"]
            .iter()
            .any(|suffix| name.strip_suffix(suffix).is_some_and(|family| families.contains_key(family)))
    };
    let panels = dashboard["panels"].as_array().expect("panels");
    let mut asked = 0;
    for target in panels.iter().flat_map(|panel| panel["targets"].as_array().expect("targets")) {
        let expression = target["expr"].as_str().expect("an expression");
        let is_word = |char: char| char.is_ascii_alphanumeric() || char == '_';
        for name in expression.split(|char| !is_word(char)).filter(|word| word.starts_with("pagoda_")) {
            assert!(known(name), "{name} in {expression}");
            asked += 1;
        }
    }
    assert!(asked >= 10, "{asked}");
}
