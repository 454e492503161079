//! Faults between their arrival and their end: a waiting fault, its extent, its outcome, and the
//! pages that were served last.
//!
//! Handlers, callers of a mapped file, and threads that serve their own faults all pass these on.
//! This module must never serve anything.

use std::sync::atomic::{AtomicUsize, Ordering};

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

/// The pages that were served last, by any handler, each with how much of it was brought in. They
/// tell sequential from random access. They are a guess, so that a lost update does no harm.
#[derive(Default)]
pub(crate) struct Recent {
    /// A few for each of several readers that go on at once, as a merge of sorted runs has them. A
    /// page's number, and below it in [`ORDER_BITS`] the order of its granules.
    pages: [AtomicUsize; 32],
    next: AtomicUsize,
}

const ORDER_BITS: u32 = 3;

/// The order of all granules of a page of 64 KiB.
const WHOLE_ORDER: u32 = 4;

impl Recent {
    /// How much a fault on this page brings in. Each further fault on or beside a page that was
    /// served just now brings twice as much; a sequential reader, which has come so far, gets
    /// readahead, too. Any other gets a granule alone.
    pub(crate) fn extent(&self, page: usize) -> Extent {
        let mut order = None;
        let (mut is_onwards, mut is_downwards) = (false, false);
        for known in &self.pages {
            let known = known.load(Ordering::Relaxed);
            let (place, came) = (known >> ORDER_BITS, known as u32 & ((1 << ORDER_BITS) - 1));
            if place.abs_diff(page) <= 1 {
                order = order.max(Some(came));
                is_onwards |= place.wrapping_add(1) == page && came >= WHOLE_ORDER;
                is_downwards |= place == page.wrapping_add(1) && came >= WHOLE_ORDER;
            }
        }
        match order.map_or(0, |order| order + 1) {
            _ if is_onwards => Extent::Onwards,
            _ if is_downwards => Extent::Downwards,
            order if order >= WHOLE_ORDER => Extent::Page,
            order => Extent::Granules(order),
        }
    }
    pub(crate) fn note(&self, page: usize, extent: Extent) {
        let order = match extent {
            Extent::Granules(order) => order,
            _ => WHOLE_ORDER,
        };
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        self.pages[next % self.pages.len()].store(page << ORDER_BITS | order as usize, Ordering::Relaxed);
    }
}

/// How much of a staged or stored page a fault brings in. In a region whose base page is less than
/// an entry that is its block, and a few more for sequential access (`Engine::comes_back`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// The whole base page: several faults on a page predict more.
    Page,
    /// As `Page`, after a fault on the page below: also reads the content behind it in the file
    /// into memory.
    Onwards,
    /// The same after a fault on the page above, of the content before it.
    Downwards,
    /// Two to the power of this granules, with the missing one among them. Random access would pay
    /// for fifteen others to be swapped in and evicted.
    Granules(u32),
    /// The whole entry, also in a region with a smaller base page: for a caller that ends its
    /// management.
    Whole,
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
