//! Finding the program as execvp does, and whether the engine can get into it.
//!
//! A program that can't be managed is refused before it runs: the loader would drop the preload
//! library without a word, and the program would run without a budget. This module must never run
//! anything.

mod elf;
mod embedded;
pub mod preload;
mod shell;

use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat, getxattr};

use crate::exit_error::ExitError;
use elf::Kind;

/// The search path of execvp when there is no `PATH`.
const DEFAULT_SEARCH: &str = "/bin:/usr/bin";
/// The interpreter of execvp for a file that is no program and names no interpreter.
const SHELL: &str = "/bin/sh";
/// The kernel follows no more interpreters of interpreters than these.
const INTERPRETERS_MAX: usize = 5;
const SET_USER_ID: u32 = 0o4000;
const SET_GROUP_ID: u32 = 0o2000;

/// Why the engine can't get into a program.
#[derive(Debug, PartialEq, Eq)]
pub enum Unmanageable {
    /// It loads no library.
    Static(PathBuf),
    /// It runs with other rights than its user's, so the loader ignores the preload library.
    Privileged(PathBuf, &'static str),
    /// It is for another machine.
    OtherMachine(PathBuf),
    /// Its C library is not the one that the preload library is built for.
    OtherLibrary(PathBuf),
}

impl fmt::Display for Unmanageable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Static(path) => write!(
                f,
                "{} is a static program, into which no library can be loaded; use one that is linked dynamically",
                path.display()
            ),
            Self::Privileged(path, how) => write!(
                f,
                "{} is {how}, and the loader ignores preloaded libraries for such programs; run a copy without that, \
                 as a user who needs no more rights",
                path.display()
            ),
            Self::OtherMachine(path) => write!(
                f,
                "{} is a program for another machine than this pagoda is; use one that is built for the same",
                path.display()
            ),
            Self::OtherLibrary(path) => write!(
                f,
                "{} uses another C library than this pagoda does; use a pagoda that is built for the same",
                path.display()
            ),
        }
    }
}

/// The file that execvp would run for `name`.
pub fn find(name: &OsStr, search: Option<&OsStr>) -> Result<PathBuf, ExitError> {
    let shown = name.display();
    if name.is_empty() {
        return Err(ExitError::not_found("the program's name is empty; name one after `--`"));
    }
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return match executable(&path) {
            Ok(()) => Ok(path),
            Err(error) if is_absent(&error) => Err(ExitError::not_found(
                shell::hint(name)
                    .unwrap_or_else(|| format!("{shown} was not found ({error}); check its path")),
            )),
            Err(_) if path.is_dir() => Err(directory(&path)),
            Err(error) => {
                Err(ExitError::not_executable(format!("{shown} can't be executed ({error}); check its mode")))
            }
        };
    }
    let search = search.unwrap_or(OsStr::new(DEFAULT_SEARCH));
    let mut denied = None;
    for directory in std::env::split_paths(search) {
        // An empty element is the current directory; `./` keeps the name from being searched for
        // again.
        let path =
            if directory.as_os_str().is_empty() { Path::new(".").join(name) } else { directory.join(name) };
        match executable(&path) {
            Ok(()) => return Ok(path),
            // A directory that may not be searched hides its entries, as it does from a shell.
            Err(_) if fs::metadata(&path).is_err() => {}
            Err(_) => denied = denied.or(Some(path)),
        }
    }
    let is_here = executable(&Path::new(".").join(name)).is_ok();
    Err(match denied {
        Some(path) if path.is_dir() => directory(&path),
        Some(path) => ExitError::not_executable(format!(
            "{} can't be executed, and PATH has no other {shown}; check its mode",
            path.display()
        )),
        None if is_here => ExitError::not_found(format!(
            "{shown} was not found on PATH; it is in this directory: name it ./{shown}"
        )),
        None => ExitError::not_found(
            shell::hint(name)
                .unwrap_or_else(|| format!("{shown} was not found on PATH; give its path, or install it")),
        ),
    })
}

fn directory(path: &Path) -> ExitError {
    ExitError::not_executable(format!(
        "{} is a directory, not a program; name a program in it",
        path.display()
    ))
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Ok if exec would start it, as far as the file itself decides.
fn executable(path: &Path) -> io::Result<()> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS)?)
}

/// Checks whether the engine gets into this program, or into the interpreter that runs it.
pub fn check(path: &Path) -> Result<(), Unmanageable> {
    let mut path = path.to_owned();
    for _ in 0..=INTERPRETERS_MAX {
        // A file that may be run and not read is not judged: the engine says so if it does not get
        // in.
        let Ok(kind) = File::open(&path).and_then(|file| elf::kind(&file)) else { return Ok(()) };
        let next = match kind {
            Kind::Static => return Err(Unmanageable::Static(path)),
            Kind::OtherMachine => return Err(Unmanageable::OtherMachine(path)),
            Kind::Dynamic { loader } => {
                if is_musl(&loader) != cfg!(target_env = "musl") {
                    return Err(Unmanageable::OtherLibrary(path));
                }
                return match privilege(&path) {
                    Some(how) => Err(Unmanageable::Privileged(path, how)),
                    None => Ok(()),
                };
            }
            Kind::Script { interpreter } => interpreter,
            Kind::Other => PathBuf::from(SHELL),
        };
        path = next;
    }
    Ok(())
}

fn is_musl(loader: &Path) -> bool {
    loader.file_name().is_some_and(|name| name.as_bytes().starts_with(b"ld-musl"))
}

fn privilege(path: &Path) -> Option<&'static str> {
    let mode = fs::metadata(path).ok()?.mode();
    if mode & SET_USER_ID != 0 {
        Some("setuid")
    } else if mode & SET_GROUP_ID != 0 {
        Some("setgid")
    } else {
        // Asking for no bytes answers whether the attribute is there.
        getxattr(path, "security.capability", &mut [0u8; 0])
            .is_ok()
            .then_some("a program with file capabilities")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_name_is_searched_for_and_a_path_is_not() {
        let search = Some(OsStr::new("/nonexistent:/usr/bin:/bin"));
        assert!(find(OsStr::new("sh"), search).expect("there is a shell").ends_with("sh"));
        assert!(find(OsStr::new("sh"), None).is_ok(), "without PATH the default is searched");
        assert!(find(OsStr::new("bin/sh"), search).is_err());
    }

    #[test]
    fn a_directory_is_not_a_program() {
        let error = find(OsStr::new("/bin/"), None).expect_err("a directory");
        assert_eq!(format!("{:?}", error.exit_code()), format!("{:?}", std::process::ExitCode::from(126)));
    }

    #[test]
    fn an_interpreter_that_names_itself_ends_the_search() {
        let script = tempfile::NamedTempFile::new().expect("a temporary file");
        fs::write(script.path(), format!("#!{}\n", script.path().display())).expect("written");
        assert_eq!(check(script.path()), Ok(()));
    }
}
