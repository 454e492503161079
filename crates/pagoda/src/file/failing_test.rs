//! Calls on a file that fail, for tests.

use std::sync::atomic::{AtomicBool, Ordering};

use pagoda_linux::uffd::Errno as KernelErrno;

/// Which calls fail.
#[derive(Default)]
pub(super) struct Failing {
    pub(super) reads: AtomicBool,
    pub(super) writes: AtomicBool,
    pub(super) flushes: AtomicBool,
}

fn fail(which: &AtomicBool) -> Result<(), KernelErrno> {
    if which.load(Ordering::Acquire) { Err(KernelErrno::IO) } else { Ok(()) }
}

impl Failing {
    pub fn read(&self) -> Result<(), KernelErrno> {
        fail(&self.reads)
    }
    pub fn write(&self) -> Result<(), KernelErrno> {
        fail(&self.writes)
    }
    pub fn flush(&self) -> Result<(), KernelErrno> {
        fail(&self.flushes)
    }
}
