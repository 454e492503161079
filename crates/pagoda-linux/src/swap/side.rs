//! The kernel's own way to run a program over its memory: a group with a memory limit, compressed
//! swap (zram) behind it, and a swap file behind that.
//!
//! Everything is made for one run, named or labelled by its owner, and undone when its handle is
//! dropped. [`clean_up`] removes the leftovers of an owner that was killed. This module must never
//! touch other swap or other groups, nor anything of an owner that still runs.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::cgroup::{Controller, MemoryGroup};
use super::swapfile::{self, Label, PRIORITY_MAX, SwapFile};
use super::zram::{self, Setup, Usage, ZramSwap};

/// The names and the place of everything that a program sets up here.
#[derive(Clone, Copy, Debug)]
pub struct Names {
    /// The beginning of each name, and the label of swap areas.
    pub prefix: &'static str,
    /// A directory on a disk, for the swap file.
    pub directory: &'static str,
}

/// The memory of a side, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The limit of the memory group.
    pub memory_bytes: u64,
    /// How much content zram offers.
    pub zram_disk_bytes: u64,
    /// The limit of zram's own memory, which no group is charged for.
    pub zram_memory_bytes: Option<u64>,
    /// The swap file behind zram; 0 for none.
    pub swap_file_bytes: u64,
}

/// The kernel's side, set up for one run. Dropping it kills the group's processes and undoes
/// everything.
#[derive(Debug)]
pub struct Side {
    // Field order is drop order: the processes and their memory go first, so that little is left
    // to swap in.
    group: MemoryGroup,
    zram: ZramSwap,
    file: Option<SwapFile>,
    file_path: PathBuf,
}

/// Wraps an error with the step that failed.
fn tried<T>(step: &str, result: io::Result<T>) -> io::Result<T> {
    result.map_err(|error| io::Error::new(error.kind(), format!("{step}: {error}")))
}

impl Names {
    /// A new name that tells the process that made it.
    #[must_use]
    pub fn own(&self) -> String {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        format!("{}-{}-{}", self.prefix, std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// The process that made something of this name.
    #[must_use]
    pub fn owner(&self, name: &str) -> Option<u32> {
        name.strip_prefix(self.prefix)?.strip_prefix('-')?.split('-').next()?.parse().ok()
    }

    fn label(&self) -> Label {
        Label::new(self.prefix)
    }
}

impl Side {
    /// Sets up a side. The error names the step that this machine refuses.
    pub fn set_up(names: &Names, limits: &Limits) -> io::Result<Self> {
        let name = names.own();
        let setup = Setup {
            disk_bytes: limits.zram_disk_bytes,
            memory_bytes_max: limits.zram_memory_bytes,
            label: names.label(),
            priority: PRIORITY_MAX,
        };
        let zram = tried("setting up zram (needs root and the zram module)", ZramSwap::create(setup))?;
        let file_path = Path::new(names.directory).join(format!("{name}.swap"));
        let file = (limits.swap_file_bytes > 0)
            .then(|| SwapFile::create(&file_path, limits.swap_file_bytes, names.label(), PRIORITY_MAX - 1));
        let file = tried(&format!("setting up the swap file {}", file_path.display()), file.transpose())?;
        let group = tried(
            "setting up a memory group (needs root and a mounted memory controller)",
            Controller::find().and_then(|controller| controller.create(&name, limits.memory_bytes)),
        )?;
        Ok(Self { group, zram, file, file_path })
    }

    /// The file that a process joins by: it writes its ID there.
    #[must_use]
    pub fn procs(&self) -> PathBuf {
        self.group.procs()
    }

    /// The memory group.
    #[must_use]
    pub fn group(&self) -> &MemoryGroup {
        &self.group
    }

    /// The swap file's path; there is a file only if the limits asked for one.
    #[must_use]
    pub fn file_path(&self) -> &Path {
        &self.file_path
    }

    /// The content and the memory of zram now, and the most memory it took.
    pub fn zram_usage(&self) -> io::Result<Usage> {
        self.zram.usage()
    }

    /// The bytes in the swap file now.
    #[must_use]
    pub fn file_used_bytes(&self) -> u64 {
        if self.file.is_none() {
            return 0;
        }
        swapfile::used_bytes(&fs::read_to_string("/proc/swaps").unwrap_or_default(), &self.file_path)
    }
}

/// Removes leftovers of killed owners: groups, zram devices, swap files, and other files and
/// directories of such a name. Returns a description of each. An owner that runs keeps everything.
pub fn clean_up(names: &Names) -> io::Result<Vec<String>> {
    let dead = |pid: u32| !Path::new(&format!("/proc/{pid}")).exists();
    let dead_name = |name: &str| names.owner(name).is_some_and(dead);
    let mut removed = Vec::new();
    if let Ok(controller) = Controller::find() {
        let groups = tried("removing memory groups", controller.remove_where(dead_name))?;
        removed.extend(groups.into_iter().map(|name| format!("memory group {name}")));
    }
    let devices = tried("removing zram devices", zram::remove_where(names.label(), dead))?;
    removed.extend(devices.into_iter().map(|name| format!("zram device {name}")));
    let directory = Path::new(names.directory);
    let files = swapfile::remove_where(directory, names.label(), dead);
    let files = tried("removing swap files", files)?;
    removed.extend(files.into_iter().map(|path| format!("swap file {}", path.display())));
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if dead_name(&entry.file_name().to_string_lossy()) {
            // A directory of temporary files, or a swap file that never got its label.
            let path = entry.path();
            let gone = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            tried(&format!("removing {}", path.display()), gone)?;
            removed.push(format!("{}", path.display()));
        }
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: Names = Names { prefix: "pagoda-side", directory: "/var/tmp" };

    #[test]
    fn names_tell_their_owner() {
        assert_eq!(NAMES.owner(&NAMES.own()), Some(std::process::id()));
        assert_eq!(NAMES.owner("pagoda-side-12-3.swap"), Some(12));
        for name in ["pagoda-side", "pagoda-side-x-1", "pagoda-7-1", "other"] {
            assert_eq!(NAMES.owner(name), None, "{name}");
        }
    }

    #[test]
    fn a_side_is_undone_and_clean_up_leaves_a_living_owner_alone() {
        let limits = Limits {
            memory_bytes: 16 << 20,
            zram_disk_bytes: 16 << 20,
            zram_memory_bytes: Some(16 << 20),
            swap_file_bytes: 16 << 20,
        };
        let side = match Side::set_up(&NAMES, &limits) {
            Ok(side) => side,
            Err(error) => return crate::testing::skip::skip("the kernel's side", error),
        };
        let (group, file) = (side.group().path().to_owned(), side.file_path().to_owned());
        assert!(group.exists() && file.exists());
        assert_eq!((side.file_used_bytes(), side.group().oom_kills()), (0, 0));
        assert!(side.zram_usage().is_ok() && side.group().peak_bytes().expect("a peak") <= 16 << 20);
        clean_up(&NAMES).expect("looked");
        assert!(group.exists() && file.exists(), "its owner, this test, is alive");
        drop(side);
        let swaps = fs::read_to_string("/proc/swaps").expect("swaps");
        assert!(!group.exists() && !file.exists() && !swaps.contains(NAMES.prefix), "{swaps}");
    }
}
