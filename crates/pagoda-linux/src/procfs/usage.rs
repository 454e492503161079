//! The use of processor time and faults by a thread or this process so far, by the kernel's own
//! count.
//!
//! It must never use thread-local storage: engine threads ask, too.

use std::io;

use linux_raw_sys::general::__NR_getrusage;

use crate::raw_syscall::syscall3;

/// Processor time and faults since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Processor time, in the program and in the kernel for it.
    pub cpu_us: u64,
    /// Faults that needed no disk. Fills on request (`UFFDIO_COPY`, `UFFDIO_MOVE`) are none.
    pub minor_faults: u64,
}

impl Usage {
    /// Of the calling thread.
    ///
    /// # Errors
    /// Those of getrusage(2).
    pub fn of_this_thread() -> io::Result<Self> {
        Self::of(libc::RUSAGE_THREAD)
    }

    /// Of this process, with all its threads.
    ///
    /// # Errors
    /// Those of getrusage(2).
    pub fn of_this_process() -> io::Result<Self> {
        Self::of(libc::RUSAGE_SELF)
    }

    fn of(whom: libc::c_int) -> io::Result<Self> {
        // SAFETY: rusage is plain data, for which all zeroes are a value.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        let whom = whom as isize as usize;
        // SAFETY: the kernel writes one rusage, which is borrowed for the call.
        unsafe { syscall3(__NR_getrusage, whom, (&raw mut usage).expose_provenance(), 0)? };
        let us = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
        Ok(Self { cpu_us: us(usage.ru_utime) + us(usage.ru_stime), minor_faults: usage.ru_minflt as u64 })
    }

    /// The use since `before`.
    #[must_use]
    pub const fn since(self, before: Self) -> Self {
        Self {
            cpu_us: self.cpu_us.saturating_sub(before.cpu_us),
            minor_faults: self.minor_faults.saturating_sub(before.minor_faults),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::byte_store::{Backing, ByteStore};

    #[test]
    fn pages_that_are_touched_first_are_faults_of_their_thread() {
        const PAGES: usize = 100;
        let store = ByteStore::reserve(PAGES * 4096, Backing::Small).expect("address space");
        let (thread, process) = (Usage::of_this_thread(), Usage::of_this_process());
        (0..PAGES).for_each(|page| store.write_at(page * 4096, &[1; 8]));
        let of = |now: io::Result<Usage>, before: io::Result<Usage>| {
            now.expect("counted").since(before.expect("counted")).minor_faults
        };
        assert!(of(Usage::of_this_thread(), thread) >= PAGES as u64);
        assert!(of(Usage::of_this_process(), process) >= PAGES as u64);
        let before = Usage::of_this_thread();
        (0..PAGES).for_each(|page| store.write_at(page * 4096, &[2; 8]));
        assert!(of(Usage::of_this_thread(), before) < PAGES as u64 / 2, "they are there already");
    }
}
