//! Holding a group of processes: the freezer of control groups, version 1.
//!
//! A held process runs no instruction until it is let go; a fault or system call that it is in ends
//! first. A group that is made here lets its processes go and is removed when its handle is
//! dropped. This module must never leave processes held that it is asked to let go.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::procfs::memcg::own_group;

/// A group goes once its last process is reaped.
const REMOVE_MS_MAX: u64 = 2000;

/// A group whose processes can be held together.
#[derive(Debug)]
pub struct Freezer {
    path: PathBuf,
    is_holding: bool,
}

/// The freezer group of this process, in which others can be made. None where no freezer is
/// mounted.
#[must_use]
pub fn below_own() -> Option<PathBuf> {
    own_group("freezer")
}

impl Freezer {
    /// Makes the group at this path. Fails if there is one.
    ///
    /// # Errors
    /// The kernel's.
    pub fn create(path: &Path) -> io::Result<Self> {
        fs::create_dir(path)?;
        Ok(Self { path: path.to_owned(), is_holding: false })
    }

    /// The file to write a process ID into: that process then joins.
    #[must_use]
    pub fn procs(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }

    /// Holds all processes, also those that they start. Does not wait until each has stopped.
    ///
    /// # Errors
    /// The kernel's.
    pub fn hold(&mut self) -> io::Result<()> {
        if !self.is_holding {
            set(&self.path, "FROZEN")?;
            self.is_holding = true;
        }
        Ok(())
    }

    /// Lets all processes go.
    ///
    /// # Errors
    /// The kernel's.
    pub fn let_go(&mut self) -> io::Result<()> {
        if self.is_holding {
            set(&self.path, "THAWED")?;
            self.is_holding = false;
        }
        Ok(())
    }
}

fn set(path: &Path, state: &str) -> io::Result<()> {
    fs::write(path.join("freezer.state"), state)
}

/// Lets the processes of the group at this path go. One that is not there is fine.
///
/// # Errors
/// The kernel's.
pub fn let_go_left(path: &Path) -> io::Result<()> {
    if path.exists() { set(path, "THAWED") } else { Ok(()) }
}

/// Removes the group at this path, whose processes were ended; waits two seconds at most until they
/// are gone. One that is not there is fine.
///
/// # Errors
/// That of removing it.
pub fn remove_left(path: &Path) -> io::Result<()> {
    let deadline = Instant::now() + Duration::from_millis(REMOVE_MS_MAX);
    loop {
        match fs::remove_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
            done => return done,
        }
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        // Nothing sensible is left to do about a failure: the name stays visible in its note.
        let _ = self.let_go();
        let _ = remove_left(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_process_stands_still_and_goes_on() {
        let Some(root) = below_own() else {
            return crate::testing::skip::skip("a freezer", "none is mounted");
        };
        let path = root.join(format!("pagoda-freezer-{}", std::process::id()));
        let mut freezer = match Freezer::create(&path) {
            Ok(freezer) => freezer,
            Err(error) => return crate::testing::skip::skip("a freezer", error),
        };
        let mut child = std::process::Command::new("sleep").arg("0.2").spawn().expect("sleep");
        fs::write(freezer.procs(), child.id().to_string()).expect("joined");
        freezer.hold().expect("held");
        std::thread::sleep(Duration::from_millis(500));
        assert!(child.try_wait().expect("ours").is_none(), "it is held beyond its time");
        freezer.let_go().expect("let go");
        assert!(child.wait().expect("it ends").success());
        drop(freezer);
        assert!(!path.exists());
    }
}
