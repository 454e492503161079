//! Pages of which only some OS pages are there.

use pagoda_core::page::BasePage;
use pagoda_core::page_entry::Granules;
use pagoda_core::size::Bytes;

use super::tests::{assert_holds, page_of, stored, with_file};
use super::{Put, Store};

#[test]
fn absent_pages_are_stored_as_zeroes_and_are_not_counted() {
    let (_directory, store, mut scratch) = with_file(BasePage::K64, Bytes::mib(4), Bytes::mib(64));
    // Blocks that are not present hold old bytes.
    let mut page = page_of(64 << 10, 43, 1);
    let present = Granules::range(2, 3).or(Granules::range(9, 11));
    let mut expected = vec![0; page.len()];
    for (from, to) in present.runs() {
        let part = from as usize * 4096..to as usize * 4096;
        expected[part.clone()].copy_from_slice(&page[part]);
    }
    let handle = stored(store.put_present(&page, present, &mut scratch));
    assert_holds(&store, &mut scratch, handle, &expected);
    assert_eq!(store.holds(handle, 0, &expected, &mut scratch), Ok(true), "the digest is of all of it");
    let counted = |bytes| {
        assert_eq!((store.content_of(handle), store.usage().raw_bytes), (present, Bytes::new(bytes)));
    };
    counted(3 * 4096);
    store.spill(Bytes::ZERO).expect("room");
    counted(3 * 4096);
    assert_holds(&store, &mut scratch, handle, &expected);
    store.free(handle);
    assert_eq!(store.usage().raw_bytes, Bytes::ZERO);
    page[8192..12288].fill(0);
    assert_eq!(store.put_present(&page, Granules::range(2, 3), &mut scratch), Ok(Put::Zero));
}

#[test]
fn a_changed_page_counts_its_new_content() {
    let (_directory, store, mut scratch) = with_file(BasePage::K64, Bytes::mib(4), Bytes::mib(64));
    let page = page_of(64 << 10, 43, 1);
    let first = stored(store.put_present(&page, Granules::range(0, 1), &mut scratch));
    let change = 4096..12288;
    let anew = store.put_changed(first, std::slice::from_ref(&change), &page, &mut scratch);
    let anew = anew.expect("readable").expect("room");
    assert_eq!(store.content_of(anew), Granules::range(0, 3));
    assert_eq!(store.usage().raw_bytes, Bytes::new(4 * 4096));
    store.free(first);
    store.free(anew);
    assert_eq!(store.usage().raw_bytes, Bytes::ZERO);
}
