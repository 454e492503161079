//! Frames that were broken become whole again, and lose nothing however much is written meanwhile.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use pagoda_core::page::{BasePage, OS_PAGE};
use pagoda_core::size::Bytes;
use pagoda_linux::procfs::pagemap::PagemapScanner;
use pagoda_linux::testing::random::Random;
use pagoda_linux::testing::skip::skip_without_moves;
use pagoda_linux::testing::wait::{EndsWith, until};

use super::*;
use crate::store::page_of;
use crate::{Manager, Region};

const PAGES: usize = HUGE_FRAME / OS_PAGE;
const FRAMES: usize = 4;
const ENTRY: usize = 64 << 10;
/// Looks until something must have been joined: the kernel may have no huge page for a while.
const LOOKS_MOST: usize = 2000;

fn manager() -> Option<Manager> {
    if skip_without_moves("rebuilding huge frames") {
        return None;
    }
    let builder = Manager::builder().budget(Bytes::mib(96)).base_page(BasePage::M2).user_mode_only(true);
    // The thread that does this elsewhere is the test's own here.
    Some(builder.tune(|tuning| tuning.clear_ahead(0)).build().expect("a manager"))
}

fn region(manager: &Manager) -> Region {
    manager.region(Bytes::new((FRAMES * HUGE_FRAME) as u64)).create().expect("a region")
}

fn huge_bytes(region: &Region) -> usize {
    let start = region.as_ptr().addr();
    let mut scanner = PagemapScanner::new().expect("pagemap");
    scanner.huge_bytes(start, start + region.len()).expect("PAGEMAP_SCAN")
}

fn content(page: usize) -> Vec<u8> {
    page_of(OS_PAGE, 43, page as u64)
}

fn write(region: &Region, pages: std::ops::Range<usize>) {
    pages.for_each(|page| region.write_words(page * OS_PAGE, &content(page)).expect("written"));
}

fn expect(region: &Region, pages: std::ops::Range<usize>) {
    let mut is = [0; OS_PAGE];
    for page in pages {
        region.read_at(page * OS_PAGE, &mut is).expect("read");
        assert!(is[..] == content(page), "page {page}");
    }
}

/// Pages out the whole region. A handler may hold the last frame for a moment after it woke the
/// writer.
fn page_out(manager: &Manager, region: &Region) {
    until("every fault is over", || manager.stats().faults_in_service == 0);
    region.page_out(0, FRAMES * HUGE_FRAME).expect("room");
}

/// A manager of the default base page, a region that was written upwards, and the number of its
/// places that came as huge frames.
fn streamed(places: usize) -> (Manager, Region, usize) {
    let builder = Manager::builder().budget(Bytes::mib(160)).user_mode_only(true);
    let manager = builder.tune(|tuning| tuning.clear_ahead(0)).build().expect("a manager");
    let region = manager.region(Bytes::new((places * HUGE_FRAME) as u64)).create().expect("a region");
    write(&region, 0..places * PAGES);
    let came = huge_bytes(&region) / HUGE_FRAME;
    assert!(came >= places / 2, "{came} of {places} came whole: {:?}", manager.stats());
    (manager, region, came)
}

/// Looks until `count` more frames were joined.
fn rebuild(manager: &Manager, count: u64) {
    let wanted = manager.stats().huge_rebuilt + count;
    for _ in 0..LOOKS_MOST {
        manager.engine().rebuild_one();
        if manager.stats().huge_rebuilt == wanted {
            return;
        }
        thread::yield_now();
    }
    panic!("not joined: {:?}", manager.stats());
}

#[test]
fn split_frames_are_collapsed_once_they_are_back_and_leave_whole_again() {
    let Some(manager) = manager() else { return };
    let region = region(&manager);
    write(&region, 0..FRAMES * PAGES);
    for turn in 1..=2 {
        assert_eq!(huge_bytes(&region), FRAMES * HUGE_FRAME, "turn {turn}");
        page_out(&manager, &region);
        let stats = manager.stats();
        assert_eq!((stats.huge_broken, stats.huge_moved_out), (4 * turn, 4 * turn));
        assert!(stats.huge_break_ns > 0);
        assert_eq!(manager.engine().rebuild_one(), 0, "nothing is there");
        // All of three of them, and the last but for a base page.
        expect(&region, 0..FRAMES * PAGES - 16);
        rebuild(&manager, 3);
        for _ in 0..2 * pagoda_core::collapse::LOOKS_LEAST {
            assert_eq!(manager.engine().rebuild_one(), 0, "a part is missing");
        }
        assert_eq!(huge_bytes(&region), (FRAMES - 1) * HUGE_FRAME);
        expect(&region, 0..FRAMES * PAGES);
        rebuild(&manager, 1);
        expect(&region, 0..FRAMES * PAGES);
        let stats = manager.stats();
        assert_eq!(stats.huge_rebuilt_bytes, stats.huge_rebuilt * HUGE_FRAME as u64);
        assert!(stats.huge_rebuild_ns > 0);
    }
    // A place that was discarded or is empty is not looked at forever.
    page_out(&manager, &region);
    region.discard(0, FRAMES * HUGE_FRAME).expect("discarded");
    until("no broken frame is known any more", || {
        assert_eq!(manager.engine().rebuild_one(), 0);
        manager.engine().huge.broken() == 0
    });
}

#[test]
fn frames_that_came_ahead_of_a_stream_are_joined_too_and_the_kernel_joins_nothing_else_there() {
    const PLACES: usize = 24;
    if skip_without_moves("rebuilding huge frames") {
        return;
    }
    let (manager, region, came) = streamed(PLACES);
    for turn in 1..=2 {
        until("all of it is out", || {
            region.page_out(0, region.len()).expect("room");
            manager.stats().resident_bytes == 0
        });
        expect(&region, 0..PLACES * PAGES);
        assert_eq!(huge_bytes(&region), 0);
        until("every fault is over", || manager.stats().faults_in_service == 0);
        rebuild(&manager, came as u64);
        assert_eq!(huge_bytes(&region), came * HUGE_FRAME, "turn {turn}");
        expect(&region, 0..PLACES * PAGES);
    }
    let engine = manager.engine();
    let table = engine.gate_shared();
    let span = table.find(region.as_ptr().addr()).expect("managed");
    assert!(!span.may_be_joined(), "pages are kept small again");
    drop(table);
    assert!(is_kept_small(&region), "all of its mappings are");
    // A part of one leaves, and a part of another is discarded.
    region.page_out(3 * ENTRY, region.len() - 6 * ENTRY).expect("room");
    expect(&region, 0..PLACES * PAGES);
}

#[test]
fn huge_pages_that_the_kernel_collapsed_unseen_leave_whole() {
    if skip_without_moves("huge pages that nobody tells of") {
        return;
    }
    let builder = Manager::builder().budget(Bytes::mib(96)).user_mode_only(true);
    let manager = builder.tune(|tuning| tuning.clear_ahead(0)).build().expect("a manager");
    let region = region(&manager);
    write(&region, 0..FRAMES * PAGES);
    until("all of it is out", || {
        region.page_out(0, region.len()).expect("room");
        manager.stats().resident_bytes == 0
    });
    expect(&region, 0..FRAMES * PAGES);
    until("every fault is over", || manager.stats().faults_in_service == 0);
    let (engine, address) = (manager.engine(), region.as_ptr().addr());
    let table = engine.gate_shared();
    let span = table.find(address).expect("managed");
    assert!(!span.set_may_be_joined(true));
    let block = Block::around(&table, span, address + HUGE_FRAME).expect("a place of a frame");
    // As by a thread of the kernel's: no entry tells.
    until("the kernel has a huge page", || engine.space.join_small(block.range).0.is_ok());
    drop(table);
    assert_eq!(huge_bytes(&region), HUGE_FRAME);
    let moved = manager.stats().huge_moved_out;
    region.page_out(HUGE_FRAME + 3 * ENTRY, 2 * ENTRY).expect("room");
    assert_eq!((huge_bytes(&region), manager.stats().huge_moved_out), (0, moved + 1), "it went whole");
    expect(&region, 0..FRAMES * PAGES);
}

/// Whether the kernel may not collapse OS pages of a region: each of its mappings has `nh` among
/// its flags.
fn is_kept_small(region: &Region) -> bool {
    let (start, end) = (region.as_ptr().addr(), region.as_ptr().addr() + region.len());
    let maps = std::fs::read_to_string("/proc/self/smaps").expect("smaps");
    let mut is_its = false;
    let mut flags = Vec::new();
    for line in maps.lines() {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        if let Some((from, to)) = range
            && let (Ok(from), Ok(to)) = (usize::from_str_radix(from, 16), usize::from_str_radix(to, 16))
        {
            is_its = from < end && to > start;
        } else if let Some(of) = line.strip_prefix("VmFlags:")
            && is_its
        {
            flags.push(of.split_whitespace().any(|flag| flag == "nh"));
        }
    }
    !flags.is_empty() && flags.into_iter().all(|is_small| is_small)
}

#[test]
fn a_place_with_zero_pages_is_not_collapsed_and_seldom_looked_at() {
    let Some(manager) = manager() else { return };
    let region = region(&manager);
    write(&region, 1..PAGES);
    write(&region, PAGES..FRAMES * PAGES);
    region.page_out(0, HUGE_FRAME).expect("room");
    // The kernel does not collapse zero pages. A read brings one for the first base page, and the
    // rest keeps its content.
    region.discard(0, 16 * OS_PAGE).expect("discarded");
    let mut zeroes = [1; 16 * OS_PAGE];
    region.read_at(0, &mut zeroes).expect("read");
    assert!(zeroes.iter().all(|byte| *byte == 0));
    expect(&region, 16..PAGES);
    // Until the handler of the last fault has given the entry back.
    until("a frame that the kernel does not join", || {
        manager.engine().rebuild_one();
        manager.stats().huge_rebuilds_refused > 0
    });
    // After 4, 6 and 10 looks more it is tried again.
    for _ in 0..20 {
        manager.engine().rebuild_one();
    }
    let stats = manager.stats();
    assert_eq!((stats.huge_rebuilt, stats.huge_rebuilds_refused), (0, 4), "{stats:?}");
    write(&region, 0..16);
    rebuild(&manager, 1);
    expect(&region, 0..FRAMES * PAGES);
}

#[test]
fn a_frame_that_the_kernel_takes_apart_as_it_comes_is_counted_and_joined_once_it_was_written() {
    let Some(manager) = manager() else { return };
    let region = region(&manager);
    write(&region, 0..PAGES);
    assert_eq!((huge_bytes(&region), manager.stats().huge_torn), (HUGE_FRAME, 0));
    until("the frame is broken", || {
        region.page_out(0, HUGE_FRAME).expect("room");
        manager.stats().huge_broken == 1
    });
    expect(&region, 0..PAGES);
    // All zero, it takes no store once it is evicted. The kernel keeps its page table, because the
    // content was moved and not discarded.
    region.write_words(0, &[0; HUGE_FRAME]).expect("written");
    until("all of it is out, and no broken frame is known any more", || {
        region.page_out(0, HUGE_FRAME).expect("room");
        assert_eq!(manager.engine().rebuild_one(), 0);
        (manager.stats().resident_bytes, manager.engine().huge.broken()) == (0, 0)
    });
    write(&region, 0..1);
    until("a huge frame came in OS pages", || manager.stats().huge_torn == 1);
    assert_eq!(huge_bytes(&region), 0);
    write(&region, 1..PAGES);
    rebuild(&manager, 1);
    assert_eq!(huge_bytes(&region), HUGE_FRAME);
    expect(&region, 0..PAGES);
}

/// A page that no writer has: it may be discarded beside them.
fn is_left_alone(page: usize) -> bool {
    page % PAGES == PAGES - 1
}

/// Runs `something` again and again beside writers. Each writer has every other page and writes its
/// first word. All the while they check that the page holds the last write, or `first`.
fn beside_writers(region: &Region, first: fn(usize) -> Vec<u8>, mut something: impl FnMut()) {
    const WRITERS: usize = 2;
    let (pages, stop) = (region.len() / OS_PAGE, AtomicBool::new(false));
    thread::scope(|scope| {
        let ends = EndsWith(&stop);
        let writer = |id: usize| {
            let stop = &stop;
            move || {
                let mut random = Random::new(11, id as u64);
                let mut shadow = vec![None; pages];
                let mut is = [0; 8];
                let check = |page: usize, word: Option<u64>, is: &mut [u8; 8]| {
                    region.read_at(page * OS_PAGE, is).expect("read");
                    let expected =
                        word.map_or_else(|| first(page)[..8].to_vec(), |word| word.to_ne_bytes().to_vec());
                    assert!(is[..] == expected, "page {page} of writer {id}");
                };
                while !stop.load(Ordering::Relaxed) {
                    let page = random.below(pages / WRITERS) * WRITERS + id;
                    if is_left_alone(page) {
                        continue;
                    }
                    check(page, shadow[page], &mut is);
                    let word = random.stamp();
                    region.write_words(page * OS_PAGE, &word.to_ne_bytes()).expect("written");
                    shadow[page] = Some(word);
                }
                let own = (id..pages).step_by(WRITERS).filter(|page| !is_left_alone(*page));
                own.for_each(|page| check(page, shadow[page], &mut is));
            }
        };
        let writers: Vec<_> = (0..WRITERS).map(|id| scope.spawn(writer(id))).collect();
        something();
        drop(ends);
        writers.into_iter().for_each(|writer| writer.join().expect("nothing was lost"));
    });
    let mut is = [0; OS_PAGE];
    for page in (0..pages).filter(|page| !is_left_alone(*page)) {
        region.read_at(page * OS_PAGE, &mut is).expect("read");
        assert!(is[8..] == first(page)[8..], "the rest of page {page}");
    }
}

#[test]
fn writers_that_never_stop_lose_nothing_while_frames_are_broken_and_joined() {
    let Some(in_huge_frames) = manager() else { return };
    break_and_join(&in_huge_frames);
    // The same where huge frames come ahead of a stream, and the kernel keeps pages small except
    // while some are collapsed.
    let in_base_pages =
        Manager::builder().budget(Bytes::mib(96)).user_mode_only(true).tune(|tuning| tuning.clear_ahead(0));
    break_and_join(&in_base_pages.build().expect("a manager"));
}

/// Breaks frames in turns and has them joined, beside writers.
fn break_and_join(manager: &Manager) {
    const TURNS: usize = 24;
    let region = region(manager);
    write(&region, 0..FRAMES * PAGES);
    beside_writers(&region, content, || {
        for turn in 0..TURNS {
            let frame = turn % FRAMES;
            region.page_out(frame * HUGE_FRAME, HUGE_FRAME).expect("room");
            let mut byte = [0];
            for page in frame * PAGES..(frame + 1) * PAGES {
                region.read_at(page * OS_PAGE, &mut byte).expect("read");
            }
            // A frame that could not leave whole, because a writer had just faulted on it for
            // example, comes with a later turn.
            for _ in 0..64 {
                manager.engine().rebuild_one();
            }
        }
    });
    let stats = manager.stats();
    assert!(stats.huge_rebuilt >= TURNS as u64 / 4, "{stats:?}");
}

#[test]
fn writers_that_never_stop_lose_nothing_while_frames_that_came_by_density_are_split() {
    const PLACES: usize = 24;
    if skip_without_moves("huge frames by density") {
        return;
    }
    let (manager, region, _) = streamed(PLACES);
    beside_writers(&region, content, || {
        // Each is split in one of three ways: a part is evicted, a page is discarded, or all of it
        // is evicted.
        for place in 0..PLACES {
            let start = place * HUGE_FRAME;
            match place % 3 {
                0 => region.page_out(start + 3 * ENTRY, 5 * ENTRY).expect("room"),
                1 => region.discard(start + HUGE_FRAME - OS_PAGE, OS_PAGE).expect("discarded"),
                _ => region.page_out(start, HUGE_FRAME).expect("room"),
            }
        }
        // And is evicted as it is then, while it is written.
        (0..3).for_each(|_| region.page_out(0, region.len()).expect("room"));
    });
    let mut is = [1; OS_PAGE];
    for place in (1..PLACES).step_by(3) {
        region.read_at((place + 1) * HUGE_FRAME - OS_PAGE, &mut is).expect("read");
        assert!(is.iter().all(|byte| *byte == 0), "the discarded part of place {place}");
    }
    let stats = manager.stats();
    assert!(stats.huge_broken > 0 && stats.faults_stored > 0, "{stats:?}");
    assert_eq!(huge_bytes(&region), 0, "{stats:?}");
}
