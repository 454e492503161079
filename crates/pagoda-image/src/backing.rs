//! The file of an image: one of this machine, or one elsewhere that is read by requests.
//!
//! This module must never give fewer bytes than were asked for and say nothing.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;

use pagoda_linux::io::positioned::read_exact_at;

use crate::error::ImageError;
use crate::open_file::open_file;

/// A file that lies elsewhere, as on a server. Its content is untrusted, as that of a local file.
///
/// Each call may block, and has a bound of its own: after it the call fails.
pub trait RemoteFile: Send + Sync {
    /// Its name in errors, which has no secret.
    fn name(&self) -> &Path;

    /// Its length in bytes, as it was when it was opened.
    fn len_bytes(&self) -> u64;

    /// Fills `into` from byte `at` on.
    ///
    /// # Errors
    /// If not all of it can be had. Some of `into` may be overwritten then.
    fn read_exact_at(&self, into: &mut [u8], at: u64) -> io::Result<()>;

    /// Tells that these bytes will be read soon. Returns at once.
    fn announce(&self, range: Range<u64>) {
        let _ = range;
    }

    /// Drops all copies of these bytes, which were found to be damaged.
    fn forget(&self, range: Range<u64>);

    /// Opens the file of this name in the same directory.
    ///
    /// # Errors
    /// If it can't be had.
    fn open_beside(&self, name: &OsStr) -> io::Result<Box<dyn RemoteFile>>;

    /// Opens the file whose name is this one's and a suffix.
    ///
    /// # Errors
    /// If it can't be had.
    fn open_suffixed(&self, suffix: &str) -> io::Result<Box<dyn RemoteFile>>;
}

pub(crate) enum Backing {
    Local(File),
    Remote(Box<dyn RemoteFile>),
}

impl std::fmt::Debug for Backing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Local(file) => file.fmt(f),
            Self::Remote(file) => file.name().fmt(f),
        }
    }
}

impl Backing {
    /// A plain file of this machine.
    pub(crate) fn open(path: &Path) -> Result<Self, ImageError> {
        let file = open_file(path).map_err(|error| ImageError::read(path, error))?;
        match file.metadata() {
            Ok(metadata) if metadata.is_file() => Ok(Self::Local(file)),
            Ok(_) => Err(ImageError::NotAnImage { path: path.to_owned() }),
            Err(error) => Err(ImageError::read(path, error)),
        }
    }

    pub(crate) fn len_bytes(&self) -> io::Result<u64> {
        match self {
            Self::Local(file) => file.metadata().map(|about| about.len()),
            Self::Remote(file) => Ok(file.len_bytes()),
        }
    }

    pub(crate) fn read_exact_at(&self, into: &mut [u8], at: u64) -> io::Result<()> {
        match self {
            Self::Local(file) => read_exact_at(file, into, at),
            Self::Remote(file) => {
                let end = at.checked_add(into.len() as u64);
                if end.is_none_or(|end| end > file.len_bytes()) {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                file.read_exact_at(into, at)
            }
        }
    }

    /// See [`RemoteFile::announce`].
    pub(crate) fn announce(&self, range: Range<u64>) {
        if let Self::Remote(file) = self {
            file.announce(range);
        }
    }

    /// See [`RemoteFile::forget`]. Of a local file there are no copies.
    pub(crate) fn forget(&self, range: Range<u64>) {
        if let Self::Remote(file) = self {
            file.forget(range);
        }
    }

    pub(crate) const fn is_remote(&self) -> bool {
        matches!(self, Self::Remote(_))
    }

    /// The error of a read of the file at `path`, which is this one.
    pub(crate) fn unread(&self, path: &Path, error: io::Error) -> ImageError {
        match self {
            Self::Local(_) => ImageError::read(path, error),
            Self::Remote(_) => ImageError::unreached(path, error),
        }
    }
}
