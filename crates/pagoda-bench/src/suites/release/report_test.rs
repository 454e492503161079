//! Tests of the report: rounds with known figures, and the ratios and differences of them. Never
//! measures.

use super::*;
use crate::report::json;
use crate::report::keys::expect_told;
use crate::suites::release::layouts::{Layouts, Order};
use crate::suites::release::quiet::Quiet;
use crate::suites::release::{KEYS, STORED_PERCENT, table};
use pagoda_core::page::BasePage;
use pagoda_core::size::Bytes;

fn outcome(close_ms: f64, starter_ms: f64) -> Outcome {
    Outcome {
        close_ms: vec![close_ms, close_ms + 2.0],
        frames_back_ms: 3.0,
        stored_back_ms: close_ms,
        starter_start_ms: starter_ms,
        starter_work_ms: starter_ms,
        cpu_ms: close_ms,
        in_close_ms: close_ms / 2.0,
        lock_wait_ms: 0.5,
        peak_queued_bytes: 7,
        queued: 8,
        inline: 9,
        early: 0,
        locks: 10,
        resident_bytes: 11,
    }
}

fn killed(gone_ms: f64) -> Killed {
    Killed {
        gone_ms: vec![gone_ms, gone_ms + 2.0],
        back_ms: gone_ms + 3.0,
        stored_percent: 64.0,
        starter_start_ms: 5.0,
        starter_work_ms: 6.0,
    }
}

fn stored() -> Stored {
    let us = |p50| Percentiles { p50, p99: 2.0 * p50, p999: 3.0 * p50 };
    Stored {
        compress_gib_s: 1.5,
        compress_cpu_gib_s: 1.75,
        fetch_us: us(40.0),
        fetch_first_us: us(20.0),
        fetch_in_thread_us: us(30.0),
        fetch_first_in_thread_us: us(10.0),
        waste_percent: 3.5,
    }
}

fn report(kernel: bool) -> Value {
    let trial = Trial {
        owners: 2,
        owner: Bytes::mib(32),
        base: BasePage::K64,
        stored_percent: STORED_PERCENT,
        order: Order::ByAddress,
        starter: true,
    };
    let [one, runs, background, workers, spans] = ReleasePolicy::ALL.map(Kind::Policy);
    let outcomes = vec![
        (one, vec![outcome(20.0, 40.0)]),
        (runs, vec![outcome(18.0, 40.0)]),
        (background, vec![outcome(11.0, 30.0)]),
        (workers, vec![outcome(10.5, 20.0)]),
        (spans, vec![outcome(10.0, 20.0)]),
        (Kind::NeverStored, vec![outcome(10.0, 20.0)]),
        (Kind::StarterAlone, vec![outcome(0.0, 20.0)]),
    ];
    let aging = ReleasePolicy::ALL.map(|policy| (policy, vec![vec![1.0, 3.0, 2.0]; AGING_PERCENT.len()]));
    let ran = |gone_ms| Kills { killed: vec![killed(gone_ms)], reason: None };
    let kills = if kernel {
        [ran(119.0), ran(9.0), ran(29.0)]
    } else {
        let not = |why: &str| Kills { killed: Vec::new(), reason: Some(why.to_owned()) };
        [not("not root"), Kills::default(), not("no userfaultfd")]
    };
    let quiet = Quiet::begin().end();
    let unmapping =
        Unmapping { unmapped_ms: 1.0, longest_beside_us: 200.0, longest_alone_us: 100.0, exit_ms: 5.0 };
    let measured = Rounds {
        outcomes,
        kills,
        stored: vec![stored()],
        aging: aging.to_vec(),
        layouts: Layouts::canned(outcome),
        unmapping: vec![unmapping],
        unmapping_reason: None,
        quiet,
    };
    json::report("release", true, measured.figures(trial, 1))
}

#[test]
fn json_has_the_documented_keys_and_ratios() {
    let json = report(true);
    expect_told("release", KEYS, &json);
    for (path, value) in [
        ("never_stored/close_ms_p50", 11.0),
        ("policies/one-at-a-time/close_ms_p99", 22.0),
        ("policies/one-at-a-time/extra_ms", 10.0),
        ("policies/one-at-a-time/extra_ms_least", 10.0),
        ("policies/runs/resident_bytes", 11.0),
        ("aging/close_ms/runs/4", 2.0),
        ("aging/close_ms/runs_least/0", 1.0),
        ("aging/close_ms/runs_most/0", 3.0),
        ("ratios/extra_background_vs_one", 0.1),
        ("ratios/extra_spans_vs_one", 0.0),
        ("layouts/shuffled/4K/spans/extra_vs_one", 0.1),
        ("layouts/rewritten/64K/background/close_ms", 12.0),
        ("longest_fault_wait_beside_munmap_us", 200.0),
        ("exit_spilled_ms", 5.0),
        ("ratios/starter_background_vs_one", 0.75),
        ("ratios/starter_workers_vs_one_least", 0.5),
        ("ratios/starter_work_background_vs_one_most", 0.75),
        ("ratios/close_background_vs_never_stored", 1.091),
        ("ratios/cpu_workers_vs_one", 0.525),
        ("ratios/stored_back_workers_vs_one", 0.525),
        ("ratios/close_vs_kernel_zram", 0.1),
        ("ratios/kernel_zram_vs_never_swapped", 12.0),
        ("kernel_zram/kill_ms", 120.0),
        ("kernel_zram/kill_never_swapped_ms", 10.0),
        ("run_kill9_ms", 30.0),
        ("run_kill9_stored_percent", 64.0),
        ("store/compress_cpu_gib_s", 1.75),
        ("store/fetch_us/p50_most", 40.0),
        ("store/fetch_us/p99", 80.0),
    ] {
        let found = json.pointer(&format!("/{path}")).and_then(Value::as_f64);
        assert_eq!(found, Some(value), "{path}");
    }
    let table = table::table(&json);
    let names = ReleasePolicy::ALL.map(ReleasePolicy::name);
    assert!(names.iter().all(|policy| table.contains(policy)) && table.contains("others used"), "{table}");
}

#[test]
fn what_can_not_be_killed_is_null_and_has_a_reason() {
    let json = report(false);
    for (key, reason) in [("kernel_zram", "not root"), ("run_kill9_ms", "no userfaultfd")] {
        assert!(json.as_object().expect("an object").contains_key(key) && json[key].is_null(), "{key}");
        assert!(table::table(&json).contains(reason), "{}", table::table(&json));
    }
    assert_eq!(json["kernel_zram_reason"], "not root");
    assert_eq!(json["run_kill9_reason"], "no userfaultfd");
    let ratios = json["ratios"].as_object().expect("an object");
    assert!(ratios["close_vs_kernel_zram"].is_null() && !ratios.contains_key("close_vs_kernel_zram_least"));
}

/// The median of differences and of quotients is over rounds; it is not that of medians.
#[test]
fn what_is_extra_is_told_by_round() {
    let never = [10.0, 50.0, 12.0].map(|ms| outcome(ms, 1.0));
    let closed = [11.0, 51.0, 15.0].map(|ms| outcome(ms, 1.0));
    assert_eq!(extra_ms(&closed, &never), Some(Measured { median: 1.0, least: 1.0, most: 3.0 }));
    let p99 = of_all(&closed, |outcome| &outcome.close_ms, p99);
    assert_eq!(p99, Some(Measured { median: 53.0, least: 13.0, most: 53.0 }));
}
