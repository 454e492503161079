//! Memory that can't be a region, and why: it could not be had, or can't be managed.
//!
//! This module must never change the memory that it checks.

use pagoda_core::page::BasePage;
use pagoda_core::size::Bytes;
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::procfs::maps::{Mapping, MapsReader};

use crate::error::Errno;
use crate::error::other_process::OtherProcess;

/// Why a region could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// It has no length.
    #[error("a region has at least one byte")]
    Empty,
    /// The address space could not be had.
    #[error(
        "could not map {len} for a region ({errno}); ask for less, or raise vm.max_map_count and the limit on address space"
    )]
    Map {
        /// How much.
        len: Bytes,
        /// The kernel's error.
        errno: Errno,
    },
    /// The kernel does not let this memory be managed.
    #[error(
        "could not take the memory under management ({errno}); it must be private anonymous memory that no other userfaultfd has \
         and nobody manages yet"
    )]
    Register {
        /// The kernel's error.
        errno: Errno,
    },
    /// Its base page is none that its manager can have beside its own.
    #[error(
        "a region can't have a base page of {asked} in a manager of {manager}; choose {manager}, or another manager"
    )]
    BasePage {
        /// The base page that was chosen for the region.
        asked: BasePage,
        /// The base page of the manager: if it is 64 KiB or 2 MiB, any will do.
        manager: BasePage,
    },
    /// There is no memory for the entries of its base pages.
    #[error(
        "could not get memory for the entries of {len} in base pages of {base}; ask for less, choose a larger base page, or set \
         vm.overcommit_memory to 1"
    )]
    Entries {
        /// How much was to be managed.
        len: Bytes,
        /// The base page of the manager.
        base: BasePage,
    },
    /// A part of the memory to be adopted is not mapped. A later mapping there would not be
    /// managed.
    #[error(
        "nothing is mapped at {at:#x}, {offset} into the memory to be adopted; adopt what is mapped, each piece by itself"
    )]
    Hole {
        /// The first address that is not mapped.
        at: usize,
        /// How far into the memory that is.
        offset: Bytes,
    },
    /// A part of the memory to be adopted is of a kind that can't leave by a move and come back.
    #[error(
        "what is mapped at {at:#x}, {offset} into the memory to be adopted, is not private anonymous memory that can be read \
         and written and not executed; adopt only what is"
    )]
    Kind {
        /// The first address of that kind.
        at: usize,
        /// How far into the memory that is.
        offset: Bytes,
    },
    /// A region would grow beyond its reserve.
    #[error("the region can't grow by {more}: {left} of its reserve are left; make it with a larger one")]
    BeyondReserve {
        /// By how much it was to grow.
        more: Bytes,
        /// The part of the reserve that is left.
        left: Bytes,
    },
    /// The manager is of another process.
    #[error(transparent)]
    OtherProcess(#[from] OtherProcess),
    /// `/proc/self/maps` can't be read, which tells whether all of an adopted range is mapped.
    #[error("could not read /proc/self/maps ({errno}), which tells what is mapped; mount /proc")]
    Maps {
        /// The kernel's error.
        errno: Errno,
    },
    /// `/proc/self/pagemap`, which lists the present pages of an adopted range, can't be read.
    #[error("could not read /proc/self/pagemap ({errno}), which tells what the memory holds; mount /proc")]
    Pagemap {
        /// The kernel's error.
        errno: Errno,
    },
}

/// Whether it is memory that can be managed.
pub(crate) fn is_plain(mapping: &Mapping) -> bool {
    mapping.is_private_anonymous() && mapping.read && mapping.write && !mapping.execute
}

/// Checks that all of `range` is mapped, and so as `fits` wants it. The kernel registers a range
/// with holes as well, and does not tell of a later mapping in a hole. That mapping would not be
/// managed, though the table says so.
///
/// The owner vouches that it stays as it is.
pub(crate) fn check_mapped(range: PageRange, fits: impl Fn(&Mapping) -> bool) -> Result<(), RegionError> {
    let offset = |at: usize| Bytes::new((at - range.start()) as u64);
    let maps_error = |error: std::io::Error| RegionError::Maps { errno: Errno::from(&error) };
    let mut maps = MapsReader::new(8192).map_err(maps_error)?;
    // Up to here all is well.
    let mut good = range.start();
    let mut other_kind = None;
    let walked = maps.for_each(|mapping| {
        if other_kind.is_some() || mapping.start > good || mapping.end <= good || good >= range.end() {
            return;
        }
        if fits(mapping) {
            good = mapping.end;
        } else {
            other_kind = Some(good);
        }
    });
    walked.map_err(maps_error)?;
    match other_kind {
        Some(at) => Err(RegionError::Kind { at, offset: offset(at) }),
        None if good < range.end() => Err(RegionError::Hole { at: good, offset: offset(good) }),
        None => Ok(()),
    }
}
