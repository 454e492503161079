//! A nameless file for direct I/O: its content is on the disk, and in no page cache.
//!
//! It vanishes with the process, however that ends. A directory whose files live in memory after
//! all is refused: spilling there would only hide memory from the budget. Nothing here knows the
//! layout of the file.

use std::ffi::CStr;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{self, AtFlags, CWD, Mode, OFlags};
use rustix::io::{self, Errno};
use rustix::mm::{self, MapFlags, ProtFlags};

use crate::mem::mincore::is_in_core;

/// Buffers, offsets and lengths of direct I/O are multiples of this.
pub const ALIGN: usize = 4096;

/// Why a directory can't hold a direct file.
#[derive(Debug, thiserror::Error)]
pub enum DirectFileError {
    /// Not there, not a directory, not writable by this user, without room; or this process is at a
    /// limit of its own.
    #[error("can't create a spill file in {}: {source}; {}", directory.display(), advice(source))]
    Create {
        /// The directory.
        directory: PathBuf,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// Its files live in memory.
    #[error("{} is on {filesystem}, whose files are memory too; name a directory on a disk", directory.display())]
    InMemory {
        /// The directory.
        directory: PathBuf,
        /// The kind of file system.
        filesystem: &'static str,
    },
    /// Direct I/O is refused there, or goes through the page cache all the same.
    #[error("{} can't be used for spilling: {reason}; name a directory on ext4, xfs or another file system with direct I/O", directory.display())]
    NoDirectIo {
        /// The directory.
        directory: PathBuf,
        /// The reason.
        reason: String,
    },
}

/// The remedy if a file could not be created and written for this reason.
fn advice(source: &std::io::Error) -> &'static str {
    match Errno::from_io_error(source) {
        Some(Errno::MFILE) => "raise `ulimit -n` by 16",
        Some(Errno::NFILE) => "raise the limit of the whole machine: sysctl -w fs.file-max=1048576",
        Some(Errno::FBIG) => "raise `ulimit -f`",
        Some(Errno::NOSPC | Errno::DQUOT) => "make room there, or name a directory that has some",
        Some(Errno::IO) => "check its disk, or name a directory on another",
        _ => "name an existing directory that this user can write to",
    }
}

/// How a read or write failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// No room on the file system, for this user, or below this process's file size limit.
    #[error("the file system of the spill file is full")]
    Full,
    /// The file ends before the requested bytes.
    #[error("the spill file is shorter than what was written to it")]
    Short,
    /// Anything else.
    #[error("the spill file failed: {0}")]
    Os(FileErrno),
}

/// An error number of the kernel, shown as its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileErrno(Errno);

impl FileError {
    /// The error number that says the same.
    #[must_use]
    pub fn raw_errno(self) -> i32 {
        match self {
            Self::Full => Errno::NOSPC.raw_os_error(),
            Self::Short => Errno::IO.raw_os_error(),
            Self::Os(FileErrno(errno)) => errno.raw_os_error(),
        }
    }
}

impl fmt::Display for FileErrno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::io::Error::from(self.0).fmt(f)
    }
}

/// A buffer for direct I/O, aligned, all zero at first.
pub struct AlignedBuffer {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBuffer {
    /// Allocates `len` bytes (rounded up to [`ALIGN`]).
    #[must_use]
    pub fn new(len: usize) -> Self {
        let len = len.next_multiple_of(ALIGN);
        let bytes = vec![0; len + ALIGN];
        let start = bytes.as_ptr().addr().next_multiple_of(ALIGN) - bytes.as_ptr().addr();
        Self { bytes, start, len }
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

/// Writes that are tried before a directory is refused.
const PROBES: u64 = 16;

/// The file. Dropping it gives its space back.
#[derive(Debug)]
pub struct DirectFile {
    fd: OwnedFd,
}

impl From<OwnedFd> for DirectFile {
    /// A file that is open for direct I/O already.
    fn from(fd: OwnedFd) -> Self {
        Self { fd }
    }
}

impl AsFd for DirectFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl DirectFile {
    /// How long this process may make a file (`ulimit -f`); writing past that raises a signal.
    #[must_use]
    pub fn length_limit() -> u64 {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize);
        limit.current.unwrap_or(u64::MAX)
    }

    /// Creates it in `directory`, and proves by one write that it bypasses the page cache. Blocks
    /// for that write.
    ///
    /// # Errors
    /// See [`DirectFileError`].
    pub fn create_in(directory: &Path) -> Result<Self, DirectFileError> {
        let of_directory = |source: Errno| DirectFileError::Create {
            directory: directory.to_owned(),
            source: source.into(),
        };
        let mode = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let at = fs::openat(CWD, directory, mode, Mode::empty()).map_err(of_directory)?;
        // Before creating anything: some of these accept direct I/O, to no effect.
        if let Some(filesystem) = memory_filesystem(fs::fstatfs(&at).map_err(of_directory)?.f_type as u64) {
            return Err(DirectFileError::InMemory { directory: directory.to_owned(), filesystem });
        }
        // Writing past it would end a process that does not ignore SIGXFSZ.
        if Self::length_limit() < PROBES * ALIGN as u64 {
            return Err(of_directory(Errno::FBIG));
        }
        let without_direct_io =
            |reason: String| DirectFileError::NoDirectIo { directory: directory.to_owned(), reason };
        // Without O_DIRECT first, so that a failure says which of the two is the trouble.
        let fd = create_nameless(&at).map_err(of_directory)?;
        fs::fcntl_setfl(&fd, OFlags::DIRECT)
            .map_err(|error| without_direct_io(format!("direct I/O is refused there ({error})")))?;
        let file = Self { fd };
        match file.leaves_the_page_cache_alone() {
            Ok(true) => Ok(file),
            Ok(false) => Err(without_direct_io("what is written there stays in memory".to_owned())),
            Err(FileError::Full) => Err(of_directory(Errno::NOSPC)),
            Err(error) => Err(without_direct_io(format!("writing there directly failed ({error})"))),
        }
    }

    /// The same file for another process, which can only read it.
    ///
    /// # Errors
    /// Those of open(2): without `/proc`, or if this process has become another user since.
    pub fn for_reading(&self) -> std::io::Result<Self> {
        // Of this thread: a raw one has a table of its own.
        let path = format!("/proc/thread-self/fd/{}", self.fd.as_raw_fd());
        let mode = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
        Ok(Self { fd: fs::openat(CWD, path, mode, Mode::empty())? })
    }

    /// Writes a page, then looks for it in the page cache. This finds cases that no list of file
    /// systems can: an overlay on memory, a file system that takes the flag and ignores it. A
    /// single write may go through the cache all the same (ext4 falls back where its journal is in
    /// the way), so it is only the answer if all of them do.
    fn leaves_the_page_cache_alone(&self) -> Result<bool, FileError> {
        let os_error = |errno| FileError::Os(FileErrno(errno));
        for page in 0..PROBES {
            let offset = page * ALIGN as u64;
            let mut probe = AlignedBuffer::new(ALIGN);
            probe.fill(0xa5);
            self.write_at(offset, &probe)?;
            probe.fill(0);
            self.read_at(offset, &mut probe)?;
            if probe.iter().all(|byte| *byte == 0xa5)
                && !is_page_cached(&self.fd, offset).map_err(os_error)?
            {
                return Ok(true);
            }
            crate::process::caller::sleep_us(2000);
        }
        Ok(false)
    }

    /// Reads exactly `into.len()` bytes. Blocks for the disk.
    ///
    /// # Errors
    /// [`FileError::Short`] past the end; the kernel refuses offsets that are not aligned to
    /// [`ALIGN`].
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), FileError> {
        let mut done = 0;
        while done < into.len() {
            match io::pread(&self.fd, &mut into[done..], offset + done as u64) {
                Ok(0) => return Err(FileError::Short),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(FileError::Os(FileErrno(error))),
            }
        }
        Ok(())
    }

    /// Writes all of `from`. Blocks for the disk.
    ///
    /// # Errors
    /// [`FileError::Full`] if there is no room; part of it may be written then. The kernel refuses
    /// unaligned writes.
    pub fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), FileError> {
        let mut done = 0;
        while done < from.len() {
            match io::pwrite(&self.fd, &from[done..], offset + done as u64) {
                Ok(0) | Err(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => return Err(FileError::Full),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(FileError::Os(FileErrno(error))),
            }
        }
        Ok(())
    }

    /// Gives the place of `len` bytes on the disk back; they read as zero. Blocks for the file
    /// system.
    ///
    /// # Errors
    /// Where the file system can't do that.
    pub fn discard(&self, offset: u64, len: u64) -> Result<(), FileError> {
        let how = fs::FallocateFlags::PUNCH_HOLE | fs::FallocateFlags::KEEP_SIZE;
        fs::fallocate(&self.fd, how, offset, len).map_err(|error| FileError::Os(FileErrno(error)))
    }

    /// Bytes that the file takes on its disk.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub fn disk_bytes(&self) -> Result<u64, FileError> {
        let stat = fs::fstat(&self.fd).map_err(|error| FileError::Os(FileErrno(error)))?;
        Ok(stat.st_blocks as u64 * 512)
    }
}

/// Whether the page of the file at `offset` is in the page cache. By a mapping that is never
/// touched: the other way, a read that must not wait, starts readahead of the page, and with a fast
/// disk finds it there.
fn is_page_cached(fd: &OwnedFd, offset: u64) -> Result<bool, Errno> {
    // SAFETY: a new mapping at a place of the kernel's choice, which is never read or written.
    let page = unsafe { mm::mmap(ptr::null_mut(), ALIGN, ProtFlags::READ, MapFlags::SHARED, fd, offset) }?;
    let outcome = is_in_core(page.addr());
    // SAFETY: the mapping made above, which no other code knows.
    unsafe { mm::munmap(page, ALIGN) }?;
    outcome
}

/// The file systems whose files are memory, by the numbers of statfs(2).
pub(crate) fn memory_filesystem(kind: u64) -> Option<&'static str> {
    match kind & 0xffff_ffff {
        0x0102_1994 => Some("tmpfs"),
        0x8584_58f6 => Some("ramfs"),
        0x9584_58f6 => Some("hugetlbfs"),
        _ => None,
    }
}

/// A file without a name, or one that loses it at once.
fn create_nameless(directory: &OwnedFd) -> Result<OwnedFd, Errno> {
    let mode = OFlags::RDWR | OFlags::CLOEXEC;
    match fs::openat(directory, c".", mode | OFlags::TMPFILE, Mode::RUSR | Mode::WUSR) {
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => create_and_unlink(directory),
        outcome => outcome,
    }
}

fn create_and_unlink(directory: &OwnedFd) -> Result<OwnedFd, Errno> {
    static SERIAL: AtomicU32 = AtomicU32::new(0);
    let mode = OFlags::RDWR | OFlags::CLOEXEC | OFlags::CREATE | OFlags::EXCL;
    loop {
        let process = rustix::process::getpid().as_raw_nonzero();
        let name = format!(".pagoda-spill-{process}-{}\0", SERIAL.fetch_add(1, Ordering::Relaxed));
        let name = CStr::from_bytes_with_nul(name.as_bytes()).expect("one zero, at the end");
        match fs::openat(directory, name, mode, Mode::RUSR | Mode::WUSR) {
            // A process that was killed between the two calls left it, and its number came round
            // again.
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
            Ok(fd) => {
                fs::unlinkat(directory, name, AtFlags::empty())?;
                return Ok(fd);
            }
        }
    }
}

#[cfg(test)]
#[path = "direct_file_test.rs"]
pub(crate) mod tests;
