//! Plain memory touched in known patterns, every page that is read checked.
//!
//! The tables are small beside the data. This module must never report a figure of memory that read
//! wrong: that is an error.

use std::hint::black_box;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::{Args, ValueEnum};
use pagoda::{Bytes, Manager, Region};
use serde::{Deserialize, Serialize};

use super::DataArgs;
use crate::load::data::{FULL_CHECK_EVERY, PAGE_BYTES, PAGE_WORDS, Page, Pages, Random};
use crate::load::pattern::{Scatter, Zipf};
use crate::measure::histogram::{Histogram, Percentiles};

/// A touch counts as a fault if its first access took longer. A present page takes a tenth of it,
/// and no swap-in is faster.
const FAULT_NS: u64 = 1000;
/// The usual skew of YCSB.
const ZIPF_THETA: f64 = 0.99;
/// One touch in this many rewrites its page, in the patterns that write.
const WRITE_EVERY: u64 = 10;
/// Touches whose places are drawn ahead, outside the measured time.
const DRAWN_AHEAD: u64 = 4096;

/// The patterns to run, and their lengths.
#[derive(Args, Debug)]
pub struct PatternArgs {
    #[command(flatten)]
    data: DataArgs,
    /// Passes of the sequential phase.
    #[arg(long, default_value_t = 2)]
    passes: u64,
    /// Touches of the zipf phase.
    #[arg(long)]
    zipf: u64,
    /// Touches of the random phase.
    #[arg(long)]
    random: u64,
    /// A `cgroup.procs` file to join first.
    #[arg(long)]
    join: Option<PathBuf>,
    /// Take the memory from a library's manager with a budget of so many bytes, which serves faults
    /// in the worker's own thread.
    #[arg(long)]
    library: Option<u64>,
    /// The directory in which that manager spills.
    #[arg(long, default_value = "/var/tmp")]
    spill: PathBuf,
}

/// The access patterns, in the order in which they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Pattern {
    /// Every page is written once, in order.
    Fill,
    /// Every page is read in order, several times over.
    Sequential,
    /// Pages are drawn from a Zipf distribution over all of them, scattered; one in ten is
    /// rewritten.
    Zipf,
    /// Pages are drawn evenly; one in ten is rewritten.
    Random,
}

/// The figures of one phase of the worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Phase {
    /// The pattern of the phase.
    pub pattern: Pattern,
    /// Pages touched: 4 KiB each.
    pub touches: u64,
    /// GiB of touched pages a second.
    pub gib_s: f64,
    /// Touches whose first access took longer than a microsecond.
    pub faults: u64,
    /// Latencies of the first access of those.
    pub fault_us: Percentiles,
    /// Latencies of the first access of all touches.
    pub touch_us: Percentiles,
    /// Pages of which every byte was compared.
    pub pages_checked_whole: u64,
}

/// Runs all patterns, one after the other. Fails if memory read wrong.
pub fn patterns(args: &PatternArgs) -> anyhow::Result<Vec<Phase>> {
    super::join(args.join.as_deref())?;
    let count = args.data.bytes / PAGE_BYTES as u64;
    if count < 2 {
        bail!("the data is less than two pages");
    }
    let pages = args.data.pages();
    // One page more than needed, to start on a page boundary: the allocator puts its header before
    // the memory. Zeroed memory of this size comes straight from mmap, untouched.
    let mut region = args.library.map(|budget| managed(args, Bytes::new(budget))).transpose()?;
    let mut memory = vec![0u64; if region.is_some() { 0 } else { (count as usize + 1) * PAGE_WORDS }];
    let words = match &mut region {
        Some(region) => region.words_mut(),
        None => {
            let skip = memory.as_ptr().align_offset(PAGE_BYTES);
            &mut memory[skip..]
        }
    };
    let (data, _) = words.as_chunks_mut::<PAGE_WORDS>();
    let mut touch = Touch { pages, versions: vec![0; count as usize], data, meter: Meter::new() };

    let mut phases = Vec::new();
    for page in 0..count {
        touch.write(page);
    }
    phases.push(touch.finish(Pattern::Fill));
    for _ in 0..args.passes {
        for page in 0..count {
            touch.read(page)?;
        }
    }
    phases.push(touch.finish(Pattern::Sequential));
    let zipf = Zipf::new(count, ZIPF_THETA);
    let scatter = Scatter::new(count, args.data.seed);
    touch.drawn(args.zipf, args.data.seed ^ 1, |random| scatter.place(zipf.rank(random)))?;
    phases.push(touch.finish(Pattern::Zipf));
    touch.drawn(args.random, args.data.seed ^ 2, |random| random.below(count))?;
    phases.push(touch.finish(Pattern::Random));
    Ok(phases)
}

/// The memory of a library's manager, one region for all data.
fn managed(args: &PatternArgs, budget: Bytes) -> anyhow::Result<Region> {
    let manager = Manager::builder().budget(budget).serve_in_thread(true);
    let manager = manager.spill_to(&args.spill, Bytes::new(2 * args.data.bytes)).build()?;
    Ok(manager.region(Bytes::new(args.data.bytes)).create()?)
}

/// The memory under test, and the meter of touching it.
struct Touch<'a> {
    pages: Pages,
    /// The version of each page's last write; wraps around.
    versions: Vec<u8>,
    data: &'a mut [Page],
    meter: Meter,
}

struct Meter {
    touches: u64,
    pages_checked_whole: u64,
    faults: Histogram,
    all: Histogram,
    started: Instant,
    /// Time that does not count.
    paused: Duration,
}

impl Meter {
    fn new() -> Self {
        Self {
            touches: 0,
            pages_checked_whole: 0,
            faults: Histogram::new(),
            all: Histogram::new(),
            started: Instant::now(),
            paused: Duration::ZERO,
        }
    }

    fn count(&mut self, first_access: Duration) {
        let ns = u64::try_from(first_access.as_nanos()).unwrap_or(u64::MAX);
        self.touches += 1;
        self.all.add(ns);
        if ns > FAULT_NS {
            self.faults.add(ns);
        }
    }
}

impl Touch<'_> {
    /// Rewrites a page. The access to its first word faults it in.
    fn write(&mut self, page: u64) {
        let version = &mut self.versions[page as usize];
        *version = version.wrapping_add(1);
        let data = &mut self.data[page as usize];
        let word = self.pages.first_word(page, *version);
        let start = Instant::now();
        black_box(&mut *data)[0] = word;
        black_box(&mut *data);
        self.meter.count(start.elapsed());
        self.pages.write(page, *version, data);
    }

    /// Reads a page and compares a word of each eighth cache line, or all of it.
    fn read(&mut self, page: u64) -> anyhow::Result<()> {
        let version = self.versions[page as usize];
        let data = &self.data[page as usize];
        let start = Instant::now();
        black_box(black_box(data)[0]);
        self.meter.count(start.elapsed());
        let right = if self.meter.touches.is_multiple_of(FULL_CHECK_EVERY) {
            self.meter.pages_checked_whole += 1;
            self.pages.all_match(page, version, data)
        } else {
            self.pages.lines_match(page, version, data)
        };
        if !right {
            bail!("wrong data: page {page} of {} does not hold its version {version}", self.data.len());
        }
        Ok(())
    }

    /// Touches pages as they are drawn; drawing does not count.
    fn drawn(&mut self, touches: u64, seed: u64, draw: impl Fn(&mut Random) -> u64) -> anyhow::Result<()> {
        let mut random = Random::new(seed);
        let mut ahead = Vec::with_capacity(DRAWN_AHEAD as usize);
        for done in (0..touches).step_by(DRAWN_AHEAD as usize) {
            let drawing = Instant::now();
            ahead.clear();
            ahead.extend((0..DRAWN_AHEAD.min(touches - done)).map(|_| {
                let page = draw(&mut random);
                (page, random.below(WRITE_EVERY) == 0)
            }));
            self.meter.paused += drawing.elapsed();
            for &(page, write) in &ahead {
                if write { self.write(page) } else { self.read(page)? }
            }
        }
        Ok(())
    }

    /// The figures since the last phase ended.
    fn finish(&mut self, pattern: Pattern) -> Phase {
        let meter = std::mem::replace(&mut self.meter, Meter::new());
        let seconds = (self.meter.started - meter.started).saturating_sub(meter.paused).as_secs_f64();
        Phase {
            pattern,
            touches: meter.touches,
            gib_s: meter.touches as f64 * PAGE_BYTES as f64 / (1u64 << 30) as f64 / seconds,
            faults: meter.faults.total(),
            fault_us: meter.faults.percentiles(),
            touch_us: meter.all.percentiles(),
            pages_checked_whole: meter.pages_checked_whole,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> PatternArgs {
        PatternArgs {
            data: DataArgs { bytes: 1 << 20, ratio: 3.0, seed: 4 },
            passes: 2,
            zipf: 5000,
            random: 300,
            join: None,
            library: None,
            spill: PathBuf::new(),
        }
    }

    #[test]
    fn every_phase_touches_what_it_was_asked_to() {
        let phases = patterns(&small()).expect("right data");
        let touches: Vec<_> = phases.iter().map(|phase| (phase.pattern, phase.touches)).collect();
        let expected =
            [(Pattern::Fill, 256), (Pattern::Sequential, 512), (Pattern::Zipf, 5000), (Pattern::Random, 300)];
        assert_eq!(touches, expected);
        assert_eq!(phases[1].pages_checked_whole, 512 / FULL_CHECK_EVERY);
    }

    #[test]
    fn memory_that_changed_behind_its_back_is_an_error() {
        let pages = Pages::new(1, 2.0);
        let mut data = vec![[0; PAGE_WORDS]; 2];
        let mut touch = Touch { pages, versions: vec![0; 2], data: &mut data, meter: Meter::new() };
        touch.write(0);
        touch.write(1);
        assert!(touch.read(0).is_ok());
        touch.data[1] = [0; PAGE_WORDS];
        assert!(touch.read(1).expect_err("lost").to_string().contains("wrong data: page 1"));
    }
}
