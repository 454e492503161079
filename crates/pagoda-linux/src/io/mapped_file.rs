//! A file of the user's, read and written past the kernel's page cache.
//!
//! It is open for direct I/O, so that its bytes are only in its callers' memory. The one exception
//! is the part of an OS page at its end: direct I/O writes whole blocks, which would make the file
//! longer, so that this part goes through the cache, to the disk, and out of the cache again. The
//! same holds for the end of a part of a file. Nothing here may make the file longer, nor change
//! bytes outside of the request; the layout is the caller's business.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{self, Advice, CWD, FileType, Mode, OFlags};
use rustix::io::{self, Errno};

use crate::io::direct_file::{ALIGN, AlignedBuffer, memory_filesystem};

/// How a file is opened, and which part of it. By default all of it, to be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// It is written, too.
    pub write: bool,
    /// Through the kernel's page cache.
    pub buffered: bool,
    /// The file's offset of the part, a multiple of the OS page. All other offsets count from here.
    pub start: u64,
    /// The most bytes of the part; `None` for all up to the file's end.
    pub most: Option<u64>,
}

/// Why a file can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// It could not be opened, or asked about.
    Open(Errno),
    /// It is not a regular file, but this.
    Kind(&'static str),
    /// It is on a file system whose files are memory.
    InMemory(&'static str),
    /// Direct I/O is refused there.
    NoDirectIo(Errno),
}

/// An open file, or a part of it.
#[derive(Debug)]
pub struct MappedFile {
    fd: OwnedFd,
    /// Where the part begins in the file, and the most bytes that it has.
    start: u64,
    most: u64,
    /// The same file through the cache: for the part of a page at its end, if it is written. One
    /// that has none now may be cut.
    end: Option<OwnedFd>,
}

/// The values that tell whether a file has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileState {
    /// How many bytes it has, of the part that is open.
    pub len: u64,
    /// When the file was changed last, as the kernel tells.
    pub changed_ns: i128,
    /// Blocks of it on the disk, of 512 bytes: one that is cut and made longer again has fewer.
    pub blocks: u64,
}

impl MappedFile {
    /// Opens the file at `path`, and returns its state. Blocks for one read, and for others' writes
    /// that are not on the disk yet.
    ///
    /// # Errors
    /// See [`OpenError`].
    ///
    /// # Panics
    /// If the part begins within an OS page.
    pub fn open(path: &Path, access: Access) -> Result<(Self, FileState), OpenError> {
        assert!(access.start.is_multiple_of(ALIGN as u64), "direct I/O is aligned");
        let how = if access.write { OFlags::RDWR } else { OFlags::RDONLY };
        // A pipe without a writer must not keep us.
        let flags = how | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let fd = fs::openat(CWD, path, flags, Mode::empty()).map_err(OpenError::Open)?;
        let stat = fs::fstat(&fd).map_err(OpenError::Open)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind != FileType::RegularFile {
            return Err(OpenError::Kind(name_of(kind)));
        }
        let mut end = None;
        if !access.buffered {
            if let Some(name) = memory_filesystem(fs::fstatfs(&fd).map_err(OpenError::Open)?.f_type as u64) {
                return Err(OpenError::InMemory(name));
            }
            if access.write {
                let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
                end = Some(
                    fs::openat(CWD, path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
                        .map_err(OpenError::Open)?,
                );
            }
            let flags = fs::fcntl_getfl(&fd).map_err(OpenError::Open)?;
            fs::fcntl_setfl(&fd, flags | OFlags::DIRECT).map_err(OpenError::NoDirectIo)?;
        }
        let mut file = Self { fd, start: 0, most: access.most.unwrap_or(u64::MAX), end };
        // Pages that others have read or written through the cache would stay there beside us.
        if !access.buffered {
            file.sync().map_err(OpenError::Open)?;
        }
        match file.read_at(0, &mut AlignedBuffer::new(ALIGN)) {
            Err(Errno::INVAL) if !access.buffered => Err(OpenError::NoDirectIo(Errno::INVAL)),
            Err(errno) => Err(OpenError::Open(errno)),
            // Not before: others' writes may have allocated its blocks just now.
            Ok(_) => {
                file.start = access.start;
                file.state().map(|state| (file, state)).map_err(OpenError::Open)
            }
        }
    }

    /// Its state now.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub fn state(&self) -> Result<FileState, Errno> {
        let stat = fs::fstat(&self.fd)?;
        Ok(FileState {
            len: (stat.st_size as u64).saturating_sub(self.start).min(self.most),
            changed_ns: i128::from(stat.st_ctime) * 1_000_000_000 + i128::from(stat.st_ctime_nsec),
            blocks: stat.st_blocks as u64,
        })
    }

    /// Reads from `offset` on until `into` is full or the file ends. Returns how many bytes that
    /// were. Blocks for the disk.
    ///
    /// # Errors
    /// The kernel's; `into` may hold anything then. Without the cache it refuses unaligned reads.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, Errno> {
        let mut done = 0;
        while done < into.len() {
            match io::pread(&self.fd, &mut into[done..], self.start + offset + done as u64) {
                Ok(0) => break,
                // The file ends within a block.
                Ok(count) if !(done + count).is_multiple_of(ALIGN) => return Ok(done + count),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(done)
    }

    /// The same at once for several buffers that follow each other in the file; bytes missing at
    /// the end may also be there and not read.
    ///
    /// # Errors
    /// As for [`read_at`](Self::read_at).
    pub fn read_all_at(&self, offset: u64, into: &mut [IoSliceMut<'_>]) -> Result<usize, Errno> {
        loop {
            match io::preadv(&self.fd, into, self.start + offset) {
                Err(Errno::INTR) => {}
                outcome => return outcome,
            }
        }
    }

    /// Overwrites whole OS pages with those of several buffers, none of which is empty. Blocks for
    /// the disk.
    ///
    /// # Errors
    /// The kernel's; a part may be written then.
    pub fn write_at(&self, mut offset: u64, mut from: &mut [IoSlice<'_>]) -> Result<(), Errno> {
        while !from.is_empty() {
            match io::pwritev(&self.fd, from, self.start + offset) {
                Ok(0) => return Err(Errno::IO),
                Ok(count) => {
                    offset += count as u64;
                    IoSlice::advance_slices(&mut from, count);
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Overwrites less than an OS page at the end of the file, or of the part, to the disk. Blocks
    /// for it.
    ///
    /// # Errors
    /// As for [`write_at`](Self::write_at).
    pub fn write_end(&self, offset: u64, from: &[u8]) -> Result<(), Errno> {
        let fd = self.end.as_ref().unwrap_or(&self.fd);
        write_all(fd, self.start + offset, from)?;
        if self.end.is_some() {
            fs::fdatasync(fd)?;
            forget(fd);
        }
        Ok(())
    }

    /// Returns when all writes are on stable storage, and in the cache no longer.
    ///
    /// # Errors
    /// Those of fdatasync(2): a write may be lost.
    pub fn sync(&self) -> Result<(), Errno> {
        fs::fdatasync(&self.fd)?;
        forget(&self.fd);
        Ok(())
    }
}

fn write_all(fd: &OwnedFd, offset: u64, from: &[u8]) -> Result<(), Errno> {
    let mut done = 0;
    while done < from.len() {
        match io::pwrite(fd, &from[done..], offset + done as u64) {
            Ok(0) => return Err(Errno::IO),
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Drops the file's cached pages. A file system that can't drop them keeps them.
fn forget(fd: &OwnedFd) {
    let _ = fs::fadvise(fd, 0, None, Advice::DontNeed);
}

fn name_of(kind: FileType) -> &'static str {
    match kind {
        FileType::Directory => "a directory",
        FileType::Fifo => "a pipe",
        FileType::Socket => "a socket",
        FileType::CharacterDevice => "a character device",
        FileType::BlockDevice => "a block device",
        _ => "of an unknown kind",
    }
}

#[cfg(test)]
#[path = "mapped_file_test.rs"]
mod tests;
