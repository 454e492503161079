//! Where the store's file and the tree file go, checked before the program starts.
//!
//! This module must never leave a file behind: the tree file goes when its value is dropped, also on errors. Only a
//! pagoda that is killed itself leaves it, some OS pages large, to the program that goes on.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use pagoda::tree::{Tree, place};
use pagoda_core::page::BasePage;
use pagoda_core::size::Bytes;
use pagoda_linux::direct_file::DirectFile;
use rustix::fs::statvfs;

use crate::refusal::Refusal;

/// Names the store directory where `--store-dir` does not.
pub const STORE_ENV: &str = "PAGODA_STORE";
const STORE_DEFAULT: &str = "/var/tmp";

/// The store directory: what the command line says, or the environment, or `/var/tmp`. Unless nothing is ever to be
/// spilled, a direct file is made there for a trial.
pub fn store_directory(
    named: Option<&Path>,
    environment: Option<OsString>,
    file_limit: Option<Bytes>,
) -> Result<PathBuf, Refusal> {
    let environment = environment.filter(|value| !value.is_empty()).map(PathBuf::from);
    let directory = named.map(Path::to_owned).or(environment).unwrap_or_else(|| PathBuf::from(STORE_DEFAULT));
    if file_limit != Some(Bytes::ZERO) {
        DirectFile::create_in(&directory).map_err(Refusal::own)?;
    }
    // The program may change its directory before the engine opens this one.
    std::path::absolute(&directory)
        .map_err(|error| Refusal::own(format!("{}: {error}; give its full path", directory.display())))
}

/// How large the store's file may grow where nobody says: nine tenths of what is free now, so that others can work on.
pub fn default_file_limit(directory: &Path) -> Result<Bytes, Refusal> {
    let space = statvfs(directory).map_err(|error| {
        Refusal::own(format!(
            "could not ask how much is free in {} ({error}); give --file-limit",
            directory.display()
        ))
    })?;
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    Ok(Bytes::new(free - free / 10))
}

/// The tree of the program to start, in a file that is removed with this value.
pub struct TreeFile {
    tree: Tree,
    path: PathBuf,
}

impl TreeFile {
    /// Creates it in `$XDG_RUNTIME_DIR`, `/dev/shm` or the directory for temporary files, whichever takes it first.
    pub fn create(
        runtime_directory: Option<OsString>,
        budget: Bytes,
        base_page: BasePage,
    ) -> Result<Self, Refusal> {
        let made = place::create(runtime_directory, |path| Tree::create(path, budget, base_page));
        made.map(|(tree, path)| Self { tree, path }).map_err(|failures| {
            let why = failures.iter().map(|(directory, error)| format!("{}: {error}", directory.display()));
            Refusal::own(format!(
                "could not create a counters file ({}); set XDG_RUNTIME_DIR to a directory that can be written",
                why.collect::<Vec<_>>().join(", ")
            ))
        })
    }
    /// The tree.
    pub fn tree(&self) -> Tree {
        self.tree
    }
    /// Where the program opens it.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for TreeFile {
    fn drop(&mut self) {
        // Whoever removed it before us has done our work.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_tree_file_is_for_its_user_alone_and_goes_with_its_value() {
        let directory = tempfile::tempdir().expect("a directory");
        let file =
            TreeFile::create(Some(directory.path().into()), Bytes::gib(1), BasePage::K64).expect("created");
        let path = file.path().to_owned();
        assert!(path.starts_with(directory.path()));
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        drop(file);
        assert_eq!(fs::read_dir(directory.path()).expect("read").count(), 0);
    }

    #[test]
    fn a_runtime_directory_that_is_not_there_is_passed_over() {
        let file = TreeFile::create(Some("/nonexistent".into()), Bytes::gib(1), BasePage::K64)
            .expect("created elsewhere");
        assert!(!file.path().starts_with("/nonexistent"));
    }

    #[test]
    fn a_store_directory_is_a_directory_on_a_disk_and_is_left_empty() {
        let directory = tempfile::tempdir_in("/var/tmp").expect("a directory");
        assert_eq!(store_directory(Some(directory.path()), None, None).expect("taken"), directory.path());
        assert_eq!(fs::read_dir(directory.path()).expect("read").count(), 0);
        for place in ["/nonexistent", "/proc", "/etc/passwd"] {
            let error = store_directory(Some(Path::new(place)), None, None).expect_err(place).to_string();
            assert!(error.contains(place), "{error}");
        }
        let nothing_spilled = store_directory(None, Some("/nonexistent".into()), Some(Bytes::ZERO));
        assert_eq!(nothing_spilled.expect("not looked at"), Path::new("/nonexistent"));
    }
}
