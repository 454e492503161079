//! The sources of images.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use pagoda_core::size::Bytes;
use pagoda_linux::io::sparse_file;
use rustix::fs::OFlags;

/// An image that is not written while it is sent. Channels ask it at the same time.
pub trait Source: Sync {
    /// Its size.
    fn size(&self) -> Bytes;

    /// The first range within `range` that may hold something else than zeroes; None if there is
    /// none. Bytes before it are never read.
    ///
    /// # Errors
    /// If it can't be known.
    fn data_in(&self, range: Range<u64>) -> io::Result<Option<Range<u64>>>;

    /// Reads `into.len()` bytes at `offset`, all of them within its size. May block on a disk.
    ///
    /// # Errors
    /// If they can't be read.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()>;

    /// Whether it is still as it was at the start; called when all has been read.
    ///
    /// # Errors
    /// If it can't be known.
    fn is_unchanged(&self) -> io::Result<bool>;
}

/// A memory image or any other file, with holes or without. Its holes are never read, and it is
/// only ever read.
#[derive(Debug)]
pub struct ImageSource {
    file: File,
    opened: Metadata,
}

impl ImageSource {
    /// Opens the file.
    ///
    /// # Errors
    /// Those of open(2); [`io::ErrorKind::InvalidInput`] for anything but a regular file in
    /// storage. Never waits for the other end of a FIFO.
    pub fn open(path: &Path) -> io::Result<Self> {
        let not = |what: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        let file = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)?;
        let opened = file.metadata()?;
        if !opened.is_file() {
            return not("not a regular file");
        }
        if sparse_file::is_made_on_reading(&file)? {
            return not("the kernel makes its content on each read; copy it to a file first");
        }
        Ok(Self { file, opened })
    }
}

impl Source for ImageSource {
    fn size(&self) -> Bytes {
        Bytes::new(self.opened.len())
    }

    fn data_in(&self, range: Range<u64>) -> io::Result<Option<Range<u64>>> {
        sparse_file::data_in(&self.file, range)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, offset)
    }

    /// By its size and the time of its last write. It misses a write within the kernel's clock tick
    /// in which it was opened, and some that are made through a mapping: on tmpfs all of them,
    /// elsewhere those to pages that were dirty.
    fn is_unchanged(&self) -> io::Result<bool> {
        let now = self.file.metadata()?;
        let state = |of: &Metadata| (of.len(), of.mtime(), of.mtime_nsec());
        Ok(state(&now) == state(&self.opened))
    }
}
