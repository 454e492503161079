//! The thread that frees page tables for huge frames.
//!
//! Its discards post events, which their askers read. It must never hold anything, nor touch
//! managed memory.

use pagoda_core::page::HUGE_FRAME;
use pagoda_linux::mem::range::PageRange;

use crate::engine::Engine;

/// How long it sleeps at most when nothing is asked of it.
const SLEEP_US: u32 = 1_000_000;

impl Engine {
    /// Frees tables until the handlers may end. One that is asked for later is taken back.
    pub(crate) fn free_page_tables(&self) {
        self.table_drop.serve_here();
        while !self.handlers_may_end() {
            if let Some(place) = self.table_drop.wait(SLEEP_US) {
                self.space.free_page_table(PageRange::at(place, HUGE_FRAME));
                self.table_drop.have_done();
            }
        }
    }
}
