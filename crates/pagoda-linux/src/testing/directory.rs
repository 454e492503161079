//! Directories on a disk for tests, and what lies in one, for tests of what is left behind.
//!
//! This module must never pass over an entry, hidden ones included.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

/// A directory on a disk in which this process may make files: where the tests are built, or that for what is temporary and large.
///
/// # Panics
/// If it is not known where the test is.
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
