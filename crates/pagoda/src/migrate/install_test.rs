//! Arriving content where no memory can be had, beside a file: its calls fail by themselves, so
//! that the reclaimer waits for them.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use pagoda_core::page::OS_PAGE;
use pagoda_core::size::Bytes;
use pagoda_linux::testing::area::Area;
use pagoda_linux::testing::directory::on_disk;
use pagoda_linux::testing::skip::{skip, skip_without_moves};

use super::*;
use crate::Manager;

#[test]
fn content_arriving_where_no_memory_can_be_had_is_an_error_also_beside_a_file() {
    if skip_without_moves("arriving without memory") {
        return;
    }
    let file = tempfile::NamedTempFile::new_in(on_disk()).expect("room");
    std::fs::write(file.path(), vec![7; 1 << 20]).expect("room");
    let manager = Manager::builder().budget(Bytes::mib(64)).user_mode_only(true);
    let manager = manager.give_up(Duration::from_secs(1)).build().expect("manager");
    let pinned = manager.region(Bytes::mib(40)).create().expect("region");
    let pages = pinned.len() / OS_PAGE;
    (0..pages).for_each(|page| {
        pinned.write_words(page * OS_PAGE, &[(page % 239) as u8 + 1; OS_PAGE]).expect("written");
    });
    let area = Area::of_region(pinned.as_ptr(), pages);
    if let Err(error) = area.lock(0..pages, true) {
        return skip("arriving without memory", error);
    }
    let mapped = manager.map_file(file.path()).map().expect("a disk");
    manager.resize_zone("all", Bytes::mib(24)).expect("within its addresses");
    let fresh = manager.region(Bytes::mib(32)).create().expect("region");
    let (done, all) = channel();
    // Not of a scope: one that waits for ever can't be waited for.
    std::thread::spawn(move || {
        let memory = fresh.memory();
        let mut scratch = Scratch::new(fresh.engine().base);
        let mut arrive = |page: usize| {
            let at = PageRange::page(memory.range().start() + page * OS_PAGE);
            fresh.engine().receive(at, &[page as u8 | 1; OS_PAGE], memory, &mut scratch)
        };
        let failed = (0..fresh.len() / OS_PAGE).find_map(|page| arrive(page).err());
        manager.resize_zone("all", Bytes::mib(64)).expect("within its addresses");
        let later = arrive(0);
        done.send((failed.map(|error| error.kind()), later.is_ok())).expect("the test waits");
    });
    match all.recv_timeout(Duration::from_secs(120)) {
        Ok(outcome) => assert_eq!(outcome, (Some(io::ErrorKind::OutOfMemory), true)),
        Err(RecvTimeoutError::Timeout) => panic!("arriving content waits for memory forever"),
        Err(RecvTimeoutError::Disconnected) => panic!("the arrival went wrong"),
    }
    area.lock(0..pages, false).expect("it was locked");
    drop(mapped);
}
