//! The memory of a library's region: a mapping that is managed, read and written through
//! bounds-checked copies or, by unsafe callers that vouch for it, through its address.
//!
//! Children of a fork don't get it (they would read zeroes where a page is swapped out; so they
//! fault instead).

use std::io;
use std::ops::{Deref, Range};

use pagoda_core::page::{HUGE_FRAME, OS_PAGE};
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect, munmap};

use crate::arena::Adoption;
use crate::mem::aligned;
use crate::mem::range::PageRange;
use crate::mem::region_bytes::RegionBytes;

/// The right to manage the regions that this crate makes, and foreign memory whose owner vouched
/// for it.
#[must_use]
pub fn own_regions() -> Adoption {
    // SAFETY: the only ranges that a safe caller can have are those of `RegionMemory`, which is
    // private anonymous memory that its maker gives to be managed, and of `ForeignMemory`, whose
    // unsafe constructor asks for the same.
    unsafe { Adoption::assume() }
}

/// Memory that the caller mapped.
#[derive(Debug)]
pub struct ForeignMemory {
    range: PageRange,
    /// If it may be sent and received into.
    bytes: Option<RegionBytes>,
}

impl ForeignMemory {
    /// The whole OS pages from `start`, `len` bytes. None if they are not whole pages.
    ///
    /// # Safety
    /// As long as the memory is managed, all of the following hold. The manager may put huge frames
    /// into it all the same, which stay in it afterwards.
    /// - It is one private anonymous mapping, readable and writable, not locked, not executable,
    ///   without huge pages.
    /// - Nothing of the manager's own lies in it: not its threads' stacks, not the heap that its
    ///   threads allocate from, not the control block of any thread.
    /// - No thread whose stack lies in it calls the manager or a region, or drops one: it would
    ///   wait for a page of its own stack with the manager's locks held.
    /// - It is for the children of a fork again (`MADV_DOFORK`) once it is managed no more; while
    ///   it is, they don't get it.
    /// - A thread that unmaps it or moves it holds no lock of the manager.
    /// - Nothing else is mapped in its place while the manager is told to forget it: what lies
    ///   there then is emptied.
    ///
    /// ```
    /// use memmap2::{Advice, MmapMut};
    /// use pagoda_linux::mem::region_memory::ForeignMemory;
    ///
    /// let mut mapping = MmapMut::map_anon(1 << 20)?;
    /// mapping.advise(Advice::NoHugePage)?;
    /// // SAFETY: it is one private anonymous mapping, readable and writable, without huge pages,
    /// // which outlives its management. Nothing but its bytes lies in it: no stack, no heap, no
    /// // control block. This program never forks.
    /// let memory = unsafe { ForeignMemory::new(mapping.as_mut_ptr(), mapping.len()) };
    /// assert_eq!(memory.expect("whole OS pages").range().len(), 1 << 20);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub unsafe fn new(start: *mut u8, len: usize) -> Option<Self> {
        let start = start.expose_provenance();
        PageRange::new(start, start.checked_add(len)?).map(|range| Self { range, bytes: None })
    }

    /// The same memory, whose bytes the manager may also read and write: so it can be sent, saved,
    /// and received into.
    ///
    /// # Safety
    /// As [`new`](Self::new), and while a region of it is sent, saved or received into:
    /// - All of it stays mapped where it is, readable and writable. An access to a part that is not
    ///   ends the process.
    /// - Nothing in the program has a Rust reference to its bytes that it uses meanwhile. It may
    ///   write them by other means, like a guest of KVM, while they are sent or saved.
    #[must_use]
    pub unsafe fn movable(self) -> Self {
        // SAFETY: the caller vouches for it as long as a call reads or writes it.
        Self { bytes: Some(unsafe { RegionBytes::new(self.range) }), ..self }
    }

    /// Where it is.
    #[must_use]
    pub fn range(&self) -> PageRange {
        self.range
    }

    /// Its bytes, if the manager may use them.
    #[must_use]
    pub fn bytes(&self) -> Option<&RegionBytes> {
        self.bytes.as_ref()
    }
}

/// The access that a protected part of a region allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// None.
    None,
    /// Reading.
    Read,
    /// Reading and writing, as at the beginning.
    Write,
}

/// A region's own mapping; unmapped on drop.
#[derive(Debug)]
pub struct RegionMemory {
    bytes: RegionBytes,
    /// With the addresses that it may grow to, which are closed until then.
    reserved: PageRange,
    /// Of each OS page, once one of them was protected.
    access: Vec<Access>,
}

impl RegionMemory {
    /// Maps `len` bytes (a multiple of the OS page), aligned to a huge frame.
    pub fn map(len: usize) -> io::Result<Self> {
        Self::of(aligned::map(len, HUGE_FRAME)?, len)
    }

    /// The same with room to grow to `reserve` bytes, whole OS pages and no fewer.
    pub fn map_reserved(len: usize, reserve: usize) -> io::Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing.
        let closed = |len| unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::empty(), flags) };
        let memory = Self::of(aligned::map_by(closed, reserve, HUGE_FRAME)?, len)?;
        memory.set_protection(memory.range(), Access::Write)?;
        Ok(memory)
    }

    fn of(reserved: PageRange, len: usize) -> io::Result<Self> {
        assert!(0 < len && len <= reserved.len(), "{len} bytes of {}", reserved.len());
        let bytes = Self::bytes(PageRange::at(reserved.start(), len));
        let memory = Self { bytes, reserved, access: Vec::new() };
        let (at, len) = (std::ptr::with_exposed_provenance_mut(reserved.start()), reserved.len());
        // SAFETY: the mapping was just made, and the advice changes no content.
        unsafe {
            madvise(at, len, Advice::LinuxDontFork)?;
            // A kernel without huge pages has none to forbid.
            let _ = madvise(at, len, Advice::LinuxNoHugepage);
        }
        Ok(memory)
    }

    /// The bytes of a part of a mapping of our own, which is where it was.
    fn bytes(range: PageRange) -> RegionBytes {
        // SAFETY: the callers' ranges lie in the mapping that they hold, which is unmapped on drop.
        // Its holder asks `allows` before it reads or writes. `&mut self` of `write_at` and
        // `words_mut` excludes all calls; unsafe users of the address vouch for their accesses.
        unsafe { RegionBytes::new(range) }
    }

    fn set_protection(&self, range: PageRange, access: Access) -> io::Result<()> {
        let flags = match access {
            Access::None => MprotectFlags::empty(),
            Access::Read => MprotectFlags::READ,
            Access::Write => MprotectFlags::READ | MprotectFlags::WRITE,
        };
        let at = std::ptr::with_exposed_provenance_mut(range.start());
        // SAFETY: the callers' ranges lie in this mapping. Its content stays. `&mut self` of those
        // that allow less excludes other safe access, and later ones ask `allows`; unsafe users of
        // the address get SIGSEGV, and never other content.
        Ok(unsafe { mprotect(at, range.len(), flags) }?)
    }

    /// How many bytes it may still grow by.
    #[must_use]
    pub fn left(&self) -> usize {
        self.reserved.len() - self.range().len()
    }

    /// Makes it longer by `more` bytes (a multiple of the OS page), which read as zero. Returns the
    /// new part. Panics beyond the reserve.
    pub fn grow(&mut self, more: usize) -> io::Result<PageRange> {
        assert!(0 < more && more <= self.left(), "{more} bytes of {} left", self.left());
        let added = PageRange::at(self.range().end(), more);
        self.set_protection(added, Access::Write)?;
        self.bytes = Self::bytes(PageRange::at(self.range().start(), self.range().len() + more));
        if !self.access.is_empty() {
            self.access.resize(self.range().len() / OS_PAGE, Access::Write);
        }
        Ok(added)
    }

    /// Undoes a growth: closes the part beyond `len` bytes, which nothing has used yet.
    pub fn shrink(&mut self, len: usize) {
        let unused = PageRange::at(self.range().start() + len, self.range().len() - len);
        self.bytes = Self::bytes(PageRange::at(self.range().start(), len));
        self.access.truncate(len / OS_PAGE);
        // Left open it can be used by an address that was never given out.
        let _ = self.set_protection(unused, Access::None);
    }

    /// Allows only this access to `offset..offset + len`, whole OS pages. Panics if it reaches
    /// beyond the end.
    pub fn protect(&mut self, offset: usize, len: usize, access: Access) -> io::Result<()> {
        let at = self.check(offset, len).addr();
        if !offset.is_multiple_of(OS_PAGE) || !len.is_multiple_of(OS_PAGE) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let Some(range) = PageRange::new(at, at + len) else { return Ok(()) };
        let pages = offset / OS_PAGE..(offset + len) / OS_PAGE;
        self.access.resize(self.range().len() / OS_PAGE, Access::Write);
        // If it fails half-way, no more is allowed than the kernel allows.
        let before = self.access[pages.clone()].to_vec();
        let least = |a: Access, b: Access| if (a as u8) < b as u8 { a } else { b };
        for (page, before) in self.access[pages.clone()].iter_mut().zip(&before) {
            *page = least(*before, access);
        }
        self.set_protection(range, access)?;
        self.access[pages].fill(access);
        Ok(())
    }

    /// Whether all of these OS pages may be read, or written. Pages beyond the end may be: their
    /// access is checked.
    #[must_use]
    pub fn allows(&self, pages: Range<usize>, write: bool) -> bool {
        let end = pages.end.min(self.access.len());
        let least = if write { Access::Write } else { Access::Read };
        self.access[pages.start.min(end)..end].iter().all(|access| *access as u8 >= least as u8)
    }

    /// Copies into the region. Waits for pages that are swapped out. Panics if it reaches beyond
    /// the end.
    pub fn write_at(&mut self, offset: usize, from: &[u8]) {
        let to = self.check(offset, from.len());
        // SAFETY: the target lies in this mapping, writable as long as `self` lives; `from` is
        // borrowed elsewhere and so not part of it, and `&mut self` excludes other safe access.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
    }

    /// All of it as words.
    pub fn words_mut(&mut self) -> &mut [u64] {
        let at = std::ptr::with_exposed_provenance_mut(self.range().start());
        // SAFETY: the mapping is readable and writable, begins at a page, and lives as long as
        // `self`, which is borrowed exclusively: no other safe access is possible meanwhile, and
        // unsafe users of the address vouch for that. Every bit pattern is a u64. A page that is
        // moved out and in again has the same content for every reader.
        unsafe { std::slice::from_raw_parts_mut(at, self.range().len() / size_of::<u64>()) }
    }
}

impl Deref for RegionMemory {
    type Target = RegionBytes;
    fn deref(&self) -> &RegionBytes {
        &self.bytes
    }
}

impl Drop for RegionMemory {
    fn drop(&mut self) {
        let at = std::ptr::with_exposed_provenance_mut(self.reserved.start());
        // SAFETY: this value owns the mapping; unsafe users of its address vouched to stop before.
        let _ = unsafe { munmap(at, self.reserved.len()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_part_is_read_as_it_was_written() {
        let mut memory = RegionMemory::map(8192).expect("address space");
        let content: Vec<u8> = (0..64u8).collect();
        memory.write_at(4096 - 32, &content);
        for from in 0..20 {
            for to in from..=64 {
                let (mut part, mut copied) = (vec![0xff; to - from], vec![0xff; to - from]);
                memory.read_at(4096 - 32 + from, &mut part);
                assert_eq!(part, content[from..to]);
                memory.copy_at(4096 - 32 + from, &mut copied);
                assert_eq!(copied, part);
            }
        }
        memory.write_words(8, &content[..16]);
        let mut part = [0; 18];
        memory.read_at(7, &mut part);
        assert_eq!((part[0], &part[1..17], part[17]), (0, &content[..16], 0));
    }

    #[test]
    fn a_part_allows_what_it_was_set_to_and_new_parts_everything() {
        let mut memory = RegionMemory::map_reserved(2 * OS_PAGE, 4 * OS_PAGE).expect("address space");
        memory.write_at(OS_PAGE, &[7]);
        memory.protect(OS_PAGE, OS_PAGE, Access::Read).expect("protected");
        assert!(memory.allows(0..2, false) && memory.allows(0..1, true) && !memory.allows(0..2, true));
        let (start, byte) = (memory.range().start(), &mut [0]);
        assert_eq!(memory.grow(OS_PAGE).expect("reserved"), PageRange::page(start + 2 * OS_PAGE));
        memory.protect(0, OS_PAGE, Access::None).expect("protected");
        assert!(!memory.allows(0..1, false) && memory.allows(2..3, true));
        memory.read_at(OS_PAGE, byte);
        assert_eq!((byte[0], memory.left()), (7, OS_PAGE));
        memory.write_at(2 * OS_PAGE, &[8]);
        assert!(memory.protect(1, OS_PAGE, Access::Read).is_err(), "no whole page");
    }

    #[test]
    #[should_panic(expected = "are not whole words")]
    fn parts_of_words_are_not_written_by_several() {
        RegionMemory::map(4096).expect("address space").write_words(4, &[0; 8]);
    }
}
