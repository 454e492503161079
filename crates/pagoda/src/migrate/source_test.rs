//! The source alone, against a receiver that only believes its messages.

use std::ops::Range;

use pagoda_core::migrate::pages::PageSet;
use pagoda_core::page::BasePage;
use pagoda_linux::codec::pack::{PageUnpacker, is_dense};
use pagoda_linux::testing::area::{Advice, Area};
use pagoda_linux::testing::length::length;
use pagoda_linux::testing::skip::skip_without_moves;
use pagoda_migrate::Room;

use super::*;
use crate::fault::tests::stage;
use crate::manager::Manager;
use crate::region::Region;

/// The receiver's content, and its way to ask for it.
struct Other {
    image: Vec<u8>,
    data: PageSet,
    zero: PageSet,
    /// Base pages that came packed as a whole.
    whole: u64,
}

impl Other {
    fn new(region: &Region) -> Self {
        let set = || PageSet::new(zeroed_words(PageSet::words_for((region.len() / OS_PAGE) as u64) as usize));
        Self { image: vec![0; region.len()], data: set(), zero: set(), whole: 0 }
    }

    /// A round: reads the changed pages and believes them. Returns their number.
    fn round(&mut self, source: &RegionSource<'_>, reader: &mut dyn LiveReader) -> u64 {
        source.collect(&self.data, &self.zero).expect("collected");
        let count = self.data.count() + self.zero.count();
        let mut room = Room::default();
        for first in (0..self.image.len() / OS_PAGE).step_by(STRIPE_PAGES as usize) {
            room.begin(self.data.take_stripe(first as u64), self.zero.take_stripe(first as u64));
            let at = |pages: Range<u32>| {
                (first + pages.start as usize) * OS_PAGE..(first + pages.end as usize) * OS_PAGE
            };
            let mut take = |pages: Range<u32>, packed: &[u8]| {
                let into = &mut self.image[at(pages)];
                PageUnpacker::default().unpack(packed, into).expect("packed");
                self.whole += u64::from(is_dense(packed));
                true
            };
            reader.read(first as u64, &mut room, &mut take).expect("read");
            for pages in room.zero().runs() {
                self.image[at(pages)].fill(0);
            }
            for pages in room.content().runs() {
                let bytes = pages.start as usize * OS_PAGE..pages.end as usize * OS_PAGE;
                self.image[at(pages)].copy_from_slice(&room.bytes()[bytes]);
            }
        }
        count
    }
}

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

#[test]
fn pages_that_an_earlier_migration_left_protected_are_sent_by_the_next() {
    if skip_without_moves("a live source") {
        return;
    }
    let manager = Manager::builder().budget(Bytes::mib(24)).user_mode_only(true).build().expect("a manager");
    let region = manager.region(Bytes::mib(4)).create().expect("a region");
    region.write_words(0, &[1; 300 * OS_PAGE]).expect("written");
    let range = region.memory().range();
    region.engine().space.track_writes(range).expect("tracked");
    // As it stays where the protection can't be taken off in the end.
    let mut scanner = PagemapScanner::new().expect("pagemap");
    let mut protect = || {
        let (mut held, mut written) = (0, 0);
        let count = |run: Range<usize>, _, is_written: bool| {
            let pages = (run.len() / OS_PAGE) as u64;
            held += pages;
            written += if is_written { pages } else { 0 };
        };
        scanner.take_written(range.start(), range.end(), count).expect("protected");
        (held, written)
    };
    // With the pages that came in around them.
    let (there, written) = protect();
    assert!(there >= 300);
    assert_eq!(written, there);
    // A page that was not written since is reported all the same: it is there.
    assert_eq!(protect(), (there, 0));
    let mut other = Other::new(&region);
    let source = RegionSource::begin(&region).expect("tracked");
    let mut reader = source.reader(false).expect("a reader");
    assert_eq!(other.round(&source, &mut *reader), there);
    assert_eq!(other.round(&source, &mut *reader), 0);
    assert!(other.image[..300 * OS_PAGE].iter().all(|byte| *byte == 1));
}

#[test]
fn the_receiver_is_told_the_true_content_through_all_changes() {
    if skip_without_moves("a live source") {
        return;
    }
    // Of each base page with each kind of reader and of rounds; or twice.
    for seed in 0..length(12, 24) {
        let base = [BasePage::K64, BasePage::K4, BasePage::K16][seed as usize % 3];
        let builder = Manager::builder().budget(Bytes::mib(24)).base_page(base).user_mode_only(true);
        let manager = builder.build().expect("a manager");
        let region = manager.region(Bytes::mib(5)).create().expect("a region");
        let mut shadow = vec![0u8; region.len()];
        let mut other = Other::new(&region);
        let mut state = seed + 1;
        let mut told = 0;
        for migration in 0..2 {
            let source = RegionSource::begin(&region).expect("tracked");
            let mut reader = source.reader(seed % 2 == 0).expect("a reader");
            for _ in 0..12 {
                for _ in 0..random(&mut state) % if seed % 4 < 2 { 200 } else { 20 } {
                    let page = (random(&mut state) % (5 << 8)) as usize;
                    let bytes = page * OS_PAGE..(page + 1) * OS_PAGE;
                    match random(&mut state) % 8 {
                        0..3 => {
                            let content: Vec<u8> = (0..OS_PAGE)
                                .map(|i| if i % 3 == 0 { random(&mut state) as u8 } else { page as u8 })
                                .collect();
                            region.memory().write_words(bytes.start, &content);
                            shadow[bytes].copy_from_slice(&content);
                        }
                        3 => {
                            region.memory().write_words(bytes.start, &[0; OS_PAGE]);
                            shadow[bytes].fill(0);
                        }
                        4 => {
                            let len = OS_PAGE * (1 + random(&mut state) as usize % 20);
                            let len = len.min(shadow.len() - bytes.start);
                            region.discard(bytes.start, len).expect("discarded");
                            shadow[bytes.start..bytes.start + len].fill(0);
                        }
                        5 => {
                            let mut content = [1; OS_PAGE];
                            region.read_at(bytes.start, &mut content).expect("read");
                            assert!(content == shadow[bytes], "seed {seed}: page {page} at the source");
                        }
                        // Storing one stores all that were staged before it: seldom, or nothing
                        // stays staged.
                        6..8 if !random(&mut state).is_multiple_of(16) => {
                            stage(source.engine, region.as_ptr().addr() + bytes.start);
                        }
                        _ => {
                            let len = (1 + random(&mut state) as usize % 60) * OS_PAGE;
                            let len = len.min(shadow.len() - bytes.start);
                            region.page_out(bytes.start, len).expect("stored");
                        }
                    }
                }
                told += other.round(&source, &mut *reader);
            }
            let rest = (0..10).map(|_| other.round(&source, &mut *reader)).position(|count| count == 0);
            assert!(rest.is_some_and(|rounds| rounds < 3), "seed {seed}: {rest:?} rounds for nothing");
            for (page, (here, there)) in shadow.chunks(OS_PAGE).zip(other.image.chunks(OS_PAGE)).enumerate() {
                assert!(here == there, "seed {seed}, migration {migration}: page {page} of {base:?} differs");
            }
            drop(reader);
            drop(source);
            // The next one starts from nothing.
            other = Other::new(&region);
        }
        assert!(told > 0);
        region.discard(0, region.len()).expect("discarded");
        let source = RegionSource::begin(&region).expect("tracked");
        let mut reader = source.reader(true).expect("a reader");
        assert_eq!(other.round(&source, &mut *reader), 0, "an empty page is not sent");
    }
}

/// After `MADV_FREE` the kernel leaves a page in place: later writes to it are in the region, and
/// made no event.
#[test]
fn a_page_written_after_it_was_freed_is_sent_wherever_the_rest_of_its_base_page_is() {
    if skip_without_moves("a live source of freed pages") {
        return;
    }
    const FREED: usize = 5;
    let builder = Manager::builder()
        .budget(Bytes::mib(24))
        .user_mode_only(true)
        .tune(|tuning| tuning.fault_around(false));
    let manager = builder.build().expect("a manager");
    let region = manager.region(Bytes::mib(4)).create().expect("a region");
    let write =
        |page: usize, byte: u8| region.write_words(page * OS_PAGE, &[byte; OS_PAGE]).expect("written");
    let area = Area::of_region(region.as_ptr(), region.len() / OS_PAGE);
    for stores in [false, true] {
        (0..16).for_each(|page| write(page, page as u8 + 1));
        area.advise(FREED..FREED + 1, Advice::Free).expect("freed");
        write(FREED, 77);
        if stores {
            region.page_out(0, 16 * OS_PAGE).expect("stored");
        } else {
            stage(region.engine(), region.as_ptr().addr());
        }
        let source = RegionSource::begin(&region).expect("tracked");
        let mut reader = source.reader(true).expect("a reader");
        let mut other = Other::new(&region);
        // Not looked at by address: that would swap the rest in.
        let mut sees = |freed: u8, when: &str| {
            other.round(&source, &mut *reader);
            for (page, there) in other.image.chunks(OS_PAGE).take(16).enumerate() {
                let here = if page == FREED { freed } else { page as u8 + 1 };
                assert!(there == [here; OS_PAGE], "{when}: page {page} is {} for {here}", there[0]);
            }
        };
        sees(77, "written");
        write(FREED, 78);
        sees(78, "written again");
        region.discard(FREED * OS_PAGE, OS_PAGE).expect("discarded");
        sees(0, "discarded");
    }
}

/// Pages that were in the store for long, as a migration finds most.
#[test]
fn cold_pages_are_sent_as_the_store_has_packed_them() {
    if skip_without_moves("a live source of cold pages") {
        return;
    }
    let manager = Manager::builder().budget(Bytes::mib(24)).user_mode_only(true).build().expect("a manager");
    let region = manager.region(Bytes::mib(4)).create().expect("a region");
    let content: Vec<u8> = (0..region.len()).map(|i| (i / 7 % 251) as u8).collect();
    region.write_words(0, &content).expect("written");
    region.page_out(0, region.len()).expect("stored");
    region.engine().store.condense_all();
    let source = RegionSource::begin(&region).expect("tracked");
    let mut reader = source.reader(true).expect("a reader");
    let mut other = Other::new(&region);
    other.round(&source, &mut *reader);
    assert!(other.image == content);
    let most = (region.len() / BasePage::K64.bytes()) as u64;
    // One or another may have been busy, and stayed.
    assert!(other.whole > most / 2, "{} of {most} base pages", other.whole);
}

#[test]
fn a_page_that_stays_swapped_out_is_read_once() {
    if skip_without_moves("a live source") {
        return;
    }
    let manager = Manager::builder()
        .budget(Bytes::mib(24))
        .user_mode_only(true)
        .tune(|tuning| tuning.fault_around(false))
        .build()
        .expect("a manager");
    let mut region = manager.region(Bytes::mib(4)).create().expect("a region");
    for offset in (0..1 << 20).step_by(OS_PAGE) {
        region.write_at(offset, &[offset as u8 | 1, 2, 3]).expect("written");
    }
    // A page may be busy for a moment when it has just come, and stays then.
    let engine = manager.engine();
    let is_out = |index| {
        let table = engine.gate_exclusive();
        let span = table.find(region.as_ptr().addr()).expect("managed");
        let word = engine.take(span.entries(), index);
        give(span.entry(index), word);
        matches!(word.backing(), Backing::Handle(_)) && word.resident().is_empty()
    };
    let page_out = || {
        while !(0..16).all(is_out) {
            region.page_out(0, 1 << 20).expect("stored");
        }
    };
    page_out();
    let faults = manager.stats().faults_stored;
    let source = RegionSource::begin(&region).expect("tracked");
    let mut reader = source.reader(false).expect("a reader");
    let mut other = Other::new(&region);
    assert_eq!(other.round(&source, &mut *reader), 256);
    assert_eq!(other.round(&source, &mut *reader), 0);
    // One page comes in: it counts as written, and nothing else does.
    let mut byte = [0];
    region.read_at(5 * OS_PAGE, &mut byte).expect("read");
    // The handler may fetch ahead when the reader runs on already; it counts the fault after that.
    while manager.stats().faults < 17 {
        yield_now();
    }
    let mut came = other.round(&source, &mut *reader);
    loop {
        let later = other.round(&source, &mut *reader);
        came += later;
        assert!((1..=5 * 16).contains(&came), "{came} pages");
        if later == 0 {
            break;
        }
    }
    // And is evicted again: the swapped-out pages were not sent as they are. Prefetched ones may
    // have come after all.
    page_out();
    let went = other.round(&source, &mut *reader);
    assert!(went >= came.next_multiple_of(16) && went <= 5 * 16, "{went} pages, of {came}");
    assert_eq!(manager.stats().faults_stored, faults + 1, "nothing was brought in to be read");
    assert!((0..1 << 20).step_by(OS_PAGE).all(|offset| other.image[offset] == offset as u8 | 1));
}
