//! Guest memory by the traits of `vm-memory`: ranges, layouts, discards, bitmaps, files, and what
//! is refused.

mod support;

use std::io::{Seek, Write};
use std::sync::Arc;

use pagoda::{Bytes, Manager};
use pagoda_linux::testing::process::{fork, wait};
use pagoda_linux::testing::skip::skip_without_moves;
use pagoda_vm_memory::{DiscardError, GuestError, ManagedMemory, ManagedRegion};
use vm_memory::bitmap::{AtomicBitmap, Bitmap as _};
use vm_memory::{
    Bytes as _, GuestAddress, GuestMemoryBackend as _, GuestMemoryError, GuestMemoryRegion as _,
};

use support::manager;

const PAGE: u64 = 4096;

/// A manager in user mode: nothing here needs the kernel's faults.
fn plain_manager() -> Option<Manager> {
    if skip_without_moves("guest memory") {
        return None;
    }
    let builder = Manager::builder().budget(Bytes::mib(32)).user_mode_only(true);
    Some(builder.build().expect("a manager"))
}

fn memory(manager: &Manager, ranges: &[(u64, u64)]) -> Result<ManagedMemory, GuestError> {
    let ranges = ranges.iter().map(|&(start, bytes)| (GuestAddress(start), Bytes::new(bytes)));
    ManagedMemory::create_without_kvm(manager, &ranges.collect::<Vec<_>>())
}

#[test]
fn ranges_are_as_long_as_they_were_asked_for_and_no_access_reaches_beyond() {
    let Some(manager) = plain_manager() else { return };
    // The region of the first one is a base page of 64 KiB.
    let memory = memory(&manager, &[(0, 3 * PAGE), (3 * PAGE, PAGE), (1 << 32, 16 * PAGE)]).expect("memory");
    assert_eq!((memory.num_regions(), memory.last_addr().0), (3, (1 << 32) + 16 * PAGE - 1));
    let words: Vec<u8> = (0..=255).collect();
    memory.write_slice(&words, GuestAddress(3 * PAGE - 100)).expect("across two regions");
    let mut found = vec![0; 256];
    memory.read_slice(&mut found, GuestAddress(3 * PAGE - 100)).expect("read");
    assert_eq!(found, words);
    assert!(memory.write_slice(&words, GuestAddress(4 * PAGE - 100)).is_err(), "a hole");
    let region = memory.find_region(GuestAddress(0)).expect("memory");
    assert!(region.get_slice(vm_memory::MemoryRegionAddress(3 * PAGE - 1), 2).is_err());
    assert!(region.get_slice(vm_memory::MemoryRegionAddress(u64::MAX), 2).is_err());
    assert!(memory.get_host_address(GuestAddress(4 * PAGE)).is_err());
}

#[test]
fn layouts_that_are_none_are_refused_in_words() {
    let Some(manager) = plain_manager() else { return };
    let refused = |ranges: &[(u64, u64)]| memory(&manager, ranges).expect_err("refused").to_string();
    let pages: [(u64, u64); 4] = [(0, 0), (0, 100), (512, PAGE), (u64::MAX - PAGE + 1, 2 * PAGE)];
    for (start, bytes) in pages {
        assert!(refused(&[(start, bytes)]).contains("whole pages of 4096 bytes"), "{start:#x}, {bytes}");
    }
    for ranges in [&[(0, 2 * PAGE), (PAGE, PAGE)][..], &[(PAGE, PAGE), (0, PAGE)], &[]] {
        assert!(refused(ranges).contains("sorted and without overlaps"), "{ranges:?}");
    }
}

#[test]
fn a_discard_takes_whole_pages_of_several_regions_or_nothing() {
    let Some(manager) = plain_manager() else { return };
    let memory = memory(&manager, &[(0, 4 * PAGE), (4 * PAGE, 4 * PAGE)]).expect("memory");
    let fill = || memory.write_slice(&vec![7; 8 * PAGE as usize], GuestAddress(0)).expect("written");
    let zeroes = || {
        let mut found = vec![0; 8 * PAGE as usize];
        memory.read_slice(&mut found, GuestAddress(0)).expect("read");
        let pages = found.chunks(PAGE as usize).map(|page| page.iter().all(|&byte| byte == 0));
        pages.map(u8::from).collect::<Vec<_>>()
    };
    fill();
    memory.discard(GuestAddress(PAGE + 1), 5 * PAGE).expect("memory");
    assert_eq!(zeroes(), [0, 0, 1, 1, 1, 1, 0, 0]);
    fill();
    memory.discard(GuestAddress(100), 8).expect("less than a page");
    memory.discard(GuestAddress(1 << 40), 0).expect("nothing");
    for (start, bytes) in [(6 * PAGE, 3 * PAGE), (8 * PAGE, 1), (0, u64::MAX), (u64::MAX, 2)] {
        let refused = memory.discard(GuestAddress(start), bytes).expect_err("no memory");
        assert!(matches!(refused, DiscardError::NoMemory { .. }), "{refused}");
    }
    assert_eq!(zeroes(), [0; 8]);
}

#[test]
fn regions_come_and_go_and_a_bitmap_has_the_pages_that_the_host_wrote() {
    let Some(manager) = plain_manager() else { return };
    let region = |start: u64| {
        let region = manager.region(Bytes::kib(64)).create().expect("a region");
        let bitmap = AtomicBitmap::new(64 << 10, (PAGE as usize).try_into().expect("not 0"));
        Arc::new(ManagedRegion::with_bitmap(region, GuestAddress(start), bitmap).expect("pages"))
    };
    let memory = ManagedMemory::from_regions(vec![region(0)]).expect("one region");
    let more = memory.with_region(region(1 << 20)).expect("hotplug");
    more.write_obj(5u8, GuestAddress((1 << 20) + 3 * PAGE)).expect("written");
    let (less, removed) = more.without_region(GuestAddress(1 << 20), 64 << 10).expect("unplugged");
    drop(more);
    assert_eq!((memory.num_regions(), less.num_regions()), (1, 1));
    let dirty: Vec<_> = (0..16).filter(|page| removed.bitmap().dirty_at(page * PAGE as usize)).collect();
    assert_eq!(dirty, [3]);
    assert!(less.write_obj(5u8, GuestAddress(1 << 20)).is_err());
}

/// The device of a disk reads a file into the guest's memory by a system call.
#[test]
fn a_system_call_fills_guest_memory_that_is_swapped_out() {
    let Some(manager) = manager(Bytes::mib(32)) else { return };
    let start = GuestAddress(0);
    let memory = ManagedMemory::create(&manager, &[(start, Bytes::mib(1))]).expect("memory");
    memory.write_slice(&vec![9; 1 << 20], start).expect("written");
    let region = memory.find_region(start).expect("memory").region();
    region.page_out(0, 1 << 20).expect("room in the store");
    assert_eq!(region.usage().resident, Bytes::ZERO);
    let content: Vec<u8> = (0..64u32 << 10).map(|at| (at * 7 / 3) as u8).collect();
    let mut file = std::fs::File::options();
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("disk-{}", std::process::id()));
    let mut file = file.read(true).write(true).create(true).truncate(true).open(&path).expect("a file");
    std::fs::remove_file(&path).expect("removed");
    file.write_all(&content).and_then(|()| file.rewind()).expect("written");
    memory.read_exact_volatile_from(GuestAddress(100), &mut file, content.len()).expect("no EFAULT");
    let mut found = vec![0; content.len() + 200];
    memory.read_slice(&mut found, start).expect("read");
    assert_eq!(found[..100], [9; 100]);
    assert_eq!(found[100..][..content.len()], content);
    assert_eq!(found[100 + content.len()..], [9; 100]);
}

/// Other memory may be at its addresses there.
#[test]
fn a_forked_child_has_none_of_it() {
    let Some(manager) = plain_manager() else { return };
    let memory = memory(&manager, &[(0, 4 * PAGE)]).expect("memory");
    let child = fork(|| {
        let refused = memory.read_obj::<u8>(GuestAddress(0));
        let is_refused = matches!(refused, Err(GuestMemoryError::IOError(_)))
            && memory.get_host_address(GuestAddress(0)).is_err()
            && matches!(memory.discard(GuestAddress(0), PAGE), Err(DiscardError::Refused { .. }))
            && matches!(memory.kvm_slots(), Err(GuestError::OtherProcess(_)));
        i32::from(!is_refused)
    });
    let status = wait(child.expect("forked"));
    assert_eq!(status.expect("ended").exit_status(), Some(0));
}
