//! Finding the preload library, and the value of `LD_PRELOAD` that loads it first.
//!
//! This module must never set the environment of this process: only the program is to load the
//! library. Nor may it take a library from beside a command that has another one inside.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::StatVfsMountFlags;

use super::embedded::{self, EMBEDDED, Embedded};
use crate::exit_error::ExitError;

/// The path of the library, for users that keep it elsewhere.
pub const ENV: &str = "PAGODA_PRELOAD";

const FILE_NAME: &str = "libpagoda_preload.so";

/// A library that the loader takes.
pub struct Library {
    pub path: PathBuf,
    /// Where it comes from, for people.
    pub origin: &'static str,
}

/// Takes the library that `PAGODA_PRELOAD` names. Otherwise the one beside this executable, in
/// `../lib` or in `../lib/pagoda`, and the one inside this executable if there is none or a
/// different one. That is written to a file if it is not there yet.
pub fn find(named: Option<&OsStr>) -> Result<Library, ExitError> {
    find_with(named, EMBEDDED.as_ref(), embedded::directories())
}

fn find_with(
    named: Option<&OsStr>,
    embedded: Option<&Embedded>,
    directories: impl Iterator<Item = PathBuf>,
) -> Result<Library, ExitError> {
    let candidates = match named {
        Some(path) => vec![PathBuf::from(path)],
        None => beside_executable()?,
    };
    let found = candidates.iter().find_map(|path| path.canonicalize().ok().filter(|path| path.is_file()));
    let origin = if named.is_some() { "named in PAGODA_PRELOAD" } else { "installed with pagoda" };
    match (found, embedded.filter(|_| named.is_none())) {
        (Some(path), None) => match loadable(&path) {
            Ok(()) => Ok(Library { path, origin }),
            Err(reason) => Err(ExitError::own(format!(
                "{} can't be preloaded: {reason}; name a copy in {ENV}",
                path.display()
            ))),
        },
        (None, None) => {
            let looked: Vec<_> = candidates.iter().map(|path| path.display().to_string()).collect();
            Err(ExitError::own(format!(
                "the preload library was not found; looked for {}; install it beside pagoda, name it in {ENV}, or \
                 install pagoda by `cargo install` with `--features embed`",
                looked.join(", ")
            )))
        }
        (Some(path), Some(embedded)) if loadable(&path).is_ok() && embedded.is_at(&path) => {
            Ok(Library { path, origin })
        }
        (found, Some(embedded)) => {
            let origin = match found {
                None => "from inside pagoda",
                Some(_) => "from inside pagoda; the one installed with it does not fit",
            };
            let placed = embedded.place(directories);
            placed.map(|path| Library { path, origin }).map_err(|reasons| {
                ExitError::own(format!(
                    "could not put the preload library into a directory of yours ({reasons}); set XDG_CACHE_HOME to \
                     one that is not mounted noexec, or name a copy of the library in {ENV}"
                ))
            })
        }
    }
}

/// Whether the loader takes a library from this path, or why not.
pub fn loadable(path: &Path) -> Result<(), &'static str> {
    // The loader takes these for the end of a name, and has no way to write them.
    if path.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b' ' | b':' | b'$')) {
        return Err("the loader takes no path with a space, a colon or a dollar sign");
    }
    // The loader could not map it, says so, and starts the program without it.
    let is_noexec =
        rustix::fs::statvfs(path).is_ok_and(|mount| mount.f_flag.contains(StatVfsMountFlags::NOEXEC));
    if is_noexec { Err("it lies on a file system that is mounted noexec") } else { Ok(()) }
}

fn beside_executable() -> Result<Vec<PathBuf>, ExitError> {
    let executable = std::env::current_exe().map_err(|error| {
        ExitError::own(format!(
            "could not tell where pagoda is installed ({error}); name the library in {ENV}"
        ))
    })?;
    let directory = executable.parent().unwrap_or(Path::new("/"));
    let up = directory.parent().unwrap_or(Path::new("/"));
    Ok([directory, &up.join("lib"), &up.join("lib/pagoda")].map(|place| place.join(FILE_NAME)).into())
}

/// `LD_PRELOAD` with the library in front of its present value.
pub fn value(library: &Path, present: Option<&OsStr>) -> OsString {
    let mut value = library.as_os_str().to_owned();
    let separators = |byte: &u8| matches!(byte, b' ' | b':');
    for other in present.unwrap_or_default().as_bytes().split(separators) {
        if !other.is_empty() && other != library.as_os_str().as_bytes() {
            value.push(":");
            value.push(OsStr::from_bytes(other));
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_comes_first_and_once() {
        let value = |present: Option<&str>| value(Path::new("/p.so"), present.map(OsStr::new));
        assert_eq!(value(None), "/p.so");
        assert_eq!(value(Some("")), "/p.so");
        assert_eq!(value(Some("/a.so /b.so:/p.so")), "/p.so:/a.so:/b.so");
    }

    #[test]
    fn a_library_that_is_not_there_says_where_it_was_looked_for() {
        let named = find(Some(OsStr::new("/nonexistent/p.so"))).err().expect("not there").to_string();
        assert!(named.contains("/nonexistent/p.so") && named.contains(ENV), "{named}");
    }

    #[test]
    fn the_library_inside_is_taken_before_one_of_another_build() {
        let scratch = tempfile::tempdir_in("/var/tmp").expect("a directory");
        let embedded = Embedded { name: "libpagoda_preload-0.1.0-test.so", content: b"the library" };
        let directory = scratch.path().join("pagoda");
        let find = |named: Option<&OsStr>| find_with(named, Some(&embedded), [directory.clone()].into_iter());
        // Beside this test there may be one of the build.
        let library = find(None).expect("placed");
        assert_eq!(library.path, directory.join(embedded.name));
        assert!(library.origin.starts_with("from inside pagoda"), "{}", library.origin);
        let named = find(Some(library.path.as_os_str())).expect("there");
        assert_eq!((named.path, named.origin), (library.path, "named in PAGODA_PRELOAD"));
        assert!(find(Some(OsStr::new("/nonexistent/p.so"))).is_err(), "no other is taken in its place");
    }

    #[test]
    fn a_path_that_the_loader_can_not_take_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("a b.so");
        std::fs::write(&path, "").expect("written");
        assert!(find(Some(path.as_os_str())).err().expect("a space").to_string().contains("space"));
    }
}
