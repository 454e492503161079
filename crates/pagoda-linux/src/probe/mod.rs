//! The features of this machine, tried out rather than guessed, each answer with its reason.
//!
//! It asks once, before a program is started or on a user's request; it allocates and is no part of
//! the engine. It must never change the machine: it closes its descriptors, unmaps its mappings,
//! and writes only to nameless files.

mod feature;
mod machine;
mod userfault;

pub use feature::{Feature, Features};
pub(crate) use machine::version_in;
pub use machine::{Hugetlb, KernelVersion, Limits, Machine, MthpSize, Swap, Zram, ZramModule, machine};
pub use userfault::{Access, Missing, Refusal, Userfault, Way, can_run, open_userfaultfd, userfault};

use crate::procfs::pagemap::{PagemapScanner, ScanMethod};

/// Everything that the probe finds out.
#[derive(Debug)]
pub struct Report {
    /// Whether a whole program can be managed here, as `pagoda run` needs it.
    pub run: Result<Access, Missing>,
    /// The ways to a userfaultfd, and its features.
    pub userfault: Userfault,
    /// How page tables are scanned; an error if not at all.
    pub scan: std::io::Result<ScanMethod>,
    /// The machine around it.
    pub machine: Machine,
}

/// Tries everything. Some milliseconds.
#[must_use]
pub fn report() -> Report {
    Report {
        run: can_run(),
        userfault: userfault(),
        scan: PagemapScanner::new().map(|scanner| scanner.method()),
        machine: machine(),
    }
}
