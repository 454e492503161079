//! A region moves from one process to another while it is written without a pause.
//!
//! Run it with `cargo run --release -p pagoda-vm --example migrate`. It starts itself once more as
//! the destination. The source writes records of its region at random, so that each round leaves
//! some; when few enough are left its writer is stopped, and the destination looks whether every
//! record is the one that was written last.

mod pair;

use std::error::Error;
use std::io::Write;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use pagoda::migrate::{LiveOptions, Otherwise, ReceiveOptions, SendOptions, Writer};
use pagoda::{Bytes, Region};

use pair::{Destination, Outcome, RECORD_BYTES, REGION};

fn main() -> Outcome {
    pair::run(source, destination)
}

/// The writer, in a thread of its own, until it is asked to stop.
#[derive(Default)]
struct Records {
    written: AtomicU64,
    stop: AtomicBool,
    has_stopped: AtomicBool,
}

impl Records {
    /// Writes records at random and returns the sum of all versions: each write makes one record's
    /// version one more.
    fn write(&self, region: &Region) -> u64 {
        let records = region.len() / RECORD_BYTES;
        let (mut random, mut bytes) = (1u64, [[0; 8]; RECORD_BYTES / 8]);
        while !self.stop.load(Ordering::Acquire) {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // A quarter of the region is never touched, and most writes go to a small part of it.
            let within = if random & (7 << 20) == 0 { records / 4 * 3 } else { records / 32 };
            let record = (random >> 33) as usize % within;
            let mut version = [0; 8];
            region.read_at(record * RECORD_BYTES, &mut version).expect("read");
            for (into, word) in bytes.iter_mut().zip(contents(record, u64::from_ne_bytes(version) + 1)) {
                *into = word.to_ne_bytes();
            }
            region.write_words(record * RECORD_BYTES, bytes.as_flattened()).expect("written");
            self.written.fetch_add(1, Ordering::Relaxed);
        }
        self.has_stopped.store(true, Ordering::Release);
        self.written.load(Ordering::Relaxed)
    }
}

impl Writer for &Records {
    fn throttle(&mut self, percent: u8) {
        println!("asked to write {percent}% less, and does not");
    }
    fn stop(&mut self) {
        self.stop.store(true, Ordering::Release);
        while !self.has_stopped.load(Ordering::Acquire) {
            thread::yield_now();
        }
    }
}

/// The words of a record: its version first.
fn contents(record: usize, version: u64) -> impl Iterator<Item = u64> {
    (0..RECORD_BYTES as u64 / 8)
        .map(move |i| if i == 0 { version } else { version.wrapping_mul(i / 8 + 1) ^ record as u64 })
}

fn source() -> Outcome {
    let mut destination = Destination::start()?;
    let manager = pair::manager()?;
    let region = manager.region(REGION).create()?;
    let options = LiveOptions {
        send: SendOptions::default(),
        downtime: Duration::from_millis(50),
        rounds: 20,
        otherwise: Otherwise::StopForLonger,
        slow_most_percent: LiveOptions::SLOW_MOST_PERCENT,
    };
    let records = Records::default();
    let (versions, moved) = thread::scope(|scope| {
        let writer = scope.spawn(|| records.write(&region));
        // Some life before it moves.
        while records.written.load(Ordering::Relaxed) < 20_000 {
            thread::sleep(Duration::from_millis(1));
        }
        let moved = region
            .migrate_to(&destination.address, &options, &mut &records, &mut |_, _| ControlFlow::Continue(()));
        // Had it failed the writer could have gone on.
        records.stop.store(true, Ordering::Release);
        let versions = writer.join().map_err(|_| "the writer failed")?;
        Ok::<_, Box<dyn Error>>((versions, moved?))
    })?;
    println!("{REGION} in records of {}, written {versions} times", Bytes::new(RECORD_BYTES as u64));
    println!("  rounds while it was written  {}", moved.pace.rounds);
    println!("  the writer stood still for   {:?}", moved.downtime);
    println!("  sent with content            {} pages", moved.counts.data_pages);
    println!("  sent as they were stored     {} pages", moved.counts.packed_pages);
    println!("  on the wire                  {}", Bytes::new(moved.counts.wire_bytes));
    writeln!(destination.child.stdin.take().ok_or("no pipe")?, "{versions}")?;
    destination.finish()
}

fn destination() -> Outcome {
    let manager = pair::manager()?;
    let (listener, options) = (pair::listen()?, ReceiveOptions::default());
    let (region, _) = Region::receive(&manager, listener, &options, &mut |_| ControlFlow::Continue(()))?;
    let mut versions = 0;
    let mut bytes = [0; RECORD_BYTES];
    for record in 0..region.len() / RECORD_BYTES {
        region.read_at(record * RECORD_BYTES, &mut bytes).expect("read");
        let mut words = bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word));
        let version = u64::from_ne_bytes(*bytes.first_chunk().ok_or("a record is not empty")?);
        let is_right =
            if version == 0 { words.all(|word| word == 0) } else { words.eq(contents(record, version)) };
        if !is_right {
            return Err(format!("record {record} is not what was written").into());
        }
        versions += version;
    }
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    if line.trim() != versions.to_string() {
        return Err(format!("{versions} writes have arrived, and there were {}", line.trim()).into());
    }
    println!("at the destination every record is as it was written last");
    Ok(())
}
