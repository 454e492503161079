//! The locked memory of a process (mlock(2) and its relatives): the kernel moves nothing out of it.
//!
//! `/proc/self/maps` does not tell, so this reads `/proc/self/smaps`, for which the kernel walks
//! the page tables of the whole process. That is only done if `/proc/self/status` says that
//! anything is locked at all. Like the other readers it must never allocate, take a lock or use
//! thread-local storage: it runs in an engine thread inside another program.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};

use crate::procfs::maps::Mapping;
use crate::procfs::smaps::{Flag, SmapsReader};

/// Reads this process's locked mappings, any number of times.
pub struct LockedReader {
    status: OwnedFd,
    smaps: SmapsReader,
}

impl LockedReader {
    /// Opens the files and allocates the only memory that this reader will ever use. Call it on the
    /// thread that will read, if that thread has a file table of its own. After a fork the child
    /// needs a reader of its own.
    ///
    /// # Errors
    /// Those of opening: no `/proc` (`NotFound`), or no descriptor left.
    pub fn new() -> io::Result<Self> {
        let status =
            rustix::fs::open(c"/proc/thread-self/status", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { status, smaps: SmapsReader::new()? })
    }

    /// Calls `f` with each mapping that is locked, lowest address first. If none is, which is the
    /// rule, it costs one short read; else the kernel walks all present pages.
    ///
    /// # Errors
    /// Those of `pread`. Mappings before it were passed to `f`.
    pub fn for_each(&mut self, f: impl FnMut(&Mapping)) -> io::Result<()> {
        let (locked, _) = self.counts()?;
        self.for_each_of(locked, f)
    }

    /// The same, and whether these are all pages that have to stay for long. Others may be pinned
    /// for a device or by io_uring, and the kernel tells only that there are some.
    ///
    /// # Errors
    /// As for [`for_each`](Self::for_each).
    pub fn for_each_of_all(&mut self, mut f: impl FnMut(&Mapping)) -> io::Result<bool> {
        let (locked, pinned) = self.counts()?;
        let mut told = 0;
        self.for_each_of(locked, |mapping| {
            told += (mapping.end - mapping.start) as u64 >> 10;
            f(mapping);
        })?;
        Ok(pinned == 0 && told >= locked)
    }

    /// KiB that are locked, and that are pinned.
    fn counts(&mut self) -> io::Result<(u64, u64)> {
        let mut counts = (0, 0);
        self.smaps.lines_of(&self.status, |line| {
            counts.0 += kib(line, b"VmLck:").unwrap_or(0);
            counts.1 += kib(line, b"VmPin:").unwrap_or(0);
        })?;
        Ok(counts)
    }

    fn for_each_of(&mut self, locked: u64, mut f: impl FnMut(&Mapping)) -> io::Result<()> {
        if locked > 0 { self.smaps.for_each(&[Flag::Locked], |mapping, _| f(mapping)) } else { Ok(()) }
    }
}

/// A line like `VmLck:     1234 kB` of status. It counts address space, of files too.
fn kib(line: &[u8], name: &[u8]) -> Option<u64> {
    let value = line.strip_prefix(name)?.strip_suffix(b" kB")?.trim_ascii();
    std::str::from_utf8(value).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::ptr::null_mut;

    use rustix::mm::{MapFlags, ProtFlags, mlock, mmap_anonymous, munmap};

    use super::*;

    #[test]
    fn lines_are_read_exactly() {
        assert_eq!(kib(b"VmLck:\t      64 kB", b"VmLck:"), Some(64));
        assert_eq!(kib(b"VmPin:\t      64 kB", b"VmLck:"), None);
    }

    #[test]
    fn locked_memory_is_seen_and_its_neighbours_are_not() {
        const PAGE: usize = 4096;
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing.
        let start = unsafe {
            mmap_anonymous(null_mut(), 8 * PAGE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
                .expect("room")
        };
        let mut reader = LockedReader::new().expect("a reader");
        let mut seen = |from: usize, pages: usize| {
            let from = start.addr() + from * PAGE;
            let mut seen = 0;
            let sum = |mapping: &Mapping| {
                let (to, begin) = (mapping.end.min(from + pages * PAGE), mapping.start.max(from));
                seen += to.saturating_sub(begin) / PAGE;
            };
            reader.for_each(sum).expect("read");
            seen
        };
        assert_eq!(seen(0, 8), 0);
        // SAFETY: a part of the mapping made above; locking changes no content.
        unsafe { mlock(start.byte_add(2 * PAGE), 3 * PAGE).expect("64 KiB may be locked anywhere") };
        assert_eq!((seen(0, 2), seen(2, 3), seen(5, 3)), (0, 3, 0));
        // SAFETY: the mapping made above, which no other code knows.
        unsafe { munmap(start, 8 * PAGE).expect("unmapped") };
        assert_eq!(seen(0, 8), 0);
    }
}
