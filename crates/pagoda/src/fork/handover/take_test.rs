//! Taking over pages that a test sends in place of a parent, on real userfaultfd.

use std::time::Duration;

use pagoda_linux::mem::own_memory::{declare, withdraw};
use pagoda_linux::testing::foreign::Foreign;
use pagoda_linux::testing::skip::skip_without_moves;

use super::super::stream::send_page;
use super::*;
use crate::Manager;

const PAGES: usize = 96;
/// OS pages of a base page.
const PAGE: usize = 16;
/// The range that the child did not get. It begins and ends within base pages.
const HOLE: std::ops::Range<usize> = 37..59;
/// A range that the child's engine has mapped for itself.
const OWN: std::ops::Range<usize> = 70..75;

#[test]
fn a_range_that_a_child_did_not_get_is_not_in_its_table_and_the_rest_of_its_page_is() {
    if skip_without_moves("taking over") {
        return;
    }
    let manager = Manager::builder().budget(Bytes::mib(64)).user_mode_only(true).build().expect("manager");
    let engine = manager.engine();
    let mut memory = Foreign::private(PAGES).expect("memory");
    memory.unmap(HOLE).expect("a hole");
    let range =
        |pages: std::ops::Range<usize>| PageRange::at(memory.address(pages.start), pages.len() * OS_PAGE);
    assert!(declare(range(OWN)));
    let (parent, child) = Stream::pair(Duration::from_secs(5)).expect("a pair");
    std::thread::scope(|scope| {
        let whole = range(0..PAGES);
        scope.spawn(move || {
            let record = |kind, len| Record { kind, address: whole.start(), len, skipped: 0 }.send(&parent);
            record(Kind::Managed, whole.len()).expect("sent");
            for (value, at) in (1..).zip((0..PAGES).step_by(PAGE)) {
                let content = vec![value; PAGE * OS_PAGE];
                send_page(&parent, Kind::Plain, whole.start() + at * OS_PAGE, &content).expect("sent");
            }
            record(Kind::End, 0).expect("sent");
        });
        let mut present = PagemapScanner::new().expect("pagemap");
        engine
            .take_over(&Arc::new(child), None, &mut present, &mut Scratch::new(engine.base))
            .expect("all of it");
    });
    let there = [0..HOLE.start, HOLE.end..OWN.start, OWN.end..PAGES];
    let known: Vec<PageRange> = {
        let table = engine.gate_shared();
        table.spans().filter_map(|span| span.range().intersection(range(0..PAGES))).collect()
    };
    assert_eq!(known, there.clone().map(range));
    for page in there.into_iter().flatten() {
        assert_eq!(memory.read(page), (page / PAGE + 1) as u8, "page {page}");
    }
    for page in OWN {
        assert_eq!(memory.read(page), 0, "page {page} is not the program's");
    }
    engine.bring_back(range(0..PAGES));
    withdraw(range(OWN));
}
