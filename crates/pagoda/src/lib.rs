//! Pagoda: a userspace virtual-memory manager.
//!
//! It takes over the page faults of memory that it is given, and keeps that memory within a budget:
//! what does not fit is moved out, compressed, and then written to an unlinked file. It is real
//! memory behind ordinary addresses, moved by the kernel (`UFFDIO_MOVE`, Linux 6.8) at zero copies;
//! no swap and no kernel patch is needed.
//!
//! A [`Manager`] has a budget, a store and a few threads. It manages [`Region`]s:
//!
//! ```
//! use pagoda::{Bytes, Manager};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # if !pagoda::userfaultfd_allows_managers() { return Ok(()); }
//! let manager = Manager::builder().budget(Bytes::mib(64)).user_mode_only(true).build()?;
//! let mut region = manager.region(Bytes::gib(1)).create()?;
//! for offset in (0..region.len()).step_by(4096) {
//!     region.write_at(offset, &offset.to_le_bytes())?;
//! }
//! let mut back = [0; 8];
//! region.read_at(12345 * 4096, &mut back)?;
//! assert_eq!(usize::from_le_bytes(back), 12345 * 4096);
//! assert!(manager.stats().faults > 0);
//! # Ok(())
//! # }
//! ```
//!
//! Several managers in one process know nothing of each other: one for each tenant gives each a
//! budget of its own. Memory that was mapped elsewhere is adopted with [`Manager::adopt`]; vouching
//! for it is the unsafe part, and lies in [`ForeignMemory::new`]. The crate's `examples/` show all
//! three, that with memory which vouches for itself.
//!
//! # What a budget covers
//! The frames of the manager's regions, those that are on their way, and the compressed store. Not
//! the manager's own tables and stacks, nor the rest of the program. A burst may exceed it for a
//! moment: what is in flight is counted when it has arrived.
//!
//! # Who looks from outside
//! A manager that [publishes](ManagerBuilder::publish) is shown by `pagoda top` with all its
//! figures, its regions, and how those that are being moved get on. Looking costs it nothing.
//!
//! ```
//! use pagoda::{Bytes, Manager};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # if !pagoda::userfaultfd_allows_managers() { return Ok(()); }
//! let builder = Manager::builder().budget(Bytes::mib(64)).user_mode_only(true);
//! let manager = builder.publish(true).build()?;
//! let region = manager.region(Bytes::mib(256)).create()?;
//! // `pagoda top` shows this process, its 64 MiB of budget, and the region.
//! # drop(region);
//! # Ok(())
//! # }
//! ```
//!
//! # Faults of system calls
//! A manager that is built with [`user_mode_only`](ManagerBuilder::user_mode_only) needs no
//! privilege on stock kernels. The price: a system call that is handed an address in a region fails
//! with `EFAULT` where the page is out. [`Region::read_at`] and [`Region::write_at`] are always
//! right. Without it, system calls work as on any memory, and building the manager needs
//! `/dev/userfaultfd`, `CAP_SYS_PTRACE` or `vm.unprivileged_userfaultfd=1`.
//!
//! With [`serve_in_thread`](ManagerBuilder::serve_in_thread) each fault is served in the thread
//! that has it, in a handler of SIGBUS, in a part of the time (`docs/figures.md`); system calls
//! fail the same way.
//!
//! # What blocks, and what can end the process
//! An access to a page that is out blocks its thread until the page is back: some tens of
//! microseconds from memory, a disk read from the file. If content can't be brought back (the disk
//! fails, bytes come back damaged), or no memory can be had for ten seconds, the process is aborted
//! with a line that says why: it never goes on with memory that reads wrong. See
//! [`error::StopReason`].
//!
//! # For readers of the code
//! `docs/ARCHITECTURE.md` in the repository tells the life of a page with the module for each step.
//! Whole programs are managed by the same engine: [`process::ProcessEngine`] is what the preload
//! library of `pagoda run` starts.
#![forbid(unsafe_code)]

pub use crate::error::other_process::OtherProcess;
pub use file::{FileError, FileRegion, FileRegionBuilder, FileStats, MapFileError};
pub use manager::{Manager, ManagerBuilder, userfaultfd_allows_managers};
pub use pagoda_core::fault::density::Use as Purpose;
pub use pagoda_core::page::BasePage;
pub use pagoda_core::release::ReleasePolicy;
pub use pagoda_core::size::Bytes;
pub use pagoda_core::zone::ZonePolicy;
pub use region::{AccessError, ForeignMemory, PageOutError, Region, RegionBuilder, RegionError};

mod assemble;
mod clear;
pub mod config;
mod engine;
pub mod error;
mod fault;
pub mod file;
mod fork;
pub mod frames;
pub mod manager;
mod mapping;
#[cfg(feature = "migrate")]
pub mod migrate;
pub mod process;
mod reclaim;
pub mod region;
mod release;
pub mod state;
pub mod stats;
pub mod store;
mod table;
mod threads;
pub mod tree;
