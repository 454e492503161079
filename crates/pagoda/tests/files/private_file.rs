//! Files that are shown privately: their content, writes that never reach them, eviction, files
//! that others change or cut.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::files::images::{manager, small_mib};
use crate::files::support::{memory, scratch};
use pagoda::{AccessError, BasePage, Bytes, Manager, MapFileError, Region};
use pagoda_linux::testing::length::length;
use pagoda_linux::testing::random::Random;

fn mapped(manager: &Manager, path: &Path) -> Region {
    match manager.map_file(path).map_private() {
        // Of a file system in memory.
        Err(MapFileError::InMemory { .. } | MapFileError::NoDirectIo { .. }) => {
            manager.map_file(path).buffered(true).map_private().expect("mapped")
        }
        mapped => mapped.expect("mapped"),
    }
}

fn assert_is(region: &Region, expected: &[u8]) {
    let mut back = vec![1; 1 << 20];
    for (at, expected) in (0..).step_by(1 << 20).zip(expected.chunks(1 << 20)) {
        region.read_at(at, &mut back[..expected.len()]).expect("read");
        assert!(back[..expected.len()] == *expected, "MiB {}", at >> 20);
    }
    let mut rest = vec![1; region.len() - expected.len()];
    region.read_at(expected.len(), &mut rest).expect("read");
    assert!(rest.iter().all(|byte| *byte == 0), "behind the end");
}

#[test]
fn content_is_the_files_and_writes_stay_in_the_region() {
    let bases = BasePage::ALL.map(Some).into_iter().chain([None]);
    for (base, extra) in bases.zip([0, 1, 4095, 4096, 70_000]) {
        let (_directory, path) = scratch();
        // Twice it is more than the budget: all of it comes and goes.
        let budget_mib = small_mib(base);
        let mut content = memory((budget_mib * 3 / 4) << 8, 1);
        content.truncate(content.len() - extra);
        fs::write(&path, &content).expect("room");
        let Some(manager) = manager(Bytes::mib(budget_mib as u64), base) else { return };
        let mut region = mapped(&manager, &path);
        let other = mapped(&manager, &path);
        assert_is(&region, &content);
        let before = manager.stats();
        let (mut random, original) = (Random::new(7, 0), content.clone());
        for _ in 0..length(1500, 3000) {
            let (at, byte) = (random.below(content.len()), random.next() as u8);
            content[at] = byte;
            region.write_at(at, &[byte]).expect("written");
        }
        assert_is(&region, &content);
        assert_is(&other, &original);
        assert!(fs::read(&path).expect("it is there") == original, "writes reached the file");
        // What was not written went without being stored.
        let after = manager.stats();
        assert!(after.evictions_clean > before.evictions_clean, "{base:?}: {after:?}");
    }
}

#[test]
fn pages_of_a_file_that_was_not_written_take_no_store() {
    let (_directory, path) = scratch();
    let content = memory(48 << 8, 3);
    fs::write(&path, &content).expect("room");
    let Some(manager) = manager(Bytes::mib(32), None) else { return };
    let region = mapped(&manager, &path);
    assert_is(&region, &content);
    assert_is(&region, &content);
    assert_eq!(manager.stats().stored_bytes, 0, "{:?}", manager.stats());
    let usage = region.usage();
    assert!(usage.resident < Bytes::mib(33), "{usage:?}");
}

#[test]
fn a_page_that_was_read_stays_right_when_the_file_changes_below_it() {
    let (_directory, path) = scratch();
    let content = vec![3; 16 << 20];
    fs::write(&path, &content).expect("room");
    let Some(manager) = manager(Bytes::mib(32), None) else { return };
    let mut region = mapped(&manager, &path);
    region.write_at(5, b"own").expect("written");
    let file = OpenOptions::new().write(true).open(&path).expect("it is there");
    file.write_all_at(&vec![4; 16 << 20], 0).expect("room");
    let mut ballast = manager.region(Bytes::mib(64)).create().expect("a region");
    for at in (0..64 << 20).step_by(4096) {
        ballast.write_at(at, &at.to_ne_bytes()).expect("written");
    }
    let mut back = vec![0; 16 << 20];
    region.read_at(0, &mut back).expect("read");
    assert_eq!(back[5..8], *b"own");
    for (page, bytes) in back.chunks(4096).enumerate().skip(1) {
        assert!(bytes.iter().all(|byte| *byte == bytes[0]) && [3, 4].contains(&bytes[0]), "page {page}");
    }
}

#[test]
fn an_open_file_without_a_name_is_mapped() {
    let (_directory, path) = scratch();
    let content = memory(40, 5);
    fs::write(&path, &content).expect("room");
    let file = OpenOptions::new().read(true).write(true).open(&path).expect("it is there");
    fs::remove_file(&path).expect("it is there");
    let Some(manager) = manager(Bytes::mib(32), None) else { return };
    let builder = || manager.map_open_file(&file).expect("a descriptor").buffered(true);
    assert_is(&builder().map_private().expect("mapped"), &content);
    let region = builder().writable(true).map().expect("mapped");
    region.write_at(7, b"written").expect("written");
    region.close().expect("written back");
    let mut found = [0; 7];
    file.read_exact_at(&mut found, 7).expect("read");
    assert_eq!(found, *b"written");
}

#[test]
fn a_page_behind_the_end_of_a_file_that_was_cut_is_an_error() {
    let (_directory, path) = scratch();
    fs::write(&path, vec![3; 8 << 20]).expect("room");
    let Some(manager) = manager(Bytes::mib(32), None) else { return };
    let region = mapped(&manager, &path);
    let mut byte = [0];
    region.read_at(0, &mut byte).expect("read");
    OpenOptions::new().write(true).open(&path).expect("there").set_len(4 << 20).expect("cut");
    assert!(matches!(region.read_at(6 << 20, &mut byte), Err(AccessError::Damaged { .. })));
    region.read_at(2 << 20, &mut byte).expect("that part is there");
    assert_eq!(byte, [3]);
}

#[test]
fn an_empty_file_a_directory_and_too_many_are_refused() {
    let (directory, path) = scratch();
    let Some(manager) = manager(Bytes::mib(32), None) else { return };
    fs::write(&path, b"").expect("room");
    assert!(matches!(manager.map_file(&path).map_private(), Err(MapFileError::Empty { .. })));
    let of_directory = manager.map_file(directory.path()).map_private();
    assert!(matches!(of_directory, Err(MapFileError::NotAFile { .. })));
    fs::write(&path, b"a byte or two").expect("room");
    let file = File::open(&path).expect("it is there");
    let open = || manager.map_open_file(&file).expect("a descriptor").buffered(true);
    let regions: Vec<_> = (0..256).map(|_| open().map_private().expect("mapped")).collect();
    let refused = open().map_private();
    assert!(matches!(refused, Err(MapFileError::TooMany { limit: 256 })));
    drop(regions);
    assert_is(&mapped(&manager, &path), b"a byte or two");
}
