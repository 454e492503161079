//! Reading an image: opening its file, and what its blocks are.
//!
//! Opening takes two reads: the header, and all of the index. It checks the part that the root
//! covers; a chunk of the index is checked when one of its blocks is looked at first, and a block
//! when it is read. Any number of threads read at once. Nothing is ever written here.

mod blocks;
mod index;
mod scratch;

use std::fs::Metadata;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use pagoda_core::image::header::{HEADER_BYTES, Header, HeaderError};
use pagoda_core::image::{Entry, Key, Root, runs};
use pagoda_core::page::OS_PAGE;

use crate::backing::{Backing, RemoteFile};
use crate::error::ImageError;
use crate::key_file::{key_path, load_key};
use crate::working_set::WorkingSet;
use index::Index;
use scratch::Pool;

/// The most layers below an image. Each may be asked for a block.
pub(crate) const LAYERS_MOST: usize = 16;

/// The content of a range, as far as it is known without a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Zeroes.
    Zero,
    /// These eight bytes over and over, from the beginning of the range on.
    Same([u8; 8]),
    /// It has to be read.
    Stored,
}

/// Sums over all blocks of an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Totals {
    /// Blocks of zeroes.
    pub zero_blocks: u64,
    /// Blocks of one word that repeats.
    pub same_blocks: u64,
    /// Blocks that are the base's.
    pub base_blocks: u64,
    /// Blocks that are packed in the file.
    pub stored_blocks: u64,
    /// The bytes that these take there.
    pub packed_bytes: u64,
}

/// An open image.
pub struct Image {
    path: PathBuf,
    file: Backing,
    header: Header,
    key: Key,
    index: Index,
    base: Option<Arc<Image>>,
    scratch: Pool,
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}: {:?}", self.path, self.header)
    }
}

/// The header of the image at `path`, which is checked for damage, and not by a key: its
/// fields may be an attacker's.
///
/// # Errors
/// If it can't be read, or is none.
fn read_header(path: &Path, file: &Backing) -> Result<Header, ImageError> {
    let mut bytes = [0; HEADER_BYTES];
    file.read_exact_at(&mut bytes, 0).map_err(|error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => ImageError::NotAnImage { path: path.to_owned() },
        _ => file.unread(path, error),
    })?;
    Header::decode(&bytes).map_err(|error| match error {
        HeaderError::NotAnImage => ImageError::NotAnImage { path: path.to_owned() },
        HeaderError::Version(version) => ImageError::OtherVersion { path: path.to_owned(), version },
        HeaderError::Damaged => ImageError::damaged(path, "its header"),
    })
}

/// The header, the key and the index of an image: `key`, or the one in the file beside it.
fn read_front(path: &Path, file: &Backing, key: Option<Key>) -> Result<(Header, Key, Index), ImageError> {
    let header = read_header(path, file)?;
    let key = match key {
        Some(key) => key,
        None => load_key(&key_path(path)).map_err(|error| match error {
            ImageError::Read { .. } => ImageError::NoKey { path: path.to_owned(), key_path: key_path(path) },
            other => other,
        })?,
    };
    if key.check() != header.key_check {
        return Err(ImageError::OtherKey { path: path.to_owned() });
    }
    let index = Index::load(path, file, &header, &key)?;
    Ok((header, key, index))
}

impl Image {
    /// Opens the image at `path` with its key: `key`, or the one in the file beside it. The base of
    /// a difference is looked for in the same directory, and has the same key.
    ///
    /// Reads the header and the index, and no block.
    ///
    /// # Errors
    /// See [`ImageError`].
    pub fn open(path: &Path, key: Option<Key>) -> Result<Self, ImageError> {
        Self::open_layer(path, Backing::open(path)?, key, None, LAYERS_MOST)
    }

    /// The same, with the base of a difference wherever it lies.
    ///
    /// # Errors
    /// See [`ImageError`].
    pub fn open_over(path: &Path, key: Option<Key>, base: Arc<Self>) -> Result<Self, ImageError> {
        Self::open_layer(path, Backing::open(path)?, key, Some(base), LAYERS_MOST)
    }

    /// Opens an image that lies elsewhere. Its key has to be known: one that lies beside an image
    /// proves nothing about it. The base of a difference is `base`, or lies beside it.
    ///
    /// # Errors
    /// See [`ImageError`].
    pub fn open_remote(
        file: Box<dyn RemoteFile>,
        key: Key,
        base: Option<Arc<Self>>,
    ) -> Result<Self, ImageError> {
        Self::open_remote_layer(file, key, base, LAYERS_MOST)
    }

    fn open_remote_layer(
        file: Box<dyn RemoteFile>,
        key: Key,
        base: Option<Arc<Self>>,
        layers: usize,
    ) -> Result<Self, ImageError> {
        let path = file.name().to_owned();
        Self::open_layer(&path, Backing::Remote(file), Some(key), base, layers)
    }

    fn open_layer(
        path: &Path,
        file: Backing,
        key: Option<Key>,
        base: Option<Arc<Self>>,
        layers: usize,
    ) -> Result<Self, ImageError> {
        let front = match read_front(path, &file, key.clone()) {
            // The copy may be damaged: the server is asked again.
            Err(
                ImageError::NotAnImage { .. }
                | ImageError::OtherVersion { .. }
                | ImageError::OtherKey { .. }
                | ImageError::Damaged { .. },
            ) if file.is_remote() => {
                file.forget(0..u64::MAX);
                read_front(path, &file, key)
            }
            front => front,
        };
        let (header, key, index) = front?;
        let base = match &header.base {
            None => None,
            Some(named) => {
                let base = match base {
                    Some(base) => base,
                    None => Self::open_base(path, &file, &key, named, layers)?,
                };
                if base.root() != named.root {
                    let wanted = named.root;
                    return Err(ImageError::OtherBase {
                        path: path.to_owned(),
                        base: base.path.clone(),
                        wanted,
                    });
                }
                if base.header.block_bytes != header.block_bytes {
                    return Err(ImageError::damaged(path, "its block size is not its base's"));
                }
                Some(base)
            }
        };
        Ok(Self { path: path.to_owned(), file, header, key, index, base, scratch: Pool::default() })
    }

    fn open_base(
        path: &Path,
        file: &Backing,
        key: &Key,
        named: &pagoda_core::image::header::Base,
        layers: usize,
    ) -> Result<Arc<Self>, ImageError> {
        let no_base =
            |error| ImageError::NoBase { path: path.to_owned(), wanted: named.root, error: Box::new(error) };
        let Some(layers) = layers.checked_sub(1) else {
            return Err(ImageError::TooManyLayers { path: path.to_owned(), most: LAYERS_MOST });
        };
        let name = Path::new(std::ffi::OsStr::from_bytes(&named.file_name));
        // A name alone: a stranger's image must not make us open a file elsewhere.
        let mut parts = name.components();
        let (Some(Component::Normal(name)), None) = (parts.next(), parts.next()) else {
            return Err(ImageError::damaged(path, "the name of its base"));
        };
        let base = match file {
            Backing::Local(_) => {
                let path = path.with_file_name(name);
                Backing::open(&path)
                    .and_then(|file| Self::open_layer(&path, file, Some(key.clone()), None, layers))
            }
            Backing::Remote(file) => match file.open_beside(name) {
                Ok(base) => Self::open_remote_layer(base, key.clone(), None, layers),
                Err(error) => Err(ImageError::unreached(&path.with_file_name(name), error)),
            },
        };
        base.map(Arc::new).map_err(no_base)
    }

    /// Its file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The metadata of its open file, which may have another name or none by now.
    ///
    /// # Errors
    /// If the kernel does not tell them, or the image is not of this machine.
    pub fn metadata(&self) -> Result<Metadata, ImageError> {
        let metadata = match &self.file {
            Backing::Local(file) => file.metadata(),
            Backing::Remote(_) => Err(std::io::ErrorKind::Unsupported.into()),
        };
        metadata.map_err(|error| ImageError::read(&self.path, error))
    }

    /// The length of its open file, in bytes.
    ///
    /// # Errors
    /// If the kernel does not tell it.
    pub fn file_bytes(&self) -> Result<u64, ImageError> {
        self.file.len_bytes().map_err(|error| self.file.unread(&self.path, error))
    }

    /// Whether it lies on another machine: a read is a request.
    #[must_use]
    pub const fn is_remote(&self) -> bool {
        self.file.is_remote()
    }

    /// The file of this image with a suffix to its name.
    pub(crate) fn open_suffixed(&self, path: &Path, suffix: &str) -> Option<Backing> {
        match &self.file {
            Backing::Local(_) => Backing::open(path).ok(),
            Backing::Remote(file) => file.open_suffixed(suffix).ok().map(Backing::Remote),
        }
    }

    /// The length of its content, in bytes.
    #[must_use]
    pub const fn len_bytes(&self) -> u64 {
        self.header.len_bytes
    }

    /// The size of its blocks, in bytes: 4 to 64 KiB.
    #[must_use]
    pub const fn block_bytes(&self) -> u32 {
        self.header.block_bytes
    }

    /// Its digest, by which it is known.
    #[must_use]
    pub const fn root(&self) -> Root {
        self.header.root
    }

    /// Its key.
    #[must_use]
    pub const fn key(&self) -> &Key {
        &self.key
    }

    /// The image that it is a difference to.
    #[must_use]
    pub const fn base(&self) -> Option<&Arc<Self>> {
        self.base.as_ref()
    }

    /// The length of the index, in bytes: it is kept in memory.
    #[must_use]
    pub const fn index_bytes(&self) -> u64 {
        self.header.index_bytes
    }

    /// The received map: runs of OS pages that were ever said to have content, in order. All others
    /// are zero.
    pub fn received(&self) -> impl Iterator<Item = Range<u64>> + use<'_> {
        let pages = self.len_bytes().div_ceil(OS_PAGE as u64);
        // They were checked when the image was opened.
        runs::decode(self.index.runs(), pages).flatten()
    }

    /// Whether a range is known to be zero all over without a read. An entry of the index that says
    /// otherwise is believed, whether or not it is damaged: a read of the block checks it.
    #[must_use]
    pub fn is_zero(&self, offset: u64, len: usize) -> bool {
        let block_bytes = u64::from(self.block_bytes());
        let end = offset.saturating_add(len as u64).min(self.len_bytes());
        let mut blocks = offset.min(end) / block_bytes..end.div_ceil(block_bytes);
        offset >= end
            || !blocks.any(|block| self.index.names_a_place(block))
                && self.content_at(offset, len) == Content::Zero
    }

    /// The content of a range, as far as it is known without a read. An empty range, and one beyond
    /// the end, is zero. `Stored` also if the index is damaged there, which a read tells.
    #[must_use]
    pub fn content_at(&self, offset: u64, len: usize) -> Content {
        let block_bytes = u64::from(self.block_bytes());
        let end = offset.saturating_add(len as u64).min(self.len_bytes());
        if offset >= end {
            return Content::Zero;
        }
        let mut known = None;
        for block in offset / block_bytes..=(end - 1) / block_bytes {
            let content = match (self.entry(block), &self.base) {
                (Ok(Entry::Zero), _) => Content::Zero,
                // Blocks begin at whole words: all have the same turn.
                (Ok(Entry::Same(word)), _) => Content::Same(turned(word, offset)),
                (Ok(Entry::Base), Some(base)) => {
                    let from = offset.max(block * block_bytes);
                    let content = base.content_at(from, (end.min((block + 1) * block_bytes) - from) as usize);
                    match content {
                        Content::Same(word) => Content::Same(turned(word, offset.wrapping_sub(from))),
                        other => other,
                    }
                }
                _ => Content::Stored,
            };
            if content == Content::Stored || known.is_some_and(|known| known != content) {
                return Content::Stored;
            }
            known = Some(content);
        }
        known.unwrap_or(Content::Zero)
    }

    /// The working set that was recorded beside the image. None if there is none, or it is
    /// another's or damaged: it only tells what to read first.
    #[must_use]
    pub fn working_set(&self) -> Option<WorkingSet> {
        WorkingSet::load(self)
    }

    /// Sums over all its blocks.
    ///
    /// # Errors
    /// If the index is damaged.
    pub fn totals(&self) -> Result<Totals, ImageError> {
        let mut totals = Totals::default();
        for block in 0..self.header.blocks() {
            match self.entry(block)? {
                Entry::Zero => totals.zero_blocks += 1,
                Entry::Same(_) => totals.same_blocks += 1,
                Entry::Base => totals.base_blocks += 1,
                Entry::Stored { len, .. } => {
                    totals.stored_blocks += 1;
                    totals.packed_bytes += u64::from(len);
                }
            }
        }
        Ok(totals)
    }

    /// The entry of a block, which there is.
    pub(crate) fn entry(&self, block: u64) -> Result<Entry, ImageError> {
        let entry = self.index.entry(block, self.block_bytes(), &self.key);
        let is_known = |entry: &Entry| self.header.has_parts || !entry.is_in_parts();
        entry.filter(is_known).ok_or_else(|| self.damaged_block(block))
    }

    /// The error of a block that is not as it was written.
    fn damaged_block(&self, block: u64) -> ImageError {
        ImageError::DamagedBlock { path: self.path.clone(), offset: block * u64::from(self.block_bytes()) }
    }
}

/// A repeated word as it reads `by` bytes further on.
fn turned(mut word: [u8; 8], by: u64) -> [u8; 8] {
    word.rotate_left((by % 8) as usize);
    word
}
