//! The kernel's side of the comparison: a memory limit, compressed swap and a swap file, set up for one run.
//!
//! Everything is of its own making, carries a name or label that begins with `pagoda-bench`, and is undone when its
//! guard drops. What a killed run left is removed by [`clean_up`]. This module must never touch other swap, other
//! groups, or what a benchmark that still runs has set up.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Context;
use pagoda_core::size::Bytes;
use pagoda_linux::baseline::cgroup::{Controller, MemoryGroup, Version};
use pagoda_linux::baseline::swapfile::{self, Label, PRIORITY_MAX, SwapFile};
use pagoda_linux::baseline::zram::{self, Setup, ZramSwap};
use serde::Serialize;

/// Everything here that has a name begins with this.
pub const PREFIX: &str = "pagoda-bench";
/// Where the swap file and other temporary files are: on a disk, where /tmp often is memory.
pub const DIRECTORY: &str = "/var/tmp";
/// What zram takes of memory beyond what LZ4 makes of the content: its allocator's classes and half-empty pages.
/// Measured at up to 1.05 for this data. A device must fill up before it reaches its limit: there its writes fail and
/// the kernel retries them.
const ZRAM_LOSS: f64 = 1.07;
/// What the worker holds beside its data: page tables by the data's size, and its own small memory.
const PAGE_TABLE_SHARE: f64 = 1.0 / 512.0;
const WORKER_BYTES: f64 = (3u64 << 20) as f64;

/// How a budget is divided on the kernel's side.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Split {
    /// The limit of the memory group.
    pub memcg_limit_bytes: u64,
    /// The limit of the zram device; `None`: charged to nobody and unlimited.
    pub zram_limit_bytes: Option<u64>,
    /// How much content the device offers.
    pub zram_disk_bytes: u64,
    /// The swap file behind it; 0 for none.
    pub swap_file_bytes: u64,
}

impl Split {
    /// The budget divided so that the content in memory and in zram is all of the data, with no more to zram than
    /// that takes: what stays resident is as much as can be. Where even all of the budget in zram is too little, an
    /// eighth stays resident.
    pub fn fitting(budget: Bytes, data: Bytes, ratio: f64) -> Self {
        let per_content = ZRAM_LOSS / ratio;
        let need = data.get() as f64 * (1.0 + PAGE_TABLE_SHARE) + WORKER_BYTES;
        let budget_f = budget.get() as f64;
        let resident = (budget_f - need * per_content) / (1.0 - per_content);
        Self::with_resident(budget, data, ratio, (resident / budget_f).clamp(0.125, 0.95))
    }

    /// The budget divided by a given share of it that stays resident.
    pub fn with_resident(budget: Bytes, data: Bytes, ratio: f64, resident_share: f64) -> Self {
        let memcg = pages((budget.get() as f64 * resident_share) as u64);
        let zram = budget.get() - memcg;
        Self {
            memcg_limit_bytes: memcg,
            zram_limit_bytes: Some(zram),
            zram_disk_bytes: pages((zram as f64 * ratio / ZRAM_LOSS) as u64),
            // Room for everything: slots stay taken while their pages are in memory too.
            swap_file_bytes: pages(data.get() + data.get() / 8),
        }
    }

    /// The whole budget for what stays resident, and zram charged to nobody.
    pub fn uncharged(budget: Bytes, data: Bytes) -> Self {
        Self {
            memcg_limit_bytes: pages(budget.get()),
            zram_limit_bytes: None,
            zram_disk_bytes: pages(data.get() + data.get() / 8),
            swap_file_bytes: 0,
        }
    }
}

fn pages(bytes: u64) -> u64 {
    bytes & !4095
}

/// What one run took of the kernel's swap, at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct SwapPeak {
    /// Memory that zram took.
    pub zram_memory_bytes: u64,
    /// That over the content it held, at the same moment.
    pub zram_memory_per_content: f64,
    /// What the swap file held.
    pub swap_file_bytes: u64,
}

/// The kernel's side, set up for one run. Dropping it undoes everything.
pub struct KernelSide {
    // Field order is drop order: the worker and its memory go first, so that little is left to bring back.
    group: MemoryGroup,
    zram: ZramSwap,
    file: Option<SwapFile>,
    file_path: PathBuf,
    peak: SwapPeak,
}

fn label() -> Label {
    Label::new(PREFIX)
}

/// A name of ours that tells who made it.
pub fn own_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{PREFIX}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

impl KernelSide {
    /// Sets up a split. The error says what this machine doesn't allow.
    pub fn set_up(split: &Split) -> anyhow::Result<Self> {
        let name = own_name();
        let setup = Setup {
            disk_bytes: split.zram_disk_bytes,
            memory_bytes_max: split.zram_limit_bytes,
            label: label(),
            priority: PRIORITY_MAX,
        };
        let zram = ZramSwap::create(setup).context("setting up zram (needs root and the zram module)")?;
        let file_path = Path::new(DIRECTORY).join(format!("{name}.swap"));
        let file = (split.swap_file_bytes > 0)
            .then(|| SwapFile::create(&file_path, split.swap_file_bytes, label(), PRIORITY_MAX - 1))
            .transpose()
            .with_context(|| format!("setting up the swap file {}", file_path.display()))?;
        let group = Controller::find()
            .and_then(|controller| controller.create(&name, split.memcg_limit_bytes))
            .context("setting up a memory group (needs root and a mounted memory controller)")?;
        Ok(Self { group, zram, file, file_path, peak: SwapPeak::default() })
    }

    /// The file by which the worker joins.
    pub fn procs(&self) -> PathBuf {
        self.group.procs()
    }

    /// Looks at what is swapped out. Called while the worker runs.
    pub fn sample(&mut self) {
        if let Ok(usage) = self.zram.usage()
            && usage.memory_bytes > self.peak.zram_memory_bytes
            && usage.content_bytes > 0
        {
            self.peak.zram_memory_bytes = usage.memory_bytes;
            self.peak.zram_memory_per_content = usage.memory_bytes as f64 / usage.content_bytes as f64;
        }
        if self.file.is_some() {
            let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
            self.peak.swap_file_bytes = self.peak.swap_file_bytes.max(used_bytes(&swaps, &self.file_path));
        }
    }

    /// What the processes of the group hold now: charged memory, and content in zram; in bytes.
    pub fn held_bytes(&self) -> io::Result<u64> {
        Ok(self.group.usage_bytes()? + self.zram.usage()?.content_bytes)
    }

    /// The most that was seen.
    pub fn peak(&self) -> SwapPeak {
        self.peak
    }
}

/// The used column of a swap area in /proc/swaps, which is in KiB.
fn used_bytes(swaps: &str, path: &Path) -> u64 {
    let line = swaps.lines().find(|line| line.split_whitespace().next().map(Path::new) == Some(path));
    line.and_then(|line| line.split_whitespace().nth(3)?.parse::<u64>().ok()).map_or(0, |kib| kib << 10)
}

/// Which interface of memory groups this machine has.
pub fn cgroup_version() -> Option<&'static str> {
    Controller::find().ok().map(|controller| match controller.version() {
        Version::V1 => "v1",
        Version::V2 => "v2",
    })
}

/// Removes what killed runs left: groups, zram devices, swap files and temporary directories. Returns what it
/// removed. What belongs to a process that still runs stays.
pub fn clean_up() -> anyhow::Result<Vec<String>> {
    let dead = |pid: u32| !Path::new(&format!("/proc/{pid}")).exists();
    let dead_name = |name: &str| owner_of(name).is_some_and(dead);
    let mut removed = Vec::new();
    if let Ok(controller) = Controller::find() {
        let groups = controller.remove_where(dead_name).context("removing memory groups")?;
        removed.extend(groups.into_iter().map(|name| format!("memory group {name}")));
    }
    let devices = zram::remove_where(label(), dead).context("removing zram devices")?;
    removed.extend(devices.into_iter().map(|name| format!("zram device {name}")));
    let files = swapfile::remove_where(Path::new(DIRECTORY), label(), dead).context("removing swap files")?;
    removed.extend(files.into_iter().map(|path| format!("swap file {}", path.display())));
    for entry in fs::read_dir(DIRECTORY)? {
        let entry = entry?;
        if dead_name(&entry.file_name().to_string_lossy()) {
            // What is left under our name is a directory of test files, or a swap file that never got its label.
            let path = entry.path();
            if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) }
                .with_context(|| format!("removing {}", path.display()))?;
            removed.push(format!("{}", path.display()));
        }
    }
    Ok(removed)
}

/// The process that made something of this name.
fn owner_of(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.strip_prefix('-')?.split('-').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_spends_the_budget_and_holds_the_data_where_it_can() {
        let (budget, data) = (Bytes::mib(256), Bytes::mib(512));
        let split = Split::fitting(budget, data, 3.0);
        let zram = split.zram_limit_bytes.expect("a limit");
        assert_eq!(split.memcg_limit_bytes + zram, budget.get());
        let held = split.memcg_limit_bytes + split.zram_disk_bytes;
        assert!(held >= data.get() && held < data.get() + data.get() / 50, "{split:?}");
        assert!((split.zram_disk_bytes as f64 * ZRAM_LOSS / 3.0) as u64 <= zram);
        // Three times the budget at 2:1 can't fit: what is left goes to the file.
        let spilled = Split::fitting(budget, Bytes::mib(768), 2.0);
        assert_eq!(spilled.memcg_limit_bytes, budget.get() / 8);
        assert!(spilled.memcg_limit_bytes + spilled.zram_disk_bytes < Bytes::mib(768).get());
    }

    #[test]
    fn names_tell_their_owner() {
        assert_eq!(owner_of(&own_name()), Some(std::process::id()));
        assert_eq!(owner_of("pagoda-bench-12-3.swap"), Some(12));
        for name in ["pagoda-bench", "pagoda-bench-x-1", "pagoda-7-1", "other"] {
            assert_eq!(owner_of(name), None, "{name}");
        }
    }

    #[test]
    fn swap_used_is_found_by_path() {
        let swaps = "Filename Type Size Used Priority\n/a file 100 7 1\n/ab file 100 9 1\n";
        assert_eq!(used_bytes(swaps, Path::new("/ab")), 9 << 10);
        assert_eq!(used_bytes(swaps, Path::new("/b")), 0);
    }

    #[test]
    fn what_is_set_up_is_undone_and_a_living_owner_is_left_alone() {
        let (budget, data) = (Bytes::mib(32), Bytes::mib(64));
        let side = match KernelSide::set_up(&Split::fitting(budget, data, 3.0)) {
            Ok(side) => side,
            Err(error) => {
                return pagoda_linux::testing::skip::skip("the kernel's side", format!("{error:#}"));
            }
        };
        let (group, file) = (side.group.path().to_owned(), side.file_path.clone());
        assert!(group.exists() && file.exists());
        clean_up().expect("looked");
        assert!(group.exists() && file.exists(), "its owner, this test, is alive");
        drop(side);
        let swaps = fs::read_to_string("/proc/swaps").expect("swaps");
        assert!(!group.exists() && !file.exists() && !swaps.contains(PREFIX), "{swaps}");
    }
}
