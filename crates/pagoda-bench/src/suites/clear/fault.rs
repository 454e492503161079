//! From a touch to its return: the time of 2 MiB of fresh memory. The kernel gives small or huge
//! pages. Pagoda gives frames cleared in the fault or ahead, each by a woken handler and in the
//! faulting thread.
//!
//! Each round has all sides in turn, another one first in each. All memory was touched just before,
//! and the first round does not count. The kernel's memory is touched and given back right before
//! its turn, because a virtual machine's host takes back idle memory. The touched page of a frame
//! is its first, its middle or any page, by turns.
//!
//! Pagoda's frames were written by the last region. Ten times the pool of frames cleared ahead are
//! used, while the program writes each whole, and the processor time of clearing them is reported.
//! At the end of the turn the pool is full again, so that no thread clears while others are timed.
//! This module must never report figures of which more than one in eight is of another kind of page
//! or frame than it stands for.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use pagoda::stats::counters::Stats;
use pagoda::{BasePage, Manager, Region};
use pagoda_core::page::{HUGE_FRAME, OS_PAGE};
use pagoda_core::size::Bytes;
use pagoda_linux::mem::huge_frames::HugeFrames;
use serde_json::{Value, json};

use super::Setup;
use super::thrash::Thrashers;
use crate::measure::process::Cancel;
use crate::measure::stats::{self, Measured, median, round};
use crate::measure::turns::turns;

/// Frames of a round: the most that are kept ready.
const FRAMES: usize = 32;

/// The budget. An eighth of it may lie ready, which has room for the whole pool.
const BUDGET: Bytes = Bytes::mib(1024);

/// Regions of [`FRAMES`] that take frames cleared ahead.
const SUSTAINED: usize = 10;

/// The time that the program waits for the first frames cleared ahead.
const AHEAD_MOST: Duration = Duration::from_secs(5);

fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Times of one side.
#[derive(Default)]
struct Times {
    touch_us: Vec<f64>,
    write_us: Vec<f64>,
    again_ns: Vec<f64>,
}

impl Times {
    /// Touches the page at `at`, and writes all of `content` from `from` on.
    fn touch(&mut self, write: &mut impl FnMut(usize, &[u8]), at: usize, from: usize, content: &[u8]) {
        let begin = Instant::now();
        write(at, &[1]);
        let touched = begin.elapsed();
        let again = Instant::now();
        write(at + 64, &[1]);
        self.again_ns.push(again.elapsed().as_secs_f64() * 1e9);
        let rest = Instant::now();
        write(from, content);
        self.touch_us.push(us(touched));
        self.write_us.push(us(touched + rest.elapsed()));
    }
}

/// The first touched byte of a frame: at its beginning, in its middle, or anywhere, by turns.
fn first_touch(frame: usize) -> usize {
    match frame % 3 {
        0 => 0,
        1 => HUGE_FRAME / 2,
        // An odd step gives another page each time.
        _ => frame * 181 % (HUGE_FRAME / OS_PAGE) * OS_PAGE,
    }
}

/// A region of frames, each touched and written.
fn region(manager: &Manager, times: &mut Times, content: &[u8]) -> anyhow::Result<Region> {
    let mut region = manager.region(Bytes::new((FRAMES * HUGE_FRAME) as u64)).create().context("a region")?;
    for frame in 0..FRAMES {
        let mut write =
            |at: usize, bytes: &[u8]| region.write_at(frame * HUGE_FRAME + at, bytes).expect("written");
        times.touch(&mut write, first_touch(frame), 0, content);
    }
    Ok(region)
}

fn kernel(huge: bool, times: &mut Times, content: &[u8]) -> anyhow::Result<()> {
    let mut warm = HugeFrames::untouched(FRAMES, huge).context("mapping memory")?;
    warm.populate().context("warming the kernel's memory")?;
    drop(warm);
    let mut frames = HugeFrames::untouched(FRAMES, huge).context("mapping memory")?;
    for frame in 0..FRAMES {
        let bytes = frames.frame(frame);
        let mut write = |at: usize, from: &[u8]| bytes[at..at + from.len()].copy_from_slice(from);
        let at = first_touch(frame);
        if huge {
            times.touch(&mut write, at, 0, content);
        } else {
            times.touch(&mut write, at, at, &content[..OS_PAGE]);
        }
    }
    ensure!(
        !huge || frames.are_huge().context("asking the page tables")?,
        "the kernel gave OS pages for huge ones"
    );
    Ok(())
}

/// A manager, and the figures of its regions.
struct Side {
    manager: Manager,
    clears_ahead: bool,
    before: Stats,
    times: Times,
}

impl Side {
    fn new(clears_ahead: bool, in_thread: bool) -> anyhow::Result<Self> {
        let builder = Manager::builder().budget(BUDGET).base_page(BasePage::M2).user_mode_only(true);
        let builder = builder
            .tune(|tuning| tuning.clear_ahead(if clears_ahead { 100 } else { 0 }))
            .serve_in_thread(in_thread);
        let manager = builder.build().context("starting Pagoda")?;
        Ok(Self { before: manager.stats(), manager, clears_ahead, times: Times::default() })
    }

    /// Starts the count: earlier figures don't count.
    fn begin(&mut self) {
        self.times = Times::default();
        self.before = self.manager.stats();
    }

    /// Runs the regions of one round.
    fn round(&mut self, content: &[u8]) -> anyhow::Result<()> {
        if !self.clears_ahead {
            return region(&self.manager, &mut self.times, content).map(drop);
        }
        await_ready(&self.manager)?;
        (0..SUSTAINED).try_for_each(|_| region(&self.manager, &mut self.times, content).map(drop))?;
        await_ready(&self.manager)
    }

    /// Checks that most frames of so many rounds were cleared in the fault.
    fn check_cleared(&self, rounds: usize) -> anyhow::Result<()> {
        let faults = (rounds * FRAMES) as u64;
        // A frame is not kept where the kernel once had no huge page. The median is of the others.
        let cleared = self.manager.stats().cleared_in_fault_bytes / HUGE_FRAME as u64;
        ensure!(
            cleared >= faults - faults / 8,
            "of {faults} huge frames only {cleared} were cleared within a fault"
        );
        Ok(())
    }

    /// The figures of frames cleared ahead, sustained.
    fn prezeroed(&self, rounds: usize, thp: &Times) -> Value {
        let (before, after) = (&self.before, self.manager.stats());
        let count = (rounds * SUSTAINED * FRAMES) as u64;
        let taken_bytes = after.taken_cleared_bytes - before.taken_cleared_bytes;
        let frames = count as f64;
        let clearing_ns = (after.clearing_ahead_ns - before.clearing_ahead_ns) as f64;
        json!({
            "bytes_in_fault": bytes_in_fault(count, taken_bytes),
            "taken_percent": round(taken_bytes as f64 / HUGE_FRAME as f64 / frames * 100.0),
            "first_touch_ns": middle(&self.times.again_ns),
            "write_all_us": middle(&self.times.write_us),
            "kernel_thp_write_all_us": middle(&thp.write_us),
            "clearing_cpu_us": round(clearing_ns / frames / 1000.0),
        })
    }
}

/// Bytes cleared in each of so many faults: those that were not taken ready. The counters of
/// clearing can't say so, for a frame that the kernel cleared may have been taken ahead.
fn bytes_in_fault(frames: u64, taken_bytes: u64) -> u64 {
    (frames * HUGE_FRAME as u64).saturating_sub(taken_bytes) / frames.max(1)
}

fn middle(times: &[f64]) -> f64 {
    round(median(times).unwrap_or(f64::NAN))
}

/// The median of all times, with the least and the greatest of the rounds. All rounds have as many
/// times.
fn of_rounds(times: &[f64], rounds: usize) -> Measured {
    let of_each = (times.len() / rounds.max(1)).max(1);
    let medians: Vec<f64> = times.chunks_exact(of_each).filter_map(median).collect();
    let of_medians = stats::middle(&medians).unwrap_or(Measured::once(f64::NAN));
    Measured { median: middle(times), ..of_medians }
}

fn content() -> Vec<u8> {
    (0..HUGE_FRAME).map(|i| (i % 251) as u8 + 1).collect()
}

/// Measures frames cleared ahead beside so many cache-thrashing threads, in turn with the kernel's
/// huge pages.
pub fn prezeroed(setup: &Setup, thrashers: usize, cancel: &Cancel) -> anyhow::Result<Value> {
    let (content, mut ready, mut thp) = (content(), Side::new(true, false)?, Times::default());
    let _thrashers = Thrashers::start(thrashers, setup.llc_bytes);
    for number in 0..=setup.rounds {
        cancel.check()?;
        setup.progress.inc(1);
        if number == 1 {
            thp = Times::default();
            ready.begin();
        }
        for side in turns(number, 2) {
            if side == 0 { kernel(true, &mut thp, &content)? } else { ready.round(&content)? }
        }
    }
    Ok(ready.prezeroed(setup.rounds, &thp))
}

/// Measures all sides. The spreads are those of the rounds' medians. The second value has the
/// figures of frames cleared ahead.
pub fn measure(setup: &Setup, cancel: &Cancel) -> anyhow::Result<(Value, Value)> {
    let content = content();
    let mut sides =
        [Side::new(false, false)?, Side::new(true, false)?, Side::new(false, true)?, Side::new(true, true)?];
    let [mut small, mut thp] = [(); 2].map(|()| Times::default());
    for number in 0..=setup.rounds {
        cancel.check()?;
        setup.progress.inc(1);
        if number == 1 {
            // The first round warms all memory, and gives the frames that are reused from then on.
            [small, thp] = [(); 2].map(|()| Times::default());
            sides.iter_mut().for_each(Side::begin);
        }
        for side in turns(number, 2 + sides.len()) {
            match side {
                0 => kernel(false, &mut small, &content)?,
                1 => kernel(true, &mut thp, &content)?,
                side => sides[side - 2].round(&content)?,
            }
        }
    }
    let kernel_thp_us = of_rounds(&thp.touch_us, setup.rounds);
    let [cleared, ready, in_thread, in_thread_ready] = &sides;
    cleared.check_cleared(setup.rounds)?;
    in_thread.check_cleared(setup.rounds)?;
    let mut fault =
        json!({ "kernel_4k_us": of_rounds(&small.touch_us, setup.rounds), "kernel_thp_us": kernel_thp_us });
    for (key, ratio, side) in [
        ("pagoda_us", "ratio_vs_thp", cleared),
        ("pagoda_prezeroed_us", "ratio_prezeroed_vs_thp", ready),
        ("in_thread_us", "ratio_in_thread_vs_thp", in_thread),
        ("in_thread_prezeroed_us", "ratio_in_thread_prezeroed_vs_thp", in_thread_ready),
    ] {
        let touch = of_rounds(&side.times.touch_us, setup.rounds);
        fault[ratio] = round(touch.median / kernel_thp_us.median).into();
        fault[key] = json!(touch);
    }
    Ok((fault, ready.prezeroed(setup.rounds, &thp)))
}

/// Waits until the pool of ready frames is full, as the last region left it.
fn await_ready(manager: &Manager) -> anyhow::Result<()> {
    let begin = Instant::now();
    let used = |stats: &Stats| stats.cleared_ahead_bytes;
    let mut cleared = used(&manager.stats());
    while begin.elapsed() < AHEAD_MOST {
        std::thread::sleep(Duration::from_millis(20));
        let now = used(&manager.stats());
        if now == cleared {
            return Ok(());
        }
        cleared = now;
    }
    anyhow::bail!("frames are not cleared ahead: other programs have taken all processors for {AHEAD_MOST:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_that_of_the_medians_of_rounds() {
        let measured = Measured { median: 3.5, least: 2.0, most: 4.0 };
        assert_eq!(of_rounds(&[9.0, 1.0, 2.0, 3.0, 5.0, 4.0], 2), measured);
        assert_eq!(of_rounds(&[7.0], 1), Measured::once(7.0));
        assert!(of_rounds(&[], 3).least.is_nan());
    }

    #[test]
    fn of_frames_that_were_all_ready_nothing_was_cleared_in_a_fault() {
        let frame = HUGE_FRAME as u64;
        assert_eq!((bytes_in_fault(320, 320 * frame), bytes_in_fault(4, 3 * frame)), (0, frame / 4));
        // One frame was taken and not used.
        assert_eq!(bytes_in_fault(320, 321 * frame), 0);
    }

    #[test]
    fn frames_are_touched_at_their_beginning_in_their_middle_and_elsewhere() {
        let places: std::collections::BTreeSet<usize> = (0..FRAMES).map(first_touch).collect();
        assert!(places.contains(&0) && places.contains(&(HUGE_FRAME / 2)) && places.len() > 10);
        assert!(places.iter().all(|at| at % OS_PAGE == 0 && *at < HUGE_FRAME), "{places:?}");
    }
}
