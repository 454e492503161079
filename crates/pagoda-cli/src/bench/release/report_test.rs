use super::super::trial::{Kind, Outcome, Trial};
use super::*;
use pagoda_core::page::BasePage;

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
    }
}

fn report() -> Report {
    let trial = Trial {
        owners: 2,
        owner: Bytes::mib(32),
        base: BasePage::K64,
        stored_percent: STORED_PERCENT,
        starter: true,
    };
    let [one, runs, background, workers] = ReleasePolicy::ALL.map(Kind::Policy);
    let outcomes = [
        (one, vec![outcome(20.0, 40.0)]),
        (runs, vec![outcome(18.0, 40.0)]),
        (background, vec![outcome(11.0, 30.0)]),
        (workers, vec![outcome(10.5, 20.0)]),
        (Kind::NeverStored, vec![outcome(10.0, 20.0)]),
        (Kind::StarterAlone, vec![outcome(0.0, 20.0)]),
    ];
    let aging = ReleasePolicy::ALL.map(|policy| (policy, vec![vec![1.0, 3.0, 2.0]; AGING_PERCENT.len()]));
    Report::new(trial, 1, true, &outcomes, &aging, Quiet::begin().end(), Machine::this()).expect("measured")
}

#[test]
fn json_has_the_documented_keys_and_ratios() {
    let json = serde_json::to_value(report()).expect("json");
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
    assert_eq!(json["policies"]["one-at-a-time"]["close_ms_p99"], 22.0);
    let ratios = &json["ratios"];
    assert_eq!(ratios["extra_background_vs_one"], 0.1);
    assert_eq!(ratios["starter_background_vs_one"], 0.75);
    assert_eq!(ratios["cpu_workers_vs_one"], 0.525);
    assert_eq!(ratios["stored_back_workers_vs_one"], 0.525);
}

#[test]
fn the_table_names_every_policy_and_how_quiet_it_was() {
    let table = report().table();
    for policy in ReleasePolicy::ALL.map(ReleasePolicy::name) {
        assert!(table.contains(policy), "{table}");
    }
    assert!(table.contains("others used"), "{table}");
}
