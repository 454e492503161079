//! Caches of turns that threads have been granted in advance.
//!
//! A cache holds turns and no frames: see `frames/turns.rs`.

use std::sync::atomic::{AtomicUsize, Ordering};

use pagoda_core::zone::cache::FrameCache;

/// Caches for each handler: its own, and one for others who serve faults (in their own threads, by calls, ahead of who reads a file),
/// and who share them where there are more. Each further one makes all smaller.
pub(crate) const CACHES_PER_HANDLER: usize = 2;

/// Who takes frames: which cache of turns is his.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taker(Option<usize>);

impl Taker {
    /// Who takes a frame now and then, and asks the zones each time.
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
