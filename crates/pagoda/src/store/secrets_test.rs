//! Keys of stores: each has its own, and a child goes by its parent's where it reads what its parent has written.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use pagoda_core::page::BasePage;
use pagoda_linux::io::holds::Holds;
use pagoda_linux::process::offer::{Lent, Stream};

use super::tests::{config, disk, page_of, stored};
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
