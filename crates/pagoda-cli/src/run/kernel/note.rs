//! The note of a run: the things that it has set up on this machine, so that they can be undone.
//!
//! It is one file in `/run`, locked as long as its run or the [guard](super::guard) of that run
//! lives. So a note that can be locked belongs to a run that was killed with its guard, and all
//! that it names is left over. Swap is the machine's, and a group can't choose its own: so there is
//! one such run at a time. Names hold the start time of their process, because process numbers are
//! used again. This module must never undo anything that a note does not name, nor a later thing of
//! the same name.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pagoda_linux::process::identity::Identity;
use pagoda_linux::swap::swapfile::{self, Label};
use pagoda_linux::swap::zram::{self, DeviceId};
use pagoda_linux::swap::{cgroup, freezer};
use rustix::fs::{FlockOperation, flock};

use crate::exit_error::ExitError;

/// For root alone, and gone when the machine starts anew, as swap is.
const PATH: &str = "/run/pagoda-kernel";
/// The beginning of each name, and the label of swap areas.
pub const NAME: &str = "pagoda-run";
/// A note has a line for each of a dozen things.
const NOTE_BYTES_MAX: u64 = 64 << 10;
/// The longest wait for a guard that undoes a run that was killed: longer than each of its steps
/// may wait for the kernel.
const UNDO_TIME: Duration = Duration::from_secs(20);

/// The label of swap areas.
pub fn label() -> Label {
    Label::new(NAME)
}

/// The name of all that process `owner` sets up.
fn name_of(owner: Identity) -> String {
    format!("{NAME}-{}-{:x}", owner.pid(), owner.word())
}

/// The note, locked. Its file goes with this value.
#[derive(Debug)]
pub struct Note {
    file: File,
    path: PathBuf,
    owner: Identity,
}

/// A thing that a run has set up.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Made {
    Freezer(PathBuf),
    Group(PathBuf),
    Zram(DeviceId),
    File(PathBuf),
}

impl Note {
    /// Takes the note, and undoes all that its last owner has left. Fails while that one lives.
    pub fn take() -> Result<Self, ExitError> {
        Self::take_at(Path::new(PATH))
    }

    fn take_at(path: &Path) -> Result<Self, ExitError> {
        let fails = |error: io::Error| {
            ExitError::own(format!("could not keep a note in {} ({error}); make it writable", path.display()))
        };
        let deadline = Instant::now() + UNDO_TIME;
        loop {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).mode(0o600);
            let file = options.custom_flags(libc::O_NOFOLLOW).open(path).map_err(fails)?;
            let text = read(&file);
            if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
                // Without its text the run is only not named.
                let owner = text.ok().and_then(|text| parse(&text).0);
                let is_undone = owner.is_some_and(|owner| !owner.is_alive());
                if is_undone && Instant::now() < deadline {
                    std::thread::sleep(Duration::from_millis(10));
                    continue;
                }
                return Err(is_taken(owner, is_undone));
            }
            // A run that ended just now may have removed it.
            if !is_at(&file, path).map_err(fails)? {
                if Instant::now() < deadline {
                    continue;
                }
                return Err(fails(io::ErrorKind::ResourceBusy.into()));
            }
            // Before it was locked its owner may have added to it.
            undo(&read(&file).map_err(fails)?)?;
            file.set_len(0).map_err(fails)?;
            let note = Self { file, path: path.to_owned(), owner: Identity::of_self().map_err(fails)? };
            // In one piece at the end of an empty file.
            note.line(format_args!("owner {:x}", note.owner.word())).map_err(fails)?;
            return Ok(note);
        }
    }

    /// The name of all that this run sets up.
    pub fn name(&self) -> String {
        name_of(self.owner)
    }

    /// The locked file.
    pub fn file(&self) -> &File {
        &self.file
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
    pub fn zram(&self, id: DeviceId) -> io::Result<()> {
        self.line(format_args!("zram {} {}", id.number, id.sequence))
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

    /// Undoes all that it names, and removes its file, unless that was done. The file stays for the
    /// next run where a thing could not be removed.
    pub fn undo(&self) {
        let is_there = is_at(&self.file, &self.path).unwrap_or(false);
        if is_there && read(&self.file).is_ok_and(|text| undo(&text).is_ok()) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        // Under the lock, so that no other run has it.
        self.undo();
    }
}

/// Whether `path` is this file.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let own = file.metadata()?;
    Ok(fs::symlink_metadata(path).is_ok_and(|now| (now.ino(), now.dev()) == (own.ino(), own.dev())))
}

fn read(mut file: &File) -> io::Result<String> {
    let mut text = String::new();
    file.rewind()?;
    file.take(NOTE_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

fn is_taken(owner: Option<Identity>, is_undone: bool) -> ExitError {
    let owner = owner.map_or_else(String::new, |owner| format!(", process {}", owner.pid()));
    ExitError::own(if is_undone {
        format!("a run by the kernel's swap that was killed{owner}, is still being undone; try again later")
    } else {
        format!(
            "another run by the kernel's swap goes on{owner}, and all swap is the machine's; wait until it has ended"
        )
    })
}

/// The owner, and the things that it has made, in that order.
fn parse(text: &str) -> (Option<Identity>, Vec<Made>) {
    let (mut owner, mut made) = (None, Vec::new());
    // A line that was cut off with its writer names a thing that was not made.
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    for line in whole.lines() {
        match line.split_once(' ') {
            Some(("owner", word)) => {
                owner = u64::from_str_radix(word, 16).ok().and_then(Identity::from_word);
            }
            Some(("freezer", path)) => made.push(Made::Freezer(path.into())),
            Some(("group", path)) => made.push(Made::Group(path.into())),
            Some(("zram", id)) => {
                let id = id.split_once(' ');
                let id =
                    id.and_then(|(number, sequence)| Some((number.parse().ok()?, sequence.parse().ok()?)));
                made.extend(id.map(|(number, sequence)| Made::Zram(DeviceId { number, sequence })));
            }
            Some(("file", path)) => made.push(Made::File(path.into())),
            _ => {}
        }
    }
    (owner, made)
}

/// Undoes all that a note names: processes first, so that little is left to swap in. The error is
/// the first one; the other things are gone.
fn undo(text: &str) -> Result<(), ExitError> {
    let (Some(owner), made) = parse(text) else { return Ok(()) };
    let name = name_of(owner);
    let is_named = |path: &Path| {
        let file = path.file_name().map(|file| file.to_string_lossy());
        let rest = file.as_deref().and_then(|file| file.strip_prefix(&name));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    };
    let of = |kind: fn(&Made) -> Option<&PathBuf>| made.iter().filter_map(kind).filter(|path| is_named(path));
    let frozen = || of(|made| if let Made::Freezer(path) = made { Some(path) } else { None });
    // A process that is held does not end.
    frozen().for_each(|path| drop(freezer::let_go_left(path)));
    let mut done = Ok(());
    let mut tried = |what: String, tried: io::Result<()>| {
        if let (Ok(()), Err(error)) = (&done, tried) {
            done = Err(not_removed(&what, &error));
        }
    };
    for path in of(|made| if let Made::Group(path) = made { Some(path) } else { None }) {
        tried(format!("the control group {}", path.display()), cgroup::remove_left(path));
    }
    for id in made.iter().filter_map(|made| if let Made::Zram(id) = made { Some(*id) } else { None }) {
        let left = zram::remove_left(id, label(), owner.pid());
        tried(format!("the swap device zram{}", id.number), left.map(drop));
    }
    for path in of(|made| if let Made::File(path) = made { Some(path) } else { None }) {
        let left = swapfile::remove_left(path, label(), owner.pid());
        tried(format!("the swap file {}", path.display()), left.map(drop));
    }
    // Its processes were those of the memory group.
    for path in frozen() {
        tried(format!("the control group {}", path.display()), freezer::remove_left(path));
    }
    done
}

fn not_removed(what: &str, error: &io::Error) -> ExitError {
    ExitError::own(format!(
        "could not remove {what} of a run that was killed ({error}); try again, or remove it"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(pid: u32, start: u64) -> Identity {
        Identity::new(pid, start).expect("fits")
    }

    #[test]
    fn a_note_is_read_back_and_a_cut_line_is_nothing() {
        let owner = identity(12, 34);
        let name = name_of(owner);
        let text = format!(
            "owner {:x}\ngroup /a b/{name}\nzram 3 40\nfile /var/tmp/{name}-0.swap\nzram 4 4",
            owner.word()
        );
        let (known, made) = parse(&text);
        assert_eq!(known, Some(owner));
        let group = Made::Group(format!("/a b/{name}").into());
        let zram = Made::Zram(DeviceId { number: 3, sequence: 40 });
        assert_eq!(made, [group, zram, Made::File(format!("/var/tmp/{name}-0.swap").into())]);
        assert_eq!(parse("own").0, None);
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

    /// A guard has the lock of a run that was killed until it has undone it.
    #[test]
    fn a_note_whose_owner_is_dead_is_waited_for() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("note");
        // An earlier process of this one's number.
        let owner = identity(std::process::id(), 1);
        fs::write(&path, format!("owner {:x}\n", owner.word())).expect("written");
        let guard = File::open(&path).expect("there");
        flock(&guard, FlockOperation::LockExclusive).expect("locked");
        let ends = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            drop(guard);
        });
        drop(Note::take_at(&path).expect("taken"));
        ends.join().expect("no panic");
    }

    #[test]
    fn a_note_that_is_gone_undoes_nothing_of_the_next_one() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("note");
        let note = Note::take_at(&path).expect("taken");
        fs::remove_file(&path).expect("removed");
        let next = Note::take_at(&path).expect("taken");
        let left = directory.path().join(note.name());
        note.swap_file(&left).expect("noted");
        fs::write(&left, "no header yet").expect("written");
        drop(note);
        assert!(left.exists() && path.exists());
        drop(next);
    }

    #[test]
    fn only_things_that_bear_the_owners_name_are_removed() {
        let directory = tempfile::tempdir().expect("a directory");
        let owner = identity(12, 34);
        let own = directory.path().join(format!("{}-0.swap", name_of(owner)));
        // Of a later process of that number.
        let later = directory.path().join(format!("{}-0.swap", name_of(identity(12, 35))));
        let longer = directory.path().join(format!("{}5", name_of(owner)));
        let all = [own, later, longer, directory.path().join("other")];
        let mut text = format!("owner {:x}\n", owner.word());
        for path in &all {
            fs::write(path, "no header yet").expect("written");
            text += &format!("file {}\n", path.display());
        }
        let path = directory.path().join("note");
        fs::write(&path, text).expect("written");
        drop(Note::take_at(&path).expect("taken"));
        assert_eq!(all.map(|path| path.exists()), [false, true, true, true]);
    }

    #[test]
    fn a_thing_that_can_not_be_removed_keeps_no_other_and_the_note() {
        let directory = tempfile::tempdir().expect("a directory");
        let owner = identity(12, 34);
        // No control group: the file in it keeps it.
        let stuck = directory.path().join(name_of(owner));
        fs::create_dir(&stuck).expect("made");
        fs::write(stuck.join("file"), "").expect("written");
        let left = directory.path().join(format!("{}-0.swap", name_of(owner)));
        fs::write(&left, "no header yet").expect("written");
        let path = directory.path().join("note");
        let text =
            format!("owner {:x}\nfreezer {}\nfile {}\n", owner.word(), stuck.display(), left.display());
        fs::write(&path, text).expect("written");
        let error = Note::take_at(&path).expect_err("it is stuck").to_string();
        assert!(error.contains("could not remove the control group"), "{error}");
        assert!(!left.exists() && path.exists());
    }
}
