//! A region: managed memory that a library's user owns.
//!
//! Its address is ordinary memory: reading and writing it needs no call. It never hands out
//! references itself, because only the user knows which threads write there.

mod access;
pub(crate) mod adoptable;
pub(crate) mod limit;

use std::sync::Arc;

use adoptable::check_mapped;
use pagoda_core::fault::density::Use;
use pagoda_core::page::BasePage;
use pagoda_core::size::Bytes;
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::mem::region_memory::RegionMemory;
use pagoda_linux::procfs::pagemap::PagemapScanner;

use crate::engine::shared::Shared;
use crate::error::Errno;
use crate::error::other_process::OtherProcess;
use crate::state::limits::Limit;
use crate::stats::account::Account;
use crate::store::Scratch;
use crate::table::filling::{Fill, Filling};
use crate::table::granularity::RegionBase;

#[cfg(feature = "migrate")]
use std::sync::atomic::{AtomicBool, Ordering};

pub use access::{AccessError, PageOutError};
pub use adoptable::RegionError;
pub use pagoda_linux::mem::region_memory::ForeignMemory;

#[cfg(feature = "migrate")]
use crate::engine::Engine;
#[cfg(feature = "migrate")]
use crate::migrate::Receiving;

/// A region to be; see [`Manager::region`](crate::Manager::region).
pub struct RegionBuilder {
    shared: Arc<Shared>,
    len: Bytes,
    purpose: Use,
    base: Option<BasePage>,
    limit: Option<Bytes>,
}

impl RegionBuilder {
    pub(crate) fn new(shared: Arc<Shared>, len: Bytes) -> Self {
        Self { shared, len, purpose: Use::Unknown, base: None, limit: None }
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
    /// [`Region::fill`].
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
    /// [`AccessError::LimitReached`], and an access by address raises SIGBUS, or `EFAULT` from a
    /// system call, there until the page is [discarded](Region::discard). Pages that the region
    /// holds already stay as they are, and so does every other region. Discarding makes room. Such
    /// a region has no huge frames, and nothing of it is prefetched.
    #[must_use]
    pub fn limit(mut self, most: Bytes) -> Self {
        self.limit = Some(most);
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
        let len = self.len.as_usize().checked_next_multiple_of(unit).ok_or(out_of_space)?;
        let memory = RegionMemory::map(len)
            .map_err(|error| RegionError::Map { len: self.len, errno: Errno::from(&error) })?;
        let range = memory.range();
        engine.manage(range, None, base.clone())?;
        let account = engine.owners.enter(range);
        let limit = self.limit.map(|most| engine.limits.enter(range, most));
        Ok(Region {
            limit,
            shared: self.shared,
            range,
            account,
            base,
            memory: Some(memory),
            #[cfg(feature = "migrate")]
            sending: AtomicBool::new(false),
            #[cfg(feature = "migrate")]
            receiving: None,
        })
    }
}

/// Managed memory. Dropping it frees it (or, if it was adopted, brings everything back and leaves
/// it to its owner).
pub struct Region {
    shared: Arc<Shared>,
    range: PageRange,
    account: Arc<Account>,
    /// The size of a touch.
    base: RegionBase,
    /// Its limit, if it has one.
    limit: Option<Arc<Limit>>,
    /// None if the memory is its user's.
    memory: Option<RegionMemory>,
    /// It is being sent elsewhere.
    #[cfg(feature = "migrate")]
    sending: AtomicBool,
    /// A part of it arrives later.
    #[cfg(feature = "migrate")]
    receiving: Option<Receiving>,
}

/// The right to send a region, one at a time; given back on drop.
#[cfg(feature = "migrate")]
pub(crate) struct Sending<'a>(&'a AtomicBool);

#[cfg(feature = "migrate")]
impl Drop for Sending<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

#[cfg(feature = "migrate")]
impl Region {
    /// The engine, for callers that have asked [`maker`](Self::maker).
    pub(crate) fn engine(&self) -> &Engine {
        self.shared.engine_of_maker()
    }
    /// The engine, in the process that made the region.
    pub(crate) fn maker(&self) -> Result<&Arc<Engine>, OtherProcess> {
        self.shared.engine()
    }
    /// Its own mapping. None if the memory belongs to another.
    pub(crate) fn memory(&self) -> Option<&RegionMemory> {
        self.memory.as_ref()
    }
    /// Keeps the receiver of its remaining pages, as long as the region lives.
    pub(crate) fn set_receiving(&mut self, receiving: Receiving) -> &mut Receiving {
        self.receiving.insert(receiving)
    }
    /// The receiver of pages that may not have arrived yet, if there is one.
    pub(crate) fn receiving(&self) -> Option<&Receiving> {
        self.receiving.as_ref().filter(|receiving| !receiving.is_done())
    }
    /// The right to send it. None while it is being sent already.
    pub(crate) fn sending(&self) -> Option<Sending<'_>> {
        (!self.sending.swap(true, Ordering::AcqRel)).then(|| Sending(&self.sending))
    }
}

impl Region {
    pub(crate) fn adopt(
        shared: Arc<Shared>,
        memory: ForeignMemory,
        base: Option<BasePage>,
    ) -> Result<Self, RegionError> {
        let engine = shared.engine()?;
        let mut present =
            PagemapScanner::new().map_err(|error| RegionError::Pagemap { errno: Errno::from(&error) })?;
        let range = memory.range();
        check_mapped(range)?;
        let len = Bytes::new(range.len() as u64);
        let mut base = engine.region_base(base, Use::Unknown, len)?;
        // Whether it may have huge pages is for its owner to say.
        base.size = base.size.min(BasePage::K64);
        engine.manage(range, Some(&mut present), base.clone())?;
        let account = engine.owners.enter(range);
        Ok(Self {
            limit: None,
            shared,
            range,
            account,
            base,
            memory: None,
            #[cfg(feature = "migrate")]
            sending: AtomicBool::new(false),
            #[cfg(feature = "migrate")]
            receiving: None,
        })
    }

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

    /// Copies from the region, swapping in its pages. In a region that is
    /// [arriving](Self::receive_late) it waits for pages that are not here yet.
    ///
    /// # Errors
    /// See [`AccessError`]; `into` may hold anything then.
    ///
    /// # Panics
    /// If it reaches beyond the end, or the memory was adopted (use its address).
    pub fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<(), AccessError> {
        let memory = self.own_memory()?;
        self.check_limit(offset, into.len())?;
        #[cfg(feature = "migrate")]
        if !self.await_arrival(offset, into.len()) {
            return Err(AccessError::Lost);
        }
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
        self.check_limit(offset, from.len())?;
        let memory = self.memory.as_mut();
        memory.expect("adopted memory is written through its own address").write_at(offset, from);
        Ok(())
    }

    /// All of the region as words, for one thread's use: an access to a swapped-out page blocks
    /// until it is back.
    ///
    /// # Panics
    /// As [`read_at`](Self::read_at), and in a forked child.
    pub fn words_mut(&mut self) -> &mut [u64] {
        if let Err(error) = self.shared.engine() {
            panic!("{error}");
        }
        self.memory.as_mut().expect("adopted memory is used through its own address").words_mut()
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
        self.check_limit(offset, from.len())?;
        memory.write_words(offset, from);
        Ok(())
    }

    /// Whether a call may touch this part. Where it reaches beyond the end the access says so.
    fn check_limit(&self, offset: usize, len: usize) -> Result<(), AccessError> {
        let engine = self.shared.engine()?;
        let end = offset.checked_add(len).filter(|end| *end <= self.range.len());
        let Some((limit, end)) = self.limit.as_ref().zip(end) else { return Ok(()) };
        let os_page = pagoda_core::page::OS_PAGE;
        let start = self.range.start();
        match PageRange::new(start + offset / os_page * os_page, start + end.next_multiple_of(os_page)) {
            Some(range) if !engine.admits_call(limit, range) => Err(AccessError::LimitReached),
            _ => Ok(()),
        }
    }

    /// Its own mapping.
    fn own_memory(&self) -> Result<&RegionMemory, OtherProcess> {
        self.shared.engine()?;
        Ok(self.memory.as_ref().expect("adopted memory is used through its own address"))
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
        let (engine, memory) = (self.shared.engine()?, self.own_memory()?);
        if let Some(end) = offset.checked_add(len).filter(|end| *end <= self.range.len())
            && let Some(range) = PageRange::new(
                (self.range.start() + offset) & !(pagoda_core::page::OS_PAGE - 1),
                (self.range.start() + end) & !(pagoda_core::page::OS_PAGE - 1),
            )
        {
            engine.take_huge_apart(range);
        }
        memory.discard(offset, len)
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
        let end = offset.checked_add(len).filter(|end| *end <= self.range.len());
        let range = end.and_then(|end| {
            let os_page = pagoda_core::page::OS_PAGE;
            let from = self.range.start() + offset / os_page * os_page;
            PageRange::new(from, self.range.start() + end.next_multiple_of(os_page))
        });
        let range = range.expect("a part of the region that is not empty");
        Ok(engine.page_out(range, &mut Scratch::new(engine.base))?)
    }

    /// The cost of releasing its stored pages; it goes on counting after the region is closed.
    #[must_use]
    pub fn account(&self) -> Arc<Account> {
        Arc::clone(&self.account)
    }

    /// Frees the region and returns when all its frames are back. Its stored pages follow in the
    /// background, and [`flush_releases`](crate::Manager::flush_releases) waits for that. Dropping
    /// does the same.
    pub fn close(self) {}
}

impl Drop for Region {
    fn drop(&mut self) {
        let Ok(engine) = self.shared.engine() else {
            // The mapping is not in a child, where its addresses may be another's by now.
            std::mem::forget(self.memory.take());
            #[cfg(feature = "migrate")]
            std::mem::forget(self.receiving.take());
            return;
        };
        // Before another region can have these addresses.
        self.limit.iter().for_each(|limit| engine.limits.leave(limit));
        #[cfg(feature = "migrate")]
        if let Some(mut receiving) = self.receiving.take() {
            receiving.end(engine);
        }
        match self.memory.take() {
            Some(memory) => {
                engine.keep_huge_frames(self.range);
                engine.close(memory, &self.account);
            }
            None => engine.bring_back(self.range),
        }
        engine.owners.leave(&self.account);
        engine.look_after_releases();
    }
}
