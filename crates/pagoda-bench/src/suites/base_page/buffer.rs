//! One buffer of one side: the same mapping for all, managed by Pagoda or left to the kernel.
//!
//! The same code touches it on every side. This module must never give one side a budget that it
//! could reach: that would measure reclaim.

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

/// The limit for counters to settle, reached only on a machine that stands still.
const COUNTED: Duration = Duration::from_secs(10);

/// The side that fills missing pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Pagoda(Manner),
    Kernel(Pages),
}

/// The way in which Pagoda serves faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manner {
    /// The base page; `None`: as much of 64 KiB as is touched densely.
    pub base: Option<BasePage>,
    /// Faults are served in the faulting thread.
    pub in_thread: bool,
    /// A sequential access maps several base pages per fault.
    pub fault_around: bool,
}

impl Manner {
    /// Handler threads, one base page for each fault.
    pub const fn handlers(base: BasePage) -> Self {
        Self { base: Some(base), in_thread: false, fault_around: false }
    }

    /// The defaults of a manager.
    pub const fn by_density() -> Self {
        Self { base: None, in_thread: false, fault_around: true }
    }

    /// A manager with room for a buffer of `len`.
    pub fn manager(self, len: usize) -> anyhow::Result<Manager> {
        // The buffer, as much again for staged pages, and far from every watermark.
        let budget = Bytes::new(4 * len as u64).max(Bytes::mib(256));
        let builder = Manager::builder().budget(budget).serve_in_thread(self.in_thread);
        let builder = self.base.into_iter().fold(builder, |builder, base| builder.base_page(base));
        // Frames made ready ahead belong to the manager, not to the buffer; `bench clear` measures
        // them.
        let builder = builder.tune(|tuning| tuning.fault_around(self.fault_around).clear_ahead(0));
        builder.user_mode_only(true).build().context("starting Pagoda")
    }
}

/// The memory held for a buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Resident memory of the buffer by the page tables, and its pages that Pagoda keeps elsewhere.
    pub resident: u64,
    pub faults: u64,
    /// The table that maps pages to frames: Pagoda's for its sides, else the kernel's.
    pub table: u64,
    /// The kernel's page tables, which every side has.
    pub kernel_table: u64,
}

/// Pagoda's hold on a buffer.
struct Managed {
    // The region is dropped first: it needs its manager.
    _region: AdoptedRegion,
    manager: Manager,
    before: Stats,
}

/// The buffer. Its mapping is dropped before the manager, so that no page has to be swapped in.
pub struct Buffer {
    pub memory: PlainMemory,
    managed: Option<Managed>,
    usage: Usage,
    kernel_table: u64,
}

impl Buffer {
    /// Maps the buffer, and registers it with Pagoda on Pagoda's sides.
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

    /// Waits until the faults of all touches are counted. A handler counts a fault after it has
    /// woken the faulting thread, and may have to wait for a processor in between.
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

    /// Resident bytes of the buffer, by the page tables.
    fn present(&self) -> anyhow::Result<u64> {
        let range = self.memory.range();
        let mut present = 0;
        PagemapScanner::new()?.populated_runs(range.start(), range.end(), |run, presence| {
            present += if presence == Presence::Memory { run.len() as u64 } else { 0 };
        })?;
        Ok(present)
    }

    /// The memory held for the buffer now.
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

/// The page tables of this process by the kernel's count; 0 where the kernel has no figure.
fn kernel_table_bytes() -> u64 {
    status_bytes("self", "VmPTE:").unwrap_or(0)
}
