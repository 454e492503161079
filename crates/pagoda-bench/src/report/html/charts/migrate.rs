//! Bars of `pagoda bench migrate`, beside published ones of QEMU. Pure. Never computes more than a
//! ratio.

use serde_json::Value;

use super::super::svg::Chart;
use super::super::svg::Side::{Baseline, Pagoda, Published};
use super::{Bars, GIB_S, Named};

const CASES: [&str; 5] = ["untouched", "resident-zeros", "idle", "full", "sparse"];

const WAYS: [Named; 6] = [
    (Baseline, "check-then-clear", "check-then-clear"),
    (Pagoda, "received-map", "received-map"),
    (Pagoda, "drop", "drop"),
    (Pagoda, "placed", "placed"),
    (Pagoda, "huge-frames", "huge-frames"),
    (Pagoda, "thp", "received-map, huge pages"),
];

/// The published effect of the received map in QEMU, 64 GB over 2 channels: faults and ms before,
/// and with it.
const fn published(case: &str) -> Option<[(f64, f64); 2]> {
    match case.as_bytes() {
        b"idle" => Some([(121_357.0, 7771.0), (2716.0, 7335.0)]),
        b"full" => Some([(2_672_677.0, 12_987.0), (52_967.0, 16_825.0)]),
        _ => None,
    }
}

const CODECS: [Named; 4] =
    [(Baseline, "none", "none"), (Pagoda, "lz4", "lz4"), (Pagoda, "zlib", "zlib"), (Pagoda, "zstd", "zstd")];

/// Downtime of the guest in the same runs, in ms.
const DOWNTIMES: [(&str, f64); 4] = [
    ("idle, check first, published", 153.0),
    ("idle, received map, published", 180.0),
    ("full, check first, published", 159.0),
    ("full, received map, published", 165.0),
];

/// The charts of `pagoda bench migrate`.
pub fn migrate(json: &Value) -> Vec<Chart> {
    let of = |case: &str, key: &str, published: Option<[f64; 2]>| {
        let ours = Bars::of(json).each("*", &format!("/cases/{case}/*/{key}"), &WAYS);
        let labels = ["check first, published", "received map, published"];
        let theirs = labels.into_iter().zip(published.into_iter().flatten());
        theirs.fold(ours, |bars, (label, figure)| bars.known(Published, label, figure)).figure(
            Baseline,
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
    charts.extend(live(json));
    charts.extend(codecs(json));
    charts.push(
        Bars::of(json)
            .figure(Baseline, "the loopback, sending and discarding", "/loopback_limit_gib_s")
            .figure(Baseline, "QEMU", "/qemu/full/gib_s")
            .figure(Pagoda, "a full region", "/cases/full/placed/gib_s")
            .figure(Pagoda, "a full region, by huge frames", "/cases/full/huge-frames/gib_s")
            .figure(Pagoda, "stored pages, as they are", "/stored/gib_s")
            .chart("Content on its way", GIB_S),
    );
    charts.push(
        Bars::of(json)
            .figure(Pagoda, "in the cache", "/wire/zero_scan_gib_s")
            .figure(Pagoda, "in memory", "/wire/zero_scan_memory_gib_s")
            .chart("Finding zero pages", GIB_S),
    );
    charts
}

/// The charts of a region that is written while it moves.
fn live(json: &Value) -> [Chart; 3] {
    let stopped =
        DOWNTIMES.into_iter().fold(Bars::of(json), |bars, (label, ms)| bars.known(Published, label, ms));
    [
        stopped
            .figure(Pagoda, "sent before the switch", "/live/downtime_ms")
            .figure(Pagoda, "owed after it", "/live/postcopy_downtime_ms")
            .chart("live: nobody can write", "ms, less is better"),
        Bars::of(json)
            .figure(Pagoda, "sent before the switch", "/live/total_ms")
            .figure(Pagoda, "owed, from the switch on", "/live/fully_resident_ms")
            .chart("live: until all of it is there", "ms, less is better"),
        Bars::of(json)
            .figure(Baseline, "left alone", "/throttled/0/downtime_ms")
            .figure(Pagoda, "slowed down by its own faults", "/throttled/90/downtime_ms")
            .chart("A writer that outruns its line: nobody can write", "ms, less is better"),
    ]
}

/// The charts of content of 3:1, by codec.
fn codecs(json: &Value) -> [Chart; 2] {
    let of = |key: &str| Bars::of(json).each("*", &format!("/codecs/*/{key}"), &CODECS);
    [
        of("gib_s").chart("Content of 3:1 by codec", GIB_S),
        of("wire_bytes").chart("Content of 3:1 by codec: on the wire", "bytes, less is better"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_case_has_its_bars_and_those_of_others_beside_them() {
        let text = include_str!("../canned/migrate.json");
        let json: Value = serde_json::from_str(text).expect("JSON");
        let charts = migrate(&json);
        assert_eq!(charts.len(), 2 * CASES.len() + 7);
        let labels = |title: &str| -> Vec<_> {
            let chart = charts.iter().find(|chart| chart.title == title).expect(title);
            chart.bars.iter().map(|bar| (bar.side, bar.label.as_str(), bar.value)).collect()
        };
        for what in ["faults of the destination", "until it has arrived"] {
            for (case, qemu) in [("untouched", true), ("full", true), ("idle", false)] {
                let labels = labels(&format!("{case}: {what}"));
                assert_eq!(labels.iter().any(|(_, label, _)| *label == "QEMU"), qemu, "{case}: {what}");
                let published = labels.iter().filter(|(side, ..)| *side == Published).count();
                assert_eq!(published, if case == "untouched" { 0 } else { 2 }, "{case}: {what}");
            }
        }
        let full = labels("full: until it has arrived");
        assert!(full.contains(&(Published, "received map, published", 16_825.0)), "{full:?}");
        let stopped = labels("live: nobody can write");
        let published = stopped.iter().filter(|(side, ..)| *side == Published).count();
        assert_eq!((published, stopped.len()), (4, 6), "{stopped:?}");
        assert_eq!(labels("Content of 3:1 by codec").len(), CODECS.len());
    }
}
