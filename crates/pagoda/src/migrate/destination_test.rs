//! Marking owed pages while others fill around their faults.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use pagoda_core::page::BasePage;
use pagoda_core::page_entry::{Granules, Word};
use pagoda_linux::testing::length::length;
use pagoda_linux::testing::skip::skip_without_moves;

use super::*;
use crate::engine::Engine;
use crate::table::{give, try_take};

/// One for each meeting: each delay of one meets each of the other several times.
fn pages() -> usize {
    length(4, 16) * DELAYS * DELAYS
}

/// Each of them waits for one of so many times after they met, so that every step of one meets
/// every step of the other.
const DELAYS: usize = 32;

fn spin(round: usize) {
    (0..round % DELAYS).for_each(|_| std::hint::spin_loop());
}

/// Fills one of the pages as fault-around does: it is not owed, and is filled before another thread
/// has the gate.
fn fill(engine: &Engine, at: PageRange) {
    let table = engine.gate_shared();
    let span = table.find(at.start()).expect("managed");
    let page = table.page_at(span, at.start());
    let Some(word) = try_take(span.entry(page.index)) else { return };
    if word != Word::EMPTY || !engine.owed_granules(&page).is_empty() || table.order.deferred() > 0 {
        return give(span.entry(page.index), word);
    }
    let filled = Granules::range(0, (engine.space.fill_with_zeroes(at).bytes / OS_PAGE) as u32);
    engine.ledger.took(i64::from(filled.count()) * OS_PAGE as i64);
    give(span.entry(page.index), word.with_resident(filled));
    engine.ledger.resident(i64::from(filled.count()) * OS_PAGE as i64);
}

/// Both at one page, again and again. A page with a mark that is filled would read as zero, and
/// take no arriving content.
#[test]
fn nothing_that_is_filled_meanwhile_is_marked_as_owed() {
    if skip_without_moves("marks beside fills") {
        return;
    }
    let builder = Manager::builder().budget(Bytes::mib(128)).base_page(BasePage::K4).user_mode_only(true);
    let mut destination = RegionDestination::new(builder.build().expect("a manager"));
    destination.prepare(Bytes::new((pages() * OS_PAGE) as u64)).expect("a region");
    let region = destination.place.region.as_ref().expect("prepared");
    let memory = region.memory();
    let at = |page: usize| PageRange::page(memory.range().start() + page * OS_PAGE);
    let arrived = AtomicUsize::new(0);
    let meet = |page: usize| {
        arrived.fetch_add(1, Ordering::AcqRel);
        let mut looks = 0u32;
        while arrived.load(Ordering::Acquire) < 2 * (page + 1) {
            looks += 1;
            // Where the other does not run now, there is no use in looking.
            if looks > 1000 {
                yield_now();
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            for page in 0..pages() {
                meet(page);
                spin(page / DELAYS);
                fill(region.engine(), at(page));
            }
        });
        for page in 0..pages() {
            let offset = (page * OS_PAGE) as u64;
            meet(page);
            spin(page);
            destination.owe(offset..offset + OS_PAGE as u64).expect("marked");
        }
    });
    let holds = |page: &usize| !region.engine().space.held_pages(at(*page)).is_empty();
    assert!((0..pages()).all(|page| region.engine().owes_any(at(page))), "all are owed");
    assert_eq!((0..pages()).filter(holds).count(), 0, "no owed page is there");
}
