//! Owners that closed and whose entries are not walked yet: the queue, and their memory.
//!
//! `release::spans` walks them. This module must never change an entry.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pagoda_core::release::spans::Spans;
use pagoda_linux::process::lock::Lock;

use crate::stats::account::Account;
use crate::table::Entries;

/// An object that has to live until an owner's entries are walked: busy ones may still be read from
/// it.
pub(crate) type Keeps = Option<Arc<dyn Any + Send + Sync>>;

/// An owner that closed.
pub(crate) struct Closed {
    /// Its entries, each with the number of the first one: a piece's numbers go on from array to
    /// array.
    pub(crate) parts: Vec<(u64, Entries, Range<usize>)>,
    pub(crate) account: Arc<Account>,
    /// Stored pages that the first sweep found and that are not freed yet.
    pub(crate) stored: AtomicU64,
    _keeps: Keeps,
}

impl Closed {
    /// Entries that are in no table any more.
    pub(crate) fn new(parts: Vec<(u64, Entries, Range<usize>)>, account: Arc<Account>, keeps: Keeps) -> Self {
        Self { parts, account, stored: AtomicU64::new(0), _keeps: keeps }
    }
}

/// The queue of closed owners.
pub(crate) struct ClosedOwners {
    pub(crate) queue: Lock<Spans<Arc<Closed>>>,
    /// Whether any owner is not released: asking takes no lock. And whether any has frames.
    pub(crate) is_any: AtomicBool,
    pub(crate) has_frames: AtomicBool,
    /// Stored pages that were found and are not freed yet.
    pub(crate) stored: AtomicU64,
}

impl Default for ClosedOwners {
    fn default() -> Self {
        let [is_any, has_frames] = [const { AtomicBool::new(false) }; 2];
        Self { queue: Lock::new(Spans::default()), is_any, has_frames, stored: AtomicU64::new(0) }
    }
}

impl ClosedOwners {
    /// Stored pages of closed owners, as far as they are counted.
    pub(crate) fn found(&self) -> u64 {
        self.stored.load(Ordering::Acquire)
    }
    /// The memory of the closed owners' tables.
    pub(crate) fn table_bytes(&self) -> u64 {
        let queue = self.queue.lock();
        let arrays = queue.owners().flat_map(|closed| &closed.parts);
        let mut arrays: Vec<_> =
            arrays.map(|(_, entries, _)| (Arc::as_ptr(entries).addr(), entries.used_bytes())).collect();
        drop(queue);
        arrays.sort_unstable();
        arrays.dedup();
        arrays.into_iter().map(|(_, bytes)| bytes).sum()
    }
    /// Notes what can be asked without the lock, which the caller has.
    pub(crate) fn note(&self, queue: &Spans<Arc<Closed>>) {
        self.is_any.store(!queue.is_idle(), Ordering::Release);
        self.has_frames.store(queue.has_frames(), Ordering::Release);
    }
}
