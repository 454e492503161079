//! Managed memory behind a handle: the calls that regions and adopted regions share.
//!
//! This module must never touch the memory itself, which may be another owner's.

use std::io;
use std::sync::Arc;

use pagoda_core::page::{BasePage, OS_PAGE};
use pagoda_core::size::Bytes;
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::mem::region_bytes::RegionBytes;
use pagoda_linux::mem::region_memory::{ForeignMemory, RegionMemory};

use super::access::{AccessError, PageOutError};
#[cfg(feature = "migrate")]
use super::moves::Moves;
use super::pinned::{PinError, Pinned};
use super::presence::Usage;
use crate::engine::Engine;
use crate::engine::shared::Shared;
use crate::error::other_process::OtherProcess;
use crate::state::limits::Limit;
use crate::stats::account::Account;
use crate::store::Scratch;
use crate::table::filling::{Fill, Filling};
use crate::table::granularity::RegionBase;

/// A managed range of memory: a [`Region`](super::Region) or an
/// [`AdoptedRegion`](super::AdoptedRegion), for the calls that both have.
pub struct Managed {
    pub(super) shared: Arc<Shared>,
    pub(super) range: PageRange,
    pub(super) memory: Memory,
    pub(super) account: Arc<Account>,
    /// The size of a touch.
    pub(super) base: RegionBase,
    /// Its limit, if it has one.
    pub(super) limit: Option<Arc<Limit>>,
    /// Whether it is being sent, and what arrives.
    #[cfg(feature = "migrate")]
    pub(super) moves: Moves,
}

/// The mapping behind a managed range.
pub(super) enum Memory {
    /// The region's own, there until it is dropped.
    Own(RegionMemory),
    /// Another owner's.
    #[cfg_attr(not(feature = "migrate"), expect(dead_code, reason = "only a migration uses its bytes"))]
    Foreign(ForeignMemory),
    /// None any more.
    Gone,
}

impl Memory {
    /// The region's own, of a caller that knows that it is.
    pub(super) fn own(&self) -> &RegionMemory {
        match self {
            Self::Own(memory) => memory,
            Self::Foreign(_) | Self::Gone => unreachable!("it is a region's until that is dropped"),
        }
    }
    pub(super) fn own_mut(&mut self) -> &mut RegionMemory {
        match self {
            Self::Own(memory) => memory,
            Self::Foreign(_) | Self::Gone => unreachable!("it is a region's until that is dropped"),
        }
    }
}

/// Keeps a part in memory for the time of one access, if no page of it is swapped out. None without
/// a part, of which the access tells.
pub(super) fn hold_if_here(
    engine: &Engine,
    part: Option<PageRange>,
) -> Result<Option<Pinned<'_>>, AccessError> {
    let Some(range) = part else { return Ok(None) };
    let pin = Pinned::for_a_moment(engine, range).ok_or(AccessError::WouldBlock)?;
    if engine.is_all_here(range) { Ok(Some(pin)) } else { Err(AccessError::WouldBlock) }
}

impl Managed {
    pub(super) fn new(
        shared: Arc<Shared>,
        (memory, range): (Memory, PageRange),
        account: Arc<Account>,
        base: RegionBase,
    ) -> Self {
        #[cfg(feature = "migrate")]
        let moves = Moves::default();
        Self {
            shared,
            range,
            memory,
            account,
            base,
            limit: None,
            #[cfg(feature = "migrate")]
            moves,
        }
    }

    /// Its first byte. Valid for reads and writes of [`len`](Self::len) bytes as long as the region
    /// lives; an access to a swapped-out page blocks until it is back. In a forked child the region
    /// is not there: an access to it there is a fault (SIGSEGV).
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.range.start())
    }

    /// Whether faults that the kernel has in this memory are served: those of system calls that are
    /// handed its address, and of a guest of KVM. They are not with
    /// [`user_mode_only`](crate::ManagerBuilder::user_mode_only) and
    /// [`serve_in_thread`](crate::ManagerBuilder::serve_in_thread). A system call fails with
    /// `EFAULT` then where a page is not present, and KVM takes the access for one to a device.
    #[must_use]
    pub fn serves_the_kernel(&self) -> bool {
        self.shared.serves_the_kernel()
    }

    /// Whether the memory is there: it is in the process that made it, and in no child of a fork.
    /// For callers that use its [address](Self::as_ptr). It costs a few nanoseconds.
    ///
    /// # Errors
    /// [`OtherProcess`] in any other process.
    pub fn check_process(&self) -> Result<(), OtherProcess> {
        self.shared.engine().map(|_| ())
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
        Ok(engine.page_out(self.expect_part(offset, len), &mut Scratch::new(engine.base))?)
    }

    /// Swaps in the pages that `offset..offset + len` touches, now and in this thread, upwards and
    /// up to a quarter of the budget; colder pages are evicted for them. Pages that were never
    /// touched stay untouched. Blocks for the disk where content is spilled. Returns how many bytes
    /// it swapped in: less than there were if memory could not be had.
    ///
    /// # Errors
    /// [`AccessError::OtherProcess`] in a forked child.
    ///
    /// # Panics
    /// If it reaches beyond the end, or is empty.
    pub fn prefetch(&self, offset: usize, len: usize) -> Result<usize, AccessError> {
        let engine = self.shared.engine()?;
        Ok(engine.prefetch(self.expect_part(offset, len), &mut Scratch::new(engine.base)))
    }

    /// Advice that `offset..offset + len` is needed soon: a thread of the manager prefetches it, as
    /// [`prefetch`](Self::prefetch) does. Returns at once. Where 64 parts wait already, or the
    /// region is closed before, nothing comes of it.
    ///
    /// # Errors
    /// [`AccessError::OtherProcess`] in a forked child.
    ///
    /// # Panics
    /// If it reaches beyond the end, or is empty.
    pub fn will_need(&self, offset: usize, len: usize) -> Result<(), AccessError> {
        let engine = self.shared.engine()?;
        let range = self.expect_part(offset, len);
        // Without a thread the pages come by their faults.
        if self.shared.start_helpers().is_ok() {
            engine.helpers.advise(range);
        }
        Ok(())
    }

    /// Brings in the pages that `offset..offset + len` touches, as their first touches and accesses
    /// would, and keeps them: none is evicted as long as the pin lives. So an access there waits
    /// for nothing, and a system call finds the pages also with
    /// [`user_mode_only`](crate::ManagerBuilder::user_mode_only). A discard empties pinned pages
    /// like others. Blocks until all of them are in.
    ///
    /// # Errors
    /// See [`PinError`]: of all regions of a manager a quarter of the budget can be pinned at once.
    ///
    /// # Panics
    /// If it reaches beyond the end, or is empty.
    pub fn pin(&self, offset: usize, len: usize) -> Result<Pinned<'_>, PinError> {
        let engine = self.shared.engine()?;
        let range = self.expect_part(offset, len);
        self.check_limit(offset, len)?;
        let pin = Pinned::for_good(engine, range)?;
        engine.bring_in(range, &mut Scratch::new(engine.base))?;
        Ok(pin)
    }

    /// Where its content is now. It looks at the entries of the whole region, a few nanoseconds for
    /// each base page that was ever used, and waits for nothing. All of it is empty in a forked
    /// child.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.shared.engine().map(|engine| engine.usage(self.range)).unwrap_or_default()
    }

    /// How much of a part of it lies in frames of each zone, by name, in the order in which they
    /// were named: in the region or staged. Empty unless there are several, and in a forked child.
    ///
    /// Panics if the part is not within the region.
    #[must_use]
    pub fn zones(&self, offset: usize, len: usize) -> Vec<(String, Bytes)> {
        let range = self.expect_part(offset, len);
        self.shared.engine().map(|engine| engine.bytes_by_zone(range)).unwrap_or_default()
    }

    /// The cost of releasing its stored pages; it goes on counting after the region is closed.
    #[must_use]
    pub fn account(&self) -> Arc<Account> {
        Arc::clone(&self.account)
    }

    /// The engine, in the process that made the region.
    #[cfg(any(feature = "image", feature = "migrate"))]
    pub(crate) fn maker(&self) -> Result<&Arc<Engine>, OtherProcess> {
        self.shared.engine()
    }

    /// Its addresses.
    #[cfg(any(feature = "image", feature = "migrate"))]
    pub(crate) fn range(&self) -> PageRange {
        self.range
    }

    /// Discards whole OS pages of its memory, as [`Region::discard`](super::Region::discard).
    pub(super) fn discard_bytes(&self, bytes: &RegionBytes, offset: usize, len: usize) -> io::Result<()> {
        let engine = self.shared.engine()?;
        if let Some(end) = offset.checked_add(len).filter(|end| *end <= self.range.len())
            && let Some(range) = PageRange::new(
                (self.range.start() + offset) & !(OS_PAGE - 1),
                (self.range.start() + end) & !(OS_PAGE - 1),
            )
        {
            engine.take_huge_apart(range);
        }
        bytes.discard(offset, len)
    }

    /// Whether a call may touch this part. Where it reaches beyond the end the access says so.
    pub(super) fn check_limit(&self, offset: usize, len: usize) -> Result<(), AccessError> {
        let engine = self.shared.engine()?;
        let Some((limit, range)) = self.limit.as_ref().zip(self.part(offset, len)) else { return Ok(()) };
        if engine.admits_call(limit, range) { Ok(()) } else { Err(AccessError::LimitReached) }
    }

    fn expect_part(&self, offset: usize, len: usize) -> PageRange {
        self.part(offset, len).expect("a part of the region that is not empty")
    }

    /// The whole OS pages that `offset..offset + len` touches. None if it is empty or reaches
    /// beyond the end.
    pub(super) fn part(&self, offset: usize, len: usize) -> Option<PageRange> {
        let end = offset.checked_add(len).filter(|end| *end <= self.range.len())?;
        let from = self.range.start() + offset / OS_PAGE * OS_PAGE;
        PageRange::new(from, self.range.start() + end.next_multiple_of(OS_PAGE)).filter(|_| len > 0)
    }
}
