//! The figures as they are printed: JSON whose keys other tools read, (`table.rs` has them for people). Pure.
//!
//! Every figure is a median over the rounds that count, every spread the least and the greatest of them.

mod qemu;
mod table;

use std::collections::BTreeMap;

use pagoda::migrate::Codec;
use pagoda_core::size::Bytes;
use serde::Serialize;

use super::Way;
use super::cases::Case;
use super::destination::FaultsByCause;
use super::qemu::QemuRuns;
use super::trial::Outcome;
use crate::load::data::PAGE_BYTES;
use crate::measure::machine::Machine;
use crate::measure::stats::{Measured, median_of, middle, middle_of, round};
use qemu::{QemuFigures, QemuRatios};

const GIB: f64 = (1u64 << 30) as f64;

/// The outcomes of one case, by the way to receive.
pub type ByWay = Vec<(Way, Vec<Outcome>)>;

/// How it was measured.
pub struct Setting {
    pub memory: Bytes,
    pub rounds: usize,
    pub quick: bool,
}

/// What was measured, in the rounds that count.
pub struct Outcomes {
    pub cases: Vec<(Case, ByWay)>,
    pub codecs: Vec<(Codec, Vec<Outcome>)>,
    pub live: Vec<Outcome>,
    pub late: Vec<Outcome>,
    pub stored: Vec<Outcome>,
    /// Of the loopback, each beside a run of `full`.
    pub limits: Vec<f64>,
    /// What QEMU did, beside runs of `untouched` and `full`; or why it did not.
    pub qemu: Result<QemuRuns, String>,
    pub scan: Scan,
}

/// All that was found out.
#[derive(Serialize)]
pub struct Report {
    bench: &'static str,
    memory_bytes: u64,
    channels: u16,
    cases: BTreeMap<&'static str, CaseFigures>,
    codecs: BTreeMap<String, Figures>,
    live: Live,
    stored: Stored,
    wire: Wire,
    loopback_limit_gib_s: Measured,
    ratios: Ratios,
    qemu: Option<QemuFigures>,
    /// Why there is none.
    qemu_reason: Option<String>,
    rounds: usize,
    quick: bool,
    machine: Machine,
}

#[derive(Serialize)]
struct CaseFigures {
    zero_pages: u64,
    data_pages: u64,
    #[serde(flatten)]
    ways: BTreeMap<&'static str, Figures>,
}

/// One way to receive.
#[derive(Serialize)]
struct Figures {
    dest_faults: Measured,
    faults_by_cause: FaultsByCause,
    total_ms: Measured,
    /// Of pages with content.
    gib_s: Measured,
    /// By the destination's moves and by the kernel's copies.
    moved_bytes: f64,
    copied_bytes: f64,
    dest_rss: f64,
    /// Of both processes, their start included.
    cpu_ms: f64,
    wire_bytes: f64,
}

#[derive(Serialize)]
struct Live {
    dirty_mib_s: f64,
    rounds: f64,
    downtime_ms: Measured,
    total_ms: Measured,
    /// The same with all of it owed: how long nobody could write, the longest read at the destination before all was there, and
    /// when it was, from when the destination could begin.
    postcopy_downtime_ms: Measured,
    max_fault_us: Measured,
    fully_resident_ms: Measured,
}

#[derive(Serialize)]
struct Stored {
    packed_pages: u64,
    /// Those that were unpacked for good: at the source, to be sent, or at the destination, which did not keep them as they came.
    reinflated_pages: u64,
    gib_s: Measured,
    wire_bytes: f64,
}

/// How fast zero pages are found.
#[derive(Clone, Copy, Serialize)]
pub struct Scan {
    #[serde(rename = "zero_scan_gib_s")]
    pub cached_gib_s: f64,
    #[serde(rename = "zero_scan_memory_gib_s")]
    pub memory_gib_s: f64,
    #[serde(rename = "memory_read_gib_s")]
    pub memory_read_gib_s: f64,
}

#[derive(Serialize)]
struct Wire {
    #[serde(flatten)]
    scan: Scan,
    bytes_per_zero_page: f64,
}

/// What is to be reached, each as one figure.
#[derive(Serialize)]
struct Ratios {
    /// `check-then-clear`: faults to zero and data pages, 1 if each costs one; by case.
    check_then_clear_faults: BTreeMap<&'static str, f64>,
    /// `received-map`: faults to data pages.
    received_map_faults: BTreeMap<&'static str, f64>,
    /// `placed`: faults to zero and data pages.
    placed_faults: BTreeMap<&'static str, f64>,
    /// `drop` into the same plain memory: total time to that of `check-then-clear`.
    drop_time: BTreeMap<&'static str, f64>,
    /// `placed` and `huge-frames`: total time to that of `check-then-clear`.
    placed_time: BTreeMap<&'static str, f64>,
    huge_frames_time: BTreeMap<&'static str, f64>,
    /// `sparse` by `placed` and by `huge-frames`: what is resident, beyond what a process that has received nothing has, to its data.
    sparse_resident: f64,
    sparse_huge_resident: f64,
    /// Zero pages found in memory, to how fast that is read.
    zero_scan_of_memory: f64,
    /// `full`: throughput of `placed` and of `huge-frames` to the loopback's limit.
    full_of_limit: f64,
    full_huge_of_limit: f64,
    #[serde(flatten)]
    qemu: Option<QemuRatios>,
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

fn gib_s(outcome: &Outcome) -> f64 {
    content_pages(outcome) * PAGE_BYTES as f64 / GIB / outcome.took.as_secs_f64()
}

impl Figures {
    const fn faults_and_ms(&self) -> (f64, f64) {
        (self.dest_faults.median, self.total_ms.median)
    }

    fn new(outcomes: &[Outcome]) -> Option<Self> {
        let cause = |pick: fn(&FaultsByCause) -> u64| {
            median_of(outcomes, |outcome| pick(&outcome.arrived.faults_by_cause) as f64)
                .map(|faults| faults as u64)
        };
        Some(Self {
            dest_faults: middle_of(outcomes, |outcome| outcome.arrived.faults as f64)?,
            faults_by_cause: FaultsByCause {
                zero_check: cause(|causes| causes.zero_check)?,
                zero_write: cause(|causes| causes.zero_write)?,
                data_write: cause(|causes| causes.data_write)?,
            },
            total_ms: middle_of(outcomes, total_ms)?,
            gib_s: middle_of(outcomes, gib_s)?,
            moved_bytes: median_of(outcomes, |outcome| outcome.arrived.moved_bytes as f64)?,
            copied_bytes: median_of(outcomes, |outcome| outcome.arrived.copied_bytes as f64)?,
            dest_rss: median_of(outcomes, |outcome| outcome.arrived.rss_bytes as f64)?,
            cpu_ms: round(median_of(outcomes, |outcome| outcome.cpu_ms)?),
            wire_bytes: median_of(outcomes, |outcome| outcome.moved.counts.wire_bytes as f64)?,
        })
    }
}

impl Report {
    /// The report of what was measured; None if no round was.
    pub fn new(setting: &Setting, measured: &Outcomes, machine: Machine) -> Option<Self> {
        let Outcomes { cases, codecs, live, late, stored, limits, qemu, scan } = measured;
        let (qemu, qemu_reason) = match qemu {
            Ok(runs) => (Some(QemuFigures::new(runs)?), None),
            Err(reason) => (None, Some(reason.clone())),
        };
        let mut figures = BTreeMap::new();
        for (case, ways) in cases {
            let counts = ways.first()?.1.first()?.moved.counts;
            figures.insert(
                case.name(),
                CaseFigures {
                    zero_pages: counts.zero_pages,
                    data_pages: counts.data_pages + counts.filled_pages,
                    ways: ways
                        .iter()
                        .map(|(way, outcomes)| Some((way.name, Figures::new(outcomes)?)))
                        .collect::<Option<_>>()?,
                },
            );
        }
        let zeros = figures.get(Case::ResidentZeros.name())?;
        let zero_wire = zeros.ways.get(Way::PLACED.name)?.wire_bytes;
        let limit = middle(limits)?;
        Some(Self {
            bench: "migrate",
            memory_bytes: setting.memory.get(),
            channels: super::trial::CHANNELS,
            ratios: Ratios::new(&figures, limit.median, *scan, qemu.as_ref())?,
            wire: Wire {
                scan: *scan,
                bytes_per_zero_page: round(zero_wire / zeros.zero_pages.max(1) as f64),
            },
            cases: figures,
            codecs: codecs
                .iter()
                .map(|(codec, outcomes)| Some((codec.to_string(), Figures::new(outcomes)?)))
                .collect::<Option<_>>()?,
            live: Live {
                dirty_mib_s: round(median_of(live, |outcome| {
                    outcome.moved.pace.written_per_s.get() as f64 / f64::from(1 << 20)
                })?),
                rounds: median_of(live, |outcome| f64::from(outcome.moved.pace.rounds))?,
                downtime_ms: middle_of(live, downtime_ms)?,
                total_ms: middle_of(live, total_ms)?,
                postcopy_downtime_ms: middle_of(late, downtime_ms)?,
                max_fault_us: middle_of(late, |outcome| outcome.arrived.max_fault_us as f64)?,
                fully_resident_ms: middle_of(late, |outcome| outcome.arrived.owed_us as f64 / 1e3)?,
            },
            stored: Stored {
                packed_pages: median_of(stored, |outcome| outcome.moved.counts.packed_pages as f64)? as u64,
                reinflated_pages: median_of(stored, |outcome| {
                    (outcome.moved.counts.data_pages + outcome.arrived.unpacked_pages) as f64
                })? as u64,
                gib_s: middle_of(stored, gib_s)?,
                wire_bytes: median_of(stored, |outcome| outcome.moved.counts.wire_bytes as f64)?,
            },
            loopback_limit_gib_s: limit,
            qemu,
            qemu_reason,
            rounds: setting.rounds,
            quick: setting.quick,
            machine,
        })
    }
}

impl Ratios {
    fn new(
        cases: &BTreeMap<&'static str, CaseFigures>,
        limit_gib_s: f64,
        scan: Scan,
        qemu: Option<&QemuFigures>,
    ) -> Option<Self> {
        let by_case = |ratio: &dyn Fn(&CaseFigures) -> Option<f64>| -> BTreeMap<&'static str, f64> {
            cases.iter().filter_map(|(name, case)| Some((*name, round(ratio(case)?)))).collect()
        };
        let of = |case: &'_ CaseFigures, way: Way| case.ways.get(way.name).map(Figures::faults_and_ms);
        let gib_s = |case: &'_ CaseFigures, way: Way| Some(case.ways.get(way.name)?.gib_s.median);
        let per = |figure: f64, pages: u64| (pages > 0).then(|| figure / pages as f64);
        let time = |way: Way| by_case(&|case| Some(of(case, way)?.1 / of(case, Way::CHECK)?.1));
        let [untouched, sparse, full] =
            [Case::Untouched, Case::Sparse, Case::Full].map(|case| cases.get(case.name()));
        let (untouched, sparse, full) = (untouched?, sparse?, full?);
        let rss = |case: &CaseFigures, way: Way| Some(case.ways.get(way.name)?.dest_rss);
        let sparse_bytes = sparse.data_pages as f64 * PAGE_BYTES as f64;
        let resident = |way| Some(round((rss(sparse, way)? - rss(untouched, way)?) / sparse_bytes));
        let (untouched_ms, full_gib_s) = (of(untouched, Way::PLACED)?.1, gib_s(full, Way::PLACED)?);
        Some(Self {
            check_then_clear_faults: by_case(&|case| {
                per(of(case, Way::CHECK)?.0, case.zero_pages + case.data_pages)
            }),
            received_map_faults: by_case(&|case| per(of(case, Way::MAP)?.0, case.data_pages)),
            placed_faults: by_case(&|case| per(of(case, Way::PLACED)?.0, case.zero_pages + case.data_pages)),
            drop_time: time(Way::DROP),
            placed_time: time(Way::PLACED),
            huge_frames_time: time(Way::HUGE),
            sparse_resident: resident(Way::PLACED)?,
            sparse_huge_resident: resident(Way::HUGE)?,
            zero_scan_of_memory: round(scan.memory_gib_s / scan.memory_read_gib_s),
            full_of_limit: round(full_gib_s / limit_gib_s),
            full_huge_of_limit: round(gib_s(full, Way::HUGE)? / limit_gib_s),
            qemu: qemu.map(|qemu| qemu.ratios(untouched_ms, full_gib_s)),
        })
    }
}

#[cfg(test)]
mod tests;
