//! Swapping everything in before the process dumps core.
//!
//! The kernel writes a missing page of managed memory as zeroes: by then all threads that could
//! fill it are gone. So the thread that is about to end the process by a signal waits here until
//! the watcher has brought everything back. That takes memory beyond the budget. This module must
//! never begin where the machine, or the group, would have to kill a process for it.

use std::sync::atomic::Ordering;

use pagoda_core::size::Bytes;
use pagoda_linux::mem::unforked::UnforkedReader;
use pagoda_linux::procfs::memcg;

use crate::engine::Engine;
use crate::stats::counters::Counter;

/// Memory that stays available for other processes.
const LEAVES: Bytes = Bytes::mib(64);

impl Engine {
    /// Brings everything back, once, if a core dump waits for it and there is room.
    pub(crate) fn give_all_to_core(&self, unforked: Option<&mut UnforkedReader>) {
        if !self.core.is_requested.load(Ordering::Acquire) || self.is_core_settled() {
            return;
        }
        // Swapped-out pages take as much; their copies are freed little by little.
        if self.out_bytes().saturating_add(LEAVES) > memcg::available() {
            self.counters.add(Counter::CoresLeftOut, 1);
            self.core.is_declined.store(true, Ordering::Release);
            return;
        }
        self.release_all(unforked);
        self.counters.add(Counter::CoresWhole, 1);
    }

    /// Whether a core dump has nothing to wait for any more.
    pub(crate) fn is_core_settled(&self) -> bool {
        self.release_done.load(Ordering::Acquire) || self.core.is_declined.load(Ordering::Acquire)
    }
}
