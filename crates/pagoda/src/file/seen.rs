//! The state of a file as it was seen last, and the rounds in which memory is compared with it.
//!
//! Writes of ours are made one at a time, so that they can be told from those of others.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use pagoda_linux::io::mapped_file::FileState;
use pagoda_linux::process::thread::yield_now;

/// The known states of a file.
pub(super) struct Seen {
    /// Held around a write of ours, so that its change can be told from those of others; and for a
    /// moment by a look. An innermost lock.
    pub(super) writing: Mutex<()>,
    /// Its holder writes: a look does not wait for that.
    is_written: AtomicBool,
    /// Held for a few loads and stores.
    pub(super) states: Mutex<States>,
}

pub(crate) struct States {
    /// The pages in memory are of this state.
    pub(super) seen: FileState,
    /// As it was when the round began that is under way.
    pub(super) next: Option<FileState>,
}

/// The state found before a write-back, with no other write under way.
pub(super) struct Before<'a> {
    pub(crate) _writing: Writing<'a>,
    pub(super) state: FileState,
    /// No other program has changed the file.
    pub(super) is_as_seen: bool,
}

/// A write of ours is under way.
pub(crate) struct Writing<'a> {
    is_written: &'a AtomicBool,
    _lock: MutexGuard<'a, ()>,
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.is_written.store(false, Ordering::Release);
    }
}

impl Seen {
    pub(super) fn new(state: FileState) -> Self {
        let states = Mutex::new(States { seen: state, next: None });
        Self { writing: Mutex::new(()), is_written: AtomicBool::new(false), states }
    }

    pub(super) fn write(&self) -> Writing<'_> {
        let lock = locked(&self.writing);
        self.is_written.store(true, Ordering::Release);
        Writing { is_written: &self.is_written, _lock: lock }
    }

    /// Keeps others from writing, while it lives. None while another write is under way.
    pub(super) fn unless_written(&self) -> Option<MutexGuard<'_, ()>> {
        loop {
            match self.writing.try_lock() {
                Ok(lock) => return Some(lock),
                Err(TryLockError::Poisoned(lock)) => return Some(lock.into_inner()),
                Err(TryLockError::WouldBlock) if self.is_written.load(Ordering::Acquire) => return None,
                // Another look has it; its finding is not known yet.
                Err(TryLockError::WouldBlock) => yield_now(),
            }
        }
    }
}

/// A lock that nothing panics with.
pub(super) fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
