//! How huge frames are cleared: the order that suits this machine, and the number of clears under
//! way.
//!
//! This module must never clear anything.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use pagoda_core::clear::{Choice, Order};

/// The clears within faults that are under way, and their recent cost.
#[derive(Default)]
pub(crate) struct Clears {
    pub(crate) now: AtomicU32,
    /// Whether one of them yields to a fault that waits and that no handler has read yet: one is
    /// enough.
    pub(crate) gives_way: AtomicBool,
    /// An innermost lock: nothing is called with it held.
    pub(crate) choice: Mutex<Choice>,
    /// The page that was the target of the last one, in its frame.
    #[cfg(test)]
    pub(crate) last_target: AtomicU32,
    /// The byte that it was cleared for.
    #[cfg(test)]
    pub(crate) last_byte: std::sync::atomic::AtomicUsize,
}

impl Clears {
    /// The waiting fault was read.
    pub(crate) fn have_given_way(&self) {
        // It is rarely set; the load keeps the cache line shared among all readers.
        if self.gives_way.load(Ordering::Relaxed) {
            self.gives_way.store(false, Ordering::Relaxed);
        }
    }
}

/// How huge frames are cleared.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clearing {
    /// The order within a fault; None for the one that suits.
    pub(crate) order: Option<Order>,
    /// How much of a processor clearing ahead of faults may take, in percent; 0 for none.
    pub(crate) ahead_percent: u32,
}

impl Default for Clearing {
    /// A tenth of a processor clears 2 GB/s of frames ahead.
    fn default() -> Self {
        Self { order: None, ahead_percent: 10 }
    }
}
