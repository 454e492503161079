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
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::io::direct_file::tests::disk;

    #[test]
    fn the_end_of_a_file_is_written_and_the_file_becomes_no_longer() {
        let directory = disk();
        let path = directory.path().join("file");
        std::fs::write(&path, vec![1; 3 * ALIGN + 100]).expect("room");
        let (file, state) =
            MappedFile::open(&path, Access { write: true, ..Access::default() }).expect("a disk");
        assert_eq!(state.len, 3 * ALIGN as u64 + 100);
        let mut buffer = AlignedBuffer::new(2 * ALIGN);
        assert_eq!(file.read_at(2 * ALIGN as u64, &mut buffer), Ok(ALIGN + 100));
        buffer.fill(2);
        file.write_at(ALIGN as u64, &mut [IoSlice::new(&buffer[..ALIGN])]).expect("there is room");
        file.write_end(3 * ALIGN as u64, &buffer[..100]).expect("there is room");
        file.sync().expect("a disk");
        let found = std::fs::read(&path).expect("it is there");
        let expected = [vec![1; ALIGN], vec![2; ALIGN], vec![1; ALIGN], vec![2; 100]].concat();
        assert!(found == expected, "{} bytes", found.len());
    }

    #[test]
    fn of_a_part_nothing_around_it_is_read_or_written() {
        let directory = disk();
        let path = directory.path().join("file");
        let content: Vec<u8> = (0..6 * ALIGN).map(|at| (at / 7) as u8).collect();
        std::fs::write(&path, &content).expect("room");
        let part = |start, most| Access { write: true, start, most, ..Access::default() };
        let (file, state) =
            MappedFile::open(&path, part(ALIGN as u64, Some(2 * ALIGN as u64 + 100))).expect("open");
        assert_eq!(state.len, 2 * ALIGN as u64 + 100);
        let mut buffer = AlignedBuffer::new(ALIGN);
        assert_eq!(file.read_at(ALIGN as u64, &mut buffer), Ok(ALIGN));
        assert_eq!(buffer[..], content[2 * ALIGN..3 * ALIGN]);
        buffer.fill(2);
        file.write_at(ALIGN as u64, &mut [IoSlice::new(&buffer)]).expect("there is room");
        file.write_end(2 * ALIGN as u64, &buffer[..100]).expect("there is room");
        file.sync().expect("a disk");
        let found = std::fs::read(&path).expect("it is there");
        let expected = [&content[..2 * ALIGN], &[2; ALIGN + 100], &content[3 * ALIGN + 100..]].concat();
        assert!(found == expected, "{} bytes", found.len());
        let len_of = |access| MappedFile::open(&path, access).map(|(_, state)| state.len);
        assert_eq!(len_of(part(5 * ALIGN as u64, None)), Ok(ALIGN as u64), "up to the end");
        for start in [7 * ALIGN as u64, !(ALIGN as u64 - 1)] {
            assert_eq!(len_of(part(start, Some(1))), Ok(0), "behind it");
        }
        // A cut behind the part does not change its length.
        let other = std::fs::OpenOptions::new().write(true).open(&path).expect("it is there");
        other.set_len(4 * ALIGN as u64).expect("a disk");
        assert_eq!(file.state().map(|state| state.len), Ok(2 * ALIGN as u64 + 100));
        other.set_len(2 * ALIGN as u64 + 1).expect("a disk");
        assert_eq!(file.state().map(|state| state.len), Ok(ALIGN as u64 + 1));
    }

    #[test]
    fn a_file_that_is_cut_and_made_longer_again_is_known_by_something() {
        let directory = disk();
        let path = directory.path().join("file");
        std::fs::write(&path, vec![1; 8 * ALIGN]).expect("room");
        let (file, before) =
            MappedFile::open(&path, Access { write: true, ..Access::default() }).expect("a disk");
        assert_eq!(file.state(), Ok(before), "a look changes nothing");
        let other = std::fs::OpenOptions::new().write(true).open(&path).expect("it is there");
        other.set_len(ALIGN as u64 + 100).expect("a disk");
        // The rest is the file's own, also where its end is in a page now.
        file.write_end(ALIGN as u64, &[2; 100]).expect("there is room");
        other.set_len(8 * ALIGN as u64).expect("a disk");
        let after = file.state().expect("it is open");
        assert_eq!(after.len, before.len);
        // Its change time need not differ where that goes by the ticks of a clock.
        assert!(after.blocks < before.blocks, "{before:?}, {after:?}");
    }

    #[test]
    fn a_path_of_no_file_is_an_error_at_once() {
        let directory = disk();
        let pipe = directory.path().join("pipe");
        fs::mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).expect("a pipe");
        let open = |path: &Path| MappedFile::open(path, Access::default()).map(|(_, state)| state.len);
        assert_eq!(open(&pipe), Err(OpenError::Kind("a pipe")));
        assert_eq!(open(directory.path()), Err(OpenError::Kind("a directory")));
        assert_eq!(open(Path::new("/dev/zero")), Err(OpenError::Kind("a character device")));
        assert_eq!(open(&directory.path().join("none")), Err(OpenError::Open(Errno::NOENT)));
    }

    #[test]
    fn memory_is_refused_unless_the_cache_is_asked_for() {
        let Ok(file) = tempfile::NamedTempFile::new_in("/dev/shm") else { return };
        file.as_file().write_all_at(&[7; 10], 0).expect("room");
        let refused = MappedFile::open(file.path(), Access::default()).map(|(_, state)| state.len);
        assert_eq!(refused, Err(OpenError::InMemory("tmpfs")));
        let (file, state) =
            MappedFile::open(file.path(), Access { write: true, buffered: true, ..Access::default() })
                .expect("memory");
        file.write_end(0, &[8; 10]).expect("room");
        let mut found = [0; 20];
        assert_eq!((state.len, file.read_at(0, &mut found)), (10, Ok(10)));
        assert_eq!(found[..10], [8; 10]);
    }
}
