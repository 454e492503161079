//! Faults between their arrival and their end: a waiting fault, its extent, its outcome, and the
//! windows that were served last.
//!
//! Handlers, callers of a mapped file, and threads that serve their own faults all pass these on.
//! This module must never serve anything.

use std::sync::atomic::{AtomicUsize, Ordering};

use pagoda_core::page::OS_PAGE;
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

/// What was served last, by any handler: a few *windows* of granules that came together. They tell
/// sequential from random access. They are a guess, so that a lost update does no harm.
///
/// A walk down the columns of a table faults on page after page, too, but a row's length apart, and
/// uses one granule here and there: with whole pages its working set would be many times what it
/// uses. So steps of one length, each to where nothing came near, are told from a reader's.
#[derive(Default)]
pub(crate) struct Recent {
    /// A few for each of several readers that go on at once, as a merge of sorted runs has them.
    windows: [AtomicUsize; 32],
    next: AtomicUsize,
}

/// The order of all granules of a page of 64 KiB.
const WHOLE_ORDER: u32 = 4;

/// The windows among which the last step of a walk is looked for, and as many for the step before:
/// a few walks at once.
const STEPS_BACK: usize = 4;

/// A number of a granule, below it in four bits each the order of the window's length in granules,
/// and the order of the extent that the fault had.
const ORDER_BITS: u32 = 4;

/// A window of granules, by the number of the one that was missed.
#[derive(Clone, Copy)]
struct Window {
    missed: usize,
    len_order: u32,
    order: u32,
}

impl Window {
    fn word(self) -> usize {
        (self.missed << ORDER_BITS | self.len_order as usize) << ORDER_BITS | self.order as usize
    }

    fn of(word: usize) -> Self {
        let order = |word: usize| word as u32 & ((1 << ORDER_BITS) - 1);
        Self { missed: word >> (2 * ORDER_BITS), len_order: order(word >> ORDER_BITS), order: order(word) }
    }

    /// Whether granules lie between this window and another, more than one.
    fn is_apart(self, granule: usize) -> bool {
        let first = self.missed >> self.len_order << self.len_order;
        granule + 2 < first || granule > first + (1 << self.len_order) + 1
    }

    /// Whether a fault here is the next step of a walk that came from window `before` to this one.
    fn is_step(self, before: Window, granule: usize) -> bool {
        let (step, last) = (granule.wrapping_sub(self.missed), self.missed.wrapping_sub(before.missed));
        (step.wrapping_sub(last) as isize).unsigned_abs() <= 1
    }
}

/// A granule by its number, and the order of the number of granules in a base page there.
#[derive(Clone, Copy)]
pub(crate) struct GranuleAt {
    number: usize,
    page_order: u32,
}

impl GranuleAt {
    /// Of an address, in base pages of so many bytes, a power of two.
    pub(crate) fn new(address: usize, page_bytes: usize) -> Self {
        Self { number: address / OS_PAGE, page_order: (page_bytes / OS_PAGE).max(1).ilog2() }
    }

    fn page(self) -> usize {
        self.number >> self.page_order
    }
}

impl Recent {
    /// How much a fault on this granule brings in. Each further fault on or beside a page that was
    /// served just now brings twice as much; a sequential reader, which has come so far, gets
    /// readahead, too. Any other, and a walk of long steps, gets a granule alone.
    pub(crate) fn extent(&self, at: GranuleAt) -> Extent {
        if self.is_step(at.number) {
            return Extent::Granules(0);
        }
        let mut order = None;
        let (mut is_onwards, mut is_downwards) = (false, false);
        for known in &self.windows {
            let known = Window::of(known.load(Ordering::Relaxed));
            let (place, page) = (known.missed >> at.page_order, at.page());
            if place.abs_diff(page) <= 1 {
                order = order.max(Some(known.order));
                is_onwards |= place.wrapping_add(1) == page && known.order >= WHOLE_ORDER;
                is_downwards |= place == page.wrapping_add(1) && known.order >= WHOLE_ORDER;
            }
        }
        match order.map_or(0, |order| order + 1) {
            _ if is_onwards => Extent::Onwards,
            _ if is_downwards => Extent::Downwards,
            order if order >= WHOLE_ORDER => Extent::Page,
            order => Extent::Granules(order),
        }
    }

    fn is_step(&self, granule: usize) -> bool {
        let next = self.next.load(Ordering::Relaxed);
        let ago = |count: usize| {
            let at = next.wrapping_sub(1 + count) % self.windows.len();
            Window::of(self.windows[at].load(Ordering::Relaxed))
        };
        (0..STEPS_BACK).all(|count| ago(count).is_apart(granule))
            && (0..STEPS_BACK).any(|last| {
                (last + 1..=last + STEPS_BACK).any(|before| ago(last).is_step(ago(before), granule))
            })
    }

    /// A fault of this extent was served.
    pub(crate) fn note(&self, at: GranuleAt, extent: Extent) {
        let len_order = match extent {
            Extent::Granules(order) => order.min(at.page_order),
            _ => at.page_order,
        };
        self.keep(at, len_order, extent);
    }

    /// The same, where its whole page came whatever the extent.
    pub(crate) fn note_page(&self, at: GranuleAt, extent: Extent) {
        self.keep(at, at.page_order, extent);
    }

    fn keep(&self, at: GranuleAt, len_order: u32, extent: Extent) {
        let order = if let Extent::Granules(order) = extent { order } else { WHOLE_ORDER };
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        let window = Window { missed: at.number, len_order, order };
        self.windows[next % self.windows.len()].store(window.word(), Ordering::Relaxed);
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

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 64 << 10;

    /// The extents of faults at these addresses.
    fn extents(recent: &Recent, addresses: impl IntoIterator<Item = usize>) -> Vec<Extent> {
        let serve = |address| {
            let at = GranuleAt::new(address, PAGE);
            let extent = recent.extent(at);
            recent.note(at, extent);
            extent
        };
        addresses.into_iter().map(serve).collect()
    }

    /// The faults of a reader of each granule, that stops where something is missing.
    fn of_reader(recent: &Recent, granules: impl Iterator<Item = usize>) -> Vec<Extent> {
        let mut there = std::collections::HashSet::new();
        let mut seen = Vec::new();
        for granule in granules {
            if there.contains(&granule) {
                continue;
            }
            let extent = extents(recent, [granule * OS_PAGE])[0];
            let order = if let Extent::Granules(order) = extent { order } else { WHOLE_ORDER };
            let first = granule >> order << order;
            there.extend(first..first + (1 << order));
            seen.push(extent);
        }
        seen
    }

    #[test]
    fn a_sequential_reader_gets_more_each_time_and_then_readahead() {
        let grows = [0, 1, 2, 3].map(Extent::Granules);
        let up = of_reader(&Recent::default(), 1600..1664);
        assert_eq!(up, [&grows[..], &[Extent::Page], &[Extent::Onwards; 3][..]].concat()[..up.len()]);
        let down = of_reader(&Recent::default(), (1600..1664).rev());
        assert_eq!(down, [&grows[..], &[Extent::Page], &[Extent::Downwards; 3][..]].concat()[..down.len()]);
    }

    #[test]
    fn walks_down_columns_get_a_granule_a_row() {
        for row_bytes in [16 << 10, 20 << 10, 24_000, 40_000, 63 << 10, 100_000] {
            for walks in 1..=3 {
                let place = |walk: usize, row: usize| (1 << 30) + (walk << 26) + row * row_bytes;
                let rows = (0..300).flat_map(|row| (0..walks).map(move |walk| place(walk, row)));
                let up = extents(&Recent::default(), rows.clone());
                let down = extents(&Recent::default(), rows.rev());
                for seen in [up, down] {
                    let alone = |seen: &[Extent]| seen.iter().all(|extent| *extent == Extent::Granules(0));
                    assert!(alone(&seen[3 * walks..]), "{walks} of {row_bytes}: {seen:?}");
                }
            }
        }
    }

    #[test]
    fn a_page_that_is_used_all_over_comes_with_few_faults() {
        let scattered = [2, 13, 6, 10, 0].map(|granule| (1 << 30) + granule * OS_PAGE);
        let seen = extents(&Recent::default(), scattered);
        assert_eq!(seen[..4], [0, 1, 2, 3].map(Extent::Granules));
        assert_eq!(seen[4], Extent::Page);
    }

    #[test]
    fn first_touches_of_whole_pages_lead_to_readahead() {
        let recent = Recent::default();
        let seen: Vec<_> = (0..6)
            .map(|page| {
                let at = GranuleAt::new((1 << 30) + page * PAGE, PAGE);
                let extent = recent.extent(at);
                recent.note_page(at, extent);
                extent
            })
            .collect();
        assert_eq!(
            seen[..5],
            [0, 1, 2, 3].map(Extent::Granules).into_iter().chain([Extent::Page]).collect::<Vec<_>>()[..]
        );
        assert_eq!(seen[5], Extent::Onwards);
    }
}
