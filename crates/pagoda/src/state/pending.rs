//! Faults between their arrival and their end: a waiting fault, its outcome, and the windows that
//! were served last.
//!
//! Handlers, callers of a mapped file, and threads that serve their own faults all pass these on.
//! This module must never serve anything.

use std::sync::atomic::{AtomicUsize, Ordering};

use pagoda_core::fault::swap_in::{self, Extent, GranuleAt, Window};
use pagoda_linux::uffd::fault_address::FaultAddress;

/// The outcome of an attempt at a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tried {
    Served,
    /// It can't be served yet.
    Kept,
    /// A frame for it is being cleared: other faults come first.
    GaveWay,
}

/// A fault that waits. A thread waits for one page at a time, so that there are never more than
/// threads.
#[derive(Clone, Copy)]
pub(crate) struct Fault {
    pub(crate) at: FaultAddress,
    pub(crate) write: bool,
    pub(crate) since_ns: u64,
    /// The thread that waits; 0 if that is not known.
    pub(crate) thread: u32,
    /// It found no frame, and has rung for reclaim.
    pub(crate) has_rung: bool,
    /// Others, that came later, came first: not again.
    pub(crate) was_passed: bool,
    /// Its page is there, and writes to it are held.
    pub(crate) held: bool,
    /// What its handler has evicted for it, if it is held.
    pub(crate) paid_bytes: u64,
}

impl Fault {
    pub(crate) fn new(at: FaultAddress, write: bool, since_ns: u64) -> Self {
        Self {
            at,
            write,
            since_ns,
            thread: 0,
            has_rung: false,
            was_passed: false,
            held: false,
            paid_bytes: 0,
        }
    }
}

/// The windows that were served last, by any handler, from which the next extent follows
/// (`pagoda_core::fault::swap_in`). They are a guess, so that a lost update does no harm.
#[derive(Default)]
pub(crate) struct Recent {
    windows: [AtomicUsize; WINDOWS],
    next: AtomicUsize,
}

/// A few windows for each of several readers at once, as a merge of sorted runs has them.
const WINDOWS: usize = 32;

impl Recent {
    /// How much a fault on this granule brings in.
    pub(crate) fn extent(&self, at: GranuleAt) -> Extent {
        let next = self.next.load(Ordering::Relaxed);
        let windows: [Window; WINDOWS] = std::array::from_fn(|ago| {
            let last = next.wrapping_sub(1 + ago) % WINDOWS;
            Window::of_word(self.windows[last].load(Ordering::Relaxed))
        });
        swap_in::extent(at, &windows)
    }

    /// A fault was served.
    pub(crate) fn note(&self, window: Window) {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        self.windows[next % WINDOWS].store(window.word(), Ordering::Relaxed);
    }
}

/// The outcome of serving a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Served {
    /// Its thread runs again (or faults again, if something else is wrong there).
    Done,
    /// An event is unread: read events, then serve it again.
    Again,
    /// Another thread moves this page: serve it again in a moment.
    Busy,
    /// There is no frame: reclaim, then serve it again.
    NoMemory,
    /// Its frame is being cleared, and other faults come first: serve them, then it again.
    GaveWay,
}

/// How many threads serve faults at most.
pub(crate) const HANDLERS_MAX: usize = 4;
