//! A file of words that several processes share: one writes there and another reads, also after the
//! writer was killed.
//!
//! The mapping is shared and holds nothing but atomic words, so that no lock is ever needed and a
//! reader can attach at any time. It must never hold a pointer: the other side of the file is
//! another process. A process that only looks, and does not trust the writer, reads words by
//! [`WordFile`] and maps nothing: a mapped file that is cut short kills its reader.

use std::ffi::CStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use rustix::fs::{MemfdFlags, OFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::mem::own_memory;
use crate::mem::range::PageRange;

/// Seals of a file without a name: no process can change its length, which would kill one that
/// touches the missing part, or take a seal off.
const SEALS: SealFlags = SealFlags::GROW.union(SealFlags::SHRINK).union(SealFlags::SEAL);

/// A file in memory for so many words, all zero, without a name. `name` is shown in
/// `/proc/PID/maps`.
pub(crate) fn nameless(name: &CStr, words: usize) -> io::Result<File> {
    let file = File::from(memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    file.set_len(SharedWords::bytes(words) as u64)?;
    fcntl_add_seals(&file, SEALS)?;
    Ok(file)
}

/// A file in memory of so many bytes, all zero, without a name, to be given to another process: as
/// a VM's memory is. Pages that are never written take no memory.
///
/// # Errors
/// There is no descriptor.
pub fn memory_file(name: &CStr, len_bytes: u64) -> io::Result<File> {
    let file = File::from(memfd_create(name, MemfdFlags::CLOEXEC)?);
    file.set_len(len_bytes)?;
    Ok(file)
}

/// Whether this is a file as [`nameless`] makes it: it stays as long as it is.
pub(crate) fn is_sealed(file: &File) -> bool {
    fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SEALS))
}

/// A fixed number of atomic words in a shared mapping. Dropping it unmaps; the file stays.
pub struct SharedWords {
    at: *mut AtomicU64,
    words: usize,
}

// SAFETY: the pointer is to a mapping that this value owns and that is not tied to a thread;
// atomics are Sync.
unsafe impl Send for SharedWords {}
// SAFETY: only `&[AtomicU64]` is ever handed out, and atomics are Sync.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// Creates the file, readable and writable by its user alone, all zero. Fails if it exists.
    /// Words that are never written take no memory.
    pub fn create(path: &Path, words: usize) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
        file.set_len(Self::bytes(words) as u64)?;
        Self::map(&file, words)
    }

    /// Opens a file that [`create`](Self::create) or [`NamelessWords::create`] made for this user.
    /// Never blocks.
    ///
    /// # Errors
    /// It can't be opened, or another user could have put it there or could cut it short, which
    /// kills its reader: it is a link or no plain file, belongs to another user, is open to others,
    /// has a second name, or has no name and could become shorter. Or it has another length, and is
    /// not of this version. All but the first are [`InvalidData`](io::ErrorKind::InvalidData).
    pub fn open(path: &Path, words: usize) -> io::Result<Self> {
        let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)?;
        let about = file.metadata()?;
        let is_named_so = || {
            let at_path = std::fs::symlink_metadata(path);
            at_path.is_ok_and(|named| (named.dev(), named.ino()) == (about.dev(), about.ino()))
        };
        let wrong = if !about.is_file() {
            "it is no plain file"
        } else if about.uid() != rustix::process::geteuid().as_raw() {
            "it belongs to another user"
        } else if about.nlink() == 0 && !is_sealed(&file) {
            "the file has no name, and is not ours"
        } else if about.nlink() != 0 && (about.nlink() > 1 || !is_named_so()) {
            "it is a link, or has another name"
        } else if about.nlink() != 0 && about.mode() & 0o077 != 0 {
            "others than its user may open it"
        } else if about.len() != Self::bytes(words) as u64 {
            "the file has another length than this version's"
        } else {
            return Self::map(&file, words);
        };
        Err(io::Error::new(io::ErrorKind::InvalidData, wrong))
    }

    /// Maps the file of a [`NamelessWords`] whose descriptor came from its maker.
    ///
    /// # Errors
    /// It has another length, or could become shorter: [`InvalidData`](io::ErrorKind::InvalidData).
    /// Or it can't be mapped.
    pub fn of_descriptor(file: OwnedFd, words: usize) -> io::Result<Self> {
        let file = File::from(file);
        if !is_sealed(&file) || file.metadata()?.len() != Self::bytes(words) as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "no file of words of this length"));
        }
        Self::map(&file, words)
    }

    /// A mapping that no file stands behind, for a process that has no reader.
    pub fn anonymous(words: usize) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing.
        let at = unsafe {
            mmap_anonymous(std::ptr::null_mut(), Self::bytes(words), protection, MapFlags::SHARED)?
        };
        Self::declared(at.cast(), words)
    }

    /// The mapping at `at`, as our own: in a child it may be at an address that its parent has
    /// managed.
    fn declared(at: *mut AtomicU64, words: usize) -> io::Result<Self> {
        let mapping = Self { at, words };
        if !own_memory::declare(mapping.range()) {
            return Err(io::Error::other("the list of Pagoda's own mappings is full"));
        }
        Ok(mapping)
    }

    fn range(&self) -> PageRange {
        PageRange::at(self.at.addr(), Self::bytes(self.words))
    }

    /// Keeps the mapping for the life of the process, so that the words can be held without a count
    /// of their holders.
    #[must_use]
    pub fn leak(self) -> &'static [AtomicU64] {
        let mapping = std::mem::ManuallyDrop::new(self);
        // SAFETY: as in `deref`; the mapping is never unmapped, for its owner is never dropped.
        unsafe { std::slice::from_raw_parts(mapping.at, mapping.words) }
    }

    fn bytes(words: usize) -> usize {
        (words * size_of::<AtomicU64>()).next_multiple_of(4096)
    }

    /// Keeps the mapping out of children of a fork.
    pub(crate) fn keep_from_children(&self) {
        // SAFETY: it changes what a child inherits, and no content, of a mapping that this value
        // owns.
        let _ = unsafe { madvise(self.at.cast(), Self::bytes(self.words), Advice::LinuxDontFork) };
    }

    pub(crate) fn map(file: &File, words: usize) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing; the file is
        // long enough.
        let at =
            unsafe { mmap(std::ptr::null_mut(), Self::bytes(words), protection, MapFlags::SHARED, file, 0)? };
        Self::declared(at.cast(), words)
    }
}

impl Deref for SharedWords {
    type Target = [AtomicU64];
    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: `at` is a live, page-aligned mapping of at least `words` words until drop; any
        // bits are a valid AtomicU64, and all access is atomic, so the other process can neither
        // tear nor invalidate it.
        unsafe { std::slice::from_raw_parts(self.at, self.words) }
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        own_memory::withdraw(self.range());
        // SAFETY: this value owns the mapping and no reference to it outlives `self`.
        let _ = unsafe { munmap(self.at.cast(), Self::bytes(self.words)) };
    }
}

/// A file of words in memory, without a name: nothing is left of it when its maker and all its
/// other users are gone, however they ended. As long as its maker lives, processes that may look
/// into that one open it by [`path`](Self::path).
pub struct NamelessWords {
    words: SharedWords,
    file: File,
}

impl NamelessWords {
    /// Creates it, all zero. Words that are never written take no memory. `name` is shown in
    /// `/proc/PID/maps`.
    pub fn create(name: &CStr, words: usize) -> io::Result<Self> {
        let file = nameless(name, words)?;
        Ok(Self { words: SharedWords::map(&file, words)?, file })
    }

    /// Its descriptor, for [`SharedWords::of_descriptor`] in another process.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Where [`SharedWords::open`] finds it.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()).into()
    }
}

impl Deref for NamelessWords {
    type Target = [AtomicU64];
    fn deref(&self) -> &[AtomicU64] {
        &self.words
    }
}

/// A file of words that is only looked at, as it is at each read.
pub struct WordFile {
    file: File,
}

impl WordFile {
    /// Opens a file that [`SharedWords::create`] made for this user; root may look at those of all.
    /// Never blocks.
    ///
    /// # Errors
    /// It can't be opened, is a link or no plain file, belongs to another user, is open to others,
    /// or has another length: the last four are [`InvalidData`](io::ErrorKind::InvalidData).
    pub fn open(path: &Path, words: usize) -> io::Result<Self> {
        // A pipe of that name must not hold us up.
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        let about = file.metadata()?;
        let own = rustix::process::geteuid();
        let wrong = if !about.is_file() {
            "it is no plain file"
        } else if !own.is_root() && about.uid() != own.as_raw() {
            "it belongs to another user"
        } else if about.mode() & 0o077 != 0 {
            "others than its user may open it"
        } else if about.len() != SharedWords::bytes(words) as u64 {
            "it has another length than this version's"
        } else {
            return Ok(Self { file });
        };
        Err(io::Error::new(io::ErrorKind::InvalidData, wrong))
    }

    /// Reads `count` words from the word at `from` on.
    ///
    /// # Errors
    /// The file has become shorter, or can't be read.
    pub fn read(&self, from: usize, count: usize) -> io::Result<Vec<u64>> {
        const BYTES: usize = size_of::<u64>();
        let mut bytes = vec![0; count * BYTES];
        self.file.read_exact_at(&mut bytes, (from * BYTES) as u64)?;
        let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("chunks of eight"));
        Ok(bytes.chunks_exact(BYTES).map(word).collect())
    }
}

#[cfg(test)]
#[path = "shared_file_test.rs"]
mod tests;
