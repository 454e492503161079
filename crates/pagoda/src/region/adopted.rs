//! An adopted region: managed memory that is its owner's, and stays so.
//!
//! Its owner mapped it, reads and writes it by its address, and gets it back: with its content when
//! the region is dropped, or empty when the region is told to forget. This module must never unmap
//! the memory.

use std::io;
use std::ops::Deref;
use std::sync::Arc;

use pagoda_core::fault::density::Use;
use pagoda_core::page::BasePage;
use pagoda_core::size::Bytes;
use pagoda_linux::mem::region_memory::ForeignMemory;
use pagoda_linux::procfs::pagemap::PagemapScanner;

use super::RegionError;
use super::adoptable::{check_mapped, is_plain};
use super::managed::{Managed, Memory};
use crate::engine::shared::Shared;
use crate::error::Errno;

/// Managed memory of another owner; see [`Manager::adopt`](crate::Manager::adopt). It is read and
/// written through its own address. Dropping it swaps everything in, whatever the budget says, and
/// leaves the mapping to its owner: with 512 MiB swapped out that takes about a second, and the
/// memory is the program's again. [`forget`](Self::forget) does without. Dropping one that still
/// [arrives](Self::receive_late) ends that: pages that are not here raise SIGBUS from then on.
pub struct AdoptedRegion {
    managed: Managed,
    /// Its content was given up, so that there is nothing to swap in.
    is_forgotten: bool,
}

impl Deref for AdoptedRegion {
    type Target = Managed;
    fn deref(&self) -> &Managed {
        &self.managed
    }
}

impl AdoptedRegion {
    pub(crate) fn adopt(
        shared: Arc<Shared>,
        memory: ForeignMemory,
        base: Option<BasePage>,
    ) -> Result<Self, RegionError> {
        let engine = shared.engine()?;
        let mut present =
            PagemapScanner::new().map_err(|error| RegionError::Pagemap { errno: Errno::from(&error) })?;
        let range = memory.range();
        check_mapped(range, is_plain)?;
        let len = Bytes::new(range.len() as u64);
        let mut base = engine.region_base(base, Use::Unknown, len)?;
        // Whether it may have huge pages is for its owner to say.
        base.size = base.size.min(BasePage::K64);
        engine.manage(range, Some(&mut present), base.clone())?;
        let account = engine.owners.enter(range);
        let managed = Managed::new(shared, (Memory::Foreign(memory), range), account, base);
        Ok(Self { managed, is_forgotten: false })
    }

    #[cfg(feature = "migrate")]
    pub(crate) fn managed_mut(&mut self) -> &mut Managed {
        &mut self.managed
    }

    /// Swaps everything in and leaves the mapping to its owner, as dropping does. Blocks as long as
    /// that takes.
    pub fn close(self) {}

    /// Gives up the content: nothing is swapped in. The memory is empty when this returns; frames
    /// that were moved out of it and stored pages follow in the background, as for a region that
    /// [closes](super::Region::close). The mapping
    /// stays its owner's, is not managed any more, and reads as zero. Content that is written
    /// meanwhile is lost or not.
    ///
    /// # Errors
    /// The error of madvise(2): a part of the memory is locked, and keeps its content there. Or
    /// [`OtherProcess`](crate::OtherProcess) in a forked child, where nothing happens.
    pub fn forget(mut self) -> io::Result<()> {
        let engine = Arc::clone(self.managed.shared.engine()?);
        #[cfg(feature = "migrate")]
        let owed = self.managed.moves.end_arrival(&engine);
        self.is_forgotten = true;
        let forgotten = engine.forget(self.managed.range, &self.managed.account);
        #[cfg(feature = "migrate")]
        owed.iter().for_each(|owed| engine.owed.leave(owed));
        forgotten
    }
}

impl Drop for AdoptedRegion {
    fn drop(&mut self) {
        let Ok(engine) = self.managed.shared.engine().cloned() else {
            #[cfg(feature = "migrate")]
            self.managed.moves.leave_to_child();
            return;
        };
        #[cfg(feature = "migrate")]
        let lost = self.managed.moves.end_arrival(&engine);
        // They must not read as zero once nothing serves their faults any more.
        #[cfg(feature = "migrate")]
        lost.iter().for_each(|owed| engine.poison_owed(owed));
        if !self.is_forgotten {
            engine.bring_back(self.managed.range);
        }
        #[cfg(feature = "migrate")]
        lost.iter().for_each(|owed| engine.owed.leave(owed));
        engine.owners.leave(&self.managed.account);
        engine.look_after_releases();
    }
}
