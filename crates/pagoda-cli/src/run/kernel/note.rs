//! The note of a run: what it has set up on this machine, so that the next run can undo it.
//!
//! One file in `/run`, locked as long as its run lives. The kernel gives up the lock of a process
//! that was killed, so a note that can be locked is nobody's, and what it names is left over. Swap
//! is the machine's, and a group can't choose its own: so there is one such run at a time. This
//! module must never undo anything that a note does not name, nor what another has made under a
//! name that was used again.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use pagoda_linux::swap::swapfile::{self, Label};
use pagoda_linux::swap::{cgroup, freezer, zram};
use rustix::fs::{FlockOperation, flock};

use crate::exit_error::ExitError;

/// For root alone, and gone when the machine starts anew, as swap is.
const PATH: &str = "/run/pagoda-kernel";
/// The beginning of each name, and the label of swap areas.
pub const NAME: &str = "pagoda-run";
/// A note has a line for each of a dozen things.
const NOTE_BYTES_MAX: u64 = 64 << 10;
/// The file may be removed by a run that ends just when another opens it: each try sees one end.
const TRIES: u32 = 100;

/// The label of swap areas.
pub fn label() -> Label {
    Label::new(NAME)
}

/// The name of all that process `owner` sets up.
fn name_of(owner: u32) -> String {
    format!("{NAME}-{owner}")
}

/// The note, locked. Its file goes with this value.
#[derive(Debug)]
pub struct Note {
    file: File,
    path: PathBuf,
}

/// Something that a run has set up.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Made {
    Freezer(PathBuf),
    Group(PathBuf),
    Zram(u32),
    File(PathBuf),
}

impl Note {
    /// Takes the note, and undoes what its last owner has left. Fails while that one lives.
    pub fn take() -> Result<Self, ExitError> {
        Self::take_at(Path::new(PATH))
    }

    fn take_at(path: &Path) -> Result<Self, ExitError> {
        let fails = |error: io::Error| {
            ExitError::own(format!("could not keep a note in {} ({error}); make it writable", path.display()))
        };
        for _ in 0..TRIES {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).mode(0o600);
            let mut file = options.custom_flags(libc::O_NOFOLLOW).open(path).map_err(fails)?;
            let mut text = String::new();
            if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
                // Without its text the run is only not named.
                let _ = (&mut file).take(NOTE_BYTES_MAX).read_to_string(&mut text);
                let owner = parse(&text).0.map_or_else(String::new, |owner| format!(", process {owner}"));
                return Err(ExitError::own(format!(
                    "another run by the kernel's swap goes on{owner}, and all swap is the machine's; wait until it has \
                     ended"
                )));
            }
            let is_there = |file: &File| -> io::Result<bool> {
                let own = file.metadata()?;
                Ok(fs::symlink_metadata(path)
                    .is_ok_and(|now| (now.ino(), now.dev()) == (own.ino(), own.dev())))
            };
            if !is_there(&file).map_err(fails)? {
                continue;
            }
            (&mut file).take(NOTE_BYTES_MAX).read_to_string(&mut text).map_err(fails)?;
            undo(&text)?;
            file.set_len(0).map_err(fails)?;
            let note = Self { file, path: path.to_owned() };
            // In one piece at the end of an empty file.
            note.line(format_args!("owner {}", std::process::id())).map_err(fails)?;
            return Ok(note);
        }
        Err(fails(io::ErrorKind::ResourceBusy.into()))
    }

    /// The name of all that this run sets up.
    pub fn name() -> String {
        name_of(std::process::id())
    }

    /// Notes a group that is about to be made.
    pub fn group(&self, path: &Path) -> io::Result<()> {
        self.line(format_args!("group {}", path.display()))
    }

    /// Notes a freezer group that is about to be made.
    pub fn freezer(&self, path: &Path) -> io::Result<()> {
        self.line(format_args!("freezer {}", path.display()))
    }

    /// Notes a zram device that was just added.
    pub fn zram(&self, id: u32) -> io::Result<()> {
        self.line(format_args!("zram {id}"))
    }

    /// Notes a swap file that is about to be made.
    pub fn swap_file(&self, path: &Path) -> io::Result<()> {
        self.line(format_args!("file {}", path.display()))
    }

    fn line(&self, line: std::fmt::Arguments) -> io::Result<()> {
        let mut file = &self.file;
        file.seek(SeekFrom::End(0))?;
        file.write_all(format!("{line}\n").as_bytes())
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        // Under the lock, so that no other run has it. It stays for the next run where something
        // that it names could not be removed.
        let mut text = String::new();
        let is_read = self.file.rewind().and_then(|()| self.file.read_to_string(&mut text)).is_ok();
        if is_read && undo(&text).is_ok() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The owner, and what it has made, in that order.
fn parse(text: &str) -> (Option<u32>, Vec<Made>) {
    let (mut owner, mut made) = (None, Vec::new());
    for line in text.lines() {
        match line.split_once(' ') {
            Some(("owner", pid)) => owner = pid.parse().ok(),
            Some(("freezer", path)) => made.push(Made::Freezer(path.into())),
            Some(("group", path)) => made.push(Made::Group(path.into())),
            Some(("zram", id)) => made.extend(id.parse().map(Made::Zram)),
            Some(("file", path)) => made.push(Made::File(path.into())),
            // A line that was cut off with its writer names nothing that was made.
            _ => {}
        }
    }
    (owner, made)
}

/// Undoes what a note names: processes first, so that little is left to swap in.
fn undo(text: &str) -> Result<(), ExitError> {
    let (Some(owner), made) = parse(text) else { return Ok(()) };
    let is_named = |path: &Path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&name_of(owner)))
    };
    let freezers = made.iter().filter_map(|thing| match thing {
        Made::Freezer(path) if is_named(path) => Some(path.clone()),
        _ => None,
    });
    let freezers: Vec<_> = freezers.collect();
    // A process that is held does not end.
    freezers.iter().for_each(|path| drop(freezer::let_go_left(path)));
    for thing in made {
        let (what, done) = match &thing {
            Made::Group(path) if is_named(path) => {
                (format!("the control group {}", path.display()), cgroup::remove_left(path))
            }
            Made::Zram(id) => {
                (format!("the swap device zram{id}"), zram::remove_left(*id, label(), owner).map(drop))
            }
            Made::File(path) if is_named(path) => (
                format!("the swap file {}", path.display()),
                swapfile::remove_left(path, label(), owner).map(drop),
            ),
            Made::Freezer(_) | Made::Group(_) | Made::File(_) => continue,
        };
        done.map_err(|error| not_removed(&what, &error))?;
    }
    // Its processes were those of the memory group.
    for path in freezers {
        let what = format!("the control group {}", path.display());
        freezer::remove_left(&path).map_err(|error| not_removed(&what, &error))?;
    }
    Ok(())
}

fn not_removed(what: &str, error: &io::Error) -> ExitError {
    ExitError::own(format!(
        "could not remove {what} of a run that was killed ({error}); try again, or remove it"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_read_back_and_a_cut_line_is_nothing() {
        let text = "owner 12\ngroup /a b/pagoda-run-12\nzram 3\nfile /var/tmp/pagoda-run-12-0.swap\nzra";
        let (owner, made) = parse(text);
        assert_eq!(owner, Some(12));
        let group = Made::Group("/a b/pagoda-run-12".into());
        assert_eq!(made, [group, Made::Zram(3), Made::File("/var/tmp/pagoda-run-12-0.swap".into())]);
    }

    #[test]
    fn a_living_owner_keeps_its_note_and_the_next_takes_it_afterwards() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("note");
        let note = Note::take_at(&path).expect("taken");
        let refused = Note::take_at(&path).expect_err("it is locked").to_string();
        assert!(refused.contains(&format!("process {}", std::process::id())), "{refused}");
        drop(note);
        assert!(!path.exists());
        drop(Note::take_at(&path).expect("taken again"));
    }

    #[test]
    fn only_what_bears_the_owners_name_is_removed() {
        let directory = tempfile::tempdir().expect("a directory");
        let (left, other) = (directory.path().join("pagoda-run-12-0.swap"), directory.path().join("other"));
        fs::write(&left, "no header yet").expect("written");
        fs::write(&other, "another's").expect("written");
        let path = directory.path().join("note");
        let text = format!("owner 12\nfile {}\nfile {}\n", left.display(), other.display());
        fs::write(&path, text).expect("written");
        drop(Note::take_at(&path).expect("taken"));
        assert!(!left.exists() && other.exists());
    }
}
