//! Page tables that the kernel made for a fault, to be freed before a huge frame comes there.
//!
//! To free one is a discard, which posts an event and waits until it is read. Its asker has the
//! gate exclusively and reads the messages; one thread does the discard. So the discard never waits
//! for anything but its asker. One is asked for at a time, because the gate is one. This module
//! must never forget a discard that has begun.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use pagoda_linux::process::affinity::{self, Processors};
use pagoda_linux::process::thread::current_id;

use crate::state::wakeup::Bell;

/// In the address of a place whose discard has begun.
const BEGUN: usize = 1;

/// The place whose table is to be freed.
#[derive(Debug, Default)]
pub(crate) struct TableDrop {
    /// There is a thread for it, and the kernel frees tables.
    is_on: AtomicBool,
    has_started: AtomicBool,
    /// Where it is, with [`BEGUN`], or 0.
    place: AtomicUsize,
    bell: Bell,
    thread: AtomicU32,
    /// The number of the processor that the thread was told to run on, and 1; or 0.
    processor: AtomicU32,
}

impl TableDrop {
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Acquire)
    }

    pub(crate) fn turn_on(&self) {
        self.is_on.store(true, Ordering::Release);
    }

    /// Whether the caller is the first, which tries whether it works and starts the thread.
    pub(crate) fn is_to_start(&self) -> bool {
        !self.has_started.swap(true, Ordering::AcqRel)
    }

    /// The calling thread is the one that frees tables.
    pub(crate) fn serve_here(&self) {
        self.thread.store(current_id(), Ordering::Relaxed);
    }

    /// Asks for the table at `place`. Only with the gate held exclusively.
    pub(crate) fn ask(&self, place: usize) {
        debug_assert_eq!(self.place.load(Ordering::Relaxed), 0, "one is asked for at a time");
        // Each waits for the other twice: on two processors one of them would be woken each time.
        let thread = self.thread.load(Ordering::Relaxed);
        if thread != 0
            && let Some(here) = affinity::current()
            && self.processor.swap(here + 1, Ordering::Relaxed) != here + 1
        {
            let _ = affinity::hold(thread, &Processors::one(here));
        }
        self.place.store(place, Ordering::Release);
        self.bell.ring();
    }

    /// Whether this place was asked for, and its event is that of our own discard.
    pub(crate) fn is_asked(&self, place: usize) -> bool {
        self.place.load(Ordering::Acquire) & !BEGUN == place
    }

    pub(crate) fn is_done(&self) -> bool {
        self.place.load(Ordering::Acquire) == 0
    }

    /// Asks no more, unless it has begun: then it is done soon.
    pub(crate) fn take_back(&self, place: usize) {
        let _ = self.place.compare_exchange(place, 0, Ordering::AcqRel, Ordering::Acquire);
    }

    /// The place that is asked for; its discard counts as begun. None within `limit_us` if none is.
    pub(crate) fn wait(&self, limit_us: u32) -> Option<usize> {
        self.bell.sleep(limit_us);
        let place = self.place.load(Ordering::Acquire);
        let begins = |place| {
            self.place.compare_exchange(place, place | BEGUN, Ordering::AcqRel, Ordering::Acquire).is_ok()
        };
        (place != 0 && begins(place)).then_some(place)
    }

    /// The discard at the place has returned.
    pub(crate) fn have_done(&self) {
        self.place.store(0, Ordering::Release);
    }

    pub(crate) fn ring(&self) {
        self.bell.ring();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: usize = 2 << 20;

    #[test]
    fn a_discard_that_has_begun_is_not_taken_back() {
        let drop = TableDrop::default();
        drop.ask(PLACE);
        assert!(drop.is_asked(PLACE) && !drop.is_asked(2 * PLACE));
        drop.take_back(PLACE);
        assert!(drop.is_done());
        assert_eq!(drop.wait(0), None, "it was taken back");
        drop.ask(PLACE);
        assert_eq!(drop.wait(0), Some(PLACE));
        drop.take_back(PLACE);
        assert!(drop.is_asked(PLACE) && !drop.is_done(), "it has begun");
        drop.have_done();
        assert!(drop.is_done());
    }
}
