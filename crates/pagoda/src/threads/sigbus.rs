//! In-thread fault handling, the SIGBUS mode: no thread is woken and none waits.
//!
//! The handler of SIGBUS does the work of a handler thread for one fault, and tries again until it
//! is served. Events still arrive by the descriptor. A handler thread reads them, or a thread that
//! waits for one. The interrupted thread holds no lock of the engine, because nothing of the engine
//! touches managed memory. All signals are blocked, so that no other work of the same thread gets
//! between. Code here must never touch managed memory either, and never waits for the thread that
//! it interrupted.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use pagoda_linux::process::thread::{now_ns, ran_ns, sleep_us, yield_now};
use pagoda_linux::uffd::fault_address::FaultAddress;
use pagoda_linux::uffd::fault_signal::FaultServer;

use crate::engine::Engine;
use crate::error::StopReason;
use crate::state::pending::{Fault, Served, Tried};
use crate::store::Scratch;

/// Tries that only yield in between; afterwards each is followed by a short sleep. The awaited move
/// or compression takes that long.
const YIELDS: u32 = 8;

/// How long a thread sleeps between two tries.
const SLEEP_US: u32 = 20;

/// A thread that waits for its own fault. The first to tell is the one that reclaim and the
/// watchdog know of, until it is served.
struct Waiting<'a> {
    told: &'a AtomicU64,
    since_ns: u64,
    is_told: bool,
}

impl<'a> Waiting<'a> {
    fn new(told: &'a AtomicU64) -> Self {
        Self { told, since_ns: ran_ns(), is_told: false }
    }

    fn tell(&mut self) {
        if !self.is_told {
            let told = self.told.compare_exchange(0, self.since_ns, Ordering::Relaxed, Ordering::Relaxed);
            self.is_told = told.is_ok();
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.is_told {
            self.told.store(0, Ordering::Release);
        }
    }
}

/// Serves the faults of one engine's memory in their own threads.
pub(crate) struct InThread {
    engine: Arc<Engine>,
    /// As many faults are served at the same time. More would only take turns on the processors.
    scratches: Box<[Mutex<Scratch>]>,
    next: AtomicUsize,
}

impl InThread {
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        // Twice as many as run, for those that wait for a disk.
        let count = 2 * std::thread::available_parallelism().map_or(1, usize::from);
        let scratch = |_| {
            let mut scratch = Scratch::new(engine.base);
            scratch.taker = engine.zones.new_taker();
            Mutex::new(scratch)
        };
        let scratches = (0..count).map(scratch).collect();
        Self { engine, scratches, next: AtomicUsize::new(0) }
    }

    /// Working memory that is not in use.
    fn scratch(&self) -> MutexGuard<'_, Scratch> {
        loop {
            for _ in 0..self.scratches.len() {
                let at = self.next.fetch_add(1, Ordering::Relaxed) % self.scratches.len();
                match self.scratches[at].try_lock() {
                    Ok(scratch) => return scratch,
                    Err(TryLockError::WouldBlock) => {}
                    Err(TryLockError::Poisoned(_)) => self.engine.stop(StopReason::EngineBroken),
                }
            }
            // All others wait for the disk, say.
            sleep_us(SLEEP_US);
        }
    }

    /// Whether this is managed memory.
    fn is_managed(&self, address: usize) -> bool {
        let mut settled = false;
        loop {
            let table = self.engine.gate_shared();
            if table.find(address).is_some() {
                return true;
            }
            if settled && table.order.deferred() == 0 {
                return false;
            }
            drop(table);
            // A mapping that moved here a moment ago is in the table once its event is read.
            settled = self.engine.space.is_quiet();
            if !settled {
                sleep_us(SLEEP_US);
            }
        }
    }
}

impl FaultServer for InThread {
    fn serve(&self, at: FaultAddress, write: bool) -> bool {
        let (engine, since_ns, address) = (&*self.engine, now_ns(), at.page());
        if !self.is_managed(address) {
            return false;
        }
        // A lost page is the program's SIGBUS.
        if !engine.await_owed_here(address) || engine.is_lost_in_file(address) {
            return false;
        }
        engine.wait_slowed(address);
        let mut fault = Fault::new(at, write, since_ns);
        if engine.jumps_about(at) {
            engine.pay_ahead(&mut self.scratch());
        }
        let mut tries = 0;
        let mut waiting = None;
        // Between two tries others may have the working memory.
        while engine.serve_or_keep(&mut fault, &mut self.scratch()) != Tried::Served {
            // An unread event keeps the kernel from filling: the handler may be asleep on another
            // processor.
            engine.read_messages(&mut Vec::new(), &mut self.scratch());
            tries += 1;
            if tries < YIELDS {
                yield_now();
            } else {
                waiting.get_or_insert_with(|| Waiting::new(&engine.own_fault_since_ns)).tell();
                sleep_us(SLEEP_US);
            }
        }
        drop(waiting);
        !engine.is_lost_in_file(address) && !engine.is_refused(address)
    }

    fn serve_unknown(&self, at: FaultAddress, write: bool) -> bool {
        let (engine, address) = (&*self.engine, at.page());
        loop {
            let table = engine.gate_shared();
            if table.find(address).is_some() {
                drop(table);
                // The page came meanwhile, or is lost.
                return self.serve(at, write);
            }
            let deferred = table.order.deferred() > 0;
            let served = if deferred { Some(Served::Again) } else { engine.try_unknown(address, write) };
            drop(table);
            match served {
                None => return false,
                Some(Served::Done) => return true,
                Some(_) => {
                    engine.read_messages(&mut Vec::new(), &mut self.scratch());
                    yield_now();
                }
            }
        }
    }
}
