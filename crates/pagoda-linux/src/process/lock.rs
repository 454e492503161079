//! A mutual-exclusion lock for threads that have no thread-local storage.
//!
//! The standard one looks at thread-local state when a thread panics and sets `errno` when it has
//! to wait; a handler thread in an unmodified program has neither. No poisoning: an engine whose
//! thread panicked stops the process. It must never be held while managed memory is touched.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::futex;

const FREE: u32 = 0;
const HELD: u32 = 1;
const AWAITED: u32 = 2;

/// How often a waiter looks again before it sleeps: sections are a microsecond or less, a sleep
/// costs several.
const SPINS: u32 = 100;

/// A value that one thread at a time can reach.
pub struct Lock<T> {
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value moves with the lock, so it needs to be Send and nothing more.
unsafe impl<T: Send> Send for Lock<T> {}
// SAFETY: only the one thread that holds the lock reaches the value; that thread changes, so T must
// be Send.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// A free lock.
    pub const fn new(value: T) -> Self {
        Self { state: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    /// Waits until it is free and takes it. A thread that holds it already waits for ever.
    pub fn lock(&self) -> Held<'_, T> {
        if self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.wait();
        }
        Held { lock: self }
    }

    /// Takes it if it is free.
    pub fn try_lock(&self) -> Option<Held<'_, T>> {
        let taken = self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed);
        taken.ok().map(|_| Held { lock: self })
    }

    #[cold]
    fn wait(&self) {
        for _ in 0..SPINS {
            if self.state.compare_exchange_weak(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return;
            }
            std::hint::spin_loop();
        }
        // From here on the state says that a thread sleeps, also when we have it: perhaps another
        // sleeps too.
        while self.state.swap(AWAITED, Ordering::Acquire) != FREE {
            // Any outcome means: look again.
            let _ = futex::wait(&self.state, futex::Flags::PRIVATE, AWAITED, None);
        }
    }
}

/// Proof that the lock is held; dropping it frees the lock.
pub struct Held<'a, T> {
    lock: &'a Lock<T>,
}

impl<T> Deref for Held<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: this value exists only while its thread holds the lock, so no other thread
        // reaches the value.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Held<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as for deref, and `&mut self` makes it the only reference through this proof.
        unsafe { &mut *self.lock.value.get() }
    }
}

// A proof in another thread than the one that took it would be harmless, but sharing one needs T:
// Sync, which the fields alone (a reference to a Lock) would not ask for. SAFETY: `&Held` gives
// `&T` and nothing else.
unsafe impl<T: Sync> Sync for Held<'_, T> {}

impl<T> Drop for Held<'_, T> {
    fn drop(&mut self) {
        if self.lock.state.swap(FREE, Ordering::Release) == AWAITED {
            let _ = futex::wake(&self.lock.state, futex::Flags::PRIVATE, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_increment_is_lost_under_contention() {
        let lock = Lock::new(0_u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..50_000).for_each(|_| *lock.lock() += 1));
            }
        });
        assert_eq!(*lock.lock(), 200_000);
        let held = lock.lock();
        assert!(lock.try_lock().is_none());
        drop(held);
        assert!(lock.try_lock().is_some());
    }
}
