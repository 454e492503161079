//! A raw memory file: byte for byte the memory, as Firecracker and Cloud Hypervisor save it. Holes
//! are never read.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use pagoda_linux::io::sparse_file;

use super::RawMemory;
use crate::error::ImageError;
use crate::open_file::open_file;

/// The file. It must not be written meanwhile.
#[derive(Debug)]
pub struct RawFile {
    file: File,
    path: PathBuf,
    len_bytes: u64,
}

impl RawFile {
    /// Opens it.
    ///
    /// # Errors
    /// If it can't be, or is no regular file in storage.
    pub fn open(path: &Path) -> Result<Self, ImageError> {
        let unread = |error| ImageError::read(path, error);
        let file = open_file(path).map_err(unread)?;
        let metadata = file.metadata().map_err(unread)?;
        if !metadata.is_file() || sparse_file::is_made_on_reading(&file).map_err(unread)? {
            let reason = "it is no regular file; copy the memory to one first".to_owned();
            return Err(ImageError::Import { path: path.to_owned(), reason });
        }
        Ok(Self { file, path: path.to_owned(), len_bytes: metadata.len() })
    }
}

impl RawMemory for RawFile {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }
    fn data_in(&self, range: Range<u64>) -> Result<Option<Range<u64>>, ImageError> {
        sparse_file::data_in(&self.file, range).map_err(|error| ImageError::read(&self.path, error))
    }
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), ImageError> {
        self.file.read_exact_at(into, offset).map_err(|error| ImageError::read(&self.path, error))
    }
}
