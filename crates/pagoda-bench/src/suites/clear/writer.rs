//! One of the processes of anon-w-seq. It writes an area of huge frames from the beginning to the
//! end, again and again, and reports the frames written and their processor time.
//!
//! Time is cut into slots of one length, at the same moments in all processes. In each slot one
//! side clears the frames: the kernel, by faults on memory given back to it just before, or this
//! process, by one of the orders in place and without a fault. Both use the same memory, so that
//! none of it is cold. This module must never count a frame finished outside of the counted part of
//! a slot, nor accept a slot of the kernel's with OS pages.
//!
//! The time is processor time, so that other programs on the machine slow neither side. It includes
//! the kernel's faults, and excludes giving the memory back, which is not part of writing.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use pagoda_core::clear::{FrameSize, Order, Target};
use pagoda_core::size::Bytes;
use pagoda_linux::mem::clear::Clearer;
use pagoda_linux::mem::huge_frames::HugeFrames;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::{frame, thread_cpu};
use crate::measure::turns::turns;

/// The first third of a slot does not count. Frames that the last side left are finished, memory
/// that the kernel's side discarded and did not write again is populated, and the caches fill with
/// this side's remains. It is long enough for the scheduler to run each of eight processes on one
/// processor once.
const UNCOUNTED_SHARE: u32 = 3;
/// The pause between looks while the other writers get ready.
const POLL: Duration = Duration::from_millis(1);
/// The file with the moment of the first slot, in nanoseconds of the monotonic clock.
pub const START_FILE: &str = "start";

/// The side that clears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The kernel, by faults for transparent huge pages.
    Kernel,
    /// This process, in this order.
    Order(Order),
}

impl Side {
    /// All sides.
    pub const ALL: [Self; 6] = [
        Self::Kernel,
        Self::Order(Order::Ascending),
        Self::Order(Order::Converge),
        Self::Order(Order::ReverseInPage),
        Self::Order(Order::Neighbourhood),
        Self::Order(Order::Streaming),
    ];
}

/// The sides of all slots: `rounds` times each, every round with another one first.
pub fn schedule(rounds: usize) -> Vec<Side> {
    let round = |number: usize| turns(number, Side::ALL.len()).map(|side| Side::ALL[side]);
    (0..rounds).flat_map(round).collect()
}

/// The part of a slot that counts.
pub fn counted(slot: Duration) -> Duration {
    slot - slot / UNCOUNTED_SHARE
}

/// The time between a slot of this side and the next one.
pub fn settle_after(side: Side, settle: Duration) -> Duration {
    if side == Side::Kernel { settle } else { Duration::ZERO }
}

/// The options of a writer.
#[derive(Args, Debug)]
pub struct WriterArgs {
    /// The area, in bytes; whole huge frames.
    #[arg(long)]
    area: u64,
    #[arg(long)]
    rounds: usize,
    #[arg(long)]
    slot_ms: u64,
    /// The pause before each slot that follows one of the kernel's, to populate the discarded
    /// memory.
    #[arg(long)]
    settle_ms: u64,
    /// The directory in which the writers report that they are ready and read the start.
    #[arg(long)]
    meet: PathBuf,
    /// The number of this writer.
    #[arg(long)]
    number: usize,
}

/// The frames written in the counted part of a slot.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Written {
    /// Huge frames.
    pub frames: u64,
    /// Their processor time, faults included.
    pub cpu: Duration,
}

/// The file by which a writer reports that it is ready.
pub fn ready_file(number: usize) -> String {
    format!("ready-{number}")
}

/// The monotonic clock, which all processes share.
pub fn now() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

/// Gets ready, waits for the start, and writes through all slots. Returns the count of each slot.
pub fn run(args: &WriterArgs) -> anyhow::Result<Vec<Written>> {
    let mut writer = Writer {
        area: super::huge_frames(Bytes::new(args.area))?,
        at: 0,
        clearer: Clearer::for_this_processor(),
    };
    fs::write(args.meet.join(ready_file(args.number)), "").context("saying that it is ready")?;
    let start = loop {
        match fs::read_to_string(args.meet.join(START_FILE)) {
            Ok(text) => break Duration::from_nanos(text.parse().context("reading when to start")?),
            Err(_) => thread::sleep(POLL),
        }
    };
    let slot = Duration::from_millis(args.slot_ms);
    let mut written = Vec::new();
    let mut begin = start;
    for side in schedule(args.rounds) {
        writer.settle()?;
        thread::sleep(begin.saturating_sub(now()));
        written.push(writer.slot(side, begin + slot - counted(slot), begin + slot)?);
        begin += slot + settle_after(side, Duration::from_millis(args.settle_ms));
    }
    writer.settle()?;
    Ok(written)
}

struct Writer {
    area: HugeFrames,
    /// The frame to write next.
    at: usize,
    clearer: Clearer,
}

impl Writer {
    /// Makes the area whole again after a slot of the kernel's.
    fn settle(&mut self) -> anyhow::Result<()> {
        self.area.populate().context("populating the area")?;
        if !self.area.are_huge()? {
            bail!("the kernel ran out of huge pages");
        }
        Ok(())
    }

    /// Writes frames until `end`. Returns those finished between `from` and then.
    fn slot(&mut self, side: Side, from: Duration, end: Duration) -> anyhow::Result<Written> {
        let mut written = Written::default();
        if side == Side::Kernel {
            self.at = 0;
        }
        loop {
            if side == Side::Kernel && self.at == 0 {
                self.area.discard().context("giving the area back")?;
            }
            let address = self.area.start() + self.at * FrameSize::HUGE.bytes();
            let frame = self.area.frame(self.at);
            let cpu_before = thread_cpu();
            if let Side::Order(order) = side {
                // The program is about to write the frame's beginning.
                let (_, target) = Target::of_address(address, FrameSize::HUGE);
                self.clearer.clear(frame, order, target);
            }
            frame::write_all(frame);
            self.at = (self.at + 1) % self.area.count();
            let (now, cpu) = (now(), thread_cpu().saturating_sub(cpu_before));
            if now >= end {
                return Ok(written);
            }
            if now >= from {
                written.frames += 1;
                written.cpu += cpu;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_side_has_as_many_slots_and_none_always_the_same_place() {
        let slots = schedule(6);
        for side in Side::ALL {
            let places: Vec<_> = (0..36).filter(|slot| slots[*slot] == side).map(|slot| slot % 6).collect();
            assert_eq!(places.len(), 6);
            assert_eq!(places.iter().filter(|place| **place == 0).count(), 1, "{side:?}: {places:?}");
        }
    }

    #[test]
    fn frames_count_from_the_given_moment_to_the_end() {
        let area = HugeFrames::new(2).expect("memory");
        let mut writer = Writer { area, at: 0, clearer: Clearer::for_this_processor() };
        for side in Side::ALL {
            let mut tries = 0;
            let (written, end) = loop {
                let begin = now();
                let end = begin + Duration::from_millis(20);
                let written = writer.slot(side, begin, end).expect("a slot");
                tries += 1;
                // Another program may have had the processor all the while.
                if written.frames > 0 || tries == 50 {
                    break (written, end);
                }
            };
            assert!(written.frames > 0 && written.cpu > Duration::ZERO, "{side:?}: {written:?}");
            assert_eq!(writer.slot(side, end, end).expect("a slot").frames, 0, "{side:?}: after the end");
            writer.area.populate().expect("memory");
            assert!(writer.area.bytes().iter().step_by(4096).any(|byte| *byte != 0));
        }
    }
}
