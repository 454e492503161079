//! Pages that go to the store's file: when they go, files that fail or lie, and concurrent frees
//! and reads.

use std::fs::File;
use std::os::fd::OwnedFd;

use pagoda_core::page::BasePage;
use pagoda_core::size::Bytes;
use pagoda_linux::io::direct_file::{AlignedBuffer, DirectFile};

use super::file::{Batch, FileTier};
use super::objects::Kind;
use super::spill::Written;
use super::tests::{assert_holds, config, page_of, stored, with_file, with_ring};
use super::*;
use crate::crypto::file_cipher::FileCipher;
use crate::store::fault_injection::{Fault, Faults, Plan};

#[test]
fn pages_that_do_not_shrink_go_to_the_file_by_themselves() {
    let (_directory, store, mut scratch) = with_file(BasePage::K64, Bytes::mib(32), Bytes::mib(64));
    let held: Vec<_> = (0..100).map(|i| page_of(64 << 10, 100, i)).collect();
    let handles: Vec<_> = held.iter().map(|page| stored(store.put(page, &mut scratch))).collect();
    assert!(store.usage().memory_used_bytes < Bytes::kib(1100), "{:?}", store.usage());
    handles.iter().zip(&held).for_each(|(handle, page)| assert_holds(&store, &mut scratch, *handle, page));
}

/// Segments of which a fifth is free: emptying whole ones takes far more than is to be freed.
#[test]
fn a_spill_writes_little_more_than_is_asked() {
    let (_directory, store, mut scratch) = with_file(BasePage::K64, Bytes::mib(16), Bytes::mib(64));
    let pages = (0..300).map(|i| page_of(64 << 10, 43, i));
    let handles: Vec<_> = pages.map(|page| stored(store.put(&page, &mut scratch))).collect();
    handles.iter().step_by(5).for_each(|handle| store.free(*handle));
    let used = store.usage().memory_used_bytes;
    let freed = store.spill(used.saturating_sub(Bytes::kib(512))).expect("room");
    assert!(freed >= Bytes::kib(512), "{freed}");
    assert!(store.usage().file_bytes <= Bytes::kib(1536), "{} for 512 KiB", store.usage().file_bytes);
}

#[test]
fn a_damaged_file_gives_an_error_and_never_data() {
    let (_directory, store, mut scratch) = with_file(BasePage::K64, Bytes::mib(2), Bytes::mib(8));
    let pages: Vec<_> = [43, 100].map(|percent| page_of(64 << 10, percent, percent)).into();
    let handles: Vec<_> = pages.iter().map(|page| stored(store.put(page, &mut scratch))).collect();
    store.spill(Bytes::ZERO).expect("room");
    let file = store.file.as_ref().expect("a file").raw_file();
    // Each slot in turn: one bit; the slot's content of elsewhere, intact; then mended again.
    let slots = store.usage().file_bytes.get() / 4096;
    let (mut good, mut bad) = (AlignedBuffer::new(4096), AlignedBuffer::new(4096));
    let mut refused = 0;
    for slot in 0..slots {
        file.read_at(slot * 4096, &mut good).expect("written");
        for elsewhere in [false, true] {
            file.read_at((slot + u64::from(elsewhere) * 3) % slots * 4096, &mut bad).expect("written");
            bad[1000] ^= u8::from(!elsewhere);
            file.write_at(slot * 4096, &bad).expect("room");
            for (handle, page) in handles.iter().zip(&pages) {
                let mut back = vec![0; page.len()];
                match store.get(*handle, 0, &mut back, &mut scratch) {
                    Ok(()) => assert!(back == *page),
                    Err(error) => {
                        assert_eq!(error, GetError::Corrupt);
                        refused += 1;
                    }
                }
            }
        }
        file.write_at(slot * 4096, &good).expect("room");
    }
    assert!(refused >= 2 * slots - 4, "{refused} of {slots} slots");
    handles.iter().zip(&pages).for_each(|(handle, page)| assert_holds(&store, &mut scratch, *handle, page));
}

/// A store whose file is this device.
fn store_over(path: &str, read: bool, write: bool) -> TieredStore {
    let file = File::options().read(read).write(write).open(path).expect("a device");
    let mut store = TieredStore::open(config(BasePage::K64, Bytes::mib(1), None)).expect("small");
    store.file =
        Some(FileTier::over(DirectFile::from(OwnedFd::from(file)), 64 << 20, FileCipher::of_key(&[5; 48])));
    *store.spiller.lock() = Some(Batch::new(Bytes::gib(1)));
    store
}

#[test]
fn unused_parts_of_the_file_go_back_to_the_disk() {
    let (_directory, store, mut scratch) = with_file(BasePage::K64, Bytes::mib(32), Bytes::mib(64));
    let pages: Vec<_> = (0..200).map(|i| page_of(64 << 10, 43, i)).collect();
    let mut put =
        || -> Vec<Handle> { pages.iter().map(|page| stored(store.put(page, &mut scratch))).collect() };
    let old = put();
    store.spill(Bytes::ZERO).expect("room");
    let file = store.file.as_ref().expect("a file");
    let before = file.raw_file().disk_bytes().expect("a file");
    assert!(!file.discard_unused(), "all of it is needed");
    old[..150].iter().for_each(|handle| store.free(*handle));
    while file.discard_unused() {}
    let after = file.raw_file().disk_bytes().expect("a file");
    assert!(after < before / 2, "{before} bytes before, {after} after");
    let new = put();
    store.spill(Bytes::ZERO).expect("room");
    for (handle, page) in new.iter().zip(&pages).chain(old[150..].iter().zip(&pages[150..])) {
        assert_holds(&store, &mut scratch, *handle, page);
    }
}

/// A store whose file is full but for gaps in which one page of `pages` has room each, and its
/// pages.
fn with_gaps(store: &TieredStore, scratch: &mut Scratch) -> Vec<(Handle, Vec<u8>)> {
    let mut held: Vec<_> = Vec::new();
    loop {
        let page = page_of(64 << 10, 43, held.len() as u64);
        held.push((stored(store.put(&page, scratch)), page));
        match store.spill(Bytes::ZERO) {
            Ok(_) => {}
            Err(PutError::Full) => break,
            Err(error) => panic!("{error}"),
        }
    }
    // The last one found no room, and two of three give theirs up.
    store.free(held.pop().expect("it was put").0);
    let mut index = 0;
    held.retain(|(handle, _)| {
        index += 1;
        let stays = index % 3 == 0;
        if !stays {
            store.free(*handle);
        }
        stays
    });
    held
}

#[test]
fn a_batch_goes_to_as_many_runs_at_once_as_it_takes() {
    let memory = Bytes::mib(128);
    let (_alone, plain, plain_scratch) = with_file(BasePage::K64, memory, Bytes::mib(2));
    let Some((_together, ring, ring_scratch)) = with_ring(BasePage::K64, memory, Bytes::mib(2)) else {
        return;
    };
    for (store, mut scratch, has_ring) in [(plain, plain_scratch, false), (ring, ring_scratch, true)] {
        let mut held = with_gaps(&store, &mut scratch);
        let _ = store.take_requests_together();
        for i in 0..12 {
            let page = page_of(64 << 10, 43, 1000 + i);
            held.push((stored(store.put(&page, &mut scratch)), page));
        }
        let mut spiller = store.spiller.lock();
        let batch = spiller.as_mut().expect("there is a file");
        batch.clear();
        store.gather(&mut store.memory.lock(), |state| &mut state.packed, batch);
        assert_eq!(batch.items.len(), 12);
        for item in batch.items.clone() {
            let (first, bytes) = (store.table.at(item.id).word().first(), batch.bytes_of(&item));
            store.memory.read(first, 0..bytes.len(), bytes);
        }
        let file = store.file.as_ref().expect("a file");
        let written = file.write(batch).expect("there are as many gaps");
        assert_eq!(written == 12, has_ring, "{written}: the part that fits one run, or all of it");
        assert!(store.settle(Some(Written::File(file)), batch, written) > 0);
        drop(spiller);
        // Two pages for each run, at most: where a gap lies before the free end of the file.
        assert_eq!(store.take_requests_together() >= 6, has_ring);
        held.iter().for_each(|(handle, page)| assert_holds(&store, &mut scratch, *handle, page));
        store.spill(Bytes::ZERO).expect("there are as many gaps");
        held.iter().for_each(|(handle, page)| assert_holds(&store, &mut scratch, *handle, page));
        held.iter().for_each(|(handle, _)| store.free(*handle));
        assert_eq!((store.usage().objects, store.usage().file_bytes), (0, Bytes::ZERO));
    }
}

#[test]
fn of_several_runs_nothing_is_placed_if_one_can_not_be_written() {
    let Some((_directory, mut store, mut scratch)) = with_ring(BasePage::K64, Bytes::mib(32), Bytes::mib(2))
    else {
        return;
    };
    let mut held = with_gaps(&store, &mut scratch);
    let before = store.usage().file_bytes;
    for i in 0..8 {
        let page = page_of(64 << 10, 43, 1000 + i);
        held.push((stored(store.put(&page, &mut scratch)), page));
    }
    for fault in [Fault::Error, Fault::Short, Fault::Disconnect] {
        store.file.as_mut().expect("a file").faults = Faults(Some(Plan::once(fault)));
        store.spill(Bytes::ZERO).expect_err("the first of them fails");
        assert_eq!(store.usage().file_bytes, before, "{fault:?}");
        held.iter().for_each(|(handle, page)| assert_holds(&store, &mut scratch, *handle, page));
    }
    store.spill(Bytes::ZERO).expect("it works again");
    assert!(store.take_requests_together() > 0);
    held.iter().for_each(|(handle, page)| assert_holds(&store, &mut scratch, *handle, page));
}

#[test]
fn a_failing_disk_is_told_from_a_full_one_and_loses_nothing() {
    for (read, expected) in [(true, "Full"), (false, "Io")] {
        // Written to, it is full; opened for reading only, writing fails.
        let store = store_over("/dev/full", true, read);
        let mut scratch = Scratch::new(BasePage::K64);
        let pages: Vec<_> = (0..16).map(|i| page_of(64 << 10, 43, i)).collect();
        let handles: Vec<_> = pages.iter().map(|page| stored(store.put(page, &mut scratch))).collect();
        let error = store.spill(Bytes::ZERO).expect_err("nowhere to");
        assert!(format!("{error:?}").starts_with(expected), "{error:?}");
        handles
            .iter()
            .zip(&pages)
            .for_each(|(handle, page)| assert_holds(&store, &mut scratch, *handle, page));
        handles.iter().for_each(|handle| store.free(*handle));
        assert_eq!((store.usage().memory_used_bytes, store.usage().file_bytes), (Bytes::ZERO, Bytes::ZERO));
    }
}

#[test]
fn a_file_that_can_not_be_read_or_ends_early_is_an_error() {
    let page = page_of(64 << 10, 43, 1);
    // Takes all writes; opened for writing only, reading fails, and otherwise it has no bytes.
    for read in [false, true] {
        let store = store_over("/dev/null", read, true);
        let mut scratch = Scratch::new(BasePage::K64);
        let handle = stored(store.put(&page, &mut scratch));
        store.spill(Bytes::ZERO).expect("it takes everything");
        let error = store.get(handle, 0, &mut vec![0; page.len()], &mut scratch).expect_err("no bytes");
        assert_eq!(matches!(error, GetError::Corrupt), read, "{error}");
        assert_eq!(error.errno() == 0, read, "{error}");
    }
}

/// The interleavings of one move, step by step: a free and a reader between the copy and its end.
#[test]
fn a_free_or_a_reader_during_a_spill_is_right() {
    let (_directory, store, mut scratch) = with_file(BasePage::K64, Bytes::mib(2), Bytes::mib(8));
    let pages: Vec<_> = (0..3).map(|i| page_of(64 << 10, 43, i)).collect();
    let handles: Vec<_> = pages.iter().map(|page| stored(store.put(page, &mut scratch))).collect();
    let file = store.file.as_ref().expect("a file");
    let mut batch = Batch::new(Bytes::gib(1));
    store.gather(&mut store.memory.lock(), |state| &mut state.packed, &mut batch);
    assert_eq!(batch.items.len(), 3);
    for item in batch.items.clone() {
        let (first, bytes) = (store.table.at(item.id).word().first(), batch.bytes_of(&item));
        store.memory.read(first, 0..bytes.len(), bytes);
    }
    store.free(handles[0]);
    let read = store.table.at(batch.items[1].id);
    assert!(read.enter(read.word()));
    assert_eq!(file.write(&mut batch), Ok(3));
    assert_holds(&store, &mut scratch, handles[2], &pages[2]);
    assert!(store.settle(Some(Written::File(file)), &batch, 3) > 0);
    read.leave();
    let kinds: Vec<Kind> = batch.items.iter().map(|item| store.table.at(item.id).word().kind()).collect();
    assert_eq!(kinds, [Kind::Free, Kind::Memory, Kind::File]);
    assert_holds(&store, &mut scratch, handles[1], &pages[1]);
    assert_holds(&store, &mut scratch, handles[2], &pages[2]);
    store.spill(Bytes::ZERO).expect("room");
    assert_holds(&store, &mut scratch, handles[1], &pages[1]);
    store.free(handles[1]);
    store.free(handles[2]);
    let usage = store.usage();
    assert_eq!((usage.objects, usage.memory_used_bytes, usage.file_bytes), (0, Bytes::ZERO, Bytes::ZERO));
}
