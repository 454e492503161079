//! Memory control groups: the kernel's own memory limit, for programs that run by it, and for the
//! benchmark that compares with it.
//!
//! Both hierarchies are supported: version 1 (`memory.limit_in_bytes`) and version 2
//! (`memory.max`). A group that is made here is removed when its handle is dropped, and its
//! processes are killed before. This module must never touch a group that it did not make, except
//! by the prefix of its name that the caller gives.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pagoda_core::size::Bytes;
use rustix::process::{Pid, Signal, kill_process};

use crate::procfs::memcg::{Memcg, MemcgVersion};

/// Which of the two interfaces the memory controller is under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// A mount of its own for the memory controller.
    V1,
    /// The unified hierarchy.
    V2,
}

/// A memory controller that groups can be made in.
#[derive(Clone, Debug)]
pub struct Controller {
    root: PathBuf,
    version: Version,
}

/// A group of processes under one memory limit. Dropping it kills its processes and removes it.
#[derive(Debug)]
pub struct MemoryGroup {
    path: PathBuf,
}

/// The kernel removes a group only once the last of its processes is reaped and uncharged; freeing
/// swap of a gibibyte takes about half a second, so this is ample.
const REMOVE_MS_MAX: u64 = 5000;

impl Controller {
    /// Finds the memory controller of this machine. The error names the missing part.
    pub fn find() -> io::Result<Self> {
        Self::in_mounts(&fs::read_to_string("/proc/self/mounts")?, |root| {
            let read = |file: &str| fs::read_to_string(root.join(file)).unwrap_or_default();
            read("cgroup.controllers").split_whitespace().any(|name| name == "memory")
        })
    }

    /// The group of this process, so that the limits of all groups above hold in groups made here.
    /// None where the memory controller is not mounted.
    #[must_use]
    pub fn below_own() -> Option<Self> {
        let own = Memcg::find()?;
        let version = match own.version {
            MemcgVersion::V1 => Version::V1,
            MemcgVersion::V2 => Version::V2,
        };
        Some(Self { root: own.path, version })
    }

    /// The directory that groups are made in.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn in_mounts(mounts: &str, unified_has_memory: impl Fn(&Path) -> bool) -> io::Result<Self> {
        let mut unified = None;
        for line in mounts.lines() {
            let mut fields = line.split(' ').skip(1);
            let (Some(at), Some(kind), Some(options)) = (fields.next(), fields.next(), fields.next()) else {
                continue;
            };
            if kind == "cgroup" && options.split(',').any(|option| option == "memory") {
                return Ok(Self { root: at.into(), version: Version::V1 });
            }
            if kind == "cgroup2" && unified_has_memory(Path::new(at)) {
                unified = Some(Self { root: at.into(), version: Version::V2 });
            }
        }
        unified.ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, "no mounted cgroup has the memory controller")
        })
    }

    /// Which interface it speaks.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Makes a group with a limit in bytes. Swap is not limited. Fails if a group of that name
    /// exists.
    pub fn create(&self, name: &str, limit_bytes: u64) -> io::Result<MemoryGroup> {
        if self.version == Version::V2 {
            // The children of the root only have the controllers that the root hands down. Already
            // on is fine, and where it can't be switched on, setting the limit below fails and says
            // so.
            let _ = fs::write(self.root.join("cgroup.subtree_control"), "+memory");
        }
        let path = self.root.join(name);
        fs::create_dir(&path)?;
        let group = MemoryGroup { path };
        let file = match self.version {
            Version::V1 => "memory.limit_in_bytes",
            Version::V2 => "memory.max",
        };
        fs::write(group.path.join(file), limit_bytes.to_string())?;
        Ok(group)
    }

    /// Removes the groups directly below the root whose names the caller picks, and kills their
    /// processes. Returns the names of the removed groups.
    pub fn remove_where(&self, pick: impl Fn(&str) -> bool) -> io::Result<Vec<String>> {
        let mut removed = Vec::new();
        for entry in fs::read_dir(&self.root)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.file_type()?.is_dir() && pick(&name) {
                MemoryGroup { path: entry.path() }.remove()?;
                removed.push(name);
            }
        }
        Ok(removed)
    }
}

impl MemoryGroup {
    /// The file to write a process ID into: that process then joins, and its later allocations are
    /// charged here.
    #[must_use]
    pub fn procs(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }

    /// Sets the limit of a group of version 1. Where it falls below the memory that is charged, the
    /// kernel first swaps that out. This blocks meanwhile: if the processes take memory as fast, up
    /// to half a second was seen. It fails with `EBUSY` if the kernel can swap nothing out; the
    /// limit is as before then.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_limit(&self, limit: Bytes) -> io::Result<()> {
        fs::write(self.path.join("memory.limit_in_bytes"), limit.get().to_string())
    }

    /// Has the kernel hold processes at the limit until memory is free or the limit rises, instead
    /// of killing them. In version 1 only.
    ///
    /// # Errors
    /// The kernel's.
    pub fn pause_at_limit(&self) -> io::Result<()> {
        fs::write(self.path.join("memory.oom_control"), "1")
    }

    /// Whether the kernel holds processes of the group at its limit now.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        let text = fs::read_to_string(self.path.join("memory.oom_control")).unwrap_or_default();
        text.lines().any(|line| line.trim() == "under_oom 1")
    }

    /// A count of `memory.stat` for this group alone; 0 where there is none of that name.
    #[must_use]
    pub fn stat(&self, name: &str) -> u64 {
        let text = fs::read_to_string(self.path.join("memory.stat")).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
    }

    /// Ends all processes of the group, and returns how many there were.
    pub fn kill(&self) -> usize {
        let members = self.members();
        for pid in &members {
            // One that has ended just now is no error.
            let _ = kill_process(*pid, Signal::KILL);
        }
        members.len()
    }

    /// The memory charged to the group now, in bytes. The kernel charges in batches: some hundred
    /// KiB may not be used by a process yet.
    pub fn usage_bytes(&self) -> io::Result<u64> {
        self.number("memory.usage_in_bytes", "memory.current")
    }

    /// The most memory that was charged at once, in bytes. Version 2 tells it since Linux 5.19.
    pub fn peak_bytes(&self) -> io::Result<u64> {
        self.number("memory.max_usage_in_bytes", "memory.peak")
    }

    /// The most that was charged at once, in memory or in swap areas; a page that is in both counts
    /// once. Version 1 alone tells it, and only if the kernel counts swap at all.
    pub fn peak_with_swap_bytes(&self) -> io::Result<u64> {
        number(&fs::read_to_string(self.path.join("memory.memsw.max_usage_in_bytes"))?)
    }

    /// How many processes of the group the kernel killed for its limit. 0 where it does not tell.
    #[must_use]
    pub fn oom_kills(&self) -> u64 {
        let text = self.text("memory.oom_control", "memory.events").unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
    }

    fn number(&self, v1: &str, v2: &str) -> io::Result<u64> {
        number(&self.text(v1, v2)?)
    }

    /// One of the two files is there, by the version.
    fn text(&self, v1: &str, v2: &str) -> io::Result<String> {
        fs::read_to_string(self.path.join(v1)).or_else(|_| fs::read_to_string(self.path.join(v2)))
    }

    /// The directory of the group.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn members(&self) -> Vec<Pid> {
        let text = fs::read_to_string(self.procs()).unwrap_or_default();
        text.lines().filter_map(|line| Pid::from_raw(line.trim().parse().ok()?)).collect()
    }

    /// Kills its processes and removes it; waits at most five seconds for the kernel.
    fn remove(&self) -> io::Result<()> {
        let deadline = Instant::now() + Duration::from_millis(REMOVE_MS_MAX);
        loop {
            self.kill();
            match fs::remove_dir(&self.path) {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(error) if Instant::now() > deadline => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }
}

/// Removes the group at this path, and kills its processes; waits at most five seconds for the
/// kernel. One that is not there is fine. The caller knows that it made it.
///
/// # Errors
/// That of removing it: a process of it does not end.
pub fn remove_left(path: &Path) -> io::Result<()> {
    let group = std::mem::ManuallyDrop::new(MemoryGroup { path: path.to_owned() });
    if path.exists() { group.remove() } else { Ok(()) }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // Nothing sensible is left to do about a failure: the name stays visible to `remove_where`.
        let _ = self.remove();
    }
}

fn number(text: &str) -> io::Result<u64> {
    text.trim().parse().map_err(|_| io::Error::other("the kernel gave no number for a group's memory"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_1_mount_wins_and_a_unified_one_counts_only_with_the_controller() {
        let v2 = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n";
        let both = format!("{v2}cgroup /mnt/memory cgroup rw,relatime,memory 0 0\n");
        let found = Controller::in_mounts(&both, |_| true).expect("version 1");
        assert_eq!((found.version(), found.root.as_path()), (Version::V1, Path::new("/mnt/memory")));
        assert_eq!(Controller::in_mounts(v2, |_| true).map(|c| c.version()).ok(), Some(Version::V2));
        assert!(Controller::in_mounts(v2, |_| false).is_err());
    }

    #[test]
    fn a_dropped_group_takes_its_processes_with_it() {
        let name = format!("pagoda-test-{}", std::process::id());
        let group = match Controller::find().and_then(|c| c.create(&name, 64 << 20)) {
            Ok(group) => group,
            Err(error) => {
                return crate::testing::skip::skip("cgroup", error);
            }
        };
        let path = group.path().to_owned();
        assert!(group.usage_bytes().expect("a number") <= 64 << 20);
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
        fs::write(group.procs(), child.id().to_string()).expect("join");
        // Its parent is this process, so it must be reaped beside the removal, as a bench's child
        // is.
        let reaper = std::thread::spawn(move || child.wait());
        drop(group);
        assert!(!path.exists());
        assert!(!reaper.join().expect("no panic").expect("waited").success(), "killed, not finished");
    }
}
