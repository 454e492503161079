//! A region into which a migration is received: it is not shown until all has arrived, or is known
//! to follow.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use pagoda_core::page::{BasePage, HUGE_FRAME, OS_PAGE};
use pagoda_core::size::Bytes;
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::mem::region_bytes::RegionBytes;
use pagoda_linux::process::thread::yield_now;
use pagoda_migrate::{Content, Destination, Error, LateDestination};

use crate::engine::Engine;
use crate::manager::Manager;
use crate::migrate::place::{Fresh, Place};
use crate::region::{Managed, Region};
use crate::state::owed::{Marking, OwedPages};
use crate::stats::migration::Moving;
use crate::store::Scratch;
use crate::tree::MigrationState;

/// The future region, once a sender has told its length: [`Region::receive`] receives into it.
pub struct RegionDestination<P: Place = Fresh> {
    pub(super) place: P,
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
        Self::at(Fresh { manager, base: None, region: None })
    }

    /// The region's base page, as for one that is [made](crate::region::RegionBuilder::base_page):
    /// the sender's need not be the same.
    #[must_use]
    pub fn base_page(mut self, base_page: BasePage) -> Self {
        self.place.base = Some(base_page);
        self
    }

    pub(super) fn engine(&self) -> Result<Arc<Engine>, Error> {
        self.place.manager.maker().cloned().map_err(|error| Error::Destination(error.into()))
    }

    /// The region, after all has arrived: after [`pagoda_migrate::receive`] has returned without an
    /// error.
    ///
    /// # Errors
    /// If no sender has come.
    pub fn into_region(mut self) -> io::Result<Region> {
        self.place.region.take().ok_or_else(unprepared)
    }
}

impl<P: Place> RegionDestination<P> {
    pub(super) fn at(place: P) -> Self {
        let moving = Arc::new(Moving::new(MigrationState::Receiving));
        Self { place, owed: OnceLock::new(), scratch: Mutex::new(Vec::new()), moving }
    }

    /// The known progress.
    pub(super) fn moving(&self) -> Arc<Moving> {
        Arc::clone(&self.moving)
    }

    /// The region, and its owed pages.
    pub(super) fn take_parts(&mut self) -> io::Result<(&mut Managed, Arc<OwedPages>)> {
        let owed = self.owed.take().ok_or_else(unprepared)?;
        Ok((self.place.managed_mut().ok_or_else(unprepared)?, owed))
    }

    pub(super) fn prepared(&self) -> io::Result<(&Engine, &RegionBytes)> {
        let region = self.place.managed().ok_or_else(unprepared)?;
        Ok((region.maker()?, region.bytes()?))
    }

    fn with_scratch<T>(&self, engine: &Engine, use_it: impl FnOnce(&mut Scratch) -> T) -> T {
        let known = self.scratch.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut scratch = known.unwrap_or_else(|| Scratch::new(engine.base));
        let result = use_it(&mut scratch);
        self.scratch.lock().unwrap_or_else(PoisonError::into_inner).push(scratch);
        result
    }
}

fn unprepared() -> io::Error {
    io::Error::other("the destination was not prepared")
}

/// The addresses of `bytes`, whole pages of the region.
fn addresses(memory: &RegionBytes, offset: u64, len: usize) -> PageRange {
    PageRange::at(memory.range().start() + Bytes::new(offset).as_usize(), len)
}

impl<P: Place> Destination for RegionDestination<P> {
    fn prepare(&mut self, size: Bytes) -> io::Result<()> {
        self.place.prepare(size)?;
        self.place.managed().ok_or_else(unprepared)?.account().moves(&self.moving);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let (engine, memory) = self.prepared()?;
        let (whole, part) = bytes.split_at(bytes.len() / OS_PAGE * OS_PAGE);
        self.with_scratch(engine, |scratch| {
            if !whole.is_empty() {
                let range = addresses(memory, offset, whole.len());
                engine.receive(range, whole, memory, scratch)?;
            }
            if !part.is_empty() {
                // The end of an image that ends within a page.
                let mut page = [0; OS_PAGE];
                page[..part.len()].copy_from_slice(part);
                let range = addresses(memory, offset + whole.len() as u64, OS_PAGE);
                engine.receive(range, &page, memory, scratch)?;
            }
            Ok(())
        })
    }

    fn receive_at(&self, offset: u64, content: &mut dyn Content, room: &mut [u8]) -> io::Result<()> {
        let (engine, memory) = self.prepared()?;
        let at = addresses(memory, offset, room.len());
        self.with_scratch(engine, |scratch| engine.receive_content(at, content, room, memory, scratch))
    }

    fn write_packed(&self, offset: u64, packed: &[u8], content: &[u8]) -> io::Result<bool> {
        let (engine, memory) = self.prepared()?;
        let at = addresses(memory, offset, content.len());
        if engine.receive_packed(at, packed, content) {
            return Ok(true);
        }
        self.write_at(offset, content).map(|()| false)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.prepared()?.1.read_at(Bytes::new(offset).as_usize(), into);
        Ok(())
    }

    fn clear(&self, range: Range<u64>) -> io::Result<()> {
        const ZEROES: [u8; OS_PAGE] = [0; OS_PAGE];
        let memory = self.prepared()?.1;
        for at in range.step_by(OS_PAGE) {
            memory.write_words(Bytes::new(at).as_usize(), &ZEROES);
        }
        Ok(())
    }

    /// A part of a huge frame is cleared: a frame goes whole or not at all.
    fn discard(&self, range: Range<u64>) -> io::Result<()> {
        let (engine, memory) = self.prepared()?;
        let len = Bytes::new(range.end - range.start).as_usize().next_multiple_of(OS_PAGE);
        let at = addresses(memory, range.start, len);
        if len < HUGE_FRAME && engine.is_huge(at.start()) {
            return self.clear(range);
        }
        memory.discard(Bytes::new(range.start).as_usize(), len)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.prepared().map(drop)
    }
}

impl<P: Place> LateDestination for RegionDestination<P> {
    /// Discards the pages there first, until none is left: also where nothing has arrived there may
    /// be zeroes, which came with the rest of a base page or with a fault below.
    fn owe(&self, range: Range<u64>) -> io::Result<()> {
        let (engine, memory) = self.prepared()?;
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
                    self.place.managed().ok_or_else(unprepared)?.empty(offset, len)?;
                    is_discarded = true;
                }
            }
        }
    }
}

impl<P: Place> Drop for RegionDestination<P> {
    fn drop(&mut self) {
        // It came to nothing: the region goes after this, or is emptied.
        if let (Ok((engine, _)), Some(owed)) = (self.prepared(), self.owed.get()) {
            let gate = engine.gate_exclusive();
            engine.forget_owed(owed.range());
            drop(gate);
            engine.owed.leave(owed);
        }
    }
}

#[cfg(test)]
#[path = "destination_test.rs"]
mod tests;
