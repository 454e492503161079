//! Reading by calls beside readers by address.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use pagoda_core::page::{BasePage, OS_PAGE};
use pagoda_core::page_entry::{Backing, Granules};
use pagoda_core::size::Bytes;
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::testing::address::load;
use pagoda_linux::testing::length::length;
use pagoda_linux::testing::mapping::bytes_of;
use pagoda_linux::testing::random::Random;
use pagoda_linux::testing::skip::skip_without_moves;

use super::super::tests::mapped;
use crate::state::pins::Pinner;
use crate::store::Scratch;

const READERS: u64 = 2;
/// A fault is reported once: the thread that reads it from the descriptor serves it, or the
/// faulting thread sleeps for good.
#[test]
fn a_reader_by_calls_takes_no_fault_from_a_reader_by_address() {
    if skip_without_moves("calls beside addresses") {
        return;
    }
    let (_file, _manager, region) = mapped(BasePage::K64);
    let region = Arc::new(region);
    let reads = length(3_000, 20_000);
    // Each has pages of its own: no other thread reads in the page that it waits for.
    let own = region.len() / OS_PAGE / (2 * READERS as usize);
    let (done, all) = channel();
    // Not of a scope: one that is never woken can't be waited for.
    for reader in 0..READERS {
        for calls in [false, true] {
            let (region, done) = (Arc::clone(&region), done.clone());
            std::thread::spawn(move || {
                let number = reader * 2 + u64::from(calls);
                let mut random = Random::new(5, number);
                let mut byte = [0];
                for _ in 0..reads {
                    let page = number as usize * own + random.below(own);
                    if calls {
                        region.read_at(page * OS_PAGE, &mut byte).expect("read");
                    } else {
                        region.inner().memory().read_at(page * OS_PAGE, &mut byte);
                    }
                    assert_eq!(byte[0], (page % 251) as u8, "page {page}");
                }
                done.send(()).expect("the test waits");
            });
        }
    }
    drop(done);
    for _ in 0..2 * READERS {
        match all.recv_timeout(Duration::from_secs(60)) {
            Ok(()) => {}
            Err(RecvTimeoutError::Timeout) => panic!("a reader waits for a fault that no thread serves"),
            Err(RecvTimeoutError::Disconnected) => panic!("a reader found another byte"),
        }
    }
}

/// With faults served in user mode only, the kernel copies nothing from or to a swapped-out page of
/// the caller.
#[test]
fn a_call_with_swapped_out_memory_gets_it_back() {
    if skip_without_moves("calls with managed memory") {
        return;
    }
    let (file, manager, region) = mapped(BasePage::K64);
    // In the region, so that the kernel copies from and to there.
    assert_eq!(load(region.as_ptr()), [0u8; 1]);
    assert_eq!(load(region.as_ptr().wrapping_add(16 * OS_PAGE)), [16u8; 1]);
    let (done, all) = channel();
    // Not of a scope: a call that never ends can't be waited for.
    std::thread::spawn(move || {
        let untouched = || manager.region(Bytes::mib(1)).create().expect("region");
        let (mut into, mut from) = (untouched(), untouched());
        // More than a page, and not from the start of one.
        let into = &mut bytes_of(into.words_mut())[100..][..3 * OS_PAGE];
        region.read_at(15 * OS_PAGE, into).expect("read");
        assert!(into.chunks(OS_PAGE).zip(15..).all(|(page, number)| page == [number; OS_PAGE]));
        region.write_at(15 * OS_PAGE, &bytes_of(from.words_mut())[100..][..3 * OS_PAGE]).expect("written");
        region.sync().expect("a disk");
        done.send(()).expect("the test waits");
    });
    match all.recv_timeout(Duration::from_secs(60)) {
        Ok(()) => {}
        Err(RecvTimeoutError::Timeout) => panic!("a call waits for its own memory"),
        Err(RecvTimeoutError::Disconnected) => panic!("a call went wrong"),
    }
    let found = std::fs::read(file.path()).expect("it is there");
    assert!(found[15 * OS_PAGE..18 * OS_PAGE].iter().all(|byte| *byte == 0));
    assert!(found[18 * OS_PAGE] == 18 && found[15 * OS_PAGE - 1] == 14);
}

/// A page of the base page can't leave when the others do: those are dropped, and are in the file
/// alone when it follows.
#[test]
fn a_page_that_leaves_after_its_neighbours_takes_none_of_their_content() {
    const LATE: usize = 3;
    const PAGES: usize = 16;
    if skip_without_moves("a page that leaves late") {
        return;
    }
    let (file, manager, region) = mapped(BasePage::K64);
    let (engine, memory) = (manager.engine(), region.inner().memory());
    let mut scratch = Scratch::new(engine.base);
    let base = PageRange::at(memory.range().start(), PAGES * OS_PAGE);
    let late = PageRange::page(base.start() + LATE * OS_PAGE);
    let mut byte = [0];
    let word = || {
        let table = engine.gate_shared();
        table.find(base.start()).expect("mapped").word(0)
    };
    for is_dropped in [true, false] {
        for page in 0..PAGES {
            region.write_at(page * OS_PAGE, &[page as u8 + 100]).expect("a disk");
        }
        assert!(engine.pins.pin(Pinner::Mutex(late.start()), late));
        engine.page_out(base, &mut scratch).expect("room");
        engine.pins.unpin(Pinner::Mutex(late.start()));
        let all_but_it_are_in_the_file = word();
        assert_eq!(all_but_it_are_in_the_file.backing(), Backing::None);
        assert_eq!(all_but_it_are_in_the_file.resident(), Granules::range(LATE as u32, LATE as u32 + 1));
        if is_dropped {
            engine.page_out(base, &mut scratch).expect("room");
            assert_eq!((word().backing(), word().resident()), (Backing::None, Granules::NONE));
        } else {
            let table = engine.gate_shared();
            engine.stage_page(&table, table.find(base.start()).expect("mapped"), 0, &mut Vec::new());
            drop(table);
            assert!(matches!(word().backing(), Backing::Slot(_)), "it alone is staged");
            let place = (LATE - 1) * OS_PAGE;
            region.read_at(place, &mut byte).expect("a disk");
            assert_eq!(byte[0], LATE as u8 + 99);
        }
        for page in 0..PAGES {
            memory.read_at(page * OS_PAGE, &mut byte);
            assert_eq!(byte[0], page as u8 + 100, "page {page}");
        }
        region.sync().expect("a disk");
        let content = std::fs::read(file.path()).expect("read");
        for page in 0..PAGES {
            assert_eq!(content[page * OS_PAGE], page as u8 + 100, "page {page} of the file");
            assert_eq!(content[page * OS_PAGE + 1], page as u8, "page {page} of the file");
        }
    }
}
