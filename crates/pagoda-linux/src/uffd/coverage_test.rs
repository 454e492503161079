use pagoda_core::page::OS_PAGE;

use super::*;
use crate::testing::foreign::Foreign;
use crate::testing::skip::skip;
use crate::uffd::{Mode, feature};

const PAGES: usize = 16;

fn open(features: u64) -> Option<Uffd> {
    let uffd = Uffd::open(Mode::UserOnly, features).ok();
    if uffd.is_none() {
        skip("coverage", "no userfaultfd with UFFDIO_MOVE");
    }
    uffd
}

fn range(memory: &Foreign, pages: std::ops::Range<usize>) -> PageRange {
    PageRange::at(memory.address(pages.start), pages.len() * OS_PAGE)
}

fn register(uffd: &Uffd, range: PageRange) {
    // SAFETY: the test's own mapping, which nothing else uses.
    unsafe { uffd.register(range).expect("register") };
}

#[test]
fn a_new_mapping_in_a_hole_of_a_registration_is_not_covered() {
    let Some(uffd) = open(feature::MOVE) else { return };
    let memory = Foreign::private(PAGES).expect("memory");
    let whole = range(&memory, 0..PAGES);
    assert_eq!(uffd.coverage(whole), Coverage::Parts, "it is not registered");
    // As an adoption does while a part of it is mapped anew.
    memory.replace(4..8, || register(&uffd, whole)).expect("replaced");
    assert_eq!(uffd.coverage(whole), Coverage::Parts);
    for (pages, is) in [(0..4, Coverage::Whole), (4..8, Coverage::Parts), (8..PAGES, Coverage::Whole)] {
        assert_eq!(uffd.coverage(range(&memory, pages.clone())), is, "{pages:?}");
    }
    register(&uffd, whole);
    // Mappings that have been asked about have memory of their own, and don't become one.
    assert_eq!(uffd.coverage(range(&memory, 4..8)), Coverage::Whole);
}

#[test]
fn present_memory_is_covered_and_stays_as_it_is() {
    let Some(uffd) = open(feature::MOVE) else { return };
    let memory = Foreign::private(PAGES).expect("memory");
    memory.write(1, 7);
    register(&uffd, range(&memory, 0..PAGES));
    assert_eq!(uffd.coverage(range(&memory, 0..PAGES)), Coverage::Whole);
    assert_eq!(memory.read(1), 7);
    let occupancy = crate::mem::occupancy::Occupancy::open().expect("pagemap");
    let held = occupancy.of(range(&memory, 0..PAGES)).expect("asked");
    assert_eq!(held, pagoda_core::page_entry::Granules::range(1, 2), "nothing was filled");
}

#[test]
fn while_an_event_is_unread_nothing_is_said() {
    let Some(uffd) = open(feature::PROCESS) else { return };
    let memory = crate::mem::region_memory::RegionMemory::map(PAGES * OS_PAGE).expect("map");
    let whole = memory.range();
    register(&uffd, whole);
    std::thread::scope(|scope| {
        let discard = scope.spawn(|| memory.discard(0, OS_PAGE));
        assert_eq!(uffd.wait(5000), crate::io::wait::Wait::Ready, "the event arrives");
        assert_eq!(uffd.coverage(whole), Coverage::Changing);
        let asks = open(feature::MOVE).expect("opened before");
        assert!(asks.is_registered_elsewhere(whole.start()), "that can be asked all the same");
        let other = Foreign::private(1).expect("memory");
        assert!(!asks.is_registered_elsewhere(other.address(0)), "registered with none");
        register(&uffd, range(&other, 0..1));
        assert!(asks.is_registered_elsewhere(other.address(0)), "it was left free");
        uffd.unregister(range(&other, 0..1)).expect("unregistered");
        uffd.read(|_| {}).expect("read");
        discard.join().expect("join").expect("discard");
    });
    assert_eq!(uffd.coverage(whole), Coverage::Whole);
    std::thread::scope(|scope| {
        // It waits until its event is read.
        scope.spawn(move || drop(memory));
        assert_eq!(uffd.wait(5000), crate::io::wait::Wait::Ready, "the unmapping's event arrives");
        uffd.read(|_| {}).expect("read");
    });
}
