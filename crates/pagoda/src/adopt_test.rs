//! Following on real userfaultfd: who fills a range, and what of it may be evicted.

use pagoda_core::page::OS_PAGE;
use pagoda_core::size::Bytes;
use pagoda_linux::region_memory::RegionMemory;
use pagoda_linux::testing::skip::skip_without_moves;
use pagoda_linux::uffd::Message;

use super::*;
use crate::Manager;

const PAGES: usize = 256;

/// A mapping that a manager follows, all of it filled by the kernel.
struct Followed {
    manager: Manager,
    memory: RegionMemory,
    present: PagemapScanner,
}

impl Followed {
    fn new() -> Option<Self> {
        if skip_without_moves("following") {
            return None;
        }
        let manager =
            Manager::builder().budget(Bytes::mib(64)).user_mode_only(true).build().expect("manager");
        let mut memory = RegionMemory::map(PAGES * OS_PAGE).expect("memory");
        let mut present = PagemapScanner::new().expect("pagemap");
        manager.engine().adopt(&mut present, memory.range(), Filler::Kernel);
        memory.write_at(0, &[7; PAGES * OS_PAGE]);
        let followed = Self { manager, memory, present };
        assert_eq!(followed.marked(0..PAGES), 0);
        assert_eq!(followed.manager.stats().faults, 0);
        Some(followed)
    }

    fn part(&self, pages: std::ops::Range<usize>) -> PageRange {
        PageRange::at(self.memory.range().start() + pages.start * OS_PAGE, pages.len() * OS_PAGE)
    }

    /// How many of these OS pages may be evicted.
    fn marked(&self, pages: std::ops::Range<usize>) -> usize {
        let engine = self.manager.engine();
        let table = engine.gate_shared();
        let is_marked = |page: &usize| {
            let address = self.part(*page..page + 1).start();
            let span = table.find(address).expect("managed");
            let at = table.page_at(span, address);
            let word = Word::from_bits(span.entry(at.index).load(Ordering::Acquire));
            word.resident().has(at.granule_of(address))
        };
        pages.filter(is_marked).count()
    }

    /// Everything is there, and nothing of it is managed any more.
    fn end(self) {
        self.manager.engine().bring_back(self.memory.range());
        let mut content = vec![0; PAGES * OS_PAGE];
        self.memory.read_at(0, &mut content);
        assert!(content.iter().all(|&byte| byte == 7));
    }
}

#[test]
fn what_was_followed_may_be_evicted_when_that_ends() {
    let Some(mut followed) = Followed::new() else { return };
    let engine = followed.manager.engine();
    assert!(engine.follows.load(Ordering::Relaxed));
    engine.end_all_following(&mut followed.present);
    assert!(!engine.follows.load(Ordering::Relaxed));
    assert_eq!(followed.marked(0..PAGES), PAGES);
    drop(engine);
    followed.end();
}

#[test]
fn what_the_kernel_is_about_to_drop_is_never_marked() {
    let Some(mut followed) = Followed::new() else { return };
    let engine = followed.manager.engine();
    // The event is read, and the pages are still there, as they are until the program's thread goes on.
    let (from, to) = (37, 80);
    let event = Message::Remove(followed.part(from..to));
    let gone = engine.apply(&mut engine.gate_exclusive(), event, &mut Scratch::new(engine.base));
    assert_eq!(gone, None);
    engine.end_all_following(&mut followed.present);
    assert_eq!(followed.marked(from..to), 0);
    assert_eq!(followed.marked(0..PAGES), PAGES - (to - from));
    drop(engine);
    followed.end();
}
