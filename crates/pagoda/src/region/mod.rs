//! A region: managed memory that a library's user owns.
//!
//! Its address is ordinary memory: reading and writing it needs no call. It never hands out
//! references itself, because only the user knows which threads write there.

mod access;
pub(crate) mod adoptable;
mod adopted;
mod builder;
mod extent;
pub(crate) mod limit;
mod managed;
#[cfg(feature = "migrate")]
mod moves;
mod pinned;
mod presence;

use std::ops::Deref;

use pagoda_linux::mem::region_memory::RegionMemory;

use crate::error::other_process::OtherProcess;
use managed::{Memory, hold_if_here};

pub use access::{AccessError, PageOutError};
pub use adoptable::RegionError;
pub use adopted::AdoptedRegion;
pub use builder::RegionBuilder;
pub use managed::Managed;
pub use pagoda_linux::mem::region_memory::{Access, ForeignMemory};
pub use pinned::{PinError, Pinned};
pub use presence::Usage;

#[cfg(feature = "migrate")]
pub(crate) use moves::{LastSave, Sending};

/// Managed memory of its own. Dropping it frees it.
pub struct Region {
    managed: Managed,
    /// The image that it was restored from.
    #[cfg(feature = "image")]
    restored: Option<crate::restore::held::Restored>,
}

impl Deref for Region {
    type Target = Managed;
    fn deref(&self) -> &Managed {
        &self.managed
    }
}

impl Region {
    fn new(managed: Managed) -> Self {
        Self {
            managed,
            #[cfg(feature = "image")]
            restored: None,
        }
    }

    /// Keeps the image that it is restored from, as long as the region lives.
    #[cfg(feature = "image")]
    pub(crate) fn set_restored(&mut self, restored: crate::restore::held::Restored) {
        self.restored = Some(restored);
    }
    /// The image that it was restored from.
    #[cfg(feature = "image")]
    pub(crate) fn restored(&self) -> Option<&crate::restore::held::Restored> {
        self.restored.as_ref()
    }

    /// Copies from the region, swapping in its pages. In a region that is
    /// [arriving](Self::receive_late) it waits for pages that are not here yet.
    ///
    /// # Errors
    /// See [`AccessError`]; `into` may hold anything then.
    ///
    /// # Panics
    /// If it reaches beyond the end.
    pub fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<(), AccessError> {
        let memory = self.own_memory()?;
        self.check(offset, into.len(), false)?;
        #[cfg(feature = "migrate")]
        if !self.await_arrival(offset, into.len()) {
            return Err(AccessError::Lost);
        }
        #[cfg(feature = "image")]
        self.check_image(offset, into.len())?;
        memory.read_at(offset, into);
        Ok(())
    }

    /// Copies into the region, swapping in its pages.
    ///
    /// # Errors
    /// See [`AccessError`].
    ///
    /// # Panics
    /// As [`read_at`](Self::read_at).
    pub fn write_at(&mut self, offset: usize, from: &[u8]) -> Result<(), AccessError> {
        self.check(offset, from.len(), true)?;
        #[cfg(feature = "image")]
        self.check_image(offset, from.len())?;
        self.memory_mut().write_at(offset, from);
        Ok(())
    }

    /// As [`read_at`](Self::read_at), but does not wait for swapped-out pages. Pages that were
    /// never touched read as zero.
    ///
    /// # Errors
    /// See [`AccessError`]: [`WouldBlock`](AccessError::WouldBlock) if a part is swapped out, or
    /// does not [arrive](Self::receive_late) before; nothing is copied then.
    ///
    /// # Panics
    /// As [`read_at`](Self::read_at).
    pub fn try_read_at(&self, offset: usize, into: &mut [u8]) -> Result<(), AccessError> {
        let memory = self.own_memory()?;
        self.check(offset, into.len(), false)?;
        let _pin = hold_if_here(self.shared.engine()?, self.part(offset, into.len()))?;
        memory.read_at(offset, into);
        Ok(())
    }

    /// As [`write_at`](Self::write_at), but does not wait for swapped-out pages. The first touch of
    /// a page takes a frame, for which it may wait when memory is short.
    ///
    /// # Errors
    /// As [`try_read_at`](Self::try_read_at).
    ///
    /// # Panics
    /// As [`read_at`](Self::read_at).
    pub fn try_write_at(&mut self, offset: usize, from: &[u8]) -> Result<(), AccessError> {
        self.check(offset, from.len(), true)?;
        let part = self.part(offset, from.len());
        let Managed { shared, memory, .. } = &mut self.managed;
        let _pin = hold_if_here(shared.engine()?, part)?;
        memory.own_mut().write_at(offset, from);
        Ok(())
    }

    /// All of the region as words, for one thread's use: an access to a swapped-out page blocks
    /// until it is back.
    ///
    /// # Panics
    /// In a forked child, and if a part of it is [protected](Self::protect).
    pub fn words_mut(&mut self) -> &mut [u64] {
        let protection = self.check_protection(0, self.len(), true);
        protection.expect("all of the region can be written");
        if let Err(error) = self.shared.engine() {
            panic!("{error}");
        }
        self.memory_mut().words_mut()
    }

    /// Copies whole words into the region, swapping in its pages. Any number of threads may do so
    /// at the same time, also while it is read or sent: each word of 8 bytes is written in one
    /// step.
    ///
    /// # Errors
    /// See [`AccessError`].
    ///
    /// # Panics
    /// As [`read_at`](Self::read_at), and if `offset` or the length is no multiple of 8 bytes.
    pub fn write_words(&self, offset: usize, from: &[u8]) -> Result<(), AccessError> {
        let memory = self.own_memory()?;
        self.check(offset, from.len(), true)?;
        #[cfg(feature = "image")]
        self.check_image(offset, from.len())?;
        memory.write_words(offset, from);
        Ok(())
    }

    /// Whether a call may touch this part.
    fn check(&self, offset: usize, len: usize, write: bool) -> Result<(), AccessError> {
        self.check_limit(offset, len)?;
        self.check_protection(offset, len, write)
    }

    /// Its own mapping.
    fn own_memory(&self) -> Result<&RegionMemory, OtherProcess> {
        self.shared.engine()?;
        Ok(self.memory())
    }
    /// The same, for callers that know that this is its process.
    pub(crate) fn memory(&self) -> &RegionMemory {
        self.managed.memory.own()
    }
    #[cfg(feature = "migrate")]
    pub(crate) fn managed_mut(&mut self) -> &mut Managed {
        &mut self.managed
    }
    fn memory_mut(&mut self) -> &mut RegionMemory {
        self.managed.memory.own_mut()
    }

    /// Discards whole OS pages: they read zero afterwards and hold nothing. Other threads may use
    /// the region meanwhile: their writes to these pages may be lost or not.
    ///
    /// # Errors
    /// The error of madvise(2) (an offset or length that is no multiple of the OS page), or
    /// [`OtherProcess`].
    ///
    /// # Panics
    /// As [`read_at`](Self::read_at).
    pub fn discard(&self, offset: usize, len: usize) -> std::io::Result<()> {
        self.managed.discard_bytes(self.memory(), offset, len)
    }

    /// Unmaps the region: its memory goes back to the kernel before this returns. Frames that were
    /// moved out of it, its stored pages and its table follow in the background, and count as held
    /// until then. A thread that needs room takes them before anything is evicted.
    /// [`flush_releases`](crate::Manager::flush_releases) waits for all of it. Other policies of
    /// [`Tuning::release`](crate::Tuning::release) take the frames back first. Dropping does the
    /// same.
    pub fn close(self) {}
}

impl Drop for Region {
    fn drop(&mut self) {
        let Ok(engine) = self.managed.shared.engine().cloned() else {
            // The mapping is not in a child, where its addresses may be another's by now.
            std::mem::forget(std::mem::replace(&mut self.managed.memory, Memory::Gone));
            #[cfg(feature = "image")]
            std::mem::forget(self.restored.take());
            #[cfg(feature = "migrate")]
            self.managed.moves.leave_to_child();
            return;
        };
        // Its prefetching ends before the memory is gone, and the image after that.
        #[cfg(feature = "image")]
        self.restored.iter_mut().for_each(crate::restore::held::Restored::end_prefetch);
        // Before another region can have these addresses.
        self.managed.limit.iter().for_each(|limit| engine.limits.leave(limit));
        #[cfg(feature = "migrate")]
        self.managed.end_arrival();
        engine.keep_huge_frames(self.managed.range);
        if let Memory::Own(memory) = std::mem::replace(&mut self.managed.memory, Memory::Gone) {
            #[cfg(feature = "image")]
            let keeps = self.restored.iter().next().map(crate::restore::held::Restored::keeps);
            #[cfg(not(feature = "image"))]
            let keeps = None;
            engine.close(memory, &self.managed.account, keeps);
        }
        engine.owners.leave(&self.managed.account);
        engine.look_after_releases();
    }
}
