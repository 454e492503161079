//! Changes of a region's mapping by its owner: protecting parts of it, and growing.
//!
//! The region's own calls refuse what its protection forbids. This module must never change the
//! mapping of a region that is being sent or received: other threads read and write it then.

use std::io;

use pagoda_core::page::OS_PAGE;
use pagoda_core::size::Bytes;
use pagoda_linux::mem::region_memory::Access;

use super::{AccessError, Region, RegionError};
use crate::error::Errno;

impl Region {
    /// Allows only this access to `offset..offset + len`, whole OS pages. Calls for more fail with
    /// [`AccessError::Protected`]; an access by address raises SIGSEGV, or `EFAULT` from a system
    /// call. Content stays, and pages that are swapped out are swapped in by reads as before.
    ///
    /// A protected part is evicted like any other, and comes back with its protection. That is so
    /// for a part that mprotect(2) has protected by its address, too. It stays resident, beyond the
    /// budget if nothing else can be evicted, where the manager has adopted memory, where pages of
    /// the process are pinned for long (a device, io_uring's registered buffers) and before Linux
    /// 5.7.
    ///
    /// # Errors
    /// The error of mprotect(2): an offset or length that is no multiple of the OS page, or the
    /// limit on mappings (`vm.max_map_count`): each protected part takes up to two. A region that
    /// is still arriving is [`ResourceBusy`](io::ErrorKind::ResourceBusy). Or
    /// [`OtherProcess`](crate::OtherProcess).
    ///
    /// # Panics
    /// If it reaches beyond the end.
    pub fn protect(&mut self, offset: usize, len: usize, access: Access) -> io::Result<()> {
        self.managed.shared.engine()?;
        #[cfg(feature = "migrate")]
        if self.receiving().is_some() {
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, "not all of the region has arrived yet"));
        }
        self.memory_mut().protect(offset, len, access)
    }

    /// Makes the region longer by `more`, rounded up to whole base pages, within the
    /// [reserve](super::RegionBuilder::reserve) that it was made with. Its address stays; the new
    /// part reads as zero and takes no memory yet.
    ///
    /// # Errors
    /// See [`RegionError`]; then nothing has changed.
    pub fn grow(&mut self, more: Bytes) -> Result<(), RegionError> {
        let engine = std::sync::Arc::clone(self.managed.shared.engine()?);
        let base = self.managed.base.clone();
        let memory = self.memory_mut();
        let unit = base.size.bytes().max(engine.entry_bytes());
        let beyond = RegionError::BeyondReserve { more, left: Bytes::new(memory.left() as u64) };
        let rounded = more.as_usize().checked_next_multiple_of(unit).filter(|more| *more <= memory.left());
        let more = rounded.ok_or(beyond)?;
        if more == 0 {
            return Err(RegionError::Empty);
        }
        let len = memory.range().len();
        let added = memory
            .grow(more)
            .map_err(|error| RegionError::Map { len: Bytes::new(more as u64), errno: Errno::from(&error) })?;
        if let Err(error) = engine.manage(added, None, base) {
            memory.shrink(len);
            return Err(error);
        }
        self.managed.range = self.memory().range();
        engine.owners.resize(&self.managed.account, self.managed.range);
        Ok(())
    }

    /// Whether the region's protection allows an access.
    pub(crate) fn check_protection(&self, offset: usize, len: usize, write: bool) -> Result<(), AccessError> {
        let pages = offset / OS_PAGE..offset.saturating_add(len).div_ceil(OS_PAGE);
        if self.memory().allows(pages, write) { Ok(()) } else { Err(AccessError::Protected) }
    }
}
