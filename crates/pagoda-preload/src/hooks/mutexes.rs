//! The hooks of the robust mutexes of the program, whose memory is pinned.
//!
//! When a thread ends, the kernel walks its robust list, and gives up at the first page that is
//! swapped out: a thread that waits for the mutex would wait for ever. This module must never
//! forget one that was made before there was an engine.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering, fence};

use pagoda::process::ProcessWatcher;
use pagoda::state::pins::{self, Pinner};
use pagoda_core::page::OS_PAGE;
use pagoda_linux::mem::mincore::is_mapped;
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::mem::touch::touch;

use super::real::{place, real, required};
use crate::current::{engine, tree};

type MutexInit = unsafe extern "C" fn(*mut libc::pthread_mutex_t, *const libc::pthread_mutexattr_t) -> c_int;
type MutexDestroy = unsafe extern "C" fn(*mut libc::pthread_mutex_t) -> c_int;
type GetRobust = unsafe extern "C" fn(*const libc::pthread_mutexattr_t, *mut c_int) -> c_int;

/// The addresses of the robust mutexes, 0 for a free place: an engine that begins later, here or in
/// a forked child, has to pin them.
static MUTEXES: [AtomicUsize; MUTEXES_BOUND] = [const { AtomicUsize::new(0) }; MUTEXES_BOUND];

/// As many as an engine can pin. A program that makes more gets an error from
/// pthread_mutex_init(3). Unused places take no memory.
const MUTEXES_BOUND: usize = pins::BOUND;

/// One past the highest place that was ever used: most programs make none, and destroy many of
/// other kinds.
static MUTEXES_USED: AtomicUsize = AtomicUsize::new(0);

fn known_mutexes() -> &'static [AtomicUsize] {
    &MUTEXES[..MUTEXES_USED.load(Ordering::SeqCst)]
}

/// Pins, in the engine that has just begun, those that were made before it. False if it has no
/// room. Called by the thread that `watcher` will run on, so it is `watcher` that swaps them in.
pub fn pin_known(watcher: &mut ProcessWatcher) -> bool {
    known_mutexes()
        .iter()
        .map(|place| place.load(Ordering::SeqCst))
        .filter(|address| *address != 0)
        .all(|address| pin_in_engine(address, |range| watcher.touch_pinned(range)))
}

/// Pins the robust mutex at `address`, or remembers it for the engine to come. False if there are
/// too many.
fn pin_mutex(address: usize) -> bool {
    if tree().is_some() {
        let known = known_mutexes().iter().any(|place| place.load(Ordering::SeqCst) == address);
        if !known && !enter(address) {
            forget_unmapped();
            if !enter(address) {
                return false;
            }
        }
        fence(Ordering::SeqCst);
    }
    // Either this thread sees the engine here, or the thread that started it sees the mutex.
    pin_in_engine(address, touch)
}

fn enter(address: usize) -> bool {
    let take = |place: &AtomicUsize| {
        place.load(Ordering::SeqCst) == 0
            && place.compare_exchange(0, address, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    };
    let Some(place) = MUTEXES.iter().position(take) else { return false };
    MUTEXES_USED.fetch_max(place + 1, Ordering::SeqCst);
    true
}

/// Forgets mutexes whose memory is gone: many programs unmap them without destroying them.
fn forget_unmapped() {
    for place in known_mutexes() {
        let address = place.load(Ordering::SeqCst);
        if address != 0 && !is_mapped(address & !(OS_PAGE - 1)) {
            let _ = place.compare_exchange(address, 0, Ordering::SeqCst, Ordering::Relaxed);
        }
    }
}

/// True also where there is no engine.
fn pin_in_engine(address: usize, touch: impl FnOnce(PageRange)) -> bool {
    let Some(engine) = engine() else { return true };
    let Some(range) = PageRange::covering(address, address + size_of::<libc::pthread_mutex_t>()) else {
        return true;
    };
    let pinned = engine.pins().pin(Pinner::Mutex(address), range);
    touch(range);
    pinned
}

/// The mutex at `address` is destroyed.
fn unpin_mutex(address: usize) {
    for place in known_mutexes() {
        let _ = place.compare_exchange(address, 0, Ordering::SeqCst, Ordering::Relaxed);
    }
    if let Some(engine) = engine() {
        engine.pins().unpin(Pinner::Mutex(address));
    }
}

/// As pthread_mutex_init(3).
///
/// # Safety
/// As for the real function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_mutex_init(
    mutex: *mut libc::pthread_mutex_t,
    attributes: *const libc::pthread_mutexattr_t,
) -> c_int {
    let real = required(const { place("pthread_mutex_init") });
    // SAFETY: as in `pthread_create`.
    let result = unsafe { std::mem::transmute::<*mut c_void, MutexInit>(real)(mutex, attributes) };
    // SAFETY: the caller vouches for the attributes, if there are any.
    if result == 0 && unsafe { is_robust(attributes) } && !pin_mutex(mutex.addr()) {
        return libc::EAGAIN;
    }
    result
}

/// # Safety
/// The attributes are null or valid.
unsafe fn is_robust(attributes: *const libc::pthread_mutexattr_t) -> bool {
    let get = real(const { place("pthread_mutexattr_getrobust") });
    if attributes.is_null() || get.is_null() {
        return false;
    }
    let mut robust = 0;
    // SAFETY: the function has this type, and writes an int.
    let got = unsafe { std::mem::transmute::<*mut c_void, GetRobust>(get)(attributes, &raw mut robust) };
    got == 0 && robust == libc::PTHREAD_MUTEX_ROBUST
}

/// As pthread_mutex_destroy(3).
///
/// # Safety
/// As for the real function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_mutex_destroy(mutex: *mut libc::pthread_mutex_t) -> c_int {
    let real = required(const { place("pthread_mutex_destroy") });
    // SAFETY: as in `pthread_create`.
    let result = unsafe { std::mem::transmute::<*mut c_void, MutexDestroy>(real)(mutex) };
    if result == 0 {
        unpin_mutex(mutex.addr());
    }
    result
}
