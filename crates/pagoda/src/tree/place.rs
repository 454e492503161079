//! The directories and names of tree files, for makers and readers.
//!
//! This module must never take over a file that is there already: it may be another process's.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// A name is tried so often before the next directory: only leftovers of our own process number
/// stand in the way.
const NAMES_MAX: u32 = 4;

/// The directories for tree files: `runtime_directory` (from `XDG_RUNTIME_DIR`), `/dev/shm` and the
/// directory for temporary files. The first that takes the file has it.
pub fn directories(runtime_directory: Option<OsString>) -> impl Iterator<Item = PathBuf> {
    let runtime_directory = runtime_directory.map(PathBuf::from).filter(|path| path.is_absolute());
    runtime_directory.into_iter().chain(["/dev/shm".into(), std::env::temp_dir()])
}

/// Makes a tree file by `make` in the first of the [`directories`] that takes it, and says where
/// that is.
///
/// # Errors
/// Why each directory did not take it. Nothing is left there.
pub fn create<T>(
    runtime_directory: Option<OsString>,
    mut make: impl FnMut(&Path) -> io::Result<T>,
) -> Result<(T, PathBuf), Vec<(PathBuf, io::Error)>> {
    let mut failures = Vec::new();
    for directory in directories(runtime_directory) {
        for attempt in 0..NAMES_MAX {
            let path = directory.join(unique_name(attempt));
            match make(&path) {
                Ok(made) => return Ok((made, path)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    // It may have been made and not mapped; no other process uses this name.
                    let _ = std::fs::remove_file(&path);
                    failures.push((directory, error));
                    break;
                }
            }
        }
    }
    Err(failures)
}

/// Unlikely to be there already; whether it is, making it tells.
fn unique_name(attempt: u32) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    format!("pagoda-{}-{now:x}-{attempt}", std::process::id())
}

/// The process number in a file's name; `None` if it is no tree file's.
#[must_use]
pub fn maker_of(name: &str) -> Option<u32> {
    let mut parts = name.strip_prefix("pagoda-")?.split('-');
    let (pid, now, attempt) = (parts.next()?, parts.next()?, parts.next()?);
    let is_hex = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let whole = parts.next().is_none() && is_hex(now) && attempt.parse::<u32>().is_ok();
    pid.parse().ok().filter(|_| whole)
}

/// The socket of the custodian of this tree's descriptors, beside its file; see
/// [`pagoda_linux::uffd::custody`].
#[must_use]
pub fn custody_of(tree: &Path) -> PathBuf {
    let mut path = tree.as_os_str().to_owned();
    path.push(".custody");
    path.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_files_name_tells_its_maker() {
        assert_eq!(maker_of(&unique_name(3)), Some(std::process::id()));
        for name in
            ["pagoda-7-ff-0-1", "pagoda-7-ff", "pagoda-x-ff-0", "pagoda-7-xx-0", "pagoda-7--0", "other"]
        {
            assert_eq!(maker_of(name), None, "{name}");
        }
    }

    #[test]
    fn the_first_directory_that_takes_it_has_it_and_a_failure_leaves_nothing() {
        let taken = tempfile::tempdir().expect("a directory");
        let mut tried = 0;
        let made = create(Some(taken.path().into()), |path| {
            tried += 1;
            std::fs::write(path, "part")?;
            if tried == 1 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
        });
        let ((), path) = made.expect("the next directory takes it");
        assert!(!path.starts_with(taken.path()) && tried == 2, "{}", path.display());
        assert_eq!(std::fs::read_dir(taken.path()).expect("read").count(), 0);
        std::fs::remove_file(path).expect("made");
        let failed = create(Some("/nonexistent".into()), |_| Err::<(), _>(io::ErrorKind::StorageFull.into()));
        assert_eq!(failed.expect_err("no directory took it").len(), 3);
    }
}
