//! Why an image can't be read or written: one line each, the event and the remedy.
//!
//! Nothing here may show bytes of an image or of a key.

use std::io;
use std::path::{Path, PathBuf};

use pagoda_core::image::header::VERSION;
use pagoda_core::image::{INDEX_BYTES_MOST, LEN_BYTES_MOST, Root};
use pagoda_core::size::Bytes;

/// Why an image can't be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// The file can't be opened or read.
    #[error("could not read {path:?} ({error}); check the path and its rights")]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        error: io::Error,
    },
    /// A file on a server can't be had.
    #[error("could not read {path:?}: {error}")]
    Unreached {
        /// The file.
        path: PathBuf,
        /// The event, and the remedy.
        error: io::Error,
    },
    /// The file can't be made or written.
    #[error("could not write {path:?} ({error}); check the directory and the space there")]
    Write {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        error: io::Error,
    },
    /// It is no image.
    #[error("{path:?} is not an image of Pagoda's; make one with `pagoda image pack`")]
    NotAnImage {
        /// The file.
        path: PathBuf,
    },
    /// It is of another version of the format.
    #[error(
        "{path:?} is an image of version {version}, and this pagoda reads 1 to {VERSION}; use the pagoda that made it"
    )]
    OtherVersion {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u16,
    },
    /// Its header or index is not as it was written.
    #[error("{path:?} is damaged ({part}); get another copy of it, and check the disk")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Which part.
        part: &'static str,
    },
    /// A block is not as it was written.
    #[error(
        "{path:?} is damaged at offset {offset} of its memory; get another copy of it, and check the disk"
    )]
    DamagedBlock {
        /// The file.
        path: PathBuf,
        /// Where the block begins in the content, in bytes.
        offset: u64,
    },
    /// There is no key.
    #[error(
        "the key of {path:?} is needed; give its file with --key, or put it beside the image as {key_path:?}"
    )]
    NoKey {
        /// The image.
        path: PathBuf,
        /// Where a key was looked for.
        key_path: PathBuf,
    },
    /// There is no key for an image on a server.
    #[error(
        "the key of {path:?} is needed, and one on its server would prove nothing; give its file with --key"
    )]
    NoRemoteKey {
        /// The image.
        path: PathBuf,
    },
    /// The key is another image's.
    #[error(
        "the key given is not that of {path:?}, or the image is not what it was; give the key that it was packed with"
    )]
    OtherKey {
        /// The image.
        path: PathBuf,
    },
    /// The file has no key in it.
    #[error("{path:?} is not a key file: {error}")]
    BadKey {
        /// The file.
        path: PathBuf,
        /// What a key looks like.
        error: pagoda_core::image::KeyError,
    },
    /// The base of a difference is another image.
    #[error(
        "{path:?} is a difference to image {wanted}, and {base:?} is another one; give the right one with --base"
    )]
    OtherBase {
        /// The difference.
        path: PathBuf,
        /// The image that was tried.
        base: PathBuf,
        /// The base's digest.
        wanted: Root,
    },
    /// The base of a difference can't be opened.
    #[error(
        "{path:?} is a difference to image {wanted}, which can't be had: {error}; give its file with --base"
    )]
    NoBase {
        /// The difference.
        path: PathBuf,
        /// The base's digest.
        wanted: Root,
        /// Why not.
        error: Box<ImageError>,
    },
    /// There are more layers than are read.
    #[error(
        "{path:?} has more than {most} layers below it; pack it into one with `pagoda image unpack` and `pack`"
    )]
    TooManyLayers {
        /// The image.
        path: PathBuf,
        /// The most.
        most: usize,
    },
    /// A read reaches beyond the end.
    #[error("bytes {offset} to {end} were asked for, and {path:?} has {len}; ask within it")]
    BeyondEnd {
        /// The image.
        path: PathBuf,
        /// Where the read begins.
        offset: u64,
        /// Where it would end.
        end: u64,
        /// The length of the image.
        len: u64,
    },
    /// There is nothing to pack, or too much.
    #[error(
        "{path:?} can't be packed: {len} of memory, where 1 byte to {} are possible",
        Bytes::new(LEN_BYTES_MOST)
    )]
    Length {
        /// The image to be.
        path: PathBuf,
        /// The length.
        len: Bytes,
    },
    /// The index would be too long.
    #[error(
        "the index of {path:?} would be longer than {}; choose larger blocks",
        Bytes::new(INDEX_BYTES_MOST)
    )]
    IndexTooLong {
        /// The image to be.
        path: PathBuf,
    },
    /// The memory to pack is in no form that is known.
    #[error("could not import {path:?}: {reason}")]
    Import {
        /// The file.
        path: PathBuf,
        /// How it differs, and what to do.
        reason: String,
    },
    /// The user asked to end.
    #[error("ended before it was done; nothing was changed")]
    Cancelled,
    /// The system has no memory or randomness to give.
    #[error("this system could not provide what is needed ({0}); free some memory")]
    System(#[source] io::Error),
}

impl ImageError {
    pub(crate) fn read(path: &Path, error: io::Error) -> Self {
        Self::Read { path: path.to_owned(), error }
    }
    pub(crate) fn unreached(path: &Path, error: io::Error) -> Self {
        Self::Unreached { path: path.to_owned(), error }
    }
    pub(crate) fn write(path: &Path, error: io::Error) -> Self {
        Self::Write { path: path.to_owned(), error }
    }
    pub(crate) fn damaged(path: &Path, part: &'static str) -> Self {
        Self::Damaged { path: path.to_owned(), part }
    }
}
