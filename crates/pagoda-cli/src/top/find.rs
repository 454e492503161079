//! The trees of this machine that this user may look at: one look at all of their files.
//!
//! This module must never trust a file or a process's name: a file that is no tree file is reported
//! with its reason, and characters that a terminal could take for a command are replaced.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use pagoda::tree::View;
use pagoda::tree::place::{directories, maker_of};

/// The most trees that are shown: more than a user reads.
const TREES_MAX: usize = 64;

/// The part of a process's name that the kernel keeps.
const NAME_CHARS_MAX: usize = 15;

/// All trees at one moment.
#[derive(Clone)]
pub struct Look {
    /// When it was taken.
    pub at: Instant,
    /// Those with living members.
    pub trees: Vec<Tree>,
    /// Files with the name of a tree file that are none, and files that could not be read.
    pub rejected: Vec<String>,
}

/// One tree.
#[derive(Clone)]
pub struct Tree {
    /// Its file, whose name is never used twice.
    pub path: PathBuf,
    /// The process number of the `pagoda run` that made it, or of the process whose manager did.
    pub maker: u32,
    /// The content of its file.
    pub view: View,
    /// The members' names, in their order.
    pub names: Vec<String>,
}

impl Tree {
    /// Its name: what makes its file's name one that is never used twice.
    pub fn label(&self) -> String {
        let file = self.path.file_name().unwrap_or_default().to_string_lossy();
        file.strip_prefix("pagoda-").unwrap_or(&file).to_owned()
    }

    /// The name of the program that was asked for; none if it has ended.
    pub fn program(&self) -> Option<&str> {
        let first = self.view.members.iter().position(|member| member.is_first)?;
        self.names.get(first).map(String::as_str)
    }

    fn has(&self, pid: u32) -> bool {
        self.maker == pid || self.view.members.iter().any(|member| member.identity.pid() == pid)
    }
}

/// The directories to search, and the tree to show.
pub struct Finder {
    directories: Vec<PathBuf>,
    only: Option<u32>,
}

impl Finder {
    /// Everywhere that a `pagoda run` or a manager with this environment would make a tree file;
    /// `only` the tree that has this process.
    pub fn new(runtime_directory: Option<OsString>, only: Option<u32>) -> Self {
        let mut known: Vec<PathBuf> = Vec::new();
        for directory in directories(runtime_directory) {
            // Two names of one directory would show its trees twice.
            let directory = fs::canonicalize(&directory).unwrap_or(directory);
            if !known.contains(&directory) {
                known.push(directory);
            }
        }
        Self { directories: known, only }
    }

    /// Looks at all of them.
    pub fn look(&self) -> Look {
        let mut look = Look { at: Instant::now(), trees: Vec::new(), rejected: Vec::new() };
        for directory in &self.directories {
            // One that is not there has no trees.
            for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
                let Some(maker) = entry.file_name().to_str().and_then(maker_of) else { continue };
                if look.trees.len() + look.rejected.len() >= TREES_MAX {
                    look.rejected.push(format!("more than {TREES_MAX} tree files: the rest is left out"));
                    return look;
                }
                self.look_at(maker, &entry.path(), &mut look);
            }
        }
        look
    }

    fn look_at(&self, maker: u32, path: &Path, look: &mut Look) {
        match View::read(path) {
            // Its program has not started, or everything below it has ended.
            Ok(view) if view.members.is_empty() => {}
            Ok(view) => {
                let names = view.members.iter().map(|member| name_of(member.identity.pid())).collect();
                let tree = Tree { path: path.to_owned(), maker, view, names };
                if self.only.is_none_or(|pid| tree.has(pid)) {
                    look.trees.push(tree);
                }
            }
            // It ended meanwhile.
            Err(_) if !path.exists() => {}
            Err(error) => look.rejected.push(printable(&format!("{}: {error}", path.display()), usize::MAX)),
        }
    }
}

/// The kernel's name of a process; `?` if it has ended.
fn name_of(pid: u32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/comm")).unwrap_or_else(|_| b"?".to_vec());
    printable(String::from_utf8_lossy(&bytes).trim_end_matches('\n'), NAME_CHARS_MAX)
}

fn printable(text: &str, chars_most: usize) -> String {
    text.chars().take(chars_most).map(|char| if char.is_control() { '?' } else { char }).collect()
}

#[cfg(test)]
mod tests {
    use pagoda_core::page::BasePage;
    use pagoda_core::size::Bytes;

    use super::*;
    use crate::run::paths::TreeFile;

    #[test]
    fn trees_with_members_are_found_and_others_told_or_passed_over() {
        let directory = tempfile::tempdir().expect("a directory");
        let file =
            TreeFile::create(Some(directory.path().into()), Bytes::gib(1), BasePage::K64).expect("made");
        let own = std::process::id();
        let only_here = |only| Finder { directories: vec![directory.path().to_owned()], only };
        assert!(only_here(None).look().trees.is_empty(), "it has no member");
        let member = file.tree().join().expect("a place");
        fs::write(directory.path().join("pagoda-7-\u{1b}ff-0"), "not of this name").expect("written");
        fs::write(directory.path().join("pagoda-7-ff-0"), "nothing").expect("written");
        fs::write(directory.path().join("another"), "file").expect("written");
        for (only, trees) in [(None, 1), (Some(own), 1), (Some(own + 1), 0)] {
            let look = only_here(only).look();
            assert_eq!(look.trees.len(), trees, "{only:?}");
            assert!(
                look.rejected.len() == 1 && look.rejected[0].contains("pagoda-7-ff-0: it is not a tree file")
            );
        }
        let tree = &only_here(None).look().trees[0];
        assert_eq!((tree.maker, tree.names.len()), (own, 1));
        assert!(!tree.names[0].is_empty() && tree.names[0] != "?");
        member.leave();
        assert!(only_here(None).look().trees.is_empty());
    }

    #[test]
    fn more_files_than_anyone_reads_are_left_out_and_that_is_said() {
        let directory = tempfile::tempdir().expect("a directory");
        for number in 0..=TREES_MAX {
            fs::write(directory.path().join(format!("pagoda-{number}-0-0")), "").expect("written");
        }
        let look = Finder { directories: vec![directory.path().to_owned()], only: None }.look();
        assert_eq!(look.rejected.len(), TREES_MAX + 1);
        assert!(look.rejected[TREES_MAX].contains("the rest is left out"));
    }

    #[test]
    fn a_name_can_not_talk_to_the_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\u{9b}c", 9), "a?[2Jb?c");
        assert_eq!(printable("abc", 2), "ab");
        assert_eq!(name_of(u32::MAX), "?");
    }
}
