//! Memory of a test's own for a manager to adopt, whole or with parts that a manager has to refuse.
//!
//! This module must never unmap memory that it has given away, nor show it as a reference: a
//! manager moves its pages out.

use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::mapping::{PAGE, map_raw};
use crate::mem::range::PageRange;
use crate::mem::region_bytes::RegionBytes;
use crate::mem::region_memory::ForeignMemory;

/// The address of the next one. Below the kernel's choice of addresses, on every architecture: no
/// other mapping comes to lie in a hole that a test makes.
static NEXT: AtomicUsize = AtomicUsize::new(64 << 30);

/// A mapping of whole OS pages, readable and writable, that stays as long as the process lives.
#[derive(Debug)]
pub struct Foreign {
    start: usize,
    pages: usize,
    holes: Vec<Range<usize>>,
    is_given: Cell<bool>,
}

impl Foreign {
    /// Fresh private memory without huge pages.
    ///
    /// # Errors
    /// The kernel's.
    pub fn private(pages: usize) -> io::Result<Self> {
        Self::map(pages, libc::MAP_PRIVATE)
    }

    /// Fresh shared memory, which no manager takes.
    ///
    /// # Errors
    /// The kernel's.
    pub fn shared(pages: usize) -> io::Result<Self> {
        Self::map(pages, libc::MAP_SHARED)
    }

    fn map(pages: usize, flags: i32) -> io::Result<Self> {
        // The page after it stays free, so that it is a mapping by itself.
        let start = NEXT.fetch_add((pages + 1) * PAGE, Ordering::Relaxed);
        map_at(start, pages * PAGE, flags)?;
        Ok(Self { start, pages, holes: Vec::new(), is_given: Cell::new(false) })
    }

    /// The address of a page.
    #[must_use]
    pub fn address(&self, page: usize) -> usize {
        self.start + page * PAGE
    }

    fn at(&self, pages: &Range<usize>) -> *mut u8 {
        let in_hole = |hole: &Range<usize>| hole.start < pages.end && pages.start < hole.end;
        assert!(
            pages.start < pages.end && pages.end <= self.pages && !self.holes.iter().any(in_hole),
            "{pages:?} of {} but {:?}",
            self.pages,
            self.holes
        );
        std::ptr::with_exposed_provenance_mut(self.address(pages.start))
    }

    /// Writes a page's first byte. It ends the process if that is forbidden.
    ///
    /// # Panics
    /// If there is no such page.
    pub fn write(&self, page: usize, value: u8) {
        // SAFETY: `at` checked that the page is mapped, and there is no reference to it. No other
        // thread has `self`; a page that a manager moved out is back before an access is done.
        unsafe { self.at(&(page..page + 1)).write_volatile(value) };
    }

    /// A page's first byte. It ends the process if reading is forbidden.
    ///
    /// # Panics
    /// As [`write`](Self::write).
    #[must_use]
    pub fn read(&self, page: usize) -> u8 {
        // SAFETY: as for `write`; every bit pattern is a u8.
        unsafe { self.at(&(page..page + 1)).read_volatile() }
    }

    /// mprotect(2).
    ///
    /// # Errors
    /// The kernel's.
    ///
    /// # Panics
    /// If there are no such pages, or some of it was given away.
    pub fn protect(&mut self, pages: Range<usize>, protection: i32) -> io::Result<()> {
        assert!(!self.is_given.get(), "it is as it was when it was given away");
        // SAFETY: `at` checked that the pages are mapped, and there is no reference to them; a
        // forbidden access ends the process.
        done(unsafe { libc::mprotect(self.at(&pages).cast(), pages.len() * PAGE, protection) })
    }

    /// madvise(2).
    ///
    /// # Errors
    /// The kernel's.
    ///
    /// # Panics
    /// As [`protect`](Self::protect).
    pub fn advise(&self, pages: Range<usize>, advice: i32) -> io::Result<()> {
        assert!(!self.is_given.get(), "it is as it was when it was given away");
        // SAFETY: `at` checked that the pages are mapped, and there is no reference to them: a `u8`
        // may be any byte after that.
        done(unsafe { libc::madvise(self.at(&pages).cast(), pages.len() * PAGE, advice) })
    }

    /// Makes a hole that stays one.
    ///
    /// # Errors
    /// The kernel's.
    ///
    /// # Panics
    /// As [`protect`](Self::protect).
    pub fn unmap(&mut self, pages: Range<usize>) -> io::Result<()> {
        assert!(!self.is_given.get(), "it is as it was when it was given away");
        // SAFETY: `at` checked that the pages are mapped, and there is no reference to them; there
        // will be no further access.
        done(unsafe { libc::munmap(self.at(&pages).cast(), pages.len() * PAGE) })?;
        self.holes.push(pages);
        Ok(())
    }

    /// Unmaps these pages, calls `meanwhile`, and maps fresh ones in their place. An engine that
    /// adopts them by itself gets an event, if they are registered.
    ///
    /// # Errors
    /// The kernel's; then they may be a hole.
    ///
    /// # Panics
    /// As [`protect`](Self::protect).
    pub fn replace(&self, pages: Range<usize>, meanwhile: impl FnOnce()) -> io::Result<()> {
        assert!(!self.is_given.get(), "it is as it was when it was given away");
        let (at, bytes) = (self.at(&pages), pages.len() * PAGE);
        // SAFETY: `at` checked that the pages are mapped, and there is no reference to them.
        done(unsafe { libc::munmap(at.cast(), bytes) })?;
        meanwhile();
        map_at(self.address(pages.start), bytes, libc::MAP_PRIVATE)
    }

    /// These pages, for a manager to adopt or to refuse.
    ///
    /// # Panics
    /// If there are no such pages; holes count as pages.
    #[must_use]
    pub fn give(&self, pages: Range<usize>) -> ForeignMemory {
        assert!(pages.start < pages.end && pages.end <= self.pages, "{pages:?} of {}", self.pages);
        self.is_given.set(true);
        let start = std::ptr::with_exposed_provenance_mut(self.address(pages.start));
        // SAFETY: a manager refuses memory that has a hole, is shared, or can't be read and
        // written, so that none of it is ever managed; no other mapping comes to lie in a hole (see
        // `NEXT`). The rest is private anonymous memory without huge pages, neither locked nor
        // executable, and stays so and where it is: memory that was given is not protected,
        // unmapped or moved any more. It is only ever written by this value and by `bytes`, so that
        // no stack, heap or control block lies in it. A caller that forks has to vouch for the
        // child.
        let memory = unsafe { ForeignMemory::new(start, pages.len() * PAGE) };
        memory.expect("whole pages")
    }
}

impl Foreign {
    /// As [`give`](Self::give), for a manager that may send them and receive into them.
    ///
    /// # Panics
    /// As there, and if one of them is a hole.
    #[must_use]
    pub fn give_movable(&self, pages: Range<usize>) -> ForeignMemory {
        self.at(&pages);
        // SAFETY: all of it is mapped, and stays so and readable and writable from now on. There is
        // no reference to it: `bytes`, `read` and `write` make none.
        unsafe { self.give(pages).movable() }
    }

    /// Puts fresh pages in the place of these, whether they were given away or not: the kernel
    /// unmaps the old ones in the same step, and tells of that.
    ///
    /// # Errors
    /// The kernel's.
    ///
    /// # Panics
    /// If there are no such pages.
    pub fn renew(&self, pages: Range<usize>) -> io::Result<()> {
        let (at, bytes) = (self.at(&pages).addr(), pages.len() * PAGE);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: it replaces pages of this value's own, to which there is no reference; they are
        // private anonymous memory as before, and there is no moment without them. Others see them
        // become zero, as by a discard.
        unsafe { map_raw(at, bytes, protection, flags, -1) }.map(drop)
    }

    /// The bytes of these pages, for any number of threads, whether they are managed or not.
    ///
    /// # Panics
    /// If there are no such pages.
    #[must_use]
    pub fn bytes(&self, pages: Range<usize>) -> RegionBytes {
        let (at, len) = (self.at(&pages).addr(), pages.len() * PAGE);
        self.is_given.set(true);
        // SAFETY: it is private anonymous memory that stays mapped, for it counts as given, and
        // there is no reference to it. A forbidden access ends the process.
        unsafe { RegionBytes::new(PageRange::at(at, len)) }
    }
}

/// Fresh memory at a place where nothing is, without huge pages.
fn map_at(start: usize, bytes: usize, flags: i32) -> io::Result<()> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = flags | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: it replaces nothing.
    let mapped = unsafe { map_raw(start, bytes, protection, flags, -1) }?;
    assert_eq!(mapped, start, "where it was asked for");
    let at = std::ptr::with_exposed_provenance_mut(mapped);
    // SAFETY: the mapping just made; the advice changes no content. A kernel without huge pages has
    // none to forbid.
    let _ = unsafe { libc::madvise(at, bytes, libc::MADV_NOHUGEPAGE) };
    Ok(())
}

fn done(result: i32) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hole_stays_one_and_the_rest_is_as_it_was() {
        let mut memory = Foreign::private(64).expect("memory");
        (0..64).for_each(|page| memory.write(page, page as u8));
        memory.unmap(10..20).expect("unmapped");
        memory.protect(30..31, libc::PROT_READ).expect("protected");
        // Mappings as long as the hole go elsewhere.
        let others: Vec<_> =
            (0..64).map(|_| super::super::mapping::Mapping::new(10).expect("memory")).collect();
        let hole = memory.address(10)..memory.address(20);
        assert!(others.iter().all(|other| !hole.contains(&other.start())));
        assert!((0..10).chain(20..64).all(|page| memory.read(page) == page as u8));
        let given = memory.give(20..64);
        assert_eq!((given.range().start(), given.range().len()), (memory.address(20), 44 * PAGE));
    }

    #[test]
    #[should_panic(expected = "it is as it was when it was given away")]
    fn memory_that_was_given_away_is_not_unmapped() {
        let mut memory = Foreign::private(2).expect("memory");
        let _ = memory.give(0..1);
        let _ = memory.unmap(1..2);
    }
}
