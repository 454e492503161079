//! A range of addresses in which a program maps, unmaps, moves and protects OS pages as it likes,
//! and touches them in any state.
//!
//! Unmapped pages are held by a mapping that allows nothing, so that no other mapping ever comes to
//! lie in the range. No call here may hand out a reference.

use std::io;
use std::ops::Range;

use super::access::Access;
use super::mapping::PAGE;
use crate::mem::region_memory::ForeignMemory;

/// The allowed access to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// Nothing.
    None,
    /// Reading.
    Read,
    /// Reading and writing.
    Write,
}

/// The kernel's freedom with pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Drop them, as long as they are not written.
    Free,
    /// Take them before others.
    Cold,
    /// Take them now.
    PageOut,
    /// Bring them in.
    WillNeed,
}

/// The range. Unmapped on drop, unless another value owns it.
#[derive(Debug)]
pub struct Area {
    start: usize,
    pages: usize,
    is_ours: bool,
}

impl Area {
    /// Private anonymous memory, readable and writable, without huge pages, `skip` OS pages above a
    /// multiple of 2 MiB.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new(pages: usize, skip: usize) -> io::Result<Self> {
        const ALIGN: usize = 2 << 20;
        let len = (pages + skip) * PAGE + ALIGN;
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing.
        let raw = unsafe { map(0, len, libc::PROT_NONE, 0)? };
        let start = raw.next_multiple_of(ALIGN) + skip * PAGE;
        let area = Self { start, pages, is_ours: true };
        // SAFETY: both rests are parts of the mapping just made, which are not in use.
        unsafe {
            let end = start + pages * PAGE;
            for (rest, rest_end) in [(raw, start), (end, raw + len)] {
                if rest < rest_end {
                    done(libc::munmap(pointer(rest), rest_end - rest))?;
                }
            }
        }
        area.protect(0..pages, Rights::Write)?;
        // SAFETY: the advice concerns the area's own pages and changes no content.
        done(unsafe { libc::madvise(pointer(start), pages * PAGE, libc::MADV_NOHUGEPAGE) })?;
        Ok(area)
    }

    /// The memory of a region, which is used through this value alone, and unmapped by its owner:
    /// it has to live longer.
    ///
    /// # Panics
    /// If these are not OS pages of one private anonymous mapping without a name that can be read
    /// and written: no stack, heap, file or program is.
    #[must_use]
    pub fn of_region(start: *mut u8, pages: usize) -> Self {
        let start = start.expose_provenance();
        let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
        let is_around = |range: Range<usize>| range.start <= start && start + pages * PAGE <= range.end;
        let is_of_a_region = |line: &str| {
            range_of(line).is_some_and(is_around)
                && line.split_whitespace().skip(1).eq(["rw-p", "00000000", "00:00", "0"])
        };
        assert!(maps.lines().any(is_of_a_region), "{start:#x} is no region's memory");
        Self { start, pages, is_ours: false }
    }

    /// All of it, to be managed.
    #[must_use]
    pub fn foreign(&self) -> ForeignMemory {
        // SAFETY: it is private anonymous memory, used through this value alone, and none of the
        // manager's own lies in it. Later changes are made by calls that hold no lock of the
        // manager, as any program makes them.
        unsafe { ForeignMemory::new(pointer(self.start).cast(), self.pages * PAGE) }.expect("whole pages")
    }

    fn at(&self, pages: &Range<usize>) -> (usize, usize) {
        assert!(!pages.is_empty() && pages.end <= self.pages, "{pages:?} of {}", self.pages);
        (self.start + pages.start * PAGE, pages.len() * PAGE)
    }

    /// mprotect(2).
    ///
    /// # Errors
    /// The kernel's.
    pub fn protect(&self, pages: Range<usize>, rights: Rights) -> io::Result<()> {
        let (at, len) = self.at(&pages);
        let protection = match rights {
            Rights::None => libc::PROT_NONE,
            Rights::Read => libc::PROT_READ,
            Rights::Write => libc::PROT_READ | libc::PROT_WRITE,
        };
        // SAFETY: the pages are the area's own, and there is no reference to them.
        done(unsafe { libc::mprotect(pointer(at), len, protection) })
    }

    /// madvise(2) with `MADV_DONTNEED`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn discard(&self, pages: Range<usize>) -> io::Result<()> {
        let (at, len) = self.at(&pages);
        // SAFETY: as for `protect`.
        done(unsafe { libc::madvise(pointer(at), len, libc::MADV_DONTNEED) })
    }

    /// madvise(2) with one of those pieces of advice that change no content, or say that none is
    /// needed.
    ///
    /// # Errors
    /// The kernel's.
    pub fn advise(&self, pages: Range<usize>, advice: Advice) -> io::Result<()> {
        let (at, len) = self.at(&pages);
        let advice = match advice {
            Advice::Free => libc::MADV_FREE,
            Advice::Cold => libc::MADV_COLD,
            Advice::PageOut => libc::MADV_PAGEOUT,
            Advice::WillNeed => libc::MADV_WILLNEED,
        };
        // SAFETY: as for `protect`.
        done(unsafe { libc::madvise(pointer(at), len, advice) })
    }

    /// mlock(2), or munlock(2).
    ///
    /// # Errors
    /// The kernel's.
    pub fn lock(&self, pages: Range<usize>, locked: bool) -> io::Result<()> {
        let (at, len) = self.at(&pages);
        let call = if locked { libc::mlock } else { libc::munlock };
        // SAFETY: the pages are the area's own; locking changes no content.
        done(unsafe { call(pointer(at), len) })
    }

    /// munmap(2); afterwards nothing is allowed there.
    ///
    /// # Errors
    /// The kernel's.
    pub fn unmap(&self, pages: Range<usize>) -> io::Result<()> {
        let (at, len) = self.at(&pages);
        // SAFETY: as for `protect`.
        done(unsafe { libc::munmap(pointer(at), len) })?;
        self.hold(at, len)
    }

    /// Fresh memory in place of all earlier mappings.
    ///
    /// # Errors
    /// The kernel's.
    pub fn map(&self, pages: Range<usize>) -> io::Result<()> {
        let (at, len) = self.at(&pages);
        // SAFETY: these pages are the area's own to replace.
        unsafe { map(at, len, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_FIXED) }.map(drop)
    }

    /// mremap(2) of each of these OS pages by itself onto one from `to` on, which is replaced.
    ///
    /// # Errors
    /// The kernel's.
    ///
    /// # Panics
    /// If source and target overlap, or the target lies outside.
    pub fn move_pages(&self, pages: Range<usize>, to: usize) -> io::Result<()> {
        assert!(to + pages.len() <= self.pages, "the target is within the area");
        assert!(to + pages.len() <= pages.start || pages.end <= to, "source and target overlap");
        for (i, page) in pages.enumerate() {
            let (from, _) = self.at(&(page..page + 1));
            let (target, _) = self.at(&(to + i..to + i + 1));
            let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            // SAFETY: both pages are the area's own, and there is no reference to them.
            let moved = unsafe { libc::mremap(pointer(from), PAGE, PAGE, flags, pointer(target)) };
            if moved == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            self.hold(from, PAGE)?;
        }
        Ok(())
    }

    /// mremap(2) of these OS pages, all at once, to `len` OS pages from `to` on, which are
    /// replaced: pages beyond the old ones are fresh.
    ///
    /// # Errors
    /// The kernel's.
    ///
    /// # Panics
    /// If source and target overlap, or the target lies outside.
    pub fn remap(&self, pages: Range<usize>, to: usize, len: usize) -> io::Result<()> {
        let (from, old_len) = self.at(&pages);
        let (target, new_len) = self.at(&(to..to + len));
        assert!(to + len <= pages.start || pages.end <= to, "source and target overlap");
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: both ranges are the area's own, and there is no reference to them.
        let moved = unsafe { libc::mremap(pointer(from), old_len, new_len, flags, pointer(target)) };
        if moved == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        self.hold(from, old_len)
    }

    /// mremap(2) of these OS pages onto those of another area from `to` on, which are replaced.
    ///
    /// # Errors
    /// The kernel's.
    pub fn remap_into(&self, pages: Range<usize>, other: &Self, to: usize) -> io::Result<()> {
        let (from, len) = self.at(&pages);
        let (target, _) = other.at(&(to..to + pages.len()));
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: both ranges are the areas' own, and there is no reference to them.
        let moved = unsafe { libc::mremap(pointer(from), len, len, flags, pointer(target)) };
        if moved == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        self.hold(from, len)
    }

    /// mremap(2) of these OS pages to the first `len` of them, where they are; the rest is
    /// unmapped.
    ///
    /// # Errors
    /// The kernel's.
    ///
    /// # Panics
    /// If they are not more than `len`.
    pub fn shrink(&self, pages: Range<usize>, len: usize) -> io::Result<()> {
        let (at, old_len) = self.at(&pages);
        assert!(len < pages.len(), "it shrinks");
        // SAFETY: as for `remap`; without a flag nothing moves.
        let shrunk = unsafe { libc::mremap(pointer(at), old_len, len * PAGE, 0) };
        if shrunk == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        self.hold(at + len * PAGE, old_len - len * PAGE)
    }

    /// mremap(2) of these OS pages to `len`, where they are: the pages behind them are unmapped
    /// before, and they grow into the gap with fresh pages.
    ///
    /// # Errors
    /// The kernel's.
    ///
    /// # Panics
    /// If they are not less than `len`.
    pub fn grow(&self, pages: Range<usize>, len: usize) -> io::Result<()> {
        let (at, old_len) = self.at(&pages);
        assert!(pages.len() < len, "it grows");
        let (rest, rest_len) = self.at(&(pages.end..pages.start + len));
        // SAFETY: as for `unmap`; without a flag nothing moves, and the pages that it grows into
        // are the area's own and were just unmapped.
        let grown = unsafe {
            done(libc::munmap(pointer(rest), rest_len))?;
            libc::mremap(pointer(at), old_len, len * PAGE, 0)
        };
        if grown == libc::MAP_FAILED {
            let error = io::Error::last_os_error();
            self.hold(rest, rest_len)?;
            return Err(error);
        }
        Ok(())
    }

    /// Whether these OS pages are of one mapping to the kernel: several it moves by rules of their
    /// own.
    ///
    /// # Panics
    /// If the kernel does not say.
    #[must_use]
    pub fn is_one(&self, pages: Range<usize>) -> bool {
        let (at, len) = self.at(&pages);
        let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
        maps.lines().filter_map(range_of).any(|range| range.start <= at && at + len <= range.end)
    }

    /// Whether these OS pages are of one mapping with these rights.
    ///
    /// # Panics
    /// If the kernel does not say.
    #[must_use]
    pub fn allows(&self, pages: Range<usize>, rights: Rights) -> bool {
        let (at, len) = self.at(&pages);
        let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
        let told = match rights {
            Rights::None => " ---p",
            Rights::Read => " r--p",
            Rights::Write => " rw-p",
        };
        maps.lines()
            .filter(|line| line.contains(told))
            .filter_map(range_of)
            .any(|range| range.start <= at && at + len <= range.end)
    }

    /// Keeps other mappings out of unmapped pages.
    fn hold(&self, at: usize, len: usize) -> io::Result<()> {
        // SAFETY: it fails where another mapping was quicker.
        unsafe { map(at, len, libc::PROT_NONE, libc::MAP_FIXED_NOREPLACE) }.map(drop)
    }

    /// Reads a page's word.
    ///
    /// # Errors
    /// The signal that came.
    pub fn read(&self, access: &Access, page: usize, word: usize) -> Result<u64, i32> {
        let (at, _) = self.at(&(page..page + 1));
        // SAFETY: the page is the area's own, whose only writer is borrowed; the word lies in it.
        unsafe { access.read(at + word % (PAGE / 8) * 8) }
    }

    /// Writes a page's word.
    ///
    /// # Errors
    /// The signal that came.
    pub fn write(&mut self, access: &Access, page: usize, word: usize, value: u64) -> Result<(), i32> {
        let (at, _) = self.at(&(page..page + 1));
        // SAFETY: the page is the area's own, borrowed exclusively; the word lies in it.
        unsafe { access.write(at + word % (PAGE / 8) * 8, value) }
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        if !self.is_ours {
            return;
        }
        // SAFETY: all of the range is this value's, and there is no reference to it.
        done(unsafe { libc::munmap(pointer(self.start), self.pages * PAGE) }).expect("munmap");
    }
}

/// The addresses of a line of the maps.
fn range_of(line: &str) -> Option<Range<usize>> {
    let (from, to) = line.split_whitespace().next()?.split_once('-')?;
    let number = |hex| usize::from_str_radix(hex, 16).ok();
    Some(number(from)?..number(to)?)
}

fn pointer(at: usize) -> *mut libc::c_void {
    std::ptr::with_exposed_provenance_mut(at)
}

fn done(result: i32) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// # Safety
/// With `MAP_FIXED`, the mapping at `at` is the caller's to replace.
unsafe fn map(at: usize, len: usize, protection: i32, flags: i32) -> io::Result<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | flags;
    // SAFETY: without MAP_FIXED a new mapping aliases nothing; with it the caller vouches.
    let mapped = unsafe { libc::mmap(pointer(at), len, protection, flags, -1, 0) };
    if mapped == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(mapped.expose_provenance())
}
