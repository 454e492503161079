//! The kernel's side of a comparison: how a budget is divided between resident memory, compressed
//! swap and a swap file, and the peaks of a run.
//!
//! Setting up and undoing is `baseline::side` of `pagoda-linux`; each name begins with
//! `pagoda-bench`. This module must never touch the swap or the groups of others, nor those of a
//! bench that still runs.

use std::io;
use std::path::PathBuf;

use pagoda_core::size::Bytes;
use pagoda_linux::baseline::cgroup::{Controller, MemoryGroup, Version};
use pagoda_linux::baseline::side::{self, Limits, Names, Side};
use serde::Serialize;

/// Where the swap file and other temporary files are: on a disk, where /tmp often is memory.
pub const DIRECTORY: &str = "/var/tmp";
/// The names of all that is set up here.
const NAMES: Names = Names { prefix: "pagoda-bench", directory: DIRECTORY };
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
    /// What zram takes of memory beyond the compressed content: its allocator's classes and half-empty
    /// pages. Measured at up to 1.05 for this bench's data. A device must fill up before it reaches
    /// its limit: there its writes fail and the kernel retries them.
    pub const ZRAM_LOSS: f64 = 1.07;

    /// The budget divided so that the content in memory and in zram is all of the data, with no more to zram than
    /// that takes: what stays resident is as much as can be. Where even all of the budget in zram is too little, an
    /// eighth stays resident.
    pub fn fitting(budget: Bytes, data: Bytes, ratio: f64) -> Self {
        let per_content = Self::ZRAM_LOSS / ratio;
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
            zram_disk_bytes: pages((zram as f64 * ratio / Self::ZRAM_LOSS) as u64),
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

/// The most that one run took of the kernel's swap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct SwapPeak {
    /// The memory that zram took.
    pub zram_memory_bytes: u64,
    /// That over the content it held at the same moment.
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
    /// Sets up a split. The error says what this machine doesn't allow.
    pub fn set_up(split: &Split) -> anyhow::Result<Self> {
        let limits = Limits {
            memory_bytes: split.memcg_limit_bytes,
            zram_disk_bytes: split.zram_disk_bytes,
            zram_memory_bytes: split.zram_limit_bytes,
            swap_file_bytes: split.swap_file_bytes,
        };
        Ok(Self { side: Side::set_up(&NAMES, &limits)?, peak: SwapPeak::default() })
    }

    /// The file by which the worker joins.
    pub fn procs(&self) -> PathBuf {
        self.side.procs()
    }

    /// The memory group.
    pub fn group(&self) -> &MemoryGroup {
        self.side.group()
    }

    /// Looks at the swap. Called while the worker runs.
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

    /// The most memory that zram took, by its own count, in bytes.
    pub fn zram_peak_bytes(&self) -> io::Result<u64> {
        Ok(self.side.zram_usage()?.memory_bytes_max)
    }

    /// The most that was sampled.
    pub fn peak(&self) -> SwapPeak {
        self.peak
    }
}

/// Which interface of memory groups this machine has.
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
        // Three times the budget at 2:1 can't fit: what is left goes to the file.
        let spilled = Split::fitting(budget, Bytes::mib(768), 2.0);
        assert_eq!(spilled.memcg_limit_bytes, budget.get() / 8);
        assert!(spilled.memcg_limit_bytes + spilled.zram_disk_bytes < Bytes::mib(768).get());
    }
}
