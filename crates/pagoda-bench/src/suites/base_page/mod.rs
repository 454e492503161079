//! Base pages by density: cost and gain of 4, 16 and 64 KiB on buffers that are touched densely,
//! sparsely and in parts, beside the kernel's small, huge and 64 KiB pages.
//!
//! `rows` touches the patterns of `pattern` on one mapping for all sides (`buffer`), `sweep` goes
//! through sizes and densities, `redis` runs a server. Counters are reported first, for no noise
//! moves them. Times are medians over rounds in which the sides take turns. This module must never
//! give two sides buffers of different sizes.

mod buffer;
mod mthp;
mod pattern;
pub mod redis;
mod report;
mod rows;
mod sides;
mod sweep;
pub mod table;

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use indicatif::ProgressBar;
use pagoda_core::page::HUGE_FRAME;
use pagoda_core::size::Bytes;
use pagoda_linux::mem::huge_frames::HugeFrames;
use serde_json::{Value, json};

use crate::command;
use crate::measure::process::Cancel;
use crate::measure::scratch::Scratch;
use crate::measure::stats::{median, median_of, round};
use crate::measure::turns::turns;
use crate::report::json;
use crate::warm;
use buffer::Side;
use mthp::Mthp;
use pattern::Pattern;
use report::Group;
use rows::{Missing, SideRows, Size};
use sides::Sides;

/// Sizes of the sweep, in MiB.
const SWEEP_MIB: [u64; 6] = [1, 4, 16, 64, 256, 1024];
/// The first sizes of the sweep, which a short run is limited to.
const SWEEP_QUICK: usize = 4;
/// The size of the file that is read, that of the published figure.
const FILE_BYTES: usize = 16 << 20;

/// The part of `--help` on the keys.
const KEYS: &str = "\
Keys of the JSON; a figure that can't be had is null, and why, or a key that ends so, has the reason:
  clusters.SIDE.PATTERN, kernel.SIDE.PATTERN  Pagoda by base page and serving thread (4K, 16K, 64K, 64K_in_thread, auto), and the
                              kernel by its pages (4k, thp, mthp64k); of dense, sparse16, mixed, partial: faults,
                              table_bytes, kernel_table_bytes, resident and touched bytes, first_touch_gib_s, random_load_ns,
                              tlb_misses, contiguous_percent; of sparse16 also resident_after_5s and peak. Why figures are missing:
                              tlb_misses_why, contiguous_percent_why, break_even_why, and why beside the sides of a group
  fault_around                a dense buffer at 64 KiB: first_touch_gib_s and faults, and in_thread_first_touch_gib_s
  density_sweep, break_even_density  by density, the part of each 64 KiB that is touched: us_per_64k_at_4k and us_per_64k_at_64k, by base
                              pages of 4 and 64 KiB; the density from which on 64 KiB takes less time
  sweep_mib, map_touch_us     sizes, and by side how long mapping and touching each takes: kernel_4k, kernel_thp, kernel_mthp64k,
                              pagoda (with its defaults), pagoda_64k, pagoda_in_thread
  map_touch_16mib_ratio_vs_thp  by side: that of 16 MiB over kernel_thp, the median of the rounds; the published figure is of this
  open2close_gib_s            by side: a file opened, read into fresh memory, added up and closed
  redis                       by redis-benchmark over TCP on loopback, of kernel_4k, and of kernel_thp, pagoda_64k and pagoda_2m, where the server
                              asks for huge pages, and has them under Pagoda, too, as long as it has room: get_ops and
                              set_ops with 64 requests in flight, p50_ms of a GET alone; ratio_vs_thp of GET; keys;
                              get_ratio_vs_4k by side: get_ops over those of kernel_4k, the median of the rounds
  sv39                        the saving of the published geometry, computed and not measured: table_bytes_4k, table_bytes_64k and
                              tlb_reach_ratio
  buffer_bytes, random_loads, rounds  the size of the run";

/// The options of the bench.
#[derive(Args, Debug)]
#[command(after_long_help = KEYS)]
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
    /// For the time of the run, let every program have the kernel's 64 KiB pages without asking, so
    /// that they can be compared (root). A run that is killed leaves it so
    #[arg(long)]
    set_mthp: bool,
}

/// The settings that all parts of a run share.
pub struct Setup {
    /// The path of this program.
    program: String,
    size: Size,
    rounds: usize,
    quick: bool,
    progress: ProgressBar,
}

/// Runs `pagoda bench base-page`.
pub fn run(args: &BasePageArgs) -> anyhow::Result<ExitCode> {
    command::needs_managers()?;
    let buffer = args.buffer.unwrap_or(Bytes::mib(if args.quick { 32 } else { 256 })).as_usize();
    if buffer == 0 || !buffer.is_multiple_of(2 << 20) {
        bail!("a buffer is a multiple of 2 MiB");
    }
    let mut setup = Setup {
        program: command::this_program()?,
        size: Size { buffer, loads: if args.quick { 1 << 18 } else { 1 << 21 } },
        rounds: args.rounds.map_or(if args.quick { 1 } else { 3 }, usize::from),
        quick: args.quick,
        progress: ProgressBar::hidden(),
    };
    let cancel = Cancel::on_signals()?;
    let mthp = Mthp::set_up(args.set_mthp);
    let sides = Sides::new(mthp.as_ref().err());
    setup.progress = command::progress(sides.steps(setup.rounds), "step")?;
    let report = setup.measure(&sides, mthp.ok(), &cancel)?;
    setup.progress.finish_and_clear();
    command::print(&report, args.json);
    Ok(ExitCode::SUCCESS)
}

impl Setup {
    fn measure(&self, sides: &Sides, mthp: Option<Mthp>, cancel: &Cancel) -> anyhow::Result<Value> {
        let setup = self;
        let mut rows: BTreeMap<&str, SideRows> = BTreeMap::new();
        let mut missing = Missing::default();
        for number in 0..=setup.rounds {
            for pattern in Pattern::ALL {
                setup.progress.set_message(pattern.name());
                for (name, side) in in_turn(number, sides.of(pattern)) {
                    cancel.check()?;
                    warm_all(Bytes::new(setup.size.buffer as u64))?;
                    let rows = rows.entry(name).or_default();
                    rows.measure(side, pattern, setup.size, number > 0, &mut missing)?;
                    setup.progress.inc(1);
                }
            }
        }
        setup.progress.set_message("settling");
        let everybody: Vec<_> = sides.all().collect();
        warm_all(Bytes::new(setup.size.buffer as u64))?;
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
        let (clusters, kernel) =
            (group(&sides.clusters, None), group(&sides.kernel, no_mthp.map(|why| ("mthp64k", why))));

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
                for (name, side) in in_turn(number, sides.of_sweep()) {
                    cancel.check()?;
                    warm_all(Bytes::mib(*mib))?;
                    let us = sweep::map_and_touch_us(side, (mib << 20) as usize)?;
                    of_round.entry(name).or_default().push(us);
                }
            }
            setup.progress.inc(1);
            setup.progress.set_message("open to close");
            for (name, side) in in_turn(number, sides.of_sweep()) {
                warm_all(Bytes::new(FILE_BYTES as u64))?;
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
        // The server has no 64 KiB pages of the kernel's on any side.
        drop(mthp);
        setup.progress.set_message("redis");
        let redis = redis::measure(setup, cancel)?;
        let density_sweep = sweep::density_medians(&densities);
        let break_even_density = sweep::break_even(&density_sweep).map(round);
        let no_mthp = no_mthp.map(|why| ("kernel_mthp64k", why));
        let by_size = |rounds: &Vec<Vec<f64>>| {
            (0..sweep_mib.len())
                .map(|size| median_of(rounds, |round| round[size]).map(round))
                .collect::<Option<Vec<_>>>()
        };
        let open2close = rates.iter().map(|(name, rates)| (*name, median(rates).map(round)));
        let mut figures = json!({
            "clusters": clusters,
            "fault_around": report::fault_around(&rows),
            "kernel": kernel,
            "break_even_density": break_even_density,
            "density_sweep": density_sweep,
            "sweep_mib": sweep_mib,
            "map_touch_16mib_ratio_vs_thp": report::ratios_vs_thp(&times, sweep_mib),
            "map_touch_us": Group::of(times.iter().map(|(name, rounds)| (*name, by_size(rounds))), no_mthp),
            "open2close_gib_s": Group::of(open2close, no_mthp),
            "redis": redis,
            "sv39": report::sv39(setup.size.buffer)?,
            "buffer_bytes": setup.size.buffer,
            "random_loads": setup.size.loads,
            "rounds": setup.rounds,
        });
        let never = break_even_density.is_none().then(|| "64 KiB took longer at every density".to_owned());
        for (key, why) in [
            ("break_even_why", never),
            ("tlb_misses_why", missing.tlb_misses),
            ("contiguous_percent_why", missing.contiguous_percent),
        ] {
            if let Some(why) = why {
                figures[key] = why.into();
            }
        }
        Ok(json::report("base-page", setup.quick, figures))
    }
}

/// The sides in the order of a round.
fn in_turn<T: Copy>(round: usize, sides: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
    let sides: Vec<T> = sides.into_iter().collect();
    turns(round, sides.len()).map(move |side| sides[side])
}

/// Warms memory for the next side, in small and in huge pages: a virtual machine's host takes back
/// both.
fn warm_all(bytes: Bytes) -> anyhow::Result<()> {
    warm(bytes);
    HugeFrames::new(bytes.as_usize().div_ceil(HUGE_FRAME)).context("touching huge frames").map(drop)
}

/// A file to read, in the page cache, and its sum.
fn file(scratch: &Scratch) -> anyhow::Result<(std::path::PathBuf, u64)> {
    let words: Vec<u64> = (0..FILE_BYTES as u64 / 8).map(crate::load::data::mix).collect();
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let path = scratch.file("content");
    std::fs::write(&path, bytes).with_context(|| format!("writing {}", path.display()))?;
    Ok((path, sweep::sum_of(&words)))
}

#[cfg(test)]
mod tests {
    use pagoda_core::space::radix::Radix;

    use super::*;

    #[test]
    fn json_has_the_documented_shape_and_faults_are_one_for_each_base_page() {
        if pagoda_linux::testing::skip::skip_without_moves("bench base-page") {
            return;
        }
        let (buffer, progress) = (2 << 20, ProgressBar::hidden());
        let size = Size { buffer, loads: 1000 };
        let setup = Setup { program: "/nonexistent".to_owned(), size, rounds: 1, quick: true, progress };
        let sides = Sides::new(Some(&"it is not asked for".to_owned()));
        let json = setup.measure(&sides, None, &Cancel::default()).expect("measured");
        crate::report::keys::expect_told("base-page", KEYS, &json);
        for (cluster, base) in [("4K", 4096), ("16K", 16384), ("64K", 65536), ("64K_in_thread", 65536)] {
            let of =
                |pattern: &str, key: &str| json["clusters"][cluster][pattern][key].as_u64().expect("a count");
            assert_eq!(of("dense", "faults"), (buffer / base) as u64, "{cluster}");
            let table_words = Radix::words_for(buffer / base).expect("few");
            assert_eq!(of("dense", "table_bytes"), 8 * table_words as u64, "{cluster}");
            assert_eq!(of("sparse16", "resident"), base as u64 * (buffer / 65536) as u64, "{cluster}");
            assert_eq!(of("partial", "resident"), of("partial", "touched"), "{cluster}");
            assert!(of("sparse16", "peak") >= of("sparse16", "resident_after_5s"), "{cluster}");
        }
        for missing in ["/kernel/mthp64k", "/map_touch_us/kernel_mthp64k", "/open2close_gib_s/kernel_mthp64k"]
        {
            assert!(json.pointer(missing).is_some_and(serde_json::Value::is_null), "{missing}");
        }
        assert_eq!(json["sv39"]["tlb_reach_ratio"], 16.0);
        let table = table::table(&json);
        assert!(table.contains("it is not asked for") && table.contains("kernel 4k"), "{table}");
    }
}
