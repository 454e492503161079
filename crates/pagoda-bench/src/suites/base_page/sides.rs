//! The measured sides: Pagoda by base page and by the thread that serves its faults, and the kernel
//! by its page size.
//!
//! This module must never give two sides of one group the same name: rows are told apart by it.

use pagoda_core::page::BasePage;
use pagoda_linux::mem::plain_memory::Pages;

use super::buffer::{Manner, Side};
use super::pattern::Pattern;

/// Fault-around at 64 KiB, by handlers and in the faulting thread.
pub const AROUND: &str = "fault_around";
pub const AROUND_IN_THREAD: &str = "fault_around_in_thread";

/// The sides of a run by name.
pub struct Sides {
    pub clusters: Vec<(&'static str, Side)>,
    /// Sides of a dense buffer only.
    pub fault_around: [(&'static str, Side); 2],
    pub kernel: Vec<(&'static str, Side)>,
    pub no_mthp: Option<String>,
}

impl Sides {
    pub fn new(no_mthp: Option<&String>) -> Self {
        let handlers = |base| Side::Pagoda(Manner::handlers(base));
        let in_thread = Manner { in_thread: true, ..Manner::handlers(BasePage::K64) };
        let mut kernel = vec![("4k", Side::Kernel(Pages::Small)), ("thp", Side::Kernel(Pages::Huge))];
        if no_mthp.is_none() {
            kernel.push(("mthp64k", Side::Kernel(Pages::Unasked)));
        }
        Self {
            clusters: vec![
                ("4K", handlers(BasePage::K4)),
                ("16K", handlers(BasePage::K16)),
                ("64K", handlers(BasePage::K64)),
                ("64K_in_thread", Side::Pagoda(in_thread)),
                ("auto", Side::Pagoda(Manner::by_density())),
            ],
            fault_around: [
                (AROUND, Side::Pagoda(Manner { fault_around: true, ..Manner::handlers(BasePage::K64) })),
                (AROUND_IN_THREAD, Side::Pagoda(Manner { fault_around: true, ..in_thread })),
            ],
            kernel,
            no_mthp: no_mthp.cloned(),
        }
    }

    pub fn all(&self) -> impl Iterator<Item = (&'static str, Side)> {
        self.clusters.iter().chain(&self.kernel).copied()
    }

    /// The sides of a pattern.
    pub fn of(&self, pattern: Pattern) -> impl Iterator<Item = (&'static str, Side)> {
        let around = if pattern == Pattern::Dense { &self.fault_around[..] } else { &[] };
        self.all().chain(around.iter().copied())
    }

    /// The sides of the sweep by size: Pagoda with its defaults, and with base pages of 64 KiB
    /// only.
    pub fn of_sweep(&self) -> Vec<(&'static str, Side)> {
        let name = |name| match name {
            "4k" => "kernel_4k",
            "thp" => "kernel_thp",
            "mthp64k" => "kernel_mthp64k",
            "64K" => "pagoda_64k",
            "64K_in_thread" => "pagoda_in_thread",
            _ => "pagoda",
        };
        let chosen = self.all().filter(|(name, _)| !["4K", "16K"].contains(name));
        chosen.map(|(of, side)| (name(of), side)).collect()
    }

    pub fn steps(&self, rounds: usize) -> u64 {
        let rows: usize = Pattern::ALL.map(|pattern| self.of(pattern).count()).iter().sum();
        ((rows + 3) * (rounds + 1)) as u64 + 1 + super::redis::steps(rounds)
    }
}
