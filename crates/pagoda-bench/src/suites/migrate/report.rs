//! The printed figures: JSON with keys that other tools read, and tables for people. Pure.
//!
//! Every figure is a median over the rounds that count, every spread the least and the greatest of
//! them. Never makes up a number: a missing one is null, with its reason.

use std::collections::BTreeMap;

use pagoda::migrate::{Codec, Pace};
use pagoda_core::size::Bytes;
use serde::Serialize;
use serde_json::{Value, json};

use super::Way;
use super::cases::Case;
use super::destination::FaultsByCause;
use super::qemu::{QemuRun, QemuRuns};
use super::recovery::Recovery;
use super::sizes::Sized;
use super::throttled::{PERCENT, Throttled};
use super::trial::{CHANNELS, Outcome};
use crate::load::data::PAGE_BYTES;
use crate::measure::stats::{median_of, middle, middle_of, round};
use crate::report::json::plain;
use crate::report::table::{Column, fill, members, table as text_table};

const GIB: f64 = (1u64 << 30) as f64;

/// The outcomes of one case, by the way to receive.
pub type ByWay = Vec<(Way, Vec<Outcome>)>;

/// The outcomes of one content, by codec.
pub type ByCodec = Vec<(Codec, Vec<Outcome>)>;

/// The measurements of the rounds that count.
pub struct Outcomes {
    pub cases: Vec<(Case, ByWay)>,
    pub codecs: ByCodec,
    /// As `none` of the codecs, with TLS.
    pub tls: Vec<Outcome>,
    pub live: Vec<Outcome>,
    pub late: Vec<Outcome>,
    pub recovery: Recovery,
    pub throttled: Vec<Throttled>,
    pub stored: Vec<Outcome>,
    /// Rates of the loopback, each beside a run of `full`.
    pub limits: Vec<f64>,
    pub sizes: Vec<Sized>,
    /// The runs of QEMU beside those of `untouched` and `full`, or the reason why there are none.
    pub qemu: Result<QemuRuns, String>,
    pub scan: Option<Scan>,
}

/// The rates of finding zero pages.
#[derive(Clone, Copy, Serialize)]
pub struct Scan {
    #[serde(rename = "zero_scan_gib_s")]
    pub cached_gib_s: f64,
    #[serde(rename = "zero_scan_memory_gib_s")]
    pub memory_gib_s: f64,
    #[serde(rename = "memory_read_gib_s")]
    pub memory_read_gib_s: f64,
}

fn total_ms(outcome: &Outcome) -> f64 {
    outcome.took.as_secs_f64() * 1e3
}

fn downtime_ms(outcome: &Outcome) -> f64 {
    outcome.moved.downtime.as_secs_f64() * 1e3
}

fn content_pages(outcome: &Outcome) -> f64 {
    let counts = outcome.moved.counts;
    (counts.data_pages + counts.packed_pages + counts.filled_pages) as f64
}

pub fn gib_s(outcome: &Outcome) -> f64 {
    content_pages(outcome) * PAGE_BYTES as f64 / GIB / outcome.took.as_secs_f64()
}

/// The figures of one way to receive.
pub fn figures_of(outcomes: &[Outcome]) -> Value {
    let median = |of: fn(&Outcome) -> f64| median_of(outcomes, of);
    let cause = |pick: fn(&FaultsByCause) -> u64| {
        let faults = median_of(outcomes, |outcome| pick(&outcome.arrived.faults_by_cause) as f64);
        faults.map(|faults| faults as u64)
    };
    json!({
        "dest_faults": middle_of(outcomes, |outcome| outcome.arrived.faults as f64),
        "faults_by_cause": {
            "zero_check": cause(|causes| causes.zero_check),
            "zero_write": cause(|causes| causes.zero_write),
            "data_write": cause(|causes| causes.data_write),
        },
        "total_ms": middle_of(outcomes, total_ms),
        "gib_s": middle_of(outcomes, gib_s),
        "moved_bytes": median(|outcome| outcome.arrived.moved_bytes as f64),
        "copied_bytes": median(|outcome| outcome.arrived.copied_bytes as f64),
        "dest_rss": median(|outcome| outcome.arrived.rss_bytes as f64),
        "cpu_ms": median(|outcome| outcome.cpu_ms).map(round),
        "wire_bytes": median(|outcome| outcome.moved.counts.wire_bytes as f64),
        "downtime_ms": middle_of(outcomes, downtime_ms),
    })
}

fn case_figures(ways: &ByWay) -> Value {
    let figures: BTreeMap<_, _> =
        ways.iter().map(|(way, outcomes)| (way.name, figures_of(outcomes))).collect();
    let mut figures = json!(figures);
    let counts = ways[0].1[0].moved.counts;
    figures["zero_pages"] = counts.zero_pages.into();
    figures["data_pages"] = (counts.data_pages + counts.filled_pages).into();
    figures
}

pub fn qemu_gib_s(run: &QemuRun) -> f64 {
    run.data_pages as f64 * PAGE_BYTES as f64 / GIB / run.total_ms * 1e3
}

/// The figures of QEMU in one case.
pub fn qemu_figures(runs: &[QemuRun]) -> Value {
    json!({
        "total_ms": middle_of(runs, |run| run.total_ms),
        "dest_faults": middle_of(runs, |run| run.dest_faults as f64),
        "gib_s": middle_of(runs, qemu_gib_s),
        "dest_rss": median_of(runs, |run| run.dest_rss_bytes as f64),
        "wire_bytes": median_of(runs, |run| run.wire_bytes as f64),
        "downtime_ms": middle_of(runs, |run| run.downtime_ms),
    })
}

/// The figures of a writer that outruns its line, by the limit of slowing it down.
fn throttled_figures(runs: &[Throttled]) -> Value {
    let of = |percent: u8| {
        let runs: Vec<_> = runs.iter().filter(|run| run.percent == percent).collect();
        let during: Vec<_> = runs.iter().filter_map(|run| run.during_s).collect();
        let pace = |of: fn(&Pace) -> f64| median_of(&runs, |run| of(&run.outcome.moved.pace));
        let figures = json!({
            "rounds": pace(|pace| f64::from(pace.rounds)),
            "downtime_ms": middle_of(&runs, |run| downtime_ms(&run.outcome)),
            "total_ms": middle_of(&runs, |run| total_ms(&run.outcome)),
            "pages_before_s": middle_of(&runs, |run| run.before_s),
            "pages_during_s": middle(&during),
            "delayed_faults": pace(|pace| pace.delayed_faults as f64),
        });
        (percent.to_string(), figures)
    };
    json!(BTreeMap::from(PERCENT.map(of)))
}

/// All figures of `measured`, in which each side has at least one round. Those of a side that was
/// left out are null or empty.
pub fn figures(measured: &Outcomes, memory: Bytes, rounds: usize) -> Value {
    let Outcomes { cases, codecs, tls, live, late, recovery, throttled, .. } = measured;
    let Outcomes { stored, limits, sizes, qemu, scan, .. } = measured;
    let cases: BTreeMap<_, _> = cases.iter().map(|(case, ways)| (case.name(), case_figures(ways))).collect();
    let codecs: BTreeMap<_, _> =
        codecs.iter().map(|(codec, outcomes)| (codec.to_string(), figures_of(outcomes))).collect();
    let (qemu, qemu_reason) = match qemu {
        Ok(QemuRuns { version, untouched, full }) => {
            let figures = json!({
                "version": version,
                "thp": median_of(full, |run| run.dest_huge_part).map(round),
                "downtime_ms": median_of(full, |run| run.downtime_ms),
                "untouched": qemu_figures(untouched),
                "full": qemu_figures(full),
            });
            (Some(figures), None)
        }
        Err(reason) => (None, Some(reason)),
    };
    let sizes: BTreeMap<_, _> =
        sizes.iter().map(|size| ((size.memory.get() >> 20).to_string(), size.figures())).collect();
    let count = |outcomes: &[Outcome], of: fn(&Outcome) -> u64| {
        median_of(outcomes, |outcome| of(outcome) as f64).map(|pages| pages as u64)
    };
    let written = |outcome: &Outcome| outcome.moved.pace.written_per_s.get() as f64 / f64::from(1 << 20);
    let mut figures = plain(json!({
        "memory_bytes": memory.get(),
        "channels": CHANNELS,
        "rounds": rounds,
        "cases": cases,
        "codecs": codecs,
        "live": {
            "dirty_mib_s": median_of(live, written).map(round),
            "rounds": median_of(live, |outcome| f64::from(outcome.moved.pace.rounds)),
            "downtime_ms": middle_of(live, downtime_ms),
            "total_ms": middle_of(live, total_ms),
            "postcopy_downtime_ms": middle_of(late, downtime_ms),
            "max_fault_us": middle_of(late, |outcome| outcome.arrived.max_fault_us as f64),
            "fully_resident_ms": middle_of(late, |outcome| outcome.arrived.owed_us as f64 / 1e3),
        },
        "postcopy": {
            "read_us_p999": middle_of(late, |outcome| outcome.arrived.read_us_p999),
            "read_us_max": middle_of(late, |outcome| outcome.arrived.max_fault_us as f64),
        },
        "recovery": {
            "points": recovery.points,
            "lost": recovery.lost,
            "twice": recovery.twice,
            "no_progress_ms": round(recovery.no_progress.as_secs_f64() * 1e3),
        },
        "throttled": throttled_figures(throttled),
        "stored": {
            "packed_pages": count(stored, |outcome| outcome.moved.counts.packed_pages),
            // Pages unpacked for good: at the source to be sent, or at the destination.
            "reinflated_pages": count(stored, |outcome| {
                outcome.moved.counts.data_pages + outcome.arrived.unpacked_pages
            }),
            "gib_s": middle_of(stored, gib_s),
            "wire_bytes": median_of(stored, |outcome| outcome.moved.counts.wire_bytes as f64),
        },
        "wire": scan,
        "loopback_limit_gib_s": middle(limits),
        "sizes": sizes,
        "qemu": qemu,
        "qemu_reason": qemu_reason,
    }));
    let zeros = &figures["cases"][Case::ResidentZeros.name()];
    let zero_pages = zeros["zero_pages"].as_f64().unwrap_or(0.0).max(1.0);
    let per_zero_page = zeros[Way::PLACED.name]["wire_bytes"].as_f64().map(|bytes| round(bytes / zero_pages));
    figures["wire"]["bytes_per_zero_page"] = json!(per_zero_page);
    let plain = figures["codecs"][Codec::None.to_string()]["gib_s"].as_f64();
    figures["tls_ratio"] = json!(median_of(tls, gib_s).zip(plain).map(|(tls, plain)| round(tls / plain)));
    figures["ratios"] = ratios(&figures, *scan);
    figures
}

/// The ratios that have an aim.
fn ratios(figures: &Value, scan: Option<Scan>) -> Value {
    let cases = &figures["cases"];
    let of = |case: &str, way: Way, key: &str| cases[case][way.name][key].as_f64();
    let by_case = |ratio: &dyn Fn(&str) -> Option<f64>| -> BTreeMap<&str, f64> {
        let names = Case::ALL.into_iter().map(Case::name);
        names.filter_map(|name| Some((name, round(ratio(name)?)))).collect()
    };
    let pages = |case: &str, key: &str| cases[case][key].as_f64();
    let faults_over = |way: Way, keys: &'static [&'static str]| {
        by_case(&move |case| {
            let pages = keys.iter().map(|key| pages(case, key)).sum::<Option<f64>>()?;
            (pages > 0.0).then_some(of(case, way, "dest_faults")? / pages)
        })
    };
    let time =
        |way: Way| by_case(&|case| Some(of(case, way, "total_ms")? / of(case, Way::CHECK, "total_ms")?));
    let [untouched, sparse, full] = [Case::Untouched, Case::Sparse, Case::Full].map(Case::name);
    let resident = |way: Way| {
        let beyond = of(sparse, way, "dest_rss")? - of(untouched, way, "dest_rss")?;
        Some(round(beyond / (pages(sparse, "data_pages")? * PAGE_BYTES as f64)))
    };
    let of_limit = |way| Some(round(of(full, way, "gib_s")? / figures["loopback_limit_gib_s"].as_f64()?));
    let mut ratios = json!({
        "check_then_clear_faults": faults_over(Way::CHECK, &["zero_pages", "data_pages"]),
        "received_map_faults": faults_over(Way::MAP, &["data_pages"]),
        "placed_faults": faults_over(Way::PLACED, &["zero_pages", "data_pages"]),
        "drop_time": time(Way::DROP),
        "placed_time": time(Way::PLACED),
        "huge_frames_time": time(Way::HUGE),
        "sparse_resident": resident(Way::PLACED),
        "sparse_huge_resident": resident(Way::HUGE),
        "zero_scan_of_memory": scan.map(|scan| round(scan.memory_gib_s / scan.memory_read_gib_s)),
        "full_of_limit": of_limit(Way::PLACED),
        "full_huge_of_limit": of_limit(Way::HUGE),
    });
    for (key, case, figure) in
        [("untouched_to_qemu_time", untouched, "total_ms"), ("full_to_qemu_rate", full, "gib_s")]
    {
        if let (Some(ours), Some(qemu)) =
            (of(case, Way::PLACED, figure), figures["qemu"][case][figure].as_f64())
        {
            ratios[key] = round(ours / qemu).into();
        }
    }
    ratios
}

const COLUMNS: [Column; 9] = [
    ("faults there", "{dest_faults:0}"),
    ("ms", "{total_ms:0}"),
    ("GiB/s", "{gib_s:2}"),
    ("moved", "{moved_bytes:b}"),
    ("copied", "{copied_bytes:b}"),
    ("resident", "{dest_rss:b}"),
    ("CPU ms", "{cpu_ms:0}"),
    ("wire", "{wire_bytes:b}"),
    ("downtime ms", "{downtime_ms:1}"),
];

const LINES: &str = "\
live: {live/dirty_mib_s:0} MiB/s written, {live/rounds:0} rounds, {live/total_ms:0} ms to the end, \
the writer stood still for {live/downtime_ms:1} ms
post-copy: {live/postcopy_downtime_ms:1} ms until the other side went on, {live/fully_resident_ms:0} ms until it had all, \
{postcopy/read_us_p999:0} us for 999 of 1000 reads till then, {postcopy/read_us_max:0} us for the longest
recovery: a line that was cut {recovery/points} times lost {recovery/lost} pages and brought {recovery/twice} twice, \
and nothing moved for {recovery/no_progress_ms:1} ms at most once it was back
throttled: a writer of {throttled/0/pages_before_s:0} pages/s outruns its line. Left alone it stood still for \
{throttled/0/downtime_ms:1} ms after {throttled/0/rounds:0} rounds and {throttled/0/total_ms:0} ms; \
slowed to {throttled/90/pages_during_s:0} pages/s by {throttled/90/delayed_faults:0} faults for \
{throttled/90/downtime_ms:1} ms after {throttled/90/rounds:0} and {throttled/90/total_ms:0} ms
TLS: {tls_ratio:2} of the rate without it
stored: {stored/packed_pages} pages travel packed, {stored/reinflated_pages} were unpacked, {stored/gib_s:2} GiB/s of content
zero pages: {wire/bytes_per_zero_page:2} bytes each on the wire; found at {wire/zero_scan_gib_s:0} GiB/s from cache, \
{wire/zero_scan_memory_gib_s:0} from memory, which is read at {wire/memory_read_gib_s:0}
loopback: {loopback_limit_gib_s:2} GiB/s on {channels} channels with nothing done; full reaches {ratios/full_of_limit:2} of that, \
by huge frames {ratios/full_huge_of_limit:2}
";

/// The tables for people.
pub fn table(report: &Value) -> String {
    let mut rows = Vec::new();
    for (name, case) in members(report, "/cases") {
        let ways = members(case, "").filter(|(_, figures)| figures.is_object());
        rows.extend(
            ways.map(|(way, figures)| ([name.clone(), case["zero_pages"].to_string(), way.clone()], figures)),
        );
    }
    for (codec, figures) in members(report, "/codecs") {
        rows.push((["3:1 data".to_owned(), "0".to_owned(), codec.clone()], figures));
    }
    for (size, figures) in members(report, "/sizes") {
        let sides = members(figures, "").filter(|(_, side)| side.is_object());
        rows.extend(sides.map(|(side, side_figures)| {
            ([format!("full, {size} MiB"), String::new(), side.clone()], side_figures)
        }));
    }
    // A part that was left out has no line.
    let is_there = |line: &&str| {
        let first = line.split_once('{').and_then(|(_, rest)| rest.split(['/', ':', '}']).next());
        first.is_some_and(|key| report.get(key).is_some())
    };
    let lines: String = LINES.lines().filter(is_there).map(|line| fill(line, report) + "\n").collect();
    let qemu = &report["qemu"];
    for name in ["untouched", "full"].into_iter().filter(|_| qemu.is_object()) {
        rows.push(([name.to_owned(), String::new(), fill("QEMU {version}", qemu)], &qemu[name]));
    }
    let qemu = match report["qemu_reason"].as_str() {
        Some(reason) => format!("not measured ({reason})"),
        None => fill(
            "untouched takes {untouched_to_qemu_time:3} of its time, full moves {full_to_qemu_rate:2} times as much in a second",
            &report["ratios"],
        ),
    };
    let of_qemu = |(size, figures): (&String, &Value)| {
        fill(
            &format!("; {size} MiB: {{ratio_vs_qemu:2s}} of its rate, {{thp_ratio_vs_qemu:2s}} by thp"),
            figures,
        )
    };
    let measured = members(report, "/sizes").filter(|(_, figures)| figures["qemu"].is_object());
    let qemu = measured.map(of_qemu).fold(qemu, |text, size| text + &size);
    let qemu = if report.get("cases").is_some() { format!("QEMU: {qemu}\n") } else { String::new() };
    let table = text_table(["case", "zero pages", "how"], &COLUMNS, rows);
    format!("{table}\n{lines}{qemu}")
}

#[cfg(test)]
#[path = "report_test.rs"]
mod tests;
