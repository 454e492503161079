//! Pages of regions that arrive later: whoever touches one waits until it is here.
//!
//! A page that is *owed* has no bit in its entry and nothing in its backing that is worth anything; its content comes from
//! another host (`migrate/arrivals`). Its mark is set before anybody has the region and goes under the busy bit of its entry,
//! together with the content's arrival, so that whoever has the busy bit knows what may be filled. A discard takes it away,
//! too: what arrives for such a page then is dropped.
//!
//! A fault on an owed page is not kept by its handler: its thread sleeps in the kernel, which wakes it when the page is put in
//! place, or it is woken by hand. What is lost, with its sender, is poisoned as it is touched. This module must never let an
//! owed page be filled with anything but what arrives for it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::time::Duration;

use pagoda_core::migrate::pages::PageSet;
use pagoda_core::page::OS_PAGE;
use pagoda_core::page_entry::{Granules, Word};
use pagoda_core::size::Bytes;
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::mem::words::zeroed_words;
use pagoda_linux::process::thread::sleep_us;
use pagoda_linux::uffd::Stop;
use pagoda_migrate::Wants;

use crate::engine::Engine;
use crate::error::{Errno, StopReason};
use crate::fault::Served;
use crate::table::Page;

/// How long a thread that serves its own fault sleeps between two looks.
const LOOK_US: u32 = 20;

/// How long somebody who has asked waits before he asks again: a request may have found the queue full.
const AGAIN: Duration = Duration::from_millis(10);
const LOOKS: u32 = AGAIN.as_micros() as u32 / LOOK_US;

/// What is owed of one region.
pub(crate) struct OwedPages {
    range: PageRange,
    pages: PageSet,
    pub(crate) wants: Wants,
    /// What is still owed will never arrive.
    lost: AtomicBool,
    /// Rings when something has arrived or everything else is lost.
    arrived: Condvar,
    arriving: Mutex<()>,
}

/// Whether pages can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Here {
    Yes,
    NotYet,
    Lost,
}

/// What came of marking pages as owed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Marking {
    Done,
    /// An event is unread, or somebody is at one of them: again in a moment.
    Again,
    /// Something is there, which is to be discarded first.
    Holds,
}

impl OwedPages {
    pub(crate) fn new(range: PageRange) -> Self {
        let words = PageSet::words_for((range.len() / OS_PAGE) as u64);
        Self {
            range,
            pages: PageSet::new(zeroed_words(Bytes::new(words).as_usize())),
            wants: Wants::default(),
            lost: AtomicBool::new(false),
            arrived: Condvar::new(),
            arriving: Mutex::new(()),
        }
    }

    /// The region's.
    pub(crate) fn range(&self) -> PageRange {
        self.range
    }

    fn numbers(&self, range: PageRange) -> std::ops::Range<u64> {
        let number = |address: usize| ((address - self.range.start()) / OS_PAGE) as u64;
        number(range.start())..number(range.end())
    }

    /// The pages of `range`, all of it of the region, are owed.
    pub(crate) fn add(&self, range: PageRange) {
        self.pages.add(self.numbers(range));
    }

    /// The pages of `range` are here, or nobody wants them any more. The busy bits of their entries are held, or the gate
    /// exclusively.
    pub(crate) fn remove(&self, range: PageRange) {
        self.pages.remove(self.numbers(range));
    }

    fn has_any(&self, range: PageRange) -> bool {
        self.pages.has_any(self.numbers(range))
    }

    fn here(&self, range: PageRange) -> Here {
        // In this order: what is still owed after it was lost is lost.
        let is_lost = self.is_lost();
        match self.has_any(range) {
            false => Here::Yes,
            true if is_lost => Here::Lost,
            true => Here::NotYet,
        }
    }

    /// Asks for the page at `address`.
    fn want(&self, address: usize) {
        self.wants.want(((address - self.range.start()) / OS_PAGE) as u64);
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Says that something has arrived.
    pub(crate) fn ring(&self) {
        drop(self.arriving.lock().unwrap_or_else(PoisonError::into_inner));
        self.arrived.notify_all();
    }

    /// Waits until all of `range`, which is of the region, is here; asks for what is not. False if it will never be.
    pub(crate) fn await_range(&self, range: PageRange) -> bool {
        let mut guard = self.arriving.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match self.here(range) {
                Here::Yes => return true,
                Here::Lost => return false,
                Here::NotYet => {}
            }
            let owed =
                (range.start()..range.end()).step_by(OS_PAGE).find(|at| self.has_any(PageRange::page(*at)));
            if let Some(address) = owed {
                self.want(address);
            }
            guard = self.arrived.wait_timeout(guard, AGAIN).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// What is owed of all regions of an engine: few at a time, and none nearly always.
#[derive(Default)]
pub(crate) struct Owed {
    count: AtomicUsize,
    regions: RwLock<Vec<Arc<OwedPages>>>,
}

impl Owed {
    /// From now on what is marked in `pages` is owed.
    pub(crate) fn enter(&self, pages: Arc<OwedPages>) {
        self.regions.write().unwrap_or_else(PoisonError::into_inner).push(pages);
        self.count.fetch_add(1, Ordering::AcqRel);
    }

    /// Nothing of `pages` is owed any more, or its region is gone.
    pub(crate) fn leave(&self, pages: &Arc<OwedPages>) {
        self.count.fetch_sub(1, Ordering::AcqRel);
        self.regions
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|known| !Arc::ptr_eq(known, pages));
    }

    /// Calls `each` for the regions of which `range` has a part that may be owed, with that part.
    fn each(&self, range: PageRange, mut each: impl FnMut(&OwedPages, PageRange)) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        for region in self.regions.read().unwrap_or_else(PoisonError::into_inner).iter() {
            if let Some(within) = region.range.intersection(range) {
                each(region, within);
            }
        }
    }
}

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

    /// Sees to it that the owed page at `address`, for which a thread waits in the kernel, comes; or poisons it if it won't.
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

    /// Marks `range` as owed if nothing is there. Both with the gate held exclusively: who fills around a fault of another page asks
    /// for marks and fills without letting go of it. What is out is worth nothing once it `is_discarded`.
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
                    // Whoever has it may have filled it and not said so yet.
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

    /// Waits, in the thread that has the fault, until the page at `address` is not owed. False if it will always be.
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

    /// `range` was discarded: it is zero, and what arrives for it later is dropped. The gate is held exclusively.
    pub(crate) fn forget_owed(&self, range: PageRange) {
        self.owed.each(range, |region, within| {
            if region.has_any(within) {
                region.remove(within);
                // Whoever waits there finds out by himself.
                self.space.wake(within);
                region.ring();
            }
        });
    }

    /// What is still owed of `pages` is lost: whoever waits for it is told.
    pub(crate) fn lose_owed(&self, pages: &OwedPages) {
        pages.lost.store(true, Ordering::Release);
        self.space.wake(pages.range);
        pages.ring();
    }
}
