//! Bars of `pagoda bench migrate`. Pure.

use serde_json::Value;

use super::super::svg::{Chart, Side};
use super::{Bars, GIB_S};

const CASES: [&str; 5] = ["untouched", "resident-zeros", "idle", "full", "sparse"];

const WAYS: [(&str, Side); 5] = [
    ("check-then-clear", Side::Baseline),
    ("received-map", Side::Pagoda),
    ("drop", Side::Pagoda),
    ("placed", Side::Pagoda),
    ("huge-frames", Side::Pagoda),
];

/// What the received map did to QEMU, 64 GB over 2 channels: faults and ms before, and with it.
const fn published(case: &str) -> Option<[(f64, f64); 2]> {
    match case.as_bytes() {
        b"idle" => Some([(121_357.0, 7771.0), (2716.0, 7335.0)]),
        b"full" => Some([(2_672_677.0, 12_987.0), (52_967.0, 16_825.0)]),
        _ => None,
    }
}

/// Of `pagoda bench migrate`.
pub fn migrate(json: &Value) -> Vec<Chart> {
    let of = |case: &str, key: &str, published: Option<[f64; 2]>| {
        let ours = WAYS.iter().fold(Bars::of(json), |bars, (way, side)| {
            bars.figure(*side, *way, &format!("/cases/{case}/{way}/{key}"))
        });
        let labels = ["check first, published", "received map, published"];
        let theirs = labels.into_iter().zip(published.into_iter().flatten());
        theirs.fold(ours, |bars, (label, figure)| bars.known(Side::Published, label, figure)).figure(
            Side::Baseline,
            "QEMU",
            &format!("/qemu/{case}/{key}"),
        )
    };
    let mut charts = Vec::new();
    for case in CASES {
        let (faults, ms) = match published(case) {
            Some(both) => (Some(both.map(|(faults, _)| faults)), Some(both.map(|(_, ms)| ms))),
            None => (None, None),
        };
        charts.push(
            of(case, "dest_faults", faults)
                .chart(format!("{case}: faults of the destination"), "faults, less is better"),
        );
        charts.push(
            of(case, "total_ms", ms).chart(format!("{case}: until it has arrived"), "ms, less is better"),
        );
    }
    charts.push(
        Bars::of(json)
            .figure(Side::Baseline, "the loopback, sending and discarding", "/loopback_limit_gib_s")
            .figure(Side::Baseline, "QEMU", "/qemu/full/gib_s")
            .figure(Side::Pagoda, "a full region", "/cases/full/placed/gib_s")
            .figure(Side::Pagoda, "a full region, by huge frames", "/cases/full/huge-frames/gib_s")
            .figure(Side::Pagoda, "stored pages, as they are", "/stored/gib_s")
            .chart("Content on its way", GIB_S),
    );
    charts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_case_has_its_bars_and_those_of_others_beside_them() {
        let text = include_str!("../canned/migrate.json");
        let json: Value = serde_json::from_str(text).expect("JSON");
        let charts = migrate(&json);
        assert_eq!(charts.len(), 2 * CASES.len() + 1);
        let labels = |title: &str| -> Vec<_> {
            let chart = charts.iter().find(|chart| chart.title == title).expect(title);
            chart.bars.iter().map(|bar| (bar.side, bar.label.as_str(), bar.value)).collect()
        };
        for what in ["faults of the destination", "until it has arrived"] {
            for (case, qemu) in [("untouched", true), ("full", true), ("idle", false)] {
                let labels = labels(&format!("{case}: {what}"));
                assert_eq!(labels.iter().any(|(_, label, _)| *label == "QEMU"), qemu, "{case}: {what}");
                let published = labels.iter().filter(|(side, ..)| *side == Side::Published).count();
                assert_eq!(published, if case == "untouched" { 0 } else { 2 }, "{case}: {what}");
            }
        }
        let full = labels("full: until it has arrived");
        assert!(full.contains(&(Side::Published, "received map, published", 16_825.0)), "{full:?}");
    }

    #[test]
    fn spreads_that_are_told_are_shown() {
        let figures = serde_json::json!({
            "dest_faults": 7.0, "dest_faults_spread": [5.0, 9.0], "gib_s": 2.0, "gib_s_spread": [1.0, 3.0]
        });
        let json = serde_json::json!({
            "cases": {"full": {"placed": figures}}, "qemu": {"full": figures}, "stored": figures
        });
        let with_spread = migrate(&json).into_iter().flat_map(|chart| chart.bars);
        assert_eq!(with_spread.filter(|bar| bar.spread.is_some()).count(), 5);
    }
}
