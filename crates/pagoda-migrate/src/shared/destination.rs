//! Shared memory into which an image arrives.
//!
//! It is emptied before anything arrives, and again if that comes to nothing. Content is written to
//! the file, in pages that the kernel gets without clearing them first, and no process faults for
//! it. A page that is owed at a switch has to be a hole by then: it is made one, and the file is
//! asked. A page beside it may have come in the same large folio, and keep it from becoming one.
//! This module must never make the file longer: a page that was cut off would read as zero.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use pagoda_core::size::Bytes;
use pagoda_linux::io::memory_file::check_writable;
use pagoda_linux::io::sparse_file;

use super::arrival::Owing;
use super::{PAGE, SharedMemory};
use crate::receive::destination::{Destination, LateDestination};

/// Shared memory that is received into.
pub(super) struct SharedDestination<'a> {
    memory: &'a mut SharedMemory,
    /// The length of its file before anything arrived.
    file_len: u64,
    /// A sender has come, and not all is done.
    is_under_way: bool,
    /// The pages that may be owed at a switch.
    owing: Option<&'a Owing>,
}

impl<'a> SharedDestination<'a> {
    pub(super) const fn new(memory: &'a mut SharedMemory, owing: Option<&'a Owing>) -> Self {
        Self { memory, file_len: 0, is_under_way: false, owing }
    }

    /// All has arrived, or all but the owed pages.
    pub(super) fn show(mut self) {
        self.is_under_way = false;
    }

    /// Checks that the owed pages are holes, once nothing but owed pages will arrive.
    pub(super) fn check_owed(&self) -> io::Result<()> {
        self.check_len()?;
        for run in self.owing.into_iter().flat_map(Owing::runs) {
            let run = self.at(run.start * PAGE)..self.at(run.end * PAGE);
            if let Some(data) = sparse_file::data_in(&self.memory.file, run)? {
                let why = format!(
                    "the shared memory has pages at {} of its file that could not be given back: another process \
                     uses it, or they are parts of huge pages (mount tmpfs with huge=never); send without post-copy",
                    data.start
                );
                return Err(io::Error::other(why));
            }
        }
        Ok(())
    }

    fn at(&self, offset: u64) -> u64 {
        self.memory.offset + offset
    }

    fn empty(&self) -> io::Result<()> {
        sparse_file::make_hole(&self.memory.file, self.at(0)..self.at(self.memory.len.get()))
    }

    /// Whether the file is as long as it was. A write would make a shorter one longer, up to the
    /// end of the write.
    fn check_len(&self) -> io::Result<()> {
        if self.memory.check_len()? == self.file_len {
            return Ok(());
        }
        Err(io::Error::other("the length of the shared memory was changed while it was received into"))
    }

    /// Lets `change` change the file, of which nothing may be cut off.
    fn change(&self, change: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
        self.check_len()?;
        change(&self.memory.file)?;
        self.check_len()
    }
}

impl Destination for SharedDestination<'_> {
    fn prepare(&mut self, size: Bytes) -> io::Result<()> {
        let len = self.memory.len;
        if size.get().checked_next_multiple_of(PAGE) != Some(len.get()) {
            let why = format!(
                "{size} are sent, and the shared memory to receive into has {len}; give as much as is sent"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        // It may have been sealed since.
        check_writable(&self.memory.file)?;
        self.file_len = self.memory.check_len()?;
        self.is_under_way = true;
        self.empty()
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.change(|file| file.write_all_at(bytes, self.at(offset)))
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.memory.file.read_exact_at(into, self.at(offset))
    }

    fn clear(&self, range: Range<u64>) -> io::Result<()> {
        let range = self.at(range.start)..self.at(range.end);
        self.change(|file| sparse_file::write_zeroes(file, range))
    }

    fn discard(&self, range: Range<u64>) -> io::Result<()> {
        sparse_file::make_hole(&self.memory.file, self.at(range.start)..self.at(range.end))
    }

    fn finish(&mut self) -> io::Result<()> {
        self.check_len()
    }
}

impl LateDestination for SharedDestination<'_> {
    fn owe(&self, range: Range<u64>) -> io::Result<()> {
        let owing = self.owing.ok_or_else(|| io::Error::other("nothing may be owed of this memory"))?;
        self.discard(range.clone())?;
        owing.add(range.start / PAGE..range.end / PAGE);
        Ok(())
    }
}

impl Drop for SharedDestination<'_> {
    fn drop(&mut self) {
        if self.is_under_way {
            // It worked before anything arrived; a seal that was set since keeps the content.
            let _ = self.empty();
        }
    }
}

#[cfg(test)]
#[path = "destination_test.rs"]
mod tests;
