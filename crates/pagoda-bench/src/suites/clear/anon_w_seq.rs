//! anon-w-seq: processes that each write a large area of memory from the beginning to the end, all
//! at once. The more processes, the smaller the share of the last-level cache of each.
//!
//! Linux adopted converging on the target by this measure, from the vm-scalability suite. Every
//! side runs in the same processes and in turn (`writer.rs`). Our orders leave out the fault
//! itself: they clear in place. This module must never report a row in which a process was missing.

use std::fs;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use pagoda_core::clear::{FrameSize, Order};
use pagoda_core::size::Bytes;
use serde_json::{Value, json};

use super::writer::{self, START_FILE, Side, Written, ready_file};
use super::{Setup, name};
use crate::measure::process::{Cancel, Running};
use crate::measure::scratch::Scratch;
use crate::measure::stats::{Measured, median, round};
use crate::worker;

/// Processes for each processor, where none are asked for.
const PROCESSES_PER_CORE: [usize; 4] = [1, 2, 4, 8];
/// The measure as it was published with the proposal: two Xeon E5-2699 v3, a process for each
/// hardware thread, and their share of 45 MiB of cache for 36 threads.
const PUBLISHED_PROCESSES: usize = 72;
const PUBLISHED_LLC_BYTES_PER_PROCESS: u64 = (45 << 20) / 36;
const PUBLISHED_GAIN_PERCENT: f64 = 28.3;
/// Rounds here for each round of the orders: many short ones, so that other load on the machine
/// spoils some of them and not the median.
const ROUNDS: usize = 3;
/// The time that the processes have to get their memory, and to end after their slots.
const GRACE: Duration = Duration::from_secs(60);
/// The time from the announcement of the start to the start itself.
const START_IN: Duration = Duration::from_millis(50);
const POLL: Duration = Duration::from_millis(2);

/// Measures all rows.
pub fn measure(setup: &Setup, cores: usize, cancel: &Cancel) -> anyhow::Result<Vec<Value>> {
    let row = |processes: &usize| {
        let row = run(setup, cores, *processes, cancel);
        setup.progress.inc(1);
        row
    };
    setup.processes.iter().map(row).collect()
}

/// The numbers of processes: those that were asked for, or several for each processor.
pub fn processes(asked: &[u16], cores: usize) -> Vec<usize> {
    if asked.is_empty() {
        return PROCESSES_PER_CORE.map(|per_core| cores * per_core).into();
    }
    asked.iter().copied().map(usize::from).collect()
}

/// The published figures of this measure, and the number of processes with as little of this
/// machine's cache each.
pub fn published(llc_bytes: u64) -> Value {
    json!({
        "processors": PUBLISHED_PROCESSES,
        "processes": PUBLISHED_PROCESSES,
        "llc_bytes_per_process": PUBLISHED_LLC_BYTES_PER_PROCESS,
        "gain_percent": PUBLISHED_GAIN_PERCENT,
        "processes_for_its_share": llc_bytes.div_ceil(PUBLISHED_LLC_BYTES_PER_PROCESS),
    })
}

fn run(setup: &Setup, cores: usize, processes: usize, cancel: &Cancel) -> anyhow::Result<Value> {
    // The total is the same in every row: a cache holds the same share of it.
    let frame = FrameSize::HUGE.bytes() as u64;
    let area = Bytes::new((setup.cycled_bytes.get() / processes as u64 / frame).max(2) * frame);
    // One more round, which is discarded.
    let rounds = ROUNDS * setup.rounds + 1;
    // The kernel clears over 1 GiB in a second.
    let settle = Duration::from_millis(setup.cycled_bytes.get() >> 20);
    let meet = Scratch::new()?;
    let command = |number: usize| {
        let options = [
            ("--area", area.get().to_string()),
            ("--rounds", rounds.to_string()),
            ("--slot-ms", setup.slot.as_millis().to_string()),
            ("--settle-ms", settle.as_millis().to_string()),
            ("--meet", meet.file("").display().to_string()),
            ("--number", number.to_string()),
        ];
        worker::command(&setup.program, "anon-writer", options)
    };
    let mut writers =
        (0..processes).map(|number| Running::start(&command(number))).collect::<anyhow::Result<Vec<_>>>()?;
    await_all(&meet, &mut writers, cancel)?;
    let start = writer::now() + START_IN;
    // Written beside and renamed, so that no writer reads half of it.
    fs::write(meet.file("when"), start.as_nanos().to_string())
        .and_then(|()| fs::rename(meet.file("when"), meet.file(START_FILE)))
        .context("starting the writers")?;

    let schedule = writer::schedule(rounds);
    let length =
        schedule.iter().map(|side| setup.slot + writer::settle_after(*side, settle)).sum::<Duration>();
    let limit = length + 2 * GRACE;
    let mut total = vec![Written::default(); schedule.len()];
    for writer in writers {
        let slots: Vec<Written> = writer.wait(limit, cancel, || ())?.printed()?;
        if slots.len() != total.len() {
            bail!("a writer wrote in {} slots of {}", slots.len(), total.len());
        }
        for (total, slot) in total.iter_mut().zip(slots) {
            total.frames += slot.frames;
            total.cpu += slot.cpu;
        }
    }
    let rate = |slot: &Written| {
        let gib = slot.frames as f64 * frame as f64 / (1u64 << 30) as f64;
        gib / slot.cpu.as_secs_f64() * processes.min(cores) as f64
    };
    let slots: Vec<_> = schedule.into_iter().zip(total.iter().map(rate)).collect();
    let counted: Vec<_> = slots.chunks(Side::ALL.len()).skip(1).filter_map(Round::of).collect();
    figures(setup, processes, area, &counted)
        .context("the machine is too busy: no round in which every side wrote a frame")
}

/// The rates of one round, by the place of the side among all.
#[derive(Clone, Copy)]
struct Round([f64; Side::ALL.len()]);

impl Round {
    /// The rates from the slots of a round. `None` if another program had the processors for a
    /// whole slot: a side without a rate can't be compared.
    fn of(slots: &[(Side, f64)]) -> Option<Self> {
        let rate = |side| slots.iter().find(|(of, _)| *of == side).map_or(f64::NAN, |(_, rate)| *rate);
        let rates = Side::ALL.map(rate);
        rates.iter().all(|rate| rate.is_finite()).then_some(Self(rates))
    }

    fn rate(&self, side: Side) -> f64 {
        Side::ALL.iter().zip(self.0).find(|(of, _)| **of == side).map_or(f64::NAN, |(_, rate)| rate)
    }
}

/// Rounds down to three digits: these ratios are held against bounds from below.
fn round_down(ratio: f64) -> f64 {
    (ratio * 1000.0).floor() / 1000.0
}

/// Waits until all writers have their memory.
fn await_all(meet: &Scratch, writers: &mut Vec<Running>, cancel: &Cancel) -> anyhow::Result<()> {
    let deadline = writer::now() + GRACE;
    let count = writers.len();
    while (0..count).any(|number| !meet.file(&ready_file(number)).exists()) {
        cancel.check()?;
        if let Some(ended) = writers.iter_mut().position(Running::ended) {
            // For the writer's own message.
            writers.swap_remove(ended).wait(GRACE, cancel, || ())?;
            bail!("a writer ended before it was ready");
        }
        if writer::now() > deadline {
            bail!("the writers did not get their memory within {} s", GRACE.as_secs());
        }
        thread::sleep(POLL);
    }
    Ok(())
}

/// The figures of one number of processes; `None` without rounds. A rate is the bytes written per
/// second of processor time, times the processors: the rate on an idle machine. Ratios are of
/// rounds.
fn figures(setup: &Setup, processes: usize, area: Bytes, rounds: &[Round]) -> Option<Value> {
    let of = |side: Side| rounds.iter().map(|round| round.rate(side)).collect::<Vec<f64>>();
    let ratio = |over: Side, under: Side| {
        let ratios: Vec<f64> = rounds.iter().map(|round| round.rate(over) / round.rate(under)).collect();
        Some(Measured::of(&ratios)?.map(round_down))
    };
    let best = Order::ALL.map(|order| (median(&of(Side::Order(order))).unwrap_or(0.0), order));
    let (_, best) = best.into_iter().max_by(|(one, _), (other, _)| one.total_cmp(other))?;
    let mut row = json!({
        "processes": processes,
        "rounds": rounds.len(),
        "llc_bytes_per_process": setup.llc_bytes / processes as u64,
        "area_bytes_per_process": area.get(),
        "best": name(best),
        "ratio_best_vs_kernel": ratio(Side::Order(best), Side::Kernel)?,
    });
    let ascending = Side::Order(Order::Ascending);
    for side in Side::ALL {
        let key = match side {
            Side::Kernel => "kernel_thp".to_owned(),
            Side::Order(order) => name(order).replace('-', "_"),
        };
        row[format!("{key}_gib_s")] = round(median(&of(side))?).into();
        if side != ascending {
            row[format!("ratio_{key}_vs_ascending")] = json!(ratio(side, ascending)?);
        }
    }
    Some(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_as_asked_for_or_several_for_each_processor() {
        assert_eq!(processes(&[], 3), [3, 6, 12, 24]);
        assert_eq!(processes(&[72, 1], 3), [72, 1]);
        assert_eq!(published(32 << 20)["processes_for_its_share"], 26);
    }
    use crate::report::json::plain;

    #[test]
    fn a_row_compares_within_rounds() {
        let setup = Setup { llc_bytes: 32 << 20, ..Setup::for_tests() };
        let slot = |side: Side, scale: f64| {
            let rate = match side {
                Side::Kernel => 4.0,
                Side::Order(Order::Ascending) => 5.0,
                Side::Order(Order::Converge) => 2.5,
                Side::Order(Order::Streaming) => 6.0,
                Side::Order(_) => 5.5,
            };
            (side, rate * scale)
        };
        // The machine is twice as fast in the second round.
        let mut rounds: Vec<_> = [1.0, 2.0]
            .map(|scale| Round::of(&Side::ALL.map(|side| slot(side, scale))).expect("all sides"))
            .to_vec();
        let row = plain(figures(&setup, 8, Bytes::mib(64), &rounds).expect("a row"));
        assert_eq!([&row["ratio_converge_vs_ascending"], &row["kernel_thp_gib_s"]], [0.5, 6.0]);
        assert_eq!((&row["best"], &row["ratio_best_vs_kernel"]), (&"streaming".into(), &1.5.into()));
        assert_eq!(row["ratio_streaming_vs_ascending"], 1.2);
        for key in ["", "_least", "_most"].map(|end| format!("ratio_kernel_thp_vs_ascending{end}")) {
            assert_eq!(row[&key], 0.8, "by rounds");
        }
        assert_eq!([&row["llc_bytes_per_process"], &row["rounds"]], [4 << 20, 2]);
        rounds.clear();
        assert!(figures(&setup, 8, Bytes::mib(64), &rounds).is_none());
    }

    #[test]
    fn a_round_in_which_a_side_wrote_nothing_does_not_count() {
        let mut slots = Side::ALL.map(|side| (side, 1.0));
        assert!(Round::of(&slots).is_some());
        assert_eq!((round_down(0.98999), round_down(0.5)), (0.989, 0.5));
        slots[3].1 = f64::NAN;
        assert!(Round::of(&slots).is_none());
        assert!(Round::of(&slots[..3]).is_none());
    }
}
