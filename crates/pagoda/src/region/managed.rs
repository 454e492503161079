//! Managed memory behind a handle: the calls that regions and adopted regions share.
//!
//! This module must never touch the memory itself, which may be another owner's.

use std::sync::Arc;

use pagoda_core::page::{BasePage, OS_PAGE};
use pagoda_linux::mem::range::PageRange;

use super::PageOutError;
use crate::engine::shared::Shared;
use crate::stats::account::Account;
use crate::store::Scratch;
use crate::table::filling::{Fill, Filling};
use crate::table::granularity::RegionBase;

/// A managed range of memory: a [`Region`](super::Region) or an
/// [`AdoptedRegion`](super::AdoptedRegion), for the calls that both have.
pub struct Managed {
    pub(super) shared: Arc<Shared>,
    pub(super) range: PageRange,
    pub(super) account: Arc<Account>,
    /// The size of a touch.
    pub(super) base: RegionBase,
}

impl Managed {
    /// Its first byte. Valid for reads and writes of [`len`](Self::len) bytes as long as the region
    /// lives; an access to a swapped-out page blocks until it is back. In a forked child the region
    /// is not there: an access to it there is a fault (SIGSEGV).
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.range.start())
    }

    /// How much of a base page first touches bring at most just now, and how often that was
    /// changed. None where the base page was chosen: they bring all of it.
    #[must_use]
    pub fn fill(&self) -> Option<Fill> {
        match &self.base.filling {
            Filling::ByDensity(density) => Some(density.fill()),
            Filling::Whole | Filling::Blocks(_) => None,
        }
    }

    /// Its base page: the one chosen for it or for its manager. By density it is the most that a
    /// first touch fills now. Adopted memory has 64 KiB where 2 MiB were chosen.
    #[must_use]
    pub fn base_page(&self) -> BasePage {
        self.fill().map_or(self.base.size, |fill| fill.size)
    }

    /// Its length in bytes: the requested one, rounded up to whole base pages, and to 64 KiB where
    /// the manager's is no less.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Stores the base pages that `offset..offset + len` touches and gives their frames to others,
    /// as madvise(2) does with `MADV_PAGEOUT`: for pages that will not be needed for a while. Where
    /// base pages are smaller than the manager's, the present pages of 64 KiB go together. Locked
    /// and shared pages stay, and so do pages that other threads hold for longer than a second.
    /// Blocks for as long as compressing takes, and for the disk when the store's memory is at its
    /// limit.
    ///
    /// # Errors
    /// See [`PageOutError`]: pages stored until then stay stored, the rest stays where it is.
    ///
    /// # Panics
    /// If it reaches beyond the end, or is empty.
    pub fn page_out(&self, offset: usize, len: usize) -> Result<(), PageOutError> {
        let engine = self.shared.engine()?;
        let range = self.part(offset, len).expect("a part of the region that is not empty");
        Ok(engine.page_out(range, &mut Scratch::new(engine.base))?)
    }

    /// The cost of releasing its stored pages; it goes on counting after the region is closed.
    #[must_use]
    pub fn account(&self) -> Arc<Account> {
        Arc::clone(&self.account)
    }

    /// The whole OS pages that `offset..offset + len` touches. None if it is empty or reaches
    /// beyond the end.
    pub(super) fn part(&self, offset: usize, len: usize) -> Option<PageRange> {
        let end = offset.checked_add(len).filter(|end| *end <= self.range.len())?;
        let from = self.range.start() + offset / OS_PAGE * OS_PAGE;
        PageRange::new(from, self.range.start() + end.next_multiple_of(OS_PAGE)).filter(|_| len > 0)
    }
}
