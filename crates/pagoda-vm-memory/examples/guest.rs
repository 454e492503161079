//! What a guest of KVM takes in a quarter of its memory, beside the same guest in plain memory.
//!
//! `cargo run --release -p pagoda-vm-memory --example guest` prints three rounds: the seconds of
//! filling 256 MiB and of reading all of it, twice. The guest uses one word a page, so that the
//! faults are most of its work.

#[path = "../tests/support/mod.rs"]
mod support;

use std::time::Instant;

use kvm_bindings::kvm_userspace_memory_region;
use pagoda::Bytes;
use pagoda_linux::testing::guest_code::{FILLED, RIGHT};
use pagoda_vm_memory::ManagedMemory;
use vm_memory::{GuestAddress, GuestMemoryBackend as _, GuestMemoryMmap};

use support::guest::Guest;

const BUDGET: Bytes = Bytes::mib(64);
const GUEST: Bytes = Bytes::mib(256);
const STEP: u32 = 4100;

/// The seconds of filling the guest's memory, and of reading it twice.
fn seconds(mut guest: Guest) -> [f64; 3] {
    let timed = |run: &mut dyn FnMut() -> u8, report| {
        let begin = Instant::now();
        assert_eq!(run(), report);
        begin.elapsed().as_secs_f64()
    };
    let filled = timed(&mut || guest.run(), FILLED);
    let read = timed(&mut || guest.run(), RIGHT);
    [filled, read, timed(&mut || guest.read_back(), RIGHT)]
}

fn managed() -> Option<[f64; 3]> {
    let manager = support::manager(BUDGET)?;
    let memory = ManagedMemory::create(&manager, &[(GuestAddress(0), GUEST)]).expect("memory");
    let seconds = seconds(Guest::start(&memory, GUEST, STEP).expect("a guest of KVM"));
    assert!(manager.stats().faults_stored > 0, "it was over its budget");
    Some(seconds)
}

fn plain() -> [f64; 3] {
    let ranges = [(GuestAddress(0), GUEST.as_usize())];
    let memory = GuestMemoryMmap::<()>::from_ranges(&ranges).expect("memory");
    let address = memory.get_host_address(GuestAddress(0)).expect("mapped");
    let region = kvm_userspace_memory_region {
        memory_size: GUEST.get(),
        userspace_addr: address.addr() as u64,
        ..kvm_userspace_memory_region::default()
    };
    seconds(Guest::of(&memory, (GUEST, STEP), &[region], Vec::new()).expect("a guest of KVM"))
}

fn main() {
    println!("a guest of {GUEST} in {BUDGET}, seconds and ratio to plain memory:");
    for round in 1..=3 {
        let Some(ours) = managed() else { return };
        let theirs = plain();
        for (at, what) in ["filled", "read", "read again"].into_iter().enumerate() {
            let ratio = ours[at] / theirs[at];
            println!("round {round}, {what}: {:.2}, plain {:.2}: {ratio:.2}", ours[at], theirs[at]);
        }
    }
}
