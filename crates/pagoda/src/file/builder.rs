//! Opening a file and mapping it, with the chosen options.
//!
//! This module must never read or write the file's content.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use pagoda_core::page::OS_PAGE;
use pagoda_core::size::Bytes;
use pagoda_linux::io::mapped_file::{Access, FileState, MappedFile, OpenError};
use pagoda_linux::mem::careful_copy;
use pagoda_linux::mem::region_memory::RegionMemory;

use super::page_file::PageFile;
use super::{FileRegion, MapFileError};
use crate::engine::shared::Shared;
use crate::error::{Errno, StartError};
use crate::file::region::Inner;
use crate::region::RegionError;

/// A file to be mapped; see [`Manager::map_file`](crate::Manager::map_file).
pub struct FileRegionBuilder {
    shared: Arc<Shared>,
    path: PathBuf,
    /// As long as the path leads to it.
    held: Option<OwnedFd>,
    access: Access,
}

impl FileRegionBuilder {
    pub(crate) fn new(shared: Arc<Shared>, path: &Path) -> Self {
        Self { shared, path: path.to_owned(), held: None, access: Access::default() }
    }

    /// Of an open file, which may have no name any more.
    pub(crate) fn of_open(shared: Arc<Shared>, file: OwnedFd) -> Self {
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        Self { shared, path, held: Some(file), access: Access::default() }
    }

    /// Whether it is written, too; only read by default. Writes by the address of a file that is
    /// only read are dropped sooner or later.
    #[must_use]
    pub fn writable(mut self, yes: bool) -> Self {
        self.access.write = yes;
        self
    }

    /// Reads and writes through the kernel's page cache, for file systems without direct I/O. The
    /// consequence: pages in that cache are in no budget.
    #[must_use]
    pub fn buffered(mut self, yes: bool) -> Self {
        self.access.buffered = yes;
        self
    }

    /// Maps the file from this offset on, and not from its beginning: a multiple of the OS page, 4
    /// KiB. All offsets of the region count from there.
    #[must_use]
    pub fn offset(mut self, offset: Bytes) -> Self {
        self.access.start = offset.get();
        self
    }

    /// Maps so many bytes, and not all up to the file's end. Bytes of the last page behind them
    /// read zero, and are never written to the file.
    #[must_use]
    pub fn length(mut self, length: Bytes) -> Self {
        self.access.most = Some(length.get());
        self
    }

    /// Opens the file for a private region.
    #[cfg(feature = "image")]
    pub(crate) fn open_private(self) -> Result<(Arc<Shared>, PathBuf, MappedFile, FileState), MapFileError> {
        let access = Access { write: false, ..self.access };
        let (file, state) = open(&self.path, access)?;
        Ok((self.shared, self.path, file, state))
    }

    /// Opens the file and maps all of it, or the part that was asked for; the region keeps the
    /// length that the file has now. Blocks until earlier writes of others there are on the disk.
    ///
    /// # Errors
    /// See [`MapFileError`].
    pub fn map(self) -> Result<FileRegion, MapFileError> {
        let Self { shared, path, access, held: _held } = self;
        let engine = Arc::clone(shared.engine()?);
        let (file, state) = open(&path, access)?;
        let len = state.len;
        careful_copy::try_out().map_err(|errno| MapFileError::Copy { errno: Errno(errno.raw_os_error()) })?;
        let no_space = |errno| MapFileError::Region(RegionError::Map { len: Bytes::new(len), errno });
        let rounded =
            usize::try_from(len).ok().and_then(|len| len.checked_next_multiple_of(engine.base.bytes()));
        let memory = RegionMemory::map(rounded.ok_or_else(|| no_space(Errno(12)))?)
            .map_err(|error| no_space(Errno::from(&error)))?;
        let file = PageFile::new(file, state, engine.entry_bytes(), access.write)
            .map_err(|error| MapFileError::Random { errno: Errno::from(&error) })?;
        let file = Arc::new(file);
        shared.start_helpers().map_err(|error| match error {
            StartError::Threads(errno) => MapFileError::Thread { errno },
            error => unreachable!("only a thread can fail to start: {error}"),
        })?;
        engine.manage_file(memory.range(), &file)?;
        engine.file_regions.fetch_add(1, Ordering::AcqRel);
        let inner = Arc::new(Inner::new(shared, file, memory));
        engine.helpers.join(inner.clone());
        Ok(FileRegion { inner: Some(inner) })
    }
}

/// Opens a part of a file that has some bytes, and all that were asked for.
fn open(path: &Path, access: Access) -> Result<(MappedFile, FileState), MapFileError> {
    let (offset, asked) = (Bytes::new(access.start), Bytes::new(access.most.unwrap_or(1)));
    if !access.start.is_multiple_of(OS_PAGE as u64) || asked == Bytes::ZERO {
        return Err(MapFileError::NoPart { offset, len: asked });
    }
    let (file, state) = MappedFile::open(path, access).map_err(|error| open_error(path, error))?;
    let path = || path.to_owned();
    match Bytes::new(state.len) {
        Bytes::ZERO if access.start == 0 => Err(MapFileError::Empty { path: path() }),
        len if len == Bytes::ZERO || len < asked => {
            Err(MapFileError::BeyondEnd { path: path(), offset, len: asked })
        }
        _ => Ok((file, state)),
    }
}

fn open_error(path: &Path, error: OpenError) -> MapFileError {
    let path = path.to_owned();
    let errno = |errno: pagoda_linux::uffd::Errno| Errno(errno.raw_os_error());
    match error {
        OpenError::Open(why) => MapFileError::Open { path, errno: errno(why) },
        OpenError::Kind(kind) => MapFileError::NotAFile { path, kind },
        OpenError::InMemory(filesystem) => MapFileError::InMemory { path, filesystem },
        OpenError::NoDirectIo(why) => MapFileError::NoDirectIo { path, errno: errno(why) },
    }
}
