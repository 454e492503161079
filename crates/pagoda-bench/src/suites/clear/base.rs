//! First touches of base pages: by the kernel, by Pagoda with memory taken in the fault, and with
//! frames made ready ahead.
//!
//! Each page is touched in an order that defeats readahead, and written whole: alone, and beside a
//! busy thread, which a move interrupts and a copy does not. Before and after each turn of ready
//! frames the pool is full, so that no thread clears while others are timed. This module must never
//! report figures of frames that were not ready as those of ready ones.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use pagoda::{BasePage, Manager};
use pagoda_core::budget::ready_base_most;
use pagoda_core::page::OS_PAGE;
use pagoda_core::size::Bytes;
use pagoda_linux::mem::contiguity::contiguous_bytes;
use pagoda_linux::mem::huge_frames::HugeFrames;
use pagoda_linux::mem::range::PageRange;
use serde::Serialize;
use serde_json::{Value, json};

use super::Setup;
use super::thrash::Thrashers;
use crate::measure::process::Cancel;
use crate::measure::stats::{median, round};
use crate::measure::turns::turns;

const BUDGET: Bytes = Bytes::gib(1);
const BASE: usize = BasePage::K64.bytes();

/// The time that the frames of a round have to be ready.
const AHEAD_MOST: Duration = Duration::from_secs(20);

/// The memory that a busy thread writes through.
const BUSY_BYTES: u64 = 1 << 20;

/// Median microseconds for each base page: the touch alone, and the write of all of it included.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Times {
    pub touch_us: f64,
    pub whole_us: f64,
}

#[derive(Default)]
struct Samples {
    touch_us: Vec<f64>,
    whole_us: Vec<f64>,
}

impl Samples {
    fn page(&mut self, mut write: impl FnMut(usize, &[u8])) {
        let begin = Instant::now();
        write(0, &[1]);
        self.touch_us.push(begin.elapsed().as_secs_f64() * 1e6);
        write(0, &[7; BASE]);
        self.whole_us.push(begin.elapsed().as_secs_f64() * 1e6);
    }

    fn times(&self) -> Times {
        let middle = |us: &[f64]| round(median(us).unwrap_or(f64::NAN));
        Times { touch_us: middle(&self.touch_us), whole_us: middle(&self.whole_us) }
    }
}

/// The numbers of a round's pages, no two neighbours in sequence.
fn order(pages: usize) -> impl Iterator<Item = usize> {
    // An odd step visits every page of a power of two.
    (0..pages).map(move |number| number * 37 % pages)
}

fn pages() -> usize {
    (ready_base_most(BUDGET).as_usize() / BASE).next_power_of_two()
}

/// A manager, and the figures of its regions.
struct Side {
    manager: Manager,
    is_ready: bool,
    samples: Samples,
    contiguous_percent: Option<f64>,
}

impl Side {
    fn new(is_ready: bool, in_thread: bool) -> anyhow::Result<Self> {
        // Fault-around would fill pages in parts, with memory of the kernel's.
        let builder = Manager::builder().budget(BUDGET).base_page(BasePage::K64).user_mode_only(true);
        let builder = builder.tune(|tuning| tuning.fault_around(false));
        let builder = builder
            .tune(|tuning| tuning.clear_ahead(if is_ready { 100 } else { 0 }))
            .serve_in_thread(in_thread);
        let manager = builder.build().context("starting Pagoda")?;
        Ok(Self { manager, is_ready, samples: Samples::default(), contiguous_percent: None })
    }

    fn round(&mut self) -> anyhow::Result<()> {
        let mut region =
            self.manager.region(Bytes::new((pages() * BASE) as u64)).create().context("a region")?;
        if self.is_ready {
            self.await_ready()?;
        }
        let before = self.manager.stats().faults_zero_ready;
        for page in order(pages()) {
            self.samples.page(|at, bytes| region.write_at(page * BASE + at, bytes).expect("written"));
        }
        let taken = self.manager.stats().faults_zero_ready - before;
        let (taken, pages) = (taken, pages() as u64);
        ensure!(
            !self.is_ready || taken >= pages - pages / 8,
            "only {taken} of {pages} base frames were ready when they were wanted"
        );
        let frames = contiguous_bytes(PageRange::at(region.as_ptr().addr(), region.len()), BASE)?;
        self.contiguous_percent =
            frames.map(|(present, contiguous)| round(100.0 * contiguous as f64 / present as f64));
        drop(region);
        if self.is_ready { self.await_ready() } else { Ok(()) }
    }

    /// Waits for ready frames. A first fault asks for them: none is made ready before.
    fn await_ready(&self) -> anyhow::Result<()> {
        let mut asking = self.manager.region(Bytes::new(BASE as u64)).create().context("a region")?;
        asking.write_at(0, &[1]).expect("written");
        let begin = Instant::now();
        while self.manager.stats().ready_bytes < ready_base_most(BUDGET).get() {
            ensure!(
                begin.elapsed() < AHEAD_MOST,
                "frames are not got ready: other programs have taken all processors for {AHEAD_MOST:?}"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn ready_cpu_us(&self) -> f64 {
        let stats = self.manager.stats();
        // Frames in the pool and frames taken: where memory suffices there are no others.
        let frames = stats.ready_bytes / BASE as u64 + stats.faults_zero_ready;
        round(stats.clearing_ahead_ns as f64 / 1e3 / frames.max(1) as f64)
    }
}

/// The kernel's side: a base page is sixteen faults.
fn kernel(samples: &mut Samples) -> anyhow::Result<()> {
    let map = || HugeFrames::untouched((pages() * BASE).div_ceil(2 << 20), false).context("mapping memory");
    // A virtual machine's host takes back memory after some idle seconds.
    let mut warm = map()?;
    warm.populate().context("warming the kernel's memory")?;
    drop(warm);
    let mut memory = map()?;
    for page in order(pages()) {
        let bytes = &mut memory.bytes()[page * BASE..][..BASE];
        samples.page(|at, from| match from.len() {
            1 => bytes.iter_mut().step_by(OS_PAGE).for_each(|byte| *byte = from[0]),
            len => bytes[at..at + len].copy_from_slice(from),
        });
    }
    Ok(())
}

/// Measures all sides, alone and beside a busy thread.
pub fn measure(setup: &Setup, cancel: &Cancel) -> anyhow::Result<Vec<Value>> {
    [0, 1].into_iter().map(|busy_threads| row(setup, busy_threads, cancel)).collect()
}

fn row(setup: &Setup, busy_threads: usize, cancel: &Cancel) -> anyhow::Result<Value> {
    let _busy = Thrashers::start(busy_threads, BUSY_BYTES / 2);
    let mut sides =
        [Side::new(false, false)?, Side::new(true, false)?, Side::new(false, true)?, Side::new(true, true)?];
    let mut of_kernel = Samples::default();
    for number in 0..=setup.rounds {
        cancel.check()?;
        setup.progress.inc(1);
        if number == 1 {
            // The first round warms all memory.
            of_kernel = Samples::default();
            sides.iter_mut().for_each(|side| side.samples = Samples::default());
        }
        for side in turns(number, 1 + sides.len()) {
            match side {
                0 => kernel(&mut of_kernel)?,
                side => sides[side - 1].round()?,
            }
        }
    }
    let [pagoda, pagoda_ready, in_thread, in_thread_ready] =
        sides.each_ref().map(|side| side.samples.times());
    Ok(json!({
        "busy_threads": busy_threads,
        "kernel": of_kernel.times(),
        "pagoda": pagoda,
        "pagoda_ready": pagoda_ready,
        "in_thread": in_thread,
        "in_thread_ready": in_thread_ready,
        "ratio_ready": round(pagoda_ready.touch_us / pagoda.touch_us),
        "ratio_in_thread_ready": round(in_thread_ready.touch_us / in_thread.touch_us),
        "ready_cpu_us": sides[1].ready_cpu_us(),
        // Base pages with such frames, by a handler, in the last round.
        "ready_contiguous_percent": sides[1].contiguous_percent,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_page_of_a_round_comes_once_and_never_after_its_neighbour() {
        let pages = pages();
        let all: Vec<usize> = order(pages).collect();
        let mut sorted = all.clone();
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..pages));
        assert!(all.windows(2).all(|pair| pair[0].abs_diff(pair[1]) > 1));
    }
}
