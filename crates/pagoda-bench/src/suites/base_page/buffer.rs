//! One buffer of one side: the same mapping for all, managed by Pagoda or left to the kernel.
//!
//! Whoever manages it, it is touched by the same code. This module must never give one side a budget that it could reach, or
//! reclaim would be measured.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use pagoda::stats::counters::Stats;
use pagoda::{AdoptedRegion, BasePage, Manager};
use pagoda_core::size::Bytes;
use pagoda_linux::mem::plain_memory::{Pages, PlainMemory};
use pagoda_linux::procfs::pagemap::{PagemapScanner, Presence};
use pagoda_linux::procfs::usage::Usage;

use crate::measure::memory::status_bytes;

/// Only ever reached on a machine that stands still.
const COUNTED: Duration = Duration::from_secs(10);

/// Who puts pages where there are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Pagoda(Manner),
    Kernel(Pages),
}

/// How Pagoda does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manner {
    /// None: as much of 64 KiB as is touched densely.
    pub base: Option<BasePage>,
    /// In the thread that touches.
    pub in_thread: bool,
    /// Who touches upwards gets more with a fault.
    pub fault_around: bool,
}

impl Manner {
    /// By handler threads, one base page for each fault.
    pub const fn handlers(base: BasePage) -> Self {
        Self { base: Some(base), in_thread: false, fault_around: false }
    }

    /// As a manager is made if nothing is said.
    pub const fn by_density() -> Self {
        Self { base: None, in_thread: false, fault_around: true }
    }

    /// A manager with room for a buffer of `len`.
    pub fn manager(self, len: usize) -> anyhow::Result<Manager> {
        // The buffer, as much again for what is staged, and far from every watermark.
        let budget = Bytes::new(4 * len as u64).max(Bytes::mib(256));
        let builder = Manager::builder().budget(budget).serve_in_thread(self.in_thread);
        let builder = self.base.into_iter().fold(builder, |builder, base| builder.base_page(base));
        // Frames that are made ready ahead are the manager's, not the buffer's; `bench clear` measures them.
        let builder = builder.tune(|tuning| tuning.fault_around(self.fault_around).clear_ahead(0));
        builder.user_mode_only(true).build().context("starting Pagoda")
    }
}

/// What is held for a buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// In it, by the page tables, and what Pagoda keeps of it elsewhere.
    pub resident: u64,
    pub faults: u64,
    /// Of the table that says which page is where: Pagoda's for its sides, else the kernel's.
    pub table: u64,
    /// The kernel's own, which every side has.
    pub kernel_table: u64,
}

/// Pagoda's hold on a buffer.
struct Managed {
    // Dropped first: a region needs its manager.
    _region: AdoptedRegion,
    manager: Manager,
    before: Stats,
}

/// The buffer. Its mapping goes before whoever manages it: nothing has to be brought back.
pub struct Buffer {
    pub memory: PlainMemory,
    managed: Option<Managed>,
    usage: Usage,
    kernel_table: u64,
}

impl Buffer {
    /// Maps it, and takes it under management if this is Pagoda's side.
    pub fn new(side: Side, len: usize) -> anyhow::Result<Self> {
        let kernel_table = kernel_table_bytes();
        let pages = if let Side::Kernel(pages) = side { pages } else { Pages::Small };
        let memory = PlainMemory::map(len, pages).context("mapping memory")?;
        let managed = match side {
            Side::Kernel(_) => None,
            Side::Pagoda(manner) => {
                let manager = manner.manager(len)?;
                let before = manager.stats();
                let region = manager.adopt(memory.foreign()).context("taking memory under management")?;
                Some(Managed { _region: region, manager, before })
            }
        };
        Ok(Self { memory, managed, usage: Usage::of_this_thread()?, kernel_table })
    }

    /// Waits until what was touched is counted: a handler counts a fault after it woke who had it, and may have to wait for a
    /// processor in between.
    pub fn await_counts(&self) -> anyhow::Result<()> {
        let Some(managed) = &self.managed else { return Ok(()) };
        let (begin, present) = (Instant::now(), self.present()?);
        loop {
            let stats = managed.manager.stats();
            if stats.resident_bytes >= present && stats.faults_in_service == 0 {
                return Ok(());
            }
            ensure!(begin.elapsed() < COUNTED, "what is resident was not counted: {stats:?}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// What of it is in memory, by the page tables.
    fn present(&self) -> anyhow::Result<u64> {
        let range = self.memory.range();
        let mut present = 0;
        PagemapScanner::new()?.populated_runs(range.start(), range.end(), |run, presence| {
            present += if presence == Presence::Memory { run.len() as u64 } else { 0 };
        })?;
        Ok(present)
    }

    /// What is held for it now.
    pub fn held(&self) -> anyhow::Result<Held> {
        let present = self.present()?;
        let kernel_table = kernel_table_bytes().saturating_sub(self.kernel_table);
        Ok(match &self.managed {
            None => {
                let faults = Usage::of_this_thread()?.since(self.usage).minor_faults;
                Held { resident: present, faults, table: kernel_table, kernel_table }
            }
            Some(Managed { manager, before, .. }) => {
                let now = manager.stats();
                let elsewhere =
                    |stats: &Stats| stats.staged_bytes + stats.ready_bytes + stats.store_memory_bytes;
                Held {
                    resident: present + elsewhere(&now).saturating_sub(elsewhere(before)),
                    faults: now.faults - before.faults,
                    table: now.table_bytes - before.table_bytes,
                    kernel_table,
                }
            }
        })
    }
}

/// The page tables of this process, by the kernel's count; 0 where it does not tell.
fn kernel_table_bytes() -> u64 {
    status_bytes("self", "VmPTE:").unwrap_or(0)
}
