//! A file region: a file as memory, by a page cache of the manager's own.
//!
//! Its pages are read when they are touched and ahead of that, stay within the manager's budget and
//! zones like any other, and are written back if they differ from the file. All I/O is direct, so
//! that nothing of the file is in the kernel's cache. Who reads and writes by
//! [`FileRegion::read_at`] and [`FileRegion::write_at`] gets an error where the file fails; who
//! uses its address gets SIGBUS, as from mmap(2).
//!
//! | file | what it has |
//! |---|---|
//! | `builder` | opening a file and mapping it |
//! | `inner` | what a region does for its users |
//! | `page_file` | the file as pages: what differs from it, what of it can't be read |
//! | `others` | noticing what others do to it |
//! | `dirty` | which of them were written and are not in the file yet; the zones' limits for that |
//! | `written` | marking what was written by address |
//! | `reads` | which of them were read before, and which nobody has asked for yet |
//! | `write_back` | from the file into a slot, and back |
//! | `ahead` | the thread that reads ahead, by `pagoda_core::fault::readahead` |
//! | `in_place` | reading by calls what was read ahead, where it lies |
//!
//! This module must never show bytes that are not the file's or its writers'.

mod builder;
mod cached_reads;
mod dirty;
pub(crate) mod dirty_map;
mod error;
mod external_changes;
pub(crate) mod orders;
mod page_file;
mod readahead;
mod refaults;
mod region;
pub(crate) mod seen;
mod write_tracking;
mod writeback;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use pagoda_core::size::Bytes;
use region::Inner;

use crate::error::other_process::OtherProcess;
use crate::file::orders::Reader;

pub(crate) use crate::file::orders::is_unasked;
pub use builder::FileRegionBuilder;
pub use error::{FileError, MapFileError};
pub(crate) use page_file::PageFile;

/// What a file region has done so far, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileStats {
    /// Read of the file.
    pub read: Bytes,
    /// Of that, read before it was asked for.
    pub read_ahead: Bytes,
    /// Of what was read, what had been read before and was not in memory any more.
    pub read_again: Bytes,
    /// Read ahead and evicted before anybody asked for it. Asking is `read_at`, `write_at`, and a
    /// fault: what is used by its address is only seen where it faults, so that this is too much
    /// for who uses addresses.
    pub evicted_unused: Bytes,
    /// Written to the file: by syncs, by reclaim, and by who wrote more than may be dirty.
    pub written: Bytes,
    /// Base pages that were written and are not in the file yet. At most a fifth of each zone is
    /// dirty when [`FileRegion::write_at`] returns, unless the file can't be written. What is
    /// written by address is seen within a second or two.
    pub dirty: Bytes,
}

/// A file as memory. Any number of threads may use it at once. Dropping it writes what differs
/// back, without waiting for the disk to be safe and without telling what fails:
/// [`close`](Self::close) does both.
///
/// ```
/// use pagoda::{Bytes, Manager};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # if !pagoda::userfaultfd_allows_managers() { return Ok(()); }
/// let directory = std::env::current_exe()?.parent().ok_or("a directory")?.to_owned();
/// let path = directory.join(format!("pages-{}", std::process::id()));
/// std::fs::write(&path, vec![b'.'; 1 << 20])?;
/// let manager = Manager::builder().budget(Bytes::mib(64)).user_mode_only(true).build()?;
/// # let direct = manager.map_file(&path).map().is_ok();
/// let region = manager.map_file(&path).writable(true)
///     # .buffered(!direct)
///     .map()?;
/// region.write_at(5000, b"to be kept")?;
/// region.sync()?;
/// assert_eq!(&std::fs::read(&path)?[5000..5010], b"to be kept");
/// region.close()?;
/// # std::fs::remove_file(&path)?;
/// # Ok(())
/// # }
/// ```
pub struct FileRegion {
    inner: Option<Arc<Inner>>,
    threads: Vec<JoinHandle<()>>,
}

impl FileRegion {
    fn inner(&self) -> &Arc<Inner> {
        self.inner.as_ref().expect("it is there until it is dropped")
    }

    /// In the process that mapped it.
    fn maker(&self) -> Result<&Inner, OtherProcess> {
        let inner = self.inner();
        inner.shared.engine().map(|_| &**inner)
    }

    /// The file's length when it was mapped, in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a file region is never empty")]
    pub fn len(&self) -> u64 {
        self.inner().file.len()
    }

    /// Its first byte. Valid for reads of [`len`](Self::len) bytes, and for writes if it was mapped
    /// writable, as long as the region lives. An access to a page that is out blocks until it is
    /// read; one to a page that can't be read raises SIGBUS. Who needs an error in its place uses
    /// [`read_at`](Self::read_at).
    ///
    /// Its memory must not be unmapped, moved or discarded by its address: what was written there
    /// might read zero, or as the file is, and a sync of another thread might wait for it.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.inner().range.start())
    }

    /// What it has done so far. All zero in a forked child, which has none of it.
    #[must_use]
    pub fn stats(&self) -> FileStats {
        let Ok(inner) = self.maker() else { return FileStats::default() };
        let file = &inner.file;
        let bytes = |count: &AtomicU64| Bytes::new(count.load(Ordering::Relaxed));
        FileStats {
            read: bytes(&file.read_bytes),
            read_ahead: bytes(&file.ahead_bytes),
            read_again: bytes(&file.reads.again_bytes),
            evicted_unused: bytes(&file.reads.evicted_unused_bytes),
            written: bytes(&file.written_bytes),
            dirty: Bytes::new(file.dirty.count() * inner.engine().entry_bytes() as u64),
        }
    }

    /// Copies from the file. Blocks for the disk where it is not in memory. Of bytes that others
    /// write meanwhile each is what it was before or after.
    ///
    /// # Errors
    /// See [`FileError`]; `into` may hold anything then.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), FileError> {
        let inner = self.maker()?;
        inner.check(offset, into.len())?;
        let memory = inner.memory();
        inner.each_part(offset, into.len(), |at, part, is_gone| {
            let into = &mut into[part];
            if !is_gone && inner.read_in_place(at, into) {
                return Ok(into.len());
            }
            inner.bring_in(at, is_gone, Reader::Calls)?;
            Ok(match is_gone {
                false => memory.read_what_is_there(at, into),
                true => inner.read_by_way(at, into),
            })
        })
    }

    /// Copies into the file's memory. It reaches the file when memory gets short, and is safe after
    /// [`sync`](Self::sync). Who writes more than a fifth of a zone waits until a part of it is
    /// written back, up to 1 MiB for each base page.
    ///
    /// # Errors
    /// See [`FileError`]; a part may be written then.
    pub fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), FileError> {
        let inner = self.maker()?;
        if !inner.file.is_writable() {
            return Err(FileError::ReadOnly);
        }
        inner.check(offset, from.len())?;
        let memory = inner.memory();
        inner.each_part(offset, from.len(), |at, part, is_gone| {
            inner.bring_in(at, is_gone, Reader::InRegion)?;
            let copied = match is_gone {
                false => memory.write_what_is_there(at, &from[part]),
                true => inner.write_by_way(at, &from[part]),
            };
            if copied > 0 {
                inner.note_written(at);
            }
            Ok(copied)
        })
    }

    /// Returns when all that was written before is on stable storage. It looks at everything of the
    /// file that is in memory, and then waits for the disk. Nobody else waits for it.
    ///
    /// # Errors
    /// See [`FileError`]: also what went wrong since the last call, when memory got short. It is
    /// told once, as fsync(2) does. What could not be written is kept and tried again by the next
    /// call; all else was written.
    pub fn sync(&self) -> Result<(), FileError> {
        self.maker()?.sync()
    }

    /// Makes everything safe, as [`sync`](Self::sync) does, and frees the region whatever comes of
    /// it.
    ///
    /// # Errors
    /// As for [`sync`](Self::sync).
    pub fn close(self) -> Result<(), FileError> {
        self.sync()
    }
}

impl Drop for FileRegion {
    fn drop(&mut self) {
        let Some(inner) = self.inner.take() else { return };
        if inner.shared.engine().is_err() {
            // A forked child has no copy of it, and its parent writes back.
            std::mem::forget((inner, std::mem::take(&mut self.threads)));
            return;
        }
        inner.file.orders.quit();
        for thread in self.threads.drain(..) {
            // One that panicked has said so.
            let _ = thread.join();
        }
        if inner.file.is_writable() {
            inner.write_all_back();
        }
    }
}

#[cfg(test)]
mod failing_test;
#[cfg(test)]
mod tests;
