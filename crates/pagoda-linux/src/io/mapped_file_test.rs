use std::os::unix::fs::FileExt;

use super::*;
use crate::io::direct_file::tests::disk;

#[test]
fn the_end_of_a_file_is_written_and_the_file_becomes_no_longer() {
    let directory = disk();
    let path = directory.path().join("file");
    std::fs::write(&path, vec![1; 3 * ALIGN + 100]).expect("room");
    let (file, state) = MappedFile::open(&path, Access { write: true, ..Access::default() }).expect("a disk");
    assert_eq!(state.len, 3 * ALIGN as u64 + 100);
    let mut buffer = AlignedBuffer::new(2 * ALIGN);
    assert_eq!(file.read_at(2 * ALIGN as u64, &mut buffer), Ok(ALIGN + 100));
    buffer.fill(2);
    file.write_at(ALIGN as u64, &mut [IoSlice::new(&buffer[..ALIGN])]).expect("there is room");
    file.write_end(3 * ALIGN as u64, &buffer[..100]).expect("there is room");
    file.sync().expect("a disk");
    let found = std::fs::read(&path).expect("it is there");
    let expected = [vec![1; ALIGN], vec![2; ALIGN], vec![1; ALIGN], vec![2; 100]].concat();
    assert!(found == expected, "{} bytes", found.len());
}

#[test]
fn of_a_part_nothing_around_it_is_read_or_written() {
    let directory = disk();
    let path = directory.path().join("file");
    let content: Vec<u8> = (0..6 * ALIGN).map(|at| (at / 7) as u8).collect();
    std::fs::write(&path, &content).expect("room");
    let part = |start, most| Access { write: true, start, most, ..Access::default() };
    let (file, state) =
        MappedFile::open(&path, part(ALIGN as u64, Some(2 * ALIGN as u64 + 100))).expect("open");
    assert_eq!(state.len, 2 * ALIGN as u64 + 100);
    let mut buffer = AlignedBuffer::new(ALIGN);
    assert_eq!(file.read_at(ALIGN as u64, &mut buffer), Ok(ALIGN));
    assert_eq!(buffer[..], content[2 * ALIGN..3 * ALIGN]);
    buffer.fill(2);
    file.write_at(ALIGN as u64, &mut [IoSlice::new(&buffer)]).expect("there is room");
    file.write_end(2 * ALIGN as u64, &buffer[..100]).expect("there is room");
    file.sync().expect("a disk");
    let found = std::fs::read(&path).expect("it is there");
    let expected = [&content[..2 * ALIGN], &[2; ALIGN + 100], &content[3 * ALIGN + 100..]].concat();
    assert!(found == expected, "{} bytes", found.len());
    let len_of = |access| MappedFile::open(&path, access).map(|(_, state)| state.len);
    assert_eq!(len_of(part(5 * ALIGN as u64, None)), Ok(ALIGN as u64), "up to the end");
    for start in [7 * ALIGN as u64, !(ALIGN as u64 - 1)] {
        assert_eq!(len_of(part(start, Some(1))), Ok(0), "behind it");
    }
    // A cut behind the part does not change its length.
    let other = std::fs::OpenOptions::new().write(true).open(&path).expect("it is there");
    other.set_len(4 * ALIGN as u64).expect("a disk");
    assert_eq!(file.state().map(|state| state.len), Ok(2 * ALIGN as u64 + 100));
    other.set_len(2 * ALIGN as u64 + 1).expect("a disk");
    assert_eq!(file.state().map(|state| state.len), Ok(ALIGN as u64 + 1));
}

#[test]
fn a_file_that_is_cut_and_made_longer_again_is_known_by_something() {
    let directory = disk();
    let path = directory.path().join("file");
    std::fs::write(&path, vec![1; 8 * ALIGN]).expect("room");
    let (file, before) =
        MappedFile::open(&path, Access { write: true, ..Access::default() }).expect("a disk");
    assert_eq!(file.state(), Ok(before), "a look changes nothing");
    let other = std::fs::OpenOptions::new().write(true).open(&path).expect("it is there");
    other.set_len(ALIGN as u64 + 100).expect("a disk");
    // The rest is the file's own, also where its end is in a page now.
    file.write_end(ALIGN as u64, &[2; 100]).expect("there is room");
    other.set_len(8 * ALIGN as u64).expect("a disk");
    let after = file.state().expect("it is open");
    assert_eq!(after.len, before.len);
    // Its change time need not differ where that goes by the ticks of a clock.
    assert!(after.blocks < before.blocks, "{before:?}, {after:?}");
}

#[test]
fn a_path_of_no_file_is_an_error_at_once() {
    let directory = disk();
    let pipe = directory.path().join("pipe");
    fs::mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).expect("a pipe");
    let open = |path: &Path| MappedFile::open(path, Access::default()).map(|(_, state)| state.len);
    assert_eq!(open(&pipe), Err(OpenError::Kind("a pipe")));
    assert_eq!(open(directory.path()), Err(OpenError::Kind("a directory")));
    assert_eq!(open(Path::new("/dev/zero")), Err(OpenError::Kind("a character device")));
    assert_eq!(open(&directory.path().join("none")), Err(OpenError::Open(Errno::NOENT)));
}

#[test]
fn memory_is_refused_unless_the_cache_is_asked_for() {
    let Ok(file) = tempfile::NamedTempFile::new_in("/dev/shm") else { return };
    file.as_file().write_all_at(&[7; 10], 0).expect("room");
    let refused = MappedFile::open(file.path(), Access::default()).map(|(_, state)| state.len);
    assert_eq!(refused, Err(OpenError::InMemory("tmpfs")));
    let (file, state) =
        MappedFile::open(file.path(), Access { write: true, buffered: true, ..Access::default() })
            .expect("memory");
    file.write_end(0, &[8; 10]).expect("room");
    let mut found = [0; 20];
    assert_eq!((state.len, file.read_at(0, &mut found)), (10, Ok(10)));
    assert_eq!(found[..10], [8; 10]);
}
