//! Base pages by density: what 4, 16 and 64 KiB cost and gain on buffers that are touched densely, sparsely and in parts,
//! beside the kernel's small, huge and 64 KiB pages.
//!
//! `rows` touches the patterns of `pattern` on one mapping for all sides (`buffer`), `sweep` goes through sizes and densities,
//! `redis` runs a server. Counters are told first, for no noise moves them; times are medians over rounds in which the
//! sides take turns. This module must never give two sides buffers of different sizes.

mod buffer;
mod mthp;
mod pattern;
mod redis;
mod rows;
mod sweep;
mod table;

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use pagoda_core::geometry::{Geometry, Scheme};
use pagoda_core::page::BasePage;
use pagoda_core::size::Bytes;
use pagoda_linux::plain_memory::Pages;
use serde::Serialize;

use super::machine::Machine;
use super::process::Cancel;
use super::report::round;
use super::scratch::Scratch;
use super::stats::median;
use super::warm;
use buffer::{Manner, Side};
use mthp::Mthp;
use pattern::Pattern;
use redis::Redis;
use rows::{Missing, Row, SideRows, Size};
use sweep::Density;

/// Sizes of the sweep, in MiB.
const SWEEP_MIB: [u64; 6] = [1, 4, 16, 64, 256, 1024];
/// Of which a short run does only these.
const SWEEP_QUICK: usize = 4;
/// The published figure is of 16 MiB.
const FILE_BYTES: usize = 16 << 20;
/// Entries of a TLB, of which any number gives the same ratio.
const TLB_ENTRIES: u32 = 64;

const AROUND: &str = "fault_around";
const AROUND_IN_THREAD: &str = "fault_around_in_thread";

/// Why a row of Pagoda's is null.
const NO_ENGINE: &str = "the engine does not do this yet";

/// What to measure.
#[derive(Args, Debug)]
pub struct BasePageArgs {
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// A short run: small buffers, a short sweep, one round
    #[arg(long)]
    quick: bool,
    /// The buffer, the same for all sides; a multiple of 2 MiB [default: 256M, quick: 32M]
    #[arg(long, value_name = "SIZE")]
    buffer: Option<Bytes>,
    /// Rounds that count, after one that is discarded [default: 3, quick: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: Option<u16>,
    /// For the time of the run, let every program have the kernel's 64 KiB pages without asking, so that they can be compared
    /// (root). A run that is killed leaves it so
    #[arg(long)]
    set_mthp: bool,
}

/// What all parts of a run share.
pub struct Setup {
    /// The path of this program.
    program: String,
    size: Size,
    rounds: usize,
    quick: bool,
    progress: ProgressBar,
}

/// Rows by name; one that can't be had is null, and `why` has its reason.
#[derive(Serialize)]
struct Group<T> {
    #[serde(flatten)]
    rows: BTreeMap<&'static str, Option<T>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    why: BTreeMap<&'static str, String>,
}

type Rows = BTreeMap<&'static str, Row>;

/// What the published geometry saves, computed for the buffer of this run: no such machine is at hand.
#[derive(Serialize)]
struct Sv39 {
    table_bytes_4k: u64,
    table_bytes_64k: u64,
    tlb_reach_ratio: f64,
}

/// Fault-around at 64 KiB, on a dense buffer.
#[derive(Serialize)]
struct FaultAround {
    first_touch_gib_s: f64,
    first_touch_gib_s_spread: [f64; 2],
    faults: u64,
    /// The same, served in the thread that touches.
    in_thread_first_touch_gib_s: f64,
    in_thread_first_touch_gib_s_spread: [f64; 2],
}

/// All that was found out.
#[derive(Serialize)]
struct Report {
    bench: &'static str,
    clusters: Group<Rows>,
    fault_around: Option<FaultAround>,
    kernel: Group<Rows>,
    break_even_density: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    break_even_why: Option<&'static str>,
    density_sweep: Vec<Density>,
    sweep_mib: Vec<u64>,
    map_touch_us: Group<Vec<f64>>,
    open2close_gib_s: Group<f64>,
    redis: Redis,
    sv39: Sv39,
    #[serde(skip_serializing_if = "Option::is_none")]
    tlb_misses_why: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    contiguous_percent_why: Option<String>,
    buffer_bytes: u64,
    random_loads: usize,
    rounds: usize,
    quick: bool,
    machine: Machine,
}

/// Runs `pagoda bench base-page`.
pub fn run(args: &BasePageArgs) -> anyhow::Result<ExitCode> {
    if !pagoda::userfaultfd_allows_managers() {
        bail!("this machine offers no userfaultfd with UFFDIO_MOVE; `pagoda doctor` says why");
    }
    let buffer = args.buffer.unwrap_or(Bytes::mib(if args.quick { 32 } else { 256 })).as_usize();
    if buffer == 0 || !buffer.is_multiple_of(2 << 20) {
        bail!("a buffer is a multiple of 2 MiB");
    }
    let mut setup = Setup {
        program: std::env::current_exe().context("finding this program")?.display().to_string(),
        size: Size { buffer, loads: if args.quick { 1 << 18 } else { 1 << 21 } },
        rounds: args.rounds.map_or(if args.quick { 1 } else { 3 }, usize::from),
        quick: args.quick,
        progress: ProgressBar::hidden(),
    };
    let cancel = Cancel::on_signals()?;
    let mthp = Mthp::set_up(args.set_mthp);
    let sides = Sides::new(mthp.as_ref().err());
    // Drawn on standard error, and there only if that is a terminal.
    setup.progress = ProgressBar::new(sides.steps(setup.rounds)).with_style(
        ProgressStyle::with_template("{msg} [{bar:30}] step {pos} of {len}, {elapsed} gone, {eta} to go")
            .context("the progress bar's template")?,
    );
    let report = Report::measure(&setup, &sides, &cancel)?;
    drop(mthp);
    setup.progress.finish_and_clear();
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print!("{}", report.table());
    }
    Ok(ExitCode::SUCCESS)
}

/// The sides of a run by name.
struct Sides {
    clusters: Vec<(&'static str, Side)>,
    /// Of a dense buffer only.
    fault_around: [(&'static str, Side); 2],
    kernel: Vec<(&'static str, Side)>,
    no_mthp: Option<String>,
}

impl Sides {
    fn new(no_mthp: Option<&String>) -> Self {
        let handlers = |base| Side::Pagoda(Manner::handlers(base));
        let in_thread = Manner { in_thread: true, ..Manner::handlers(BasePage::K64) };
        let mut kernel = vec![("4k", Side::Kernel(Pages::Small)), ("thp", Side::Kernel(Pages::Huge))];
        if no_mthp.is_none() {
            kernel.push(("mthp64k", Side::Kernel(Pages::Unasked)));
        }
        Self {
            clusters: vec![
                ("4K", handlers(BasePage::K4)),
                ("16K", handlers(BasePage::K16)),
                ("64K", handlers(BasePage::K64)),
                ("64K_in_thread", Side::Pagoda(in_thread)),
            ],
            fault_around: [
                (AROUND, Side::Pagoda(Manner { fault_around: true, ..Manner::handlers(BasePage::K64) })),
                (AROUND_IN_THREAD, Side::Pagoda(Manner { fault_around: true, ..in_thread })),
            ],
            kernel,
            no_mthp: no_mthp.cloned(),
        }
    }

    fn all(&self) -> impl Iterator<Item = (&'static str, Side)> {
        self.clusters.iter().chain(&self.kernel).copied()
    }

    /// The sides of a pattern.
    fn of(&self, pattern: Pattern) -> impl Iterator<Item = (&'static str, Side)> {
        let around = if pattern == Pattern::Dense { &self.fault_around[..] } else { &[] };
        self.all().chain(around.iter().copied())
    }

    /// The sides of what goes by size: Pagoda's as its managers are if nothing is said.
    fn of_sweep(&self) -> Vec<(&'static str, Side)> {
        let name = |name| match name {
            "4k" => "kernel_4k",
            "thp" => "kernel_thp",
            "mthp64k" => "kernel_mthp64k",
            "64K_in_thread" => "pagoda_in_thread",
            _ => "pagoda",
        };
        let chosen = self.all().filter(|(name, _)| !["4K", "16K"].contains(name));
        chosen.map(|(of, side)| (name(of), side)).collect()
    }

    fn steps(&self, rounds: usize) -> u64 {
        let rows: usize = Pattern::ALL.map(|pattern| self.of(pattern).count()).iter().sum();
        ((rows + 3) * (rounds + 1)) as u64 + 1 + redis::steps(rounds)
    }
}

impl<T> Group<T> {
    fn of(
        rows: impl IntoIterator<Item = (&'static str, Option<T>)>,
        no: Option<(&'static str, &String)>,
    ) -> Self {
        let mut group = Self { rows: rows.into_iter().collect(), why: BTreeMap::new() };
        if let Some((name, why)) = no {
            group.rows.insert(name, None);
            group.why.insert(name, why.clone());
        }
        group
    }
}

impl Report {
    fn measure(setup: &Setup, sides: &Sides, cancel: &Cancel) -> anyhow::Result<Self> {
        let mut rows: BTreeMap<&str, SideRows> = BTreeMap::new();
        let mut missing = Missing::default();
        for number in 0..=setup.rounds {
            for pattern in Pattern::ALL {
                setup.progress.set_message(pattern.name());
                for (name, side) in sides.of(pattern) {
                    cancel.check()?;
                    warm(Bytes::new(setup.size.buffer as u64));
                    let rows = rows.entry(name).or_default();
                    rows.measure(side, pattern, setup.size, number > 0, &mut missing)?;
                    setup.progress.inc(1);
                }
            }
        }
        setup.progress.set_message("settling");
        let everybody: Vec<_> = sides.all().collect();
        warm(Bytes::new(setup.size.buffer as u64));
        let settled = rows::settle(&everybody, setup.size.buffer)?;
        setup.progress.inc(1);
        let group = |of: &[(&'static str, Side)], mthp| {
            let rows = of.iter().map(|(name, _)| {
                let mut patterns = rows[name].finish();
                if let Some(row) = patterns.as_mut().and_then(|rows| rows.get_mut(Pattern::Sparse16.name())) {
                    let (after, peak) = settled[name];
                    (row.resident_after_5s, row.peak) = (Some(after), Some(peak.max(row.resident)));
                }
                (*name, patterns)
            });
            Group::of(rows, mthp)
        };
        let no_mthp = sides.no_mthp.as_ref();
        let (clusters, kernel) = (
            group(&sides.clusters, Some(("auto", &NO_ENGINE.to_owned()))),
            group(&sides.kernel, no_mthp.map(|why| ("mthp64k", why))),
        );

        let sweep_mib = &SWEEP_MIB[..if setup.quick { SWEEP_QUICK } else { SWEEP_MIB.len() }];
        let mut densities = Vec::new();
        let mut times: BTreeMap<&str, Vec<Vec<f64>>> = BTreeMap::new();
        let mut rates: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        let scratch = Scratch::new()?;
        let (file, sum) = file(&scratch)?;
        for number in 0..=setup.rounds {
            setup.progress.set_message("densities");
            let round = sweep::densities(setup.size.buffer / 4)?;
            setup.progress.inc(1);
            setup.progress.set_message("sizes");
            let mut of_round: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
            for mib in sweep_mib {
                for (name, side) in sides.of_sweep() {
                    cancel.check()?;
                    warm(Bytes::mib(*mib));
                    let us = sweep::map_and_touch_us(side, (mib << 20) as usize)?;
                    of_round.entry(name).or_default().push(us);
                }
            }
            setup.progress.inc(1);
            setup.progress.set_message("open to close");
            for (name, side) in sides.of_sweep() {
                warm(Bytes::new(FILE_BYTES as u64));
                let rate = sweep::open_to_close_gib_s(side, &file, FILE_BYTES, sum)?;
                if number > 0 {
                    rates.entry(name).or_default().push(rate);
                }
            }
            setup.progress.inc(1);
            if number > 0 {
                densities.push(round);
                of_round.into_iter().for_each(|(name, us)| times.entry(name).or_default().push(us));
            }
        }
        setup.progress.set_message("redis");
        let redis = redis::measure(setup, cancel)?;
        let density_sweep = sweep::density_medians(&densities);
        let break_even_density = sweep::break_even(&density_sweep).map(round);
        let no_mthp = no_mthp.map(|why| ("kernel_mthp64k", why));
        let by_size = |rounds: &Vec<Vec<f64>>| {
            let at = |size: usize| median(&rounds.iter().map(|round| round[size]).collect::<Vec<_>>());
            (0..sweep_mib.len()).map(|size| at(size).map(round)).collect()
        };
        Ok(Self {
            bench: "base-page",
            clusters,
            fault_around: FaultAround::of(&rows),
            kernel,
            break_even_density,
            break_even_why: break_even_density.is_none().then_some("64 KiB took longer at every density"),
            density_sweep,
            sweep_mib: sweep_mib.to_vec(),
            map_touch_us: Group::of(times.iter().map(|(name, rounds)| (*name, by_size(rounds))), no_mthp),
            open2close_gib_s: Group::of(
                rates.iter().map(|(name, rates)| (*name, median(rates).map(round))),
                no_mthp,
            ),
            redis,
            sv39: Sv39::of(setup.size.buffer)?,
            tlb_misses_why: missing.tlb_misses,
            contiguous_percent_why: missing.contiguous_percent,
            buffer_bytes: setup.size.buffer as u64,
            random_loads: setup.size.loads,
            rounds: setup.rounds,
            quick: setup.quick,
            machine: Machine::this(),
        })
    }
}

/// A file to read, in the page cache, and its sum.
fn file(scratch: &Scratch) -> anyhow::Result<(std::path::PathBuf, u64)> {
    let words: Vec<u64> = (0..FILE_BYTES as u64 / 8).map(super::data::mix).collect();
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let path = scratch.file("content");
    std::fs::write(&path, bytes).with_context(|| format!("writing {}", path.display()))?;
    Ok((path, sweep::sum_of(&words)))
}

impl FaultAround {
    fn of(rows: &BTreeMap<&str, SideRows>) -> Option<Self> {
        let dense = |name| rows.get(name)?.finish()?.remove(Pattern::Dense.name());
        let (row, in_thread) = (dense(AROUND)?, dense(AROUND_IN_THREAD)?);
        Some(Self {
            first_touch_gib_s: row.first_touch_gib_s,
            first_touch_gib_s_spread: row.first_touch_gib_s_spread,
            faults: row.faults,
            in_thread_first_touch_gib_s: in_thread.first_touch_gib_s,
            in_thread_first_touch_gib_s_spread: in_thread.first_touch_gib_s_spread,
        })
    }
}

impl Sv39 {
    fn of(buffer: usize) -> anyhow::Result<Self> {
        let geometry = |base| Geometry::new(Scheme::Sv39, base).context("Sv39 has this base page");
        let (small, large) = (geometry(BasePage::K4)?, geometry(BasePage::K64)?);
        let table =
            |geometry: &Geometry| geometry.software_table_bytes(std::iter::once(0..buffer as u64)).get();
        let reach = |geometry: &Geometry| geometry.tlb_reach(TLB_ENTRIES).get() as f64;
        Ok(Self {
            table_bytes_4k: table(&small),
            table_bytes_64k: table(&large),
            tlb_reach_ratio: reach(&large) / reach(&small),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_the_documented_shape_and_faults_are_one_for_each_base_page() {
        if !pagoda::userfaultfd_allows_managers() {
            assert!(std::env::var_os("PAGODA_NO_SKIPS").is_none(), "skipping is not allowed here");
            return eprintln!("SKIPPED bench base-page: this machine offers no userfaultfd with UFFDIO_MOVE");
        }
        let (buffer, progress) = (2 << 20, ProgressBar::hidden());
        let size = Size { buffer, loads: 1000 };
        let setup = Setup { program: "/nonexistent".to_owned(), size, rounds: 1, quick: true, progress };
        let sides = Sides::new(Some(&"it is not asked for".to_owned()));
        let report = Report::measure(&setup, &sides, &Cancel::default()).expect("measured");
        let json = serde_json::to_value(&report).expect("json");
        for (cluster, base) in [("4K", 4096), ("16K", 16384), ("64K", 65536), ("64K_in_thread", 65536)] {
            let of =
                |pattern: &str, key: &str| json["clusters"][cluster][pattern][key].as_u64().expect("a count");
            assert_eq!(of("dense", "faults"), (buffer / base) as u64, "{cluster}");
            assert_eq!(of("dense", "table_bytes"), 8 * (buffer / base) as u64, "{cluster}");
            assert_eq!(of("sparse16", "resident"), base as u64 * (buffer / 65536) as u64, "{cluster}");
            assert_eq!(of("partial", "resident"), of("partial", "touched"), "{cluster}");
            assert!(of("sparse16", "peak") >= of("sparse16", "resident_after_5s"), "{cluster}");
        }
        for missing in ["/kernel/mthp64k", "/map_touch_us/kernel_mthp64k", "/open2close_gib_s/kernel_mthp64k"]
        {
            assert!(json.pointer(missing).is_some_and(serde_json::Value::is_null), "{missing}");
        }
        assert_eq!(json["sv39"]["tlb_reach_ratio"], 16.0);
        let table = report.table();
        assert!(table.contains("it is not asked for") && table.contains("kernel 4k"), "{table}");
    }
}
