//! The errors of guest memory.
//!
//! Each names the attempt, the outcome and the remedy. None of them ever stands for content.

use std::io;

use pagoda::{OtherProcess, RegionError};
use vm_memory::{GuestAddress, GuestRegionCollectionError};

/// Why guest memory could not be made, or can't be given to KVM.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GuestError {
    /// The manager serves the faults of the program alone.
    #[error(
        "this memory can't be used by KVM: its manager serves no faults of the kernel, and a guest's access to a swapped-out \
         page would be an access to a device; build the manager without user_mode_only and serve_in_thread (README.md tells \
         what that needs), or make the memory by create_without_kvm"
    )]
    KernelNotServed,
    /// A region's first or last address is not that of whole pages, or no address.
    #[error(
        "guest memory of {bytes} bytes at {:#x} is not made of whole pages of 4096 bytes below the end of the address space; \
         give another address or length",
        start.0
    )]
    NotPages {
        /// The first address.
        start: GuestAddress,
        /// The length.
        bytes: u64,
    },
    /// The regions are none, overlap, or are not sorted.
    #[error("the regions of guest memory don't fit each other; give them sorted and without overlaps")]
    Layout(#[from] GuestRegionCollectionError),
    /// The manager could not make a region.
    #[error("could not make a region of guest memory: {0}")]
    Region(#[from] RegionError),
    /// The memory is of another process.
    #[error(transparent)]
    OtherProcess(#[from] OtherProcess),
}

/// Why a part of guest memory was not discarded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiscardError {
    /// A part of it is no memory of the guest.
    #[error(
        "could not discard {bytes} bytes at {:#x}: {:#x} is no memory of the guest, and nothing was discarded; check the \
         range that the device was given",
        start.0, missing.0
    )]
    NoMemory {
        /// The first address to discard.
        start: GuestAddress,
        /// How many bytes were to be discarded.
        bytes: u64,
        /// The first address without memory.
        missing: GuestAddress,
    },
    /// The kernel refused a part.
    #[error("could not discard guest memory at {:#x}: {source}; everything before it was discarded", start.0)]
    Refused {
        /// Where the refused part begins.
        start: GuestAddress,
        /// The error of madvise(2), or [`OtherProcess`].
        source: io::Error,
    },
}
