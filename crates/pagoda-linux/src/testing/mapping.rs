//! Mappings of a program that is managed without knowing it: mmap and its relatives, each range
//! with one owner.
//!
//! Nothing here may know of the engine, except that it asks the kernel for present pages; and all
//! of it has to go through the C library, as an ordinary program does.

use std::io;
use std::ops::Range;

/// The OS page.
pub const PAGE: usize = 4096;

/// The words of an OS page.
pub const WORDS: usize = PAGE / size_of::<u64>();

/// Private anonymous memory that is this value's alone; whole OS pages. It is unmapped on drop.
#[derive(Debug)]
pub struct Mapping {
    start: usize,
    pages: usize,
}

impl Mapping {
    /// Fresh memory at an address of the kernel's choice.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new(pages: usize) -> io::Result<Self> {
        Self::with_flags(pages, 0)
    }
    /// Fresh memory that is populated at once.
    ///
    /// # Errors
    /// The kernel's.
    pub fn populated(pages: usize) -> io::Result<Self> {
        Self::with_flags(pages, libc::MAP_POPULATE)
    }
    fn with_flags(pages: usize, flags: i32) -> io::Result<Self> {
        // SAFETY: nothing is replaced: no flag here says where it has to be.
        let at = unsafe { map(0, pages, flags) }?;
        Ok(Self { start: at, pages })
    }
    /// Its address.
    pub fn start(&self) -> usize {
        self.start
    }
    /// Its length in OS pages.
    pub fn pages(&self) -> usize {
        self.pages
    }
    fn at(&self, pages: &Range<usize>) -> *mut libc::c_void {
        assert!(pages.start <= pages.end && pages.end <= self.pages, "{pages:?} of {}", self.pages);
        std::ptr::with_exposed_provenance_mut(self.start + pages.start * PAGE)
    }
    /// The words of these pages.
    ///
    /// # Panics
    /// If it has no such pages.
    pub fn words(&self, pages: Range<usize>) -> &[u64] {
        // SAFETY: `at` checked that the range lies in this mapping, whose only owner is borrowed;
        // every bit pattern is a u64. A page that the engine moved out is back before a load sees
        // it.
        unsafe { std::slice::from_raw_parts(self.at(&pages).cast(), pages.len() * WORDS) }
    }
    /// The words of these pages, to be written.
    ///
    /// # Panics
    /// If it has no such pages.
    pub fn words_mut(&mut self, pages: Range<usize>) -> &mut [u64] {
        // SAFETY: as for `words`, and the owner is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.at(&pages).cast(), pages.len() * WORDS) }
    }
    /// The words of one page.
    ///
    /// # Panics
    /// If it has no such pages.
    pub fn page(&self, page: usize) -> &[u64] {
        self.words(page..page + 1)
    }
    /// The words of one page, to be written.
    ///
    /// # Panics
    /// If it has no such pages.
    pub fn page_mut(&mut self, page: usize) -> &mut [u64] {
        self.words_mut(page..page + 1)
    }
    /// The bytes of these pages.
    ///
    /// # Panics
    /// If it has no such pages.
    pub fn bytes(&self, pages: Range<usize>) -> &[u8] {
        let words = self.words(pages);
        // SAFETY: the same memory at a lesser alignment; every byte is a u8.
        unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), size_of_val(words)) }
    }
    /// The bytes of these pages, to be written.
    ///
    /// # Panics
    /// If it has no such pages.
    pub fn bytes_mut(&mut self, pages: Range<usize>) -> &mut [u8] {
        bytes_of(self.words_mut(pages))
    }
    /// Takes the pages from `page` on away as a mapping of its own.
    ///
    /// # Panics
    /// If it has no such pages.
    pub fn split_off(&mut self, page: usize) -> Self {
        assert!(page <= self.pages);
        let above = Self { start: self.start + page * PAGE, pages: self.pages - page };
        self.pages = page;
        above
    }
    /// Grows, shrinks or moves it wherever the kernel wants. On failure it is given back as it was.
    ///
    /// # Errors
    /// The kernel's.
    pub fn remap(self, pages: usize) -> Result<Self, (Self, io::Error)> {
        // SAFETY: these flags use no target: the kernel finds a place where nothing is.
        unsafe { self.remap_raw(pages, libc::MREMAP_MAYMOVE, 0) }
    }
    /// Moves it onto `target`, which is replaced. After a failure the layout is unknown: parts of
    /// both may have other owners already, so both stay mapped as they are, without an owner.
    ///
    /// # Errors
    /// The kernel's.
    pub fn remap_onto(self, target: Self) -> io::Result<Self> {
        let (at, pages) = (target.start, target.pages);
        std::mem::forget(target);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: the target was owned, nothing borrows it, and it was forgotten: its pages are
        // ours to replace.
        unsafe { self.remap_raw(pages, flags, at) }.map_err(|(left, error)| {
            std::mem::forget(left);
            error
        })
    }
    /// Whether it is one mapping, or part of one, to the kernel: it moves no other in one piece.
    ///
    /// # Panics
    /// If the kernel does not say.
    pub fn is_one(&self) -> bool {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
        let (start, end) = (self.start, self.start + self.pages * PAGE);
        let covers = |line: &str| {
            let (from, rest) = line.split_once('-')?;
            let (to, _) = rest.split_once(' ')?;
            let number = |hex| usize::from_str_radix(hex, 16).ok();
            Some(number(from)? <= start && end <= number(to)?)
        };
        maps.lines().any(|line| covers(line) == Some(true))
    }
    /// # Safety
    /// The mapping at `to`, if the flags say that it is used, is the caller's to replace.
    unsafe fn remap_raw(self, pages: usize, flags: i32, to: usize) -> Result<Self, (Self, io::Error)> {
        let from = self.at(&(0..self.pages));
        let to: *mut libc::c_void = std::ptr::with_exposed_provenance_mut(to);
        // SAFETY: the source is owned by `self`, which is not borrowed, and which is forgotten if
        // it was moved; the caller vouches for the target.
        let moved = unsafe { libc::mremap(from, self.pages * PAGE, pages * PAGE, flags, to) };
        if moved == libc::MAP_FAILED {
            let error = io::Error::last_os_error();
            return Err((self, error));
        }
        std::mem::forget(self);
        Ok(Self { start: moved.expose_provenance(), pages })
    }
    /// Replaces these pages with fresh ones, by a mapping on top.
    ///
    /// # Errors
    /// The kernel's.
    pub fn replace(&mut self, pages: Range<usize>) -> io::Result<()> {
        let at = self.at(&pages).addr();
        // SAFETY: the range lies in this mapping, borrowed exclusively; every bit pattern is a u64.
        unsafe { map(at, pages.len(), libc::MAP_FIXED) }.map(drop)
    }
    /// madvise(2). The caller must know its effect on content.
    ///
    /// # Errors
    /// The kernel's.
    pub fn advise(&mut self, pages: Range<usize>, advice: i32) -> io::Result<()> {
        // SAFETY: the range lies in this mapping, borrowed exclusively; advice leaves it mapped.
        done(unsafe { libc::madvise(self.at(&pages), pages.len() * PAGE, advice) })
    }
    /// mprotect(2). The caller must not make an access that it forbade.
    ///
    /// # Errors
    /// The kernel's.
    pub fn protect(&mut self, pages: Range<usize>, protection: i32) -> io::Result<()> {
        // SAFETY: the range lies in this mapping, borrowed exclusively; a forbidden access ends the
        // program.
        done(unsafe { libc::mprotect(self.at(&pages), pages.len() * PAGE, protection) })
    }
    /// Which of these pages are present, one byte each.
    ///
    /// # Errors
    /// The kernel's.
    pub fn present(&self, pages: Range<usize>) -> io::Result<Vec<u8>> {
        let mut present = vec![0u8; pages.len()];
        // SAFETY: the kernel writes one byte for each page of the range to `present`, which is as
        // long.
        done(unsafe { libc::mincore(self.at(&pages), pages.len() * PAGE, present.as_mut_ptr()) })?;
        Ok(present)
    }
    /// Locks all of it into memory.
    ///
    /// # Errors
    /// The kernel's.
    pub fn lock(&self) -> io::Result<()> {
        // SAFETY: the range is this mapping's; locking changes no content.
        done(unsafe { libc::mlock(self.at(&(0..self.pages)), self.pages * PAGE) })
    }
    /// A page that was written and is not present: only the engine can have taken it.
    ///
    /// # Panics
    /// If the kernel does not say.
    pub fn is_any_out(&self) -> bool {
        self.present(0..self.pages).expect("mincore of a mapping").iter().any(|present| present & 1 == 0)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.pages > 0 {
            // SAFETY: this value owns the range, and nothing borrows it.
            done(unsafe { libc::munmap(self.at(&(0..self.pages)), self.pages * PAGE) }).expect("munmap");
        }
    }
}

/// Words as bytes, to be written.
pub fn bytes_of(words: &mut [u64]) -> &mut [u8] {
    // SAFETY: the same memory at a lesser alignment, borrowed exclusively; every byte is a u8, and
    // any eight are a u64.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), size_of_val(words)) }
}

fn done(result: i32) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// # Safety
/// With `MAP_FIXED`, the mapping at `at` is the caller's to replace.
unsafe fn map(at: usize, pages: usize, flags: i32) -> io::Result<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
    // SAFETY: the caller vouches.
    unsafe { map_raw(at, pages * PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1) }
}

/// mmap(2), from the beginning of a file if there is one.
///
/// # Safety
/// With `MAP_FIXED`, the mapping at `at` is the caller's to replace.
pub(super) unsafe fn map_raw(
    at: usize,
    bytes: usize,
    protection: i32,
    flags: i32,
    file: i32,
) -> io::Result<usize> {
    let hint = std::ptr::with_exposed_provenance_mut(at);
    // SAFETY: without MAP_FIXED a new mapping aliases nothing; with it the caller vouches.
    let mapped = unsafe { libc::mmap(hint, bytes, protection, flags, file, 0) };
    if mapped == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(mapped.expose_provenance())
}
