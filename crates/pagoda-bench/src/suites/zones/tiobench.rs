//! Streams over a file twice the memory, as in tiobench: by policy, by pattern, by threads.
//!
//! A file region over two zones of unequal size is made anew for each run, so that it starts cold.
//! A sequential thread has a stretch of the file for itself, a random one pages of its own. Writes
//! end with a sync that counts. All sides of a row run in turns, each as often as the others and
//! another one first in each round. Beside one sequential reader the kernel is one of them. Every
//! byte that is read is compared with the last write, and a wrong one ends the bench. This module
//! must never report a run of which a byte was not checked.

use std::cell::Cell as Counter;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, anyhow, ensure};
use clap::ValueEnum;
use indicatif::ProgressBar;
use pagoda::frames::zones::{Place, ZoneStats, age_ratio};
use pagoda::{Bytes, FileRegion, Manager, ZonePolicy};
use serde::Serialize;
use serde_json::{Value, json};

use super::content::Content;
use super::kernel_mmap;
use crate::load::data::{PAGE_BYTES, Random};
use crate::measure::process::Cancel;
use crate::measure::scratch::Scratch;
use crate::measure::stats::{Measured, middle as middle_of_values, round};
use crate::measure::turns::turns;

/// The bytes of one sequential read or write; a random one takes an OS page.
pub const BLOCK_BYTES: usize = 64 << 10;

/// The published gain with so many threads: streaming reads, fair over reset on failure.
pub const PUBLISHED: [(usize, f64); 5] = [(1, 1.1045), (2, 1.127), (4, 1.1174), (8, 1.0686), (16, 1.0849)];

/// The part of the memory that is read again, one in so many: it stays resident under every policy.
const REREAD_SHARE: usize = 4;

/// The runs to do.
pub struct Plan {
    /// The zones. The file is twice their sum.
    pub zones: [Bytes; 2],
    /// The numbers of threads. If the kernel has a side, the first is one thread.
    pub threads: Vec<usize>,
    /// The patterns, in their order.
    pub patterns: Vec<Pattern>,
    /// Rounds of each row. An odd number has one in the middle, else the faster of the middle two
    /// is reported.
    pub rounds: usize,
    /// Pages that all threads together touch in a random run.
    pub touches: usize,
    /// The number of times the cached part is read again.
    pub rereads: usize,
    /// The path of this program, which also streams by mmap(2); `None` where that is left out.
    pub program: Option<String>,
}

impl Plan {
    /// The plan of `pagoda bench zones`.
    pub fn new(quick: bool, rounds: usize, program: String) -> Self {
        let [small, large] = if quick { [8, 24] } else { [64, 192] };
        Self {
            zones: [Bytes::mib(small), Bytes::mib(large)],
            threads: if quick { vec![1, 4] } else { PUBLISHED.map(|(threads, _)| threads).into() },
            patterns: Pattern::ALL.into(),
            rounds,
            touches: if quick { 1000 } else { 4000 },
            rereads: if quick { 8 } else { 16 },
            program: Some(program),
        }
    }

    #[cfg(test)]
    pub fn tiny() -> Self {
        let zones = [Bytes::mib(4), Bytes::mib(12)];
        Self {
            zones,
            threads: vec![1, 3],
            touches: 40,
            rereads: 1,
            program: None,
            ..Self::new(true, 1, String::new())
        }
    }

    fn memory(&self) -> Bytes {
        self.zones[0].saturating_add(self.zones[1])
    }
    fn file_bytes(&self) -> usize {
        2 * self.memory().as_usize()
    }

    /// Whether a row has the kernel as a side.
    fn has_kernel(&self) -> bool {
        self.threads.first() == Some(&1) && self.patterns.contains(&Pattern::SeqRead)
    }

    /// The number of runs: the rows, the kernel in one of them with a round that is discarded, and
    /// the second reads.
    pub fn runs(&self) -> usize {
        let rows = self.threads.len() * self.patterns.len() * self.rounds;
        let beside_kernel = (self.rounds + 1) + ZonePolicy::ALL.len();
        rows * ZonePolicy::ALL.len() + usize::from(self.has_kernel()) * beside_kernel + 1
    }
}

/// The access pattern of the threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Pattern {
    /// Each thread writes a stretch in order.
    SeqWrite,
    /// Each thread reads a stretch in order.
    SeqRead,
    /// Each thread writes pages out of order.
    RandWrite,
    /// Each thread reads pages out of order.
    RandRead,
}

impl Pattern {
    /// In this order each read follows the write of its pages.
    const ALL: [Self; 4] = [Self::SeqWrite, Self::SeqRead, Self::RandWrite, Self::RandRead];

    const fn name(self) -> &'static str {
        match self {
            Self::SeqWrite => "seq_write",
            Self::SeqRead => "seq_read",
            Self::RandWrite => "rand_write",
            Self::RandRead => "rand_read",
        }
    }
    const fn writes(self) -> bool {
        matches!(self, Self::SeqWrite | Self::RandWrite)
    }
    const fn jumps(self) -> bool {
        matches!(self, Self::RandWrite | Self::RandRead)
    }
}

/// The figures of one policy, all from the run with the median rate.
#[derive(Clone, Serialize)]
pub struct Cell {
    pub mib_s: Measured,
    /// Frames that each zone gave.
    pub allocs_by_zone: [u64; 2],
    pub resets: u64,
    /// Times no zone had a frame above its low watermark.
    pub shortages: u64,
    /// Base pages read ahead and evicted before their first use.
    pub evicted_before_use: u64,
    /// Bytes of the file that were read a second time.
    pub bytes_read_twice: u64,
    /// The age of evicted pages in one zone over that in the other; `None` unless both evicted
    /// some.
    pub age_ratio: Option<f64>,
}

/// The rate of `bytes` in `seconds`.
pub fn mib_s(bytes: usize, seconds: f64) -> f64 {
    bytes as f64 / f64::from(1 << 20) / seconds
}

/// Runs all of it. The figures are by pattern and by threads; there are none where no file can be
/// mapped here.
pub fn measure(plan: &Plan, progress: &ProgressBar, cancel: &Cancel) -> anyhow::Result<Value> {
    let mut figures = json!({
        "tiobench": {},
        "kernel_mmap": { "seq_read_mib_s": null, "seq_read_advised_mib_s": null },
        "ratio_vs_mmap": null,
        "ratio_vs_mmap_advised": null,
        "cached_reread_mib_s": null,
        "zones_bytes": plan.zones.map(Bytes::get),
        "file_bytes": plan.file_bytes(),
        "block_bytes": BLOCK_BYTES,
        "touches": plan.touches,
        "rounds": plan.rounds,
    });
    if !pagoda::userfaultfd_allows_managers() {
        figures["tiobench_reason"] = "this machine offers no userfaultfd with UFFDIO_MOVE".into();
        return Ok(figures);
    }
    let scratch = Scratch::new()?;
    let path = scratch.file("stream");
    let content = Content::new(plan.file_bytes() / PAGE_BYTES);
    content.make(&path)?;
    if let Err(error) = manager(plan, ZonePolicy::Fair)?.map_file(&path).map() {
        figures["tiobench_reason"] = error.to_string().into();
        return Ok(figures);
    }
    let turn = Counter::new(0);
    let bench = Bench { plan, path: &path, content: &content, turn, progress, cancel };
    let mut alone = None;
    if plan.has_kernel() {
        // First: the kernel's side compares with the file as it was made.
        let mut kernel = kernel_mmap::Side::new(plan.program.as_deref(), &path, &content, plan.memory());
        let rounds = bench.runs(Pattern::SeqRead, 1, Some(&mut kernel))?;
        note_kernel(&mut figures, kernel, &rounds[ZonePolicy::Fair.name()]);
        alone = Some(row(Pattern::SeqRead, 1, rounds)?);
    } else {
        figures["kernel_mmap"]["reason"] = "one thread that reads upwards was left out".into();
    }
    for threads in &plan.threads {
        for &pattern in &plan.patterns {
            let is_alone = pattern == Pattern::SeqRead && *threads == 1;
            let row = match alone.take_if(|_| is_alone) {
                Some(row) => row,
                None => row(pattern, *threads, bench.runs(pattern, *threads, None)?)?,
            };
            figures["tiobench"][pattern.name()][threads.to_string()] = row;
        }
    }
    figures["cached_reread_mib_s"] = round(bench.read_again()?).into();
    content.check_file(&path).context("the file after all runs")?;
    Ok(figures)
}

/// Notes the kernel's figures, and `fair` over them by rounds in which both ran.
fn note_kernel(figures: &mut Value, kernel: kernel_mmap::Side, fair: &[Cell]) {
    let over = |kernel: &[f64]| {
        let ratios: Vec<f64> = fair.iter().zip(kernel).map(|(fair, rate)| fair.mib_s.median / rate).collect();
        middle_of_values(&ratios)
    };
    figures["ratio_vs_mmap"] = json!(over(&kernel.plain));
    figures["ratio_vs_mmap_advised"] = json!(over(&kernel.advised));
    figures["kernel_mmap"] = kernel.finish();
}

/// The policies side by side, and the ratio of two of them by rounds.
fn row(pattern: Pattern, threads: usize, runs: BTreeMap<&'static str, Vec<Cell>>) -> anyhow::Result<Value> {
    let (fair, reset) = (&runs[ZonePolicy::Fair.name()], &runs[ZonePolicy::ResetOnFailure.name()]);
    let ratios: Vec<f64> =
        fair.iter().zip(reset).map(|(fair, reset)| fair.mib_s.median / reset.mib_s.median).collect();
    let ratio = middle_of_values(&ratios).context("no round was run")?;
    let published = PUBLISHED.iter().find(|(of, _)| *of == threads && pattern == Pattern::SeqRead);
    let cells: BTreeMap<_, _> =
        runs.into_iter().filter_map(|(name, cells)| Some((name, middle(cells)?))).collect();
    let mut row = json!(cells);
    row["ratio_fair_vs_reset"] = json!(ratio);
    if let Some((_, ratio)) = published {
        row["published_ratio"] = json!(ratio);
    }
    Ok(row)
}

/// The sides of a round; `None` is the kernel. In `turn` after turn each side is the first.
fn sides(turn: usize, with_kernel: bool) -> Vec<Option<ZonePolicy>> {
    let policies = ZonePolicy::ALL.into_iter().map(Some);
    let sides: Vec<_> = with_kernel.then_some(None).into_iter().chain(policies).collect();
    turns(turn, sides.len()).map(|side| sides[side]).collect()
}

fn manager(plan: &Plan, policy: ZonePolicy) -> anyhow::Result<Manager> {
    let [small, large] = plan.zones;
    let builder = Manager::builder().user_mode_only(true).tune(|tuning| tuning.zone_policy(policy));
    // As with the published zones, the larger one is asked first.
    Ok(builder.zone("large", large, Place::Local).zone("small", small, Place::Local).build()?)
}

/// The state that all runs share.
struct Bench<'a> {
    plan: &'a Plan,
    path: &'a Path,
    content: &'a Content,
    /// Rounds so far, of any row: where each row has one round, no policy is always the first.
    turn: Counter<usize>,
    progress: &'a ProgressBar,
    cancel: &'a Cancel,
}

impl Bench<'_> {
    /// Runs all rounds of a row. The kernel's row is the first of all, with one more round, which
    /// is discarded.
    fn runs(
        &self,
        pattern: Pattern,
        threads: usize,
        mut kernel: Option<&mut kernel_mmap::Side>,
    ) -> anyhow::Result<BTreeMap<&'static str, Vec<Cell>>> {
        self.progress.set_message(format!("{} by {threads}", pattern.name()));
        let mut runs: BTreeMap<&'static str, Vec<Cell>> = BTreeMap::new();
        let discarded = usize::from(kernel.is_some());
        for number in 0..discarded + self.plan.rounds {
            let counts = number >= discarded;
            for side in sides(self.turn.get(), kernel.is_some()) {
                self.cancel.check()?;
                match (side, &mut kernel) {
                    (Some(policy), _) => {
                        let cell = self
                            .run(policy, pattern, threads, number)
                            .with_context(|| format!("{} by {threads} threads, {policy}", pattern.name()))?;
                        runs.entry(policy.name()).or_default().extend(counts.then_some(cell));
                    }
                    (None, Some(kernel)) => kernel.round(number, counts, self.cancel)?,
                    (None, None) => {}
                }
                self.progress.inc(1);
            }
            self.turn.update(|turn| turn + 1);
        }
        Ok(runs)
    }

    fn run(
        &self,
        policy: ZonePolicy,
        pattern: Pattern,
        threads: usize,
        round_number: usize,
    ) -> anyhow::Result<Cell> {
        let manager = manager(self.plan, policy)?;
        let region = manager.map_file(self.path).writable(pattern.writes()).map()?;
        let start = Instant::now();
        let bytes = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads)
                .map(|thread| {
                    let worker = Worker { region: &region, content: self.content, thread, threads };
                    let touches = self.plan.touches / threads;
                    scope.spawn(move || {
                        if pattern.jumps() {
                            worker.jump(touches, pattern.writes(), round_number)
                        } else {
                            worker.go_up(pattern.writes())
                        }
                    })
                })
                .collect();
            workers.into_iter().try_fold(0, |sum, worker| {
                let bytes = worker.join().map_err(|_| anyhow!("a thread of the benchmark panicked"))??;
                anyhow::Ok(sum + bytes)
            })
        })?;
        if pattern.writes() {
            region.sync()?;
        }
        let rate = mib_s(bytes, start.elapsed().as_secs_f64());
        let (stats, file) = (manager.stats(), region.stats());
        let zones: Vec<ZoneStats> = manager.zones().into_iter().map(|(_, zone)| zone).collect();
        ensure!(zones.len() == 2, "the engine has {} zones", zones.len());
        let pages = |bytes: Bytes| bytes.get() / stats.base_page_bytes;
        region.close()?;
        Ok(Cell {
            mib_s: Measured::once(round(rate)),
            allocs_by_zone: std::array::from_fn(|zone| pages(zones[zone].allocated)),
            resets: stats.zones_resets,
            shortages: stats.zones_short,
            evicted_before_use: pages(file.evicted_unused),
            bytes_read_twice: file.read_again.get(),
            age_ratio: age_ratio(&zones).map(round),
        })
    }

    /// The rate of reading resident pages.
    fn read_again(&self) -> anyhow::Result<f64> {
        self.cancel.check()?;
        self.progress.set_message("cached");
        let manager = manager(self.plan, ZonePolicy::Fair)?;
        let region = manager.map_file(self.path).map()?;
        let blocks = self.plan.memory().as_usize() / REREAD_SHARE / BLOCK_BYTES;
        let worker = Worker { region: &region, content: self.content, thread: 0, threads: 1 };
        worker.read(0..blocks)?;
        let read = region.stats().read;
        let start = Instant::now();
        for _ in 0..self.plan.rereads {
            worker.read(0..blocks)?;
        }
        let rate = mib_s(self.plan.rereads * blocks * BLOCK_BYTES, start.elapsed().as_secs_f64());
        // Readahead beyond the part may still be in flight.
        let more = region.stats().read.saturating_sub(read);
        ensure!(more <= Bytes::mib(4), "{more} of what is cached were read again");
        self.progress.inc(1);
        Ok(rate)
    }
}

/// One thread of a run.
struct Worker<'a> {
    region: &'a FileRegion,
    content: &'a Content,
    thread: usize,
    threads: usize,
}

impl Worker<'_> {
    /// Streams through a stretch of its own, as long as the others'. Returns its bytes.
    fn go_up(&self, writes: bool) -> anyhow::Result<usize> {
        let blocks = self.region.len() / BLOCK_BYTES;
        let at = |thread: usize| thread * blocks / self.threads;
        let stretch = at(self.thread)..at(self.thread + 1);
        let bytes = stretch.len() * BLOCK_BYTES;
        if !writes {
            self.read(stretch)?;
            return Ok(bytes);
        }
        let mut block = vec![0; BLOCK_BYTES];
        for number in stretch {
            self.content.write(number * (BLOCK_BYTES / PAGE_BYTES), &mut block);
            self.region.write_at(number * BLOCK_BYTES, &block)?;
        }
        Ok(bytes)
    }

    fn read(&self, blocks: std::ops::Range<usize>) -> anyhow::Result<()> {
        let mut block = vec![0; BLOCK_BYTES];
        for number in blocks {
            self.region.read_at(number * BLOCK_BYTES, &mut block)?;
            self.content.check(number * (BLOCK_BYTES / PAGE_BYTES), &block)?;
        }
        Ok(())
    }

    /// Touches pages of its own at random. Returns their bytes.
    fn jump(&self, touches: usize, writes: bool, round_number: usize) -> anyhow::Result<usize> {
        // The same pages for all policies of a round.
        let mut random = Random::new((round_number << 8 | self.thread) as u64);
        let own = ((self.content.pages() - self.thread).div_ceil(self.threads)) as u64;
        let mut found = [0; PAGE_BYTES];
        for _ in 0..touches {
            let page = random.below(own) as usize * self.threads + self.thread;
            let offset = page * PAGE_BYTES;
            if writes {
                self.content.write(page, &mut found);
                self.region.write_at(offset, &found)?;
            } else {
                self.region.read_at(offset, &mut found)?;
                self.content.check(page, &found)?;
            }
        }
        Ok(touches * PAGE_BYTES)
    }
}

/// The run with the median rate, and the spread of all.
fn middle(mut cells: Vec<Cell>) -> Option<Cell> {
    cells.sort_by(|one, other| one.mib_s.median.total_cmp(&other.mib_s.median));
    let [least, most] = [cells.first()?, cells.last()?].map(|cell| cell.mib_s.median);
    let cell = cells.swap_remove(cells.len() / 2);
    Some(Cell { mib_s: Measured { least, most, ..cell.mib_s }, ..cell })
}

#[cfg(test)]
#[path = "tiobench_test.rs"]
mod tests;
