use super::super::STORED_PERCENT;
use super::super::killed::Killed;
use super::super::store::Stored;
use super::super::trial::Outcome;
use super::*;
use crate::measure::histogram::Percentiles;
use crate::report::keys::expect_told;
use crate::suites::release::KEYS;
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

fn report(kernel: bool) -> Report {
    let trial = Trial {
        owners: 2,
        owner: Bytes::mib(32),
        base: BasePage::K64,
        stored_percent: STORED_PERCENT,
        starter: true,
    };
    let [one, runs, background, workers] = ReleasePolicy::ALL.map(Kind::Policy);
    let outcomes = vec![
        (one, vec![outcome(20.0, 40.0)]),
        (runs, vec![outcome(18.0, 40.0)]),
        (background, vec![outcome(11.0, 30.0)]),
        (workers, vec![outcome(10.5, 20.0)]),
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
    let measured = Rounds { outcomes, kills, stored: vec![stored()], aging: aging.to_vec() };
    Report::new(trial, 1, true, &measured, Quiet::begin().end(), Machine::this()).expect("measured")
}

#[test]
fn json_has_the_documented_keys_and_ratios() {
    let json = crate::report::json::json(&report(true)).expect("json");
    expect_told("release", KEYS, &json);
    assert_eq!((&json["bench"], &json["owners"]), (&"release".into(), &2.into()));
    assert_eq!(json["aging"]["stored_percent"], serde_json::json!([30.9, 57.0, 64.0, 64.7, 64.7]));
    for policy in ReleasePolicy::ALL.map(ReleasePolicy::name) {
        assert_eq!(json["aging"]["close_ms"][policy], serde_json::json!([2.0, 2.0, 2.0, 2.0, 2.0]));
        let keys = [
            "close_ms_p50",
            "close_ms_p99",
            "extra_ms",
            "frames_back_ms",
            "stored_back_ms",
            "starter_start_ms",
            "starter_work_ms",
            "cpu_ms",
            "lock_wait_ms",
            "peak_queued_bytes",
            "inline",
        ];
        assert!(keys.iter().all(|key| json["policies"][policy][key].is_number()), "{json}");
    }
    assert_eq!(json["never_stored"]["close_ms_p50"], 11.0);
    assert_eq!(json["policies"]["one-at-a-time"]["extra_ms"], 10.0);
    let range =
        |of: &Value, key: &str| [of[format!("{key}_least")].clone(), of[format!("{key}_most")].clone()];
    assert_eq!(range(&json["policies"]["one-at-a-time"], "extra_ms"), [10.0, 10.0]);
    assert_eq!(range(&json["aging"]["close_ms"], "runs").map(|all| all[0].clone()), [1.0, 3.0]);
    assert_eq!(range(&json["store"]["fetch_us"], "p50"), [40.0, 40.0]);
    assert_eq!(
        (&json["never_stored"]["resident_bytes"], &json["policies"]["runs"]["resident_bytes"]),
        (&11.into(), &11.into())
    );
    assert_eq!(json["policies"]["one-at-a-time"]["close_ms_p99"], 22.0);
    let ratios = &json["ratios"];
    assert_eq!(ratios["extra_background_vs_one"], 0.1);
    assert_eq!(ratios["starter_background_vs_one"], 0.75);
    assert_eq!(range(ratios, "starter_workers_vs_one"), [0.5, 0.5]);
    assert_eq!(range(ratios, "starter_work_background_vs_one"), [0.75, 0.75]);
    assert_eq!(ratios["close_background_vs_never_stored"], 1.091);
    assert_eq!(ratios["cpu_workers_vs_one"], 0.525);
    assert_eq!(ratios["stored_back_workers_vs_one"], 0.525);
    let zram = &json["kernel_zram"];
    assert_eq!((&zram["kill_ms"], &zram["kill_never_swapped_ms"]), (&120.0.into(), &10.0.into()));
    assert_eq!((&json["run_kill9_ms"], &json["run_kill9_stored_percent"]), (&30.0.into(), &64.0.into()));
    assert_eq!(
        (&ratios["close_vs_kernel_zram"], &ratios["kernel_zram_vs_never_swapped"]),
        (&0.1.into(), &12.0.into())
    );
    assert_eq!(range(ratios, "close_vs_kernel_zram"), [0.1, 0.1]);
    let store = &json["store"];
    assert_eq!((&store["compress_gib_s"], &store["waste_percent"]), (&1.5.into(), &3.5.into()));
    assert_eq!(store["compress_cpu_gib_s"], 1.75);
    assert_eq!((&store["fetch_us"]["p50"], &store["fetch_us"]["p99"]), (&40.0.into(), &80.0.into()));
}

#[test]
fn the_table_names_every_policy_and_how_quiet_it_was() {
    let table = report(true).table();
    for policy in ReleasePolicy::ALL.map(ReleasePolicy::name) {
        assert!(table.contains(policy), "{table}");
    }
    assert!(table.contains("others used"), "{table}");
}

#[test]
fn what_can_not_be_killed_is_null_and_has_a_reason() {
    let report = report(false);
    let json = crate::report::json::json(&report).expect("json");
    for (key, reason) in [("kernel_zram", "not root"), ("run_kill9_ms", "no userfaultfd")] {
        assert!(json.as_object().expect("an object").contains_key(key) && json[key].is_null(), "{key}");
        assert!(report.table().contains(reason), "{}", report.table());
    }
    assert_eq!(json["kernel_zram_reason"], "not root");
    assert_eq!(json["run_kill9_reason"], "no userfaultfd");
    assert!(json["ratios"]["close_vs_kernel_zram"].is_null());
    assert!(json["ratios"].get("close_vs_kernel_zram_least").is_none());
}

/// The middle of differences and of quotients is that of the rounds, and not of their middles.
#[test]
fn what_is_extra_is_told_by_round() {
    let never: Vec<Outcome> = [10.0, 50.0, 12.0].map(|ms| outcome(ms, 1.0)).into();
    let closed: Vec<Outcome> = [11.0, 51.0, 15.0].map(|ms| outcome(ms, 1.0)).into();
    let figures = Figures::of(&closed, &never).expect("rounds");
    assert_eq!(figures.extra_ms, Measured { median: 1.0, least: 1.0, most: 3.0 });
    assert_eq!(figures.close_ms_p99, Measured { median: 53.0, least: 13.0, most: 53.0 });
}
