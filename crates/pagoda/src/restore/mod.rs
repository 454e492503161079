//! Restoring a region from an image: nothing is read but the index, and each page comes in when it
//! is touched.
//!
//! The image is a tier of the store (`store/images.rs`): every page of it that is not zero begins
//! as a stored one, so that faults, readahead and eviction are those of all regions. A working set
//! that an earlier restore recorded is read ahead (`prefetch`). This module must never write to the
//! image.

pub(crate) mod held;
mod prefetch;
mod private;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use pagoda_core::page::{BasePage, OS_PAGE};
use pagoda_core::page_entry::{Backing, Word};
use pagoda_core::size::Bytes;
use pagoda_image::{Image, ImageError, Key, WorkingSet};
use pagoda_linux::io::direct_file::AlignedBuffer;
use pagoda_linux::mem::range::PageRange;

use crate::engine::Engine;
use crate::engine::shared::Shared;
use crate::error::other_process::OtherProcess;
use crate::manager::Manager;
use crate::region::{AccessError, Region, RegionBuilder, RegionError};
use crate::store::{Handle, IMAGE_PAGES_MOST, IMAGES_MOST, OpenImage, OpenImageError};
use held::Restored;
use prefetch::Prefetch;

/// Why a region could not be restored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The manager is another process's.
    #[error(transparent)]
    OtherProcess(#[from] OtherProcess),
    /// The image can't be read, or is no image.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The region can't be made.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// Too many different images are open.
    #[error("{} different images are open already; close regions of one of them", IMAGES_MOST)]
    TooManyImages,
    /// The image is longer than can be restored with this base page.
    #[error("an image of {len} can't be restored with base pages of {base}; use a manager with larger ones")]
    TooLong {
        /// Its length.
        len: Bytes,
        /// The manager's base page.
        base: BasePage,
    },
    /// The region was not restored from an image.
    #[error("the region was not restored from an image; only such a region has a working set")]
    NotRestored,
}

/// A region to be restored; see [`Manager::restore`](crate::Manager::restore).
pub struct RestoreBuilder {
    shared: Arc<Shared>,
    path: PathBuf,
    key: Option<Key>,
    base: Option<BasePage>,
    prefetches: bool,
}

impl RestoreBuilder {
    fn new(shared: Arc<Shared>, path: &Path) -> Self {
        Self { shared, path: path.to_owned(), key: None, base: None, prefetches: true }
    }

    /// The key of the image; without it the one in the file beside it.
    #[must_use]
    pub fn key(mut self, key: Key) -> Self {
        self.key = Some(key);
        self
    }

    /// The region's base page, as for [`RegionBuilder::base_page`].
    #[must_use]
    pub fn base_page(mut self, base_page: BasePage) -> Self {
        self.base = Some(base_page);
        self
    }

    /// Whether a recorded working set is read ahead, in the background and in its order; it is by
    /// default. It takes free memory only, and evicts nothing.
    #[must_use]
    pub fn prefetch(mut self, yes: bool) -> Self {
        self.prefetches = yes;
        self
    }

    /// Makes the region. It has the content of the image, of which only the index is read now. It
    /// is as long as the image, rounded up as [`Managed::len`](crate::Managed::len) tells. The
    /// image's file must not be written as long as the region lives; replacing it by another does
    /// no harm. A part of the region that the program moves by mremap(2) must be unmapped before
    /// the region is closed: the image is closed with it. A touch of a page that is damaged in the
    /// image, or can't be read, raises SIGBUS; [`Region::read_at`] returns an error in its place.
    ///
    /// # Errors
    /// See [`RestoreError`].
    pub fn create(self) -> Result<Region, RestoreError> {
        let Self { shared, path, key, base, prefetches } = self;
        let engine = Arc::clone(shared.engine()?);
        let open = engine.store.open_image(&path, key).map_err(|error| match error {
            OpenImageError::Image(error) => RestoreError::Image(error),
            OpenImageError::TooMany => RestoreError::TooManyImages,
        })?;
        let len = Bytes::new(open.source.len_bytes());
        if len.get().div_ceil(engine.store.page_bytes() as u64) > IMAGE_PAGES_MOST {
            return Err(RestoreError::TooLong { len, base: engine.base });
        }
        let builder = RegionBuilder::new(shared, len);
        let mut region = match base {
            Some(base) => builder.base_page(base).create()?,
            None => builder.create()?,
        };
        let range = region.range();
        engine.enter_image(range, &open);
        let set = open.source.image().filter(|_| prefetches).and_then(Image::working_set);
        let prefetch = set.and_then(|set| Prefetch::start(engine, &open, set, range));
        region.set_restored(Restored { open, prefetch });
        Ok(region)
    }
}

impl Manager {
    /// Begins to restore a region from the image at `path`, which `pagoda image pack` makes. Its
    /// pages are read when they are touched.
    #[must_use]
    pub fn restore(&self, path: impl AsRef<Path>) -> RestoreBuilder {
        RestoreBuilder::new(Arc::clone(self.shared()), path.as_ref())
    }
}

impl Region {
    /// Records the working set of the image that this region was restored from: the blocks that
    /// were read until now, by all regions of this manager that were restored from it, in the order
    /// of their first touches. It lies beside the image, as its name with `.ws`, and the next
    /// [restore](crate::Manager::restore) reads it ahead. Blocks that came by prefetching are in
    /// it. Blocks for the disk.
    ///
    /// # Errors
    /// See [`RestoreError`]. An earlier working set stays then.
    pub fn record_working_set(&self) -> Result<(), RestoreError> {
        self.maker()?;
        let restored = self.restored().ok_or(RestoreError::NotRestored)?;
        let image = restored.open.source.image().ok_or(RestoreError::NotRestored)?;
        Ok(WorkingSet::record(image, &restored.open.touches.all())?)
    }

    /// Waits until prefetching has ended. Returns at once if there is none, and in a forked child.
    pub fn wait_for_prefetch(&self) {
        if self.maker().is_ok()
            && let Some(prefetch) = self.restored().and_then(|restored| restored.prefetch.as_ref())
        {
            prefetch.wait();
        }
    }

    /// Makes sure that a touch of this part raises no SIGBUS: that the image's content there can be
    /// had.
    pub(crate) fn check_image(&self, offset: usize, len: usize) -> Result<(), AccessError> {
        let Some(restored) = self.restored() else { return Ok(()) };
        let pages = offset / OS_PAGE..(offset + len).div_ceil(OS_PAGE);
        self.maker()?.check_image(self.range(), pages, &restored.open)
    }
}

impl Engine {
    /// Enters the pages of an image as stored pages of `range`, a new region.
    pub(super) fn enter_image(&self, range: PageRange, open: &OpenImage) {
        let table = self.gate_shared();
        let span = table.find(range.start()).expect("a new region is in the table");
        let page_bytes = self.store.page_bytes();
        let first = span.indices(range, table.entry_bytes()).start;
        let pages = open.source.len_bytes().div_ceil(page_bytes as u64);
        for page in 0..pages as u32 {
            let Some(handle) = open.handle(page, page_bytes) else { continue };
            let entry = span.entry(first + page as usize);
            let entered = Word::EMPTY.with_backing(Backing::Handle(handle.to_bits())).bits();
            while let Err(bits) =
                entry.compare_exchange_weak(Word::EMPTY.bits(), entered, Ordering::AcqRel, Ordering::Relaxed)
            {
                // Only the reclaimer knows of the entry, and holds it for a moment. Anything else
                // would be read in place of the image's content.
                assert_eq!(Word::from_bits(bits).idle(), Word::EMPTY, "a new region");
                std::hint::spin_loop();
            }
        }
    }

    /// Makes sure that the image's content of these OS pages can be had, where a touch would read
    /// it. A block that was read from the image before is not read again for that.
    fn check_image(
        &self,
        range: PageRange,
        pages: std::ops::Range<usize>,
        open: &OpenImage,
    ) -> Result<(), AccessError> {
        let (mut content, mut room) = ([0; OS_PAGE], AlignedBuffer::new(OS_PAGE));
        for page in pages {
            let address = range.start() + page * OS_PAGE;
            let table = self.gate_shared();
            let Some(span) = table.find(address) else { return Ok(()) };
            let of = table.page_at(span, address);
            let word = span.word(of.index);
            drop(table);
            let is_read = match word.backing() {
                Backing::Handle(handle) => self.store.is_of_image(Handle::from_bits(handle)),
                _ => false,
            };
            if !is_read || word.resident().has(of.granule_of(address)) {
                continue;
            }
            let at = (page * OS_PAGE) as u64;
            if open.touches.was_read(at / open.source.block_bytes() as u64) {
                continue;
            }
            if open.source.read(at, &mut content, &mut room).is_err() {
                return Err(AccessError::Damaged { offset: page * OS_PAGE });
            }
        }
        Ok(())
    }
}
