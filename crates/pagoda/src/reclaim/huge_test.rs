//! A frame that the kernel takes apart while it leaves, and one that may not leave now.

use std::sync::RwLockWriteGuard;

use pagoda_core::page::{BasePage, OS_PAGE};
use pagoda_core::size::Bytes;
use pagoda_linux::testing::process::{end, fork, sleep_until_killed};
use pagoda_linux::testing::skip::skip_without_moves;
use pagoda_linux::testing::wait::until;
use pagoda_linux::uffd::Message;
use rustix::process::Pid;

use super::*;
use crate::frames::zones::Place;
use crate::store::page_of;
use crate::{Manager, ManagerBuilder};

const PAGES: usize = HUGE_FRAME / OS_PAGE;

/// So many pages go: eighteen base pages, and a part of the next.
const GOES: usize = 300;

fn content(page: usize) -> Vec<u8> {
    page_of(OS_PAGE, 43, page as u64)
}

/// A child that ends with the test, however the test ends. It holds the descriptors of all managers
/// here, and an unmap of theirs would wait for it.
struct Child(Pid);

impl Drop for Child {
    fn drop(&mut self) {
        end(self.0).expect("ended");
    }
}

#[test]
fn of_a_frame_that_is_split_the_moved_part_is_evicted_and_the_rest_stays() {
    if skip_without_moves("frames that are taken apart") {
        return;
    }
    let builder = || {
        Manager::builder().base_page(BasePage::M2).user_mode_only(true).tune(|tuning| tuning.clear_ahead(0))
    };
    let zone = |builder: ManagerBuilder, name| builder.zone(name, Bytes::mib(32), Place::Local);
    for builder in [builder().budget(Bytes::mib(64)), ["one", "two"].into_iter().fold(builder(), zone)] {
        take_apart(&builder.build().expect("a manager"));
    }
}

/// Has the kernel take a frame apart as it leaves.
fn take_apart(manager: &Manager) {
    let region = manager.region(Bytes::new(HUGE_FRAME as u64)).create().expect("a region");
    let (engine, address) = (&*manager.engine(), region.as_ptr().addr());
    let write = |pages: std::ops::Range<usize>| {
        pages.for_each(|page| region.write_words(page * OS_PAGE, &content(page)).expect("written"));
    };
    let read = || {
        let mut is = [0; OS_PAGE];
        for page in 0..PAGES {
            region.read_at(page * OS_PAGE, &mut is).expect("read");
            assert!(is[..] == content(page), "page {page}");
        }
    };
    write(0..PAGES);
    // It is swapped in by OS pages. The kernel moves those that are not shared with a child.
    until("every fault is over", || manager.stats().faults_in_service == 0);
    region.page_out(0, HUGE_FRAME).expect("room");
    read();
    let range = PageRange::at(address, HUGE_FRAME);
    engine.space.set_forked(range, true);
    let child = Child(fork(sleep_until_killed).expect("forked"));
    engine.space.set_forked(range, false);
    write(0..GOES);

    let table = engine.gate_shared();
    let span = table.find(address).expect("managed");
    let block = Block::around(&table, span, address).expect("a place of a frame");
    // A handler may have one of them for a moment.
    let mut words = None;
    until("all entries of a frame", || {
        words = block.take(span, |word| block.is_whole(word));
        words.is_some()
    });
    let words = words.expect("taken");
    let slot = engine.huge.take_empty(&engine.space, 0).expect("an empty slot");
    let moved = engine.space.evict_huge(block.range, &slot);
    assert!(matches!(moved, HugeMove::Part(bytes, _) if bytes == GOES * OS_PAGE), "{moved:?}");
    let out = engine.settle_huge_move(span, block, words, slot, moved).expect("a part is out");
    drop(table);
    let step = engine.store_moved_out(out, &mut Scratch::new(engine.base));
    assert_eq!(step, Step::FrameReady);

    let stats = manager.stats();
    assert_eq!(stats.resident_bytes, ((PAGES - GOES) * OS_PAGE) as u64);
    assert_eq!(
        (stats.staged_bytes, stats.stores),
        (block.entry_bytes() as u64, block.indices().len() as u64 + 18),
        "all of it, then the evicted part"
    );
    let zones = manager.zones();
    let held: u64 = zones.iter().map(|(_, zone)| zone.held.get()).sum();
    if !zones.is_empty() {
        assert_eq!(held, stats.resident_bytes + stats.staged_bytes + stats.ready_bytes);
    }
    read();
    drop(child);
    // It is whole again, and can leave.
    region.page_out(0, HUGE_FRAME).expect("room");
    read();
}

#[test]
fn no_frame_leaves_while_an_event_waits() {
    if skip_without_moves("frames beside an event that waits") {
        return;
    }
    let builder = Manager::builder().budget(Bytes::mib(64)).base_page(BasePage::M2).user_mode_only(true);
    let manager = builder.tune(|tuning| tuning.clear_ahead(0)).build().expect("a manager");
    let engine = &*manager.engine();
    // Beside others the kernel may have none at once.
    let mut region = None;
    until("a huge frame", || {
        let new = manager.region(Bytes::new(HUGE_FRAME as u64)).create().expect("a region");
        new.write_words(0, &content(0)).expect("written");
        let is_huge = engine.is_huge(new.as_ptr().addr());
        region = Some(new);
        is_huge
    });
    let region = region.expect("one with a frame");
    let address = region.as_ptr().addr();
    let part = PageRange::at(address, HUGE_FRAME / 2);
    let mut scratch = Scratch::new(engine.base);
    let mut table = engine.gate_exclusive();
    // The event is about a page that is not managed.
    table.order.defer(Message::Unmap(PageRange::page(address - (1 << 30))));
    let step = engine.evict_of_huge(RwLockWriteGuard::downgrade(table), address, part, &mut scratch);
    assert_eq!(step, Step::Again);
    engine.gate_exclusive().order.take_deferred();
    let mut is = [0; OS_PAGE];
    region.read_at(0, &mut is).expect("read");
    assert!(is[..] == content(0));
}
