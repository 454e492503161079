//! Which entries of a file were read before, and which were read ahead and not used yet: for
//! counters, and to tell a reader that goes through the file again.
//!
//! Nothing here may ever decide what a page holds, or be waited for. Of two threads at one entry at
//! once either may be counted.

use std::sync::atomic::{AtomicU64, Ordering};

use pagoda_core::migrate::pages::PageSet;
use pagoda_core::size::Bytes;
use pagoda_linux::mem::words::zeroed_words;

/// The history of a file's entries.
pub(super) struct Reads {
    /// Read once, at least.
    seen: PageSet,
    /// Read ahead, in memory since, and not asked for.
    unused: PageSet,
    /// Bytes that were read once more.
    pub(super) again_bytes: AtomicU64,
    /// Bytes that were dropped unused.
    pub(super) evicted_unused_bytes: AtomicU64,
}

impl Reads {
    /// Of a file of so many entries, nothing of which was read.
    pub(super) fn new(entries: u64) -> Self {
        let set = || PageSet::new(zeroed_words(Bytes::new(PageSet::words_for(entries)).as_usize()));
        Self {
            seen: set(),
            unused: set(),
            again_bytes: AtomicU64::new(0),
            evicted_unused_bytes: AtomicU64::new(0),
        }
    }

    /// So many bytes of entry `index` were read.
    pub(super) fn note_read(&self, index: usize, bytes: usize) {
        let index = index as u64;
        if self.seen.has(index) {
            self.again_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        } else {
            self.seen.add(index..index + 1);
        }
    }

    /// Whether entry `index` was read before.
    pub(super) fn was_read(&self, index: usize) -> bool {
        self.seen.has(index as u64)
    }

    /// Entry `index` was read ahead, and is not used yet.
    pub(super) fn note_ahead(&self, index: usize) {
        self.unused.add(index as u64..index as u64 + 1);
    }

    /// Entry `index` is used.
    pub(super) fn note_asked(&self, index: usize) {
        self.take_unused(index);
    }

    /// Entry `index`, of so many bytes, leaves memory.
    pub(super) fn note_gone(&self, index: usize, bytes: usize) {
        if self.take_unused(index) {
            self.evicted_unused_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    /// Most were used before; the load keeps the cache line shared among all readers.
    fn take_unused(&self, index: usize) -> bool {
        let index = index as u64;
        self.unused.has(index) && !self.unused.take(index..index + 1).is_empty()
    }
}
