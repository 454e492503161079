use pagoda_core::page::BasePage;

use super::*;
use crate::store::Store;
use crate::store::tests::{assert_holds, page_of, stored, with_file};

fn spilled(store: &TieredStore, scratch: &mut Scratch) -> Vec<(Handle, Vec<u8>)> {
    let pages = (0..20).map(|i| page_of(64 << 10, if i % 5 == 0 { 100 } else { 43 }, i));
    let held: Vec<_> = pages.map(|page| (stored(store.put(&page, scratch)), page)).collect();
    store.spill(Bytes::ZERO).expect("room");
    held
}

#[test]
fn an_object_in_both_places_leaves_memory_without_a_write_and_is_freed_in_both() {
    let (_directory, store, mut scratch) = with_file(BasePage::K64, Bytes::mib(4), Bytes::mib(64));
    let held = spilled(&store, &mut scratch);
    let before = store.usage();
    assert_eq!(before.memory_used_bytes, Bytes::ZERO);
    let place = |handle: Handle| match handle.meaning() {
        Meaning::Object(id) => store.table.at(id).word().first(),
        Meaning::SameFilled(_) | Meaning::Image(_) => panic!("a page of one word"),
    };
    let places: Vec<_> = held.iter().map(|(handle, _)| place(*handle)).collect();
    for (handle, page) in &held {
        assert_eq!(store.promote(*handle, &mut scratch), Ok(true));
        assert!(store.is_in_memory(*handle) && store.is_kept(*handle));
        assert_holds(&store, &mut scratch, *handle, page);
    }
    assert_eq!(store.usage().file_bytes, before.file_bytes);
    store.demote(held[0].0);
    // Packed pages: a part is known again without being read, and told from another.
    let (handle, page) = &held[1];
    store.demote(*handle);
    for from in (0..65536).step_by(4096) {
        let mut part = page[from..from + 4096].to_vec();
        assert_eq!(store.holds(*handle, from, &part, &mut scratch), Ok(true), "the part at {from}");
        let mut back = vec![0; 4096];
        let digest =
            store.read_block(*handle, from / 4096, &mut back, &mut scratch).expect("a disk").expect("known");
        assert!(back == part && store.is_block(*handle, from / 4096, digest));
        part[from / 16] ^= 1;
        assert_eq!(store.holds(*handle, from, &part, &mut scratch), Ok(false), "another at {from}");
    }
    assert!(!store.is_in_memory(held[0].0) && !store.is_kept(held[0].0));
    store.spill(Bytes::ZERO).expect("nothing is written");
    assert_eq!(places, held.iter().map(|(handle, _)| place(*handle)).collect::<Vec<_>>());
    let after = store.usage();
    assert_eq!((after.memory_used_bytes, after.file_bytes), (Bytes::ZERO, before.file_bytes));
    held.iter().for_each(|(handle, page)| assert_holds(&store, &mut scratch, *handle, page));
    assert_eq!(store.promote(held[1].0, &mut scratch), Ok(true));
    held.iter().for_each(|(handle, _)| store.free(*handle));
    let usage = store.usage();
    assert_eq!((usage.objects, usage.memory_used_bytes, usage.file_bytes), (0, Bytes::ZERO, Bytes::ZERO));
}

#[test]
fn a_page_stored_anew_has_no_place_in_the_file() {
    let (_directory, store, mut scratch) = with_file(BasePage::K64, Bytes::mib(4), Bytes::mib(64));
    let (handle, mut page) = spilled(&store, &mut scratch).swap_remove(1);
    assert_eq!(store.promote(handle, &mut scratch), Ok(true));
    let before = store.usage().file_bytes;
    page[8192..12288].copy_from_slice(&page_of(4096, 43, 77));
    let changed = 8192..12288;
    let anew = store.put_changed(handle, std::slice::from_ref(&changed), &page, &mut scratch);
    let anew = anew.expect("stored").expect("room");
    let (_, digest) = match handle.meaning() {
        Meaning::Object(id) => store.blocks.place(id, 0).expect("noted"),
        Meaning::SameFilled(_) | Meaning::Image(_) => panic!("a page of one word"),
    };
    assert!(store.is_block(handle, 0, digest));
    store.free(handle);
    let again = stored(store.put(&page_of(64 << 10, 43, 99), &mut scratch));
    assert_eq!(again, handle, "the number of the last freed object");
    assert!(!store.is_block(again, 0, digest), "of another page that had it");
    assert_eq!(store.read_block(again, 0, &mut [0; 4096], &mut scratch), Ok(None));
    store.free(again);
    assert!(!store.is_kept(anew) && store.usage().file_bytes < before);
    assert_holds(&store, &mut scratch, anew, &page);
}
