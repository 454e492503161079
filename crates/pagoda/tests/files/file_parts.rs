//! Parts of files as memory, shared and private: their content, their ends, what lies around them.

use std::fs::{self, OpenOptions};
use std::path::Path;

use crate::files::images::{manager, small_mib};
use crate::files::support::{memory, scratch};
use pagoda::{AccessError, BasePage, Bytes, FileError, FileRegion, FileRegionBuilder, Manager, MapFileError};
use pagoda_linux::testing::length::length;
use pagoda_linux::testing::random::Random;

const PAGE: usize = 4096;

/// A part of the file at `path`, by direct I/O where the disk has it.
fn part(manager: &Manager, path: &Path, offset: usize, len: Option<usize>) -> FileRegionBuilder {
    let of = |buffered| {
        let builder = manager.map_file(path).buffered(buffered).offset(Bytes::new(offset as u64));
        len.into_iter().fold(builder, |builder, len| builder.length(Bytes::new(len as u64)))
    };
    match of(false).map() {
        Err(MapFileError::InMemory { .. } | MapFileError::NoDirectIo { .. }) => of(true),
        _ => of(false),
    }
}

fn assert_is(region: &FileRegion, expected: &[u8], case: &str) {
    assert_eq!(region.len(), expected.len(), "{case}");
    let mut back = vec![1; expected.len()];
    region.read_at(0, &mut back).expect("read");
    assert!(back == expected, "{case}");
}

#[test]
fn a_part_is_read_and_written_and_nothing_around_it() {
    let bases = BasePage::ALL.map(Some).into_iter().chain([None]);
    for (base, tail) in bases.zip([0, 1, 4095, 4097, 70_001]) {
        let (_directory, path) = scratch();
        // The part alone is more than the budget.
        let budget_mib = small_mib(base);
        let mut content = memory((budget_mib * 7 / 4) << 8, 1);
        fs::write(&path, &content).expect("room");
        let Some(manager) = manager(Bytes::mib(budget_mib as u64), base) else { return };
        let (start, end) = ((4 << 20) + 3 * PAGE, ((budget_mib * 13 / 8) << 20) + tail);
        let case = format!("{base:?}, tail {tail}");
        let region = part(&manager, &path, start, Some(end - start)).writable(true).map().expect("mapped");
        assert_is(&region, &content[start..end], &case);
        let mut random = Random::new(7, tail as u64);
        let last = [end - 1, end - 1 - tail % PAGE, start];
        let places = (0..length(1000, 2000))
            .map(|_| start + random.below(end - start))
            .chain(last)
            .collect::<Vec<_>>();
        for at in places {
            content[at] = !content[at];
            region.write_at(at - start, &content[at..=at]).expect("written");
        }
        // Whole base pages, which are not read first.
        content[start + (8 << 20)..start + (12 << 20)].fill(tail as u8);
        region.write_at(8 << 20, &content[start + (8 << 20)..start + (12 << 20)]).expect("written");
        assert_is(&region, &content[start..end], &case);
        let beyond = region.write_at(end - start - 1, &[1, 2]);
        assert!(matches!(beyond, Err(FileError::BeyondEnd { .. })), "{case}: {beyond:?}");
        region.close().expect("written back");
        assert!(fs::read(&path).expect("it is there") == content, "the file, {case}");
    }
}

#[test]
fn a_private_part_has_its_content_and_zeroes_behind_it() {
    let (_directory, path) = scratch();
    let content = memory(24 << 8, 2);
    fs::write(&path, &content).expect("room");
    let Some(manager) = manager(Bytes::mib(32), None) else { return };
    let (start, len) = (5 * PAGE, (7 << 20) + 100);
    let mut region = part(&manager, &path, start, Some(len)).map_private().expect("mapped");
    assert!((len..len + (2 << 20)).contains(&region.len()), "{}", region.len());
    let mut back = vec![1; region.len()];
    region.read_at(0, &mut back).expect("read");
    assert!(back[..len] == content[start..start + len]);
    assert!(back[len..].iter().all(|byte| *byte == 0), "behind the part");
    region.write_at(len - 1, &[1, 2]).expect("written");
    drop(region);
    assert!(fs::read(&path).expect("it is there") == content, "writes reached the file");
}

#[test]
fn a_part_up_to_the_end_and_of_an_open_file() {
    let (_directory, path) = scratch();
    let mut content = memory(8 << 8, 3);
    content.truncate(content.len() - 1234);
    fs::write(&path, &content).expect("room");
    let Some(manager) = manager(Bytes::mib(32), None) else { return };
    let region = part(&manager, &path, 1 << 20, None).map().expect("mapped");
    assert_is(&region, &content[1 << 20..], "up to the end");
    let file = OpenOptions::new().read(true).write(true).open(&path).expect("it is there");
    fs::remove_file(&path).expect("it is there");
    let of_open = manager.map_open_file(&file).expect("a descriptor").buffered(true);
    let region = of_open.offset(Bytes::mib(2)).length(Bytes::new(5000)).map().expect("mapped");
    assert_is(&region, &content[2 << 20..][..5000], "of an open file");
}

#[test]
fn a_part_that_the_file_has_not_is_refused() {
    let (_directory, path) = scratch();
    fs::write(&path, memory(4, 4)).expect("room");
    let Some(manager) = manager(Bytes::mib(32), None) else { return };
    let len = 4 * PAGE;
    for (offset, most) in [(0, Some(len + 1)), (PAGE, Some(len)), (len, None), (len, Some(1))] {
        let refused = part(&manager, &path, offset, most).map();
        assert!(matches!(refused, Err(MapFileError::BeyondEnd { .. })), "{offset}, {most:?}");
        let refused = part(&manager, &path, offset, most).map_private();
        assert!(matches!(refused, Err(MapFileError::BeyondEnd { .. })), "{offset}, {most:?}");
    }
    let most = manager.map_file(&path).offset(Bytes::new(!(PAGE as u64 - 1))).buffered(true).map();
    assert!(matches!(most, Err(MapFileError::BeyondEnd { .. })));
    for (offset, most) in [(1, None), (PAGE - 1, Some(1)), (PAGE, Some(0))] {
        let refused = part(&manager, &path, offset, most).map();
        assert!(matches!(refused, Err(MapFileError::NoPart { .. })), "{offset}, {most:?}");
    }
}

#[test]
fn a_file_that_is_cut_within_a_part_and_behind_it() {
    let (_directory, path) = scratch();
    let content = memory(8 << 8, 5);
    fs::write(&path, &content).expect("room");
    let Some(manager) = manager(Bytes::mib(32), None) else { return };
    let (start, len) = (1 << 20, 3 << 20);
    let region = part(&manager, &path, start, Some(len)).writable(true).map().expect("mapped");
    let private = part(&manager, &path, start, Some(len)).map_private().expect("mapped");
    region.write_at(5, b"own").expect("written");
    let file = OpenOptions::new().write(true).open(&path).expect("it is there");
    file.set_len((start + len) as u64).expect("cut");
    let mut byte = [0];
    region.read_at(len - 1, &mut byte).expect("all of the part is there");
    region.sync().expect("nothing of it is lost");
    file.set_len((start + (1 << 20)) as u64).expect("cut");
    assert_eq!(region.read_at(2 << 20, &mut byte), Err(FileError::Truncated));
    assert!(matches!(private.read_at(2 << 20, &mut byte), Err(AccessError::Damaged { .. })));
    assert_eq!(region.sync(), Err(FileError::Truncated));
    drop(region);
    let mut expected = content[..start + (1 << 20)].to_vec();
    expected[start + 5..start + 8].copy_from_slice(b"own");
    assert!(fs::read(&path).expect("it is there") == expected);
}
