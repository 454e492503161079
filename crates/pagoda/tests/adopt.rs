//! Which memory a manager adopts, and which it refuses without a trace.

use std::ptr::null_mut;

use pagoda::region::{Region, RegionError};
use pagoda::{Bytes, ForeignMemory, Manager};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

const PAGE: usize = 4096;
const PAGES: usize = 1024;

/// Memory of a test's own, for as long as the process lives.
struct Memory {
    start: usize,
}

impl Memory {
    fn map(flags: MapFlags) -> Self {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing.
        let start = unsafe { mmap_anonymous(null_mut(), PAGES * PAGE, protection, flags) };
        Self { start: start.expect("room").expose_provenance() }
    }
    fn at(&self, page: usize) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.start + page * PAGE)
    }
    fn write(&self, page: usize, value: u8) {
        // SAFETY: the page lies in this mapping, which no reference is to.
        unsafe { self.at(page).write_volatile(value) };
    }
    fn read(&self, page: usize) -> u8 {
        // SAFETY: as for `write`.
        unsafe { self.at(page).read_volatile() }
    }
    fn adopt(&self, manager: &Manager, first: usize, pages: usize) -> Result<Region, RegionError> {
        // SAFETY: where this is more than a promise, the manager refuses; else it is one private anonymous mapping that
        // only this test uses, and the test does not fork.
        let memory = unsafe { ForeignMemory::new(self.at(first), pages * PAGE) };
        manager.adopt(memory.expect("whole pages"))
    }
}

fn manager() -> Option<Manager> {
    if !pagoda::userfaultfd_allows_managers() {
        assert!(std::env::var_os("PAGODA_NO_SKIPS").is_none(), "skipping is not allowed here");
        eprintln!("SKIPPED adoption: this machine offers no userfaultfd with UFFDIO_MOVE");
        return None;
    }
    Some(Manager::builder().budget(Bytes::mib(64)).user_mode_only(true).build().expect("manager"))
}

#[test]
fn a_range_with_a_hole_is_refused_and_its_parts_are_adopted() {
    let Some(manager) = manager() else { return };
    let memory = Memory::map(MapFlags::PRIVATE);
    for page in 0..PAGES {
        memory.write(page, page as u8);
    }
    // SAFETY: a part of the mapping above, which is not used any more.
    unsafe { munmap(memory.at(100).cast(), 28 * PAGE).expect("unmapped") };
    let hole = |page: usize, from: usize| {
        let offset = Bytes::new(((page - from) * PAGE) as u64);
        Some(RegionError::Hole { at: memory.at(page).addr(), offset })
    };
    assert_eq!(memory.adopt(&manager, 0, PAGES).err(), hole(100, 0), "in the middle");
    assert_eq!(memory.adopt(&manager, 0, 128).err(), hole(100, 0), "at the end");
    assert_eq!(memory.adopt(&manager, 100, 100).err(), hole(100, 100), "at the start");
    assert_eq!(memory.adopt(&manager, 110, 10).err(), hole(110, 110), "all of it");
    // What was refused is registered nowhere: the parts can be had, by two managers too.
    let other = self::manager().expect("as above");
    let parts =
        [memory.adopt(&manager, 0, 100).expect("a part"), memory.adopt(&other, 128, 400).expect("a part")];
    for page in (0..100).chain(128..PAGES) {
        assert_eq!(memory.read(page), page as u8);
    }
    drop(parts);
}

#[test]
fn several_mappings_without_a_hole_are_adopted() {
    let Some(manager) = manager() else { return };
    let memory = Memory::map(MapFlags::PRIVATE);
    memory.write(600, 7);
    // SAFETY: nobody uses the mapping meanwhile; afterwards it is as before, in three pieces or one.
    unsafe {
        mprotect(memory.at(512).cast(), 64 * PAGE, MprotectFlags::READ).expect("protected");
        mprotect(memory.at(512).cast(), 64 * PAGE, MprotectFlags::READ | MprotectFlags::WRITE)
            .expect("protected");
    }
    let region = memory.adopt(&manager, 0, PAGES).expect("adopted");
    assert_eq!((memory.read(600), memory.read(0)), (7, 0));
    region.close();
    assert_eq!((memory.read(600), memory.read(0)), (7, 0));
}

#[test]
fn memory_of_another_kind_is_refused() {
    let Some(manager) = manager() else { return };
    let shared = Memory::map(MapFlags::SHARED);
    let kind = |memory: &Memory, page: usize| {
        Some(RegionError::Kind { at: memory.at(page).addr(), offset: Bytes::new((page * PAGE) as u64) })
    };
    assert_eq!(shared.adopt(&manager, 0, PAGES).err(), kind(&shared, 0));
    for protection in [MprotectFlags::READ, MprotectFlags::empty()] {
        let memory = Memory::map(MapFlags::PRIVATE);
        // SAFETY: nobody uses that part of the mapping any more.
        unsafe { mprotect(memory.at(512).cast(), PAGE, protection).expect("protected") };
        let refused = memory.adopt(&manager, 0, PAGES).err();
        assert_eq!(refused, kind(&memory, 512));
        let said = refused.expect("an error").to_string();
        assert!(
            said.contains("2 MiB into") && said.contains("private anonymous") && !said.contains('\n'),
            "{said}"
        );
    }
}

#[test]
fn memory_that_is_managed_already_is_refused_and_stays_managed() {
    let Some(manager) = manager() else { return };
    let memory = Memory::map(MapFlags::PRIVATE);
    for page in 0..PAGES {
        memory.write(page, page as u8);
    }
    let region = memory.adopt(&manager, 16, PAGES - 32).expect("adopted");
    region.page_out(0, region.len()).expect("room in the store");
    for (first, pages) in [(16, PAGES - 32), (16, 16), (0, PAGES), (0, 17), (PAGES - 17, 17), (512, 1)] {
        let refused = memory.adopt(&manager, first, pages).err();
        assert!(matches!(refused, Some(RegionError::Register { .. })), "{first}: {refused:?}");
    }
    for page in 0..PAGES {
        assert_eq!(memory.read(page), page as u8, "page {page}");
    }
    region.close();
    let again = memory.adopt(&manager, 0, PAGES).expect("adopted");
    again.close();
    for page in 0..PAGES {
        assert_eq!(memory.read(page), page as u8, "page {page}");
    }
}
