//! The machine of the figures, so that a report names it. Reads, never sets.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use pagoda_core::size::Bytes;
use serde::Serialize;

use crate::measure::memory::bytes_of;

/// The parts of a machine that shape memory figures.
#[derive(Debug, Serialize)]
pub struct Machine {
    cpu: String,
    cores: usize,
    memory_bytes: u64,
    kernel: String,
    /// The governor of processor 0; `None` where the kernel doesn't scale frequencies, as in most
    /// virtual machines.
    governor: Option<String>,
    transparent_huge_pages: Option<String>,
    /// The kernel's swap readahead, as a power of two of OS pages. The bench leaves it as it is.
    page_cluster: Option<u32>,
    cgroup: Option<&'static str>,
}

impl Machine {
    /// Reads this machine.
    pub fn this() -> Self {
        let text = |path: &str| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
        let cpuinfo = text("/proc/cpuinfo").unwrap_or_default();
        let cpu = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let chosen = |modes: String| modes.split(['[', ']']).nth(1).map(str::to_owned);
        Self {
            cpu: cpu.map_or("unknown", |(_, name)| name.trim()).to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: bytes_of("/proc/meminfo", "MemTotal:").unwrap_or(0),
            kernel: text("/proc/sys/kernel/osrelease").unwrap_or_default(),
            governor: text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            transparent_huge_pages: text("/sys/kernel/mm/transparent_hugepage/enabled").and_then(chosen),
            page_cluster: text("/proc/sys/vm/page-cluster").and_then(|n| n.parse().ok()),
            cgroup: crate::kernel::cgroup_version(),
        }
    }
}

/// The last-level cache of all processors together, in bytes; `None` where the kernel has no
/// figure.
pub fn last_level_cache_bytes() -> Option<u64> {
    let mut caches = BTreeMap::new();
    for cpu in numbered("/sys/devices/system/cpu", "cpu")? {
        for cache in numbered(&format!("{}/cache", cpu.display()), "index")? {
            let text = |name| fs::read_to_string(cache.join(name)).map(|text| text.trim().to_owned()).ok();
            let level: u32 = text("level")?.parse().ok()?;
            caches.insert((level, text("shared_cpu_list")?), text("size")?.parse::<Bytes>().ok()?);
        }
    }
    let last = caches.keys().map(|(level, _)| *level).max()?;
    Some(caches.iter().filter(|((level, _), _)| *level == last).map(|(_, size)| size.get()).sum())
}

/// The entries of a directory that are named `prefix` and a number.
fn numbered(directory: &str, prefix: &str) -> Option<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).ok()?.flatten();
    let is_numbered = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()?.strip_prefix(prefix));
        name.is_some_and(|number| number.parse::<u32>().is_ok())
    };
    Some(entries.map(|entry| entry.path()).filter(is_numbered).collect())
}

/// Memory that a program could take before the kernel swaps, in bytes; 0 where the kernel has no
/// figure.
pub fn available_memory_bytes() -> u64 {
    bytes_of("/proc/meminfo", "MemAvailable:").unwrap_or(0)
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "none".to_owned());
        write!(
            f,
            "{}, {} cores, {}, Linux {}, governor {}, THP {}, vm.page-cluster {}, cgroup {}",
            self.cpu,
            self.cores,
            Bytes::new(self.memory_bytes),
            self.kernel,
            or_none(&self.governor),
            or_none(&self.transparent_huge_pages),
            self.page_cluster.map_or_else(|| "unknown".to_owned(), |n| n.to_string()),
            self.cgroup.unwrap_or("none"),
        )
    }
}
