//! A file that is invisible until it is finished.
//!
//! It has no name while it is written, so that a process that is killed leaves nothing behind;
//! where the file system has no such files, it has a hidden one that says `unfinished`. Only
//! [`UnfinishedFile::publish`] gives it its name, once all of it is on disk: over a file that is
//! there only if it was made to replace it, and then in one step. It must never be published twice
//! or by accident.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, linkat, open, renameat_with};
use rustix::io::Errno;

/// Its user's alone: it may be a memory image.
const MODE: u32 = 0o600;

/// The file, empty at first. Dropping it removes it.
#[derive(Debug)]
pub struct UnfinishedFile {
    file: File,
    path: PathBuf,
    /// The name it has meanwhile, if it needs one.
    hidden: Option<PathBuf>,
    /// It may take the place of another file.
    replaces: bool,
}

/// The directory that `path` is to lie in.
fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

impl UnfinishedFile {
    /// Makes the file, which is to be `path`.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] if there is something at `path`; else those of open(2).
    pub fn create(path: &Path) -> io::Result<Self> {
        if path.symlink_metadata().is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        match open(parent(path), flags, Mode::from_raw_mode(MODE)) {
            Ok(file) => Ok(Self { file: file.into(), path: path.to_owned(), hidden: None, replaces: false }),
            Err(Errno::OPNOTSUPP | Errno::ISDIR) => Self::create_hidden(path),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes the file, which is to be `path`, in place of a file that may be there: until it is
    /// published that one stays.
    ///
    /// # Errors
    /// Those of open(2).
    pub fn create_to_replace(path: &Path) -> io::Result<Self> {
        // A file without a name can't replace one that is there.
        let mut file = Self::create_hidden(path)?;
        file.replaces = true;
        Ok(file)
    }

    fn create_hidden(path: &Path) -> io::Result<Self> {
        let mut name = OsString::from(".");
        name.push(path.file_name().ok_or(io::ErrorKind::InvalidFilename)?);
        name.push(format!(".{:016x}.unfinished", crate::process::child::random_u64()));
        let hidden = parent(path).join(name);
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(MODE).open(&hidden)?;
        Ok(Self { file, path: path.to_owned(), hidden: Some(hidden), replaces: false })
    }

    /// The file, to be written.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Waits until all of it is on disk, and gives it its name. When this has returned, the name
    /// outlives a power failure. After an error that name is as it was, or the file has it and is
    /// whole.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] if something has taken the name meanwhile; else the
    /// kernel's.
    pub fn publish(mut self) -> io::Result<()> {
        self.file.sync_all()?;
        // Before it has its name: without the directory's descriptor no sync could tell that the
        // name is on disk, too.
        let directory = File::open(parent(&self.path))?;
        match &self.hidden {
            None => {
                let own = format!("/proc/self/fd/{}", self.file.as_raw_fd());
                linkat(CWD, own, CWD, &self.path, AtFlags::SYMLINK_FOLLOW)?;
            }
            Some(hidden) => {
                if self.replaces {
                    fs::rename(hidden, &self.path)?;
                } else {
                    renameat_with(CWD, hidden, CWD, &self.path, RenameFlags::NOREPLACE)?;
                }
                self.hidden = None;
            }
        }
        directory.sync_all()
    }
}

impl Drop for UnfinishedFile {
    fn drop(&mut self) {
        if let Some(hidden) = &self.hidden {
            // The name of a file that can't be removed still says that it is unfinished.
            let _ = fs::remove_file(hidden);
        }
    }
}

#[cfg(test)]
#[path = "unfinished_file_test.rs"]
mod tests;
