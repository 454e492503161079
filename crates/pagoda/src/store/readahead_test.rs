use pagoda_core::page::BasePage;
use pagoda_core::size::Bytes;
use pagoda_linux::io::direct_file::AlignedBuffer;

use super::*;
use crate::store::fault_injection::{Fault, Faults, Plan};
use crate::store::tests::{assert_holds, page_of, stored, with_file, with_ring};
use crate::store::{GetError, Scratch, Store};

type Held = Vec<(Handle, Vec<u8>)>;

fn spilled(store: &TieredStore, scratch: &mut Scratch, percents: &[u64]) -> Held {
    let page = |(i, percent): (usize, &u64)| page_of(store.page_bytes(), *percent, i as u64);
    let held = percents.iter().enumerate().map(page);
    let held: Held = held.map(|page| (stored(store.put(&page, scratch)), page)).collect();
    store.spill(Bytes::ZERO).expect("room");
    held
}

/// Pages that shrink and others that do not, in turn, and pages between them in the file. Those
/// that did not shrink lie in front.
fn apart(store: &TieredStore, scratch: &mut Scratch) -> (Held, Held) {
    let mut between = spilled(store, scratch, &[&[43; 7][..], &[43, 100].repeat(7)].concat());
    let held = between.split_off(7);
    (held, between)
}

fn handles(held: &Held) -> Vec<Handle> {
    held.iter().map(|(handle, _)| *handle).collect()
}

#[test]
fn objects_spilled_together_come_with_one_read_and_leave_without_a_write() {
    for base in [BasePage::K4, BasePage::K64] {
        let (_directory, store, mut scratch) = with_file(base, Bytes::mib(64), Bytes::mib(64));
        let held = spilled(&store, &mut scratch, &[43; 5]);
        let (before, all) = (store.usage(), handles(&held));
        assert_eq!(store.promote_together(all[0], &all[1..]), 5, "{base}");
        assert_eq!(store.file_reads(), 1);
        for (handle, page) in &held {
            assert!(store.is_in_memory(*handle) && store.is_kept(*handle));
            assert_holds(&store, &mut scratch, *handle, page);
        }
        assert_eq!(store.file_reads(), 1, "from memory");
        assert_eq!(store.promote_together(all[0], &all[1..]), 0, "they are there");
        all.iter().for_each(|handle| store.demote(*handle));
        let usage = store.usage();
        assert_eq!((usage.memory_used_bytes, usage.file_bytes), (Bytes::ZERO, before.file_bytes));
        held.iter().for_each(|(handle, page)| assert_holds(&store, &mut scratch, *handle, page));
        all.iter().for_each(|handle| store.free(*handle));
        assert_eq!((store.usage().objects, store.usage().file_bytes), (0, Bytes::ZERO));
    }
}

#[test]
fn objects_before_are_read_and_those_elsewhere_are_not() {
    let (_directory, store, mut scratch) = with_file(BasePage::K64, Bytes::mib(64), Bytes::mib(64));
    let (held, _between) = apart(&store, &mut scratch);
    let all = handles(&held);
    assert_eq!(store.promote_together(all[0], &[]), 0);
    assert_eq!(store.file_reads(), 0, "there is nothing that comes with it");
    assert_eq!(store.promote_together(all[4], &all[..4]), 3);
    assert_eq!(store.promote_together(all[6], &all[7..]), 4);
    assert!(all.iter().step_by(2).all(|handle| store.is_in_memory(*handle)));
    assert_eq!(store.promote_together(all[1], &all[2..]), 6, "as much as is read at once");
    assert_eq!(store.file_reads(), 3);
    held.iter().for_each(|(handle, page)| assert_holds(&store, &mut scratch, *handle, page));
}

#[test]
fn with_a_ring_objects_elsewhere_are_read_at_the_same_time() {
    let Some((_directory, mut store, mut scratch)) = with_ring(BasePage::K64, Bytes::mib(64), Bytes::mib(64))
    else {
        return;
    };
    let (held, between) = apart(&store, &mut scratch);
    let all = handles(&held);
    let _ = store.take_requests_together();
    // One of the two reads fails, or brings something else.
    for fault in [Fault::Error, Fault::Short] {
        store.file.as_mut().expect("a file").faults = Faults(Some(Plan::once(fault)));
        assert_eq!(store.promote_together(all[0], &all[1..]), 0, "{fault:?}");
        assert!(all.iter().all(|handle| store.is_in_file(*handle)));
    }
    store.file.as_mut().expect("a file").faults = Faults(Some(Plan::once(Fault::Corrupt)));
    assert_eq!(store.promote_together(all[0], &all[1..]), 1, "of the other stretch");
    assert!(store.is_in_file(all[0]) && store.is_in_memory(all[1]));
    let (reads, _) = (store.file_reads(), store.take_requests_together());
    assert_eq!(store.promote_together(all[0], &all[2..]), 8, "as much as is read at once");
    assert_eq!((store.file_reads() - reads, store.take_requests_together()), (2, 2));
    held.iter().for_each(|(handle, page)| assert_holds(&store, &mut scratch, *handle, page));
    held.iter().chain(&between).for_each(|(handle, _)| store.free(*handle));
    assert_eq!((store.usage().objects, store.usage().file_bytes), (0, Bytes::ZERO));
}

#[test]
fn a_damaged_neighbour_of_a_page_stays_in_place() {
    let (_directory, store, mut scratch) = with_file(BasePage::K64, Bytes::mib(64), Bytes::mib(64));
    let held = spilled(&store, &mut scratch, &[43; 4]);
    let all = handles(&held);
    let file = store.file.as_ref().expect("a file").raw_file();
    let (_, word, units) = store.in_file(all[2]).expect("there");
    let at = u64::from(units.slots().first + 1) * SLOT as u64;
    let mut slot = AlignedBuffer::new(SLOT);
    file.read_at(at, &mut slot).expect("written");
    slot[100] ^= 1;
    file.write_at(at, &slot).expect("room");
    assert!(word.len() > 2 * SLOT);
    assert_eq!(store.promote_together(all[0], &all[1..]), 3);
    assert!(store.is_in_file(all[2]));
    for i in [0, 1, 3] {
        assert!(store.is_in_memory(all[i]));
        assert_holds(&store, &mut scratch, all[i], &held[i].1);
    }
    let mut back = vec![0; 64 << 10];
    assert_eq!(store.get(all[2], 0, &mut back, &mut scratch), Err(GetError::Corrupt), "a fetch of it");
}

#[test]
fn no_read_waits_for_a_mover_and_nothing_is_written_to_make_room() {
    let (_directory, store, mut scratch) = with_file(BasePage::K64, Bytes::mib(2), Bytes::mib(64));
    let held = spilled(&store, &mut scratch, &[43; 5]);
    let all = handles(&held);
    let spiller = store.spiller.lock();
    assert_eq!(store.promote_together(all[0], &all[1..]), 0);
    drop(spiller);
    // Memory is full of objects that are nowhere else.
    let young = (0..20).map(|i| page_of(64 << 10, 43, 100 + i));
    let young: Held = young.map(|page| (stored(store.put(&page, &mut scratch)), page)).collect();
    while store.memory.reserve_copy(512, 0).is_some() {}
    let before = store.usage();
    assert_eq!(store.promote_together(all[0], &all[1..]), 0);
    assert_eq!(store.usage().file_bytes, before.file_bytes);
    held.iter().chain(&young).for_each(|(handle, page)| assert_holds(&store, &mut scratch, *handle, page));
}
