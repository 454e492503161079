//! The memory cgroup of this process: where it is, the room below its limit, and its processes that
//! the kernel has killed.
//!
//! The kernel kills a process of a group that needs more than the limit, and says so only in its
//! log. So a budget has to fit below the limit. The limits of all groups above count, too, as far
//! as they are mounted here: a container sees its own group as the root. A value that can't be read
//! is `None`. This module must never write to a group.

use std::fs;
use std::path::{Path, PathBuf};

use pagoda_core::size::Bytes;
use rustix::fs::Access as FileAccess;

/// The two kinds of memory cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemcgVersion {
    /// A hierarchy of its own.
    V1,
    /// The unified hierarchy.
    V2,
}

/// The memory cgroup of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memcg {
    /// Its kind.
    pub version: MemcgVersion,
    /// Where it is.
    pub path: PathBuf,
    /// Whether this process may make groups below it.
    pub writable: bool,
    /// Where its hierarchy is mounted.
    mount: PathBuf,
}

/// A limit of a group, and the memory that counts against it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// The group that has it.
    pub group: PathBuf,
    /// The limit.
    pub limit: Bytes,
    /// The memory of the group's processes now, without pages that the kernel can drop at any time
    /// (files, caches).
    pub used: Bytes,
}

impl Memcg {
    /// Finds it in `/proc`. None where the memory controller is not mounted.
    #[must_use]
    pub fn find() -> Option<Self> {
        let (version, mount, path) = found_in(&text("/proc/self/mountinfo"), &text("/proc/self/cgroup"))?;
        let path = if path.exists() { path } else { mount.clone() };
        if version == MemcgVersion::V2 && !text(path.join("cgroup.controllers")).contains("memory") {
            return None;
        }
        let writable = rustix::fs::access(&path, FileAccess::WRITE_OK | FileAccess::EXEC_OK).is_ok();
        Some(Self { version, path, writable, mount })
    }

    /// The limit that leaves least, of this group and of all above it. None if there is none.
    #[must_use]
    pub fn limit(&self) -> Option<MemoryLimit> {
        let groups = self.path.ancestors().take_while(|group| group.starts_with(&self.mount));
        let limits = groups.filter_map(|group| self.limit_of(group));
        limits.min_by_key(|limit| limit.limit.saturating_sub(limit.used))
    }

    /// How many processes of this group, in version 2 of those below it too, the kernel has killed
    /// for want of memory.
    #[must_use]
    pub fn oom_kills(&self) -> Option<u64> {
        let file = match self.version {
            MemcgVersion::V1 => "memory.oom_control",
            MemcgVersion::V2 => "memory.events",
        };
        field(&text(self.path.join(file)), "oom_kill")
    }

    fn limit_of(&self, group: &Path) -> Option<MemoryLimit> {
        let read = |file: &str| text(group.join(file));
        let number = |file: &str| read(file).trim().parse::<u64>().ok();
        let stat = read("memory.stat");
        let (limits, usage, droppable) = match self.version {
            // The first field counts groups above that are not mounted here, too.
            MemcgVersion::V1 => (
                [field(&stat, "hierarchical_memory_limit"), number("memory.limit_in_bytes")],
                number("memory.usage_in_bytes"),
                ["total_active_file", "total_inactive_file", ""],
            ),
            // Above `high` the kernel holds processes up until they are as good as stopped.
            MemcgVersion::V2 => (
                [number("memory.max"), number("memory.high")],
                number("memory.current"),
                ["active_file", "inactive_file", "slab_reclaimable"],
            ),
        };
        let limit = limits.into_iter().flatten().filter(|limit| *limit < UNLIMITED).min()?;
        let droppable: u64 = droppable.iter().filter_map(|name| field(&stat, name)).sum();
        let used = usage.unwrap_or(0).saturating_sub(droppable);
        Some(MemoryLimit { group: group.to_owned(), limit: Bytes::new(limit), used: Bytes::new(used) })
    }
}

/// Version 1 shows the largest number of whole pages where there is no limit; no machine has half
/// of it.
const UNLIMITED: u64 = 1 << 62;

/// All memory of the machine.
#[must_use]
pub fn machine_memory() -> Bytes {
    let machine = rustix::system::sysinfo();
    Bytes::new(machine.totalram.saturating_mul(u64::from(machine.mem_unit)))
}

/// The memory that this process may take before the machine, or the process's group, lacks some.
#[must_use]
pub fn available() -> Bytes {
    let kib = text("/proc/meminfo").lines().find_map(|line| {
        line.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()
    });
    let of_machine = Bytes::new(kib.unwrap_or(0).saturating_mul(1 << 10));
    let limit = Memcg::find().and_then(|group| group.limit());
    limit.map_or(of_machine, |limit| of_machine.min(limit.limit.saturating_sub(limit.used)))
}

fn text(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// The number behind a name in lines of `name number`.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// Where the hierarchy with the memory controller is mounted, and this process's group in it, by
/// the text of `/proc/self/mountinfo` and `/proc/self/cgroup`. A hierarchy of version 1 goes first:
/// where one has the memory controller, the unified one does not.
fn found_in(mounts: &str, groups: &str) -> Option<(MemcgVersion, PathBuf, PathBuf)> {
    let named = |list: &str| list.split(',').any(|name| name == "memory");
    if let Some((mount, path)) = place_in(mounts, groups, "cgroup", named, named) {
        return Some((MemcgVersion::V1, mount, path));
    }
    let (mount, path) = place_in(mounts, groups, "cgroup2", |_| true, str::is_empty)?;
    Some((MemcgVersion::V2, mount, path))
}

/// The group of this process in the hierarchy of version 1 that has this controller, if it is
/// mounted.
pub(crate) fn own_group(controller: &str) -> Option<PathBuf> {
    let named = |list: &str| list.split(',').any(|name| name == controller);
    let (mount, path) =
        place_in(&text("/proc/self/mountinfo"), &text("/proc/self/cgroup"), "cgroup", named, named)?;
    Some(if path.exists() { path } else { mount })
}

/// Where a hierarchy is mounted, and this process's group in it.
fn place_in(
    mounts: &str,
    groups: &str,
    wanted_kind: &str,
    wanted_options: impl Fn(&str) -> bool,
    wanted_controllers: impl Fn(&str) -> bool,
) -> Option<(PathBuf, PathBuf)> {
    let (root, at) = mounts.lines().find_map(|line| {
        let (place, source) = line.split_once(" - ")?;
        let (mut place, mut source) = (place.split(' ').skip(3), source.split(' '));
        let (root, at) = (place.next()?, place.next()?);
        let (kind, options) = (source.next()?, source.nth(1)?);
        (kind == wanted_kind && wanted_options(options)).then_some((root, at))
    })?;
    let group = groups.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        wanted_controllers(controllers).then_some(path)
    })?;
    // A container may see its group as the host names it, and only the part below is mounted.
    let below = Path::new(group).strip_prefix(root).unwrap_or(Path::new(""));
    let is_outside = below.components().any(|part| part == std::path::Component::ParentDir);
    let path = if is_outside { at.into() } else { Path::new(at).join(below) };
    Some((at.into(), path))
}

#[cfg(test)]
#[path = "memcg_test.rs"]
mod tests;
