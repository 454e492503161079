//! A directory for the files of one run, on a disk; removed when it is dropped.
//!
//! Its name tells who made it, so that what a killed run left is found. It must never be in memory (tmpfs), where
//! its files would count as what is measured.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::kernel::{DIRECTORY, own_name};

/// A directory of ours below /var/tmp.
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes one.
    pub fn new() -> anyhow::Result<Self> {
        let path = Path::new(DIRECTORY).join(own_name());
        fs::create_dir(&path).with_context(|| format!("making the directory {}", path.display()))?;
        Ok(Self(path))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A path in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What can't be removed keeps a name that a later clean-up knows.
        let _ = fs::remove_dir_all(&self.0);
    }
}
