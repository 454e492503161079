//! Pagoda: a userspace virtual-memory manager.
//!
//! It takes over the page faults of the memory that it manages, and keeps that memory within a
//! budget: cold pages are compressed, and spilled to an unlinked file. It is real memory behind
//! ordinary addresses, moved by the kernel (`UFFDIO_MOVE`, Linux 6.8) without a copy; no swap and
//! no kernel patch is needed.
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
//! The managers of one process know nothing of each other: one for each tenant gives each a budget
//! of its own. [`Manager::adopt`] takes memory that was mapped elsewhere, as an [`AdoptedRegion`],
//! whose content is given back or forgotten at the end. Its unsafe part is
//! [`ForeignMemory::new`], by which the owner vouches for the memory. By
//! [`ForeignMemory::movable`] it can be sent to other hosts and received into, as a region can. The
//! crate's `examples/` show all three.
//!
//! # Which option when
//! - Without privileges: `user_mode_only(true)`. System calls get `EFAULT` for swapped-out pages,
//!   so use `read_at` and `write_at` for them.
//! - Known threads touch the memory, and the wake-up of a handler takes too long:
//!   `serve_in_thread(true)`.
//! - Content that does not fit compressed: `spill_to`, and behind it `remote_store`.
//! - Large buffers that are read and written whole: nothing, or `base_page(BasePage::M2)` on the
//!   region for huge frames.
//! - Sparse memory: `purpose` on the region, or `base_page(BasePage::K4)` to hold the touched OS
//!   pages alone. Each region of a manager may have another base page.
//! - One tenant among several: `limit` on its region. Memory of several kinds: `zone` for each.
//! - Other processes are to look into it: `publish(true)`.
//! - [`tune`](ManagerBuilder::tune) is for comparisons: its defaults are those that the benches
//!   found best.
//!
//! # What a budget covers
//! The frames of the manager's regions, those in flight, and the compressed store. Not the
//! manager's own tables and stacks, nor the rest of the program. A burst may exceed it for a
//! moment: frames in flight are counted when they have arrived.
//!
//! # Looking from outside
//! `pagoda top` shows a manager that [publishes](ManagerBuilder::publish), with all its figures,
//! its regions, and the progress of their migrations. Looking costs the manager nothing.
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
//! with `EFAULT` if the page is swapped out. [`Region::read_at`] and [`Region::write_at`] are
//! always right. Without it, system calls work as on any memory, and building the manager needs
//! `/dev/userfaultfd`, `CAP_SYS_PTRACE` or `vm.unprivileged_userfaultfd=1`.
//!
//! With [`serve_in_thread`](ManagerBuilder::serve_in_thread) each fault is served in the faulting
//! thread, in a handler of SIGBUS, in a part of the time (`docs/figures.md`); system calls fail the
//! same way.
//!
//! # Blocking, and the end of the process
//! An access to a swapped-out page blocks its thread until the page is back: some tens of
//! microseconds from memory, a disk read from the file. Where nothing can be moved out to make room
//! the budget is passed ([`ManagerBuilder::on_exhausted`]). The process is aborted with a line that
//! says why if content can't be swapped in (the disk fails, bytes come back damaged). It never goes
//! on with memory that reads wrong. See [`error::StopReason`].
//!
//! # For readers of the code
//! `docs/ARCHITECTURE.md` in the repository tells the life of a page with the module for each step.
//! Whole programs are managed by the same engine, which the preload library of `pagoda run` starts.
#![forbid(unsafe_code)]

pub use error::other_process::OtherProcess;
pub use error::{StartError, StopReason};
pub use file::{FileError, FileRegion, FileRegionBuilder, FileStats, MapFileError};
pub use frames::zones::{Place, ResizeError, ZoneStats};
pub use manager::{Manager, ManagerBuilder, userfaultfd_allows_managers};
pub use pagoda_core::clear::Order as ClearOrder;
pub use pagoda_core::fault::density::Use as Purpose;
pub use pagoda_core::page::BasePage;
pub use pagoda_core::release::ReleasePolicy;
pub use pagoda_core::size::Bytes;
pub use pagoda_core::zone::ZonePolicy;
pub use pagoda_core::zone::reclaim::ZoneReclaim;
pub use reclaim::passing::Exhausted;
pub use region::{
    Access, AccessError, AdoptedRegion, ForeignMemory, Managed, PageOutError, PinError, Pinned, Region,
    RegionBuilder, RegionError, Usage,
};
#[cfg(feature = "image")]
pub use restore::{RestoreBuilder, RestoreError};
#[cfg(all(feature = "image", feature = "migrate"))]
pub use snapshot::{Saved, SnapshotError};
pub use stats::account::{Account, Released};
pub use stats::counters::Stats;
pub use store::{AddressError, RemoteAddress};
pub use table::filling::Fill;
pub use tuning::Tuning;

mod assemble;
mod clear;
mod crypto;
mod engine;
pub mod error;
mod fault;
mod fork;
mod mapping;
#[cfg(feature = "migrate")]
pub mod migrate;
mod reclaim;
mod release;
#[cfg(feature = "image")]
mod restore;
#[cfg(all(feature = "image", feature = "migrate"))]
mod snapshot;
mod table;
mod threads;
mod tuning;

// Modules that the command, the preload library and the benches share with the engine, and that
// promise nothing to other users. All that a library's user needs of them is named above.
#[doc(hidden)]
pub mod config;
#[doc(hidden)]
pub mod file;
#[doc(hidden)]
pub mod frames;
#[doc(hidden)]
pub mod manager;
#[doc(hidden)]
pub mod process;
#[doc(hidden)]
pub mod region;
#[doc(hidden)]
pub mod state;
#[doc(hidden)]
pub mod stats;
#[doc(hidden)]
pub mod store;
#[doc(hidden)]
pub mod tree;
