//! What lies in a directory, for tests of what is left behind.
//!
//! This module must never pass over an entry, hidden ones included.

use std::fs;
use std::path::Path;

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
