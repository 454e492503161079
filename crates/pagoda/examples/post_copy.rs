//! A region moves to another process, which uses it before it has arrived.
//!
//! Run it with `cargo run --release -p pagoda-vm --example post_copy`. It starts itself once more
//! as the destination. The source fills its region and is stopped; the destination runs at once,
//! and a thread that touches a record that is not there yet waits for that record alone, while all
//! others follow in the background.

mod pair;

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use pagoda::migrate::{LiveOptions, Otherwise, ReceiveOptions, SendOptions, Writer};
use pagoda::{Bytes, Region};

use pair::{Destination, Outcome, RECORD_BYTES, REGION};

/// Of the records, one in so many stays as it was: zero.
const UNUSED: usize = 4;

fn main() -> Outcome {
    pair::run(source, destination)
}

/// The content of a record.
fn record(number: usize) -> [u8; RECORD_BYTES] {
    let mut bytes = [0; RECORD_BYTES];
    if !number.is_multiple_of(UNUSED) {
        for (i, word) in bytes.as_chunks_mut().0.iter_mut().enumerate() {
            *word = (((number as u64) << 32) | (i as u64 / 8)).to_ne_bytes();
        }
    }
    bytes
}

/// There is no writer any more.
struct Stopped;

impl Writer for Stopped {
    fn throttle(&mut self, _percent: u8) {}
    fn stop(&mut self) {}
}

fn source() -> Outcome {
    let destination = Destination::start()?;
    let manager = pair::manager()?;
    let region = manager.region(REGION).create()?;
    for number in (0..region.len() / RECORD_BYTES).filter(|number| !number.is_multiple_of(UNUSED)) {
        region.write_words(number * RECORD_BYTES, &record(number)).expect("written");
    }
    let options = LiveOptions {
        send: SendOptions::default(),
        downtime: Duration::ZERO,
        // Nothing is sent before it is stopped.
        rounds: 0,
        otherwise: Otherwise::PostCopy,
        slow_most_percent: 0,
    };
    let to = &destination.address;
    let moved = region.migrate_to(to, &options, &mut Stopped, &mut |_, _| ControlFlow::Continue(()))?;
    println!("{REGION} in records of {}", Bytes::new(RECORD_BYTES as u64));
    println!("  nobody could use it for      {:?}", moved.downtime);
    println!("  the rest arrived within      {:?}", moved.owed_for.unwrap_or_default());
    println!("  owed at the switch           {} pages", moved.counts.owed_pages);
    println!("  asked for                    {} times", moved.counts.asked);
    destination.finish()
}

fn destination() -> Outcome {
    let manager = pair::manager()?;
    let (listener, options) = (pair::listen()?, ReceiveOptions::default());
    let (region, arrival) =
        Region::receive_late(&manager, listener, &options, &mut |_| ControlFlow::Continue(()))?;
    let (mut early, mut longest, mut found) = (0u64, Duration::ZERO, [0; RECORD_BYTES]);
    // From the end: the background begins at the other one. Had the source been lost this would say
    // so.
    for number in (0..region.len() / RECORD_BYTES).rev() {
        let begun = Instant::now();
        early += u64::from(arrival.outcome().is_none());
        region.read_at(number * RECORD_BYTES, &mut found)?;
        longest = longest.max(begun.elapsed());
        if found != record(number) {
            return Err(format!("record {number} is not what was written").into());
        }
    }
    arrival.wait()?;
    println!(
        "at the destination every record is as it was written, {early} of them read before all had arrived"
    );
    println!("  the longest wait for one     {longest:?}");
    Ok(())
}
