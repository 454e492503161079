//! Saving a region to an image while its owner runs.
//!
//! As a migration does: all of it is packed, then in rounds the pages that were written meanwhile,
//! and at last, while the owner's writers are stopped, the rest is copied to memory. That is the
//! one instant of the image; the copies are packed after the writers go on. Swapped-out pages
//! are read where they are, and nothing is swapped in; a stored page goes into the image as it is
//! packed (`parts`). The kernel tells which pages were written, also by writers that did not stop:
//! they are copied again, and if that does not end there is no image. It can't tell of a page that
//! was written and then evicted: such a page is compared with its copy. This module must never
//! publish an image whose pages are of two instants.

mod copied;
mod parts;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use pagoda_core::migrate::geometry::{STRIPE_BYTES, STRIPE_PAGES};
use pagoda_core::migrate::pages::{PageSet, StripePages};
use pagoda_core::page::OS_PAGE;
use pagoda_core::size::Bytes;
use pagoda_image::{Codec, ImageError, PackOptions, Writer, Written};
use pagoda_linux::mem::words::zeroed_words;
use pagoda_linux::process::joinable::both;
use pagoda_migrate::{LiveReader, LiveSource, Room};

use crate::migrate::source::RegionSource;
use crate::region::{LastSave, Managed, Region};
use copied::{COPIERS, Copied};
use parts::Parts;

/// Rounds with the owner running, the first included. Each is shorter than the one before, or its
/// owner writes faster than pages are packed, and no round would help.
const ROUNDS_MOST: u32 = 6;

/// Pages left below which the owner is stopped: 4 MiB.
const LEFT_PAGES: u64 = 1024;

/// How often pages are copied in the pause at most: each time only those that have changed since.
/// So the copies take the memory of the pages that were left, and of those that others write in the
/// milliseconds of 31 further copies.
const COPIES_MOST: usize = 32;

/// Why a region could not be saved.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The image can't be written, or its base not be read.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The region can't be read: it is being sent or saved already, or not all of it is there.
    #[error("could not read the region: {0}")]
    Region(#[source] pagoda_migrate::Error),
    /// A page can't be read, or be asked whether it was written.
    #[error("could not read the region ({0}); look at its store")]
    Read(#[source] std::io::Error),
    /// It went on being written, or used, after the stop of its writers.
    #[error(
        "the region went on being written, or pages were swapped in, after its writers had been stopped; stop all threads that use it"
    )]
    NotStopped,
}

/// A region that was saved.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Saved {
    /// Its image.
    pub image: Written,
    /// How long its writers were stopped, their own stopping and going on not included.
    pub pause: Duration,
    /// OS pages that were copied meanwhile.
    pub pages_in_pause: u64,
    /// Rounds before that.
    pub rounds: u32,
}

impl Region {
    /// Has writes tracked from the end of a save on, or not any more, which is how a region begins.
    /// A save whose [base](PackOptions::base) is the image of the last one then reads and packs
    /// only the pages written or evicted since. The first write to a page after a save costs a
    /// fault in the kernel. Sending the region ends it, as does a save that fails: the next save
    /// reads all.
    ///
    /// Takes effect with the next save.
    pub fn track_saves(&self, yes: bool) {
        self.set_tracks_saves(yes);
    }

    /// As [`Managed::snapshot`], once prefetching has ended: each page that it brings would count
    /// as written.
    ///
    /// # Errors
    /// As there.
    pub fn snapshot(
        &self,
        path: impl AsRef<Path>,
        options: PackOptions,
        stop: impl FnOnce(),
        go_on: impl FnOnce(),
    ) -> Result<Saved, SnapshotError> {
        self.wait_for_prefetch();
        Managed::snapshot(self, path, options, stop, go_on)
    }
}

impl Managed {
    /// Saves the region to an image that is to be `path`, while it is in use. An image that is
    /// there is replaced when all of the new one is on disk. With a
    /// [`base`](PackOptions::base) only blocks that differ from it take room.
    ///
    /// `stop` is called once. When it has returned no thread writes to the region, until `go_on` is
    /// called: that is the instant of the image. In between the pages that were written last are
    /// copied, [`Saved::pause`] tells how long that took. Pages that change all the same are copied
    /// again; if that does not end there is no image. No thread should read swapped-out pages
    /// meanwhile, either: to the kernel a page that is swapped in is a written one. `go_on` is
    /// called in any case once `stop` was.
    ///
    /// Blocks for as long as packing all of it takes. Adopted memory has to be
    /// [movable](crate::ForeignMemory::movable).
    ///
    /// # Errors
    /// See [`SnapshotError`]: nothing has changed at `path` then.
    pub fn snapshot(
        &self,
        path: impl AsRef<Path>,
        options: PackOptions,
        stop: impl FnOnce(),
        go_on: impl FnOnce(),
    ) -> Result<Saved, SnapshotError> {
        let base = options.base.clone();
        let fits = |last: &LastSave| {
            let len = self.len() as u64;
            base.as_ref().is_some_and(|base| base.root() == last.root && base.len_bytes() == len)
        };
        let source = RegionSource::begin_after(self, fits).map_err(SnapshotError::Region)?;
        let mut saving = Saving::begin(&source, path.as_ref(), options)?;
        let mut rounds = 0;
        loop {
            saving.collect()?;
            if rounds == ROUNDS_MOST || (rounds > 0 || saving.goes_on) && saving.left.count() <= LEFT_PAGES {
                break;
            }
            saving.pack_left()?;
            rounds += 1;
        }
        let mut copies = vec![Copied::new(saving.left.pages)];
        stop();
        let begin = Instant::now();
        let save = || saving.copy_all(&mut copies, &mut || {});
        let outcome = catch_unwind(AssertUnwindSafe(save));
        let pause = begin.elapsed();
        go_on();
        outcome.unwrap_or_else(|panicked| resume_unwind(panicked))?;
        saving.pack_copied(&copies)?;
        let image = saving.finish()?;
        if self.tracks_saves() {
            source.keep_tracking(self, image.root);
        }
        let pages_in_pause = copies.iter().map(|copied| copied.pages).sum();
        Ok(Saved { image, pause, pages_in_pause, rounds })
    }
}

/// The pages that are still to be packed.
struct Left {
    data: PageSet,
    zero: PageSet,
    pages: u64,
}

impl Left {
    fn stripes(&self) -> impl Iterator<Item = u64> + use<> {
        (0..self.pages).step_by(STRIPE_PAGES as usize)
    }

    /// Those of a stripe.
    fn of(&self, first: u64) -> StripePages {
        let mut left = self.data.stripe(first);
        self.zero.stripe(first).runs().for_each(|run| left.add(run));
        left
    }

    fn count(&self) -> u64 {
        self.stripes().map(|first| u64::from(self.of(first).count())).sum()
    }

    /// The stripes that have any, by their first pages.
    fn in_stripes(&self) -> Vec<u64> {
        self.stripes().filter(|first| !self.of(*first).is_empty()).collect()
    }

    /// Reads those of a stripe into `room`; base pages that are given as packed also into `parts`.
    fn read(
        &self,
        first: u64,
        room: &mut Room,
        reader: &mut dyn LiveReader,
        parts: &mut Parts,
    ) -> Result<(), SnapshotError> {
        let content = self.data.take_stripe(first);
        let zero = self.zero.take_stripe(first).without(content);
        room.begin(content, zero);
        parts.clear();
        let read = reader.read(first, room, &mut |pages, packed| parts.add(pages, packed));
        read.and_then(|()| parts.unpack(room)).map_err(SnapshotError::Read)
    }
}

/// An image that is being made of a region.
struct Saving<'a> {
    source: &'a RegionSource<'a>,
    readers: [Box<dyn LiveReader + 'a>; COPIERS],
    /// Gives pages as they are packed, where the image takes them so.
    packed_reader: Box<dyn LiveReader + 'a>,
    parts: Parts,
    writer: Writer,
    left: Left,
    /// Blocks that were put.
    put: PageSet,
    room: Room,
    /// One block.
    block: Vec<u8>,
    has_base: bool,
    /// Blocks that are not put are the base's: nothing in them has changed since that was saved.
    goes_on: bool,
}

impl<'a> Saving<'a> {
    fn begin(source: &'a RegionSource<'a>, path: &Path, options: PackOptions) -> Result<Self, SnapshotError> {
        let has_base = options.base.is_some();
        let pages = source.size().get() / OS_PAGE as u64;
        let set = || PageSet::new(zeroed_words(Bytes::new(PageSet::words_for(pages)).as_usize()));
        let reader = |packs| source.reader(packs).map_err(SnapshotError::Read);
        // A store's packing is LZ4's speed, and nearly its size: another codec was asked for.
        let takes_packed = options.codec == Codec::Lz4;
        let writer = Writer::create(path, source.size().get(), options)?;
        Ok(Self {
            readers: [reader(false)?, reader(false)?],
            packed_reader: reader(takes_packed)?,
            parts: Parts::default(),
            source,
            block: vec![0; writer.block_bytes()],
            writer,
            left: Left { data: set(), zero: set(), pages },
            put: set(),
            room: Room::default(),
            has_base,
            goes_on: source.goes_on(),
        })
    }

    /// Looks for pages to be packed.
    fn collect(&self) -> Result<(), SnapshotError> {
        self.look().map(drop)
    }

    /// The same. Returns how many pages may have been written.
    fn look(&self) -> Result<u64, SnapshotError> {
        self.source.collect(&self.left.data, &self.left.zero).map_err(SnapshotError::Read)
    }

    fn pack_left(&mut self) -> Result<(), SnapshotError> {
        let mut room = std::mem::take(&mut self.room);
        for first in self.left.in_stripes() {
            self.left.read(first, &mut room, &mut *self.packed_reader, &mut self.parts)?;
            self.put(first, &room)?;
        }
        self.parts.clear();
        self.room = room;
        Ok(())
    }

    /// Copies the remaining pages to memory, with the writers stopped, and again those that have
    /// changed since they were copied, until there are none: the instant of the image is that
    /// moment. A page that is evicted right before it is read is swapped in, and to the kernel that
    /// is a write; so are pages that a handler still reads ahead. `meanwhile` is called before each
    /// look.
    fn copy_all(
        &mut self,
        copies: &mut Vec<Copied>,
        meanwhile: &mut dyn FnMut(),
    ) -> Result<(), SnapshotError> {
        for _ in 0..COPIES_MOST {
            self.copy_left(copies.last_mut().expect("the caller has made one"))?;
            meanwhile();
            if self.is_unchanged(copies)? {
                return Ok(());
            }
            copies.push(Copied::new(0));
        }
        Err(SnapshotError::NotStopped)
    }

    /// Copies the remaining pages to memory.
    fn copy_left(&mut self, copied: &mut Copied) -> Result<(), SnapshotError> {
        self.collect()?;
        let stripes = self.left.in_stripes();
        copied.pages = stripes.iter().map(|first| u64::from(self.left.of(*first).count())).sum();
        let (own, others) = stripes.split_at(stripes.len() / 2);
        let ([part, other_part], [reader, other_reader]) = (&mut copied.parts, &mut self.readers);
        let left = &self.left;
        let copy_own = || part.copy(left, own, &mut **reader);
        let (copied, others_copied) = both(copy_own, || other_part.copy(left, others, &mut **other_reader));
        copied.and(others_copied)
    }

    fn pack_copied(&mut self, copies: &[Copied]) -> Result<(), SnapshotError> {
        let mut room = std::mem::take(&mut self.room);
        for part in copies.iter().flat_map(|copied| &copied.parts) {
            for stripe in &part.stripes {
                part.load(stripe, &mut room);
                self.put(stripe.first, &room)?;
            }
        }
        Ok(())
    }

    /// Whether no page has changed since the last of `copies` was made. The pages that are left
    /// then were evicted meanwhile, or can't be marked as read: they are compared. Those that have
    /// changed are one more copy: a swapped-out page that was read is not given a second time.
    fn is_unchanged(&mut self, copies: &mut Vec<Copied>) -> Result<bool, SnapshotError> {
        if self.look()? > 0 {
            return Ok(false);
        }
        let mut room = std::mem::take(&mut self.room);
        let mut changed = Copied::new(0);
        for first in self.left.in_stripes() {
            self.left.read(first, &mut room, &mut *self.readers[0], &mut self.parts)?;
            if !self.is_saved(first, &room, copies)? {
                changed.parts[0].keep(first, &room);
            }
        }
        self.room = room;
        let is_unchanged = changed.parts[0].stripes.is_empty();
        if !is_unchanged {
            copies.push(changed);
        }
        Ok(is_unchanged)
    }

    /// Whether the pages of a stripe that `room` has are those that were copied or packed last.
    fn is_saved(&mut self, first: u64, room: &Room, copies: &[Copied]) -> Result<bool, SnapshotError> {
        let found = copies.iter().rev().filter_map(|copied| copied.find(first));
        let found: Vec<Room> = found.map(|(part, stripe)| part.loaded(stripe)).collect();
        let block_pages = (self.block.len() / OS_PAGE) as u64;
        for page in room.content().runs().flatten() {
            let bytes = |room: &Room| room.bytes()[page as usize * OS_PAGE..][..OS_PAGE].to_vec();
            let own = found.iter().find(|own| own.content().has(page) || own.zero().has(page));
            let saved = match own {
                Some(own) if own.content().has(page) => bytes(own),
                Some(_) => vec![0; OS_PAGE],
                _ => {
                    let (block, within) =
                        ((first + u64::from(page)) / block_pages, u64::from(page) % block_pages);
                    self.block.fill(0);
                    if self.put.has(block) || self.goes_on {
                        self.writer.read_back(block, &mut self.block)?;
                    }
                    self.block[within as usize * OS_PAGE..][..OS_PAGE].to_vec()
                }
            };
            if bytes(room) != saved {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Packs the pages of a stripe that `room` has. A block of which it has a part keeps the rest
    /// as it was packed before.
    fn put(&mut self, first: u64, room: &Room) -> Result<(), SnapshotError> {
        let (content, zero) = (room.content(), room.zero());
        let block_pages = (self.block.len() / OS_PAGE) as u32;
        for from in (0..STRIPE_PAGES).step_by(block_pages as usize) {
            let own = from..from + block_pages;
            let has = |page: u32| content.has(page) || zero.has(page);
            if !own.clone().any(has) {
                continue;
            }
            let block = (first + u64::from(from)) / u64::from(block_pages);
            let was_put = self.put.has(block);
            self.put.add(block..block + 1);
            if let Some(parts) = self.parts.of(own.clone()) {
                let bytes = &room.bytes()[from as usize * OS_PAGE..][..self.block.len()];
                self.writer.put_parts(block, bytes, parts)?;
                continue;
            }
            if !own.clone().all(has) && (was_put || self.goes_on) {
                self.writer.read_back(block, &mut self.block)?;
            } else {
                self.block.fill(0);
            }
            for (page, bytes) in own.zip(self.block.chunks_mut(OS_PAGE)) {
                if content.has(page) {
                    bytes.copy_from_slice(&room.bytes()[page as usize * OS_PAGE..][..OS_PAGE]);
                } else if zero.has(page) {
                    bytes.fill(0);
                }
            }
            self.writer.put(block, &self.block)?;
        }
        for run in content.runs() {
            self.writer.mark_received(first + u64::from(run.start), first + u64::from(run.end));
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Written, SnapshotError> {
        // Blocks that the base has and the region has not.
        let zeroes = self.has_base && !self.goes_on;
        for block in (0..self.writer.blocks()).filter(|block| zeroes && !self.put.has(*block)) {
            self.writer.put_zeroes(block);
        }
        Ok(self.writer.finish()?)
    }
}

const _: () = assert!(STRIPE_BYTES.is_multiple_of(64 << 10), "a stripe has whole blocks");

#[cfg(test)]
#[path = "snapshot_test.rs"]
mod tests;
