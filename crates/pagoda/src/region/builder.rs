//! Making a region, with the chosen options.
//!
//! This module must never touch the memory that it maps.

use std::sync::Arc;

use pagoda_core::fault::density::Use;
use pagoda_core::page::BasePage;
use pagoda_core::size::Bytes;
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::mem::region_memory::RegionMemory;

use super::managed::{Managed, Memory};
use super::{Region, RegionError};
use crate::engine::shared::Shared;
use crate::error::Errno;

/// A region to be; see [`Manager::region`](crate::Manager::region).
pub struct RegionBuilder {
    shared: Arc<Shared>,
    len: Bytes,
    purpose: Use,
    base: Option<BasePage>,
    limit: Option<Bytes>,
    reserve: Bytes,
}

impl RegionBuilder {
    pub(crate) fn new(shared: Arc<Shared>, len: Bytes) -> Self {
        Self { shared, len, purpose: Use::Unknown, base: None, limit: None, reserve: Bytes::ZERO }
    }

    /// The use of the region, which tells how much of a base page its first touches fill at the
    /// beginning: 4 KiB without it. The touches then decide. It matters where no base page was
    /// chosen, neither [here](Self::base_page) nor [for all](crate::ManagerBuilder::base_page).
    #[must_use]
    pub fn purpose(mut self, purpose: Use) -> Self {
        self.purpose = purpose;
        self
    }

    /// The region's base page: a touch fills it, aligned, and nothing else. By default it is the
    /// one [chosen for all](crate::ManagerBuilder::base_page). Without one it goes by density: see
    /// [`Managed::fill`].
    ///
    /// Where the manager's base page is 64 KiB, its default, or 2 MiB, a region may have any. With
    /// 4 and 16 KiB a first touch fills just that. A touch of a swapped-out page swaps in as much,
    /// with up to four more for sequential access; cold pages are evicted by 64 KiB, as far as they
    /// are present. With 2 MiB it comes in huge frames. In a manager of 4 or 16 KiB any other size
    /// is refused.
    #[must_use]
    pub fn base_page(mut self, base_page: BasePage) -> Self {
        self.base = Some(base_page);
        self
    }

    /// The most that the region may hold, in memory and in the store together: all of it by
    /// default. A first touch beyond that fails for its thread alone: calls return
    /// [`LimitReached`](super::AccessError::LimitReached), and an access by address raises SIGBUS,
    /// or `EFAULT` from a system call, there until the page is [discarded](Region::discard). Pages
    /// that the region holds already stay as they are, and so does every other region. Discarding
    /// makes room. Such a region has no huge frames, and no readahead.
    #[must_use]
    pub fn limit(mut self, most: Bytes) -> Self {
        self.limit = Some(most);
        self
    }

    /// The length that the region may [grow](Region::grow) to: addresses are reserved for it, and
    /// nothing else. Its own length by default.
    #[must_use]
    pub fn reserve(mut self, reserve: Bytes) -> Self {
        self.reserve = reserve;
        self
    }

    /// Maps the region and takes it under management.
    ///
    /// # Errors
    /// See [`RegionError`].
    pub fn create(self) -> Result<Region, RegionError> {
        if self.len == Bytes::ZERO {
            return Err(RegionError::Empty);
        }
        let engine = self.shared.engine()?;
        let base = engine.region_base(self.base, self.purpose, self.len)?;
        let unit = base.size.bytes().max(engine.entry_bytes());
        let out_of_space = RegionError::Map { len: self.len, errno: Errno(12) };
        let rounded = |len: Bytes| len.as_usize().checked_next_multiple_of(unit).ok_or(out_of_space);
        let (len, reserve) = (rounded(self.len)?, rounded(self.reserve)?);
        let memory =
            if reserve > len { RegionMemory::map_reserved(len, reserve) } else { RegionMemory::map(len) };
        let memory =
            memory.map_err(|error| RegionError::Map { len: self.len, errno: Errno::from(&error) })?;
        let range = memory.range();
        engine.manage(range, None, base.clone())?;
        let account = engine.owners.enter(range);
        let all = PageRange::at(range.start(), len.max(reserve));
        let limit = self.limit.map(|most| engine.limits.enter(all, most));
        let managed = Managed::new(self.shared, (Memory::Own(memory), range), account, base);
        Ok(Region::new(Managed { limit, ..managed }))
    }
}
