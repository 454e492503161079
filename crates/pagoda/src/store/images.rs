//! Images as a tier: the pages of restored regions, which are read from an image's file, and of
//! regions that show a plain file privately.
//!
//! It is read-only. A page that is written goes to the other tiers under a handle of theirs, and a
//! page that was not is dropped when it is evicted, because the image still has it. A handle names
//! an open image by a number, and a page there. All regions that are restored from one file share
//! one open image: its descriptor, its index, and the kernel's cache of its packed bytes.
//!
//! Nothing here may give bytes that the image's digests do not vouch for.

use std::fs::Metadata;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use pagoda_image::{Image, ImageError, Key};
use pagoda_linux::process::lock::Lock;

use super::handle::{IMAGES_MOST, ImagePage, Meaning};
use super::image_source::{PlainFile, Source};
use super::{GetError, Handle, Scratch, TieredStore};
use crate::state::touches::Touches;

/// An image from which regions were restored. It is open as long as one of them lives.
pub(crate) struct OpenImage {
    pub(crate) source: Source,
    /// Its file, as it was when it was opened; none of a plain file, which is not shared.
    file: Option<FileIdentity>,
    number: u8,
    /// Differs from that of each earlier image with the same number.
    serial: u64,
    /// The blocks that were read, in the order of their first touch.
    pub(crate) touches: Touches,
}

/// The device, the number and the last change of a file.
pub(super) type FileIdentity = [i64; 4];

/// The images that are open, by their numbers.
pub(super) struct Images {
    open: Lock<Vec<Weak<OpenImage>>>,
    serials: AtomicU64,
}

impl Default for Images {
    fn default() -> Self {
        Self { open: Lock::new(Vec::new()), serials: AtomicU64::new(0) }
    }
}

/// A part of a page that was read ahead of its use, without the gate.
#[derive(Default)]
pub(super) struct Brought {
    of: Option<(Handle, u64)>,
    part: Range<usize>,
    bytes: Vec<u8>,
}

pub(super) fn identity(file: &Metadata) -> FileIdentity {
    [file.dev() as i64, file.ino() as i64, file.ctime(), file.ctime_nsec()]
}

/// Why an image can't be had for a restore.
#[derive(Debug)]
pub(crate) enum OpenImageError {
    /// The image.
    Image(ImageError),
    /// So many are open already.
    TooMany,
}

impl Images {
    fn of(&self, number: u8) -> Option<Arc<OpenImage>> {
        self.open.lock().get(usize::from(number))?.upgrade()
    }
}

impl OpenImage {
    /// The handle of a page; None if it is zero all over.
    pub(crate) fn handle(&self, page: u32, page_bytes: usize) -> Option<Handle> {
        let is_zero = self.source.is_zero(u64::from(page) * page_bytes as u64, page_bytes);
        (!is_zero).then(|| Handle::image(ImagePage { number: self.number, page }))
    }
}

impl TieredStore {
    /// Opens the image at `path`, unless it is open already.
    pub(crate) fn open_image(&self, path: &Path, key: Option<Key>) -> Result<Arc<OpenImage>, OpenImageError> {
        let file = std::fs::metadata(path).ok().map(|file| identity(&file));
        let is_it = |open: &Arc<OpenImage>| {
            let is_of = |key: &Key| open.source.image().is_some_and(|image| key == image.key());
            file.is_some() && open.file == file && key.as_ref().is_none_or(is_of)
        };
        if let Some(open) = self.images.open.lock().iter().filter_map(Weak::upgrade).find(is_it) {
            return Ok(open);
        }
        let image = Image::open(path, key).map_err(OpenImageError::Image)?;
        self.open_source(Source::Image(Box::new(image))).ok_or(OpenImageError::TooMany)
    }

    /// Makes a plain file a tier of its own. None if so many are open already.
    pub(crate) fn open_plain(&self, file: PlainFile) -> Option<Arc<OpenImage>> {
        self.open_source(Source::Plain(Box::new(file)))
    }

    fn open_source(&self, source: Source) -> Option<Arc<OpenImage>> {
        // Of the file that is open: another one may have its name by now.
        let file = source.identity();
        let touches = Touches::new(source.len_bytes().div_ceil(source.block_bytes() as u64));
        let mut open = self.images.open.lock();
        let free = open.iter().position(|image| image.strong_count() == 0);
        let number = free.unwrap_or(open.len());
        if number >= IMAGES_MOST {
            return None;
        }
        if free.is_none() {
            open.push(Weak::new());
        }
        let serial = self.images.serials.fetch_add(1, Ordering::Relaxed);
        let image = Arc::new(OpenImage { source, file, number: number as u8, serial, touches });
        open[number] = Arc::downgrade(&image);
        Some(image)
    }

    /// Whether a page is an image's.
    pub(crate) fn is_of_image(&self, handle: Handle) -> bool {
        matches!(handle.meaning(), Meaning::Image(_))
    }

    /// Reads a part of a page of an image, so that it is at hand for the next [`get`] of this
    /// thread. Blocks for the disk.
    ///
    /// # Errors
    /// If the image is damaged there, or can't be read.
    ///
    /// [`get`]: super::Store::get
    pub(crate) fn bring(
        &self,
        handle: Handle,
        part: Range<usize>,
        scratch: &mut Scratch,
    ) -> Result<(), GetError> {
        let Meaning::Image(page) = handle.meaning() else { return Ok(()) };
        let open = self.images.of(page.number).ok_or(GetError::Corrupt)?;
        let block = open.source.block_bytes();
        // Whole blocks: a part of one costs as much.
        let part = part.start / block * block..part.end.next_multiple_of(block).min(self.page_bytes());
        let Scratch { brought, slots, .. } = scratch;
        brought.of = None;
        brought.bytes.resize(part.len(), 0);
        let at = u64::from(page.page) * self.page_bytes() as u64 + part.start as u64;
        open.source.read(at, &mut brought.bytes, slots)?;
        let blocks = at / block as u64..(at + part.len() as u64).div_ceil(block as u64);
        blocks.for_each(|block| open.touches.note_read(block));
        brought.part = part;
        brought.of = Some((handle, open.serial));
        Ok(())
    }

    /// Whether this part of a page was brought by this thread.
    pub(crate) fn is_brought(&self, handle: Handle, part: &Range<usize>, scratch: &Scratch) -> bool {
        let Meaning::Image(page) = handle.meaning() else { return false };
        let Some((_, serial)) = scratch.brought.of.filter(|(of, _)| *of == handle) else { return false };
        scratch.brought.part.start <= part.start
            && part.end <= scratch.brought.part.end
            && self.images.of(page.number).is_some_and(|open| open.serial == serial)
    }

    /// A part of a page of an image, as it was brought, or else from the file.
    pub(super) fn get_of_image(
        &self,
        handle: Handle,
        page: ImagePage,
        offset: usize,
        into: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<(), GetError> {
        let part = offset..offset + into.len();
        if self.is_brought(handle, &part, scratch) {
            let Brought { part: own, bytes, .. } = &scratch.brought;
            into.copy_from_slice(&bytes[part.start - own.start..part.end - own.start]);
            return Ok(());
        }
        let open = self.images.of(page.number).ok_or(GetError::Corrupt)?;
        let at = u64::from(page.page) * self.page_bytes() as u64 + offset as u64;
        open.source.read(at, into, &mut scratch.slots)
    }

    /// Whether the image has this content. False also if it can't tell.
    pub(super) fn image_holds(&self, page: ImagePage, offset: usize, content: &[u8]) -> bool {
        let Some(open) = self.images.of(page.number) else { return false };
        let at = u64::from(page.page) * self.page_bytes() as u64 + offset as u64;
        open.source.holds(at, content)
    }
}
