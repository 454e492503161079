//! A file as private memory: a region with its content, whose writes never reach it.
//!
//! The file is a read-only tier of the store, as an image is. This module must never write to it.

use std::sync::Arc;

use pagoda_core::size::Bytes;

use super::held::Restored;
use crate::crypto::digest::Digester;
use crate::error::Errno;
use crate::file::{FileRegionBuilder, MapFileError};
use crate::region::{Region, RegionBuilder, RegionError};
use crate::store::{IMAGE_PAGES_MOST, IMAGES_MOST, PlainFile};

impl FileRegionBuilder {
    /// Opens the file and shows it, or a part of it, in a region, as a private mapping does: writes
    /// stay in the region, within the budget, and never reach the file. Pages come from the file
    /// when they are touched; one that was not written is dropped when it is evicted, and comes
    /// from there again. Changes of the file by others may show or not. The region is as long as
    /// that is now, rounded up as [`Managed::len`](crate::Managed::len) tells, with zeroes behind
    /// its end. A touch of a page that can't be read, or is behind the end of a file that others
    /// have cut, raises SIGBUS; [`Region::read_at`] returns an error in its place. Blocks until
    /// earlier writes of others there are on the disk.
    ///
    /// # Errors
    /// See [`MapFileError`].
    pub fn map_private(self) -> Result<Region, MapFileError> {
        let (shared, path, file, state) = self.open_private()?;
        let engine = Arc::clone(shared.engine()?);
        let len = Bytes::new(state.len);
        if len.get().div_ceil(engine.store.page_bytes() as u64) > IMAGE_PAGES_MOST {
            return Err(MapFileError::TooLong { path, len, base: engine.base });
        }
        let digester =
            Digester::random().map_err(|error| MapFileError::Random { errno: Errno::from(&error) })?;
        let no_memory = || MapFileError::Region(RegionError::Map { len, errno: Errno(12) });
        let file = PlainFile::new(file, state, digester).ok_or_else(no_memory)?;
        let open = engine.store.open_plain(file).ok_or(MapFileError::TooMany { limit: IMAGES_MOST })?;
        let mut region = RegionBuilder::new(shared, len).create()?;
        engine.enter_image(region.range(), &open);
        region.set_restored(Restored { open, prefetch: None });
        Ok(region)
    }
}
