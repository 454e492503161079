//! The range that a thread of the program is about to register with a userfaultfd of its own.
//!
//! One at a time: further threads wait for their turn. The watcher swaps the range in, and then
//! leaves it to the program until the thread has registered it. This module must never let the
//! watcher wait for a thread of the program: it holds a range for a bounded time.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use pagoda_linux::mem::range::PageRange;

/// No thread asks.
const FREE: u32 = 0;
/// A thread writes down its range.
const CLAIMED: u32 = 1;
/// The watcher has to swap it in.
const ASKED: u32 = 2;
/// All of it is in memory. The thread registers it.
const BACK: u32 = 3;

/// A range, and how far it has come.
#[derive(Default)]
pub(crate) struct Asked {
    state: AtomicU32,
    start: AtomicUsize,
    end: AtomicUsize,
}

impl Asked {
    /// The calling thread asks for `range`. False while another thread does.
    pub(crate) fn ask(&self, range: PageRange) -> bool {
        if self.state.compare_exchange(FREE, CLAIMED, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return false;
        }
        self.start.store(range.start(), Ordering::Relaxed);
        self.end.store(range.end(), Ordering::Relaxed);
        self.state.store(ASKED, Ordering::Release);
        true
    }

    /// Whether the watcher has still to answer.
    pub(crate) fn is_asked(&self) -> bool {
        self.state.load(Ordering::Acquire) == ASKED
    }

    /// For the watcher: the range that it has to swap in, if a thread asks.
    pub(crate) fn range(&self) -> Option<PageRange> {
        let end = |end: &AtomicUsize| end.load(Ordering::Relaxed);
        if self.is_asked() { PageRange::new(end(&self.start), end(&self.end)) } else { None }
    }

    /// For the watcher: the range is in memory.
    pub(crate) fn is_back(&self) {
        self.state.store(BACK, Ordering::Release);
    }

    /// Whether the range is the program's until it is registered.
    pub(crate) fn is_held(&self) -> bool {
        self.state.load(Ordering::Acquire) == BACK
    }

    /// The range is registered, or the watcher has held it for long enough.
    pub(crate) fn is_over(&self) {
        let _ = self.state.compare_exchange(BACK, FREE, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// A range that is in memory, and that the watcher leaves to the program until a time.
#[derive(Clone, Copy)]
pub(crate) struct Held {
    pub(crate) range: PageRange,
    pub(crate) until_ns: u64,
}
