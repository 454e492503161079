//! A file that outlives the process that writes it, and has its own name only once it is finished.
//!
//! Until then it lies beside that name, with `.partial` behind it, for this user alone. One process
//! at a time has it. This module must never follow a link in its place, nor touch a file that has
//! its own name already.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FlockOperation, OFlags, RenameFlags, flock, renameat_with};
use rustix::io::Errno;
use rustix::process::geteuid;

/// Its user's alone: it may be a memory image.
const MODE: u32 = 0o600;

/// The file. Dropping it leaves it where it is, for the next process to go on with.
#[derive(Debug)]
pub struct PartialFile {
    file: File,
    /// Where it lies now.
    path: PathBuf,
    /// Where it is to lie.
    name: PathBuf,
}

impl PartialFile {
    /// Opens the file that is to be `path`, or makes it.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] if there is something at `path`;
    /// [`io::ErrorKind::ResourceBusy`] if another process has it; [`io::ErrorKind::InvalidInput`]
    /// if there is something else than a regular file of this user's alone; else those of open(2).
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::opened(path)?.locked()
    }

    /// The file without its lock, which may be another process's.
    fn opened(path: &Path) -> io::Result<Self> {
        if path.symlink_metadata().is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let mut name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?.to_owned();
        name.push(".partial");
        let partial = path.with_file_name(name);
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(MODE).custom_flags(flags);
        Ok(Self { file: options.open(&partial)?, path: partial, name: path.to_owned() })
    }

    /// The same with its lock, if it is a file to go on with.
    fn locked(self) -> io::Result<Self> {
        match flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(io::ErrorKind::ResourceBusy.into()),
            Err(error) => return Err(error.into()),
        }
        // Checked with the lock: a process that had it may have published the file before.
        if !self.is_in_place()? {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let metadata = self.file.metadata()?;
        let is_ours = metadata.uid() == geteuid().as_raw() && metadata.mode() & 0o077 == 0;
        if !metadata.is_file() || !is_ours || metadata.nlink() != 1 {
            let what = format!("{} is no file of this user's alone", self.path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        Ok(self)
    }

    /// Whether its path is still that of this file.
    fn is_in_place(&self) -> io::Result<bool> {
        let here = self.file.metadata()?;
        match fs::symlink_metadata(&self.path) {
            Ok(there) => Ok((there.dev(), there.ino()) == (here.dev(), here.ino())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The file, to be written.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Where it lies now.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits until all of it is on disk, and gives it its name, which then outlives a power
    /// failure.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] if something has taken the name meanwhile; else the
    /// kernel's.
    pub fn publish(self) -> io::Result<()> {
        self.file.sync_all()?;
        // Opened before the rename: without it no sync could tell that the name is on disk, too.
        let parent = self.name.parent().filter(|parent| !parent.as_os_str().is_empty());
        let directory = File::open(parent.unwrap_or(Path::new(".")))?;
        if !self.is_in_place()? {
            return Err(io::Error::other(format!("{} was replaced meanwhile", self.path.display())));
        }
        renameat_with(CWD, &self.path, CWD, &self.name, RenameFlags::NOREPLACE)?;
        directory.sync_all()
    }
}

#[cfg(test)]
#[path = "partial_file_test.rs"]
mod tests;
