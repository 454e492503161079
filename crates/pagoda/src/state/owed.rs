//! Which pages of regions are owed: their content arrives from another host.
//!
//! One [`OwedPages`] a region, none nearly always. A mark is set before the region is shown to its
//! user, and goes under the busy bit of its entry. This module must never fill a page.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::time::Duration;

use pagoda_core::migrate::geometry::STRIPE_PAGES;
use pagoda_core::migrate::pages::PageSet;
use pagoda_core::page::OS_PAGE;
use pagoda_core::size::Bytes;
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::mem::words::zeroed_words;
use pagoda_migrate::Wants;

/// How long a waiting thread waits before it asks again: its request may have found the queue full.
pub(crate) const AGAIN: Duration = Duration::from_millis(10);

/// The owed pages of one region.
pub(crate) struct OwedPages {
    pub(crate) range: PageRange,
    pages: PageSet,
    pub(crate) wants: Wants,
    /// The pages that are still owed will never arrive.
    pub(crate) lost: AtomicBool,
    /// Rings when something has arrived or everything else is lost.
    arrived: Condvar,
    arriving: Mutex<()>,
}

/// Whether pages can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Here {
    Yes,
    NotYet,
    Lost,
}

/// The outcome of marking pages as owed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Marking {
    Done,
    /// An event is unread, or one of the entries is busy: try again in a moment.
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

    /// The pages of `range` are here, or not needed any more. The busy bits of their entries are
    /// held, or the gate exclusively.
    pub(crate) fn remove(&self, range: PageRange) {
        self.pages.remove(self.numbers(range));
    }

    /// The first run of owed pages from `address` on, of one stripe.
    pub(crate) fn next_run(&self, address: usize) -> Option<PageRange> {
        let all = self.numbers(self.range);
        let from = ((address - self.range.start()) / OS_PAGE) as u64;
        let at = |page: u64| self.range.start() + page as usize * OS_PAGE;
        (from / u64::from(STRIPE_PAGES) * u64::from(STRIPE_PAGES)..all.end)
            .step_by(STRIPE_PAGES as usize)
            .flat_map(|first| {
                let runs = self.pages.stripe(first).runs();
                runs.map(move |run| first + u64::from(run.start)..first + u64::from(run.end))
            })
            .find_map(|run| PageRange::new(at(run.start.max(from)), at(run.end)))
    }

    pub(crate) fn has_any(&self, range: PageRange) -> bool {
        self.pages.has_any(self.numbers(range))
    }

    pub(crate) fn here(&self, range: PageRange) -> Here {
        // In this order: a page that is still owed after the loss is lost.
        let is_lost = self.is_lost();
        match self.has_any(range) {
            false => Here::Yes,
            true if is_lost => Here::Lost,
            true => Here::NotYet,
        }
    }

    /// Asks for the page at `address`.
    pub(crate) fn want(&self, address: usize) {
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

    /// Waits until all of `range`, which lies in the region, is here, and requests the missing
    /// pages. False if it will never be.
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

/// The owed pages of all regions of an engine: few regions at a time, nearly always none.
#[derive(Default)]
pub(crate) struct Owed {
    count: AtomicUsize,
    regions: RwLock<Vec<Arc<OwedPages>>>,
}

impl Owed {
    /// From now on the pages that are marked in `pages` are owed.
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
    pub(crate) fn each(&self, range: PageRange, mut each: impl FnMut(&OwedPages, PageRange)) {
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
