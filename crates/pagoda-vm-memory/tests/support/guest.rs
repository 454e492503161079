//! A guest of KVM with one processor, in 32-bit code without paging, that fills and reads memory.

use std::sync::Arc;

use kvm_bindings::{kvm_segment, kvm_userspace_memory_region};
use kvm_ioctls::{Error, Kvm, VcpuExit, VcpuFd, VmFd};
use pagoda::Bytes;
use pagoda_linux::testing::guest_code::fill_and_read;
use pagoda_vm_memory::{KvmSlot, ManagedMemory};
use vm_memory::{Bytes as _, GuestAddress};

/// The first address that the guest fills: its code lies below.
pub const START: u32 = 1 << 20;
const CODE: u64 = 0x1000;
/// Where the guest reports.
pub const PORT: u8 = 0x10;
const EINTR: i32 = 4;
const INTERRUPTIONS: u32 = 1000;

/// A guest that waits to run. Its processor ends before its memory.
pub struct Guest {
    processor: VcpuFd,
    vm: Arc<VmFd>,
    _slots: Vec<KvmSlot>,
    reads_from: u64,
}

impl Guest {
    /// Loads the code, and sets the guest to write a word of four bytes each `step` of
    /// `START..bytes`.
    ///
    /// # Errors
    /// Those of KVM.
    pub fn start(memory: &ManagedMemory, bytes: Bytes, step: u32) -> Result<Self, Error> {
        let slots = memory.kvm_slots().expect("the manager serves the kernel");
        let slots_of = |number: u32, slot: &KvmSlot| kvm_userspace_memory_region {
            slot: number,
            flags: 0,
            guest_phys_addr: slot.guest_address().0,
            memory_size: slot.bytes(),
            userspace_addr: slot.host_address().addr() as u64,
        };
        let regions: Vec<_> = slots.iter().zip(0..).map(|(slot, number)| slots_of(number, slot)).collect();
        Self::of(memory, (bytes, step), &regions, slots)
    }

    /// The same in memory that the caller mapped, which it keeps.
    ///
    /// # Errors
    /// Those of KVM.
    pub fn of(
        memory: &impl vm_memory::GuestMemory,
        (bytes, step): (Bytes, u32),
        regions: &[kvm_userspace_memory_region],
        slots: Vec<KvmSlot>,
    ) -> Result<Self, Error> {
        let (code, reads_from) = fill_and_read(PORT.into(), step, &[0xF4]);
        let mut guest = Self::with_code(memory, bytes, regions, &code)?;
        (guest._slots, guest.reads_from) = (slots, CODE + reads_from as u64);
        Ok(guest)
    }

    /// A guest that runs `code`, with [`START`] in ESI and `bytes` in EDI, in memory that the
    /// caller mapped, which it keeps.
    ///
    /// # Errors
    /// Those of KVM.
    pub fn with_code(
        memory: &impl vm_memory::GuestMemory,
        bytes: Bytes,
        regions: &[kvm_userspace_memory_region],
        code: &[u8],
    ) -> Result<Self, Error> {
        let vm = Arc::new(Kvm::new()?.create_vm()?);
        for region in regions {
            // SAFETY: the addresses are those of the slots that the guest holds until its VM is
            // closed, or of memory that the caller keeps; no other slot has these numbers.
            unsafe { vm.set_user_memory_region(*region) }?;
        }
        memory.write_slice(code, GuestAddress(CODE)).expect("memory for the code");
        let processor = vm.create_vcpu(0)?;
        let mut system = processor.get_sregs()?;
        let flat = |selector, kind| kvm_segment {
            limit: u32::MAX,
            selector,
            type_: kind,
            present: 1,
            db: 1,
            s: 1,
            g: 1,
            ..kvm_segment::default()
        };
        system.cs = flat(8, 11);
        let data = flat(16, 3);
        (system.ds, system.es, system.fs, system.gs, system.ss) = (data, data, data, data, data);
        system.cr0 |= 1;
        processor.set_sregs(&system)?;
        let mut registers = processor.get_regs()?;
        registers.rip = CODE;
        registers.rsi = u64::from(START);
        registers.rdi = bytes.get();
        registers.rflags = 2;
        processor.set_regs(&registers)?;
        Ok(Self { processor, vm, _slots: Vec::new(), reads_from: CODE })
    }

    /// The VM, for its log of dirty pages.
    pub fn vm(&self) -> Arc<VmFd> {
        Arc::clone(&self.vm)
    }

    /// Runs on to its next report.
    pub fn run(&mut self) -> u8 {
        for _ in 0..INTERRUPTIONS {
            match self.processor.run() {
                Ok(VcpuExit::IoOut(port, &[report])) if port == u16::from(PORT) => return report,
                Ok(other) => {
                    let what = format!("{other:?}");
                    panic!("the guest ended by {what}, with {:x?}", self.processor.get_regs());
                }
                // A debugger's signal, or the freezer's.
                Err(error) if error.errno() == EINTR => {}
                Err(error) => panic!("the guest could not run: {error}"),
            }
        }
        panic!("the guest was interrupted {INTERRUPTIONS} times");
    }

    /// Reads its memory again, and returns the report.
    pub fn read_back(&mut self) -> u8 {
        let mut registers = self.processor.get_regs().expect("registers");
        registers.rip = self.reads_from;
        self.processor.set_regs(&registers).expect("registers");
        self.run()
    }
}
