//! One range of guest memory, which owns its managed region.
//!
//! `vm-memory` reads and writes it through volatile slices that borrow this value. This module must
//! never give out a slice that reaches beyond the range, or one in a forked child, where other
//! memory may be at these addresses.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use pagoda::{Bytes, Manager, Region};
use vm_memory::bitmap::{BS, Bitmap};
use vm_memory::guest_memory::Result;
use vm_memory::{
    Address, GuestAddress, GuestMemoryError, GuestMemoryRegion, GuestMemoryRegionBytes, GuestUsize,
    MemoryRegionAddress, VolatileSlice,
};

use crate::error::GuestError;

/// The OS page, in bytes: KVM takes whole ones.
const PAGE: u64 = 4096;

/// A range of guest memory in a managed [`Region`] of its own. `B` tracks pages that the host
/// writes for the guest, as `vm-memory` has it; the unit type tracks none.
pub struct ManagedRegion<B = ()> {
    start: GuestAddress,
    bytes: u64,
    region: Arc<Region>,
    bitmap: B,
}

impl<B> fmt::Debug for ManagedRegion<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ManagedRegion {{ {} bytes at {:#x} }}", self.bytes, self.start.0)
    }
}

impl ManagedRegion {
    /// Makes a region of `bytes`, which reads as zero and takes no memory yet, for the guest's
    /// addresses from `start` on. It is for guests of KVM and for all else.
    ///
    /// # Errors
    /// See [`GuestError`]; [`KernelNotServed`](GuestError::KernelNotServed) if the manager serves
    /// the faults of the program alone.
    pub fn create(
        manager: &Manager,
        start: GuestAddress,
        bytes: Bytes,
    ) -> std::result::Result<Self, GuestError> {
        let region = Self::create_without_kvm(manager, start, bytes)?;
        region.check_kvm()?;
        Ok(region)
    }

    /// The same of any manager, for guests that this process runs itself: an emulator, or a device
    /// in the program's own threads. Where the manager serves the faults of the program alone, a
    /// system call into this memory fails with `EFAULT` at a swapped-out page. That includes
    /// `read_volatile_from` and its siblings with a file.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub fn create_without_kvm(
        manager: &Manager,
        start: GuestAddress,
        bytes: Bytes,
    ) -> std::result::Result<Self, GuestError> {
        check_pages(start, bytes.get())?;
        Self::of(manager.region(bytes).create()?, start, bytes.get(), ())
    }
}

impl<B> ManagedRegion<B> {
    /// Takes a region that was made, restored or received elsewhere, all of it, with a bitmap of
    /// its length. Whether KVM may use it is asked when it is given to KVM.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub fn with_bitmap(
        region: Region,
        start: GuestAddress,
        bitmap: B,
    ) -> std::result::Result<Self, GuestError> {
        let bytes = region.len() as u64;
        Self::of(region, start, bytes, bitmap)
    }

    fn of(
        region: Region,
        start: GuestAddress,
        bytes: u64,
        bitmap: B,
    ) -> std::result::Result<Self, GuestError> {
        check_pages(start, bytes)?;
        Ok(Self { start, bytes, region: Arc::new(region), bitmap })
    }

    /// The managed region, for its statistics, for pins, and to page out, prefetch or send it. It
    /// is up to a base page longer than the guest's part of it.
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Whether KVM may use it.
    pub(crate) fn check_kvm(&self) -> std::result::Result<(), GuestError> {
        self.region.check_process()?;
        if self.region.serves_the_kernel() { Ok(()) } else { Err(GuestError::KernelNotServed) }
    }

    /// The part `offset..offset + count`, if it lies in this range and this process has it.
    fn check_part(&self, offset: MemoryRegionAddress, count: u64) -> Result<usize> {
        let end = offset.0.checked_add(count).filter(|end| *end <= self.bytes);
        if end.is_none() {
            return Err(GuestMemoryError::InvalidBackendAddress);
        }
        self.region.check_process().map_err(|error| GuestMemoryError::IOError(error.into()))?;
        Ok(offset.0 as usize)
    }
}

impl<B> ManagedRegion<B> {
    /// The offsets of the whole pages within `len` bytes from `offset` on; perhaps none.
    pub(crate) fn whole_pages(offset: u64, len: u64) -> Range<usize> {
        let first = offset.next_multiple_of(PAGE);
        let end = (offset + len) / PAGE * PAGE;
        first as usize..end.max(first) as usize
    }
}

/// Whether a range is made of whole pages of the guest's address space.
fn check_pages(start: GuestAddress, bytes: u64) -> std::result::Result<(), GuestError> {
    let are_pages = bytes > 0 && bytes.is_multiple_of(PAGE) && start.0.is_multiple_of(PAGE);
    // `vm-memory` adds the length less one without a check.
    let ends = start.checked_add(bytes.wrapping_sub(1)).is_some();
    if are_pages && ends { Ok(()) } else { Err(GuestError::NotPages { start, bytes }) }
}

impl<B: Bitmap> GuestMemoryRegion for ManagedRegion<B> {
    type B = B;

    fn len(&self) -> GuestUsize {
        self.bytes
    }

    fn start_addr(&self) -> GuestAddress {
        self.start
    }

    fn bitmap(&self) -> BS<'_, B> {
        self.bitmap.slice_at(0)
    }

    /// The address in this process of one byte. It is valid as long as this region lives; what
    /// outlives the region holds a [`KvmSlot`](crate::KvmSlot).
    fn get_host_address(&self, address: MemoryRegionAddress) -> Result<*mut u8> {
        let offset = self.check_part(address, 1)?;
        Ok(self.region.as_ptr().wrapping_add(offset))
    }

    fn get_slice(&self, offset: MemoryRegionAddress, count: usize) -> Result<VolatileSlice<'_, BS<'_, B>>> {
        let at = self.check_part(offset, count as u64)?;
        let bitmap = self.bitmap.slice_at(at);
        let address = self.region.as_ptr().wrapping_add(at);
        // SAFETY: `check_part` saw that `count` bytes from there lie in the region's mapping, and
        // that this process is the one that has it. The slice borrows `self`, which owns a share of
        // the region; a region is unmapped, or changes its protection, by its sole owner alone,
        // and there is none while the share exists. This crate accesses the bytes by volatile
        // slices alone, the region's shared calls by atomic loads and stores of bytes and words,
        // and a guest or a device by machine instructions; no call of a shared region makes a
        // reference to its bytes.
        Ok(unsafe { VolatileSlice::with_bitmap(address, count, bitmap, None) })
    }
}

impl<B: Bitmap> GuestMemoryRegionBytes for ManagedRegion<B> {}
