//! The cost of releasing each owner's stored pages, wherever the work was done.
//!
//! An owner is a region of a library, or all of a process. Its account outlives it, because work
//! that it caused may be done after it is gone. Everything is also summed up in the
//! [counters](crate::stats::counters). Nothing here may ever decide anything.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use pagoda_linux::mem::range::PageRange;
use pagoda_linux::process::lock::Lock;
use pagoda_linux::process::thread::now_ns;

use crate::stats::counters::{Counter, Counters};
use crate::stats::migration::Moving;
use crate::store::Freed;

/// The cost so far of releasing one owner's stored pages. Times are those of the monotonic clock,
/// in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Released {
    /// Pages that were handed over to be freed.
    pub queued: u64,
    /// Pages that the closing thread freed at once.
    pub inline: u64,
    /// Pages that are freed: the two together, when all is done.
    pub freed: u64,
    /// Of them, those that were freed before the last frame was back.
    pub early: u64,
    /// Uncompressed bytes of the freed pages.
    pub bytes: u64,
    /// Processor time, of all threads that worked on it.
    pub cpu_ns: u64,
    /// Of that, the time that the closing thread waited: taking the entries out of the table, and
    /// freeing inline.
    pub close_cpu_ns: u64,
    /// Time those threads waited for the store's lock.
    pub lock_wait_ns: u64,
    /// When the last frame was back; 0 if none is.
    pub frames_back_ns: u64,
    /// When the last stored page was freed; 0 if none is.
    pub stored_back_ns: u64,
}

/// An owner's account.
pub struct Account {
    counters: Arc<Counters>,
    queued: AtomicU64,
    inline: AtomicU64,
    freed: AtomicU64,
    early: AtomicU64,
    bytes: AtomicU64,
    cpu_ns: AtomicU64,
    close_cpu_ns: AtomicU64,
    lock_wait_ns: AtomicU64,
    frames_back_ns: AtomicU64,
    stored_back_ns: AtomicU64,
    /// How the owner is being moved, as long as it is.
    moving: Lock<Weak<Moving>>,
}

impl Account {
    pub(crate) fn new(counters: Arc<Counters>) -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            counters,
            queued: zero(),
            inline: zero(),
            freed: zero(),
            early: zero(),
            bytes: zero(),
            cpu_ns: zero(),
            close_cpu_ns: zero(),
            lock_wait_ns: zero(),
            frames_back_ns: zero(),
            stored_back_ns: zero(),
            moving: Lock::new(Weak::new()),
        }
    }

    /// It is being moved, as long as `moving` is kept.
    #[cfg(feature = "migrate")]
    pub(crate) fn moves(&self, moving: &Arc<Moving>) {
        *self.moving.lock() = Arc::downgrade(moving);
    }
    pub(crate) fn moving(&self) -> Option<Arc<Moving>> {
        self.moving.lock().upgrade()
    }

    /// The current numbers: each is right, two of them may be a moment apart.
    #[must_use]
    pub fn released(&self) -> Released {
        let of = |word: &AtomicU64| word.load(Ordering::Acquire);
        Released {
            queued: of(&self.queued),
            inline: of(&self.inline),
            freed: of(&self.freed),
            early: of(&self.early),
            bytes: of(&self.bytes),
            cpu_ns: of(&self.cpu_ns),
            close_cpu_ns: of(&self.close_cpu_ns),
            lock_wait_ns: of(&self.lock_wait_ns),
            frames_back_ns: of(&self.frames_back_ns),
            stored_back_ns: of(&self.stored_back_ns),
        }
    }

    fn count(&self, word: &AtomicU64, counter: Counter, n: u64) {
        word.fetch_add(n, Ordering::AcqRel);
        self.counters.add(counter, n);
    }
    pub(crate) fn is_queued(&self, entries: u64) {
        self.count(&self.queued, Counter::ReleaseQueued, entries);
    }
    pub(crate) fn is_inline(&self, entries: u64) {
        self.count(&self.inline, Counter::ReleaseInline, entries);
    }
    pub(crate) fn is_early(&self, entries: u64) {
        self.count(&self.early, Counter::ReleaseEarly, entries);
    }
    pub(crate) fn was_helped(&self, entries: u64) {
        self.counters.add(Counter::ReleaseHelped, entries);
    }
    pub(crate) fn fell_back(&self) {
        self.counters.add(Counter::ReleaseFallbacks, 1);
    }
    pub(crate) fn queued_peak(&self, bytes: u64) {
        self.counters.raise(Counter::ReleaseQueuedPeakBytes, bytes);
    }
    pub(crate) fn used_cpu(&self, ns: u64) {
        self.count(&self.cpu_ns, Counter::ReleaseCpuNs, ns);
    }
    pub(crate) fn used_cpu_in_close(&self, ns: u64) {
        self.close_cpu_ns.fetch_add(ns, Ordering::AcqRel);
        self.used_cpu(ns);
    }
    pub(crate) fn frames_are_back(&self) {
        self.frames_back_ns.fetch_max(now_ns(), Ordering::AcqRel);
    }
    pub(crate) fn is_freed(&self, freed: Freed) {
        self.stored_back_ns.fetch_max(now_ns(), Ordering::AcqRel);
        self.count(&self.bytes, Counter::ReleaseBytes, freed.bytes);
        self.count(&self.lock_wait_ns, Counter::ReleaseLockWaitNs, freed.lock_wait_ns);
        self.counters.add(Counter::ReleaseLocks, freed.locks);
        self.count(&self.freed, Counter::ReleaseFreed, freed.entries);
    }
}

/// The owner of each range of memory.
pub(crate) struct Owners {
    /// The owner of memory outside regions: the process.
    rest: Arc<Account>,
    /// As many as there are regions.
    regions: Lock<Vec<(PageRange, Arc<Account>)>>,
}

impl Owners {
    pub(crate) fn new(counters: Arc<Counters>) -> Self {
        Self { rest: Arc::new(Account::new(counters)), regions: Lock::new(Vec::new()) }
    }
    /// A region's account from now on.
    pub(crate) fn enter(&self, range: PageRange) -> Arc<Account> {
        let account = Arc::new(Account::new(Arc::clone(&self.rest.counters)));
        self.regions.lock().push((range, Arc::clone(&account)));
        account
    }
    /// The region is larger now.
    pub(crate) fn resize(&self, account: &Arc<Account>, range: PageRange) {
        let mut regions = self.regions.lock();
        if let Some((known, _)) = regions.iter_mut().find(|(_, known)| Arc::ptr_eq(known, account)) {
            *known = range;
        }
    }
    /// The region is closed.
    pub(crate) fn leave(&self, account: &Arc<Account>) {
        self.regions.lock().retain(|(_, known)| !Arc::ptr_eq(known, account));
    }
    /// The `most` largest regions, and how many there are.
    pub(crate) fn largest(&self, most: usize) -> (Vec<(PageRange, Arc<Account>)>, usize) {
        let regions = self.regions.lock();
        let mut largest: Vec<_> = regions.iter().collect();
        // By address where they are as large, so that they stay in their places.
        let order = |(range, _): &&(PageRange, _)| (std::cmp::Reverse(range.len()), range.start());
        if largest.len() > most {
            largest.select_nth_unstable_by_key(most, order);
            largest.truncate(most);
        }
        largest.sort_unstable_by_key(order);
        (largest.into_iter().cloned().collect(), regions.len())
    }
    /// The owner of the memory at `address`.
    pub(crate) fn at(&self, address: usize) -> Arc<Account> {
        let regions = self.regions.lock();
        // The latest, where a region that is closed has not left yet.
        let known = regions.iter().rev().find(|(range, _)| range.contains(address));
        Arc::clone(known.map_or(&self.rest, |(_, account)| account))
    }
}
