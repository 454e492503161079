//! The figures as they are printed: JSON whose keys other tools read, (`table.rs` has them for people). Pure.
//!
//! Every figure is a median over the rounds that count, every spread the least and the greatest of them.

mod table;

use std::collections::BTreeMap;

use pagoda::migrate::{Codec, ZeroPolicy};
use pagoda_core::size::Bytes;
use serde::Serialize;

use super::super::data::PAGE_BYTES;
use super::super::machine::Machine;
use super::super::stats::{median, median_of, middle_of, round, spread};
use super::cases::Case;
use super::destination::FaultsByCause;
use super::trial::Outcome;

const GIB: f64 = (1u64 << 30) as f64;

/// The outcomes of one case, by policy.
pub type ByPolicy = Vec<(ZeroPolicy, Vec<Outcome>)>;

/// How it was measured.
pub struct Setting {
    pub memory: Bytes,
    pub rounds: usize,
    pub quick: bool,
}

/// What was measured, in the rounds that count.
pub struct Measured {
    pub cases: Vec<(Case, ByPolicy)>,
    pub codecs: Vec<(Codec, Vec<Outcome>)>,
    pub live: Vec<Outcome>,
    pub late: Vec<Outcome>,
    pub stored: Vec<Outcome>,
    /// Of the loopback, each beside a run of `full`.
    pub limits: Vec<f64>,
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
    loopback_limit_gib_s: f64,
    loopback_limit_gib_s_spread: [f64; 2],
    ratios: Ratios,
    /// Never measured here: the key is for those who compare.
    qemu: Option<()>,
    qemu_reason: &'static str,
    rounds: usize,
    quick: bool,
    machine: Machine,
}

#[derive(Serialize)]
struct CaseFigures {
    zero_pages: u64,
    data_pages: u64,
    #[serde(flatten)]
    policies: BTreeMap<String, Figures>,
}

/// One way to receive.
#[derive(Serialize)]
struct Figures {
    dest_faults: f64,
    faults_by_cause: FaultsByCause,
    total_ms: f64,
    total_ms_spread: [f64; 2],
    /// Of pages with content.
    gib_s: f64,
    dest_rss: f64,
    /// Of both processes, their start included.
    cpu_ms: f64,
    wire_bytes: f64,
}

#[derive(Serialize)]
struct Live {
    dirty_mib_s: f64,
    rounds: f64,
    downtime_ms: f64,
    downtime_ms_spread: [f64; 2],
    total_ms: f64,
    /// The same with all of it owed: how long nobody could write, the longest read at the destination before all was there, and
    /// when it was, from when the destination could begin.
    postcopy_downtime_ms: f64,
    max_fault_us: f64,
    fully_resident_ms: f64,
}

#[derive(Serialize)]
struct Stored {
    packed_pages: u64,
    reinflated_pages: u64,
    gib_s: f64,
    wire_bytes: f64,
}

/// How fast zero pages are found.
#[derive(Clone, Copy, Serialize)]
pub struct Scan {
    #[serde(rename = "zero_scan_gib_s")]
    pub cached_gib_s: f64,
    #[serde(rename = "zero_scan_memory_gib_s")]
    pub memory_gib_s: f64,
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
    /// `drop`: faults to zero and data pages.
    drop_faults: BTreeMap<&'static str, f64>,
    /// `drop`: total time to that of `check-then-clear`.
    drop_time: BTreeMap<&'static str, f64>,
    /// `sparse`: what is resident, beyond what a process that has received nothing has, to its data.
    sparse_resident: f64,
    /// `full`: throughput of `drop` to the loopback's limit.
    full_of_limit: f64,
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
    fn new(outcomes: &[Outcome]) -> Option<Self> {
        let cause = |pick: fn(&FaultsByCause) -> u64| {
            median_of(outcomes, |outcome| pick(&outcome.arrived.faults_by_cause) as f64)
                .map(|faults| faults as u64)
        };
        let (total_ms, total_ms_spread) = middle_of(outcomes, total_ms)?;
        Some(Self {
            dest_faults: median_of(outcomes, |outcome| outcome.arrived.faults as f64)?,
            faults_by_cause: FaultsByCause {
                zero_check: cause(|causes| causes.zero_check)?,
                zero_write: cause(|causes| causes.zero_write)?,
                data_write: cause(|causes| causes.data_write)?,
            },
            total_ms,
            total_ms_spread,
            gib_s: round(median_of(outcomes, gib_s)?),
            dest_rss: median_of(outcomes, |outcome| outcome.arrived.rss_bytes as f64)?,
            cpu_ms: round(median_of(outcomes, |outcome| outcome.cpu_ms)?),
            wire_bytes: median_of(outcomes, |outcome| outcome.moved.counts.wire_bytes as f64)?,
        })
    }
}

impl Report {
    /// The report of what was measured; None if no round was.
    pub fn new(setting: &Setting, measured: &Measured, machine: Machine) -> Option<Self> {
        let Measured { cases, codecs, live, late, stored, limits, scan } = measured;
        let mut figures = BTreeMap::new();
        for (case, policies) in cases {
            let counts = policies.first()?.1.first()?.moved.counts;
            figures.insert(
                case.name(),
                CaseFigures {
                    zero_pages: counts.zero_pages,
                    data_pages: counts.data_pages + counts.filled_pages,
                    policies: policies
                        .iter()
                        .map(|(policy, outcomes)| Some((policy.to_string(), Figures::new(outcomes)?)))
                        .collect::<Option<_>>()?,
                },
            );
        }
        let zeros = figures.get(Case::ResidentZeros.name())?;
        let zero_wire = zeros.policies.get(&ZeroPolicy::Drop.to_string())?.wire_bytes;
        let limit = median(limits)?;
        let (live_downtime_ms, live_downtime_ms_spread) = middle_of(live, downtime_ms)?;
        Some(Self {
            bench: "migrate",
            memory_bytes: setting.memory.get(),
            channels: super::trial::CHANNELS,
            ratios: Ratios::new(&figures, limit)?,
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
                downtime_ms: live_downtime_ms,
                downtime_ms_spread: live_downtime_ms_spread,
                total_ms: round(median_of(live, total_ms)?),
                postcopy_downtime_ms: round(median_of(late, downtime_ms)?),
                max_fault_us: median_of(late, |outcome| outcome.arrived.max_fault_us as f64)?,
                fully_resident_ms: round(median_of(late, |outcome| outcome.arrived.owed_us as f64 / 1e3)?),
            },
            stored: Stored {
                packed_pages: median_of(stored, |outcome| outcome.moved.counts.packed_pages as f64)? as u64,
                reinflated_pages: median_of(stored, |outcome| outcome.moved.counts.data_pages as f64)? as u64,
                gib_s: round(median_of(stored, gib_s)?),
                wire_bytes: median_of(stored, |outcome| outcome.moved.counts.wire_bytes as f64)?,
            },
            loopback_limit_gib_s: round(limit),
            loopback_limit_gib_s_spread: spread(limits)?.map(round),
            qemu: None,
            qemu_reason: "this bench does not drive QEMU",
            rounds: setting.rounds,
            quick: setting.quick,
            machine,
        })
    }
}

impl Ratios {
    fn new(cases: &BTreeMap<&'static str, CaseFigures>, limit_gib_s: f64) -> Option<Self> {
        let by_case = |ratio: &dyn Fn(&CaseFigures) -> Option<f64>| -> BTreeMap<&'static str, f64> {
            cases.iter().filter_map(|(name, case)| Some((*name, round(ratio(case)?)))).collect()
        };
        let policy = |case: &'_ CaseFigures, policy: ZeroPolicy| {
            let figures = case.policies.get(&policy.to_string())?;
            Some((figures.dest_faults, figures.total_ms))
        };
        let per = |figure: f64, pages: u64| (pages > 0).then(|| figure / pages as f64);
        let sparse = cases.get(Case::Sparse.name())?;
        let full = cases.get(Case::Full.name())?;
        let drop = ZeroPolicy::Drop;
        let rss = |case: &CaseFigures| Some(case.policies.get(&drop.to_string())?.dest_rss);
        let sparse_rss = rss(sparse)? - rss(cases.get(Case::Untouched.name())?)?;
        let full_gib_s = full.policies.get(&drop.to_string())?.gib_s;
        Some(Self {
            check_then_clear_faults: by_case(&|case| {
                per(policy(case, ZeroPolicy::CheckThenClear)?.0, case.zero_pages + case.data_pages)
            }),
            received_map_faults: by_case(&|case| {
                per(policy(case, ZeroPolicy::ReceivedMap)?.0, case.data_pages)
            }),
            drop_faults: by_case(&|case| per(policy(case, drop)?.0, case.zero_pages + case.data_pages)),
            drop_time: by_case(&|case| {
                Some(policy(case, drop)?.1 / policy(case, ZeroPolicy::CheckThenClear)?.1)
            }),
            sparse_resident: round(sparse_rss / (sparse.data_pages as f64 * PAGE_BYTES as f64)),
            full_of_limit: round(full_gib_s / limit_gib_s),
        })
    }
}
