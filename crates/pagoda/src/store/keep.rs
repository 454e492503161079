//! What a store does in the background, all on one thread: its remote store is kept, and what is cold made smaller.
//!
//! Nobody waits for it, and it holds nothing that others wait for while it waits itself.

use std::sync::atomic::{AtomicBool, Ordering};

use pagoda_linux::thread::sleep_us;

use super::TieredStore;

/// How long it sleeps between two looks, in microseconds; also how long it works on what is cold before it looks again.
const SLEEP_US: u32 = 100_000;

impl TieredStore {
    /// Keeps the store until `quit`; what it has at its remote store is deleted then. A thread's life.
    pub(crate) fn keep(&self, quit: &AtomicBool) {
        let mut condenser = self.condenser();
        while !quit.load(Ordering::Acquire) {
            self.keep_remote();
            self.condense_while_idle(&mut condenser, u64::from(SLEEP_US) * 1000);
            sleep_us(SLEEP_US);
        }
        self.leave_remote();
    }
}
