//! A directory for the files of one run, on a disk; removed when it is dropped.
//!
//! Its name has the process number, so that a clean-up finds the directory of a killed run. It must
//! never be in memory (tmpfs), where its files would count as measured memory.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::kernel::{DIRECTORY, own_name};

/// A directory of this process below /var/tmp.
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes the directory.
    pub fn new() -> anyhow::Result<Self> {
        let path = Path::new(DIRECTORY).join(own_name());
        fs::create_dir(&path).with_context(|| format!("making the directory {}", path.display()))?;
        Ok(Self(path))
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The path of a file in the directory.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A directory that can't be removed keeps a name that a later clean-up knows.
        let _ = fs::remove_dir_all(&self.0);
    }
}
