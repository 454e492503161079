//! Events that come the wrong way round, as the kernel may post them.

use std::sync::Arc;

use pagoda_core::page::{BasePage, OS_PAGE};
use pagoda_core::page_entry::{Backing, GRANULES, Granules};
use pagoda_core::size::Bytes;
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::testing::access::Access;
use pagoda_linux::testing::area::Area;
use pagoda_linux::testing::foreign::Foreign;
use pagoda_linux::testing::skip::skip_without_moves;
use pagoda_linux::testing::wait::until;
use pagoda_linux::uffd::Message;

use crate::Manager;
use crate::fault::tests::{stage, word_at};
use crate::store::{Scratch, page_of};
use crate::table::Filler;

/// Where nothing is mapped.
fn range(from: usize, to: usize) -> PageRange {
    PageRange::new((from << 12) + (1 << 40), (to << 12) + (1 << 40)).expect("a range")
}

/// None where nothing can be moved: `what` is skipped.
fn manager(what: &str) -> Option<Manager> {
    if skip_without_moves(what) {
        return None;
    }
    let builder = Manager::builder().budget(Bytes::mib(64)).base_page(BasePage::K64).user_mode_only(true);
    Some(builder.build().expect("a manager"))
}

fn remap(from: PageRange, to: usize) -> Message {
    Message::Remap { from: from.start(), to: range(to, to + 1).start(), len: from.len() }
}

/// A mapping that grew is not known whole. It moves away, another moves to where it was, and that
/// one's event is read first.
#[test]
fn a_range_moved_onto_the_growth_of_a_leaving_mapping_stays_whichever_event_is_read_first() {
    let Some(manager) = manager("events that come the wrong way round") else { return };
    let engine = manager.engine();
    let mut scratch = Scratch::new(engine.base);
    for unmaps in [false, true] {
        let mut table = engine.gate_exclusive();
        // The growth of the first mapping, 100 to 200, is not in the table: all from 120 on.
        let (grown, other) = (range(100, 200), range(1000, 1030));
        table.insert(range(100, 120), Filler::Engine);
        table.insert(other, Filler::Engine);
        let entries = Arc::clone(table.find(other.start()).expect("managed").entries());
        let mut apply = |event| assert!(engine.apply(&mut table, event, &mut scratch).is_none());
        apply(remap(other, 150));
        if !unmaps {
            apply(remap(grown, 2000));
        }
        apply(Message::Unmap(grown));
        apply(Message::Unmap(other));
        let there = table.find(range(150, 151).start()).expect("the moved range is managed");
        assert!(Arc::ptr_eq(there.entries(), &entries) && there.range() == range(150, 180), "{there:?}");
        assert_eq!(table.find(range(2000, 2001).start()).is_some(), !unmaps, "the known part of the first");
        assert!(table.find(range(2050, 2051).start()).is_none(), "and no more of it");
        assert!(table.find(range(100, 101).start()).is_none() && table.find(other.start()).is_none());
        assert_eq!(table.order.deferred(), 0);
        table.cut(range(0, 4000));
    }
}

/// The event of the first move is read after all of the other's: its thread had not posted it. A
/// moved range that the kernel still has registered is not the one that left. Where it is not
/// registered, it is the one, even if something else is mapped there by now.
#[test]
fn a_range_moved_onto_the_growth_of_a_former_mapping_stays_however_late_its_event_is() {
    let Some(manager) = manager("events that come late") else { return };
    let engine = manager.engine();
    let mut scratch = Scratch::new(engine.base);
    let memory = Foreign::private(100).expect("memory");
    let there = |pages: std::ops::Range<usize>| PageRange::at(memory.address(pages.start), pages.len() << 12);
    let (grown, place, other) = (there(0..100), there(50..80), range(1000, 1030));
    for moves in [false, true] {
        engine.space.register(place).expect("registered");
        let mut table = engine.gate_exclusive();
        table.insert(there(0..20), Filler::Engine);
        table.insert(other, Filler::Engine);
        let entries = Arc::clone(table.find(other.start()).expect("managed").entries());
        let mut apply = |event| assert!(engine.apply(&mut table, event, &mut scratch).is_none());
        apply(Message::Remap { from: other.start(), to: place.start(), len: other.len() });
        apply(Message::Unmap(other));
        apply(if moves { remap(grown, 2000) } else { Message::Unmap(grown) });
        if moves {
            apply(Message::Unmap(grown));
        }
        let moved = table.find(place.start()).expect("the moved range is managed");
        assert!(Arc::ptr_eq(moved.entries(), &entries) && moved.range() == place, "{moved:?}");
        assert!(table.find(grown.start()).is_none());
        assert_eq!(table.find(range(2000, 2001).start()).is_some(), moves, "the known part of the first");
        // As if it had gone, and something else had been mapped there before that was told.
        engine.space.unregister(place).expect("unregistered");
        assert!(engine.apply(&mut table, Message::Unmap(place), &mut scratch).is_none());
        assert!(table.find(place.start()).is_none(), "the present range is not the moved one");
        assert_eq!(table.order.deferred(), 0);
        table.cut(range(0, 4000));
    }
}

/// A range that moved a moment ago is replaced, with its surroundings, by another move, and then
/// nothing more happens. The kernel has the place registered when its UNMAP is read. So the UNMAP
/// might be late, and the move waits for an event that never comes.
#[test]
fn a_move_onto_a_just_moved_range_waits_for_no_other_event() {
    const BLOCK: usize = 128;
    const BLOCKS: usize = 64;
    let Some(manager) = manager("moves onto a just moved range") else { return };
    let access = Access::begin().expect("signal handlers");
    let engine = manager.engine();
    let mut area = Area::new(BLOCKS * BLOCK, 0).expect("memory");
    let region = manager.adopt(area.foreign()).expect("adopted");
    for block in (0..BLOCKS).map(|block| block * BLOCK) {
        let value = |page: usize| (block + page) as u64 + 1;
        for page in (0..4).chain(8..24).chain(64..80) {
            area.write(&access, block + page, 0, value(page)).expect("it is ours");
        }
        area.remap(block..block + 4, block + 68, 4).expect("moved");
        area.remap(block + 8..block + 24, block + 64, 16).expect("moved");
        until("nothing waits", || engine.gate_shared().order.deferred() == 0);
        region.page_out(block * 4096, BLOCK * 4096).expect("room");
        for page in 0..16 {
            assert_eq!(area.read(&access, block + 64 + page, 0), Ok(value(8 + page)), "page {page}");
        }
    }
    assert!(manager.stats().events_deferred > 0, "one waited: {:?}", manager.stats());
}

/// A lift waited 30 seconds for a page of which the discard had put a copy into its slot, and ended
/// the process.
#[test]
fn a_discard_beside_a_resident_part_of_a_stored_page_leaves_no_copy_of_that_part() {
    let Some(manager) = manager("discards of a part of a page") else { return };
    let region = manager.region(Bytes::kib(64)).base_page(BasePage::K4).create().expect("a region");
    let (engine, start) = (&*manager.engine(), region.as_ptr().addr());
    let content = |page: u32| page_of(OS_PAGE, 43, page.into());
    let at = |page: u32| page as usize * OS_PAGE;
    (0..GRANULES).for_each(|page| region.write_words(at(page), &content(page)).expect("written"));
    // A handler may have the page for a moment.
    until("all of the page is stored", || {
        region.page_out(0, region.len()).expect("room");
        let word = word_at(engine, start);
        word.resident().is_empty() && matches!(word.backing(), Backing::Handle(_))
    });
    let mut back = vec![0; OS_PAGE];
    region.read_at(at(5), &mut back).expect("read");
    let resident = word_at(engine, start).resident();
    assert!(resident.has(5) && resident.count() < 8, "{resident:?}");
    region.discard(at(15), OS_PAGE).expect("discarded");
    let Backing::Slot(slot) = word_at(engine, start).backing() else { panic!("its rest is in a slot") };
    let slot = engine.space.claim_slot(slot);
    let copies = engine.space.pages_of(&slot);
    engine.space.release_slot(slot);
    assert_eq!(copies, Granules::range(0, 15).without(resident));
    stage(engine, start);
    assert_eq!(word_at(engine, start).resident(), Granules::NONE, "it goes at once");
    for page in 0..GRANULES {
        region.read_at(at(page), &mut back).expect("read");
        assert!(back == if page == 15 { vec![0; OS_PAGE] } else { content(page) }, "page {page}");
    }
}
