//! Where an image arrives.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use pagoda_core::size::Bytes;
use pagoda_linux::io::sparse_file;
use pagoda_linux::io::unfinished_file::UnfinishedFile;
use pagoda_linux::mem::byte_store::{Backing, ByteStore};

use crate::wire::content::{Content, read_checked};

/// A receiver of an image. Between [`prepare`](Self::prepare) and [`finish`](Self::finish) channels
/// write to it at the same time: each to its own stripes, and in the last round of live memory each
/// to pages of its own. If a sender breaks that rule, a page may end up with either content. A
/// destination that is dropped before `finish` has returned must show nothing of it.
pub trait Destination: Send + Sync {
    /// Makes it `size` bytes, all zero, for any state before: bytes that are never written stay
    /// zero. Only the stripes that [`kept`](Self::kept) tells of may hold something.
    ///
    /// # Errors
    /// If there is no room, or no right to it.
    fn prepare(&mut self, size: Bytes) -> io::Result<()>;

    /// After [`prepare`](Self::prepare), the stripes that hold content of an earlier transfer, by
    /// their first pages; none where all is zero. Each is kept only if the sender has the same.
    ///
    /// # Errors
    /// If it can't be known.
    fn kept(&self) -> io::Result<Vec<u64>> {
        Ok(Vec::new())
    }

    /// Writes at `offset`, within its size. May block on a disk.
    ///
    /// # Errors
    /// If it can't be written.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Receives `content`, as much as there is `room` for, at `offset`, within its size. It may be
    /// read to hidden memory instead of to `room`; it is put in its place only after its check.
    ///
    /// # Errors
    /// Those of the content, and if it can't be written. Then nothing of it may be there.
    fn receive_at(&self, offset: u64, content: &mut dyn Content, room: &mut [u8]) -> io::Result<()> {
        read_checked(content, room)?;
        self.write_at(offset, room)
    }

    /// Writes one base page at `offset`, which a store elsewhere had packed
    /// ([`pagoda_linux::codec::pack`]): it unpacks to `content`. True if it is kept as packed.
    ///
    /// # Errors
    /// If it can't be written.
    fn write_packed(&self, offset: u64, packed: &[u8], content: &[u8]) -> io::Result<bool> {
        let _ = packed;
        self.write_at(offset, content).map(|()| false)
    }

    /// Reads at `offset`, within its size.
    ///
    /// # Errors
    /// If it can't be read.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()>;

    /// Writes zeroes over `range`.
    ///
    /// # Errors
    /// If it can't be written.
    fn clear(&self, range: Range<u64>) -> io::Result<()>;

    /// Makes whole pages zero by giving back their memory.
    ///
    /// # Errors
    /// If it can't be done.
    fn discard(&self, range: Range<u64>) -> io::Result<()>;

    /// All has arrived: keeps it for good, and shows it. May block for as long as a disk takes.
    ///
    /// # Errors
    /// If it can't be kept.
    fn finish(&mut self) -> io::Result<()>;
}

/// A destination that may be used before all of it has arrived: pages may be owed, and arrive by
/// [`Arrivals`](crate::Arrivals) after the switch.
pub trait LateDestination: Destination {
    /// The content of the whole pages of `range` arrives later: their present content is stale, and
    /// must not be read or written until then. The image is not in use yet.
    ///
    /// # Errors
    /// If it can't be arranged.
    fn owe(&self, range: Range<u64>) -> io::Result<()>;
}

/// A destination that is a file. Holes stay holes.
pub(crate) trait FileDestination: Send + Sync {
    /// The file, once there is one.
    fn file(&self) -> io::Result<&File>;

    /// Makes it `size` bytes, as [`Destination::prepare`].
    fn resize(&mut self, size: Bytes) -> io::Result<()>;

    /// As [`Destination::kept`].
    fn kept_stripes(&self) -> io::Result<Vec<u64>>;

    /// Gives it its name, once all of it is on disk.
    fn publish(&mut self) -> io::Result<()>;
}

impl<T: FileDestination> Destination for T {
    fn prepare(&mut self, size: Bytes) -> io::Result<()> {
        self.resize(size)
    }

    fn kept(&self) -> io::Result<Vec<u64>> {
        self.kept_stripes()
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
        self.publish()
    }
}

/// A file, which has its name only once all of it is on disk. Holes stay holes.
#[derive(Debug)]
pub struct ImageDestination {
    path: PathBuf,
    unfinished: Option<UnfinishedFile>,
}

fn unprepared() -> io::Error {
    io::Error::other("the destination was not prepared")
}

impl ImageDestination {
    /// A file that is to be `path`, which must not exist. Tries whether it can be made there, and
    /// leaves nothing.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] if something is at `path`; else the kernel's error for its
    /// directory.
    pub fn new(path: PathBuf) -> io::Result<Self> {
        UnfinishedFile::create(&path)?;
        Ok(Self { path, unfinished: None })
    }
}

impl FileDestination for ImageDestination {
    fn file(&self) -> io::Result<&File> {
        self.unfinished.as_ref().map(UnfinishedFile::file).ok_or_else(unprepared)
    }

    fn resize(&mut self, size: Bytes) -> io::Result<()> {
        let unfinished = UnfinishedFile::create(&self.path)?;
        unfinished.file().set_len(size.get())?;
        self.unfinished = Some(unfinished);
        Ok(())
    }

    fn kept_stripes(&self) -> io::Result<Vec<u64>> {
        Ok(Vec::new())
    }

    fn publish(&mut self) -> io::Result<()> {
        self.unfinished.take().ok_or_else(unprepared)?.publish()
    }
}

/// Private anonymous memory of our own. In OS pages, unless asked otherwise: a page that was never
/// written has no frame.
#[derive(Default)]
pub struct MemoryDestination {
    memory: Option<ByteStore>,
    size: Bytes,
    is_huge: bool,
}

impl MemoryDestination {
    /// Memory of no size yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The same in huge pages, where the kernel has them: a VMM asks for them for its guest. One
    /// page that arrives then holds 2 MiB.
    #[must_use]
    pub fn in_huge_pages() -> Self {
        Self { is_huge: true, ..Self::default() }
    }

    /// Its size, once a sender has said it.
    #[must_use]
    pub const fn size(&self) -> Bytes {
        self.size
    }

    /// The addresses that it has, if it has any.
    #[cfg(test)]
    pub(crate) fn addresses(&self) -> Option<Range<usize>> {
        self.memory.as_ref().map(ByteStore::range)
    }

    fn memory(&self) -> io::Result<&ByteStore> {
        self.memory.as_ref().ok_or_else(unprepared)
    }
}

fn as_usize(offset: u64) -> usize {
    Bytes::new(offset).as_usize()
}

impl Destination for MemoryDestination {
    /// Earlier content is discarded first: only fresh memory is zero.
    fn prepare(&mut self, size: Bytes) -> io::Result<()> {
        match &self.memory {
            Some(memory) if self.size == size => memory.discard(0..memory.len())?,
            _ => {
                let backing = if self.is_huge { Backing::Huge } else { Backing::Small };
                self.memory = Some(ByteStore::reserve(size.as_usize(), backing)?);
            }
        }
        self.size = size;
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.memory()?.write_at(as_usize(offset), bytes);
        Ok(())
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.memory()?.read_at(as_usize(offset), into);
        Ok(())
    }

    fn clear(&self, range: Range<u64>) -> io::Result<()> {
        const ZEROES: [u8; 4096] = [0; 4096];
        let memory = self.memory()?;
        for at in range.clone().step_by(ZEROES.len()) {
            memory.write_at(as_usize(at), &ZEROES[..ZEROES.len().min(as_usize(range.end - at))]);
        }
        Ok(())
    }

    fn discard(&self, range: Range<u64>) -> io::Result<()> {
        let end = as_usize(range.end).next_multiple_of(pagoda_core::page::OS_PAGE);
        self.memory()?.discard(as_usize(range.start)..end)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.memory().map(drop)
    }
}
