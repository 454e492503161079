//! The orders one by one, alone and beside cache-thrashing threads: the cost of clearing a frame,
//! of then touching its target, and of writing all of it.
//!
//! The frames are huge, in memory, and so many that none is still cached when its turn comes again.
//! The orders take turns frame by frame, so that noise of the machine meets all of them. This
//! module must never time a frame of OS pages for a huge one, nor an order that skipped a byte:
//! both are errors.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use pagoda_core::clear::{FrameSize, Order, Target};
use pagoda_core::page::OS_PAGE;
use pagoda_linux::baseline::perf::{Counts, HardwareCounters};
use pagoda_linux::mem::clear::Clearer;
use pagoda_linux::mem::huge_frames::HugeFrames;
use serde_json::{Value, json};

use super::shape::Shape;
use super::thrash::Thrashers;
use super::{Setup, frame, name, thread_cpu};
use crate::load::data::Random;
use crate::measure::process::Cancel;
use crate::measure::stats::{median, median_of, middle_of, midmean, round};

/// A choice of the target's page.
type Place = fn(&mut Random) -> u32;

/// The targets: their name, and the page. At the end of a frame every order is ascending in effect.
const PLACES: [(&str, Place); 3] = [
    ("first", |_| 0),
    ("middle", |_| FrameSize::HUGE.pages() / 2),
    ("random", |random| random.below(u64::from(FrameSize::HUGE.pages())) as u32),
];

/// The figures of each order, by its name.
pub type Orders = BTreeMap<&'static str, Value>;

/// One frame's times: cleared, touched, written.
#[derive(Clone, Copy)]
struct Sample {
    clear_ns: f64,
    touch_ns: f64,
    write_ns: f64,
}

/// The samples of one order.
struct Side {
    order: Order,
    counters: Option<HardwareCounters>,
    cpu: Duration,
    /// Samples of the current round.
    samples: Vec<Sample>,
    /// Midmeans, by place and then by round.
    rounds: [Vec<Sample>; PLACES.len()],
}

/// The frames in turn, and the means to clear them.
struct Bench<'a> {
    setup: &'a Setup,
    frames: HugeFrames,
    next: usize,
    clearer: Clearer,
    random: Random,
}

/// The cost of the clock itself in nanoseconds: two readings with nothing between them.
pub fn clock_ns() -> f64 {
    let readings: Vec<_> = (0..10_000)
        .map(|_| {
            let start = Instant::now();
            start.elapsed().as_nanos() as f64
        })
        .collect();
    midmean(&readings).unwrap_or(0.0)
}

/// Measures all orders, with `thrashers` busy threads beside them. The second value is the reason
/// for missing counters.
pub fn measure(setup: &Setup, thrashers: usize, cancel: &Cancel) -> anyhow::Result<(Orders, Option<String>)> {
    let mut bench = Bench::new(setup)?;
    let mut reason = None;
    let mut sides = Order::ALL.map(|order| {
        let counters = HardwareCounters::of_this_thread()
            .map_err(|error| reason = Some(format!("opening them by perf_event_open: {error}")))
            .ok();
        Side { order, counters, cpu: Duration::ZERO, samples: Vec::new(), rounds: Default::default() }
    });
    bench.check_orders()?;
    let thrashers = Thrashers::start(thrashers, setup.llc_bytes);
    // Round 0 is discarded.
    for number in 0..=setup.rounds {
        for (rounds, (_, place)) in PLACES.into_iter().enumerate() {
            cancel.check()?;
            bench.round(&mut sides, place, number > 0)?;
            for side in &mut sides {
                let round = Sample::midmean(&side.samples).context("a round without frames")?;
                side.samples.clear();
                if number > 0 {
                    side.rounds[rounds].push(round);
                }
            }
        }
        setup.progress.inc(1);
    }
    drop(thrashers);
    if !bench.frames.are_huge()? {
        bail!("the kernel split huge pages while they were measured");
    }
    let ascending: Vec<f64> = sides[0].over_places().iter().map(|sample| setup.touch_ns(sample)).collect();
    let mut orders = Orders::new();
    for side in &mut sides {
        let figures = side.figures(setup, &ascending)?;
        orders.insert(name(side.order), figures);
    }
    Ok((orders, reason))
}

impl Bench<'_> {
    fn new(setup: &Setup) -> anyhow::Result<Bench<'_>> {
        let frames = super::huge_frames(setup.cycled_bytes)?;
        let clearer = Clearer::for_this_processor();
        Ok(Bench { setup, frames, next: 0, clearer, random: Random::new(1) })
    }

    fn round(&mut self, sides: &mut [Side], place: Place, counts: bool) -> anyhow::Result<()> {
        for number in 0..self.setup.frames_per_round {
            // The order changes, so that no order always follows the same one: its remains in the
            // cache are part of the figure.
            sides.rotate_left(1);
            if number % 2 == 1 {
                sides.reverse();
            }
            for side in &mut *sides {
                let page = place(&mut self.random);
                self.sample(side, page, counts)?;
            }
        }
        sides.sort_by_key(|side| side.order);
        Ok(())
    }

    fn sample(&mut self, side: &mut Side, page: u32, counts: bool) -> anyhow::Result<()> {
        let number = self.next;
        self.next = (number + 1) % self.frames.count();
        let address = self.frames.start() + number * FrameSize::HUGE.bytes() + page as usize * OS_PAGE;
        let (_, target) = Target::of_address(address, FrameSize::HUGE);
        let (clearer, order) = (self.clearer, side.order);
        let memory = self.frames.frame(number);
        let mut work = || {
            let start = Instant::now();
            clearer.clear(memory, order, target);
            let cleared = Instant::now();
            let sum = frame::touch(memory, target.page() as usize);
            let touched = Instant::now();
            frame::write_all(memory);
            let ns = |from: Instant, to: Instant| (to - from).as_nanos() as f64;
            let (clear_ns, touch_ns) = (ns(start, cleared), ns(cleared, touched));
            (sum, Sample { clear_ns, touch_ns, write_ns: touched.elapsed().as_nanos() as f64 })
        };
        let cpu_before = thread_cpu();
        let (sum, sample) = match side.counters.as_mut().filter(|_| counts) {
            Some(counters) => counters.count(work).context("counting")?,
            None => work(),
        };
        if counts {
            side.cpu += thread_cpu().saturating_sub(cpu_before);
        }
        if sum != 0 {
            bail!("{order:?} left the target of a frame uncleared");
        }
        side.samples.push(sample);
        Ok(())
    }

    /// Checks, untimed, that every order clears a whole frame.
    fn check_orders(&mut self) -> anyhow::Result<()> {
        for order in Order::ALL {
            let memory = self.frames.frame(0);
            frame::write_all(memory);
            self.clearer.clear(memory, order, Target::in_frame(FrameSize::HUGE.pages(), Some(100))?);
            if memory.iter().any(|byte| *byte != 0) {
                bail!("{order:?} left a part of a frame uncleared");
            }
        }
        Ok(())
    }
}

impl Sample {
    fn midmean(samples: &[Self]) -> Option<Self> {
        let of = |pick: fn(&Self) -> f64| midmean(&samples.iter().map(pick).collect::<Vec<_>>());
        Some(Self {
            clear_ns: of(|s| s.clear_ns)?,
            touch_ns: of(|s| s.touch_ns)?,
            write_ns: of(|s| s.write_ns)?,
        })
    }

    fn mean(samples: &[Self]) -> Self {
        let of = |pick: fn(&Self) -> f64| samples.iter().map(pick).sum::<f64>() / samples.len() as f64;
        Self { clear_ns: of(|s| s.clear_ns), touch_ns: of(|s| s.touch_ns), write_ns: of(|s| s.write_ns) }
    }
}

impl Setup {
    fn touch_ns(&self, sample: &Sample) -> f64 {
        (sample.touch_ns - self.clock_ns).max(0.0)
    }

    /// Medians over the rounds, each the mean over the places of the target.
    fn times(&self, rounds: &[Sample]) -> Option<Value> {
        let total_us = |sample: &Sample| (sample.clear_ns + self.touch_ns(sample) + sample.write_ns) / 1e3;
        Some(json!({
            "clear_us": round(median_of(rounds, |sample| sample.clear_ns / 1e3)?),
            "first_touch_ns": middle_of(rounds, |sample| self.touch_ns(sample))?,
            "write_all_us": round(median_of(rounds, |sample| sample.write_ns / 1e3)?),
            "total_us": middle_of(rounds, total_us)?,
        }))
    }
}

impl Side {
    /// The mean over the places, for each round.
    fn over_places(&self) -> Vec<Sample> {
        let of_round = |round: usize| Sample::mean(&self.rounds.each_ref().map(|rounds| rounds[round]));
        (0..self.rounds[0].len()).map(of_round).collect()
    }

    fn figures(&mut self, setup: &Setup, ascending_touch_ns: &[f64]) -> anyhow::Result<Value> {
        let none = "no round counts";
        let over_places = self.over_places();
        let ratios: Vec<_> = over_places
            .iter()
            .zip(ascending_touch_ns)
            .map(|(sample, ascending)| setup.touch_ns(sample) / ascending)
            .collect();
        let mut targets = BTreeMap::new();
        for ((place, _), rounds) in PLACES.into_iter().zip(&self.rounds) {
            targets.insert(place, setup.times(rounds).context(none)?);
        }
        let counts = match &mut self.counters {
            Some(counters) => counters.read().context("reading the processor's counters")?,
            None => None,
        };
        let shape = Shape::of(self.order);
        // Rounded up: it is held against a bound from above.
        let ratio = (median(&ratios).context(none)? * 1000.0).ceil() / 1000.0;
        let mut figures = setup.times(&over_places).context(none)?;
        for (key, value) in [
            ("cleared_after_target_max", json!(shape.cleared_after_target_max)),
            ("extents_max", json!(shape.extents_max)),
            ("bytes_in_fault", json!(shape.bytes)),
            ("first_touch_ratio_vs_ascending", json!(ratio)),
            ("user_s", json!(round(self.cpu.as_secs_f64()))),
            ("frames", json!(setup.rounds * PLACES.len() * setup.frames_per_round)),
            ("perf", json!(counts.as_ref().map(perf))),
            ("targets", json!(targets)),
        ] {
            figures[key] = value;
        }
        Ok(figures)
    }
}

/// Figures of the processor's counters, user mode only, over clearing, touching and writing.
fn perf(counts: &Counts) -> Value {
    json!({
        "ipc": round(counts.instructions as f64 / counts.cycles as f64),
        // Misses over the cache references that the processor counts by default.
        "cache_miss_percent": round(100.0 * counts.cache_misses as f64 / counts.cache_references as f64),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_touch_is_what_the_clock_does_not_take_and_no_less_than_nothing() {
        let setup = Setup { clock_ns: 20.0, ..Setup::for_tests() };
        let sample = |touch_ns| Sample { clear_ns: 1000.0, touch_ns, write_ns: 3000.0 };
        let times = setup.times(&[sample(30.0), sample(50.0), sample(10.0)]).expect("three rounds");
        assert_eq!(times["first_touch_ns"], json!({ "median": 10.0, "least": 0.0, "most": 30.0 }));
        assert_eq!([&times["clear_us"], &times["total_us"]["median"]], [1.0, 4.01]);
        assert!(setup.times(&[]).is_none());
    }
}
