//! The memory that is served: a raw file, or an image, and the cache that all guests share.
//!
//! | file | has |
//! |---|---|
//! | `cache` | the blocks of a source that all guests share |
//! | `image` | an image of `pagoda image pack`, which is checked block by block |
//!
//! A raw file lies in the kernel's page cache once it was read, so it gets no other cache. Content
//! that costs more to get goes through [`Cached`](cache::Cached), with a bound. A source must never
//! give other bytes than those that were stored: a page that can't be read is an error.

pub mod cache;
pub mod image;

use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use pagoda_core::page::OS_PAGE;

use crate::working_set::{self, Touch};

/// A memory image. Reads may block.
pub trait Source: Send + Sync {
    /// Its length in bytes, at most as much as an address space has.
    fn len_bytes(&self) -> u64;

    /// The blocks that it is read by, in bytes: a power of two, at least an OS page.
    fn block_bytes(&self) -> usize;

    /// Whether all of this is known to be zero without a read.
    fn is_zero(&self, offset: u64, len_bytes: u64) -> bool;

    /// Fills `into` with the content from `offset` on. Content beyond the image is zero.
    ///
    /// # Errors
    /// It can't be read, or is damaged: then `into` must not be used.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError>;

    /// Reads the blocks of the working set by large reads, where that is quicker, and gives each to
    /// `each` with its number, until that says no.
    fn read_ahead(&self, each: &mut dyn FnMut(u64, &[u8]) -> bool);

    /// Tells that this will be read soon. Returns at once.
    fn announce(&self, offset: u64, len_bytes: u64) {
        let _ = (offset, len_bytes);
    }

    /// Words that only this content has: a handler that takes guests over must serve the same.
    fn identity(&self) -> String;

    /// The parts that a guest needs first, in bytes and in order; none if none were recorded.
    fn working_set(&self) -> Vec<Range<u64>>;

    /// Keeps the first touches of a guest, in order, for those after it.
    ///
    /// # Errors
    /// They can't be written.
    fn keep_working_set(&self, touches: &[Touch]) -> Result<(), SourceError>;
}

/// Why a page can't be had, in a user's words.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct SourceError(pub String);

/// A file that is the memory, byte by byte.
#[derive(Debug)]
pub struct RawFile {
    path: PathBuf,
    file: File,
    len_bytes: u64,
    identity: String,
}

impl RawFile {
    /// Opens it. Its length is that of now.
    ///
    /// # Errors
    /// Those of open(2).
    pub fn open(path: &Path) -> io::Result<Self> {
        let is_fit = |about: &Metadata| about.is_file() && about.len() > 0;
        // Before it is opened, too: to open a pipe would wait for its writer.
        if !is_fit(&fs::metadata(path)?) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is empty, or no plain file"));
        }
        let file = File::open(path)?;
        let about = file.metadata()?;
        let identity = format!(
            "{}:{}:{}:{}.{}",
            about.dev(),
            about.ino(),
            about.len(),
            about.mtime(),
            about.mtime_nsec()
        );
        Ok(Self { path: path.to_owned(), file, len_bytes: about.len(), identity })
    }

    /// Its working set, beside it.
    fn set_path(&self, suffix: &str) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(suffix);
        name.into()
    }
}

impl Source for RawFile {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn block_bytes(&self) -> usize {
        64 << 10
    }

    fn is_zero(&self, _: u64, _: u64) -> bool {
        false
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        let there = self.len_bytes.saturating_sub(offset).min(into.len() as u64) as usize;
        let (content, beyond) = into.split_at_mut(there);
        beyond.fill(0);
        self.file.read_exact_at(content, offset).map_err(|error| {
            SourceError(format!(
                "the memory file could not be read at {offset} ({error}); was it cut short or replaced?"
            ))
        })
    }

    /// The file itself, and when it was written last: it must not change under a guest.
    fn identity(&self) -> String {
        self.identity.clone()
    }

    /// The kernel reads ahead by itself.
    fn read_ahead(&self, _: &mut dyn FnMut(u64, &[u8]) -> bool) {}

    fn working_set(&self) -> Vec<Range<u64>> {
        let most = working_set::TOUCHES_MOST as u64 * 32;
        let mut text = String::new();
        let read =
            File::open(self.set_path(".ws")).and_then(|file| file.take(most).read_to_string(&mut text));
        let len_bytes = self.len_bytes;
        read.map_or(Vec::new(), |_| working_set::parse(&text, len_bytes, OS_PAGE as u64))
    }

    fn keep_working_set(&self, touches: &[Touch]) -> Result<(), SourceError> {
        let line = |Touch { offset, at_us }: &Touch| format!("{offset} {at_us}\n");
        let text: String = touches.iter().map(line).collect();
        let (unfinished, path) = (self.set_path(".ws.unfinished"), self.set_path(".ws"));
        fs::write(&unfinished, text).and_then(|()| fs::rename(&unfinished, &path)).map_err(|error| {
            SourceError(format!(
                "the working set could not be written to {path:?} ({error}); check the directory and the space there"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_cut_short_is_an_error_and_its_tail_is_zero() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("mem");
        std::fs::write(&path, [7; 5000]).expect("written");
        let raw = RawFile::open(&path).expect("there");
        let mut page = [1; 4096];
        raw.read_at(4096, &mut page).expect("read");
        assert!(page[..904].iter().all(|&byte| byte == 7) && page[904..].iter().all(|&byte| byte == 0));
        File::options().write(true).open(&path).expect("there").set_len(100).expect("cut");
        assert!(raw.read_at(4096, &mut page).is_err());
        assert!(RawFile::open(directory.path()).is_err());
        assert!(raw.working_set().is_empty());
        let touches = [4096, 0].map(|offset| Touch { offset, at_us: u32::MAX });
        raw.keep_working_set(&touches).expect("written");
        assert_eq!(raw.working_set(), [4096..8192, 0..4096]);
    }
}
