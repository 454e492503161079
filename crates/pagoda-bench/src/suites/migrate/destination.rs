//! The destination, a process of its own: it receives one migration and reports its cost. Apart
//! from the source, so that its faults and memory count alone.
//!
//! Its first line is the address it listens on, its last the figures in JSON. Faults are those of
//! the whole process from before it listens until all has arrived, arenas and buffers included. It
//! must never read the memory before that, except the region that is used early, at random.

use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::ops::{ControlFlow, Range};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Args, ValueEnum};
use pagoda::migrate::{Listener, ReceiveOptions, RegionDestination, ZeroPolicy};
use pagoda::{Manager, Region};
use pagoda_core::page::BasePage;
use pagoda_core::size::Bytes;
use pagoda_linux::procfs::usage::Usage;
use pagoda_migrate::{Content, Destination, MemoryDestination, receive};
use serde::{Deserialize, Serialize};

use super::cases::{digest, digest_of};
use super::certificates;
use crate::load::data::{PAGE_BYTES, Random};
use crate::measure::histogram::Histogram;
use crate::measure::memory::status_bytes;

/// The limit of a run.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Connections whose bytes are discarded.
pub const DISCARDED: usize = 2;

/// The bytes read or written of a connection at once: a stripe.
pub const PIECE: usize = 2 << 20;

/// The hidden options of the destination, which the bench starts.
#[derive(Args, Debug)]
pub struct DestinationArgs {
    /// The policy for zero pages.
    #[arg(long, default_value_t)]
    zero: ZeroPolicy,
    /// The kind of memory that receives.
    #[arg(long, value_enum)]
    into: Into,
    /// The most bytes that arrive.
    #[arg(long)]
    most: Bytes,
    /// A folder of certificates, for TLS.
    #[arg(long)]
    trust: Option<PathBuf>,
}

/// The kind of memory that receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Into {
    /// Plain memory, which faults as it is touched, as in other migrations.
    Memory,
    /// The same, backed by the kernel's transparent huge pages, as QEMU's is.
    HugeMemory,
    /// A region, in base pages of 4 KiB.
    Region,
    /// A region in base pages of 64 KiB.
    LargeRegion,
    /// A region in huge frames.
    HugeRegion,
    /// A region in base pages of 64 KiB, read at random as soon as reads are allowed.
    LateRegion,
    /// No memory: the bytes of plain connections are discarded.
    Nowhere,
}

/// Faults of the receiving threads, by their cause.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct FaultsByCause {
    pub zero_check: u64,
    pub zero_write: u64,
    pub data_write: u64,
}

/// The cost of receiving.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Arrived {
    pub faults: u64,
    pub faults_by_cause: FaultsByCause,
    /// Pages that arrived packed and were unpacked.
    pub unpacked_pages: u64,
    /// Bytes placed by moves, and by the kernel's copies into fresh memory. Zero in plain memory.
    pub moved_bytes: u64,
    pub copied_bytes: u64,
    pub rss_bytes: u64,
    pub cpu_us: u64,
    /// The longest read of a word while pages were owed, and how long they were owed.
    pub max_fault_us: u64,
    pub owed_us: u64,
    /// The 99.9th percentile of such reads.
    pub read_us_p999: f64,
    /// Pages that were owed, and pages that arrived.
    pub owed_pages: u64,
    pub named_pages: u64,
    /// The digest of all memory, zeroes included.
    pub digest: u64,
}

/// Receives, and returns the cost.
pub fn run(args: &DestinationArgs) -> anyhow::Result<Arrived> {
    let base = match args.into {
        Into::Nowhere => return discard_all(),
        Into::Memory => return receive_into(args, MemoryDestination::new()),
        Into::HugeMemory => return receive_into(args, MemoryDestination::in_huge_pages()),
        Into::Region => BasePage::K4,
        Into::LargeRegion | Into::LateRegion => BasePage::K64,
        Into::HugeRegion => BasePage::M2,
    };
    // Room for all of it, so that no reclaim is measured.
    let budget = Bytes::new(args.most.get() * 5 / 4).max(Bytes::mib(64));
    let manager = Manager::builder().budget(budget).base_page(base).user_mode_only(true).build()?;
    let arrived = match args.into {
        Into::LateRegion => receive_late(args, &manager),
        _ => receive_into(args, RegionDestination::new(manager.clone())),
    }?;
    let stats = manager.stats();
    let (moved_bytes, copied_bytes) = (stats.arrived_moved_bytes, stats.arrived_copied_bytes);
    Ok(Arrived { moved_bytes, copied_bytes, ..arrived })
}

/// Listens, prints the address, and returns how to receive.
fn listen(args: &DestinationArgs) -> anyhow::Result<(Listener, ReceiveOptions)> {
    let listener = Listener::bind(&"tcp://127.0.0.1:0".parse().map_err(anyhow::Error::msg)?)?;
    say(&listener.endpoint()?.to_string())?;
    let options = ReceiveOptions {
        zero: args.zero,
        image_most: args.most,
        wait: PATIENCE,
        stall: PATIENCE,
        tls: args.trust.as_deref().map(certificates::server).transpose()?,
        ..ReceiveOptions::default()
    };
    Ok((listener, options))
}

/// Reads words at random while the rest arrives.
fn receive_late(args: &DestinationArgs, manager: &Manager) -> anyhow::Result<Arrived> {
    let (listener, options) = listen(args)?;
    let (region, arrival) =
        Region::receive_late(manager, listener, &options, &mut |_| ControlFlow::Continue(()))?;
    let shown = Instant::now();
    let (mut random, mut longest, mut reads) = (Random::new(1), Duration::ZERO, Histogram::new());
    let pages = (region.len() / PAGE_BYTES) as u64;
    while arrival.outcome().is_none() {
        let at = Instant::now();
        region.read_at(random.below(pages) as usize * PAGE_BYTES, &mut [0; 8]).expect("read");
        let took = at.elapsed();
        longest = longest.max(took);
        reads.add(took.as_nanos() as u64);
    }
    let counts = arrival.wait()?;
    let owed = shown.elapsed();
    let used = Usage::of_this_process()?;
    Ok(Arrived {
        faults: used.minor_faults,
        unpacked_pages: counts.unpacked_pages,
        rss_bytes: rss_bytes_of("self")?,
        cpu_us: used.cpu_us,
        max_fault_us: longest.as_micros() as u64,
        owed_us: owed.as_micros() as u64,
        read_us_p999: reads.percentiles().p999,
        owed_pages: counts.owed_pages,
        named_pages: counts.data_pages + counts.packed_pages + counts.filled_pages + counts.zero_pages,
        digest: digest_of(&region)?,
        ..Arrived::default()
    })
}

fn receive_into(args: &DestinationArgs, destination: impl Destination) -> anyhow::Result<Arrived> {
    // The engine and its arena are warm-up, which counts.
    let (listener, options) = listen(args)?;
    let mut counting = Counting { destination, size: Bytes::ZERO, causes: Default::default() };
    let counts = receive(listener, &mut counting, &options, &mut |_| ControlFlow::Continue(()))?;
    // The usage since the process began.
    let used = Usage::of_this_process()?;
    let of = |cause: &AtomicU64| cause.load(Ordering::Relaxed);
    let [zero_check, zero_write, data_write] = &counting.causes;
    Ok(Arrived {
        faults: used.minor_faults,
        faults_by_cause: FaultsByCause {
            zero_check: of(zero_check),
            zero_write: of(zero_write),
            data_write: of(data_write),
        },
        unpacked_pages: counts.unpacked_pages,
        rss_bytes: rss_bytes_of("self")?,
        cpu_us: used.cpu_us,
        digest: digest(counting.size, |offset, into| counting.destination.read_at(offset, into))?,
        ..Arrived::default()
    })
}

/// A destination that counts its faults by the requested step.
struct Counting<D> {
    destination: D,
    size: Bytes,
    /// Faults of checks for zero, of zero-fill, of writing content.
    causes: [AtomicU64; 3],
}

impl<D: Destination> Counting<D> {
    fn count<T>(&self, cause: usize, work: impl FnOnce(&D) -> io::Result<T>) -> io::Result<T> {
        let before = Usage::of_this_thread()?;
        let done = work(&self.destination)?;
        let faults = Usage::of_this_thread()?.since(before).minor_faults;
        self.causes[cause].fetch_add(faults, Ordering::Relaxed);
        Ok(done)
    }
}

impl<D: Destination> Destination for Counting<D> {
    fn prepare(&mut self, size: Bytes) -> io::Result<()> {
        self.size = size;
        self.destination.prepare(size)
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.count(2, |destination| destination.write_at(offset, bytes))
    }
    fn receive_at(&self, offset: u64, content: &mut dyn Content, room: &mut [u8]) -> io::Result<()> {
        self.count(2, |destination| destination.receive_at(offset, content, room))
    }
    fn write_packed(&self, offset: u64, packed: &[u8], content: &[u8]) -> io::Result<bool> {
        self.count(2, |destination| destination.write_packed(offset, packed, content))
    }
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.count(0, |destination| destination.read_at(offset, into))
    }
    fn clear(&self, range: Range<u64>) -> io::Result<()> {
        self.count(1, |destination| destination.clear(range))
    }
    fn discard(&self, range: Range<u64>) -> io::Result<()> {
        self.count(1, |destination| destination.discard(range))
    }
    fn finish(&mut self) -> io::Result<()> {
        self.destination.finish()
    }
}

/// Reads connections to their ends, and keeps nothing.
fn discard_all() -> anyhow::Result<Arrived> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    say(&listener.local_addr()?.to_string())?;
    let discarding: Vec<_> = (0..DISCARDED)
        .map(|_| {
            let (mut connection, _) = listener.accept()?;
            Ok(thread::spawn(move || -> io::Result<()> {
                let mut room = vec![0; PIECE];
                while connection.read(&mut room)? > 0 {}
                // The sender waits for this byte: all of it has arrived.
                connection.write_all(&[1])
            }))
        })
        .collect::<io::Result<_>>()?;
    for thread in discarding {
        thread.join().map_err(|_| anyhow::anyhow!("a thread that discards has failed"))??;
    }
    Ok(Arrived::default())
}

fn say(line: &str) -> io::Result<()> {
    println!("{line}");
    io::stdout().flush()
}

/// The resident anonymous memory of a process, by its folder in /proc.
pub fn rss_bytes_of(process: &str) -> anyhow::Result<u64> {
    status_bytes(process, "RssAnon:").context("no RssAnon in the status of a process")
}
