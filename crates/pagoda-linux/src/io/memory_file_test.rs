use std::os::fd::AsRawFd;

use rustix::fs::{MemfdFlags, fcntl_add_seals, memfd_create};

use super::*;
use crate::io::shared_file::memory_file;
use crate::testing::shared::SharedMapping;
use crate::testing::skip::skip;

const LEN: usize = 4 * OS_PAGE;

fn memory() -> File {
    memory_file(c"test", LEN as u64).expect("a memfd")
}

fn reason(outcome: io::Result<()>) -> String {
    outcome.expect_err("refused").to_string()
}

#[test]
fn memory_is_told_from_other_files() {
    check_kind(&memory()).expect("a memfd");
    check_kind(&tempfile::tempfile_in("/dev/shm").expect("a file")).expect("a file of tmpfs");
    let on_disk = tempfile::tempfile_in("/var/tmp").expect("a file");
    assert!(reason(check_kind(&on_disk)).contains("no shared memory"));
    assert!(reason(check_kind(&File::open("/dev/shm").expect("there"))).contains("no shared memory"));
    match memfd_create(c"huge", MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB) {
        Ok(huge) => assert!(reason(check_kind(&huge.into())).contains("huge pages")),
        Err(error) => skip("memory of huge pages", error),
    }
}

#[test]
fn only_what_can_be_written_is_received_into() {
    let file = memory();
    check_writable(&file).expect("a memfd");
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let read_only = File::open(&path).expect("opened");
    check_kind(&read_only).expect("it can be sent");
    assert!(reason(check_writable(&read_only)).contains("read only"));
    let write_only = File::options().write(true).open(&path).expect("opened");
    assert!(reason(check_kind(&write_only)).contains("written only"));
    let appends = File::options().read(true).append(true).open(&path).expect("opened");
    assert!(reason(check_writable(&appends)).contains("O_APPEND"));
    for (seal, refused) in [
        (SealFlags::GROW | SealFlags::SHRINK, false),
        (SealFlags::FUTURE_WRITE, true),
        (SealFlags::WRITE, true),
    ] {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(memfd_create(c"sealed", flags).expect("a memfd"));
        fcntl_add_seals(&file, seal).expect("sealed");
        check_kind(&file).expect("it can be sent");
        assert_eq!(check_writable(&file).is_err(), refused, "{seal:?}");
    }
}

#[test]
fn a_mapping_is_known_by_its_file_and_its_place_there() {
    let (file, other) = (memory(), memory());
    let whole = SharedMapping::of(&file, 0, LEN).expect("mapped");
    check_shows(whole.range(), &file, 0).expect("all of it");
    let part = PageRange::at(whole.range().start() + OS_PAGE, OS_PAGE);
    check_shows(part, &file, OS_PAGE as u64).expect("a part of it");
    assert!(reason(check_shows(part, &file, 0)).contains(&format!("{:#x}", part.start())));
    assert!(check_shows(whole.range(), &other, 0).is_err(), "another file");
    let behind = PageRange::at(whole.range().start() + OS_PAGE, LEN);
    let refused = reason(check_shows(behind, &file, OS_PAGE as u64));
    assert!(refused.contains(&format!("{:#x}", whole.range().end())), "{refused}");
    let moved = SharedMapping::of(&file, OS_PAGE as u64, OS_PAGE).expect("mapped");
    check_shows(moved.range(), &file, OS_PAGE as u64).expect("a part of the file");
}
