//! Keys of stores: each has its own, a child uses its parent's to read its parent's file, and the
//! disk sees no content.

use std::collections::HashSet;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use pagoda_core::page::BasePage;
use pagoda_core::space::extents::UNIT;
use pagoda_linux::io::direct_file::AlignedBuffer;
use pagoda_linux::io::holds::Holds;
use pagoda_linux::process::offer::{Lent, Stream};

use super::tests::{assert_holds, config, disk, page_of, stored, with_file};
use super::*;

#[test]
fn equal_pages_have_other_digests_in_each_engine_but_in_a_child_that_goes_by_its_parents() {
    let directory = disk();
    let open = || {
        TieredStore::open(config(BasePage::K64, Bytes::mib(8), Some((directory.path(), Bytes::mib(64)))))
            .expect("a disk")
    };
    let page = page_of(64 << 10, 100, 1);
    let (parent, child) = (open(), open());
    assert_ne!(parent.digest(&page), child.digest(&page));
    let mut scratch = Scratch::new(BasePage::K64);
    let handle = stored(parent.put(&page, &mut scratch));
    parent.spill(Bytes::ZERO).expect("room");
    let loan = parent.loan().expect("a file");
    let (_mine, theirs) = Stream::pair(Duration::from_secs(5)).expect("a stream");
    let (file, holds) = loan.descriptors();
    let number = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned().expect("a number");
    let lent = Lent {
        file: number(file.as_fd()).into(),
        holds: Holds::of(number(holds.as_fd())).expect("the same"),
    };
    assert!(child.borrow_from(lent, &parent.lent_keys(), &Arc::new(theirs)));
    let lent = child.borrow(&parent.lend(handle, &loan).expect("it is in the file")).expect("a number");
    assert_eq!(parent.digest(&page), child.digest(&page));
    assert_eq!(child.holds(lent, 0, &page, &mut scratch), Ok(true));
}

/// All that is in a store's file.
fn raw_content(store: &TieredStore) -> Vec<u8> {
    let file = store.file.as_ref().expect("a file");
    let mut slots = AlignedBuffer::new(file.used_units() as usize * UNIT);
    file.raw_file().read_at(0, &mut slots).expect("a disk");
    slots.to_vec()
}

#[test]
fn the_disk_sees_nothing_of_what_is_spilled_and_nothing_that_lay_in_the_buffer_before() {
    for base in [BasePage::K4, BasePage::K64] {
        // The last batch does not fit, and is written in part.
        let (_directory, store, mut scratch) = with_file(base, Bytes::mib(8), Bytes::mib(1));
        let mut held = Vec::new();
        let mut clear = HashSet::new();
        for i in 0..3 << 20 >> base.bytes().trailing_zeros() {
            let page = page_of(store.page_bytes(), [25, 43, 100][i % 3], i as u64);
            let handle = stored(store.put(&page, &mut scratch));
            if store.is_in_memory(handle) {
                let packed = store.get_packed(handle, &mut scratch).expect("in memory").unwrap_or(&page);
                clear.extend(packed.chunks_exact(16).map(<[u8]>::to_vec));
            }
            held.push((handle, page));
        }
        // The remains of other batches.
        store.spiller.lock().as_mut().expect("there is a file").buffer.fill(0xa5);
        clear.insert(vec![0xa5; 16]);
        clear.remove(&vec![0; 16]);
        assert_eq!(store.spill(Bytes::ZERO), Err(PutError::Full));
        let raw = raw_content(&store);
        assert!(raw.len() > 1000 << 10, "{}", raw.len());
        assert_eq!(raw.windows(16).filter(|bytes| clear.contains(*bytes)).count(), 0, "{base}");
        held.iter().for_each(|(handle, page)| assert_holds(&store, &mut scratch, *handle, page));
    }
}

#[test]
fn equal_pages_are_stored_as_other_bytes_in_each_place_of_a_file() {
    let (_directory, store, mut scratch) = with_file(BasePage::K4, Bytes::mib(8), Bytes::mib(8));
    let page = page_of(4096, 100, 1);
    let handles: Vec<Handle> = (0..300).map(|_| stored(store.put(&page, &mut scratch))).collect();
    store.spill(Bytes::ZERO).expect("room");
    let raw = raw_content(&store);
    let mut seen = HashSet::new();
    assert!(raw.len() >= 300 * 4096 && raw.chunks(4096).all(|slot| seen.insert(slot)));
    handles.iter().for_each(|handle| assert_holds(&store, &mut scratch, *handle, &page));
}
