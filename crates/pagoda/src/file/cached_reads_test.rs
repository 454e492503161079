//! Reading through a file: which pages of it come into the region, which pages it evicts, and the
//! counts of zones.

use std::time::{Duration, Instant};

use pagoda_core::page::{BasePage, OS_PAGE};
use pagoda_core::page_entry::Backing;
use pagoda_core::size::Bytes;
use pagoda_linux::mem::contiguity::contiguous_bytes;
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::testing::skip::skip_without_moves;
use pagoda_linux::testing::wait::until;

use super::super::FileRegion;
use super::super::tests::mapped;
use crate::Manager;
use crate::file::readahead::is_only_in_file;
use crate::frames::zones::Place;
use crate::state::helpers::HELPERS;

const BLOCK: usize = 64 << 10;

/// Reads blocks of a file with a page's number in each, and looks at all of it.
fn read(region: &FileRegion, blocks: std::ops::Range<usize>) {
    let mut block = vec![0; BLOCK];
    for number in blocks {
        region.read_at(number * BLOCK, &mut block).expect("a disk");
        for (i, page) in block.chunks(OS_PAGE).enumerate() {
            let value = ((number * BLOCK / OS_PAGE + i) % 251) as u8;
            assert!(page.iter().all(|byte| *byte == value), "page {i} of block {number}");
        }
    }
}

/// How long a thread that reads ahead may be kept from the processor.
const AHEAD_MOST: Duration = Duration::from_millis(500);

/// Reads the same, each block once it has been read ahead: a quicker reader faults, and brings it
/// into the region. The first blocks of all are not read ahead; it does not wait for them much
/// longer.
fn read_behind(manager: &Manager, region: &FileRegion, blocks: std::ops::Range<usize>) {
    let engine = manager.engine();
    for block in blocks {
        let address = region.inner().range.start() + block * BLOCK;
        let is_out = || {
            let table = engine.gate_shared();
            let span = table.find(address).expect("managed");
            is_only_in_file(span.entries(), table.page_at(span, address).index)
        };
        let begin = Instant::now();
        while is_out() && begin.elapsed() < AHEAD_MOST {
            std::thread::yield_now();
        }
        read(region, block..block + 1);
    }
}

fn blocks(region: &FileRegion) -> usize {
    region.len() / BLOCK
}

#[test]
fn a_page_read_once_stays_out_of_the_region_and_one_read_again_comes_there() {
    if skip_without_moves("reading a file through") {
        return;
    }
    let (_file, manager, region) = mapped(BasePage::K64);
    let engine = manager.engine();
    let there = |blocks: std::ops::Range<usize>| {
        let address = |block: &usize| region.inner().range.start() + block * BLOCK;
        blocks.filter(|block| engine.zone_in_region(address(block)).is_some()).count()
    };
    let all = blocks(&region);
    // The end of it is still in memory.
    let last = all - 64..all;
    read_behind(&manager, &region, 0..all);
    let (once, stats) = (there(last.clone()), manager.stats());
    assert!(once < 16, "{once} of 64 came into the region: {stats:?}");
    assert!(stats.evictions < all as u64 / 4, "{} of {all} went out of it", stats.evictions);
    read(&region, last.clone());
    read(&region, last.clone());
    assert_eq!(there(last), 64, "a used page stays");
}

#[test]
fn unused_pages_make_room_for_a_file_that_is_read_through() {
    if skip_without_moves("cold memory beside a file") {
        return;
    }
    let (_file, manager, file) = mapped(BasePage::K64);
    let mut region = manager.region(Bytes::mib(2)).create().expect("room");
    region.words_mut().iter_mut().enumerate().for_each(|(i, word)| *word = i as u64 + 1);
    let before = manager.stats().stores;
    for _ in 0..2 {
        read(&file, 0..blocks(&file));
    }
    let stores = manager.stats().stores - before;
    assert!(stores > 0, "all of it is still in memory: {:?}", manager.stats());
    assert!(region.words_mut().iter().enumerate().all(|(i, word)| *word == i as u64 + 1));
}

#[test]
fn a_page_dropped_without_having_been_in_the_region_counts_as_evicted_from_its_zone() {
    if skip_without_moves("a file read through zones") {
        return;
    }
    let (file, _manager, region) = mapped(BasePage::K64);
    drop(region);
    let zones = [("small", 4), ("large", 12)];
    let add = |builder: crate::ManagerBuilder, (name, mib)| builder.zone(name, Bytes::mib(mib), Place::Local);
    let manager =
        zones.into_iter().fold(Manager::builder(), add).user_mode_only(true).build().expect("manager");
    let region = manager.map_file(file.path()).map().expect("a disk");
    read(&region, 0..blocks(&region));
    let zones = manager.zones();
    let known: u64 = zones.iter().map(|(_, zone)| zone.held.get() + zone.evicted.get()).sum();
    assert!(known >= region.stats().read.get(), "of {:?} read: {zones:?}", region.stats().read);
}

/// For a disk each is one piece of memory then, and not sixteen.
#[test]
fn readahead_goes_to_frames_whose_os_pages_are_contiguous() {
    const LEN: usize = 32 << 20;
    if skip_without_moves("contiguous frames of a file") {
        return;
    }
    let file = tempfile::NamedTempFile::new_in(pagoda_linux::testing::directory::on_disk()).expect("room");
    let content: Vec<u8> = (0..LEN).map(|at| (at / OS_PAGE % 251) as u8).collect();
    std::fs::write(file.path(), content).expect("room");
    for zones in [&[("all", 256)][..], &[("small", 64), ("large", 192)]] {
        let add = |builder: crate::ManagerBuilder, (name, mib): &(&str, u64)| {
            builder.zone(name, Bytes::mib(*mib), Place::Local)
        };
        let read_once = || {
            let builder = zones.iter().fold(Manager::builder(), add).base_page(BasePage::K64);
            let manager =
                builder.tune(|tuning| tuning.clear_ahead(0)).user_mode_only(true).build().expect("a manager");
            let region = manager.map_file(file.path()).map().expect("a disk");
            read_behind(&manager, &region, 0..blocks(&region));
            let taken = manager.stats().contiguous_ready_bytes;
            (manager, region, taken)
        };
        // The bytes of the file that are in memory, and of these those of contiguous frames.
        let look = |manager: &Manager, region: &FileRegion| {
            let engine = manager.engine();
            let table = engine.gate_shared();
            let span = table.find(region.inner().range.start()).expect("managed");
            let (mut present, mut contiguous, mut is_told) = (0, 0, false);
            for index in 0..blocks(region) {
                let in_region = region.inner().range.start() + index * BLOCK;
                let address = match span.word(index).backing() {
                    Backing::Slot(slot) => {
                        let slot = engine.space.claim_slot(slot);
                        let address = engine.space.bytes(&slot).as_ptr().addr();
                        engine.space.release_slot(slot);
                        address
                    }
                    _ => in_region,
                };
                let frames = contiguous_bytes(PageRange::at(address, BLOCK), BLOCK).expect("pagemap");
                let Some((is_present, is_contiguous)) = frames else { continue };
                is_told = true;
                (present, contiguous) = (present + is_present, contiguous + is_contiguous);
            }
            assert!(!is_told || present >= LEN as u64 / 2, "{present} of the file are in memory");
            (present, contiguous)
        };
        // Each thread that reads ahead may have got a huge page in each zone that nothing came to.
        let most = LEN as u64 + (HELPERS * zones.len()) as u64 * (2 << 20);
        let may_be_contiguous = crate::clear::zero_frame::tests::are_there_huge_pages();
        // On a busy machine the threads that read ahead may come to little, and the kernel may move
        // frames, for this once.
        let is_met = std::iter::repeat_with(read_once).take(5).any(|(manager, region, taken)| {
            assert!(taken <= most, "{taken} of {most}");
            if taken < LEN as u64 / 2 {
                return false;
            }
            // Most are where they were read to, and some have come into the region.
            let (present, contiguous) = look(&manager, &region);
            !may_be_contiguous || 2 * contiguous >= present
        });
        assert!(is_met, "half of it is read to such frames in one of five times, with {zones:?}");
    }
}

/// Pages that a thread writes come into the region. Read ahead into the staged pages, of which a
/// sixteenth of the memory is kept, the next pages to be written would be the oldest of those.
#[test]
fn a_sequential_writer_finds_the_pages_that_were_read_ahead_for_it() {
    const THREADS: usize = 4;
    const LEN: u64 = 128 << 20;
    if skip_without_moves("a file written through zones") {
        return;
    }
    let file = tempfile::NamedTempFile::new_in(pagoda_linux::testing::directory::on_disk()).expect("room");
    file.as_file().set_len(LEN).expect("room");
    let builder = Manager::builder().zone("large", Bytes::mib(48), Place::Local).user_mode_only(true);
    let manager = builder.zone("small", Bytes::mib(16), Place::Local).build().expect("a manager");
    let region = manager.map_file(file.path()).writable(true).map().expect("a disk");
    let blocks = blocks(&region) / THREADS;
    let value = |block: usize| (block % 251) as u8 + 1;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let region = &region;
            scope.spawn(move || {
                for block in thread * blocks..(thread + 1) * blocks {
                    // Not all of a page, which would not be read first.
                    region.write_at(block * BLOCK + 1, &[value(block); BLOCK - 1]).expect("a disk");
                }
            });
        }
    });
    region.sync().expect("a disk");
    let stats = region.stats();
    assert!(stats.read_ahead.get() > LEN / 4, "it was read ahead: {stats:?}");
    assert!(stats.evicted_unused.get() <= LEN / 4, "pages that were read ahead were gone: {stats:?}");
    assert!(stats.read_again.get() <= LEN / 4, "it was read twice: {stats:?}");
    let written = std::fs::read(file.path()).expect("it is there");
    let is_right = |(block, is): (usize, &[u8])| is[0] == 0 && is[1..] == [value(block); BLOCK - 1];
    assert!(written.chunks(BLOCK).enumerate().all(is_right));
    let zones: Vec<_> = manager.zones().into_iter().map(|(_, zone)| zone).collect();
    println!("age ratio {:?}, {stats:?}", crate::frames::zones::age_ratio(&zones));
}

#[test]
fn unused_readahead_is_counted_when_it_is_dropped() {
    if skip_without_moves("unused readahead") {
        return;
    }
    let (_file, _manager, region) = mapped(BasePage::K64);
    // Readers that begin a stream, and stop: the first window of each is 128 KiB.
    let begins = 40;
    for begin in 0..begins {
        let block = 2 + begin * 8;
        read(&region, block..block + 2);
    }
    until("the windows that they began are read ahead", || region.stats().read_ahead > Bytes::ZERO);
    read(&region, blocks(&region) - 300..blocks(&region));
    let stats = region.stats();
    assert!(stats.evicted_unused >= Bytes::kib(64) && stats.evicted_unused <= stats.read_ahead, "{stats:?}");
    assert!(
        stats.evicted_unused.get() <= begins as u64 * (4 << 16),
        "no more than the unused readahead: {stats:?}"
    );
}
