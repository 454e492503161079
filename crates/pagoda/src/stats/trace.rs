//! A trace: the faults and evictions of all processes of a tree, one by one, by address and time.
//!
//! ```text
//!   header | identities of the processes | events: two words each
//! ```
//! `pagoda run --trace` makes it, in memory and without a name, so that nothing is left of it
//! however its processes end. Each engine opens it when it starts, takes a number, and writes
//! events from its handlers and its reclaim. A place is taken by one addition, and filled by two
//! stores: no lock, no system call, no allocation. It is a log and no ring: the first
//! [`EVENTS_MAX`] events are kept, over all processes, so that it is complete up to one moment;
//! later ones are counted and dropped. A process that is killed between the addition and the stores
//! leaves a place empty, which is dropped, too.
//!
//! The memory is shared, and no part of the budget: 16 bytes an event, 64 MiB at most, and only as
//! far as it is written. A reader must not trust it: any process of the tree can write to it. This
//! module must never wait.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use pagoda_core::time::latency;
use pagoda_linux::io::shared_file::{NamelessWords, SharedWords};
use pagoda_linux::process::identity::Identity;
use pagoda_linux::process::thread::now_ns;

use crate::stats::fault_kind::{FaultKind, KINDS};

/// Events that are kept: 100 seconds of a program that does little else than fault, at 40,000 a
/// second.
pub const EVENTS_MAX: usize = 4 << 20;

/// Processes that have a number, which an event has twelve bits for. Those that come later are not
/// traced, and counted.
pub const PROCESSES_MAX: usize = 1 << 12;

/// Of this layout.
const MAGIC: u64 = u64::from_le_bytes(*b"pagotr01");

/// Words of the header.
#[derive(Clone, Copy)]
enum Header {
    Magic,
    /// When the run began, by the clock that all processes share.
    BeganNs,
    /// Processes that have asked for a number.
    Processes,
    /// Events that have asked for a place.
    Events,
}

const IDENTITIES: usize = 8;
const EVENTS: usize = IDENTITIES + PROCESSES_MAX;
const WORDS: usize = EVENTS + 2 * EVENTS_MAX;

/// Of the first word, from the least bit: the kind, how long it took, the process and when it was,
/// in microseconds, up to six days.
const KIND_BITS: u32 = 4;
const TOOK_BITS: u32 = 9;
const PROCESS_BITS: u32 = 12;
const TIME_BITS: u32 = 64 - KIND_BITS - TOOK_BITS - PROCESS_BITS;

/// Of the second word, below the address: how many OS pages.
const PAGES_BITS: u32 = 19;

/// The kind of an eviction; that of a fault is its number and one. Zero is a place that was not
/// filled.
const EVICTION: u64 = KINDS as u64 + 1;

const _: () = assert!(latency::BUCKETS <= 1 << TOOK_BITS && EVICTION < 1 << KIND_BITS);
const _: () = assert!(PROCESSES_MAX <= 1 << PROCESS_BITS);

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A fault was served.
    Fault {
        /// Where its page was found.
        kind: FaultKind,
        /// How long that took, at most an eighth too high.
        took_ns: u64,
    },
    /// Memory left the program.
    Eviction,
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Since the run began.
    pub time_us: u64,
    /// The process.
    pub pid: u32,
    /// The kind of event.
    pub what: What,
    /// Of the fault's OS page, or of the first byte that left.
    pub address: u64,
    /// An OS page, or the bytes that were evicted at once.
    pub bytes: u64,
}

/// A trace, as its maker has it.
pub struct Trace {
    words: NamelessWords,
}

impl Trace {
    /// Makes an empty one; the run begins now.
    ///
    /// # Errors
    /// It can't be made or mapped.
    pub fn create() -> io::Result<Self> {
        let words = NamelessWords::create(c"pagoda-trace", WORDS)?;
        words[Header::BeganNs as usize].store(now_ns(), Ordering::Relaxed);
        words[Header::Magic as usize].store(MAGIC, Ordering::Release);
        Ok(Self { words })
    }

    /// Where the engines open it, as long as this lives.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.words.path()
    }

    /// The numbers of the processes that are in it, in the order in which their engines started.
    #[must_use]
    pub fn processes(&self) -> Vec<u32> {
        let count = self.count(Header::Processes, PROCESSES_MAX);
        let identity = |word: &AtomicU64| Identity::from_word(word.load(Ordering::Acquire));
        let identities = self.words[IDENTITIES..][..count].iter().filter_map(identity);
        identities.map(Identity::pid).collect()
    }

    /// Events that there were, those that were dropped included.
    #[must_use]
    pub fn seen(&self) -> u64 {
        self.words[Header::Events as usize].load(Ordering::Acquire)
    }

    /// The kept events, in the order in which they were written: the times of two processes or
    /// threads may be some microseconds out of order.
    pub fn events(&self) -> impl Iterator<Item = Event> {
        let count = self.count(Header::Events, EVENTS_MAX);
        self.words[EVENTS..][..2 * count].as_chunks::<2>().0.iter().filter_map(|place| self.event(place))
    }

    fn count(&self, of: Header, most: usize) -> usize {
        usize::try_from(self.words[of as usize].load(Ordering::Acquire)).map_or(most, |count| count.min(most))
    }

    fn event(&self, [first, second]: &[AtomicU64; 2]) -> Option<Event> {
        let (first, second) = (first.load(Ordering::Acquire), second.load(Ordering::Relaxed));
        let bits = |from: u32, count: u32| first >> from & ((1 << count) - 1);
        let kind = bits(0, KIND_BITS);
        let what = match kind.checked_sub(1)? {
            _ if kind == EVICTION => What::Eviction,
            fault => What::Fault {
                kind: *FaultKind::ALL.get(fault as usize)?,
                took_ns: latency::value_of((bits(KIND_BITS, TOOK_BITS) as usize).min(latency::BUCKETS - 1)),
            },
        };
        let process = bits(KIND_BITS + TOOK_BITS, PROCESS_BITS) as usize;
        let identity = Identity::from_word(self.words[IDENTITIES + process].load(Ordering::Acquire))?;
        Some(Event {
            time_us: first >> (64 - TIME_BITS),
            pid: identity.pid(),
            what,
            address: second >> PAGES_BITS << 12,
            bytes: (second & ((1 << PAGES_BITS) - 1)) << 12,
        })
    }
}

/// A trace, as an engine writes to it.
pub(crate) struct Tracer {
    words: SharedWords,
    began_ns: u64,
    process: u64,
}

impl Tracer {
    /// Opens it for this process, and takes a number; one that called exec keeps its own.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let words = SharedWords::open(path, WORDS)?;
        if words[Header::Magic as usize].load(Ordering::Acquire) != MAGIC {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is not a trace of this version"));
        }
        let own = Identity::of_self()?.word();
        let processes = &words[Header::Processes as usize];
        let known = (processes.load(Ordering::Acquire) as usize).min(PROCESSES_MAX);
        let had = (0..known).find(|&at| words[IDENTITIES + at].load(Ordering::Acquire) == own);
        let process = had.unwrap_or_else(|| processes.fetch_add(1, Ordering::AcqRel) as usize);
        if process >= PROCESSES_MAX {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "it has no room for another process"));
        }
        words[IDENTITIES + process].store(own, Ordering::Release);
        let began_ns = words[Header::BeganNs as usize].load(Ordering::Relaxed);
        Ok(Self { words, began_ns, process: process as u64 })
    }

    /// A fault was served.
    pub(crate) fn fault(&self, kind: FaultKind, address: usize, now_ns: u64, took_ns: u64) {
        let took = latency::index_of(took_ns) as u64;
        self.write((kind as u64 + 1) | (took << KIND_BITS), now_ns, address, 4096);
    }

    pub(crate) fn evicted(&self, address: usize, bytes: usize) {
        self.write(EVICTION, now_ns(), address, bytes);
    }

    fn write(&self, what: u64, now_ns: u64, address: usize, bytes: usize) {
        let at = self.words[Header::Events as usize].fetch_add(1, Ordering::Relaxed);
        if at >= EVENTS_MAX as u64 {
            return;
        }
        let time_us = (now_ns.saturating_sub(self.began_ns) / 1000).min((1 << TIME_BITS) - 1);
        let pages = (bytes as u64 >> 12).min((1 << PAGES_BITS) - 1);
        let place = &self.words[EVENTS + 2 * at as usize..][..2];
        place[1].store((address as u64 >> 12) << PAGES_BITS | pages, Ordering::Relaxed);
        // The first word makes it an event.
        let process = self.process << (KIND_BITS + TOOK_BITS);
        place[0].store(what | process | time_us << (64 - TIME_BITS), Ordering::Release);
    }
}

#[cfg(test)]
#[path = "trace_test.rs"]
mod tests;
