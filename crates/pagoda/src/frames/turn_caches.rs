//! Caches of turns that threads have been granted in advance.
//!
//! A cache holds turns and no frames: see `frames/turns.rs`.

use std::sync::atomic::{AtomicUsize, Ordering};

use pagoda_core::zone::cache::FrameCache;

/// Caches for each handler: its own, and one for other threads that serve faults (their own, by
/// calls, or readahead of files). These share it where they are more. Each further cache makes all
/// smaller.
pub(crate) const CACHES_PER_HANDLER: usize = 2;

/// A taker of frames, by its cache of turns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taker(Option<usize>);

impl Taker {
    /// A taker that needs a frame now and then, and asks the zones each time.
    pub(crate) const ONCE: Self = Self(None);

    /// The handler of this number.
    pub(crate) fn handler(id: usize) -> Self {
        Self(Some(id))
    }
}

/// The caches of one engine.
pub(crate) struct Caches {
    pub(super) caches: Box<[FrameCache]>,
    next: AtomicUsize,
}

impl Caches {
    pub(crate) fn new(handlers: usize) -> Self {
        let caches = (0..CACHES_PER_HANDLER * handlers).map(|_| FrameCache::default()).collect();
        Self { caches, next: AtomicUsize::new(handlers) }
    }

    /// One more thread that serves faults, and is no handler.
    pub(crate) fn new_taker(&self) -> Taker {
        Taker(Some(self.next.fetch_add(1, Ordering::Relaxed)))
    }

    pub(super) fn of(&self, Taker(number): Taker) -> Option<&FrameCache> {
        number.map(|number| &self.caches[number % self.caches.len()])
    }
}
