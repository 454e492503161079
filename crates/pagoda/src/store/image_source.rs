//! The file behind a read-only tier: an image, or a plain file that a region shows privately.
//!
//! The digests of an image vouch for its content. Of a plain file this module keeps a keyed digest
//! of each OS page that was read. So a clean page is known, and dropped, without another read.
//! Others may change the file, as below any private mapping: a page that is read again is the new
//! one. This module must never write to the file.

use std::sync::atomic::{AtomicU64, Ordering};

use pagoda_core::page::OS_PAGE;
use pagoda_image::Image;
use pagoda_linux::io::direct_file::AlignedBuffer;
use pagoda_linux::io::mapped_file::{FileState, MappedFile};
use pagoda_linux::mem::words::try_zeroed_words;

use super::GetError;
use super::images::{FileIdentity, identity};
use crate::crypto::digest::Digester;

/// See the module's documentation.
pub(crate) enum Source {
    Image(Box<Image>),
    Plain(Box<PlainFile>),
}

/// A file, as it was when it was opened.
pub(crate) struct PlainFile {
    file: MappedFile,
    len_bytes: u64,
    /// Of each OS page as it was read last; 0 of one that was not read.
    digests: Box<[AtomicU64]>,
    digester: Digester,
}

impl PlainFile {
    /// None if there is no memory for its digests, a five-hundredth of the pages that are read.
    pub(crate) fn new(file: MappedFile, state: FileState, digester: Digester) -> Option<Self> {
        let pages = usize::try_from(state.len.div_ceil(OS_PAGE as u64)).unwrap_or(usize::MAX);
        Some(Self { file, len_bytes: state.len, digests: try_zeroed_words(pages)?, digester })
    }

    /// Reads whole OS pages, with zeroes behind the file's end. `room` is at least as long.
    fn read_at(&self, at: u64, into: &mut [u8], room: &mut AlignedBuffer) -> Result<(), GetError> {
        let own = self.len_bytes.saturating_sub(at).min(into.len() as u64) as usize;
        let read = self.file.read_at(at, &mut room[..into.len()]).map_err(|_| GetError::Corrupt)?;
        if read < own {
            // Others have cut it.
            return Err(GetError::Corrupt);
        }
        into[..own].copy_from_slice(&room[..own]);
        into[own..].fill(0);
        let digests = self.digests.get(at as usize / OS_PAGE..).unwrap_or(&[]);
        for (content, digest) in into.chunks(OS_PAGE).zip(digests) {
            digest.store(self.digester.of(content), Ordering::Relaxed);
        }
        Ok(())
    }

    fn holds(&self, at: u64, content: &[u8]) -> bool {
        let digests = self.digests.get(at as usize / OS_PAGE..).unwrap_or(&[]);
        let mut pages = content.chunks(OS_PAGE).zip(digests);
        content.len().div_ceil(OS_PAGE) <= digests.len()
            && pages.all(|(content, digest)| digest.load(Ordering::Relaxed) == self.digester.of(content))
    }
}

impl Source {
    /// The image, if it is one.
    pub(crate) fn image(&self) -> Option<&Image> {
        match self {
            Self::Image(image) => Some(image),
            Self::Plain(_) => None,
        }
    }

    /// An image's identity, by which it is shared.
    pub(super) fn identity(&self) -> Option<FileIdentity> {
        self.image()?.metadata().ok().map(|file| identity(&file))
    }

    pub(crate) fn len_bytes(&self) -> u64 {
        match self {
            Self::Image(image) => image.len_bytes(),
            Self::Plain(file) => file.len_bytes,
        }
    }

    /// The unit of reads, in bytes.
    pub(crate) fn block_bytes(&self) -> usize {
        match self {
            Self::Image(image) => image.block_bytes() as usize,
            Self::Plain(_) => OS_PAGE,
        }
    }

    /// Whether a part is known to be zero all over without a read.
    pub(super) fn is_zero(&self, at: u64, len: usize) -> bool {
        matches!(self, Self::Image(image) if image.is_zero(at, len))
    }

    /// How many of `len` bytes from `at` on it has: its last page may end behind it.
    fn has(&self, at: u64, len: usize) -> usize {
        self.len_bytes().saturating_sub(at).min(len as u64) as usize
    }

    /// Reads content, whole OS pages of it, with zeroes behind its end. Uses `room`, which is
    /// at least as long.
    ///
    /// # Errors
    /// It is damaged there, or can't be read.
    pub(crate) fn read(&self, at: u64, into: &mut [u8], room: &mut AlignedBuffer) -> Result<(), GetError> {
        let image = match self {
            Self::Image(image) => image,
            Self::Plain(file) => return file.read_at(at, into, room),
        };
        let (own, behind) = into.split_at_mut(self.has(at, into.len()));
        behind.fill(0);
        if own.is_empty() { Ok(()) } else { image.read_at(at, own).map_err(|_| GetError::Corrupt) }
    }

    /// Whether this is its content, with zeroes behind its end. False also if it can't tell.
    pub(super) fn holds(&self, at: u64, content: &[u8]) -> bool {
        let image = match self {
            Self::Image(image) => image,
            Self::Plain(file) => return file.holds(at, content),
        };
        let (own, behind) = content.split_at(self.has(at, content.len()));
        behind.iter().all(|byte| *byte == 0) && (own.is_empty() || image.holds(at, own).unwrap_or(false))
    }
}
