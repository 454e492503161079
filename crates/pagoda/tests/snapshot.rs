//! Regions that are saved to images while they are written, and restored.

#[path = "support/images.rs"]
mod images;
#[path = "../../pagoda-image/tests/support/mod.rs"]
mod support;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use images::manager;
use pagoda::{BasePage, Bytes, Region};
use pagoda_image::{Codec, Image, Key, PackOptions};
use pagoda_linux::testing::foreign::Foreign;
use support::scratch;

fn options() -> PackOptions {
    PackOptions::new(Key::new([4; 32]))
}

/// Fills a part of it with lines that differ; leaves the rest empty.
fn fill(region: &mut Region) -> Vec<u8> {
    let mut memory = vec![0; region.len()];
    for (page, bytes) in memory.chunks_mut(4096).enumerate().filter(|(page, _)| page % 5 < 3) {
        bytes
            .chunks_mut(32)
            .enumerate()
            .for_each(|(i, line)| line[..8].copy_from_slice(&(page * i).to_le_bytes()));
        region.write_at(page * 4096, bytes).expect("written");
    }
    memory
}

fn content(path: &std::path::Path) -> Vec<u8> {
    let image = Image::open(path, Some(Key::new([4; 32]))).expect("an image");
    let mut memory = vec![0; image.len_bytes() as usize];
    image.read_at(0, &mut memory).expect("read");
    memory
}

#[test]
fn what_is_saved_is_restored_for_every_base_page_codec_and_block() {
    let (_directory, path) = scratch();
    let bases = BasePage::ALL.map(Some).into_iter().chain([None]);
    for (round, base) in bases.enumerate() {
        // A part of it is swapped out.
        let Some(manager) = manager(Bytes::mib(32), base) else { return };
        let mut region = manager.region(Bytes::mib(56)).create().expect("a region");
        let mut memory = fill(&mut region);
        let options = PackOptions {
            codec: [Codec::Lz4, Codec::Zstd, Codec::None][round % 3],
            block_bytes: [16384, 4096, 65536][round % 3],
            ..options()
        };
        let saved = region.snapshot(&path, options.clone(), || {}, || {}).expect("saved");
        assert!(saved.rounds >= 1 && saved.image.len_bytes == region.len() as u64, "{saved:?}");
        assert!(content(&path) == memory, "{base:?}");
        region.write_at(3 << 20, b"after").expect("written");
        memory[3 << 20..(3 << 20) + 5].copy_from_slice(b"after");
        region.discard(0, 1 << 20).expect("discarded");
        memory[..1 << 20].fill(0);
        let again = manager.restore(&path).key(options.key.clone()).create().expect("restored");
        let base_image = Arc::new(Image::open(&path, Some(options.key.clone())).expect("an image"));
        let later = path.with_file_name("later.pim");
        let with_base = PackOptions { base: Some(base_image), ..options };
        let saved = region.snapshot(&later, with_base, || {}, || {}).expect("saved");
        assert!(saved.image.totals.stored_blocks <= 1, "{saved:?}");
        assert!(content(&later) == memory, "{base:?}");
        drop(again);
    }
}

/// A region that was restored, written and saved: a mix of pages of the image and of its own.
#[test]
fn adopted_memory_is_saved_as_a_region_is() {
    let (_directory, path) = scratch();
    for base in [Some(BasePage::K4), Some(BasePage::K64), None] {
        let Some(manager) = manager(Bytes::mib(32), base) else { return };
        // It begins in the middle of a base page, and so it ends.
        let pages = 3..3 + 10_001;
        let foreign = Foreign::private(pages.end + 4).expect("memory");
        let bytes = foreign.bytes(pages.clone());
        let mut memory = vec![0; bytes.range().len()];
        for (page, part) in memory.chunks_mut(4096).enumerate().filter(|(page, _)| page % 7 < 3) {
            part.fill(page as u8 | 1);
            bytes.write_words(page * 4096, part);
        }
        let region = manager.adopt(foreign.give_movable(pages)).expect("adopted");
        region.page_out(0, region.len() / 2).expect("stored");
        region.snapshot(&path, options(), || {}, || {}).expect("saved");
        assert!(content(&path) == memory, "{base:?}");
        let mut found = vec![0; memory.len()];
        bytes.read_at(0, &mut found);
        assert!(found == memory, "{base:?}: it is as it was");
    }
}

#[test]
fn a_restored_region_is_saved() {
    let (_directory, path) = scratch();
    let Some(manager) = manager(Bytes::mib(32), None) else { return };
    let mut region = manager.region(Bytes::mib(56)).create().expect("a region");
    let mut memory = fill(&mut region);
    region.snapshot(&path, options(), || {}, || {}).expect("saved");
    region.close();
    let mut region = manager.restore(&path).key(options().key).create().expect("restored");
    for at in (0..56 << 20).step_by(230_000) {
        region.write_at(at, b"changed").expect("written");
        memory[at..at + 7].copy_from_slice(b"changed");
    }
    region.discard(5 << 20, 1 << 20).expect("discarded");
    memory[5 << 20..6 << 20].fill(0);
    // Over the image that it was restored from, which stays open.
    region.snapshot(&path, options(), || {}, || {}).expect("saved");
    assert!(content(&path) == memory);
    let mut back = vec![0; 56 << 20];
    region.read_at(0, &mut back).expect("read");
    assert!(back == memory);
}

/// Writers that stop when they are asked: each has written the same number to all its pages.
#[test]
fn a_running_owner_is_saved_at_one_instant() {
    const PAGES: usize = 1024;
    let (_directory, path) = scratch();
    let Some(manager) = manager(Bytes::mib(32), None) else { return };
    let region = manager.region(Bytes::mib(8)).create().expect("a region");
    let (quits, asks) = (AtomicBool::new(false), AtomicBool::new(false));
    let (stopped, changed) = (Mutex::new(false), Condvar::new());
    let written = AtomicU64::new(0);
    std::thread::scope(|threads| {
        let region = &region;
        threads.spawn(|| {
            let mut number = 1u64;
            while !quits.load(Ordering::Acquire) {
                for page in 0..PAGES {
                    region.write_words(page * 8192 % (8 << 20), &number.to_le_bytes()).expect("written");
                    if asks.load(Ordering::Acquire) {
                        written.store(number << 32 | page as u64, Ordering::Release);
                        let mut is = stopped.lock().expect("whole");
                        *is = true;
                        changed.notify_all();
                        while *is {
                            is = changed.wait(is).expect("whole");
                        }
                    }
                }
                number += 1;
            }
        });
        for _ in 0..5 {
            let stop = || {
                asks.store(true, Ordering::Release);
                let mut is = stopped.lock().expect("whole");
                while !*is {
                    is = changed.wait(is).expect("whole");
                }
                asks.store(false, Ordering::Release);
            };
            let go_on = || {
                *stopped.lock().expect("whole") = false;
                changed.notify_all();
            };
            region.snapshot(&path, options(), stop, go_on).expect("saved");
            let at = written.load(Ordering::Acquire);
            let (number, last) = (at >> 32, at as u32 as usize);
            let memory = content(&path);
            for page in 0..PAGES {
                let found = u64::from_le_bytes(*memory[page * 8192..].first_chunk().expect("8 bytes"));
                assert_eq!(found, if page <= last { number } else { number - 1 }, "page {page} of {last}");
            }
        }
        quits.store(true, Ordering::Release);
    });
}
