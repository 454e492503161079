//! A file region: a file as memory, by a page cache of the manager's own.
//!
//! Its pages are read when they are touched and ahead of that. They stay within the manager's
//! budget and zones like any other, and dirty ones are written back. All I/O is direct, so that
//! nothing of the file is in the kernel's cache. [`FileRegion::read_at`] and
//! [`FileRegion::write_at`] return an error where the file fails; an access by address raises
//! SIGBUS, as with mmap(2).
//!
//! | file | purpose |
//! |---|---|
//! | `builder` | opening a file and mapping it |
//! | `region` | the work of a region for its users |
//! | `page_file` | the file as pages: which of them are dirty, and which are lost |
//! | `external_changes`, `seen` | noticing changes by other programs |
//! | `dirty`, `dirty_map` | which entries are dirty; the zones' limits for that |
//! | `write_tracking` | marking writes by address |
//! | `refaults` | which entries were read before, or were read ahead and not used yet |
//! | `writeback` | from the file into a slot, and back |
//! | `dropping` | staged pages that leave memory |
//! | `whole_writes` | writing by calls over whole entries, without reading them |
//! | `readahead`, `orders` | readahead by the helpers, as `pagoda_core::fault::readahead` says |
//! | `move_in` | moving pages that were read ahead into the region |
//! | `behind` | dropping what a reader has left behind |
//! | `cached_reads` | reading by calls from pages that were read ahead, in place |
//!
//! This module must never show bytes that are not the file's or its writers'.

mod behind;
mod builder;
mod cached_reads;
mod dirty;
pub(crate) mod dirty_map;
mod dropping;
mod error;
mod external_changes;
mod move_in;
pub(crate) mod orders;
mod page_file;
mod readahead;
mod refaults;
mod region;
pub(crate) mod seen;
mod whole_writes;
mod write_tracking;
mod writeback;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pagoda_core::size::Bytes;
use region::Inner;

use crate::error::other_process::OtherProcess;
use crate::file::orders::Reader;
use crate::state::helpers::Member;

pub(crate) use crate::file::orders::is_unasked;
pub use builder::FileRegionBuilder;
pub use error::{FileError, MapFileError};
pub(crate) use page_file::PageFile;

/// The totals of a file region, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileStats {
    /// Read of the file.
    pub read: Bytes,
    /// Of that, read before it was asked for.
    pub read_ahead: Bytes,
    /// Of these, pages that had been read before and were not in memory any more.
    pub read_again: Bytes,
    /// Read ahead and evicted unused. Use is `read_at`, `write_at`, and a fault: use by address is
    /// only seen where it faults, so that this is too high for users of addresses.
    pub evicted_unused: Bytes,
    /// Written to the file: by syncs, by reclaim, and by writers that exceed the dirty limit.
    pub written: Bytes,
    /// Dirty base pages: written, and not in the file yet. At most a fifth of each zone is dirty
    /// when [`FileRegion::write_at`] returns, unless the file can't be written. Writes by address
    /// are seen within a second or two.
    pub dirty: Bytes,
}

/// A file as memory. Any number of threads may use it at once. Dropping it writes dirty pages back,
/// without waiting until they are safe and without reporting errors: [`close`](Self::close) does
/// both.
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
    pub fn len(&self) -> usize {
        self.inner().file.len() as usize
    }

    /// Its first byte. Valid for reads of [`len`](Self::len) bytes, and for writes if it was mapped
    /// writable, as long as the region lives. An access to a page that is not in memory blocks
    /// until it is read; one to a page that can't be read raises SIGBUS. [`read_at`](Self::read_at)
    /// returns an error in its place.
    ///
    /// Its memory must not be unmapped, moved or discarded by its address: writes there might be
    /// lost, and a sync of another thread might wait for it.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.inner().range.start())
    }

    /// Its totals so far. All zero in a forked child, which has none of it.
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

    /// Copies from the file. Blocks for the disk where it is not in memory. A byte that others
    /// write meanwhile is the old or the new one.
    ///
    /// # Errors
    /// See [`FileError`]; `into` may hold anything then.
    pub fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<(), FileError> {
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
    /// [`sync`](Self::sync). A call that makes more than a fifth of a zone dirty waits until a part
    /// of it is written back, up to 1 MiB for each base page. Whole base pages that are not in
    /// memory are not read first.
    ///
    /// # Errors
    /// See [`FileError`]; a part may be written then.
    pub fn write_at(&self, offset: usize, from: &[u8]) -> Result<(), FileError> {
        let inner = self.maker()?;
        if !inner.file.is_writable() {
            return Err(FileError::ReadOnly);
        }
        inner.check(offset, from.len())?;
        let memory = inner.memory();
        inner.each_part(offset, from.len(), |at, part, is_gone| {
            if !is_gone && inner.write_whole(at, &from[part.clone()]) {
                inner.note_written(at);
                return Ok(part.len());
            }
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

    /// Returns when all earlier writes are on stable storage. It looks at all pages of the file
    /// that are in memory, and then waits for the disk. No other call waits for it.
    ///
    /// # Errors
    /// See [`FileError`]: also errors since the last call, when memory got short. Each is returned
    /// once, as by fsync(2). Pages that could not be written are kept and tried again by the next
    /// call; all others were written.
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
            std::mem::forget(inner);
            return;
        }
        let member: Arc<dyn Member> = inner.clone();
        inner.engine().helpers.leave(&member);
        drop(member);
        if inner.file.is_writable() {
            inner.write_all_back();
        }
    }
}

#[cfg(test)]
mod failing_test;
#[cfg(test)]
mod tests;
