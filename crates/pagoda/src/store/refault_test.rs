use pagoda_core::page::BasePage;

use super::*;
use crate::store::Store;
use crate::store::tests::{page_of, stored, with_file};

#[test]
fn a_refault_is_near_by_what_left_since() {
    let (_directory, store, mut scratch) = with_file(BasePage::K64, Bytes::mib(4), Bytes::mib(64));
    let put = |seed| page_of(64 << 10, 43, seed);
    let handles: Vec<_> = (0..4).map(|seed| stored(store.put(&put(seed), &mut scratch))).collect();
    let counts = || {
        let mut seen = Refaults { near_bytes: 30 << 12, edge_bytes: 1 << 20, ..Refaults::default() };
        store.count_soon(&mut seen);
        (seen.near, seen.near_spilled, seen.edge)
    };
    assert_eq!(counts(), (0, 0, 0));
    for handle in &handles {
        store.note_evicted(*handle, Granules::range(0, 15));
    }
    // 45, 30, 15 and 0 granules left since.
    for (handle, near) in handles.iter().zip([0, 1, 2, 3]) {
        store.note_refault(*handle, 3);
        assert_eq!(counts(), (near, 0, 0));
    }
    store.spill(Bytes::ZERO).expect("room");
    store.note_refault(handles[0], 3);
    assert_eq!(counts(), (3, 0, 1), "all went within a MiB");
    store.note_refault(handles[3], 3);
    assert_eq!(counts(), (3, 1, 2), "it left memory last");
    store.note_refault(handles[3], 15);
    assert_eq!(counts(), (3, 1, 3), "this granule had not been there");
    assert!((45..=50).contains(&(store.lacks().get() >> 12)), "{}: the furthest is 45", store.lacks());
    store.note_held(40 << 12);
    let lately: Vec<_> = handles.iter().map(|handle| store.left_lately(*handle, 3)).collect();
    assert_eq!(lately, [false, true, true, true], "40 granules are held");
    assert_eq!(store.promote(handles[0], &mut scratch), Ok(true));
    store.note_refault(handles[0], 3);
    assert_eq!(counts(), (3, 1, 3), "it has not left memory since");
}

#[test]
fn promotions_end_where_the_displaced_are_missed_and_begin_anew_where_the_promoted_are() {
    let (_directory, store, mut scratch) = with_file(BasePage::K64, Bytes::mib(4), Bytes::mib(64));
    let put = |seed| page_of(64 << 10, 43, seed);
    let handles: Vec<_> = (0..40).map(|seed| stored(store.put(&put(seed), &mut scratch))).collect();
    store.note_held(0);
    store.spill(Bytes::ZERO).expect("room");
    let pays = || (0..promotion::TRIES).filter(|_| store.promotion_pays()).count() as u64;
    // Rounds of promotions, each of which displaces the page before it. The first one displaces
    // none.
    let mut rounds = |misses_displaced: bool| {
        for pair in handles.windows(2).chain(handles.windows(2)) {
            assert_eq!(store.promote(pair[1], &mut scratch), Ok(true));
            store.note_promoted(pair[1]);
            store.demote(pair[0]);
            store.note_refault(pair[usize::from(!misses_displaced)], 3);
        }
        store.demote(handles[39]);
    };
    assert_eq!(pays(), promotion::TRIES, "nothing is known");
    rounds(true);
    assert_eq!(pays(), 1, "to see whether it does");
    rounds(false);
    rounds(false);
    assert_eq!(pays(), promotion::TRIES);
}
