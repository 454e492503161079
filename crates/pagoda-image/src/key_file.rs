//! The file beside an image that has its key.
//!
//! A writer of the image that reads the key can change the image unnoticed. So a key file that is
//! made here is its user's alone.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use pagoda_core::image::Key;
use pagoda_linux::io::unfinished_file::UnfinishedFile;

use crate::error::ImageError;

/// A key is a line of text; a longer file is another one.
const FILE_MOST_BYTES: u64 = 4096;

/// Where the key of the image at `path` is, if nothing else is said: `.key` is added to its name.
#[must_use]
pub fn key_path(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".key");
    name.into()
}

/// The key in a file.
///
/// # Errors
/// If it can't be read, or has no key.
pub fn load_key(path: &Path) -> Result<Key, ImageError> {
    let mut text = Vec::new();
    File::open(path)
        .and_then(|file| file.take(FILE_MOST_BYTES).read_to_end(&mut text))
        .map_err(|error| ImageError::read(path, error))?;
    Key::from_text(&text).map_err(|error| ImageError::BadKey { path: path.to_owned(), error })
}

/// The key beside the image at `image`, there or to be: the one that is there, or a random one,
/// which is on disk when this has returned.
///
/// # Errors
/// If it can't be read or made.
pub fn make_key(image: &Path) -> Result<Key, ImageError> {
    // An older image of this name stays readable: it has the same key.
    keep(
        &key_path(image),
        Key::new(pagoda_linux::process::child::random_bytes().map_err(ImageError::System)?),
    )
}

/// Keeps the key of the image that is to be at `image` beside it: it is on disk when this has
/// returned.
///
/// # Errors
/// If it can't be written, or another one is there.
pub(crate) fn keep_key(image: &Path, key: &Key) -> Result<(), ImageError> {
    let path = key_path(image);
    if keep(&path, key.clone())? == *key {
        return Ok(());
    }
    let error = io::Error::other("it is the key of another image; choose another name");
    Err(ImageError::write(&path, error))
}

/// Writes a key to a new file. If a file is there, it is left, and its key is returned.
fn keep(path: &Path, key: Key) -> Result<Key, ImageError> {
    let written = UnfinishedFile::create(path).and_then(|file| {
        file.file().write_all(key.to_text().as_bytes())?;
        file.publish()
    });
    match written {
        Ok(()) => Ok(key),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => load_key(path),
        Err(error) => Err(ImageError::write(path, error)),
    }
}
