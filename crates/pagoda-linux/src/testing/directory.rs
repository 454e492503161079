//! Directories on a disk for tests, and the entries of one, for tests of leftovers.
//!
//! This module must never pass over an entry, hidden ones included.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

/// A directory on a disk in which this process may make files: the build directory of the tests, or
/// the one for large temporary files.
///
/// # Panics
/// If the path of the test is not known.
#[must_use]
pub fn on_disk() -> PathBuf {
    let own = std::env::current_exe().expect("a path");
    let built = own.parent().expect("a directory");
    if access(built, Access::WRITE_OK).is_ok() { built.to_owned() } else { PathBuf::from("/var/tmp") }
}

/// The names of all entries, in order.
///
/// # Panics
/// If it can't be read.
#[must_use]
pub fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("a directory");
    let mut names: Vec<_> =
        entries.map(|entry| entry.expect("an entry").file_name().display().to_string()).collect();
    names.sort();
    names
}
