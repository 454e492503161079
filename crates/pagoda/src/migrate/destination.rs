//! A region into which a migration is received: it is not shown until all has arrived, or is known
//! to follow.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use pagoda_core::page::{BasePage, HUGE_FRAME, OS_PAGE};
use pagoda_core::size::Bytes;
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::mem::region_memory::RegionMemory;
use pagoda_linux::process::thread::yield_now;
use pagoda_migrate::{Content, Destination, Error, LateDestination};

use crate::engine::Engine;
use crate::manager::Manager;
use crate::region::{Region, RegionBuilder};
use crate::state::owed::{Marking, OwedPages};
use crate::stats::migration::Moving;
use crate::store::Scratch;
use crate::tree::MigrationState;

/// The future region, once a sender has told its length: [`Region::receive`] receives into it.
pub struct RegionDestination {
    manager: Manager,
    /// If one was chosen.
    base: Option<BasePage>,
    region: Option<Region>,
    /// Its owed pages, once there may be some.
    owed: OnceLock<Arc<OwedPages>>,
    /// One for each channel that is at work just now, kept for the next.
    scratch: Mutex<Vec<Scratch>>,
    /// Its progress, for observers.
    moving: Arc<Moving>,
}

impl RegionDestination {
    /// Nothing yet; the region will be one of `manager`.
    #[must_use]
    pub fn new(manager: Manager) -> Self {
        let moving = Arc::new(Moving::new(MigrationState::Receiving));
        let (region, scratch) = (None, Mutex::new(Vec::new()));
        Self { manager, base: None, region, owed: OnceLock::new(), scratch, moving }
    }

    /// The region's base page, as for one that is [made](crate::region::RegionBuilder::base_page):
    /// the sender's need not be the same.
    #[must_use]
    pub fn base_page(mut self, base_page: BasePage) -> Self {
        self.base = Some(base_page);
        self
    }

    pub(super) fn engine(&self) -> Result<Arc<Engine>, Error> {
        self.manager.maker().cloned().map_err(|error| Error::Destination(error.into()))
    }

    /// The known progress.
    pub(super) fn moving(&self) -> Arc<Moving> {
        Arc::clone(&self.moving)
    }

    /// The region, after all has arrived: after [`pagoda_migrate::receive`] has returned without an
    /// error.
    ///
    /// # Errors
    /// If no sender has come.
    pub fn into_region(mut self) -> io::Result<Region> {
        self.region.take().ok_or_else(unprepared)
    }

    /// The region, and its owed pages.
    pub(super) fn into_parts(mut self) -> io::Result<(Region, Arc<OwedPages>)> {
        let owed = self.owed.take().ok_or_else(unprepared)?;
        Ok((self.region.take().ok_or_else(unprepared)?, owed))
    }

    pub(super) fn region(&self) -> io::Result<(&Region, &RegionMemory)> {
        let region = self.region.as_ref().ok_or_else(unprepared)?;
        region.maker()?;
        Ok((region, region.memory()))
    }

    fn with_scratch<T>(&self, region: &Region, use_it: impl FnOnce(&mut Scratch) -> T) -> T {
        let known = self.scratch.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut scratch = known.unwrap_or_else(|| Scratch::new(region.engine().base));
        let result = use_it(&mut scratch);
        self.scratch.lock().unwrap_or_else(PoisonError::into_inner).push(scratch);
        result
    }
}

fn unprepared() -> io::Error {
    io::Error::other("the destination was not prepared")
}

/// The addresses of `bytes`, whole pages of the region.
fn addresses(memory: &RegionMemory, offset: u64, len: usize) -> PageRange {
    PageRange::at(memory.range().start() + Bytes::new(offset).as_usize(), len)
}

impl Destination for RegionDestination {
    /// A fresh region: a part that was received before is gone.
    fn prepare(&mut self, size: Bytes) -> io::Result<()> {
        self.region = None;
        let builder = self.manager.region(size);
        let builder = self.base.into_iter().fold(builder, RegionBuilder::base_page);
        let region = builder.create().map_err(io::Error::other)?;
        region.account().moves(&self.moving);
        self.region = Some(region);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let (region, memory) = self.region()?;
        let (whole, part) = bytes.split_at(bytes.len() / OS_PAGE * OS_PAGE);
        self.with_scratch(region, |scratch| {
            if !whole.is_empty() {
                let range = addresses(memory, offset, whole.len());
                region.engine().receive(range, whole, memory, scratch)?;
            }
            if !part.is_empty() {
                // The end of an image that ends within a page.
                let mut page = [0; OS_PAGE];
                page[..part.len()].copy_from_slice(part);
                let range = addresses(memory, offset + whole.len() as u64, OS_PAGE);
                region.engine().receive(range, &page, memory, scratch)?;
            }
            Ok(())
        })
    }

    fn receive_at(&self, offset: u64, content: &mut dyn Content, room: &mut [u8]) -> io::Result<()> {
        let (region, memory) = self.region()?;
        let at = addresses(memory, offset, room.len());
        self.with_scratch(region, |scratch| {
            region.engine().receive_content(at, content, room, memory, scratch)
        })
    }

    fn write_packed(&self, offset: u64, packed: &[u8], content: &[u8]) -> io::Result<bool> {
        let (region, memory) = self.region()?;
        let at = addresses(memory, offset, content.len());
        if region.engine().receive_packed(at, packed, content) {
            return Ok(true);
        }
        self.write_at(offset, content).map(|()| false)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.region()?.1.read_at(Bytes::new(offset).as_usize(), into);
        Ok(())
    }

    fn clear(&self, range: Range<u64>) -> io::Result<()> {
        const ZEROES: [u8; OS_PAGE] = [0; OS_PAGE];
        let memory = self.region()?.1;
        for at in range.step_by(OS_PAGE) {
            memory.write_words(Bytes::new(at).as_usize(), &ZEROES);
        }
        Ok(())
    }

    /// A part of a huge frame is cleared: a frame goes whole or not at all.
    fn discard(&self, range: Range<u64>) -> io::Result<()> {
        let (region, memory) = self.region()?;
        let len = Bytes::new(range.end - range.start).as_usize().next_multiple_of(OS_PAGE);
        let at = addresses(memory, range.start, len);
        if len < HUGE_FRAME && region.engine().is_huge(at.start()) {
            return self.clear(range);
        }
        memory.discard(Bytes::new(range.start).as_usize(), len)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.region().map(drop)
    }
}

impl LateDestination for RegionDestination {
    /// Discards the pages there first, until none is left: also where nothing has arrived there may
    /// be zeroes, which came with the rest of a base page or with a fault below.
    fn owe(&self, range: Range<u64>) -> io::Result<()> {
        let (region, memory) = self.region()?;
        let engine = region.engine();
        let owed = self.owed.get_or_init(|| {
            let owed = Arc::new(OwedPages::new(memory.range()));
            engine.owed.enter(Arc::clone(&owed));
            owed
        });
        let (offset, len) =
            (Bytes::new(range.start).as_usize(), Bytes::new(range.end - range.start).as_usize());
        let at = addresses(memory, range.start, len);
        let mut is_discarded = false;
        loop {
            match engine.mark_owed(owed, at, is_discarded) {
                Marking::Done => return Ok(()),
                Marking::Again => yield_now(),
                Marking::Holds => {
                    region.discard(offset, len)?;
                    is_discarded = true;
                }
            }
        }
    }
}

impl Drop for RegionDestination {
    fn drop(&mut self) {
        // It came to nothing: the region goes after this.
        if let (Some(region), Some(owed)) = (&self.region, self.owed.get())
            && let Ok(engine) = region.maker()
        {
            engine.owed.leave(owed);
        }
    }
}

#[cfg(test)]
#[path = "destination_test.rs"]
mod tests;
