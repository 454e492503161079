//! The state of a file as it was seen last, and the rounds in which memory is compared with it.
//!
//! Writes of ours are made one at a time, so that they can be told from those of others.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use pagoda_linux::io::mapped_file::FileState;
use pagoda_linux::process::thread::yield_now;

/// What is known of a file's states.
pub(super) struct Seen {
    /// Held around a write of ours, so that what it changed can be told from what others did; and
    /// for a moment by who looks. An innermost lock.
    pub(super) writing: Mutex<()>,
    /// Who holds it writes: who looks does not wait for that.
    is_written: AtomicBool,
    /// Held for a few loads and stores.
    pub(super) states: Mutex<States>,
}

pub(crate) struct States {
    /// What is in memory is of this one.
    pub(super) seen: FileState,
    /// As it was when the round began that is under way.
    pub(super) next: Option<FileState>,
}

/// What a write back found before it writes, with nobody else writing.
pub(super) struct Before<'a> {
    pub(crate) _writing: Writing<'a>,
    pub(super) state: FileState,
    /// Nobody else has changed the file.
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

    /// Nobody writes, while it lives. None if somebody does.
    pub(super) fn unless_written(&self) -> Option<MutexGuard<'_, ()>> {
        loop {
            match self.writing.try_lock() {
                Ok(lock) => return Some(lock),
                Err(TryLockError::Poisoned(lock)) => return Some(lock.into_inner()),
                Err(TryLockError::WouldBlock) if self.is_written.load(Ordering::Acquire) => return None,
                // Somebody else who looks; what he finds is not known yet.
                Err(TryLockError::WouldBlock) => yield_now(),
            }
        }
    }
}

/// A lock that nothing panics with.
pub(super) fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
