//! Where a migration is received: a region that is made for it, or memory that its owner mapped.
//!
//! This module must never leave received content in memory whose owner gets an error.

use std::io;
use std::sync::Arc;

use pagoda_core::page::{BasePage, OS_PAGE};
use pagoda_core::size::Bytes;
use pagoda_migrate::Error;

use crate::engine::Engine;
use crate::manager::Manager;
use crate::region::adoptable::{check_mapped, is_plain};
use crate::region::{AdoptedRegion, Managed, Region, RegionBuilder};

/// Where a migration is received.
pub trait Place: Send + Sync {
    /// The region, once it is prepared.
    fn managed(&self) -> Option<&Managed>;
    /// The same, once it is shown.
    fn managed_mut(&mut self) -> Option<&mut Managed>;
    /// Makes it `size` bytes, all zero, for any state before.
    ///
    /// # Errors
    /// If it can't be; nothing of it has changed then.
    fn prepare(&mut self, size: Bytes) -> io::Result<()>;
}

/// A region to be made.
pub struct Fresh {
    pub(super) manager: Manager,
    /// If one was chosen.
    pub(super) base: Option<BasePage>,
    pub(super) region: Option<Region>,
}

impl Place for Fresh {
    fn managed(&self) -> Option<&Managed> {
        self.region.as_deref()
    }
    fn managed_mut(&mut self) -> Option<&mut Managed> {
        self.region.as_mut().map(Region::managed_mut)
    }
    /// A fresh region: a part that was received before is gone.
    fn prepare(&mut self, size: Bytes) -> io::Result<()> {
        self.region = None;
        let builder = self.manager.region(size);
        let builder = self.base.into_iter().fold(builder, RegionBuilder::base_page);
        self.region = Some(builder.create().map_err(io::Error::other)?);
        Ok(())
    }
}

/// Adopted memory. Its content is given up when a sender has come.
pub struct Given<'a> {
    region: &'a mut AdoptedRegion,
    /// A sender has come, and not all is done.
    is_under_way: bool,
}

impl<'a> Given<'a> {
    pub(super) fn new(region: &'a mut AdoptedRegion) -> Result<Self, Error> {
        region.maker().map_err(|error| Error::Destination(error.into()))?;
        region.check_arrived().and_then(|()| region.bytes().map(drop)).map_err(Error::Destination)?;
        Ok(Self { region, is_under_way: false })
    }

    pub(super) fn engine(&self) -> Arc<Engine> {
        Arc::clone(self.region.engine())
    }

    /// All has arrived, or is known to follow.
    pub(super) fn show(&mut self) {
        self.is_under_way = false;
    }
}

impl Place for Given<'_> {
    fn managed(&self) -> Option<&Managed> {
        self.is_under_way.then_some(self.region)
    }
    fn managed_mut(&mut self) -> Option<&mut Managed> {
        Some(self.region.managed_mut())
    }
    /// Discards its content: only fresh memory is zero.
    fn prepare(&mut self, size: Bytes) -> io::Result<()> {
        let len = self.region.len();
        if size.get().checked_next_multiple_of(OS_PAGE as u64) != Some(len as u64) {
            let len = Bytes::new(len as u64);
            let error = format!(
                "{size} are sent, and the memory to receive into has {len}; adopt as much as is sent"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, error));
        }
        check_mapped(self.region.range(), is_plain).map_err(io::Error::other)?;
        self.is_under_way = true;
        self.region.empty(0, len)
    }
}

impl Drop for Given<'_> {
    fn drop(&mut self) {
        if self.is_under_way {
            let len = self.region.len();
            self.region.managed_mut().end_arrival();
            // It worked before anything arrived, and the owner vouches that nothing is locked.
            let _ = self.region.empty(0, len);
        }
    }
}
