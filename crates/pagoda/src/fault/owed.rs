//! Owed pages of regions: a thread that touches one waits until its content arrives.
//!
//! An *owed* page has no resident bit in its entry and nothing of worth in its backing. Its content
//! comes from another host (`migrate/arrivals`). The mark is set before the region is given to its
//! owner. It is removed under the busy bit of the entry, together with the content's arrival, so
//! that the holder of the busy bit knows which granules may be filled. A discard removes the mark,
//! too, and content that arrives for such a page then is dropped.
//!
//! A fault on an owed page does not keep its handler: the thread sleeps in the kernel. The kernel
//! wakes it when the page is put in place; otherwise we wake it. A page whose sender is lost is
//! poisoned when it is touched. This module must never fill an owed page with anything but the
//! content that arrives for it.

use std::sync::atomic::Ordering;

use pagoda_core::page::OS_PAGE;
use pagoda_core::page_entry::{Granules, Word};
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::process::thread::sleep_us;
use pagoda_linux::uffd::Stop;

use crate::engine::Engine;
use crate::error::{Errno, StopReason};
use crate::state::owed::{AGAIN, Here, Marking, OwedPages};
use crate::state::pending::Served;
use crate::table::Page;

/// How long a thread that serves its own fault sleeps between two looks.
const LOOK_US: u32 = 20;

const LOOKS: u32 = AGAIN.as_micros() as u32 / LOOK_US;

impl Engine {
    /// The granules of an entry that are owed. They stay so as long as its busy bit is held.
    pub(crate) fn owed_granules(&self, page: &Page) -> Granules {
        let mut owed = Granules::NONE;
        let Some((first, _)) = page.granules.runs().next() else { return owed };
        let last = 16 - page.granules.bits().leading_zeros();
        self.owed.each(page.addresses(first, last), |region, within| {
            for address in (within.start()..within.end()).step_by(OS_PAGE) {
                if region.has_any(PageRange::page(address)) {
                    let granule = page.granule_of(address);
                    owed = owed.or(Granules::range(granule, granule + 1));
                }
            }
        });
        owed.and(page.granules)
    }

    /// Whether any page of `range` is owed.
    pub(crate) fn owes_any(&self, range: PageRange) -> bool {
        let mut any = false;
        self.owed.each(range, |region, within| any |= region.has_any(within));
        any
    }

    /// Makes sure that the owed page at `address`, for which a thread waits in the kernel, arrives.
    /// Poisons it if it never will.
    pub(crate) fn await_owed(&self, address: usize) -> Served {
        let page = PageRange::page(address);
        let mut served = Served::Done;
        self.owed.each(page, |region, _| {
            served = match region.here(page) {
                // It has come meanwhile, and its coming has woken the thread.
                Here::Yes => Served::Done,
                Here::NotYet => {
                    region.want(address);
                    Served::Done
                }
                Here::Lost => self.poison(page),
            };
        });
        served
    }

    fn poison(&self, page: PageRange) -> Served {
        match self.space.poison(page).stop {
            None => Served::Done,
            Some(Stop::Again) => Served::Again,
            Some(Stop::NoMemory) => Served::NoMemory,
            Some(Stop::Exists | Stop::Missing | Stop::Gone) => {
                self.space.wake(page);
                Served::Done
            }
            Some(Stop::Busy | Stop::Refused) => self.stop(StopReason::FillRefused(Errno::NONE)),
        }
    }

    /// Poisons the pages of `pages` that are still owed, which are lost. They raise SIGBUS also
    /// when their range is managed no more. It goes on until that is so: otherwise they would read
    /// as zero then.
    pub(crate) fn poison_owed(&self, pages: &OwedPages) {
        let mut at = pages.range.start();
        loop {
            // A discard takes the marks away, and is applied with the gate held exclusively.
            let gate = self.gate_shared();
            let Some(run) = pages.next_run(at) else { return };
            let poisoned = self.space.poison(run);
            at = run.start() + poisoned.bytes;
            match poisoned.stop.map(|_| self.poison(PageRange::page(at))) {
                None => {}
                Some(Served::Done) => at += OS_PAGE,
                Some(_) => {
                    drop(gate);
                    sleep_us(LOOK_US);
                }
            }
        }
    }

    /// Marks `range` as owed if nothing is there. Check and mark both happen with the gate held
    /// exclusively: a fault-around checks for marks and fills without releasing the gate. With
    /// `is_discarded`, swapped-out content there is dropped.
    pub(crate) fn mark_owed(&self, owed: &OwedPages, range: PageRange, is_discarded: bool) -> Marking {
        let table = self.gate_exclusive();
        // A discard that is not applied yet would take the marks away.
        if table.order.deferred() > 0 {
            return Marking::Again;
        }
        let mut marking = Marking::Done;
        let mut at = range.start();
        while let (Some(rest), Some(span)) = (PageRange::new(at, range.end()), table.next_from(at)) {
            let Some(within) = span.range().intersection(rest) else { break };
            for index in span.used(within, table.entry_bytes()) {
                let word = span.word(index);
                let here = word.resident().and(span.page(index, within, table.entry_bytes()).granules);
                if word.is_busy() {
                    // The holder of the busy bit may have filled the page and not published that
                    // yet.
                    return Marking::Again;
                }
                if !here.is_empty() || !is_discarded && word != Word::EMPTY {
                    marking = Marking::Holds;
                }
            }
            at = within.end();
        }
        if marking == Marking::Done {
            owed.add(range);
        }
        marking
    }

    /// Waits, in the faulting thread, until the page at `address` is not owed. False if it will
    /// never arrive.
    pub(crate) fn await_owed_here(&self, address: usize) -> bool {
        let page = PageRange::page(address & !(OS_PAGE - 1));
        for look in 0u32.. {
            let mut here = Here::Yes;
            self.owed.each(page, |region, _| {
                here = region.here(page);
                if here == Here::NotYet && look.is_multiple_of(LOOKS) {
                    region.want(page.start());
                }
            });
            match here {
                Here::Yes => return true,
                Here::Lost => return false,
                Here::NotYet => sleep_us(LOOK_US),
            }
        }
        false
    }

    /// `range` was discarded: it reads as zero, and content that arrives for it later is dropped.
    /// The gate is held exclusively.
    pub(crate) fn forget_owed(&self, range: PageRange) {
        self.owed.each(range, |region, within| {
            if region.has_any(within) {
                region.remove(within);
                // The waiting threads fault again.
                self.space.wake(within);
                region.ring();
            }
        });
    }

    /// The pages of `pages` that are still owed are lost. Wakes the threads that wait for them.
    pub(crate) fn lose_owed(&self, pages: &OwedPages) {
        pages.lost.store(true, Ordering::Release);
        self.space.wake(pages.range);
        pages.ring();
    }
}
