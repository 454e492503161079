//! The background work of a store, all on one thread: it keeps the remote store's content,
//! compresses cold pages better, and gives unused parts of the file back to the disk.
//!
//! No thread waits for it, and it holds nothing that others wait for while it waits itself.

use std::sync::atomic::{AtomicBool, Ordering};

use super::TieredStore;
use super::file::FileTier;

/// How long it sleeps between two looks, in microseconds; also how long it works on cold pages
/// before it looks again.
const SLEEP_US: u32 = 100_000;

/// Runs of the file that are given back to the disk between two looks, 4 MiB each at most.
const DISCARDS: u32 = 16;

impl TieredStore {
    /// Keeps the store until `quit`; then deletes its content at the remote store. The loop of a
    /// thread.
    pub(crate) fn keep(&self, quit: &AtomicBool) {
        let mut condenser = self.condenser();
        while !quit.load(Ordering::Acquire) {
            pagoda_linux::process::rights::follow();
            self.keep_remote();
            let _ = self.file.as_ref().is_some_and(FileTier::take_back);
            self.condense_while_idle(&mut condenser, u64::from(SLEEP_US) * 1000);
            if condenser.is_idle() {
                let discard = |_: &u32| self.file.as_ref().is_some_and(FileTier::discard_unused);
                (0..DISCARDS).take_while(discard).for_each(drop);
            }
            self.keeper.sleep(SLEEP_US);
        }
        self.leave_remote();
    }
}
