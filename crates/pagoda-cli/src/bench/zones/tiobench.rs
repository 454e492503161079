//! Streams over a file twice the memory, as tiobench has them: by policy, by pattern, by threads.
//!
//! A file region over two zones of unequal size, made anew for each run, so that nothing is in memory at first. Each thread has
//! a stretch of the file for itself where it goes upwards, and pages of its own where it jumps; writes end with a sync that
//! counts. All policies of a row run in turns, each as often as the others. Every byte that is read is compared with what was
//! written last: a wrong one ends the bench. This module must never report a run of which a byte was not checked.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, anyhow, ensure};
use indicatif::ProgressBar;
use pagoda::zones::{Place, ZoneStats, age_ratio};
use pagoda::{Bytes, FileRegion, Manager, ZonePolicy};
use serde::Serialize;

use super::super::data::{PAGE_BYTES, Random};
use super::super::process::Cancel;
use super::super::scratch::Scratch;
use super::super::stats::{median, round, spread};
use super::content::Content;
use super::kernel_mmap::{self, KernelMmap};

/// What who goes upwards reads and writes at once; who jumps takes an OS page.
pub const BLOCK_BYTES: usize = 64 << 10;

/// What the patch's author measured with so many threads: streaming reads, fair over reset on failure.
pub const PUBLISHED: [(usize, f64); 5] = [(1, 1.1045), (2, 1.127), (4, 1.1174), (8, 1.0686), (16, 1.0849)];

/// Where the reader's part of the memory ends that is read again: it stays in it whatever the policy.
const REREAD_SHARE: usize = 4;

/// What is run.
pub struct Plan {
    /// The zones. The file is twice their sum.
    pub zones: [Bytes; 2],
    pub threads: Vec<usize>,
    /// Of streaming reads, and of each of the other patterns. Odd, so that one is in the middle.
    pub read_rounds: usize,
    pub rounds: usize,
    /// Pages that all threads together touch in a run that jumps.
    pub touches: usize,
    /// Times over which what is cached is read again.
    pub rereads: usize,
    /// The path of this program, which also streams by mmap(2); nothing, where that is left out.
    pub program: Option<String>,
}

impl Plan {
    /// That of `pagoda bench zones`.
    pub fn new(quick: bool, program: String) -> Self {
        let [small, large] = if quick { [8, 24] } else { [64, 192] };
        Self {
            zones: [Bytes::mib(small), Bytes::mib(large)],
            threads: PUBLISHED.map(|(threads, _)| threads).into(),
            read_rounds: if quick { 1 } else { 3 },
            rounds: 1,
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
            ..Self::new(true, String::new())
        }
    }

    fn memory(&self) -> Bytes {
        self.zones[0].saturating_add(self.zones[1])
    }
    fn file_bytes(&self) -> usize {
        2 * self.memory().as_usize()
    }
    fn rounds_of(&self, pattern: Pattern) -> usize {
        if pattern == Pattern::SeqRead { self.read_rounds } else { self.rounds }
    }

    /// How many runs it is, the kernel's and what is read again as one each.
    pub fn runs(&self) -> usize {
        let rounds: usize = Pattern::ALL.iter().map(|pattern| self.rounds_of(*pattern)).sum();
        2 + self.threads.len() * ZonePolicy::ALL.len() * rounds
    }
}

/// What the threads do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pattern {
    SeqWrite,
    SeqRead,
    RandWrite,
    RandRead,
}

impl Pattern {
    /// In this order what was written is read next.
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

/// Everything that was found out here.
#[derive(Serialize)]
pub struct Streams {
    /// By pattern, and by threads; nothing where no file can be mapped here.
    pub tiobench: BTreeMap<&'static str, BTreeMap<String, Row>>,
    /// Why there is nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tiobench_reason: Option<String>,
    pub kernel_mmap: KernelMmap,
    /// Of one thread that reads upwards, fair, over the kernel's; and over what it does if it is told.
    pub ratio_vs_mmap: Option<f64>,
    pub ratio_vs_mmap_advised: Option<f64>,
    /// A part of the file that is in memory, read again.
    pub cached_reread_mib_s: Option<f64>,
    pub zones_bytes: [u64; 2],
    pub file_bytes: usize,
    block_bytes: usize,
    touches: usize,
    read_rounds: usize,
    rounds: usize,
}

/// The policies side by side.
#[derive(Serialize)]
pub struct Row {
    #[serde(flatten)]
    pub policies: BTreeMap<&'static str, Cell>,
    /// The median over rounds, in each of which both ran.
    pub ratio_fair_vs_reset: f64,
    pub ratio_fair_vs_reset_spread: [f64; 2],
    /// Of streaming reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub published_ratio: Option<f64>,
}

/// What one policy did: all of it of the run whose rate is in the middle.
#[derive(Clone, Serialize)]
pub struct Cell {
    pub mib_s: f64,
    pub mib_s_spread: [f64; 2],
    /// Frames that each zone gave.
    pub allocs_by_zone: [u64; 2],
    pub resets: u64,
    /// Times no zone had a frame above its low watermark.
    pub shortages: u64,
    /// Base pages that were read ahead and went before anybody asked for them.
    pub evicted_before_use: u64,
    /// Bytes that were read of the file once more.
    pub bytes_read_twice: u64,
    /// How much older pages get in one zone than in the other before they go; nothing unless both moved some out.
    pub age_ratio: Option<f64>,
}

/// How much that is.
pub fn mib_s(bytes: usize, seconds: f64) -> f64 {
    bytes as f64 / f64::from(1 << 20) / seconds
}

impl Streams {
    /// Runs all of it.
    pub fn measure(plan: &Plan, progress: &ProgressBar, cancel: &Cancel) -> anyhow::Result<Self> {
        let mut streams = Self {
            tiobench: BTreeMap::new(),
            tiobench_reason: None,
            kernel_mmap: KernelMmap::default(),
            ratio_vs_mmap: None,
            ratio_vs_mmap_advised: None,
            cached_reread_mib_s: None,
            zones_bytes: plan.zones.map(Bytes::get),
            file_bytes: plan.file_bytes(),
            block_bytes: BLOCK_BYTES,
            touches: plan.touches,
            read_rounds: plan.read_rounds,
            rounds: plan.rounds,
        };
        if !pagoda::userfaultfd_allows_managers() {
            streams.tiobench_reason = Some("this machine offers no userfaultfd with UFFDIO_MOVE".to_owned());
            return Ok(streams);
        }
        let scratch = Scratch::new()?;
        let path = scratch.file("stream");
        let content = Content::new(plan.file_bytes() / PAGE_BYTES);
        content.make(&path)?;
        if let Err(error) = manager(plan, ZonePolicy::Fair)?.map_file(&path).map() {
            streams.tiobench_reason = Some(error.to_string());
            return Ok(streams);
        }
        progress.set_message("mmap");
        // First: as long as the file is as it was made.
        streams.kernel_mmap = match &plan.program {
            Some(program) => {
                kernel_mmap::measure(program, &path, &content, plan.memory(), plan.read_rounds, cancel)?
            }
            None => KernelMmap { reason: Some("left out".to_owned()), ..KernelMmap::default() },
        };
        progress.inc(1);
        let bench = Bench { plan, path: &path, content: &content, progress, cancel };
        for threads in &plan.threads {
            for pattern in Pattern::ALL {
                let row = bench.row(pattern, *threads)?;
                streams.tiobench.entry(pattern.name()).or_default().insert(threads.to_string(), row);
            }
        }
        streams.cached_reread_mib_s = Some(round(bench.read_again()?));
        content.check_file(&path).context("the file after all runs")?;
        let alone = streams.tiobench.get("seq_read").and_then(|rows| rows.get("1"));
        let ours = alone.map(|row| row.policies[ZonePolicy::Fair.name()].mib_s);
        let over = |kernel: Option<f64>| Some(round(ours? / kernel?));
        streams.ratio_vs_mmap = over(streams.kernel_mmap.seq_read_mib_s);
        streams.ratio_vs_mmap_advised = over(streams.kernel_mmap.seq_read_advised_mib_s);
        Ok(streams)
    }
}

fn manager(plan: &Plan, policy: ZonePolicy) -> anyhow::Result<Manager> {
    let [small, large] = plan.zones;
    let builder = Manager::builder().user_mode_only(true).zone_policy(policy);
    // As it is with the published ones, the larger one is asked first.
    Ok(builder.zone("large", large, Place::Local).zone("small", small, Place::Local).build()?)
}

/// What all runs share.
struct Bench<'a> {
    plan: &'a Plan,
    path: &'a Path,
    content: &'a Content,
    progress: &'a ProgressBar,
    cancel: &'a Cancel,
}

impl Bench<'_> {
    fn row(&self, pattern: Pattern, threads: usize) -> anyhow::Result<Row> {
        self.progress.set_message(format!("{} by {threads}", pattern.name()));
        let mut runs: BTreeMap<&'static str, Vec<Cell>> = BTreeMap::new();
        for number in 0..self.plan.rounds_of(pattern) {
            // Who goes first changes from round to round.
            let mut policies = ZonePolicy::ALL;
            policies.rotate_left(number % ZonePolicy::ALL.len());
            for policy in policies {
                self.cancel.check()?;
                let cell = self
                    .run(policy, pattern, threads, number)
                    .with_context(|| format!("{} by {threads} threads, {policy}", pattern.name()))?;
                runs.entry(policy.name()).or_default().push(cell);
                self.progress.inc(1);
            }
        }
        let (fair, reset) = (&runs[ZonePolicy::Fair.name()], &runs[ZonePolicy::ResetOnFailure.name()]);
        let ratios: Vec<f64> = fair.iter().zip(reset).map(|(fair, reset)| fair.mib_s / reset.mib_s).collect();
        let published = PUBLISHED.iter().find(|(of, _)| *of == threads && pattern == Pattern::SeqRead);
        Ok(Row {
            ratio_fair_vs_reset: round(median(&ratios).context("no round was run")?),
            ratio_fair_vs_reset_spread: spread(&ratios).context("no round was run")?.map(round),
            published_ratio: published.map(|(_, ratio)| *ratio),
            policies: runs.into_iter().filter_map(|(name, cells)| Some((name, middle(cells)?))).collect(),
        })
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
            mib_s: round(rate),
            mib_s_spread: [rate; 2],
            allocs_by_zone: std::array::from_fn(|zone| pages(zones[zone].allocated)),
            resets: stats.zones_resets,
            shortages: stats.zones_short,
            evicted_before_use: pages(file.evicted_unused),
            bytes_read_twice: file.read_again.get(),
            age_ratio: age_ratio(&zones).map(round),
        })
    }

    /// The rate of what is in memory.
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
        // What was ordered behind it may still be on its way.
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
    /// Through a stretch of its own, as long as the others'. How many bytes that were.
    fn go_up(&self, writes: bool) -> anyhow::Result<usize> {
        let blocks = self.region.len() as usize / BLOCK_BYTES;
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
            self.region.write_at((number * BLOCK_BYTES) as u64, &block)?;
        }
        Ok(bytes)
    }

    fn read(&self, blocks: std::ops::Range<usize>) -> anyhow::Result<()> {
        let mut block = vec![0; BLOCK_BYTES];
        for number in blocks {
            self.region.read_at((number * BLOCK_BYTES) as u64, &mut block)?;
            self.content.check(number * (BLOCK_BYTES / PAGE_BYTES), &block)?;
        }
        Ok(())
    }

    /// From one page to any other of its own. How many bytes that were.
    fn jump(&self, touches: usize, writes: bool, round_number: usize) -> anyhow::Result<usize> {
        // The same pages for all policies of a round.
        let mut random = Random::new((round_number << 8 | self.thread) as u64);
        let own = ((self.content.pages() - self.thread).div_ceil(self.threads)) as u64;
        let mut found = [0; PAGE_BYTES];
        for _ in 0..touches {
            let page = random.below(own) as usize * self.threads + self.thread;
            let offset = (page * PAGE_BYTES) as u64;
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

/// The run in the middle by its rate, with the spread of all.
fn middle(mut cells: Vec<Cell>) -> Option<Cell> {
    cells.sort_by(|one, other| one.mib_s.total_cmp(&other.mib_s));
    let mib_s_spread = [cells.first()?.mib_s, cells.last()?.mib_s];
    let cell = cells.swap_remove(cells.len() / 2);
    Some(Cell { mib_s_spread, ..cell })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_run_in_the_middle_is_told_whole() {
        let cell = |mib_s: f64| Cell {
            mib_s,
            mib_s_spread: [mib_s; 2],
            allocs_by_zone: [mib_s as u64; 2],
            resets: mib_s as u64,
            shortages: 0,
            evicted_before_use: 0,
            bytes_read_twice: 0,
            age_ratio: None,
        };
        let told = middle(vec![cell(3.0), cell(1.0), cell(2.0)]).expect("three runs");
        assert_eq!((told.mib_s, told.mib_s_spread, told.resets), (2.0, [1.0, 3.0], 2));
        assert!(middle(Vec::new()).is_none());
    }

    #[test]
    fn a_quick_plan_says_how_many_runs_it_has_and_one_run_is_in_the_middle() {
        let plan = Plan { threads: vec![1, 3], ..Plan::new(true, String::new()) };
        assert_eq!(plan.file_bytes(), 64 << 20);
        assert_eq!(plan.runs(), 2 + 2 * 5 * 4);
        assert!(Plan::new(false, String::new()).rounds_of(Pattern::SeqRead) % 2 == 1);
    }
}
