use std::sync::atomic::{AtomicBool, Ordering};

use pagoda_core::page_entry::{GRANULES, Granules};
use rustix::mm::{Advice, madvise};

use super::*;
use crate::mem::region_memory::RegionMemory;
use crate::testing::foreign::Foreign;
use crate::testing::length::length;
use crate::testing::skip::skip;
use crate::testing::stir::{Stir, while_stirred};
use crate::uffd::{Mode, feature};

const PAGES: usize = 16;
const BYTES: usize = PAGES * OS_PAGE;
/// On Linux 6.18 one in some ten thousand is reported wrong.
fn moves() -> usize {
    length(60_000, 300_000)
}

fn open() -> Option<(Uffd, Occupancy)> {
    let Ok(uffd) = Uffd::open(Mode::UserOnly, feature::MOVE) else {
        skip("moves", "no userfaultfd with UFFDIO_MOVE");
        return None;
    };
    Some((uffd, Occupancy::open().expect("pagemap")))
}

#[test]
fn a_move_counts_right_while_accessed_bits_change_under_it() {
    let Some((uffd, occupancy)) = open() else { return };
    let memories = memories(&uffd);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // It takes the accessed bits away, which the mover's touch has set.
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                for memory in &memories {
                    let at = std::ptr::with_exposed_provenance_mut(memory.range().start());
                    // SAFETY: the advice changes no content.
                    unsafe { madvise(at, BYTES, Advice::LinuxCold).expect("advice") };
                }
            }
        });
        let wrong = move_to_and_fro(&uffd, &occupancy, &memories);
        done.store(true, Ordering::Relaxed);
        assert_eq!(wrong, None);
    });
}

#[test]
fn a_move_counts_right_while_the_kernel_gives_pages_other_frames() {
    let Some((uffd, occupancy)) = open() else { return };
    while_stirred("moves under compaction", Stir::by_compaction(), || {
        assert_eq!(move_to_and_fro(&uffd, &occupancy, &memories(&uffd)), None);
    });
}

/// Two that are registered, the first full of pages that say their numbers.
fn memories(uffd: &Uffd) -> [RegionMemory; 2] {
    let memories = [0, 1].map(|_| RegionMemory::map(BYTES).expect("map"));
    for memory in &memories {
        // SAFETY: the test's own mapping, which nothing else uses.
        unsafe { uffd.register(memory.range()).expect("register") };
    }
    let content: Vec<u8> = (0..BYTES).map(|i| (i / OS_PAGE) as u8 + 1).collect();
    // SAFETY: as above.
    let filled = unsafe { uffd.copy(memories[0].range().start(), &content) };
    assert_eq!(filled, Progress { bytes: BYTES, stop: None });
    memories
}

/// Moves all pages there and back again and again, and returns the first wrong report, if there
/// was one.
fn move_to_and_fro(uffd: &Uffd, occupancy: &Occupancy, memories: &[RegionMemory; 2]) -> Option<String> {
    (0..moves()).find_map(|turn| {
        let [from, to] = [turn, turn + 1].map(|turn| &memories[turn % 2]);
        move_all(uffd, occupancy, turn, from, to).err().map(|wrong| format!("turn {turn}: {wrong}"))
    })
}

/// Moves all of `from`, whose pages hold their numbers, to `to`, which is empty.
fn move_all(
    uffd: &Uffd,
    occupancy: &Occupancy,
    turn: usize,
    from: &RegionMemory,
    to: &RegionMemory,
) -> Result<(), String> {
    for page in 0..PAGES {
        let mut byte = [0u8];
        from.read_at(page * OS_PAGE, &mut byte);
        if byte[0] != page as u8 + 1 {
            return Err(format!("page {page} says {}", byte[0]));
        }
    }
    let mut moved = 0;
    while moved < BYTES {
        let rest = PageRange::at(from.range().start() + moved, BYTES - moved);
        // SAFETY: the tests' own mappings.
        let progress = unsafe {
            match turn % 4 {
                0 | 1 => uffd.move_out(to.range().start() + moved, rest, occupancy),
                _ => uffd.move_in(to.range().start() + moved, rest, occupancy),
            }
        };
        if !matches!(progress.stop, None | Some(Stop::Again)) {
            return Err(format!("{progress:?} after {moved} bytes"));
        }
        moved += progress.bytes;
        let there = occupancy.of(to.range()).expect("asked");
        if there != Granules::range(0, (moved / OS_PAGE) as u32) {
            return Err(format!("{progress:?}, {moved} bytes in all, and there are {there:?}"));
        }
    }
    match (occupancy.of(from.range()), occupancy.of(to.range())) {
        (Ok(Granules::NONE), Ok(there)) if there == Granules::range(0, GRANULES) => Ok(()),
        there => Err(format!("what is where: {there:?}")),
    }
}

#[test]
fn holes_are_skipped_on_the_way_out_and_unmapped_pages_are_not() {
    let Some((uffd, occupancy)) = open() else { return };
    let [from, to] = memories(&uffd);
    // Pages 3, 4, and the last; no event, because no thread reads any.
    for (page, pages) in [(3, 2), (PAGES - 1, 1)] {
        from.discard(page * OS_PAGE, pages * OS_PAGE).expect("discarded");
    }
    let mut moved = 0;
    while moved < BYTES {
        let rest = PageRange::at(from.range().start() + moved, BYTES - moved);
        // SAFETY: the test's own mappings.
        let progress = unsafe { uffd.move_out(to.range().start() + moved, rest, &occupancy) };
        assert_eq!(progress.stop, None, "after {moved} bytes");
        moved += progress.bytes;
    }
    let there = Granules::range(0, 3).or(Granules::range(5, PAGES as u32 - 1));
    assert_eq!((occupancy.of(from.range()), occupancy.of(to.range())), (Ok(Granules::NONE), Ok(there)));
    // The page after it stays free.
    let gone = PageRange::page(Foreign::private(1).expect("map").address(1));
    // SAFETY: nothing is mapped there: nothing moves.
    let progress = unsafe { uffd.move_out(to.range().start() + 3 * OS_PAGE, gone, &occupancy) };
    assert_eq!(progress, Progress { bytes: 0, stop: Some(Stop::Missing) });
}

#[test]
fn earlier_content_of_the_destination_stays_and_is_reported() {
    let Some((uffd, occupancy)) = open() else { return };
    let [from, to] = [0, 1].map(|_| RegionMemory::map(BYTES).expect("map"));
    let put = |memory: &RegionMemory, page: usize, byte: u8| {
        // SAFETY: the test's own mapping.
        unsafe { uffd.copy(memory.range().start() + page * OS_PAGE, &[byte; OS_PAGE]) }
    };
    for memory in [&from, &to] {
        // SAFETY: as above.
        unsafe { uffd.register(memory.range()).expect("register") };
    }
    (0..PAGES).for_each(|page| assert_eq!(put(&from, page, 1).stop, None));
    assert_eq!(put(&to, 3, 2).stop, None);
    // SAFETY: as above.
    let moved = unsafe { uffd.move_out(to.range().start(), from.range(), &occupancy) };
    assert_eq!(moved, Progress { bytes: 3 * OS_PAGE, stop: None });
    let rest = PageRange::at(from.range().start() + moved.bytes, BYTES - moved.bytes);
    let at = to.range().start() + moved.bytes;
    // SAFETY: as above.
    let stopped = unsafe { [uffd.move_out(at, rest, &occupancy), uffd.move_in(at, rest, &occupancy)] };
    assert_eq!(stopped, [Progress { bytes: 0, stop: Some(Stop::Exists) }; 2]);
    assert_eq!(occupancy.of(to.range()), Ok(Granules::range(0, 4)));
    assert_eq!(occupancy.of(from.range()), Ok(Granules::range(3, GRANULES)));
    let mut byte = [0u8];
    to.read_at(3 * OS_PAGE, &mut byte);
    assert_eq!(byte[0], 2);
}
