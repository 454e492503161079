//! The preload library that is inside this command, and the file that a run makes of it.
//!
//! The loader takes a path that has to last as long as the program and all that it starts. A file
//! in memory does not: many programs close all descriptors before they start another one. So the
//! library is kept in a directory of this user's, under a name of its own for each build.
//!
//! This module must never name a file that another user could have written or replaced, or whose
//! content it has not compared.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::preload::loadable;

/// The library that the feature `embed` put into this command.
pub const EMBEDDED: Option<Embedded> = include!(concat!(env!("OUT_DIR"), "/embedded.rs"));

const PREFIX: &str = "libpagoda_preload-";

/// So many builds are kept, those that were used last: a program of an older one may still be
/// running, and start others.
const BUILDS_MAX: usize = 4;

/// A library as bytes.
#[derive(Clone, Copy)]
pub struct Embedded {
    /// The name of its file, which starts with [`PREFIX`] and differs from build to build.
    pub name: &'static str,
    pub content: &'static [u8],
}

impl Embedded {
    /// The library's file in the first of these directories that is private and that the loader
    /// takes. It is made, or mended, if it is not there whole. Otherwise the reason of each.
    pub fn place(&self, directories: impl IntoIterator<Item = PathBuf>) -> Result<PathBuf, String> {
        let mut reasons = Vec::new();
        for directory in directories {
            match self.place_in(&directory) {
                Ok(path) => return Ok(path),
                Err(reason) => reasons.push(format!("{}: {reason}", directory.display())),
            }
        }
        Err(reasons.join(", "))
    }

    fn place_in(&self, directory: &Path) -> Result<PathBuf, String> {
        let directory = private(directory)?;
        let path = directory.join(self.name);
        loadable(&directory).map_err(str::to_owned)?;
        let is_there = || self.is_whole(&path).map_err(|error| error.to_string());
        if !is_there()? {
            self.write(&directory, &path).map_err(|error| error.to_string())?;
            if !is_there()? {
                return Err("the file has other content than was written".to_owned());
            }
        }
        Ok(path)
    }

    /// Whether the file is this library, byte by byte, which only this user may write. Notes
    /// that it is in use.
    fn is_whole(&self, path: &Path) -> io::Result<bool> {
        let options = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).to_owned();
        let file = match options.open(path) {
            Ok(file) => file,
            // A link there is replaced, like other content.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ELOOP)) => {
                return Ok(false);
            }
            Err(error) => return Err(error),
        };
        let metadata = file.metadata()?;
        if !metadata.is_file() || metadata.uid() != own_user() || metadata.mode() & 0o022 != 0 {
            return Ok(false);
        }
        file.set_modified(SystemTime::now())?;
        self.is_content_of(file)
    }

    /// Whether another file is the same library.
    pub fn is_at(&self, path: &Path) -> bool {
        File::open(path).and_then(|file| self.is_content_of(file)).unwrap_or(false)
    }

    fn is_content_of(&self, file: File) -> io::Result<bool> {
        if file.metadata()?.len() != self.content.len() as u64 {
            return Ok(false);
        }
        let mut content = Vec::with_capacity(self.content.len() + 1);
        file.take(self.content.len() as u64 + 1).read_to_end(&mut content)?;
        Ok(content == self.content)
    }

    /// Puts the whole file there at once: another run may be doing the same, and programs use the
    /// one that it replaces.
    fn write(&self, directory: &Path, path: &Path) -> io::Result<()> {
        let mut file = tempfile::Builder::new().prefix(PREFIX).tempfile_in(directory)?;
        file.write_all(self.content)?;
        file.persist(path)?;
        remove_old(directory);
        Ok(())
    }
}

/// The directories to try: this user's cache, run-time directory, and places for all users.
pub fn directories() -> impl Iterator<Item = PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
    let own = [cache, absolute("XDG_RUNTIME_DIR")].into_iter().flatten().map(|parent| parent.join("pagoda"));
    let of_all = [PathBuf::from("/var/tmp"), std::env::temp_dir()];
    own.chain(of_all.map(|parent| parent.join(format!("pagoda-{}", own_user()))))
}

fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Makes the directory, or takes it if it is for this user alone. No other user may be able to put
/// another one in its place: the loader goes by the path.
fn private(directory: &Path) -> Result<PathBuf, String> {
    let told = |error: io::Error| error.to_string();
    let existing = directory.ancestors().skip(1).find_map(|above| above.canonicalize().ok());
    for above in existing.iter().flat_map(|existing| existing.ancestors()) {
        let metadata = fs::metadata(above).map_err(told)?;
        let is_sticky = metadata.mode() & 0o1000 != 0;
        if ![0, own_user()].contains(&metadata.uid()) || metadata.mode() & 0o022 != 0 && !is_sticky {
            return Err(format!("other users can change {}", above.display()));
        }
    }
    DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(told)?;
    let (parent, name) = directory.parent().zip(directory.file_name()).ok_or("it has no parent directory")?;
    // Its own name may not be a link.
    let directory = parent.canonicalize().map_err(told)?.join(name);
    let metadata = fs::symlink_metadata(&directory).map_err(told)?;
    if !metadata.is_dir() || metadata.uid() != own_user() || metadata.mode() & 0o077 != 0 {
        return Err("it is not a directory for this user alone (mode 700)".to_owned());
    }
    Ok(directory)
}

/// Removes all but the builds that were used last, and files that a killed run left.
fn remove_old(directory: &Path) {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let own = entries.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes()));
    let used = |entry: fs::DirEntry| Some((entry.metadata().ok()?.modified().ok()?, entry.path()));
    let mut files: Vec<_> = own.filter_map(used).collect();
    files.sort_unstable();
    for (_, path) in files.iter().rev().skip(BUILDS_MAX) {
        // It is fine if another run removed it before.
        let _ = fs::remove_file(path);
    }
}

#[cfg(test)]
#[path = "embedded_test.rs"]
mod tests;
