//! Regions in huge frames, on real userfaultfd: their content, the frames behind it, and that no
//! owner sees another's content.

use std::sync::atomic::{AtomicBool, Ordering};

use pagoda::{BasePage, Bytes, Manager, ManagerBuilder, Region};
use pagoda_core::clear::Order;
use pagoda_core::page::{HUGE_FRAME, OS_PAGE};
use pagoda_linux::testing::area::{Area, Rights};
use pagoda_linux::testing::length::length;
use pagoda_linux::testing::random::Random;
use pagoda_linux::testing::skip::skip_without_moves;
use pagoda_linux::testing::wait::until;

use crate::regions::support::huge::{PAGES, expect, expect_zero, huge_bytes, region, write};
use crate::regions::support::settled;

fn builder(budget: Bytes) -> Option<ManagerBuilder> {
    if skip_without_moves("huge frames") {
        return None;
    }
    Some(
        Manager::builder()
            .budget(budget)
            .base_page(BasePage::M2)
            .user_mode_only(true)
            .tune(|tuning| tuning.clear_ahead(0)),
    )
}

/// Pages all of it out: pages that the last fault's handler still holds, and has not counted yet,
/// go at the next try.
fn page_out_all(manager: &Manager, region: &Region) {
    until("all of it is out", || {
        region.page_out(0, region.len()).expect("room");
        (manager.stats().resident_bytes, huge_bytes(region)) == (0, 0)
    });
}

/// Waits until so many huge faults are counted: a fault is counted after its thread was woken.
fn expect_huge_faults(manager: &Manager, faults: usize) {
    for _ in 0..600 {
        if manager.stats().faults_huge == faults as u64 {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    panic!("{faults} huge faults, and {:?}", manager.stats());
}

/// A handler lets go of its page after it woke the faulting thread: the test waits for that.
#[test]
fn a_page_that_was_just_touched_can_be_paged_out() {
    if skip_without_moves("huge frames") {
        return;
    }
    for base in BasePage::ALL {
        let builder = Manager::builder().budget(Bytes::mib(32)).base_page(base).user_mode_only(true);
        let manager = builder.build().expect("a manager");
        let mut region = manager.region(Bytes::new(2 * HUGE_FRAME as u64)).create().expect("a region");
        for turn in 1..=200u8 {
            let at = usize::from(turn) * 8191;
            region.write_at(at, &[turn]).expect("written");
            region.page_out(0, 2 * HUGE_FRAME).expect("room");
            assert_eq!(manager.stats().resident_bytes, 0, "{base}, turn {turn}");
            let mut found = [0];
            region.read_at(at, &mut found).expect("read");
            assert_eq!(found, [turn]);
        }
    }
}

#[test]
fn one_fault_brings_a_huge_page_and_swapped_out_pages_come_back() {
    let Some(builder) = builder(Bytes::mib(96)) else { return };
    let manager = builder.build().expect("a manager");
    let mut small = region(&manager, 4);
    write(&mut small, 1, std::iter::once(700));
    assert_eq!(huge_bytes(&small), HUGE_FRAME);
    expect_huge_faults(&manager, 1);
    expect_zero(&small, (512..1024).filter(|&at| at != 700));
    assert_eq!(manager.stats().faults, 1);
    drop(small);

    let frames = 96;
    let mut large = region(&manager, frames);
    write(&mut large, 2, 0..frames * PAGES);
    expect(&large, 2, 0..frames * PAGES);
    write(&mut large, 3, (0..frames * PAGES).step_by(7));
    expect(&large, 3, (0..frames * PAGES).step_by(7));
    expect(&large, 2, (0..frames * PAGES).filter(|at| at % 7 != 0));
    let stats = manager.stats();
    assert!(stats.faults_huge > 32 && stats.huge_moved_out > 16 && stats.faults_stored > 0, "{stats:?}");
    assert!(stats.anon_peak_bytes <= (96 + 16) << 20, "{} held", stats.anon_peak_bytes);
}

#[test]
fn a_part_can_be_discarded_and_paged_out() {
    let Some(builder) = builder(Bytes::mib(64)) else { return };
    let manager = builder.build().expect("a manager");
    let mut region = region(&manager, 4);
    write(&mut region, 5, 0..4 * PAGES);
    assert_eq!(huge_bytes(&region), 4 * HUGE_FRAME);
    settled(&manager);
    // From the middle of the first frame to that of the third.
    region.discard(100 * OS_PAGE, 1100 * OS_PAGE).expect("discarded");
    expect_zero(&region, 100..1200);
    expect(&region, 5, (0..100).chain(1200..4 * PAGES));
    until("every frame is out", || {
        region.page_out(0, 4 * HUGE_FRAME).expect("room");
        huge_bytes(&region) == 0
    });
    expect(&region, 5, (0..100).chain(1200..4 * PAGES));
    expect_zero(&region, 100..1200);
}

#[test]
fn a_huge_frame_comes_again_to_where_one_was_discarded() {
    let Some(builder) = builder(Bytes::mib(64)) else { return };
    let manager = builder.build().expect("a manager");
    let mut region = region(&manager, 2);
    for round in 1..=3 {
        write(&mut region, round, 0..2 * PAGES);
        assert_eq!(huge_bytes(&region), 2 * HUGE_FRAME, "round {round}");
        expect_huge_faults(&manager, 2 * round);
        region.discard(0, 2 * HUGE_FRAME).expect("discarded");
    }
    assert_eq!(manager.stats().faults, 6);
}

#[test]
fn no_owner_sees_content_of_another() {
    for (order, ahead) in Order::ALL.into_iter().flat_map(|order| [(order, 0), (order, 100)]) {
        let Some(builder) = builder(Bytes::mib(64)) else { return };
        let manager =
            builder.tune(|tuning| tuning.clear_order(order).clear_ahead(ahead)).build().expect("a manager");
        let mut owners = 0;
        // A thread that runs only on an idle processor may have got nothing ready for the first
        // eight.
        while owners < 8 || ahead > 0 && manager.stats().taken_cleared_bytes == 0 && owners < 600 {
            if owners >= 8 {
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
            let mut region = region(&manager, 5);
            // Touched first at another place each time, and read before it is written.
            let first = owners * 107 % (5 * PAGES);
            expect_zero(&region, (first..5 * PAGES).chain(0..first).step_by(3));
            expect_zero(&region, 0..5 * PAGES);
            write(&mut region, owners, 0..5 * PAGES);
            expect(&region, owners, 0..5 * PAGES);
            owners += 1;
            // A frame that a handler still has is not kept when its region closes.
            settled(&manager);
        }
        expect_huge_faults(&manager, owners * 5);
        let stats = manager.stats();
        // Four used frames are kept at most, and as many of zeroes: of the five that an owner takes
        // one was another's before.
        assert!(stats.huge_moved_out >= 4 + owners as u64 - 1, "{stats:?}");
        // A frame from the kernel is not cleared again, and each that was kept is cleared before it
        // is handed out. The thread that clears ahead may hold one more just now.
        let uncleared = 4 + u64::from(ahead > 0);
        let cleared = stats.cleared_in_fault_bytes + stats.cleared_ahead_bytes;
        let handed_out = stats.faults_huge * HUGE_FRAME as u64;
        assert!(cleared >= (stats.huge_moved_out - uncleared) * HUGE_FRAME as u64, "{stats:?}");
        // Cleared frames, by us or by the kernel, were handed out; except those that are ready now,
        // or with the thread that clears ahead.
        let not_handed_out = cleared + stats.kernel_zeroed_bytes - handed_out;
        let ready_most = if ahead > 0 { uncleared + 1 } else { 0 };
        assert!(not_handed_out <= ready_most * HUGE_FRAME as u64, "{stats:?}");
        assert_eq!(stats.cleared_twice_bytes, 0, "{stats:?}");
        assert_eq!(ahead > 0, stats.taken_cleared_bytes > 0, "{stats:?}");
    }
}

#[test]
fn owners_come_and_go_on_several_threads() {
    let Some(builder) = builder(Bytes::mib(64)) else { return };
    let manager = builder.tune(|tuning| tuning.clear_ahead(50)).build().expect("a manager");
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let manager = &manager;
            scope.spawn(move || {
                for round in 0..length(6, 12) {
                    let frames = 3 + (thread + round) % 11;
                    let mut region = region(manager, frames);
                    let step = 1 + round % 3;
                    expect_zero(&region, (thread..frames * PAGES).step_by(41));
                    write(&mut region, thread * 100 + round, (0..frames * PAGES).step_by(step));
                    if round % 4 == 1 {
                        region.page_out(HUGE_FRAME / 2, HUGE_FRAME).expect("room");
                    }
                    expect(&region, thread * 100 + round, (0..frames * PAGES).step_by(step));
                    let others = (0..frames * PAGES).filter(|at| at % step != 0);
                    expect_zero(&region, others);
                }
            });
        }
    });
    let stats = manager.stats();
    assert!(stats.faults_huge > 0 && stats.evictions > 0, "{stats:?}");
}

/// The discards of the threads post events, and until one is read the kernel refuses every move.
#[test]
fn frames_come_whole_beside_discards_of_other_threads() {
    const THREADS: usize = 4;
    const FRAMES: usize = 4;
    for in_thread in [false, true] {
        let Some(builder) = builder(Bytes::mib(256)) else { return };
        let manager = builder.serve_in_thread(in_thread).build().expect("a manager");
        let region = region(&manager, THREADS * FRAMES);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let region = &region;
                scope.spawn(move || {
                    let mut random = Random::new(17, thread as u64);
                    let mut is = [0; 8];
                    for round in 1..=100u64 {
                        let frame = (thread * FRAMES + random.below(FRAMES)) * HUGE_FRAME;
                        region.discard(frame, HUGE_FRAME).expect("discarded");
                        let touched = random.below(PAGES);
                        let word = |page: usize| round << 32 | page as u64;
                        let pages = [touched, random.below(PAGES), (touched + 1) % PAGES];
                        for page in pages {
                            let bytes = word(page).to_ne_bytes();
                            region.write_words(frame + page * OS_PAGE, &bytes).expect("written");
                        }
                        for page in pages.into_iter().chain((0..PAGES).step_by(7)) {
                            region.read_at(frame + page * OS_PAGE, &mut is).expect("read");
                            let expected = if pages.contains(&page) { word(page) } else { 0 };
                            assert_eq!(u64::from_ne_bytes(is), expected, "page {page} in round {round}");
                        }
                    }
                });
            }
        });
        let stats = manager.stats();
        println!("in thread {in_thread}: {} huge faults, {} torn", stats.faults_huge, stats.huge_torn);
        assert!(stats.faults_huge > 100, "{stats:?}");
        // A discard beside the fault may have its event unread at that moment.
        assert!(stats.huge_torn < stats.faults_huge / 8, "{stats:?}");
    }
}

#[test]
fn a_clearing_handler_yields_to_faults_that_no_handler_is_free_for() {
    let Some(builder) = builder(Bytes::mib(256)) else { return };
    let manager = builder.build().expect("a manager");
    // So few that the budget has huge frames for all of them.
    let threads = 4 * std::thread::available_parallelism().map_or(1, usize::from).min(8);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (manager, is_over) = (&manager, &is_over);
            scope.spawn(move || {
                let mut round = thread;
                while !is_over.load(Ordering::Relaxed) {
                    // Frames that another had, most of them.
                    let mut region = region(manager, 2);
                    expect_zero(&region, (round % 97..2 * PAGES).step_by(97));
                    write(&mut region, round, (0..2 * PAGES).step_by(13));
                    expect(&region, round, (0..2 * PAGES).step_by(13));
                    round += threads;
                }
            });
        }
        until("the clearing handler has yielded", || manager.stats().clears_interrupted > 20);
        is_over.store(true, Ordering::Relaxed);
    });
    settled(&manager);
    let stats = manager.stats();
    // A clear that was begun is finished, and not begun anew: no more is cleared than was handed
    // out.
    let handed_out = stats.faults_huge * HUGE_FRAME as u64;
    assert!(stats.cleared_in_fault_bytes + stats.kernel_zeroed_bytes >= handed_out, "{stats:?}");
    assert!(stats.cleared_in_fault_bytes <= handed_out, "{stats:?}");
}

#[test]
fn frames_that_left_and_came_back_are_whole_again_by_themselves() {
    let Some(builder) = builder(Bytes::mib(64)) else { return };
    let manager = builder.tune(|tuning| tuning.clear_ahead(10)).build().expect("a manager");
    let mut region = region(&manager, 2);
    write(&mut region, 9, 0..2 * PAGES);
    page_out_all(&manager, &region);
    // Idle pages stay without pressure, so that only a collapse changes anything.
    for _ in 0..600 {
        expect(&region, 9, 0..2 * PAGES);
        if manager.stats().huge_rebuilt == 2 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert_eq!((huge_bytes(&region), manager.stats().huge_rebuilt), (2 * HUGE_FRAME, 2));
    expect(&region, 9, 0..2 * PAGES);
}

/// The memory of a region, for calls by address.
fn area(region: &Region) -> Area {
    Area::of_region(region.as_ptr(), region.len() / OS_PAGE)
}

#[test]
fn frames_that_the_kernel_took_apart_leave_by_base_pages() {
    let Some(builder) = builder(Bytes::mib(64)) else { return };
    let manager = builder.build().expect("a manager");
    let region = &mut region(&manager, 4);
    let at = |frame: usize| frame * PAGES + 77;
    write(region, 21, 0..4 * PAGES);
    let memory = area(region);
    memory.discard(at(0)..at(0) + 1).expect("discarded");
    memory.protect(at(1)..at(1) + 1, Rights::Read).expect("protected");
    memory.protect(at(1)..at(1) + 1, Rights::Write).expect("as it was");
    memory.lock(at(2)..at(2) + 1, true).expect("locked");
    memory.lock(at(2)..at(2) + 1, false).expect("as it was");
    memory.unmap(at(3)..at(3) + 1).expect("unmapped");
    assert_eq!(huge_bytes(region), 0, "each is taken apart");
    page_out_all(&manager, region);
    let stats = manager.stats();
    assert_eq!(stats.huge_moved_out, 0, "{stats:?}");
    assert!(stats.stored_bytes > 0, "{stats:?}");
    expect(region, 21, (0..4 * PAGES).filter(|page| ![at(0), at(3)].contains(page)));
    expect_zero(region, at(0)..at(0) + 1);
}

#[test]
fn a_budget_full_of_frames_that_the_kernel_took_apart_goes_on() {
    let Some(builder) = builder(Bytes::mib(48)) else { return };
    let manager = builder.build().expect("a manager");
    let frames = 48;
    let region = &mut region(&manager, frames);
    let memory = area(region);
    for frame in 0..frames {
        write(region, 22, frame * PAGES..(frame + 1) * PAGES);
        // The place of the discard differs: a page at its end, in the middle of a base page, at its
        // beginning.
        let page = frame * PAGES + [PAGES - 1, 100, 0][frame % 3];
        memory.discard(page..page + 1).expect("discarded");
    }
    let is_gone = |page: &usize| page % PAGES == [PAGES - 1, 100, 0][page / PAGES % 3];
    expect(region, 22, (0..frames * PAGES).filter(|page| !is_gone(page)));
    expect_zero(region, (0..frames * PAGES).filter(is_gone));
    let stats = manager.stats();
    assert!(stats.faults_huge > 8 && stats.evictions > 0 && stats.faults_stored > 0, "{stats:?}");
    assert!(stats.anon_peak_bytes <= (48 + 16) << 20, "{} held", stats.anon_peak_bytes);
}

#[test]
fn frames_of_zeroes_stay_zero_and_counted_where_the_kernel_takes_them_apart_and_their_pages_away() {
    let Some(builder) = builder(Bytes::mib(48)) else { return };
    let manager = builder.build().expect("a manager");
    let frames = 48;
    let region = &mut region(&manager, frames);
    let memory = area(region);
    let is_written = |page: &usize| page.is_multiple_of(3 * PAGES);
    for lap in 0..2 {
        for frame in 0..frames {
            let pages = frame * PAGES..(frame + 1) * PAGES;
            expect_zero(region, pages.clone().filter(|page| !is_written(page)).step_by(100));
            write(region, 23, pages.clone().filter(is_written));
            if (frame + lap).is_multiple_of(2) {
                // Splits it in place; when it leaves, the kernel may keep pages that read as zero.
                memory.protect(pages.start + 9..pages.start + 10, Rights::Read).expect("protected");
                memory.protect(pages.start + 9..pages.start + 10, Rights::Write).expect("as it was");
            }
        }
    }
    expect(region, 23, (0..frames * PAGES).filter(is_written));
    expect_zero(region, (0..frames * PAGES).filter(|page| !is_written(page)));
    // Frames that were given away are had again by a write.
    write(region, 24, 0..frames * PAGES);
    expect(region, 24, 0..frames * PAGES);
    let stats = manager.stats();
    assert!(stats.faults_huge > 8 && stats.evictions > 0, "{stats:?}");
    assert!(stats.anon_peak_bytes <= (48 + 16) << 20, "{} held", stats.anon_peak_bytes);
    page_out_all(&manager, region);
}
