//! The robust mutexes of the program, whose memory is pinned.
//!
//! When a thread ends, the kernel walks its robust list, and gives up at the first page that is out: whoever waits for
//! the mutex would wait for ever. This module must never forget one that was made before there was an engine.

use std::sync::atomic::{AtomicUsize, Ordering, fence};

use pagoda::pins::Pinner;
use pagoda_linux::range::PageRange;
use pagoda_linux::touch::touch;

use crate::start::{engine, tree};

/// The robust mutexes that were made before there was an engine to pin them: their addresses, 0 for a free place.
static EARLY_MUTEXES: [AtomicUsize; EARLY_MUTEXES_BOUND] =
    [const { AtomicUsize::new(0) }; EARLY_MUTEXES_BOUND];

/// A program that makes more before it holds 16 MiB gets an error from pthread_mutex_init(3).
const EARLY_MUTEXES_BOUND: usize = 1024;

/// One past the highest place that was ever used: most programs make none, and destroy many of other kinds.
static EARLY_MUTEXES_USED: AtomicUsize = AtomicUsize::new(0);

fn early_mutexes() -> &'static [AtomicUsize] {
    &EARLY_MUTEXES[..EARLY_MUTEXES_USED.load(Ordering::SeqCst)]
}

/// Pins, in the engine that has just begun, those that were made before it. False if it has no room.
pub fn pin_early() -> bool {
    early_mutexes()
        .iter()
        .map(|place| place.load(Ordering::SeqCst))
        .filter(|address| *address != 0)
        .all(pin_in_engine)
}

/// Pins the robust mutex at `address`, or remembers it for the engine to come. False if there are too many.
pub fn pin_mutex(address: usize) -> bool {
    if tree().is_some() {
        let known = early_mutexes().iter().any(|place| place.load(Ordering::SeqCst) == address);
        let enter = |place: &AtomicUsize| {
            place.compare_exchange(0, address, Ordering::SeqCst, Ordering::Relaxed).is_ok()
        };
        if !known {
            match EARLY_MUTEXES.iter().position(enter) {
                Some(place) => drop(EARLY_MUTEXES_USED.fetch_max(place + 1, Ordering::SeqCst)),
                // With an engine it is pinned there all the same.
                None if engine().is_none() => return false,
                None => {}
            }
        }
        fence(Ordering::SeqCst);
    }
    // Either we see the engine here, or whoever started it sees the mutex.
    pin_in_engine(address)
}

/// True also where there is no engine.
fn pin_in_engine(address: usize) -> bool {
    let Some(engine) = engine() else { return true };
    let Some(range) = PageRange::covering(address, address + size_of::<libc::pthread_mutex_t>()) else {
        return true;
    };
    let pinned = engine.pins().pin(Pinner::Mutex(address), range);
    touch(range);
    pinned
}

/// The mutex at `address` is destroyed.
pub fn unpin_mutex(address: usize) {
    for place in early_mutexes() {
        let _ = place.compare_exchange(address, 0, Ordering::SeqCst, Ordering::Relaxed);
    }
    if let Some(engine) = engine() {
        engine.pins().unpin(Pinner::Mutex(address));
    }
}
