//! The cost of moving a live region: by content, by policy for zero pages, by codec, and under
//! writes.
//!
//! The ways to receive take turns, another one first in each round, each into a fresh process. The
//! first round is discarded. The three policies receive into plain memory, where every page is
//! faulted in as it is touched. So other migrations do, the series' figures are of that, and the
//! ways differ in the policy alone. Pagoda's default, `drop` into a region whose pages are put in
//! place, is two ways of its own: by OS pages, and by huge frames. One more is plain memory in huge
//! pages, as QEMU's is. This module must never report a
//! run whose content differs at the destination: such a run ends the bench.

mod cases;
mod certificates;
mod cut_line;
pub mod destination;
mod live;
mod qemu;
mod recovery;
pub mod report;
mod sizes;
mod throttled;
mod trial;

use std::collections::BTreeSet;
use std::hint::black_box;
use std::ops::RangeInclusive;
use std::process::ExitCode;
use std::time::Instant;

use clap::{Args, ValueEnum};
use indicatif::ProgressBar;
use pagoda::migrate::{Codec, ZeroPolicy};
use pagoda::{Manager, Region};
use pagoda_core::page::{BasePage, HUGE_FRAME};
use pagoda_core::size::Bytes;
use pagoda_linux::mem::huge_frames::HugeFrames;
use pagoda_linux::mem::zero_scan::is_zero;
use serde_json::Value;

use crate::command;
use crate::load::data::{PAGE_BYTES, Pages};
use crate::measure::machine::last_level_cache_bytes;
use crate::measure::turns::{round_numbers, turns};
use crate::report::json;
use cases::{Case, USUAL, digest_of, write_page};
use certificates::Certificates;
use destination::Into;
use qemu::Qemu;
pub use qemu::guest;
use recovery::Recovery;
use report::{ByCodec, ByWay, Outcomes, Scan};
use throttled::Throttled;
use trial::{Idle, Outcome, Route};

/// The memory that a scan from the cache reads.
const CACHED_BYTES: usize = 256 << 10;

/// The part of `--help` on the keys.
const KEYS: &str = "\
Keys of the JSON, medians of the rounds that count, some with the least and the greatest in …_least and …_most; pages are of 4 KiB;
a part that --only leaves out is missing:
  cases.CASE                  untouched memory; resident-zeros, where zeroes were written to all pages; idle, where one page in 32
                              has content, and full, seven in eight, with zeroes in the others; sparse, one in each 2 MiB, the
                              others untouched. zero_pages were read and found zero, data_pages have content; a page that
                              holds no memory is neither
  cases.CASE.HOW              the cost of receiving. HOW is a policy, into plain memory: check-then-clear, received-map, drop; or where
                              drop has the kernel put pages in place: placed, a region in base pages of 4 KiB, and huge-frames, one of 2 MiB;
                              or thp, received-map into plain memory in transparent huge pages, as QEMU's is.
                              dest_faults of the whole process; faults_by_cause, of its threads that receive, while they look whether a
                              page is zero, make it so, and write content: zero_check, zero_write, data_write; total_ms until all was
                              confirmed; gib_s of content; moved_bytes that came to their places by a move out of a frame into which
                              they had been received or copied, and copied_bytes, which the kernel copied there: the rest was
                              written through the region's address, in plain memory all of it; dest_rss, resident bytes there that
                              are no file's; cpu_ms of both processes; wire_bytes that were sent; downtime_ms, from the stop of the
                              writer, which does nothing, until all was confirmed
  codecs.CODEC                none, lz4, zlib, zstd: the same by placed, of a quarter of the memory, 64 MiB at least, with
                              content of 3:1
  live                        all of the memory with content of 3:1, while it is written: dirty_mib_s, whole pages in a second;
                              rounds of sending before the writer was stopped; downtime_ms that it stood still; total_ms. With all
                              of it owed, to a reader that starts at once: postcopy_downtime_ms until the other side could go on, and from
                              then fully_resident_ms until it had all, and max_fault_us, its longest read till then
  postcopy                    of all reads of live there, while something was owed: read_us_p999, of 1000 reads 999 took at most
                              this, and read_us_max
  recovery                    64 MiB at most with all of it owed, over a line that is cut after the switch, at points of its bytes,
                              and comes back: lost, pages that were owed and never came; twice, pages that came more than once;
                              no_progress_ms, the longest time without content once there was a connection again
  throttled.PERCENT           16 MiB, with quick 8, on a line of 128 MiB/s, while all of it is written, a word of a page at a
                              time in random order, up to three times as fast; threads lose PERCENT of their time at most, 0 or 90. Three
                              runs, with quick one. rounds, downtime_ms and total_ms as of live; pages_before_s that the writer
                              writes in a second undisturbed, and pages_during_s from the first request to be slower until it is
                              stopped, null if there was none; delayed_faults that waited to slow it down
  tls_ratio                   gib_s of codecs.none with TLS on each channel, over that without
  stored                      as much content as that of codecs, all of it stored at the source: packed_pages that were sent as the
                              store had them, reinflated_pages that were unpacked before, or not kept packed where they arrived,
                              gib_s of content, wire_bytes
  wire                        zero_scan_gib_s, zero_scan_memory_gib_s: zero pages found in the cache and in memory, and beside the latter
                              memory_read_gib_s, the words of the same memory added up; the best of three. bytes_per_zero_page of
                              resident-zeros by placed
  ratios                      by case, missing where it has no such pages, dest_faults to zero and data pages: check_then_clear_faults,
                              placed_faults; to data pages: received_map_faults. By case, total_ms over that of check-then-clear:
                              drop_time, placed_time, huge_frames_time. sparse_resident and sparse_huge_resident, the resident bytes
                              of sparse by placed and by huge-frames beyond untouched, to its content; full_of_limit and
                              full_huge_of_limit, gib_s of full by placed and by huge-frames over loopback_limit_gib_s;
                              zero_scan_of_memory, zero_scan_memory_gib_s over memory_read_gib_s. All are ratios of medians
  ratios.untouched_to_qemu_time, ratios.full_to_qemu_rate  our total_ms by QEMU's, and our gib_s by QEMU's, of placed; missing
                              without qemu
  loopback_limit_gib_s        the same channels sending, and discarding on arrival
  sizes.MIB                   full of so many MiB, with a fresh region in each turn: pagoda, into a region with nothing asked for; thp;
                              and qemu, null without it, as qemu.full. ratio_vs_qemu and thp_ratio_vs_qemu, gib_s of either over
                              QEMU's, of each round
  qemu                        null if PAGODA_QEMU names no QEMU and there is no qemu-system-x86_64 on the PATH, or if it failed;
                              qemu_reason, null else, says why
  qemu.version                of that program
  qemu.thp, qemu.downtime_ms  of qemu.full: the part of the destination's memory that is in huge pages, and how long QEMU says that its
                              guest stood still
  qemu.untouched, qemu.full   the same memory moved by it, its multifd on 2 channels, in turn with ours: total_ms until its
                              destination had all, dest_faults from before that listened, dest_rss, wire_bytes, gib_s of content,
                              downtime_ms
  memory_bytes, channels, rounds  the size of the run";

/// The options of the bench.
#[derive(Args, Debug)]
#[command(after_long_help = KEYS)]
pub struct MigrateArgs {
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// A short run: little memory, one round, and none discarded
    #[arg(long)]
    quick: bool,
    /// The region that is moved [default: 1G, quick: 64M]
    #[arg(long, value_name = "SIZE")]
    memory: Option<Bytes>,
    /// Rounds that count, after one that is discarded [default: 5, quick: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: Option<u16>,
    /// The sizes at which full is moved beside QEMU, 64M at least [default: 64M,1G, quick: 64M]
    #[arg(long, value_name = "SIZES", value_delimiter = ',')]
    sizes: Vec<Bytes>,
    /// Measure this alone; can be given more than once
    #[arg(long, value_enum)]
    only: Vec<Part>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Each content by each way to receive, beside QEMU
    Cases,
    /// Codecs, and TLS
    Codecs,
    /// A region that is written meanwhile, by pre-copy and by post-copy
    Live,
    /// A line that is cut after the switch
    Recovery,
    /// A writer that outruns its line
    Throttled,
    /// Pages that are stored at the source
    Stored,
    /// Zero pages
    Wire,
    /// The sizes, beside QEMU
    Sizes,
}

impl Part {
    /// Its keys of the JSON.
    const fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Cases => &[
                "cases",
                "ratios",
                "loopback_limit_gib_s",
                "loopback_limit_gib_s_least",
                "loopback_limit_gib_s_most",
                "qemu",
                "qemu_reason",
            ],
            Self::Codecs => &["codecs", "tls_ratio"],
            Self::Live => &["live", "postcopy"],
            Self::Recovery => &["recovery"],
            Self::Throttled => &["throttled"],
            Self::Stored => &["stored"],
            Self::Wire => &["wire"],
            Self::Sizes => &["sizes"],
        }
    }
}

impl MigrateArgs {
    fn wants(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }

    /// Removes the figures of parts that were not measured.
    fn leave_out(&self, figures: &mut Value) {
        let left_out = Part::value_variants().iter().filter(|part| !self.wants(**part));
        for key in left_out.flat_map(|part| part.keys()) {
            figures.as_object_mut().and_then(|figures| figures.remove(*key));
        }
    }

    /// The sizes, each once.
    fn sizes(&self) -> BTreeSet<Bytes> {
        let own: &[Bytes] = match &self.sizes[..] {
            [] if self.quick => &[sizes::LEAST],
            [] => &[sizes::LEAST, Bytes::gib(1)],
            named => named,
        };
        own.iter().map(|size| (*size).max(sizes::LEAST)).collect()
    }
}

/// Runs `pagoda bench migrate`.
pub fn run(args: &MigrateArgs) -> anyhow::Result<ExitCode> {
    command::needs_managers()?;
    let memory = args.memory.unwrap_or(if args.quick { Bytes::mib(64) } else { Bytes::gib(1) });
    let memory = memory.max(Bytes::mib(64));
    let rounds = args.rounds.map_or(if args.quick { 1 } else { 5 }, usize::from);
    let wants = |part| args.wants(part);
    let wanted = if wants(Part::Sizes) { args.sizes() } else { BTreeSet::new() };
    sizes::check(wanted.last().copied())?;
    let runs = [
        (wants(Part::Cases), Case::ALL.len() * Way::ALL.len()),
        (wants(Part::Codecs), Codec::ALL.len() + 1),
        (wants(Part::Live), 2),
        (wants(Part::Stored), 1),
        (true, 3 * wanted.len()),
    ];
    let runs: usize = runs.iter().filter(|(is_wanted, _)| *is_wanted).map(|(_, runs)| runs).sum();
    let numbers = round_numbers(args.quick, rounds);
    let progress = command::progress((numbers.clone().count() * runs) as u64, "run")?;
    let bench = Bench { memory, numbers, progress };
    let [named, path] = [qemu::VARIABLE, "PATH"].map(std::env::var_os);
    let mut beside = Beside { limits: Vec::new(), qemu: Qemu::find(named.as_deref(), path.as_deref()) };
    let mut cases = Vec::new();
    for case in Case::ALL.into_iter().filter(|_| wants(Part::Cases)) {
        cases.push((case, bench.case(case, &mut beside)?));
    }
    let (codecs, tls) = if wants(Part::Codecs) { bench.codecs()? } else { Default::default() };
    let (live, late) = if wants(Part::Live) { bench.live()? } else { Default::default() };
    let throttled = if wants(Part::Throttled) { bench.throttled(args.quick)? } else { Vec::new() };
    let stored = if wants(Part::Stored) { bench.stored()? } else { Vec::new() };
    let points = if args.quick { 4 } else { 32 };
    let recovery = if wants(Part::Recovery) { bench.recovery(points)? } else { Recovery::default() };
    let Beside { limits, mut qemu } = beside;
    let by_size = wanted.into_iter().map(|size| sizes::measure(&bench, size, &mut qemu));
    let sizes = by_size.collect::<anyhow::Result<_>>()?;
    bench.progress.finish_and_clear();
    let qemu = qemu.map(Qemu::into_runs);
    let scan = wants(Part::Wire).then(|| scan(memory));
    let measured =
        Outcomes { cases, codecs, tls, live, late, recovery, throttled, stored, limits, sizes, qemu, scan };
    let mut figures = report::figures(&measured, memory, rounds);
    args.leave_out(&mut figures);
    let report = json::report("migrate", args.quick, figures);
    command::print(&report, args.json);
    Ok(ExitCode::SUCCESS)
}

struct Bench {
    memory: Bytes,
    /// Of the rounds: those after 0 count.
    numbers: RangeInclusive<usize>,
    progress: ProgressBar,
}

/// A way to receive: the policy for zero pages, and the kind of memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Way {
    name: &'static str,
    zero: ZeroPolicy,
    into: Into,
}

impl Way {
    const fn memory(name: &'static str, zero: ZeroPolicy) -> Self {
        Self { name, zero, into: Into::Memory }
    }
    const CHECK: Self = Self::memory("check-then-clear", ZeroPolicy::CheckThenClear);
    const MAP: Self = Self::memory("received-map", ZeroPolicy::ReceivedMap);
    const DROP: Self = Self::memory("drop", ZeroPolicy::Drop);
    const PLACED: Self = Self { name: "placed", zero: ZeroPolicy::Drop, into: Into::Region };
    const HUGE: Self = Self { name: "huge-frames", zero: ZeroPolicy::Drop, into: Into::HugeRegion };
    /// As QEMU from version 9 on.
    const THP: Self = Self { name: "thp", zero: ZeroPolicy::ReceivedMap, into: Into::HugeMemory };
    const ALL: [Self; 6] = [Self::CHECK, Self::MAP, Self::DROP, Self::PLACED, Self::HUGE, Self::THP];
    /// Nothing asked for, at either end. Of `sizes` alone.
    const DEFAULT: Self = Self { name: "pagoda", zero: ZeroPolicy::Drop, into: Into::LargeRegion };
}

/// The baselines with the same memory, each in turn with `placed`.
struct Beside {
    /// Rates of the loopback.
    limits: Vec<f64>,
    /// The runs of QEMU, or the reason of its first failure.
    qemu: Result<Qemu, String>,
}

impl Beside {
    fn measure(&mut self, case: Case, region: &Region, counts: bool) -> anyhow::Result<()> {
        let memory = Bytes::new(region.len() as u64);
        if case == Case::Full {
            let limit = trial::loopback_limit_gib_s(memory)?;
            self.limits.extend(counts.then_some(limit));
        }
        if let Ok(qemu) = &mut self.qemu
            && let Err(error) = qemu.measure(case, memory, || Ok(digest_of(region)?), counts)
        {
            self.qemu = Err(format!("{error:#}"));
        }
        Ok(())
    }
}

impl Bench {
    /// A manager with room for `memory`, resident and stored.
    fn manager(memory: Bytes, base: BasePage) -> anyhow::Result<Manager> {
        let budget = Bytes::new(memory.get() * 3 / 2).max(Bytes::mib(128));
        let builder = Manager::builder().budget(budget).base_page(base);
        // Without fault-around for OS pages: where most memory is untouched, only touched pages get
        // frames.
        Ok(builder.tune(|tuning| tuning.fault_around(base != BasePage::K4)).user_mode_only(true).build()?)
    }

    /// Runs a round of each of `kinds` in turn, another one first each time. Returns the outcomes
    /// of the rounds that count.
    fn rounds<K: Copy>(
        &self,
        kinds: &[K],
        mut one: impl FnMut(K, bool) -> anyhow::Result<Outcome>,
    ) -> anyhow::Result<Vec<(K, Vec<Outcome>)>> {
        let mut outcomes: Vec<_> = kinds.iter().map(|kind| (*kind, Vec::new())).collect();
        for round in self.numbers.clone() {
            for turn in turns(round, kinds.len()) {
                let (kind, outcomes) = &mut outcomes[turn];
                let outcome = one(*kind, round > 0)?;
                if round > 0 {
                    outcomes.push(outcome);
                }
                self.progress.inc(1);
            }
        }
        Ok(outcomes)
    }

    fn case(&self, case: Case, beside: &mut Beside) -> anyhow::Result<ByWay> {
        self.progress.set_message(case.name());
        let base = if case.leaves_untouched() { BasePage::K4 } else { BasePage::K64 };
        let manager = Self::manager(self.memory, base)?;
        let fresh = || -> anyhow::Result<Region> {
            let mut region = manager.region(self.memory).create()?;
            case.fill(&mut region);
            Ok(region)
        };
        let mut region = fresh()?;
        self.rounds(&Way::ALL, |way, counts| {
            if way == Way::PLACED {
                beside.measure(case, &region, counts)?;
            }
            // The last comparison read all of it, and has mapped the kernel's page of zeroes where
            // no page was.
            if case.leaves_untouched() {
                region = fresh()?;
            }
            // Memory that the last run gave back to the kernel is warm for this one, in pages of
            // the size in which dense content comes.
            if [Way::PLACED, Way::HUGE, Way::THP].contains(&way) {
                warm_huge(self.memory)?;
            } else {
                crate::warm(self.memory);
            }
            trial::run(&region, way.zero, way.into, Codec::None, &mut Idle)
        })
    }

    /// A region with content of the usual compression ratio.
    fn usual(manager: &Manager, memory: Bytes) -> anyhow::Result<Region> {
        let region = manager.region(memory).create()?;
        let pages = Pages::new(1, USUAL);
        (0..region.len() / PAGE_BYTES).for_each(|page| write_page(&region, &pages, page, 0));
        Ok(region)
    }

    /// By codec, and in turn with them as it is with TLS.
    fn codecs(&self) -> anyhow::Result<(ByCodec, Vec<Outcome>)> {
        self.progress.set_message("codecs");
        let memory = Bytes::new(self.memory.get() / 4).max(Bytes::mib(64));
        let manager = Self::manager(memory, BasePage::K64)?;
        let region = Self::usual(&manager, memory)?;
        let certificates = Certificates::new()?;
        let plain = Codec::ALL.map(|codec| (codec, false));
        let kinds = [&plain[..], &[(Codec::None, true)]].concat();
        let measured = self.rounds(&kinds, |(codec, is_tls), _| {
            crate::warm(memory);
            let route = if is_tls { Route::Tls(&certificates) } else { Route::Direct };
            trial::run_over(&region, &route, ZeroPolicy::default(), Into::Region, codec, &mut Idle)
        })?;
        let (tls, plain): (Vec<_>, Vec<_>) = measured.into_iter().partition(|((_, is_tls), _)| *is_tls);
        let plain = plain.into_iter().map(|((codec, _), outcomes)| (codec, outcomes)).collect();
        Ok((plain, tls.into_iter().flat_map(|(_, outcomes)| outcomes).collect()))
    }

    /// Cut off after a switch.
    fn recovery(&self, points: u64) -> anyhow::Result<Recovery> {
        self.progress.set_message("recovery");
        let memory = self.memory.min(Bytes::mib(64));
        let manager = Self::manager(memory, BasePage::K64)?;
        recovery::measure(&Self::usual(&manager, memory)?, points)
    }

    /// Moves a region under writes, by pre-copy and by post-copy.
    fn live(&self) -> anyhow::Result<(Vec<Outcome>, Vec<Outcome>)> {
        self.progress.set_message("live");
        let manager = Self::manager(self.memory, BasePage::K64)?;
        let region = Self::usual(&manager, self.memory)?;
        let measured = self.rounds(&[Into::Region, Into::LateRegion], |into, _| {
            crate::warm(self.memory);
            live::measure(&region, into)
        })?;
        let of = |which| {
            measured.iter().filter(move |(into, _)| *into == which).flat_map(|(_, outcomes)| outcomes)
        };
        Ok((of(Into::Region).copied().collect(), of(Into::LateRegion).copied().collect()))
    }

    /// Moves a region whose writer outruns the line, by each limit of slowing it down in turn.
    fn throttled(&self, quick: bool) -> anyhow::Result<Vec<Throttled>> {
        self.progress.set_message("throttled");
        let (memory, runs) = if quick { (Bytes::mib(8), 1) } else { (Bytes::mib(16), 3) };
        let manager = Self::manager(memory, BasePage::K64)?;
        let region = Self::usual(&manager, memory)?;
        let each = (0..runs).flat_map(|run| turns(run, throttled::PERCENT.len()));
        each.map(|turn| throttled::measure(&region, throttled::PERCENT[turn])).collect()
    }

    /// Moves a region that is swapped out entirely, with the same base page at both ends.
    fn stored(&self) -> anyhow::Result<Vec<Outcome>> {
        self.progress.set_message("stored");
        let memory = Bytes::new(self.memory.get() / 4).max(Bytes::mib(64));
        let manager = Self::manager(memory, BasePage::K64)?;
        let region = Self::usual(&manager, memory)?;
        let measured = self.rounds(&[()], |(), _| {
            // The comparison has swapped it in.
            region.page_out(0, region.len())?;
            trial::run(&region, ZeroPolicy::default(), Into::LargeRegion, Codec::Lz4, &mut Idle)
        })?;
        Ok(measured.into_iter().flat_map(|(_, outcomes)| outcomes).collect())
    }
}

/// Touches memory and frees it, in OS pages and in huge ones: memory that was freed page by page
/// need not be contiguous.
fn warm_huge(memory: Bytes) -> anyhow::Result<()> {
    crate::warm(memory);
    drop(HugeFrames::new(memory.as_usize() / HUGE_FRAME)?);
    Ok(())
}

/// The rate of finding zero pages, and of just reading the same memory.
fn scan(memory: Bytes) -> Scan {
    let beyond = last_level_cache_bytes().map_or(0, |bytes| 4 * bytes as usize).max(memory.as_usize() / 4);
    let zeroes = |len: usize| {
        let zeroes = vec![0u8; len];
        // Pages of this process, not the kernel's one page of zeroes.
        let mut zeroes = black_box(zeroes);
        zeroes.iter_mut().step_by(PAGE_BYTES).for_each(|byte| *byte = black_box(0));
        zeroes
    };
    let find = |bytes: &[u8]| bytes.chunks(PAGE_BYTES).filter(|page| is_zero(page)).count() as u64;
    let add = |bytes: &[u8]| {
        let words = bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word));
        words.fold(0, u64::wrapping_add)
    };
    let (cached, beyond) = (zeroes(CACHED_BYTES), zeroes(beyond.min(1 << 30)));
    Scan {
        cached_gib_s: best_gib_s(&cached, find),
        memory_gib_s: best_gib_s(&beyond, find),
        memory_read_gib_s: best_gib_s(&beyond, add),
    }
}

/// The rate of `pass` over `bytes`, the best of three.
fn best_gib_s(bytes: &[u8], pass: impl Fn(&[u8]) -> u64) -> f64 {
    let passes = (1usize << 31) / bytes.len() + 1;
    let mut best = 0.0f64;
    for _ in 0..3 {
        let started = Instant::now();
        for _ in 0..passes {
            black_box(pass(black_box(bytes)));
        }
        best = best.max((passes * bytes.len()) as f64 / started.elapsed().as_secs_f64() / f64::from(1 << 30));
    }
    best
}
