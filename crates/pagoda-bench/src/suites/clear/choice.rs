//! The choice of an order at work: threads that clear huge frames at the same time, by each of the
//! two candidate orders and by the chosen one.
//!
//! One choice serves all threads, as in an engine, and must never know more than it does there. The
//! sides take turns, another one first in each round. The first round does not count: the choice
//! learns in it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::Context;
use pagoda_core::clear::{Choice, FrameSize, Order, Target};
use pagoda_core::size::Bytes;
use pagoda_linux::mem::clear::Clearer;
use pagoda_linux::mem::huge_frames::HugeFrames;
use serde_json::{Value, json};

use super::Setup;
use crate::measure::process::Cancel;
use crate::measure::stats::{median, midmean, round};
use crate::measure::turns::turns;

/// Numbers of threads that clear at the same time: one, as many as processors, twice as many.
pub const CROWDS: usize = 3;

/// The two fixed orders, and the chosen one.
const SIDES: [Option<Order>; 3] = [Some(Order::Streaming), Some(Order::Neighbourhood), None];

/// The state that the threads share.
#[derive(Default)]
struct Shared {
    choice: Mutex<Choice>,
    now: AtomicU32,
    chosen: AtomicU32,
    chosen_streaming: AtomicU32,
}

impl Shared {
    /// Resets the counts of the learning round. The choice keeps its knowledge.
    fn forget(&self) {
        self.chosen.store(0, Ordering::Relaxed);
        self.chosen_streaming.store(0, Ordering::Relaxed);
    }
}

/// Measures all crowds.
pub fn measure(setup: &Setup, cores: usize, cancel: &Cancel) -> anyhow::Result<Vec<Value>> {
    [1, cores, 2 * cores].into_iter().map(|threads| crowd(setup, threads, cancel)).collect()
}

fn crowd(setup: &Setup, threads: usize, cancel: &Cancel) -> anyhow::Result<Value> {
    let each = Bytes::new(setup.cycled_bytes.get() / threads as u64);
    let frames: anyhow::Result<Vec<HugeFrames>> = (0..threads).map(|_| super::huge_frames(each)).collect();
    let mut frames = frames?;
    let shared = Shared::default();
    let mut us = [const { Vec::new() }; SIDES.len()];
    for number in 0..=setup.rounds {
        cancel.check()?;
        setup.progress.inc(1);
        if number == 1 {
            shared.forget();
        }
        for side in turns(number, SIDES.len()) {
            let (side, us) = (SIDES[side], &mut us[side]);
            let all: Vec<f64> = thread::scope(|scope| {
                let shared = &shared;
                let spawned: Vec<_> = frames
                    .iter_mut()
                    .map(|frames| scope.spawn(move || clear(setup.frames_per_round, frames, side, shared)))
                    .collect();
                spawned.into_iter().flat_map(|thread| thread.join().expect("clearing can\'t panic")).collect()
            });
            if number > 0 {
                us.push(midmean(&all).context("a round without frames")?);
            }
        }
    }
    let [streaming_us, neighbourhood_us, chosen_us] = us.map(|us| median(&us).unwrap_or(f64::NAN));
    let chosen = f64::from(shared.chosen.into_inner().max(1));
    let streaming = f64::from(shared.chosen_streaming.into_inner());
    Ok(json!({
        "clearing_at_once": threads,
        "streaming_us": round(streaming_us),
        "neighbourhood_us": round(neighbourhood_us),
        "chosen_us": round(chosen_us),
        "chosen_streaming_percent": round(streaming / chosen * 100.0),
        "ratio_chosen_vs_better": round(chosen_us / streaming_us.min(neighbourhood_us)),
    }))
}

/// Clears `count` frames in turn. Returns the time of each.
fn clear(count: usize, frames: &mut HugeFrames, side: Option<Order>, shared: &Shared) -> Vec<f64> {
    let clearer = Clearer::for_this_processor();
    let choice = || shared.choice.lock().expect("nothing panics with this lock held");
    let one = |number: usize| {
        let at = number % frames.count();
        let (_, target) = Target::of_address(frames.start() + at * FrameSize::HUGE.bytes(), FrameSize::HUGE);
        let others = shared.now.fetch_add(1, Ordering::Relaxed);
        let order = side.unwrap_or_else(|| choice().order(target.pages(), others));
        let begin = Instant::now();
        clearer.clear(frames.frame(at), order, target);
        let took = begin.elapsed();
        if side.is_none() {
            choice().note(order, target.pages(), others, took.as_nanos() as u64);
            shared.chosen.fetch_add(1, Ordering::Relaxed);
            shared.chosen_streaming.fetch_add(u32::from(order == Order::Streaming), Ordering::Relaxed);
        }
        shared.now.fetch_sub(1, Ordering::Relaxed);
        took.as_secs_f64() * 1e6
    };
    (0..count).map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_crowd_is_as_large_as_it_says_and_most_is_chosen_of_the_two() {
        let rows = match measure(&Setup::for_tests(), 2, &Cancel::default()) {
            Ok(rows) => rows,
            Err(error) => {
                return pagoda_linux::testing::skip::skip("the choice of an order", format!("{error:#}"));
            }
        };
        assert_eq!(rows.iter().map(|row| row["clearing_at_once"].clone()).collect::<Vec<_>>(), [1, 2, 4]);
        for row in rows {
            let number = |key: &str| row[key].as_f64().expect("a number");
            assert!(["streaming_us", "neighbourhood_us", "chosen_us"].iter().all(|key| number(key) > 0.0));
            assert!((0.0..=100.0).contains(&number("chosen_streaming_percent")));
        }
    }
}
