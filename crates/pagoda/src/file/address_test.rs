//! Files that are used by address: writes are written back in the background, and a page that can't
//! be read raises SIGBUS. Where no memory can be had calls fail and the process goes on.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use pagoda_core::page::{BasePage, OS_PAGE};
use pagoda_core::size::Bytes;
use pagoda_linux::testing::address::load;
use pagoda_linux::testing::area::Area;
use pagoda_linux::testing::skip::{skip, skip_without_moves};
use pagoda_linux::testing::wait::{until, until_ended};

use super::super::FileError;
use super::super::tests::mapped;
use crate::Manager;
use crate::file::orders::{Part, Reader};

#[test]
fn writes_by_address_are_written_back_before_too_much_is_dirty() {
    if skip_without_moves("dirty limits by address") {
        return;
    }
    // At the same time: both wait for looks of their writers, and for nothing most of the time.
    std::thread::scope(|scope| {
        for base in [BasePage::K4, BasePage::K64] {
            scope.spawn(move || are_written_back(base));
        }
    });
}

fn are_written_back(base: BasePage) {
    let (file, manager, region) = mapped(base);
    let inner = region.inner();
    if inner.engine().space.track_writes(inner.range).is_err() {
        return skip("dirty limits by address", "writes can't be tracked here");
    }
    // Less than the budget: without a limit next to nothing of it would be written. A page that
    // is staged during the look is not seen. Again and again, as pages are protected again and
    // again.
    for value in [7u8, 8, 9] {
        let before = region.stats().written;
        for page in 0..(10 << 20) / OS_PAGE {
            inner.memory().write_words(page * OS_PAGE, &[value; OS_PAGE]);
        }
        until("the excess is written back", || {
            std::thread::sleep(Duration::from_millis(20));
            region.stats().written.get() >= before.get() + (4 << 20)
        });
        until("and known to be", || region.stats().dirty <= Bytes::new((16 << 20) / 10));
    }
    assert_eq!(manager.stats().stores, 0);
    // A page that is only read is not dirty, however it came in.
    region.sync().expect("a disk");
    let written = region.stats().written;
    for page in 0..(10 << 20) / OS_PAGE {
        assert_eq!(load(region.as_ptr().wrapping_add(page * OS_PAGE)), [9; 1], "page {page}");
    }
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!((region.stats().dirty, region.stats().written), (Bytes::ZERO, written));
    drop(region);
    let found = std::fs::read(file.path()).expect("it is there");
    assert!(found[..10 << 20] == vec![9; 10 << 20]);
}

const UNREADABLE: &str = "file::region::address_test::touching_a_page_that_can_not_be_read_is_a_bus_error";

#[test]
fn touching_a_page_that_can_not_be_read_is_a_bus_error() {
    const ROLE: &str = "PAGODA_UNREADABLE_BY_ADDRESS";
    if skip_without_moves("bus errors of disks that fail") {
        return;
    }
    if std::env::var_os(ROLE).is_none() {
        let mut command = Command::new(std::env::current_exe().expect("a path"));
        command.args(["--exact", UNREADABLE, "--nocapture"]).env(ROLE, "yes");
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("a process");
        let status = until_ended("a failing disk", &mut child).expect("waited for");
        assert_eq!(status.signal(), Some(7), "SIGBUS, not {status}");
        return;
    }
    let (_file, _manager, region) = mapped(BasePage::K64);
    let at = |page: usize| load::<1>(region.as_ptr().wrapping_add(page * OS_PAGE))[0];
    // In order, so that more is read ahead: a failure there is no caller's yet.
    (0..64).for_each(|page| assert_eq!(at(page), (page % 251) as u8));
    let failing = &region.inner().file.failing;
    failing.reads.store(true, Ordering::Release);
    let part = Part { entries: 400..408, marker: 400, begin: 400, reader: Reader::InRegion };
    let inner = region.inner();
    inner.engine().read_part(&inner.file, inner.range, &part, &mut crate::store::Scratch::new(BasePage::K64));
    failing.reads.store(false, Ordering::Release);
    (400 * 16..408 * 16).for_each(|page| assert_eq!(at(page), (page % 251) as u8));
    failing.reads.store(true, Ordering::Release);
    assert_eq!(at(0), 0, "a page in memory is there");
    // This ends the process.
    let page = 600 * 16 + 3;
    assert_eq!(at(page), (page % 251) as u8);
    std::process::exit(3);
}

#[test]
fn a_call_that_no_memory_can_be_had_for_fails_and_the_process_goes_on() {
    if skip_without_moves("calls without memory") {
        return;
    }
    let (file, other, region) = mapped(BasePage::K64);
    drop((region, other));
    let manager = Manager::builder().budget(Bytes::mib(64)).user_mode_only(true);
    let manager = manager.give_up(Duration::from_secs(1)).build().expect("manager");
    let mut pinned = manager.region(Bytes::mib(40)).create().expect("region");
    for page in 0..pinned.len() / OS_PAGE {
        pinned.write_at(page * OS_PAGE, &[(page % 239) as u8 + 1; OS_PAGE]).expect("written");
    }
    let region = manager.map_file(file.path()).map().expect("a disk");
    let pages = pinned.len() / OS_PAGE;
    let area = Area::of_region(pinned.as_ptr(), pages);
    if let Err(error) = area.lock(0..pages, true) {
        return skip("calls without memory", error);
    }
    manager.resize_zone("all", Bytes::mib(24)).expect("within its addresses");
    let read = |page: usize| {
        let mut byte = [0];
        region.read_at(page * OS_PAGE, &mut byte).map(|()| assert_eq!(byte[0], (page % 251) as u8))
    };
    let all = region.len() / OS_PAGE;
    // Two at once: each waits a second before it fails.
    let outcomes = std::thread::scope(|scope| {
        let upwards = scope.spawn(|| (0..all).step_by(16).map(read).find(Result::is_err));
        let downwards = (0..all).rev().step_by(16).map(read).find(Result::is_err);
        [upwards.join().expect("each page is right"), downwards]
    });
    for outcome in outcomes {
        assert_eq!(outcome, Some(Err(FileError::NoMemory)), "40 MiB can't leave, and 24 are allowed");
    }
    // And it is no end: the next call may find some.
    manager.resize_zone("all", Bytes::mib(64)).expect("within its addresses");
    (0..all).step_by(16).for_each(|page| read(page).expect("there is room"));
    area.lock(0..pages, false).expect("it was locked");
    for page in 0..pages {
        let mut found = [0; OS_PAGE];
        pinned.read_at(page * OS_PAGE, &mut found).expect("read");
        assert!(found == [(page % 239) as u8 + 1; OS_PAGE], "page {page}");
    }
}
