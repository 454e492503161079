//! The kernel's side of a comparison: how a budget is divided between resident memory, compressed
//! swap and a swap file, and the peaks of a run.
//!
//! Setting up and undoing is `swap::side` of `pagoda-linux`; each name begins with
//! `pagoda-bench`. This module must never touch the swap or the groups of others, nor those of a
//! bench that still runs.

use std::io;
use std::path::PathBuf;

use pagoda_core::size::Bytes;
use pagoda_linux::swap::cgroup::{Controller, MemoryGroup, Version};
use pagoda_linux::swap::side::{self, Limits, Names, Side};
use serde::Serialize;

/// The directory of the swap file and other temporary files: on a disk, where /tmp often is memory.
pub const DIRECTORY: &str = "/var/tmp";
/// The prefix and the directory of everything set up here.
const NAMES: Names = Names { prefix: "pagoda-bench", directory: DIRECTORY };
/// The worker's memory beside its data: page tables by the data's size, and its own small memory.
const PAGE_TABLE_SHARE: f64 = 1.0 / 512.0;
const WORKER_BYTES: f64 = (3u64 << 20) as f64;

/// How a budget is divided on the kernel's side.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Split {
    /// The limit of the memory group.
    pub memcg_limit_bytes: u64,
    /// The limit of the zram device; `None`: unlimited, and charged to no group.
    pub zram_limit_bytes: Option<u64>,
    /// Content that the device offers room for.
    pub zram_disk_bytes: u64,
    /// The swap file behind it; 0 for none.
    pub swap_file_bytes: u64,
}

impl Split {
    /// Memory that zram takes beyond the compressed content: its allocator's classes and half-empty
    /// pages. At most 1.05 for this bench's data. A device must fill up before it reaches its
    /// limit: at the limit its writes fail and the kernel retries them.
    pub const ZRAM_LOSS: f64 = 1.07;

    /// The split in which memory and zram together just hold all of the data. zram gets no more
    /// than that takes, so that as much as possible stays resident. Where the whole budget in zram
    /// would be too little, an eighth stays resident.
    pub fn fitting(budget: Bytes, data: Bytes, ratio: f64) -> Self {
        let per_content = Self::ZRAM_LOSS / ratio;
        let need = data.get() as f64 * (1.0 + PAGE_TABLE_SHARE) + WORKER_BYTES;
        let budget_f = budget.get() as f64;
        let resident = (budget_f - need * per_content) / (1.0 - per_content);
        Self::with_resident(budget, data, ratio, (resident / budget_f).clamp(0.125, 0.95))
    }

    /// The split in which a given share of the budget stays resident.
    pub fn with_resident(budget: Bytes, data: Bytes, ratio: f64, resident_share: f64) -> Self {
        let memcg = pages((budget.get() as f64 * resident_share) as u64);
        let zram = budget.get() - memcg;
        Self {
            memcg_limit_bytes: memcg,
            zram_limit_bytes: Some(zram),
            zram_disk_bytes: pages((zram as f64 * ratio / Self::ZRAM_LOSS) as u64),
            // Room for all data: a slot stays taken while its page is in memory too.
            swap_file_bytes: pages(data.get() + data.get() / 8),
        }
    }

    /// The split in which the whole budget is for resident memory, and zram is charged to no group.
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

/// The peak use of the kernel's swap in one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct SwapPeak {
    /// The memory that zram took.
    pub zram_memory_bytes: u64,
    /// That over the content zram held at the same moment.
    pub zram_memory_per_content: f64,
    /// The bytes in the swap file.
    pub swap_file_bytes: u64,
}

/// The kernel's side, set up for one run, and its peak. Dropping it undoes everything.
pub struct KernelSide {
    side: Side,
    peak: SwapPeak,
}

/// A new name of this process.
pub fn own_name() -> String {
    NAMES.own()
}

impl KernelSide {
    /// Sets up a split. Fails with the limit that this machine doesn't allow.
    pub fn set_up(split: &Split) -> anyhow::Result<Self> {
        let limits = Limits {
            memory_bytes: split.memcg_limit_bytes,
            zram_disk_bytes: split.zram_disk_bytes,
            zram_memory_bytes: split.zram_limit_bytes,
            swap_file_bytes: split.swap_file_bytes,
        };
        Ok(Self { side: Side::set_up(&NAMES, &limits)?, peak: SwapPeak::default() })
    }

    /// The `cgroup.procs` file by which the worker joins the group.
    pub fn procs(&self) -> PathBuf {
        self.side.procs()
    }

    /// The memory group.
    pub fn group(&self) -> &MemoryGroup {
        self.side.group()
    }

    /// Samples the swap. Called while the worker runs.
    pub fn sample(&mut self) {
        if let Ok(usage) = self.side.zram_usage()
            && usage.memory_bytes > self.peak.zram_memory_bytes
            && usage.content_bytes > 0
        {
            self.peak.zram_memory_bytes = usage.memory_bytes;
            self.peak.zram_memory_per_content = usage.memory_bytes as f64 / usage.content_bytes as f64;
        }
        self.peak.swap_file_bytes = self.peak.swap_file_bytes.max(self.side.file_used_bytes());
    }

    /// Charged memory of the group and content in zram now, in bytes.
    pub fn held_bytes(&self) -> io::Result<u64> {
        Ok(self.side.group().usage_bytes()? + self.side.zram_usage()?.content_bytes)
    }

    /// The peak memory of zram by its own count, in bytes.
    pub fn zram_peak_bytes(&self) -> io::Result<u64> {
        Ok(self.side.zram_usage()?.memory_bytes_max)
    }

    /// The greatest values sampled.
    pub fn peak(&self) -> SwapPeak {
        self.peak
    }
}

/// The version of memory groups on this machine.
pub fn cgroup_version() -> Option<&'static str> {
    Controller::find().ok().map(|controller| match controller.version() {
        Version::V1 => "v1",
        Version::V2 => "v2",
    })
}

/// Removes the leftovers of killed runs, and describes them.
pub fn clean_up() -> anyhow::Result<Vec<String>> {
    Ok(side::clean_up(&NAMES)?)
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
        assert!((split.zram_disk_bytes as f64 * Split::ZRAM_LOSS / 3.0) as u64 <= zram);
        // Three times the budget at 2:1 can't fit: the rest goes to the file.
        let spilled = Split::fitting(budget, Bytes::mib(768), 2.0);
        assert_eq!(spilled.memcg_limit_bytes, budget.get() / 8);
        assert!(spilled.memcg_limit_bytes + spilled.zram_disk_bytes < Bytes::mib(768).get());
    }
}
