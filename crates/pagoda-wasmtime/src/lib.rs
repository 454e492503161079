//! Linear memories for Wasmtime that Pagoda keeps within a budget.
//!
//! [`ManagedMemories`] makes a managed region for each linear memory. Its addresses are reserved up
//! to Wasmtime's reservation with the guard behind it, closed, and opened as the memory grows. So
//! compiled code does without checks of bounds, as with Wasmtime's own memories.
//!
//! The manager may serve faults of the program alone, by
//! [`user_mode_only`](pagoda::ManagerBuilder::user_mode_only), if no host function hands an
//! address in a memory to a system call. WASI does: for it the manager serves the kernel's, too.
//!
//! **The pooling allocator ignores this.** Wasmtime asks for host memory with
//! `InstanceAllocationStrategy::OnDemand` alone, its default; with `Pooling` the pool maps all
//! memories itself, and nothing is managed, without an error.
//!
//! This crate must never leave an address open that is beyond a memory's end.

use std::sync::Arc;

use pagoda::region::Access;
use pagoda::{Bytes, Manager, Region};
use wasmtime::{LinearMemory, MemoryCreator, MemoryType};

/// The unit in which managed memory grows: a page of Wasm.
const UNIT: usize = 64 << 10;

/// The most that is reserved where Wasmtime leaves the choice: all that 32 bits can address.
const RESERVED_MOST: usize = 1 << 32;

/// Makes linear memories of one manager, for `Config::with_host_memory`. All of them share its
/// budget.
#[derive(Clone)]
pub struct ManagedMemories {
    manager: Manager,
}

impl ManagedMemories {
    /// Memories within this manager's budget, which has the default base page.
    #[must_use]
    pub fn new(manager: Manager) -> Self {
        Self { manager }
    }

    /// The same behind an `Arc`, as `Config::with_host_memory` takes it.
    #[must_use]
    pub fn shared(manager: Manager) -> Arc<Self> {
        Arc::new(Self::new(manager))
    }

    fn create(&self, minimum: usize, capacity: usize, guard: usize) -> Result<ManagedLinear, String> {
        let told = |error: String| format!("could not make a linear memory of {minimum} bytes: {error}");
        let reserve =
            capacity.checked_add(guard).ok_or_else(|| told("it and its guard are too large".into()))?;
        // A region is never empty: the first page stays closed until the memory grows.
        let open = minimum.next_multiple_of(UNIT).max(UNIT);
        let region =
            self.manager.region(Bytes::new(open as u64)).reserve(Bytes::new(reserve.max(open) as u64));
        let mut region = region.create().map_err(|error| told(error.to_string()))?;
        if region.len() != open {
            return Err(told(
                "its manager's base page is larger than a page of Wasm; leave base_page out".into(),
            ));
        }
        if minimum == 0 {
            region.protect(0, UNIT, Access::None).map_err(|error| told(error.to_string()))?;
        }
        Ok(ManagedLinear { region, bytes: minimum, capacity })
    }
}

// SAFETY: a memory is zero at the beginning, since a fresh region is. Its addresses up to the
// reserved size and the guard behind that are one mapping of the region, which stays where it is.
// All of it beyond the memory's end, rounded up to a page of Wasm, is closed (PROT_NONE), and stays
// so but by `grow_to`.
unsafe impl MemoryCreator for ManagedMemories {
    fn new_memory(
        &self,
        _ty: MemoryType,
        minimum: usize,
        maximum: Option<usize>,
        reserved_size_in_bytes: Option<usize>,
        guard_size_in_bytes: usize,
    ) -> Result<Box<dyn LinearMemory>, String> {
        let chosen = maximum.unwrap_or(RESERVED_MOST).min(RESERVED_MOST);
        let capacity = reserved_size_in_bytes.unwrap_or(chosen).max(minimum);
        Ok(Box::new(self.create(minimum, capacity, guard_size_in_bytes)?))
    }
}

/// One linear memory.
struct ManagedLinear {
    region: Region,
    /// The bytes of it that Wasm may use.
    bytes: usize,
    /// How much it may grow to.
    capacity: usize,
}

// SAFETY: `as_ptr` is the region's first byte, which never moves and is valid for `byte_size` bytes
// as long as this value owns the region. `byte_size` is never beyond the open part, since
// `grow_to` opens first; growth is within the reserved addresses.
unsafe impl LinearMemory for ManagedLinear {
    fn byte_size(&self) -> usize {
        self.bytes
    }

    fn byte_capacity(&self) -> usize {
        self.capacity
    }

    fn grow_to(&mut self, new_size: usize) -> wasmtime::Result<()> {
        if new_size > self.capacity {
            let capacity = self.capacity;
            wasmtime::bail!(
                "a linear memory of {capacity} bytes at most can't grow to {new_size}; raise memory_reservation"
            );
        }
        if self.bytes == 0 && new_size > 0 {
            self.region.protect(0, UNIT, Access::Write)?;
        }
        let more = new_size.next_multiple_of(UNIT).saturating_sub(self.region.len());
        if more > 0 {
            self.region.grow(Bytes::new(more as u64))?;
        }
        self.bytes = self.bytes.max(new_size);
        Ok(())
    }

    fn as_ptr(&self) -> *mut u8 {
        self.region.as_ptr()
    }
}

/// The README, whose example is tested with those of the documentation.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
