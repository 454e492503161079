//! Robust mutexes in managed memory, held by threads when they end: the next to lock one is told that its owner died. The
//! kernel marks them without serving faults, so a page that is out there would mean that everybody waits for good.
//!
//! Threads and mutexes are the C library's own, at addresses of our choice, which no safe interface offers. No thread here may
//! outlive the round that started it.

use std::ffi::c_void;
use std::time::Duration;

use crate::pressure::Arena;
use crate::support::memory::{Mapping, PAGE};
use crate::support::random::Random;

/// Pages of mutexes: 1 MiB, with one mutex in every eighth.
const PAGES: usize = 256;

/// A mutex lies here in its page, away from its edges.
const OFFSET: usize = 1024;

/// What a thread takes and keeps, and how long it lives with that.
struct Task {
    mutexes: Vec<*mut libc::pthread_mutex_t>,
    rest_us: u64,
}

extern "C" fn thread(task: *mut c_void) -> *mut c_void {
    // SAFETY: the argument is a Task, which whoever started this thread keeps and does not write until it has joined it.
    let task = unsafe { &*task.cast::<Task>() };
    let mut taken = 0;
    for &mutex in &task.mutexes {
        // SAFETY: it is an initialised mutex in a mapping that outlives this thread, and whose words nobody uses otherwise.
        taken += usize::from(unsafe { libc::pthread_mutex_lock(mutex) } == 0);
    }
    if task.rest_us > 0 {
        std::thread::sleep(Duration::from_micros(task.rest_us));
    }
    std::ptr::without_provenance_mut(taken)
}

pub fn body(arena: &Arena, seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed, 9);
    let mut mapping = Mapping::new(PAGES).map_err(|error| error.to_string())?;
    mapping.words_mut(0..PAGES).fill(0);
    let start = mapping.start();
    let mutexes: Vec<*mut libc::pthread_mutex_t> = (0..PAGES)
        .step_by(8)
        .map(|page| std::ptr::with_exposed_provenance_mut(start + page * PAGE + OFFSET))
        .collect();
    for &mutex in &mutexes {
        init(mutex);
    }
    arena.wait_until_managed(&mapping);
    while arena.next_round() {
        arena.look(&mapping);
        let from = random.below(mutexes.len());
        let held: Vec<_> =
            (0..random.between(1, 6)).map(|i| mutexes[(from + i * 5) % mutexes.len()]).collect();
        let task =
            Task { mutexes: held, rest_us: if random.one_in(8) { random.below(20_000) as u64 } else { 0 } };
        let mut id = 0;
        let mut taken = std::ptr::null_mut();
        // SAFETY: the thread's number and result are written to places that are there; the task is a Task, as `thread` expects,
        // and lives until the thread is joined, here, if it was started.
        let results = unsafe {
            let argument = std::ptr::from_ref(&task).cast_mut().cast();
            let created = libc::pthread_create(&raw mut id, std::ptr::null(), thread, argument);
            (created, if created == 0 { libc::pthread_join(id, &raw mut taken) } else { libc::ESRCH })
        };
        if results != (0, 0) || taken.addr() != task.mutexes.len() {
            return Err(format!("create and join: {results:?}; {} mutexes taken", taken.addr()));
        }
        for &mutex in &task.mutexes {
            // SAFETY: it is an initialised mutex, and this thread is the only one that uses it now: the one that held it has
            // been joined. It is marked as consistent by whoever holds it, and unlocked by the same.
            let results = unsafe {
                let locked = libc::pthread_mutex_lock(mutex);
                (locked, libc::pthread_mutex_consistent(mutex), libc::pthread_mutex_unlock(mutex))
            };
            if results != (libc::EOWNERDEAD, 0, 0) {
                return Err(format!("lock, consistent and unlock after the owner's end: {results:?}"));
            }
        }
        if random.one_in(4) {
            // One is destroyed and made again: its place is no more and once more one that must stay.
            let mutex = mutexes[random.below(mutexes.len())];
            // SAFETY: it is initialised, and nobody holds it or waits for it: all threads that were started have been joined.
            assert_eq!(unsafe { libc::pthread_mutex_destroy(mutex) }, 0, "destroyed");
            init(mutex);
        }
    }
    for &mutex in &mutexes {
        // SAFETY: it is initialised, and nobody holds it or uses it any more: all threads have been joined.
        assert_eq!(unsafe { libc::pthread_mutex_destroy(mutex) }, 0, "destroyed");
    }
    Ok(())
}

/// Makes a robust mutex at an address in a mapping of ours.
fn init(mutex: *mut libc::pthread_mutex_t) {
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
    // SAFETY: the attributes are initialised before they are used, and need no end in any C library here. The mutex lies within
    // a page of a mapping of ours, aligned, which holds none that is in use.
    let made = unsafe {
        libc::pthread_mutexattr_init(attributes.as_mut_ptr());
        libc::pthread_mutexattr_setrobust(attributes.as_mut_ptr(), libc::PTHREAD_MUTEX_ROBUST);
        libc::pthread_mutex_init(mutex, attributes.as_ptr())
    };
    assert_eq!(made, 0, "a mutex");
}
