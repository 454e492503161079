use pagoda_core::page::BasePage;
use pagoda_core::size::Bytes;

use super::*;
use crate::store::Store;
use crate::store::tests::{assert_holds, config, page_of, stored, with_file};

/// `page` with one byte of its granule at `from` changed, as the content of a slot that has
/// that granule alone.
fn with_a_change(page: &mut [u8], from: usize) -> Vec<u8> {
    page[from + 100] ^= 1;
    let mut content = vec![0xee; page.len()];
    content[from..from + 4096].copy_from_slice(&page[from..from + 4096]);
    content
}

#[test]
fn a_written_block_takes_the_place_of_the_old_one() {
    let store = TieredStore::open(config(BasePage::K64, Bytes::mib(16), None)).expect("memory");
    let mut scratch = Scratch::new(BasePage::K64);
    let mut pages: Vec<_> = (0..40).map(|i| page_of(64 << 10, 25, i)).collect();
    let handles: Vec<_> = pages.iter().map(|page| stored(store.put(page, &mut scratch))).collect();
    let before = store.usage();
    let mut in_place = 0;
    for (round, at) in (0..16).map(|granule| granule * 4096).enumerate() {
        for (page, handle) in pages.iter_mut().zip(&handles) {
            let old = page.clone();
            let content = with_a_change(page, at);
            if store.rewrite(*handle, std::slice::from_ref(&(at..at + 4096)), &content, &mut scratch) {
                in_place += 1;
            } else {
                *page = old;
            }
            assert_holds(&store, &mut scratch, *handle, page);
        }
        assert_eq!(store.usage().memory_used_bytes, before.memory_used_bytes, "round {round}");
    }
    assert!(in_place > 40 * 16 / 2, "{in_place} of {} blocks", 40 * 16);
}

#[test]
fn a_block_that_takes_other_room_leaves_the_page_as_it_was() {
    let store = TieredStore::open(config(BasePage::K64, Bytes::mib(16), None)).expect("memory");
    let mut scratch = Scratch::new(BasePage::K64);
    let page = page_of(64 << 10, 25, 3);
    let handle = stored(store.put(&page, &mut scratch));
    for other in [vec![0; 64 << 10], page_of(64 << 10, 100, 4)] {
        assert!(!store.rewrite(handle, std::slice::from_ref(&(8192..12288)), &other, &mut scratch));
        assert_holds(&store, &mut scratch, handle, &page);
    }
    // Nor is one block of two written alone.
    let mut changed = page.clone();
    let mut content = with_a_change(&mut changed, 0);
    content[4096..8192].fill(0);
    assert!(!store.rewrite(handle, std::slice::from_ref(&(0..8192)), &content, &mut scratch));
    assert_holds(&store, &mut scratch, handle, &page);
}

#[test]
fn a_page_that_is_elsewhere_too_is_never_rewritten() {
    let (_directory, store, mut scratch) = with_file(BasePage::K64, Bytes::mib(4), Bytes::mib(64));
    let mut page = page_of(64 << 10, 25, 5);
    let handle = stored(store.put(&page, &mut scratch));
    store.spill(Bytes::ZERO).expect("room");
    let content = with_a_change(&mut page.clone(), 0);
    let change = 0..4096;
    let change = std::slice::from_ref(&change);
    assert!(!store.rewrite(handle, change, &content, &mut scratch), "it is in the file");
    assert_eq!(store.promote(handle, &mut scratch), Ok(true));
    assert!(!store.rewrite(handle, change, &content, &mut scratch), "it is there, too");
    assert_holds(&store, &mut scratch, handle, &page);
    let Meaning::Object(id) = handle.meaning() else { panic!("a page of one word") };
    store.demote(handle);
    store.free(handle);
    let handle = stored(store.put(&page, &mut scratch));
    store.table.at(id).flag(MOVING, 0);
    assert!(!store.rewrite(handle, change, &content, &mut scratch), "it is moving");
    store.table.at(id).flag(0, MOVING);
    let content = with_a_change(&mut page, 0);
    assert!(store.rewrite(handle, change, &content, &mut scratch));
    assert_holds(&store, &mut scratch, handle, &page);
}
