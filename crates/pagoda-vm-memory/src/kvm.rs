//! A part of guest memory for KVM, with the handle that keeps it.
//!
//! KVM remembers an address and not the mapping there. A slot whose memory is gone would show the
//! guest the next mapping at that address. So this module must never give out an address for KVM
//! without the region that it belongs to.

use std::fmt;
use std::sync::Arc;

use pagoda::Region;
use vm_memory::GuestAddress;

/// The arguments of one `KVM_SET_USER_MEMORY_REGION`, and a share of the memory that they name.
///
/// **Hold it as long as the VM's descriptor is open**, best in the same struct and declared behind
/// it: fields are dropped in the order of their declaration. The number of the slot is yours to
/// choose.
#[derive(Clone)]
pub struct KvmSlot {
    guest_address: GuestAddress,
    bytes: u64,
    region: Arc<Region>,
}

impl KvmSlot {
    pub(crate) fn new(guest_address: GuestAddress, bytes: u64, region: Arc<Region>) -> Self {
        Self { guest_address, bytes, region }
    }

    /// Where the guest sees it: `guest_phys_addr`.
    #[must_use]
    pub fn guest_address(&self) -> GuestAddress {
        self.guest_address
    }

    /// Its length in bytes, whole OS pages: `memory_size`.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where it is in this process: `userspace_addr`. Valid as long as this slot, another of the
    /// same region, or the memory lives.
    #[must_use]
    pub fn host_address(&self) -> *mut u8 {
        self.region.as_ptr()
    }
}

impl fmt::Debug for KvmSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { guest_address, bytes, region: _ } = self;
        let host = self.host_address();
        write!(f, "KvmSlot {{ {bytes} bytes at {:#x}, in this process at {host:p} }}", guest_address.0)
    }
}
