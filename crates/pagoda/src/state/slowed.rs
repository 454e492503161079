//! Which pages of a region slow a thread down: their next fault waits for a moment.
//!
//! One [`SlowedPages`] for each region with a migration that slows its writers down, nearly always
//! none.
//! A fault that waits is in a list of bounded length while its thread sleeps in the kernel, and a
//! thread of the migration wakes it. Woken it faults again, and is served. Nothing is lost if it
//! is woken too early, or if it is gone. This module must never fill a page, nor keep a fault
//! waiting once it is over.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use pagoda_core::migrate::pages::PageSet;
use pagoda_core::migrate::throttle::Accounts;
use pagoda_core::page::OS_PAGE;
use pagoda_core::size::Bytes;
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::mem::words::zeroed_words;
use pagoda_linux::process::thread::{now_ns, sleep_us};

/// Faults that wait at once: more threads than any guest has. Those beyond do not wait.
const WAITING_MOST: usize = 1024;

/// How long a thread that serves its own fault sleeps between two looks.
const LOOK_US: u32 = 200;

/// The slowed pages of one region.
pub(crate) struct SlowedPages {
    pub(crate) range: PageRange,
    /// Pages that were staged for it and have had no fault since.
    marks: PageSet,
    /// Pages that the migration has still to read.
    due: PageSet,
    waiting: Mutex<Waiting>,
    rings: Condvar,
    is_over: AtomicBool,
    faults: AtomicU64,
    waited_ns: AtomicU64,
}

struct Waiting {
    accounts: Accounts,
    list: Vec<Wait>,
}

/// A fault that waits.
struct Wait {
    page: PageRange,
    thread: u32,
    since_ns: u64,
    until_ns: u64,
}

impl SlowedPages {
    /// None is slowed yet. `due` loses the pages that the migration reads.
    pub(crate) fn new(range: PageRange, due: PageSet) -> Self {
        let words = PageSet::words_for((range.len() / OS_PAGE) as u64);
        Self {
            range,
            marks: PageSet::new(zeroed_words(Bytes::new(words).as_usize())),
            due,
            // A handler never allocates for it.
            waiting: Mutex::new(Waiting {
                accounts: Accounts::new(0),
                list: Vec::with_capacity(WAITING_MOST),
            }),
            rings: Condvar::new(),
            is_over: AtomicBool::new(false),
            faults: AtomicU64::new(0),
            waited_ns: AtomicU64::new(0),
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn numbers(&self, pages: PageRange) -> std::ops::Range<u64> {
        let number = |address: usize| ((address - self.range.start()) / OS_PAGE) as u64;
        number(pages.start())..number(pages.end())
    }

    /// How much of its time a thread loses from now on.
    pub(crate) fn set_percent(&self, percent: u8) {
        self.waiting().accounts.set_percent(percent);
    }

    /// The next fault on each of `pages`, of the region, waits.
    pub(crate) fn mark(&self, pages: PageRange) {
        self.marks.add(self.numbers(pages));
    }

    /// Whether the fault on `page` is the first since it was marked. The next one is not.
    pub(crate) fn take_mark(&self, page: PageRange) -> bool {
        let page = self.numbers(page);
        self.marks.has(page.start) && !self.marks.take(page).is_empty()
    }

    /// `pages`, of the region, come back.
    pub(crate) fn unmark(&self, pages: PageRange) {
        self.marks.remove(self.numbers(pages));
    }

    /// Whether the migration will read `page` after this: nothing that it holds now is missed.
    pub(crate) fn is_due(&self, page: PageRange) -> bool {
        self.due.has(self.numbers(page).start)
    }

    /// Has the fault of `thread` on `page` wait. False if it is to be served now.
    pub(crate) fn put_aside(&self, page: PageRange, thread: u32) -> bool {
        let mut waiting = self.waiting();
        let since_ns = now_ns();
        if self.is_over.load(Ordering::Relaxed) || waiting.list.len() == WAITING_MOST {
            return false;
        }
        match waiting.accounts.wait_ns(thread, since_ns) {
            0 => false,
            wait_ns => {
                waiting.list.push(Wait { page, thread, since_ns, until_ns: since_ns + wait_ns });
                self.rings.notify_one();
                true
            }
        }
    }

    /// Has the fault of `thread`, the caller, wait here.
    pub(crate) fn wait_here(&self, thread: u32) {
        let since_ns = now_ns();
        let until_ns = since_ns + self.waiting().accounts.wait_ns(thread, since_ns);
        let mut at_ns = since_ns;
        while at_ns < until_ns && !self.is_over.load(Ordering::Acquire) {
            sleep_us(LOOK_US.min(((until_ns - at_ns) / 1000) as u32 + 1));
            at_ns = now_ns();
        }
        if until_ns > since_ns {
            self.note(&mut self.waiting().accounts, thread, at_ns - since_ns, at_ns);
        }
    }

    fn note(&self, accounts: &mut Accounts, thread: u32, waited_ns: u64, at_ns: u64) {
        accounts.waited(thread, waited_ns, at_ns);
        self.faults.fetch_add(1, Ordering::Relaxed);
        self.waited_ns.fetch_add(waited_ns, Ordering::Relaxed);
    }

    /// Wakes the threads whose faults have waited, until it is over. No fault that is put aside
    /// waits for that.
    pub(crate) fn serve(&self, wake: impl Fn(PageRange)) {
        let mut due = Vec::with_capacity(WAITING_MOST);
        let mut waiting = self.waiting();
        while !self.is_over.load(Ordering::Relaxed) {
            let at_ns = now_ns();
            let Waiting { accounts, list } = &mut *waiting;
            for wait in list.extract_if(.., |wait| wait.until_ns <= at_ns) {
                // Before its thread can fault again.
                self.note(accounts, wait.thread, at_ns.saturating_sub(wait.since_ns), at_ns);
                due.push(wait.page);
            }
            if !due.is_empty() {
                drop(waiting);
                due.drain(..).for_each(&wake);
                waiting = self.waiting();
                continue;
            }
            waiting = match list.iter().map(|wait| wait.until_ns - at_ns).min() {
                None => self.rings.wait(waiting).unwrap_or_else(PoisonError::into_inner),
                Some(next_ns) => {
                    let wait = self.rings.wait_timeout(waiting, Duration::from_nanos(next_ns));
                    wait.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Wakes all that wait now.
    pub(crate) fn hurry(&self) {
        self.waiting().list.iter_mut().for_each(|wait| wait.until_ns = 0);
        self.rings.notify_one();
    }

    /// No fault waits from now on. The caller wakes those of the whole range.
    pub(crate) fn end(&self) {
        let mut waiting = self.waiting();
        self.is_over.store(true, Ordering::Release);
        let at_ns = now_ns();
        let Waiting { accounts, list } = &mut *waiting;
        for wait in list.drain(..) {
            self.note(accounts, wait.thread, at_ns.saturating_sub(wait.since_ns), at_ns);
        }
        self.rings.notify_all();
    }

    /// How many faults have waited, and how long in all.
    pub(crate) fn told(&self) -> (u64, Duration) {
        let waited_ns = self.waited_ns.load(Ordering::Relaxed);
        (self.faults.load(Ordering::Relaxed), Duration::from_nanos(waited_ns))
    }
}

/// The slowed pages of all regions of an engine: nearly always none.
#[derive(Default)]
pub(crate) struct Slowed {
    count: AtomicUsize,
    regions: RwLock<Vec<Arc<SlowedPages>>>,
}

impl Slowed {
    pub(crate) fn enter(&self, pages: Arc<SlowedPages>) {
        self.regions.write().unwrap_or_else(PoisonError::into_inner).push(pages);
        self.count.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn leave(&self, pages: &Arc<SlowedPages>) {
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        let before = regions.len();
        regions.retain(|known| !Arc::ptr_eq(known, pages));
        self.count.fetch_sub(before - regions.len(), Ordering::AcqRel);
    }

    /// Those of the region with `address`, if its writers are slowed down.
    pub(crate) fn find(&self, address: usize) -> Option<Arc<SlowedPages>> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        regions.iter().find(|pages| pages.range.contains(address)).cloned()
    }

    /// Wakes all threads that wait.
    pub(crate) fn hurry(&self) {
        if self.count.load(Ordering::Acquire) > 0 {
            let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
            regions.iter().for_each(|pages| pages.hurry());
        }
    }
}

#[cfg(test)]
#[path = "slowed_test.rs"]
mod tests;
