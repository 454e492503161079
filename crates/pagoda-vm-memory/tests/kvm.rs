//! A guest of KVM in managed memory that is four times the budget: it fills its memory and reads it
//! back, and the host reads the same words.

mod support;

use std::sync::Arc;

use pagoda::{Bytes, Manager};
use pagoda_linux::testing::guest_code::{FILLED, RIGHT, word_at};
use pagoda_linux::testing::skip::skip;
use pagoda_vm_memory::{GuestError, ManagedMemory, ManagedRegion};
use vm_memory::{Bytes as _, GuestAddress, GuestMemoryBackend as _};

use support::guest::{Guest, START};
use support::manager;

const MIB: u64 = 1 << 20;
const BUDGET: Bytes = Bytes::mib(16);
const GUEST: Bytes = Bytes::mib(64);
/// Four words a page, at other offsets in each.
const STEP: u32 = 1028;

/// The guest and its memory, or None where KVM is not to be had.
fn guest(memory: &ManagedMemory) -> Option<Guest> {
    let guest = Guest::start(memory, GUEST, STEP);
    guest.map_err(|error| skip("guests of KVM", format!("/dev/kvm does not work: {error}"))).ok()
}

#[test]
fn a_guest_of_four_budgets_reads_what_it_wrote_and_so_does_the_host() {
    let Some(manager) = manager(BUDGET) else { return };
    // Two regions, of which the first one ends within a base page.
    let low = Bytes::new(20 * MIB + 4096);
    let ranges = [(GuestAddress(0), low), (GuestAddress(low.get()), Bytes::new(GUEST.get() - low.get()))];
    let memory = ManagedMemory::create(&manager, &ranges).expect("memory");
    let Some(mut guest) = guest(&memory) else { return };
    assert_eq!(guest.run(), FILLED);
    assert_eq!(guest.run(), RIGHT);
    for address in (START..GUEST.get() as u32).step_by(STEP as usize) {
        let found: u32 = memory.read_obj(GuestAddress(u64::from(address))).expect("read");
        assert_eq!(found, word_at(address), "at {address:#x}");
    }
    let stats = manager.stats();
    assert!(stats.stores > 0 && stats.faults_stored > 0, "it ran over its budget: {stats:?}");
    assert!(stats.anon_peak_bytes <= BUDGET.get() + 16 * MIB, "{} is over budget", stats.anon_peak_bytes);

    // The balloon: whole pages read zero, to the guest and to the host, and take nothing.
    let held = bytes_held(&memory);
    let from = u64::from(START) + 100;
    memory.discard(GuestAddress(from), GUEST.get() - from).expect("memory");
    // Before the host reads: that touches the pages anew.
    let left = bytes_held(&memory);
    for address in (START..GUEST.get() as u32).step_by(STEP as usize) {
        let found: u32 = memory.read_obj(GuestAddress(u64::from(address))).expect("read");
        // The first page stays, since only a part of it was given back.
        let expected = if address < START + 4096 { word_at(address) } else { 0 };
        assert_eq!(found, expected, "at {address:#x}");
    }
    assert!(held > GUEST.get() / 2 && left <= 2 * MIB, "{held} bytes were held, and {left} are");
    assert_ne!(guest.read_back(), RIGHT, "the guest reads zeroes");
}

/// The bytes of content that are anywhere.
fn bytes_held(memory: &ManagedMemory) -> u64 {
    memory.iter().map(|region| region.region().len() as u64 - region.region().usage().empty.get()).sum()
}

/// KVM remembers addresses: a slot keeps what lies there when all else is dropped.
#[test]
fn a_slot_keeps_its_memory_and_a_clone_all_of_it() {
    let Some(manager) = manager(BUDGET) else { return };
    let memory = ManagedMemory::create(&manager, &[(GuestAddress(0), GUEST)]).expect("memory");
    let slots = memory.kvm_slots().expect("served by the kernel");
    let [slot] = &slots[..] else { panic!("{slots:?}") };
    assert_eq!((slot.guest_address(), slot.bytes()), (GuestAddress(0), GUEST.get()));
    let Some(mut guest) = guest(&memory) else { return };
    drop((memory, slots, manager));
    assert_eq!([guest.run(), guest.run()], [FILLED, RIGHT]);
}

#[test]
fn managers_that_serve_no_faults_of_the_kernel_are_refused() {
    if pagoda_linux::testing::skip::skip_without_moves("guest memory") {
        return;
    }
    let builder = || Manager::builder().budget(BUDGET).spill_to("/var/tmp", Bytes::gib(1));
    for builder in [builder().user_mode_only(true), builder().serve_in_thread(true)] {
        let manager = builder.build().expect("a manager");
        let refused = ManagedMemory::create(&manager, &[(GuestAddress(0), GUEST)]).expect_err("no faults");
        assert!(matches!(refused, GuestError::KernelNotServed), "{refused}");
        assert!(refused.to_string().contains("build the manager without user_mode_only"), "{refused}");

        let memory = ManagedMemory::create_without_kvm(&manager, &[(GuestAddress(0), GUEST)]);
        let memory = memory.expect("memory for a guest of our own");
        assert!(matches!(memory.kvm_slots(), Err(GuestError::KernelNotServed)));
        // The program's own accesses are served.
        for address in (0..GUEST.get()).step_by(4096) {
            memory.write_obj(word_at(address as u32), GuestAddress(address)).expect("written");
        }
        for address in (0..GUEST.get()).step_by(4096) {
            let found: u32 = memory.read_obj(GuestAddress(address)).expect("read");
            assert_eq!(found, word_at(address as u32), "at {address:#x}");
        }
        assert!(manager.stats().faults_stored > 0, "{:?}", manager.stats());
        // A region that comes from elsewhere is asked when KVM wants it.
        let region = manager.region(GUEST).create().expect("a region");
        let region = ManagedRegion::with_bitmap(region, GuestAddress(1 << 40), ()).expect("pages");
        let memory = ManagedMemory::from_regions(vec![Arc::new(region)]).expect("one region");
        assert!(matches!(memory.kvm_slots(), Err(GuestError::KernelNotServed)));
    }
}
