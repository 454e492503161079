//! Where the store's file and the tree file go, checked before the program starts.
//!
//! This module must never leave a file behind: the tree file goes when its value is dropped, also
//! on errors. Only a pagoda that is killed itself leaves it, some OS pages large, to its program,
//! which removes it when it exits. A program that ends by a signal does not, and the next pagoda
//! removes it when no member is left. Nor may this module remove a file that a process may still
//! look for.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pagoda::tree::{Tree, View, place};
use pagoda_core::page::BasePage;
use pagoda_core::size::Bytes;
use pagoda_linux::io::direct_file::DirectFile;
use rustix::fs::statvfs;

use crate::exit_error::ExitError;

/// Names the store directory where `--store-dir` does not.
pub const STORE_ENV: &str = "PAGODA_STORE";
const STORE_DEFAULT: &str = "/var/tmp";

/// A tree file that was last written to so lately is left alone: a program may have been started
/// that has not joined it yet.
const LEFT_FOR: Duration = Duration::from_secs(60);

/// Files that are looked at for one start: more than are ever there, and some milliseconds.
const LEFT_LOOKS: usize = 256;

/// The store directory: by the command line, or the environment, or `/var/tmp`. Unless nothing is
/// ever to be spilled, a direct file is made there for a trial.
pub fn store_directory(
    named: Option<&Path>,
    environment: Option<OsString>,
    file_limit: Option<Bytes>,
) -> Result<PathBuf, ExitError> {
    let environment = environment.filter(|value| !value.is_empty()).map(PathBuf::from);
    let directory = named.map(Path::to_owned).or(environment).unwrap_or_else(|| PathBuf::from(STORE_DEFAULT));
    if file_limit != Some(Bytes::ZERO) {
        DirectFile::create_in(&directory).map_err(ExitError::own)?;
    }
    // The program may change its directory before the engine opens this one.
    std::path::absolute(&directory)
        .map_err(|error| ExitError::own(format!("{}: {error}; give its full path", directory.display())))
}

/// The default limit of the store's file: nine tenths of the free space, so that others can work
/// on.
pub fn default_file_limit(directory: &Path) -> Result<Bytes, ExitError> {
    let space = statvfs(directory).map_err(|error| {
        ExitError::own(format!(
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
    /// Creates it in `$XDG_RUNTIME_DIR`, `/dev/shm` or the directory for temporary files, whichever
    /// takes it first.
    pub fn create(
        runtime_directory: Option<OsString>,
        budget: Bytes,
        base_page: BasePage,
    ) -> Result<Self, ExitError> {
        place::directories(runtime_directory.clone()).for_each(|directory| remove_left(&directory, LEFT_FOR));
        let made = place::create(runtime_directory, |path| Tree::create(path, budget, base_page));
        made.map(|(tree, path)| Self { tree, path }).map_err(|failures| {
            let why = failures.iter().map(|(directory, error)| format!("{}: {error}", directory.display()));
            ExitError::own(format!(
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
        // It is fine if another process removed it before.
        let _ = fs::remove_file(&self.path);
        let _ = fs::remove_file(place::custody_of(&self.path));
    }
}

/// Removes the tree files in `directory` whose makers were killed and whose trees have ended.
fn remove_left(directory: &Path, for_at_least: Duration) {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let named =
        entries.filter_map(|entry| Some((place::maker_of(entry.file_name().to_str()?)?, entry.path())));
    for (maker, path) in named.take(LEFT_LOOKS) {
        // A number that was given to another process keeps the file for as long.
        let is_made_by_living = Path::new("/proc").join(maker.to_string()).exists();
        if !is_made_by_living && is_left(&path, for_at_least) {
            let _ = fs::remove_file(&path);
            let _ = fs::remove_file(place::custody_of(&path));
        }
    }
}

/// Whether a tree file of this user's has no members, and has had none for so long. A file of
/// another version, or of processes in other namespaces, is not known to be left.
fn is_left(path: &Path, for_at_least: Duration) -> bool {
    let Ok(metadata) = fs::symlink_metadata(path) else { return false };
    let is_own = metadata.is_file() && metadata.uid() == rustix::process::geteuid().as_raw();
    let is_old = metadata.modified().is_ok_and(|at| at.elapsed().is_ok_and(|since| since >= for_at_least));
    is_own && is_old && View::read(path).is_ok_and(|view| view.members.is_empty())
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
    fn the_file_of_a_killed_maker_is_removed_once_its_tree_has_ended() {
        let directory = tempfile::tempdir().expect("a directory");
        // Above the largest number that Linux gives.
        let path = directory.path().join("pagoda-4194305-ff-0");
        let of_living = directory.path().join(format!("pagoda-{}-ff-0", std::process::id()));
        let tree = Tree::create(&path, Bytes::gib(1), BasePage::K64).expect("made");
        Tree::create(&of_living, Bytes::gib(1), BasePage::K64).expect("made");
        fs::write(directory.path().join("pagoda-4194305-ff-1"), "another's").expect("written");
        let member = tree.join().expect("a place");
        remove_left(directory.path(), Duration::ZERO);
        assert!(path.exists(), "it has a member");
        member.leave();
        remove_left(directory.path(), Duration::from_secs(3600));
        assert!(path.exists(), "a process may be about to join it");
        remove_left(directory.path(), Duration::ZERO);
        assert!(!path.exists() && of_living.exists());
        assert!(directory.path().join("pagoda-4194305-ff-1").exists(), "it is no tree file");
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
