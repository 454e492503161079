//! Base frames that are made ready: no owner sees another's content, and nothing is cleared twice.

use pagoda_core::budget;
use pagoda_core::clear::Order;
use pagoda_core::page::{BasePage, HUGE_FRAME as HUGE, OS_PAGE};
use pagoda_core::page_entry::{Granules, Word};
use pagoda_core::size::Bytes;
use pagoda_linux::mem::contiguity::contiguous_bytes;
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::testing::skip::skip_without_moves;
use pagoda_linux::testing::wait::until;

use crate::frames::zones::{Place, Taker};
use crate::{Manager, ManagerBuilder, Region};

fn builder(zones: usize) -> Option<ManagerBuilder> {
    if skip_without_moves("base frames that are ready") {
        return None;
    }
    // The thread that clears ahead elsewhere is the test's own here, and each base page has a fault
    // of its own.
    let builder =
        Manager::builder().user_mode_only(true).tune(|tuning| tuning.clear_ahead(0).fault_around(false));
    let place = |builder: ManagerBuilder, (name, mib)| builder.zone(name, Bytes::mib(mib), Place::Local);
    Some(match zones {
        1 => builder.budget(Bytes::mib(64)),
        _ => [("fast", 48), ("slow", 16)].into_iter().fold(builder, place),
    })
}

fn region(manager: &Manager, bytes: usize) -> Region {
    manager.region(Bytes::new(bytes as u64)).create().expect("a region")
}

/// Touches each base page first with a word somewhere in it, and expects the rest of it to be zero.
fn expect_zeroes(region: &Region, base: usize, owner: usize) {
    let mut is = vec![1; base];
    for page in 0..region.len() / base {
        let at = (owner * 1000 + page * 72) % base / 8 * 8;
        region.write_words(page * base + at, &[0xee; 8]).expect("written");
        region.read_at(page * base, &mut is).expect("read");
        is[at..at + 8].fill(0);
        assert!(is.iter().all(|byte| *byte == 0), "page {page} of owner {owner} holds another's content");
    }
}

#[test]
fn no_owner_sees_the_content_of_another_in_base_frames() {
    const OWNERS: usize = 8;
    let of_one_zone = BasePage::ALL.into_iter().map(|base| (base, 1, None));
    let by_order = Order::ALL.into_iter().map(|order| (BasePage::K64, 2, Some(order)));
    for (base, zones, order) in of_one_zone.chain(by_order).chain([(BasePage::K64, 2, None)]) {
        let Some(mut builder) = builder(zones) else { return };
        if let Some(order) = order {
            builder = builder.tune(|tuning| tuning.clear_order(order));
        }
        let manager = builder.base_page(base).build().expect("a manager");
        let engine = manager.engine();
        let entry = engine.entry_bytes();
        for owner in 0..OWNERS {
            // Regions in huge frames have base frames where a huge one does not fit.
            let region = region(&manager, 4 << 20);
            if base == BasePage::M2 {
                region.write_words(0, &[1; 8]).expect("written");
                // A handler may have it for a moment, and it stays then.
                until("a huge frame is out", || {
                    region.page_out(0, HUGE).expect("room");
                    manager.stats().resident_bytes == 0
                });
            }
            let size = region.len().min(if base == BasePage::M2 { HUGE } else { usize::MAX });
            if base == BasePage::M2 {
                // All that is stored of it is zero but for the first base page.
                let mut is = vec![1; entry];
                for page in 1..size / entry {
                    region.write_words(page * entry, &[0xee; 8]).expect("written");
                    region.read_at(page * entry, &mut is).expect("read");
                    assert!(is[8..].iter().all(|byte| *byte == 0), "page {page} of owner {owner}");
                }
            } else {
                expect_zeroes(&region, entry, owner);
            }
            let full = vec![owner as u8 + 1; size];
            region.write_words(0, &full).expect("written");
            region.page_out(0, size).expect("room");
            let mut is = vec![0; size];
            region.read_at(0, &mut is).expect("read");
            assert!(is == full, "owner {owner}");
            region.page_out(0, size).expect("room");
            // Of the frames that are ready now all are cleared for some owners, some for others,
            // and none for the rest.
            for _ in 0..[0, 1, usize::MAX][owner % 3] {
                if !engine.clear_one_ahead() {
                    break;
                }
            }
        }
        let stats = manager.stats();
        assert!(stats.faults_zero_ready > 0 && stats.cleared_in_fault_bytes > 0, "{base}: {stats:?}");
        assert!(stats.cleared_ahead_bytes > 0, "{base}: {stats:?}");
    }
}

#[test]
fn a_fresh_frame_is_not_cleared_again_and_few_are_kept() {
    for zones in [1, 2] {
        let Some(builder) = builder(zones) else { return };
        // Whole base pages: parts of them come from the kernel.
        let manager = builder.base_page(BasePage::K64).build().expect("a manager");
        let engine = manager.engine();
        while engine.clear_one_ahead() {}
        assert_eq!(manager.stats().ready_bytes, 0, "no fault asked for one");
        let first = region(&manager, 8 << 20);
        first.write_words(0, &[1; 8]).expect("written");
        while engine.clear_one_ahead() {}
        let sizes: &[u64] = if zones == 1 { &[64] } else { &[48, 16] };
        let most: u64 = sizes.iter().map(|mib| budget::ready_base_most(Bytes::mib(*mib)).get()).sum();
        assert_eq!(manager.stats().ready_bytes, most);
        let second = region(&manager, 8 << 20);
        expect_zeroes(&second, engine.entry_bytes(), 1);
        let stats = manager.stats();
        assert_eq!(stats.faults_zero_ready * engine.entry_bytes() as u64, most);
        assert_eq!((stats.cleared_in_fault_bytes, stats.cleared_ahead_bytes), (0, 0), "{stats:?}");
        assert_eq!(stats.cleared_twice_bytes, 0, "{stats:?}");
        // Of one zone the kernel fills a region itself where no frame is ready.
        let touched = (second.len() + engine.entry_bytes()) as u64;
        let from_kernel = if zones == 1 { most } else { touched };
        assert_eq!(stats.kernel_zeroed_bytes, from_kernel, "{stats:?}");
    }
}

/// A region in base pages of 64 KiB, all of it written, and their number. With several zones each
/// first touch takes a frame of one, also for a discarded part of a page.
fn written() -> Option<(Manager, Region, usize)> {
    let manager = builder(2)?.base_page(BasePage::K64).build().expect("a manager");
    let region = region(&manager, 4 << 20);
    let pages = region.len() >> 16;
    region.write_words(0, &vec![1; region.len()]).expect("written");
    Some((manager, region, pages))
}

#[test]
fn granules_that_a_part_of_a_page_took_are_not_in_the_frame_any_more() {
    let Some((manager, region, pages)) = written() else { return };
    for page in 0..pages {
        region.discard(page << 16, 4096).expect("discarded");
        region.write_words(page << 16, &[1; 8]).expect("written");
    }
    // A handler counts the bytes after it woke the faulting thread.
    until("all of it is counted", || manager.stats().resident_bytes >= region.len() as u64);
    let stats = manager.stats();
    assert_eq!(stats.resident_bytes, region.len() as u64);
    // All frames came from the kernel, once, and the discarded ones have gone back to it. Little
    // more than is wanted lies ready.
    let discarded = (pages << 12) as u64;
    assert_eq!(stats.resident_bytes + stats.ready_bytes, stats.kernel_zeroed_bytes - discarded, "{stats:?}");
    assert!(stats.ready_bytes <= 64 << 10, "{stats:?}");
}

#[test]
fn of_a_part_of_a_frame_only_wanted_and_present_granules_are_cleared() {
    for zones in [1, 2] {
        let Some(builder) = builder(zones) else { return };
        let manager = builder.base_page(BasePage::K64).build().expect("a manager");
        let engine = manager.engine();
        // These OS pages of a frame are left; the others are missing.
        let left = Granules::range(2, 6).or(Granules::range(9, 10));
        let mut slot = engine.zones.take_empty(&engine.space, 0).expect("an empty slot");
        for (from, to) in left.runs() {
            engine.space.bytes_mut(&mut slot)[from as usize * OS_PAGE..to as usize * OS_PAGE].fill(0xee);
        }
        let index = slot.index();
        engine.ledger.took(5 * OS_PAGE as i64);
        engine.zones.put_pieces(&engine.space, slot, left);
        let wanted = Granules::range(4, 8);
        let (slot, there) =
            engine.zeroed_frame(Word::EMPTY, wanted, 7, Taker::ONCE).expect("a part of a frame is ready");
        assert_eq!((slot.index(), there), (index, left.or(wanted)));
        assert_eq!(engine.space.pages_of(&slot), there, "no more of it is taken from the kernel");
        let pages: Vec<bool> =
            engine.space.bytes(&slot).chunks(OS_PAGE).map(|page| page == [0; OS_PAGE]).collect();
        assert!(pages[4..8].iter().all(|is_zero| *is_zero) && !pages[2] && !pages[3] && !pages[9]);
        let page = OS_PAGE as u64;
        let stats = manager.stats();
        assert_eq!(
            (stats.cleared_in_fault_bytes, stats.kernel_zeroed_bytes),
            (2 * page, 2 * page),
            "{stats:?}"
        );
        assert_eq!(stats.cleared_twice_bytes, 0);
        engine.zones.put_pieces(&engine.space, slot, there);
    }
}

#[test]
fn granules_that_the_kernel_cleared_for_a_part_of_a_page_are_not_cleared_again() {
    let Some((manager, region, pages)) = written() else { return };
    for page in 0..pages {
        // Two parts, one after the other.
        for at in [3, 9] {
            let at = (page << 16) + at * OS_PAGE;
            region.discard(at, OS_PAGE).expect("discarded");
            region.write_words(at, &[1; 8]).expect("written");
        }
    }
    until("all of it is counted", || manager.stats().resident_bytes >= region.len() as u64);
    let stats = manager.stats();
    assert_eq!(stats.kernel_zeroed_bytes, (region.len() + 2 * pages * OS_PAGE) as u64, "{stats:?}");
    assert_eq!((stats.cleared_in_fault_bytes, stats.cleared_twice_bytes), (0, 0), "{stats:?}");
    assert_eq!(stats.ready_bytes, 0, "no more is taken than is wanted: {stats:?}");
}

/// Whether the kernel gives a region huge pages: only then base frames can be contiguous.
pub(crate) fn are_there_huge_pages() -> bool {
    let manager = Manager::builder().user_mode_only(true).budget(Bytes::mib(256)).base_page(BasePage::M2);
    let manager = manager.build().expect("a manager");
    let region = region(&manager, HUGE);
    region.write_words(0, &[1; 8]).expect("written");
    let stats = manager.stats();
    stats.faults_huge > 0 && stats.huge_torn == 0
}

#[test]
fn fresh_base_frames_are_contiguous_zero_and_got_ready_a_huge_page_at_a_time() {
    const FRAMES: usize = 33;
    let Some(builder) = builder(1) else { return };
    let manager = builder.budget(Bytes::mib(512)).base_page(BasePage::K64).build().expect("a manager");
    let engine = manager.engine();
    let base = engine.entry_bytes();
    let first = region(&manager, base);
    first.write_words(0, &[1; 8]).expect("written");
    while engine.clear_one_ahead() {}
    let most = budget::ready_base_most(Bytes::mib(512)).get();
    let ready = || (manager.stats().ready_bytes, manager.stats().contiguous_ready_bytes);
    assert_eq!((ready(), manager.stats().kernel_zeroed_bytes), ((most, most), most));
    assert!(!engine.clear_one_ahead(), "nothing is missing");
    let memory = region(&manager, FRAMES * base);
    (0..FRAMES).for_each(|page| memory.write_words(page * base + 8, &[0xee; 8]).expect("written"));
    // A handler counts the fault after it woke the faulting thread.
    until("all of them are there", || manager.stats().faults_zero_ready == FRAMES as u64);
    let (taken, came) = ((FRAMES * base) as u64, 2 * HUGE as u64);
    while engine.clear_one_ahead() {}
    assert_eq!(ready(), (most - taken + came, most + came), "a huge page comes whole");
    let mut is = vec![1; FRAMES * base];
    memory.read_at(0, &mut is).expect("read");
    for (page, is) in is.chunks_mut(base).enumerate() {
        is[8..16].fill(0);
        assert!(is.iter().all(|byte| *byte == 0), "page {page}");
    }
    let range = PageRange::at(memory.as_ptr().addr(), memory.len());
    let frames = contiguous_bytes(range, base).expect("pagemap");
    if let Some((present, contiguous)) = frames.filter(|_| are_there_huge_pages()) {
        let all = memory.len() as u64;
        assert_eq!((present, contiguous), (all, all));
    }
    // They are frames like any other: they are evicted, and stored ones come back right.
    let full: Vec<u8> = (0..memory.len()).map(|at| (at / 4096 + at) as u8).collect();
    memory.write_words(0, &full).expect("written");
    until("all of it is out", || {
        memory.page_out(0, full.len()).expect("room");
        manager.stats().resident_bytes == base as u64
    });
    memory.read_at(0, &mut is).expect("read");
    assert!(is == full);
}
