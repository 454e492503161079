//! A file as mmap(2) shows it, through the kernel's page cache: the baseline for file regions.
//!
//! It is only read, and by copies. The file's cached pages are dropped when it is mapped, so that
//! all of it is read from the disk, and is charged to the memory group of its reader. This module
//! must never write to a file.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Advice, fadvise};
use rustix::mm::{self, MapFlags, ProtFlags, madvise, mmap, munmap};

use crate::mem::range::PageRange;

/// Drops the pages of a file that the kernel's page cache has, so that they are read from the disk
/// again. Blocks until writes to it are there.
///
/// # Errors
/// The kernel's.
pub fn drop_cached(file: &File) -> io::Result<()> {
    // Dirty pages can't be dropped.
    file.sync_all()?;
    Ok(fadvise(file, 0, None, Advice::DontNeed)?)
}

/// A mapping of a file; unmapped on drop.
#[derive(Debug)]
pub struct FileMapping {
    range: PageRange,
    /// Written and populated pages are copies of its own.
    is_private: bool,
}

impl FileMapping {
    /// Maps the first `len` bytes of `file`, a multiple of the OS page. Blocks until others' writes
    /// to it are on the disk.
    ///
    /// # Errors
    /// The kernel's.
    ///
    /// # Panics
    /// If `len` is 0 or no whole number of OS pages.
    pub fn cold(file: &File, len: usize) -> io::Result<Self> {
        drop_cached(file)?;
        Self::map(file, len)
    }

    /// The same with the file's pages in the cache as they are.
    ///
    /// # Errors
    /// The kernel's.
    ///
    /// # Panics
    /// As [`cold`](Self::cold).
    pub fn map(file: &File, len: usize) -> io::Result<Self> {
        Self::map_as(file, len, false)
    }

    /// The same, but private and writable, as a VMM maps the memory of a snapshot.
    ///
    /// # Errors
    /// The kernel's.
    ///
    /// # Panics
    /// As [`cold`](Self::cold).
    pub fn map_private(file: &File, len: usize) -> io::Result<Self> {
        Self::map_as(file, len, true)
    }

    fn map_as(file: &File, len: usize, is_private: bool) -> io::Result<Self> {
        let (access, kind) = if is_private {
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        } else {
            (ProtFlags::READ, MapFlags::SHARED)
        };
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing. A private
        // one never changes the file.
        let at = unsafe { mmap(std::ptr::null_mut(), len, access, kind, file, 0)? };
        Ok(Self { range: PageRange::at(at.expose_provenance(), len), is_private })
    }

    /// Tells the kernel that access is sequential and that pages behind the reader are not needed
    /// any more.
    ///
    /// # Errors
    /// The kernel's.
    pub fn expect_sequential(&self) -> io::Result<()> {
        let at = std::ptr::with_exposed_provenance_mut(self.range.start());
        // SAFETY: the range is this mapping's, and the advice changes no content.
        unsafe { madvise(at, self.range.len(), mm::Advice::Sequential) }.map_err(io::Error::from)
    }

    /// Has the kernel read and map a part of it now, whole OS pages, and copy it where the mapping
    /// is private. Blocks for the disk.
    ///
    /// # Errors
    /// The kernel's.
    ///
    /// # Panics
    /// If it reaches beyond the end.
    pub fn populate(&self, offset: usize, len: usize) -> io::Result<()> {
        assert!(offset + len <= self.range.len(), "{len} bytes at {offset} lie beyond the mapping's end");
        let at = std::ptr::with_exposed_provenance_mut(self.range.start() + offset);
        let advice =
            if self.is_private { mm::Advice::LinuxPopulateWrite } else { mm::Advice::LinuxPopulateRead };
        // SAFETY: the range is a part of this mapping, and the advice changes no content.
        unsafe { madvise(at, len, advice) }.map_err(io::Error::from)
    }

    /// Copies whole words from the mapping; a word that others write meanwhile has its value before
    /// or after. Of a file that has become shorter it raises SIGBUS, as any mapping does.
    ///
    /// # Panics
    /// If it reaches beyond the end, or `offset` or the length is no multiple of 8 bytes.
    pub fn read_at(&self, offset: usize, into: &mut [u8]) {
        let len = into.len();
        let fits = offset.checked_add(len).is_some_and(|end| end <= self.range.len());
        assert!(fits, "{len} bytes at {offset} lie beyond the mapping's end");
        let (words, rest) = into.as_chunks_mut::<8>();
        assert!(offset.is_multiple_of(8) && rest.is_empty(), "{len} bytes at {offset} are not whole words");
        let from = std::ptr::with_exposed_provenance::<AtomicU64>(self.range.start() + offset);
        // SAFETY: all lies in this mapping, which is readable as long as `self` lives, and aligned,
        // for it begins at a page. A writer of the file writes outside of this process's memory
        // model, and whole words are read in one step.
        let from = unsafe { std::slice::from_raw_parts(from, words.len()) };
        for (into, from) in words.iter_mut().zip(from) {
            *into = from.load(Ordering::Relaxed).to_ne_bytes();
        }
    }
}

impl Drop for FileMapping {
    fn drop(&mut self) {
        let at = std::ptr::with_exposed_provenance_mut(self.range.start());
        // SAFETY: the mapping is this one's own, and no reference into it outlives a call.
        let unmapped = unsafe { munmap(at, self.range.len()) };
        debug_assert!(unmapped.is_ok(), "a mapping of our own can be unmapped");
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_mapping_shows_the_file_and_ends_with_it() {
        let mut file = tempfile::tempfile().expect("a file");
        let content: Vec<u8> = (0..8192u32).flat_map(|at| (at * 7).to_ne_bytes()).collect();
        file.write_all(&content).expect("room");
        let mapping = FileMapping::cold(&file, content.len()).expect("a mapping");
        mapping.expect_sequential().expect("advice");
        let mut found = vec![0; 4096 + 16];
        mapping.read_at(8192 - 8, &mut found);
        assert_eq!(found[..], content[8192 - 8..][..4096 + 16]);
        let beyond = || mapping.read_at(content.len() - 8, &mut [0; 16]);
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(beyond)).is_err());
    }
}
