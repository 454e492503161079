//! A file that keeps the content that has arrived when a transfer breaks off, for the next one to
//! go on from.
//!
//! Until it is whole it lies beside its name, with `.partial` behind that, and only one process
//! writes it. Its extents are the received map: a page that was never written is a hole. Nothing
//! there is believed; the sender confirms each stripe by its digest, or sends it. This module must
//! never give the file its name before all of it is confirmed and on disk.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use pagoda_core::migrate::geometry::{STRIPE_BYTES, STRIPE_PAGES};
use pagoda_core::size::Bytes;
use pagoda_linux::io::partial_file::PartialFile;
use pagoda_linux::io::sparse_file;

use crate::receive::destination::FileDestination;

/// The file, and its size.
#[derive(Debug)]
pub struct ResumedDestination {
    partial: Option<PartialFile>,
    name: PathBuf,
    size: Bytes,
}

impl ResumedDestination {
    /// A file that is to be `path`, which must not exist. Goes on with the part that lies beside
    /// it, if there is one.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] if something is at `path`;
    /// [`io::ErrorKind::ResourceBusy`] if another process receives it;
    /// [`io::ErrorKind::InvalidInput`] if the part is no file of this user's alone; else the
    /// kernel's error for its directory.
    pub fn new(path: &Path) -> io::Result<Self> {
        let partial = PartialFile::open(path)?;
        let name = partial.path().to_owned();
        Ok(Self { partial: Some(partial), name, size: Bytes::ZERO })
    }

    /// Where it lies until it is whole.
    #[must_use]
    pub fn partial_path(&self) -> &Path {
        &self.name
    }
}

fn finished() -> io::Error {
    io::Error::other("the file is finished")
}

impl FileDestination for ResumedDestination {
    fn file(&self) -> io::Result<&File> {
        self.partial.as_ref().map(PartialFile::file).ok_or_else(finished)
    }

    fn resize(&mut self, size: Bytes) -> io::Result<()> {
        self.size = size;
        self.file()?.set_len(size.get())
    }

    fn kept_stripes(&self) -> io::Result<Vec<u64>> {
        let (file, mut kept, mut at) = (self.file()?, Vec::new(), 0);
        while let Some(data) = sparse_file::data_in(file, at..self.size.get())? {
            let stripe = data.start / STRIPE_BYTES as u64;
            kept.push(stripe * u64::from(STRIPE_PAGES));
            at = (stripe + 1) * STRIPE_BYTES as u64;
        }
        Ok(kept)
    }

    fn publish(&mut self) -> io::Result<()> {
        self.partial.take().ok_or_else(finished)?.publish()
    }
}
