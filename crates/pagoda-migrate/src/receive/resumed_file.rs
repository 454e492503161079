//! A file that keeps the content that has arrived when a transfer breaks off, for the next one to
//! go on from.
//!
//! Until it is whole it lies beside its name, with `.partial` behind that, and only one process
//! writes it. Its extents are the received map: a page that was never written is a hole. Nothing
//! there is believed; the sender confirms each stripe by its digest, or sends it. This module must
//! never give the file its name before all of it is confirmed and on disk.

use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use pagoda_core::migrate::geometry::{STRIPE_BYTES, STRIPE_PAGES};
use pagoda_core::size::Bytes;
use pagoda_linux::io::partial_file::PartialFile;
use pagoda_linux::io::sparse_file;

use crate::receive::destination::Destination;

/// The file, and its size.
#[derive(Debug)]
pub struct ResumedDestination {
    partial: Option<PartialFile>,
    name: PathBuf,
    size: Bytes,
}

impl ResumedDestination {
    /// A file that is to be `path`, which must not exist. Goes on with what lies beside it, if
    /// something does.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] if something is at `path`;
    /// [`io::ErrorKind::ResourceBusy`] if another process receives it;
    /// [`io::ErrorKind::InvalidInput`] if what lies beside it is no file of this user's alone; else
    /// the kernel's error for its directory.
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

    fn file(&self) -> io::Result<&std::fs::File> {
        let finished = || io::Error::other("the file is finished");
        self.partial.as_ref().map(PartialFile::file).ok_or_else(finished)
    }
}

impl Destination for ResumedDestination {
    fn prepare(&mut self, size: Bytes) -> io::Result<()> {
        self.size = size;
        self.file()?.set_len(size.get())
    }

    fn kept(&self) -> io::Result<Vec<u64>> {
        let (file, mut kept, mut at) = (self.file()?, Vec::new(), 0);
        while let Some(data) = sparse_file::data_in(file, at..self.size.get())? {
            let stripe = data.start / STRIPE_BYTES as u64;
            kept.push(stripe * u64::from(STRIPE_PAGES));
            at = (stripe + 1) * STRIPE_BYTES as u64;
        }
        Ok(kept)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file()?.write_all_at(bytes, offset)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.file()?.read_exact_at(into, offset)
    }

    fn clear(&self, range: Range<u64>) -> io::Result<()> {
        sparse_file::write_zeroes(self.file()?, range)
    }

    fn discard(&self, range: Range<u64>) -> io::Result<()> {
        sparse_file::make_hole(self.file()?, range)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.file()?;
        self.partial.take().map_or(Ok(()), PartialFile::publish)
    }
}
