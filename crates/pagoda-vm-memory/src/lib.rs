//! Guest memory for rust-vmm's `vm-memory` that Pagoda keeps within a budget.
//!
//! [`ManagedMemory`] is a `GuestMemoryBackend`, and so a `GuestMemory`, of [`ManagedRegion`]s. Each
//! owns the managed region that its bytes are in, so that no other handle has to be kept alive.
//! [`KvmSlot`] is the same for KVM, which only remembers an address.
//! [`discard`](ManagedMemory::discard) gives back what a guest's balloon, or its reports of free
//! pages, tell of. The README of the crate has an example.
//!
//! # Faults of KVM
//! A guest's access to a swapped-out page is a fault of the kernel. A manager with
//! [`user_mode_only`](pagoda::ManagerBuilder::user_mode_only) or
//! [`serve_in_thread`](pagoda::ManagerBuilder::serve_in_thread) does not serve these: KVM would
//! take the access for one to a device, an MMIO exit. [`ManagedMemory::create`] refuses such a
//! manager, and so does [`ManagedMemory::kvm_slots`].
//!
//! # Blocking
//! An access to a swapped-out page blocks its thread, or the guest's processor, until the page is
//! back: see the documentation of `pagoda`, also for when the process is ended.
//!
//! # For readers of the code
//! `region` has the only unsafe call, `memory` the list of regions. This crate must never give out
//! bytes of a region that the borrow or the handle does not keep alive.

mod error;
mod kvm;
mod memory;
mod region;

pub use error::{DiscardError, GuestError};
pub use kvm::KvmSlot;
pub use memory::ManagedMemory;
pub use region::ManagedRegion;

/// The README, whose example is tested with those of the documentation.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
