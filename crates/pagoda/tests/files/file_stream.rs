//! Reading through a file that is larger than memory, by calls and by address: the pages that stay,
//! those that are left behind, and every byte.

use std::fs;
use std::path::Path;

use pagoda::{BasePage, Bytes, FileRegion, Manager};
use pagoda_linux::testing::address::load;
use pagoda_linux::testing::directory::on_disk;
use pagoda_linux::testing::skip::skip_without_moves;

const PAGE: usize = 4096;
const BUDGET: Bytes = Bytes::mib(64);
/// Memory of another owner, which a reader of a file does not drive out.
const OTHER: Bytes = Bytes::mib(16);
const LEN: usize = (128 << 20) + 1234;
/// A part that a reader from the beginning has kept.
const KEPT: usize = 8 << 20;
/// Of so many pages one is written.
const WRITTEN: usize = 37;

/// Every word of a file is another.
fn content(at: usize, len: usize) -> Vec<u8> {
    let words =
        (at / 8..(at + len).div_ceil(8)).map(|word| (word as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    bytes.truncate(len);
    bytes
}

/// Whether page `page` is as it was made, but for a byte that was written.
fn assert_is(page: usize, found: &[u8], is_written: bool, case: &str) {
    let mut expected = content(page * PAGE, found.len());
    if is_written {
        expected[page % found.len()] ^= 0xff;
    }
    assert!(found == expected, "page {page}, {case}");
}

fn pages() -> usize {
    LEN.div_ceil(PAGE)
}

fn page_bytes(page: usize) -> usize {
    PAGE.min(LEN - page * PAGE)
}

/// Reads page after page, and writes some of them behind.
fn pass(region: &FileRegion, by_address: bool, writes: bool, case: &str) {
    let mut found = [0; PAGE];
    for page in 0..pages() {
        let found = &mut found[..page_bytes(page)];
        if by_address {
            let here = load::<PAGE>(region.as_ptr().wrapping_add(page * PAGE));
            found.copy_from_slice(&here[..found.len()]);
        } else {
            region.read_at(page * PAGE, found).expect("read");
        }
        assert_is(page, found, false, case);
        if writes && page % WRITTEN == 0 {
            let at = page % found.len();
            region.write_at(page * PAGE + at, &[found[at] ^ 0xff]).expect("written");
        }
    }
}

fn mapped(manager: &Manager, path: &Path, writable: bool) -> FileRegion {
    let direct = manager.map_file(path).writable(writable).map();
    direct.unwrap_or_else(|_| manager.map_file(path).writable(writable).buffered(true).map().expect("mapped"))
}

#[test]
fn a_reader_keeps_a_part_of_the_file_and_others_keep_their_memory() {
    if skip_without_moves("streams over files") {
        return;
    }
    let directory = tempfile::tempdir_in(on_disk()).expect("room");
    let path = directory.path().join("file");
    fs::write(&path, content(0, LEN)).expect("room");
    let cases = BasePage::ALL.into_iter().flat_map(|base| [(base, false), (base, true)]);
    for (base, by_address) in cases {
        let case = format!("{base}, by address: {by_address}");
        let manager = Manager::builder().budget(BUDGET).base_page(base).user_mode_only(true);
        let manager = manager.build().expect("a manager");
        let mut other = manager.region(OTHER).create().expect("a region");
        for at in (0..other.len()).step_by(PAGE) {
            other.write_at(at, &[7; PAGE]).expect("written");
        }
        let region = mapped(&manager, &path, false);
        pass(&region, by_address, false, &case);
        assert_eq!(other.usage().resident, OTHER, "{case}: {:?}", manager.stats());
        let read = region.stats().read;
        let mut kept = vec![0; KEPT];
        region.read_at(0, &mut kept).expect("read");
        assert!(kept == content(0, KEPT), "{case}");
        assert_eq!(region.stats().read, read, "{case}: its beginning was not kept");
    }
}

#[test]
fn what_was_written_behind_a_reader_is_in_memory_and_in_the_file() {
    if skip_without_moves("streams over files that are written") {
        return;
    }
    let directory = tempfile::tempdir_in(on_disk()).expect("room");
    let path = directory.path().join("file");
    for (base, by_address) in [(BasePage::K64, true), (BasePage::K16, true), (BasePage::K64, false)] {
        let case = format!("{base}, by address: {by_address}");
        fs::write(&path, content(0, LEN)).expect("room");
        let manager = Manager::builder().budget(BUDGET).base_page(base).user_mode_only(true);
        let manager = manager.build().expect("a manager");
        let region = mapped(&manager, &path, true);
        pass(&region, by_address, true, &case);
        let mut found = [0; PAGE];
        for page in 0..pages() {
            let found = &mut found[..page_bytes(page)];
            region.read_at(page * PAGE, found).expect("read");
            assert_is(page, found, page % WRITTEN == 0, &case);
        }
        region.close().expect("written back");
        let file = fs::read(&path).expect("it is there");
        assert_eq!(file.len(), LEN, "{case}");
        for (page, found) in file.chunks(PAGE).enumerate() {
            assert_is(page, found, page % WRITTEN == 0, &case);
        }
    }
}
