//! All memory of a guest: the sorted list of its managed regions.
//!
//! It is cheap to clone, and a clone keeps all of the memory. This module must never discard
//! anything that is not the guest's.

use std::sync::Arc;

use pagoda::{Bytes, Manager};
use vm_memory::bitmap::Bitmap;
use vm_memory::{
    Address, GuestAddress, GuestMemoryBackend, GuestMemoryRegion, GuestRegionCollection, GuestUsize,
};

use crate::error::{DiscardError, GuestError};
use crate::kvm::KvmSlot;
use crate::region::ManagedRegion;

/// The memory of a guest, for all that takes a `GuestMemory` or a `GuestMemoryBackend`.
#[derive(Debug)]
pub struct ManagedMemory<B = ()> {
    regions: GuestRegionCollection<ManagedRegion<B>>,
}

impl<B> Clone for ManagedMemory<B> {
    fn clone(&self) -> Self {
        Self { regions: self.regions.clone() }
    }
}

impl ManagedMemory {
    /// Makes memory for each of these ranges of guest addresses, sorted, by a region each. It is
    /// for guests of KVM and for all else.
    ///
    /// # Errors
    /// See [`GuestError`]; [`KernelNotServed`](GuestError::KernelNotServed) if the manager serves
    /// the faults of the program alone.
    pub fn create(manager: &Manager, ranges: &[(GuestAddress, Bytes)]) -> Result<Self, GuestError> {
        Self::of(ranges, |start, bytes| ManagedRegion::create(manager, start, bytes))
    }

    /// The same of any manager, for guests that this process runs itself: see
    /// [`ManagedRegion::create_without_kvm`].
    ///
    /// # Errors
    /// See [`GuestError`].
    pub fn create_without_kvm(
        manager: &Manager,
        ranges: &[(GuestAddress, Bytes)],
    ) -> Result<Self, GuestError> {
        Self::of(ranges, |start, bytes| ManagedRegion::create_without_kvm(manager, start, bytes))
    }

    fn of(
        ranges: &[(GuestAddress, Bytes)],
        create: impl Fn(GuestAddress, Bytes) -> Result<ManagedRegion, GuestError>,
    ) -> Result<Self, GuestError> {
        let regions = ranges.iter().map(|&(start, bytes)| create(start, bytes).map(Arc::new));
        Self::from_regions(regions.collect::<Result<_, _>>()?)
    }
}

impl<B: Bitmap> ManagedMemory<B> {
    /// The memory of these regions, which are sorted and don't overlap.
    ///
    /// # Errors
    /// [`GuestError::Layout`].
    pub fn from_regions(regions: Vec<Arc<ManagedRegion<B>>>) -> Result<Self, GuestError> {
        Ok(Self { regions: GuestRegionCollection::from_arc_regions(regions)? })
    }

    /// The memory with one region more, as for hotplug. Clones that exist stay as they are.
    ///
    /// # Errors
    /// [`GuestError::Layout`].
    pub fn with_region(&self, region: Arc<ManagedRegion<B>>) -> Result<Self, GuestError> {
        Ok(Self { regions: self.regions.insert_region(region)? })
    }

    /// The memory without the region of `bytes` at `start`, and that region. Its memory is free
    /// when the last clone, slot and share of it is dropped.
    ///
    /// # Errors
    /// [`GuestError::Layout`]: there is no such region, or no other.
    pub fn without_region(
        &self,
        start: GuestAddress,
        bytes: GuestUsize,
    ) -> Result<(Self, Arc<ManagedRegion<B>>), GuestError> {
        let (regions, removed) = self.regions.remove_region(start, bytes)?;
        Ok((Self { regions }, removed))
    }

    /// One slot of KVM for each region, sorted by guest address.
    ///
    /// # Errors
    /// [`GuestError::KernelNotServed`] if a region's manager serves the faults of the program
    /// alone, and [`GuestError::OtherProcess`] in a forked child.
    pub fn kvm_slots(&self) -> Result<Vec<KvmSlot>, GuestError> {
        let slot = |region: &ManagedRegion<B>| {
            region.check_kvm()?;
            Ok(KvmSlot::new(region.start_addr(), region.len(), Arc::clone(region.region())))
        };
        self.regions.iter().map(slot).collect()
    }

    /// Discards the whole pages of guest memory in `bytes` from `start` on: the answer to a
    /// balloon that inflates, and to free-page reporting. They read zero from now on and take
    /// neither memory nor room in the store. Parts of pages at both ends stay as they are. The
    /// guest may run meanwhile; its writes there at that moment may be lost or not.
    ///
    /// The bitmap of a region is not touched: a page that is discarded while the memory is sent to
    /// another host is the sender's to report.
    ///
    /// # Errors
    /// See [`DiscardError`].
    pub fn discard(&self, start: GuestAddress, bytes: GuestUsize) -> Result<(), DiscardError> {
        let mut parts = Vec::new();
        let (mut at, mut left) = (start, bytes);
        while left > 0 {
            let no_memory = DiscardError::NoMemory { start, bytes, missing: at };
            let Some((region, offset)) = self.regions.to_region_addr(at) else { return Err(no_memory) };
            let len = left.min(region.len() - offset.0);
            parts.push((at, region, offset.0, len));
            left -= len;
            match at.checked_add(len) {
                Some(next) => at = next,
                None if left == 0 => {}
                None => return Err(DiscardError::NoMemory { start, bytes, missing: GuestAddress(0) }),
            }
        }
        for (start, region, offset, len) in parts {
            let pages = ManagedRegion::<B>::whole_pages(offset, len);
            let discarded = region.region().discard(pages.start, pages.len());
            discarded.map_err(|source| DiscardError::Refused { start, source })?;
        }
        Ok(())
    }
}

impl<B: Bitmap> GuestMemoryBackend for ManagedMemory<B> {
    type R = ManagedRegion<B>;

    fn num_regions(&self) -> usize {
        self.regions.num_regions()
    }

    fn find_region(&self, address: GuestAddress) -> Option<&Self::R> {
        self.regions.find_region(address)
    }

    fn iter(&self) -> impl Iterator<Item = &Self::R> {
        self.regions.iter()
    }
}
