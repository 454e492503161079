//! Missing pages of shared memory: a thread that touches one by a mapping of this process waits
//! until it is filled.
//!
//! Pages are filled by a second mapping of the file, which no other code knows. The owner of the
//! first may unmap or move it at any time, and other memory may come to lie there: it is only
//! woken and poisoned, and poison goes to missing pages of registered memory alone. The kernel
//! tells of nothing but faults of that one mapping. Other mappings, and reads and writes of the
//! file, find a missing page as a hole, and make it a page of zeroes. This module must never write
//! to a page that exists.

use std::fs::File;
use std::io;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::{Errno, Message, Mode, Progress, REGISTER_MODE_MISSING, Uffd};
use crate::io::memory_file::check_shows;
use crate::io::wait::Wait;
use crate::mem::range::PageRange;
use crate::process::process_mark::ProcessMark;
use crate::process::thread::sleep_us;

/// `UFFD_FEATURE_MISSING_SHMEM`: missing pages of shared memory (Linux 4.11).
pub(crate) const MISSING_SHARED: u64 = 1 << 5;
/// `UFFD_FEATURE_POISON` (Linux 6.6).
pub(crate) const POISON: u64 = 1 << 14;
/// Where the kernel does not let this thread wait.
const PAUSE_US: u32 = 1_000;

/// The missing pages of a part of a file of shared memory, as long as this value lives. Offsets are
/// counted in bytes from the beginning of that part.
#[derive(Debug)]
pub struct SharedFill {
    uffd: Uffd,
    /// No process faults there, for it can't be accessed.
    own: PageRange,
    /// The owner's mapping.
    shown: PageRange,
    /// A forked child has a descriptor that acts on its parent's memory.
    maker: ProcessMark,
}

impl SharedFill {
    /// Has the threads of this process wait that touch a missing page of `shown`, a shared mapping
    /// of `file` from `offset` on; and the kernel as well, where it touches one for a system call
    /// or a guest.
    ///
    /// # Errors
    /// `EBUSY`: a part of it has a userfaultfd. `EPERM`, `ENOENT` and others: this process may have
    /// none that sees the kernel's faults. `EINVAL`: the kernel is older than Linux 6.6. Those of
    /// [`check_shows`] and of mmap(2).
    pub fn start(file: &File, offset: u64, shown: PageRange) -> io::Result<Self> {
        check_shows(shown, file, offset)?;
        let maker = ProcessMark::of_this_process()?;
        let uffd = Uffd::open(Mode::Full, MISSING_SHARED | POISON)?;
        let len = shown.len();
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing.
        let at =
            unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::empty(), MapFlags::SHARED, file, offset)? };
        // From here on the drop undoes it.
        let fill = Self { uffd, own: PageRange::at(at.expose_provenance(), len), shown, maker };
        fill.uffd.register_mode(fill.own, REGISTER_MODE_MISSING)?;
        fill.uffd.register_mode(shown, REGISTER_MODE_MISSING)?;
        Ok(fill)
    }

    /// Fills the pages at `offset` with `content`, each at once and where it is missing. Threads
    /// that wait there go on waiting.
    ///
    /// # Panics
    /// If it reaches beyond the end.
    pub fn copy(&self, offset: usize, content: &[u8]) -> Progress {
        let to = part(self.own, offset, content.len());
        // SAFETY: this value has registered and owns the mapping, to which there is no reference:
        // it can't be accessed. Pages that are there are not written. The users of other mappings
        // of the file share it with writers outside of this process's memory model.
        unsafe { self.uffd.copy(to.start(), content) }
    }

    /// Fills the pages of `offset..offset + len` with zeroes where they are missing. Threads that
    /// wait there go on waiting.
    ///
    /// # Panics
    /// If it reaches beyond the end.
    pub fn zero(&self, offset: usize, len: usize) -> Progress {
        self.uffd.zero(part(self.own, offset, len))
    }

    /// Poisons the pages of `offset..offset + len` that are missing in the owner's mapping: a
    /// thread that touches one there gets SIGBUS from now on, also when this value is gone. Wakes
    /// threads that wait there.
    ///
    /// # Panics
    /// If it reaches beyond the end.
    pub fn poison(&self, offset: usize, len: usize) -> Progress {
        self.uffd.poison(part(self.shown, offset, len))
    }

    /// Wakes the threads that wait for a page of `offset..offset + len`; they fault again if it is
    /// still missing.
    ///
    /// # Panics
    /// If it reaches beyond the end.
    pub fn wake(&self, offset: usize, len: usize) {
        // A debugger may have touched our own mapping.
        [self.shown, self.own].into_iter().for_each(|range| self.uffd.wake(part(range, offset, len)));
    }

    /// Waits for faults, for `timeout_ms` at most, and calls `sink` with the offsets of their
    /// pages. Their threads wait until they are woken.
    ///
    /// # Errors
    /// Those of [`Uffd::read`].
    pub fn faults(&self, timeout_ms: u32, mut sink: impl FnMut(usize)) -> Result<(), Errno> {
        if let Wait::Refused(_) = self.uffd.wait(timeout_ms) {
            sleep_us(PAUSE_US);
        }
        let each = |message| {
            let Message::Fault { at, .. } = message else { return };
            let range = if self.own.contains(at.page()) { self.own } else { self.shown };
            sink(at.page() - range.start());
        };
        self.uffd.read(each).map(drop)
    }
}

/// A part of `range`.
fn part(range: PageRange, offset: usize, len: usize) -> PageRange {
    let part = PageRange::at(range.start() + offset, len);
    assert_eq!(range.intersection(part), Some(part), "pages of the range");
    part
}

impl Drop for SharedFill {
    fn drop(&mut self) {
        if !self.maker.is_of_this_process() {
            return;
        }
        // That wakes as well. It is not left to closing the descriptor: a forked child may have it.
        // What is not registered, or has gone, needs nothing.
        let _ = (self.uffd.unregister(self.shown), self.uffd.unregister(self.own));
        let at = std::ptr::with_exposed_provenance_mut(self.own.start());
        // SAFETY: the mapping is this value's own, and nothing has its address.
        let _ = unsafe { munmap(at, self.own.len()) };
    }
}

#[cfg(test)]
#[path = "shared_fill_test.rs"]
mod tests;
