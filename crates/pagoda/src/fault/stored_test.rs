//! The last frame is for the page that a thread waits for, and not for those around it.

use pagoda_core::fault::swap_in::Extent;
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::procfs::pagemap::PagemapScanner;
use pagoda_linux::testing::foreign::Foreign;
use pagoda_linux::testing::skip::skip_without_moves;
use pagoda_linux::uffd::fault_address::FaultAddress;

use pagoda_core::size::Bytes;

use crate::assemble::without_threads;
use crate::state::pending::Served;
use crate::stats::fault_kind::FaultKind;
use crate::store::Scratch;

const PAGES: usize = 256;

/// The neighbours came first and took the only frame. They were evicted for the fault, came back at
/// its next try, and so on: a thread that served its own fault never went on.
#[test]
fn the_last_frame_is_the_faulting_pages() {
    if skip_without_moves("the last frame") {
        return;
    }
    let engine = without_threads(Bytes::mib(64));
    let memory = Foreign::private(PAGES).expect("memory");
    let whole = PageRange::at(memory.address(0), PAGES * 4096);
    (0..PAGES).for_each(|page| memory.write(page, page as u8));
    engine.adopt(&mut PagemapScanner::new().expect("pagemap"), whole, None);
    let mut scratch = Scratch::new(engine.base);
    engine.page_out(whole, &mut scratch).expect("room in the store");
    // Half as many frames are ready as pages are stored, and there is no room for others.
    engine.ledger.took(engine.ledger.room_bytes() as i64 + (PAGES / 2) as i64 * 4096);
    engine.give_back_excess(0);
    let mut serve = |page: usize, extent| {
        let at = FaultAddress::of_byte(memory.address(page));
        engine.serve(at, true, extent, &mut FaultKind::Zero, &mut scratch)
    };
    let mut page = 0;
    while engine.free().get() > 4096 {
        assert_eq!(serve(page, Extent::Granules(0)), Served::Done, "page {page}, {}", engine.free());
        page += 1;
    }
    assert_eq!(engine.free(), Bytes::new(4096), "one frame is left");
    // In the middle of a base page of which nothing is resident.
    let last = page.next_multiple_of(16) + 5;
    assert_eq!(serve(last, Extent::Granules(4)), Served::Done);
    assert_eq!((memory.read(last), engine.free()), (last as u8, Bytes::ZERO));
    assert_eq!(serve(last + 1, Extent::Granules(4)), Served::NoMemory, "it was the last");
    // The rest is read at leisure.
    engine.ledger.took(-(PAGES as i64 * 4096 + (1 << 20)));
    for page in 0..PAGES {
        let served = serve(page, Extent::Granules(0));
        assert_eq!((served, memory.read(page)), (Served::Done, page as u8), "page {page}");
    }
}
