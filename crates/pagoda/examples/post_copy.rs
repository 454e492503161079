//! A region moves to another process, which uses it before it has arrived.
//!
//! Run it with `cargo run --release -p pagoda --example post_copy`. It starts itself once more as the destination. The source fills
//! its region and is stopped; the destination goes on at once, and whoever touches a record that is not there yet waits for
//! that record alone, while all others follow in the background.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::ops::ControlFlow;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use pagoda::migrate::{
    Codec, Listener, LiveOptions, Otherwise, ReceiveOptions, SendOptions, Writer, ZeroPolicy,
};
use pagoda::{Bytes, Manager, Region};

const BUDGET: Bytes = Bytes::mib(64);
const REGION: Bytes = Bytes::mib(96);
const RECORD_BYTES: usize = 4096;
/// Of the records, one in so many stays as it was: zero.
const UNUSED: usize = 4;
const STALL: Duration = Duration::from_secs(30);

fn main() -> Result<(), Box<dyn Error>> {
    match std::env::args().nth(1).as_deref() {
        None => source(),
        Some("destination") => destination(),
        Some(other) => Err(format!("{other} is no argument; it takes none").into()),
    }
}

/// What a record holds.
fn record(number: usize) -> [u8; RECORD_BYTES] {
    let mut bytes = [0; RECORD_BYTES];
    if !number.is_multiple_of(UNUSED) {
        for (i, word) in bytes.as_chunks_mut().0.iter_mut().enumerate() {
            *word = (((number as u64) << 32) | (i as u64 / 8)).to_ne_bytes();
        }
    }
    bytes
}

/// Nobody writes any more.
struct Stopped;

impl Writer for Stopped {
    fn throttle(&mut self, _percent: u8) {}
    fn stop(&mut self) {}
}

fn source() -> Result<(), Box<dyn Error>> {
    let mut child =
        Command::new(std::env::current_exe()?).arg("destination").stdout(Stdio::piped()).spawn()?;
    let mut said = BufReader::new(child.stdout.take().ok_or("no pipe")?).lines();
    let address = said.next().ok_or("the destination did not start")??;

    let manager = Manager::builder().budget(BUDGET).user_mode_only(true).build()?;
    let region = manager.region(REGION).create()?;
    for number in (0..region.len() / RECORD_BYTES).filter(|number| !number.is_multiple_of(UNUSED)) {
        region.write_words(number * RECORD_BYTES, &record(number));
    }
    let options = LiveOptions {
        send: SendOptions {
            channels: 2,
            codec: Codec::Lz4,
            token: None,
            tls: None,
            bandwidth: None,
            stall: STALL,
        },
        downtime: Duration::ZERO,
        // Nothing is sent before it is stopped.
        rounds: 0,
        otherwise: Otherwise::PostCopy,
    };
    let moved = region
        .migrate_to(&address.parse()?, &options, &mut Stopped, &mut |_, _| ControlFlow::Continue(()))?;
    println!("{REGION} in records of {}", Bytes::new(RECORD_BYTES as u64));
    println!("  nobody could use it for      {:?}", moved.downtime);
    println!("  the rest arrived within      {:?}", moved.owed_for.unwrap_or_default());
    println!("  owed at the switch           {} pages", moved.counts.owed_pages);
    println!("  asked for                    {} times", moved.counts.asked);
    for line in said {
        println!("{}", line?);
    }
    if child.wait()?.success() { Ok(()) } else { Err("the destination found it otherwise".into()) }
}

fn destination() -> Result<(), Box<dyn Error>> {
    let manager = Manager::builder().budget(BUDGET).user_mode_only(true).build()?;
    let listener = Listener::bind(&"tcp://127.0.0.1:0".parse()?)?;
    println!("{}", listener.endpoint()?);
    std::io::stdout().flush()?;
    let options = ReceiveOptions {
        token: None,
        tls: None,
        zero: ZeroPolicy::default(),
        image_most: Bytes::gib(1),
        wait: STALL,
        stall: STALL,
    };
    let (region, arrival) =
        Region::receive_late(&manager, listener, &options, &mut |_| ControlFlow::Continue(()))?;
    let (mut early, mut longest, mut found) = (0u64, Duration::ZERO, [0; RECORD_BYTES]);
    // From the end: the background begins at the other one. Had the source been lost this would say so.
    for number in (0..region.len() / RECORD_BYTES).rev() {
        let begun = Instant::now();
        early += u64::from(arrival.outcome().is_none());
        region.try_read_at(number * RECORD_BYTES, &mut found)?;
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
