//! The ring against plain calls, on real files: the same content, the same errors, and nothing in
//! flight after a call.

use std::fs::File;
use std::io::Write as _;
use std::time::Duration;

use rustix::fs::ftruncate;

use super::*;
use crate::io::direct_file::tests::disk;
use crate::io::direct_file::{ALIGN, AlignedBuffer};
use crate::testing::process::{fork, wait};
use crate::testing::random::Random;
use crate::testing::sandbox::{Denial, deny_calls};

/// A ring, or a word why there is none.
fn ring() -> Option<Ring> {
    match Ring::open() {
        Ok(ring) => Some(ring),
        Err(refusal) => {
            crate::testing::skip::skip("io_uring", refusal);
            None
        }
    }
}

fn file() -> (tempfile::TempDir, DirectFile) {
    let directory = disk();
    let file = DirectFile::create_in(directory.path()).expect("a disk");
    (directory, file)
}

/// Different bytes at each place of each file.
fn filled(len: usize, seed: u64) -> AlignedBuffer {
    let mut buffer = AlignedBuffer::new(len);
    let mut random = Random::new(seed, 0);
    buffer.chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&random.next().to_ne_bytes()[..chunk.len()]));
    buffer
}

/// A buffer in parts of these lengths.
fn parts<'a>(mut rest: &'a mut [u8], lens: &[usize]) -> Vec<&'a mut [u8]> {
    let mut parts = Vec::new();
    for len in lens {
        let (part, left) = rest.split_at_mut(*len);
        parts.push(part);
        rest = left;
    }
    parts
}

#[test]
fn each_reads_the_others_writes() {
    let Some(mut ring) = ring() else { return };
    let (_directory, file) = file();
    // More than go at once, of different lengths, some of them long.
    let mut random = Random::new(1, 1);
    let lens: Vec<usize> = (0..3 * DEPTH + 5).map(|_| random.between(1, 20) * ALIGN).collect();
    let all: usize = lens.iter().sum();
    let offsets: Vec<u64> = {
        // In an order of their own, so that neighbours in memory are none in the file.
        let mut order: Vec<usize> = (0..lens.len()).collect();
        order.sort_by_key(|index| crate::testing::random::mix(*index as u64));
        let (mut at, mut offsets) = (0, vec![0; lens.len()]);
        for index in order {
            offsets[index] = at as u64;
            at += lens[index];
        }
        offsets
    };
    let mut content = filled(all, 2);
    let mut writes: Vec<_> = parts(&mut content, &lens)
        .into_iter()
        .zip(&offsets)
        .map(|(from, offset)| Transfer::Write { file: &file, offset: *offset, from })
        .collect();
    assert_eq!(ring.transfer(&mut writes), Ok(lens.len()), "all by the ring");
    let mut one_by_one = AlignedBuffer::new(all);
    for (part, offset) in parts(&mut one_by_one, &lens).into_iter().zip(&offsets) {
        file.read_at(*offset, part).expect("written");
    }
    assert!(one_by_one[..] == content[..]);
    let mut together = AlignedBuffer::new(all);
    let mut reads: Vec<_> = parts(&mut together, &lens)
        .into_iter()
        .zip(&offsets)
        .map(|(into, offset)| Transfer::Read { file: &file, offset: *offset, into })
        .collect();
    assert_eq!(ring.transfer(&mut reads), Ok(lens.len()));
    assert_eq!(ring.transfer(&mut reads[..1]), Ok(0), "one alone needs no ring");
    assert!(together[..] == content[..]);
}

/// Each of these beside two that work: the error is that of the plain call, and the others are
/// done.
#[test]
fn errors_are_those_of_plain_calls() {
    let Some(mut ring) = ring() else { return };
    let (_directory, file) = file();
    let full = |mode: &mut std::fs::OpenOptions| {
        DirectFile::from(OwnedFd::from(mode.open("/dev/full").expect("a device")))
    };
    let (full, closed) = (full(File::options().write(true)), full(File::options().read(true)));
    let page = filled(ALIGN, 3);
    let cut = 8 * ALIGN as u64;
    file.write_at(0, &filled(16 * ALIGN, 4)).expect("room");
    ftruncate(&file, cut).expect("shorter");
    let is_os = |error| matches!(error, FileError::Os(_));
    let is_full = |error| error == FileError::Full;
    type Expected = fn(FileError) -> bool;
    let writes: [(&DirectFile, u64, Expected); 3] =
        [(&full, 0, is_full), (&closed, 0, is_os), (&file, 1, is_os)];
    for (at, (bad, offset, expected)) in writes.into_iter().enumerate() {
        let mut three = [
            Transfer::Write { file: &file, offset: 2 * ALIGN as u64, from: &page },
            Transfer::Write { file: bad, offset, from: &page },
            Transfer::Write { file: &file, offset: 5 * ALIGN as u64, from: &page },
        ];
        let error = ring.transfer(&mut three).expect_err("one can't be");
        assert!(expected(error), "{at}: {error:?}");
        assert_eq!(three[1].do_alone(), Err(error));
        let mut back = AlignedBuffer::new(4 * ALIGN);
        file.read_at(2 * ALIGN as u64, &mut back).expect("there");
        assert!(back[..ALIGN] == page[..] && back[3 * ALIGN..] == page[..]);
        file.write_at(0, &filled(8 * ALIGN, 5)).expect("room");
    }
    // Beyond the end, across it, and behind a file that became shorter: present bytes come, and no
    // more is promised.
    for offset in [cut, cut - ALIGN as u64] {
        let (mut one, mut two) = (AlignedBuffer::new(ALIGN), AlignedBuffer::new(4 * ALIGN));
        let mut reads = [
            Transfer::Read { file: &file, offset: 0, into: &mut one },
            Transfer::Read { file: &file, offset, into: &mut two },
        ];
        assert_eq!(ring.transfer(&mut reads), Err(FileError::Short));
        assert!(one[..] == filled(8 * ALIGN, 5)[..ALIGN]);
    }
    assert!(ring.is_open(), "the failure is the file's matter");
}

/// A pipe, as a file that answers when it is told to.
fn pipe() -> (DirectFile, File) {
    let (read, write) = rustix::pipe::pipe().expect("a pipe");
    (DirectFile::from(read), File::from(write))
}

/// Writes to a pipe, some time later.
fn later(mut pipe: File, text: &'static [u8]) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        pipe.write_all(text).expect("there is a reader");
    })
}

#[test]
fn dropping_requests_in_flight_waits_for_them() {
    let Some(mut ring) = ring() else { return };
    let (pipe, end) = pipe();
    let mut buffer = [0; 4];
    let mut read = Transfer::Read { file: &pipe, offset: 0, into: &mut buffer };
    let entry = read.entry(0);
    let mut flight = InFlight::new(&mut ring);
    let thread = later(end, b"late");
    // Given to the kernel as `submit` does it, but without waiting.
    let first = flight.ring.word(flight.ring.at.given).load(Ordering::Relaxed);
    let place = (first % DEPTH as u32) as usize * size_of::<io_uring_sqe>();
    // SAFETY: as in `submit`.
    unsafe { flight.ring.entries.at(place, size_of::<io_uring_sqe>()).cast::<io_uring_sqe>().write(entry) };
    flight.ring.word(flight.ring.at.given).store(first + 1, Ordering::Release);
    assert_eq!(flight.ring.enter(1, 0), Ok(1));
    flight.left = 1;
    flight.look();
    assert_eq!(flight.left, 1, "nothing is there yet");
    drop(flight);
    assert_eq!(&buffer, b"late");
    thread.join().expect("it wrote");
}

#[test]
fn a_kernel_that_does_not_wait_is_looked_at_until_all_is_over() {
    let Some(mut ring) = ring() else { return };
    let (pipe, end) = pipe();
    let mut buffer = [0; 4];
    let mut read = Transfer::Read { file: &pipe, offset: 0, into: &mut buffer };
    let entry = read.entry(0);
    // The system call fails from here on, as under a filter. The ring itself is kept.
    let nothing = OwnedFd::from(File::open("/dev/null").expect("a device"));
    let kept = std::mem::replace(&mut ring.fd, nothing);
    let mut flight = InFlight::new(&mut ring);
    flight.submit([entry].into_iter());
    assert_eq!((flight.left, flight.ring.is_refused), (0, true), "it was withdrawn");
    drop(flight);
    ring.fd = kept;
    let thread = later(end, b"late");
    let first = ring.word(ring.at.given).load(Ordering::Relaxed);
    ring.word(ring.at.given).store(first + 1, Ordering::Release);
    assert_eq!(ring.enter(1, 0), Ok(1), "it lies where it was");
    let nothing = OwnedFd::from(File::open("/dev/null").expect("a device"));
    let _kept = std::mem::replace(&mut ring.fd, nothing);
    let mut flight = InFlight::new(&mut ring);
    flight.left = 1;
    flight.land();
    assert_eq!(flight.done[0], 4);
    drop(flight);
    assert_eq!(&buffer, b"late");
    thread.join().expect("it wrote");
}

#[test]
fn a_ring_that_is_refused_later_is_done_without() {
    let Some(mut ring) = ring() else { return };
    let (_directory, file) = file();
    ring.fd = OwnedFd::from(File::open("/dev/null").expect("a device"));
    let pages = [filled(ALIGN, 6), filled(ALIGN, 7)];
    let mut writes =
        [0, 1].map(|i| Transfer::Write { file: &file, offset: (i * ALIGN) as u64, from: &pages[i] });
    assert_eq!(ring.transfer(&mut writes), Ok(0));
    assert!(!ring.is_open());
    let mut back = AlignedBuffer::new(2 * ALIGN);
    file.read_at(0, &mut back).expect("written");
    assert!(back[..ALIGN] == pages[0][..] && back[ALIGN..] == pages[1][..]);
}

/// Two pages by a ring: how many went by it, and whether they came back.
fn two_pages(ring: &mut Ring, file: &DirectFile, seed: u64) -> (usize, bool) {
    let pages = [filled(ALIGN, seed), filled(ALIGN, seed + 1)];
    let mut writes = [0, 1].map(|i| Transfer::Write { file, offset: (i * ALIGN) as u64, from: &pages[i] });
    let together = ring.transfer(&mut writes).expect("room");
    let mut back = AlignedBuffer::new(2 * ALIGN);
    file.read_at(0, &mut back).expect("written");
    (together, back[..ALIGN] == pages[0][..] && back[ALIGN..] == pages[1][..])
}

/// The filter kills a thread that so much as tries.
#[test]
fn a_filtered_thread_enters_no_ring_and_makes_none() {
    let Some(mut ring) = ring() else { return };
    let (_directory, file) = file();
    assert_eq!(two_pages(&mut ring, &file, 8), (2, true));
    let calls = [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];
    let child = fork(|| {
        let Ok(mut own) = Ring::open() else { return 1 };
        if two_pages(&mut own, &file, 10) != (2, true) || deny_calls(&calls, Denial::Killed).is_err() {
            return 2;
        }
        if two_pages(&mut own, &file, 12) != (0, true) {
            return 3;
        }
        i32::from(!matches!(Ring::open(), Err(Refusal::Filtered))) * 4
    });
    assert_eq!(wait(child.expect("a child")).expect("it ends").as_raw(), 0);
}

#[test]
fn a_child_neither_has_the_queues_nor_enters_the_ring() {
    let Some(mut ring) = ring() else { return };
    let (_directory, file) = file();
    let mapped = |range: PageRange| {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("readable");
        maps.contains(&format!("{:x}-", range.start()))
    };
    assert!(mapped(ring.queues.range) && mapped(ring.entries.range));
    let child = fork(|| {
        let is_left = mapped(ring.queues.range) || mapped(ring.entries.range);
        i32::from(is_left || two_pages(&mut ring, &file, 14) != (0, true))
    });
    assert_eq!(wait(child.expect("a child")).expect("it ends").as_raw(), 0);
    assert_eq!(two_pages(&mut ring, &file, 16), (2, true), "the parent goes on");
}

#[test]
fn the_queues_are_our_own_as_long_as_the_ring_lives() {
    let Some(ring) = ring() else { return };
    let ranges = [ring.queues.range, ring.entries.range];
    assert!(ranges.into_iter().all(own_memory::is_own));
    drop(ring);
    assert!(!ranges.into_iter().any(own_memory::is_own));
}
