//! Regions that are saved to images while they are written, and restored.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use crate::files::images::{manager, small_mib};
use crate::files::support::scratch;
use pagoda::{Access, BasePage, Bytes, Region};
use pagoda_image::{Codec, Image, Key, PackOptions};
use pagoda_linux::testing::area::{Advice, Area};
use pagoda_linux::testing::directory::names;
use pagoda_linux::testing::foreign::Foreign;
use pagoda_linux::testing::length::{is_long, length};
use pagoda_linux::testing::sandbox::{Denial, deny_calls};

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

fn opened(path: &std::path::Path) -> Arc<Image> {
    Arc::new(Image::open(path, Some(options().key)).expect("an image"))
}

fn content(path: &std::path::Path) -> Vec<u8> {
    let image = opened(path);
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
        let base_image = opened(&path);
        let later = path.with_file_name("later.pim");
        let with_base = PackOptions { base: Some(base_image), ..options };
        let saved = region.snapshot(&later, with_base, || {}, || {}).expect("saved");
        assert!(saved.image.totals.stored_blocks <= 1, "{saved:?}");
        assert!(content(&later) == memory, "{base:?}");
        drop(again);
    }
}

/// Of a region that is stored for the most part: resident pages and zeroes share blocks with stored
/// ones, and pages written in a later round with those that were put as they are packed.
#[test]
fn stored_pages_are_saved_as_they_are_packed() {
    let (_directory, path) = scratch();
    for base in BasePage::ALL.map(Some).into_iter().chain([None]) {
        let Some(manager) = manager(Bytes::mib(64), base) else { return };
        let mut region = manager.region(Bytes::mib(8)).create().expect("a region");
        let mut memory = fill(&mut region);
        // What LZ4 leaves as it was, and Zstandard halves.
        let digits: Vec<u8> = (0..1u64 << 20)
            .map(|i| {
                b"0123456789abcdef"[(i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) as usize ^ (i as usize % 5)]
            })
            .collect();
        region.write_at(4 << 20, &digits).expect("written");
        memory[4 << 20..5 << 20].copy_from_slice(&digits);
        region.page_out(0, 8 << 20).expect("stored");
        assert!(region.usage().resident == Bytes::ZERO);
        for (codec, block_bytes) in
            [(Codec::Lz4, 4096), (Codec::Lz4, 16384), (Codec::Lz4, 65536), (Codec::Zstd, 16384)]
        {
            let at = (block_bytes as usize * 37 + 4096) % memory.len();
            region.write_at(at, b"resident again").expect("written");
            memory[at..at + 14].copy_from_slice(b"resident again");
            let stop = || region.write_words(5 << 20, b"the last").expect("written");
            let options = PackOptions { codec, block_bytes, ..options() };
            let saved = region.snapshot(&path, options, stop, || {}).expect("saved");
            memory[5 << 20..(5 << 20) + 8].copy_from_slice(b"the last");
            assert!(content(&path) == memory, "{base:?}, {codec}, {block_bytes}");
            // The version that has such blocks.
            let version = std::fs::read(&path).expect("an image")[8];
            assert_eq!(version, if codec == Codec::Lz4 { 2 } else { 1 }, "{base:?}, {saved:?}");
        }
    }
}

/// Saves in a row, each a difference to the last: with writes tracked only what changed is read.
#[test]
fn saves_that_are_tracked_have_what_was_written_discarded_and_evicted_between() {
    let (_directory, path) = scratch();
    // With too little room pages come and go, and each that was evicted since is read again.
    let little = BasePage::ALL.map(|base| (Bytes::mib(32), Some(base)));
    for (budget, base) in little.into_iter().chain([(Bytes::mib(256), None)]) {
        let Some(manager) = manager(budget, base) else { return };
        let mut region = manager.region(Bytes::mib(56)).create().expect("a region");
        region.track_saves(true);
        let mut memory = fill(&mut region);
        let mut last: Option<Arc<Image>> = None;
        for round in 0..length(3, 6usize) {
            let name = path.with_file_name(format!("save{round}.pim"));
            let with_base = PackOptions { base: last.clone(), ..options() };
            // The last write before the instant of the image.
            let (at, word) = (77 * 4096 + 8 * round, [round as u8 + 1; 8]);
            let stop = || region.write_words(at, &word).expect("written");
            let saved = region.snapshot(&name, with_base, stop, || {}).expect("saved");
            memory[at..at + 8].copy_from_slice(&word);
            assert!(content(&name) == memory, "{base:?}, round {round}");
            if budget > Bytes::mib(56) {
                assert_eq!(saved.rounds == 0, round > 0, "round {round}: all was read");
            }
            last = Some(opened(&name));
            // Written in place, written and evicted, evicted as it was, discarded, and read again.
            let at = (3 + round) << 20;
            region.write_at(at, b"in place").expect("written");
            memory[at..at + 8].copy_from_slice(b"in place");
            region.write_at(at + (8 << 20), b"evicted").expect("written");
            memory[at + (8 << 20)..at + (8 << 20) + 7].copy_from_slice(b"evicted");
            region.page_out(10 << 20, 2 << 20).expect("paged out");
            region.discard(at + (20 << 20), 5 * 4096).expect("discarded");
            memory[at + (20 << 20)..at + (20 << 20) + 5 * 4096].fill(0);
            let mut word = [1; 8];
            region.read_at(at + (20 << 20), &mut word).expect("read");
            assert_eq!(word, [0; 8]);
            region.write_at(at + (40 << 20), &[0; 4096]).expect("written");
            memory[at + (40 << 20)..at + (40 << 20) + 4096].fill(0);
        }
        // Another base: all is read.
        let first = opened(&path.with_file_name("save0.pim"));
        let again = path.with_file_name("again.pim");
        let with_base = PackOptions { base: Some(first), ..options() };
        let saved = region.snapshot(&again, with_base, || {}, || {}).expect("saved");
        assert!(saved.rounds > 0 && content(&again) == memory, "{base:?}");
        drop(region);
        // The same of a restored region, whose pages come from the image.
        let mut region = manager.restore(&again).key(options().key).create().expect("restored");
        region.track_saves(true);
        let mut base_image = opened(&again);
        for (round, at) in [5 << 20, 30 << 20, 50 << 20].into_iter().enumerate() {
            let name = path.with_file_name(format!("restored{round}.pim"));
            let with_base = PackOptions { base: Some(base_image), ..options() };
            region.snapshot(&name, with_base, || {}, || {}).expect("saved");
            assert!(content(&name) == memory, "{base:?}, restored, round {round}");
            base_image = opened(&name);
            region.write_at(at, b"restored and written").expect("written");
            memory[at..at + 20].copy_from_slice(b"restored and written");
            region.page_out(at, 1 << 20).expect("paged out");
        }
    }
}

/// The kernel moves the marks of a scan with the pages: they tell nothing of the new place.
#[test]
fn pages_that_were_moved_from_another_region_are_saved() {
    let (_directory, path) = scratch();
    for stores in [false, true] {
        let Some(manager) = manager(Bytes::mib(64), None) else { return };
        let regions = [1, 2].map(|byte| {
            let mut region = manager.region(Bytes::mib(4)).create().expect("a region");
            region.write_at(0, &vec![byte; 4 << 20]).expect("written");
            region.track_saves(true);
            region
        });
        let save = |region: &Region, name: &str, base: Option<&std::path::Path>| {
            let path = path.with_file_name(name);
            let with_base = PackOptions { base: base.map(opened), ..options() };
            region.snapshot(&path, with_base, || {}, || {}).expect("saved");
            path
        };
        if stores {
            regions.iter().for_each(|region| region.page_out(0, 4 << 20).expect("stored"));
        }
        let [from, to] = [0, 1].map(|at| save(&regions[at], &format!("{at}.pim"), None));
        drop(from);
        let areas = regions.each_ref().map(|region| Area::of_region(region.as_ptr(), 1024));
        areas[0].remap_into(16..80, &areas[1], 128).expect("moved");
        let later = save(&regions[1], "later.pim", Some(&to));
        let mut memory = vec![2; 4 << 20];
        memory[128 << 12..192 << 12].fill(1);
        let saved = content(&later);
        let wrong = saved.iter().zip(&memory).position(|(a, b)| a != b).map(|at| at >> 12);
        assert!(wrong.is_none(), "page {wrong:?}, stored: {stores}");
    }
}

/// The writers are stopped then: it must neither fail there nor leave them so.
#[test]
fn a_region_is_saved_where_no_thread_can_be_started_in_the_pause() {
    let (_directory, path) = scratch();
    let Some(manager) = manager(Bytes::mib(64), None) else { return };
    let mut region = manager.region(Bytes::mib(56)).create().expect("a region");
    let mut memory = fill(&mut region);
    let forbid = || {
        for at in (0..memory.len()).step_by(1 << 20) {
            region.write_words(at, b"the last").expect("written");
            memory[at..at + 8].copy_from_slice(b"the last");
        }
        deny_calls(&[libc::SYS_clone, libc::SYS_clone3], Denial::NotPermitted).expect("denied");
    };
    let saved = region.snapshot(&path, options(), forbid, || {}).expect("saved");
    assert!(saved.pages_in_pause >= 56 && content(&path) == memory, "{saved:?}");
}

/// Numbers below one that is asked for.
fn numbers(mut state: u64) -> impl FnMut(usize) -> usize {
    move |below| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    }
}

/// Ways in which a page changes, and in which a save ends, in any order.
#[test]
fn saves_in_a_row_have_all_that_happened_between() {
    const PAGES: usize = 2048;
    let (_directory, path) = scratch();
    for (seed, base) in BasePage::ALL.map(Some).into_iter().chain([None]).enumerate() {
        let Some(manager) = manager(Bytes::mib(32), base) else { return };
        let reserve = Bytes::mib(16);
        let mut region = manager.region(Bytes::mib(8)).reserve(reserve).create().expect("a region");
        let mut memory = vec![0; 8 << 20];
        let mut last: Option<Arc<Image>> = None;
        let mut random = numbers(seed as u64 + 1);
        region.track_saves(true);
        for round in 0..length(12, 24usize) {
            let area = Area::of_region(region.as_ptr(), PAGES);
            for _ in 0..random(60) {
                let from = random(PAGES);
                let pages = from..PAGES.min(from + 1 + random(40));
                let (at, len) = (from * 4096, pages.len() * 4096);
                match random(10) {
                    0..3 => {
                        let content: Vec<u8> = (0..len).map(|i| (i / 7 * (round + from)) as u8).collect();
                        region.write_words(at, &content).expect("written");
                        memory[at..at + len].copy_from_slice(&content);
                    }
                    3 => {
                        region.write_words(at, &vec![0; len]).expect("written");
                        memory[at..at + len].fill(0);
                    }
                    4 => {
                        region.discard(at, len).expect("discarded");
                        memory[at..at + len].fill(0);
                    }
                    5 => {
                        // Left in place by the kernel, with its marks.
                        area.advise(pages, Advice::Free).expect("freed");
                        region.write_words(at, &vec![round as u8; len]).expect("written");
                        memory[at..at + len].fill(round as u8);
                    }
                    6 => {
                        let mut found = vec![0; len];
                        region.read_at(at, &mut found).expect("read");
                        assert!(found == memory[at..at + len], "{base:?}, round {round}");
                    }
                    7 => {
                        region.protect(at, len, Access::Read).expect("protected");
                        region.protect(at, len, Access::Write).expect("allowed");
                    }
                    _ => region.page_out(at, len).expect("paged out"),
                }
            }
            let name = path.with_file_name(format!("mixed{round}.pim"));
            // Without one now and then: a chain of images has an end.
            let on_last = random(8) > 0 && round % 12 > 0;
            let with_base = PackOptions { base: last.clone().filter(|_| on_last), ..options() };
            if random(6) == 0 {
                let nowhere = path.with_file_name("none").join("mixed.pim");
                region.snapshot(nowhere, with_base.clone(), || {}, || {}).expect_err("no directory");
            }
            let (again, at) = (path.with_file_name("again.pim"), random(PAGES) * 4096);
            let stop = || {
                region.snapshot(&again, options(), || {}, || {}).expect_err("it is being saved");
                region.write_words(at, &[round as u8 + 1; 4096]).expect("written");
            };
            region.snapshot(&name, with_base, stop, || {}).expect("saved");
            memory[at..at + 4096].fill(round as u8 + 1);
            let saved = content(&name);
            let wrong = saved.chunks(4096).zip(memory.chunks(4096)).position(|(a, b)| a != b);
            assert!(
                wrong.is_none() && saved.len() == memory.len(),
                "{base:?}, round {round}: page {wrong:?}"
            );
            last = Some(opened(&name));
            if round == 6 {
                region.grow(Bytes::mib(2)).expect("grown");
                memory.resize(10 << 20, 0);
                region.write_words(9 << 20, b"in the new part.").expect("written");
                memory[9 << 20..(9 << 20) + 16].copy_from_slice(b"in the new part.");
            }
        }
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

/// A writer that stops when it is asked: by then it has written the same number to all pages, or to
/// those before the last one.
#[test]
fn a_running_owner_is_saved_at_one_instant() {
    let bases = BasePage::ALL.map(Some).into_iter().chain([None]);
    for (round, base) in bases.enumerate() {
        let budget_mib = small_mib(base);
        // Pages of 4 KiB that are written, and how far apart: dense, sparse, and beyond the budget.
        let layouts = [(1024, 4096), (1024, 8192), ((budget_mib * 9 / 8) << 8, 4096)];
        for (number, codec) in [Codec::Lz4, Codec::Zstd, Codec::None].into_iter().enumerate() {
            for (layout, (pages, stride)) in layouts.into_iter().enumerate() {
                // Each pair of the three is there.
                if (round + number + layout) % 3 != 0 && !is_long() {
                    continue;
                }
                let Some(manager) = manager(Bytes::mib(budget_mib as u64), base) else { return };
                let len = Bytes::new((pages * stride) as u64);
                let region = manager.region(len).create().expect("a region");
                eprintln!("{base:?}, {codec}, {pages} pages");
                save_with_a_writer(&region, &PackOptions { codec, ..options() }, pages, stride);
            }
        }
    }
}

/// Saves it several times, those after the second each after the one before.
fn save_with_a_writer(region: &Region, options: &PackOptions, pages: usize, stride: usize) {
    let (_directory, path) = scratch();
    let (quits, asks) = (AtomicBool::new(false), AtomicBool::new(false));
    let (stopped, changed) = (Mutex::new(false), Condvar::new());
    let written = AtomicU64::new(0);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let mut number = 1u64;
            while !quits.load(Ordering::Acquire) {
                for page in 0..pages {
                    region.write_words(page * stride, &number.to_le_bytes()).expect("written");
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
        let mut last = None;
        let rounds = length(3, 4);
        for round in 0..rounds {
            region.track_saves(round >= 1);
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
            let path = path.with_file_name(format!("running{round}.pim"));
            let with_base = PackOptions { base: last.take(), ..options.clone() };
            let saved = region.snapshot(&path, with_base, stop, go_on);
            quits.store(saved.is_err() || round + 1 == rounds, Ordering::Release);
            saved.expect("saved");
            last = Some(opened(&path));
            let at = written.load(Ordering::Acquire);
            let (number, last) = (at >> 32, at as u32 as usize);
            let memory = content(&path);
            for page in 0..pages {
                let found = u64::from_le_bytes(*memory[page * stride..].first_chunk().expect("8 bytes"));
                assert_eq!(found, if page <= last { number } else { number - 1 }, "page {page} of {last}");
            }
        }
    });
}

/// When a process is to be killed in its save: `PATH MOMENT`.
const SAVER: &str = "PAGODA_TEST_SAVER";

/// Not a test of its own: the process that is killed.
#[test]
fn saving_process() {
    let Ok(words) = std::env::var(SAVER) else { return };
    let (path, moment) = words.split_once(' ').expect("two words");
    let manager = manager(Bytes::mib(32), None).expect("as in the parent");
    let mut region = manager.region(Bytes::mib(8)).create().expect("a region");
    let die_at = |now: &str| {
        if now == moment {
            let own = rustix::process::getpid();
            rustix::process::kill_process(own, rustix::process::Signal::KILL).expect("it is this one");
        }
    };
    region.write_at(0, &vec![2; 8 << 20]).expect("written");
    region.snapshot(path, options(), || die_at("stop"), || die_at("go_on")).expect("saved");
}

#[test]
fn a_save_that_is_killed_leaves_the_old_image() {
    let (directory, path) = scratch();
    let Some(manager) = manager(Bytes::mib(32), None) else { return };
    let mut region = manager.region(Bytes::mib(8)).create().expect("a region");
    region.write_at(0, &vec![1; 8 << 20]).expect("written");
    region.snapshot(&path, options(), || {}, || {}).expect("saved");
    for (moment, byte) in [("stop", 1), ("go_on", 1), ("never", 2)] {
        let mut command = std::process::Command::new(std::env::current_exe().expect("this"));
        command
            .args(["--exact", "files::snapshot::saving_process"])
            .env(SAVER, format!("{} {moment}", path.display()));
        command.stdout(std::process::Stdio::null());
        let status = command.status().expect("it starts");
        assert_eq!(status.success(), byte == 2, "{moment}: {status}");
        assert!(content(&path) == vec![byte; 8 << 20], "{moment}");
        let mut left = names(directory.path());
        left.retain(|name| !name.ends_with(".unfinished"));
        assert_eq!(left, ["memory.pim"], "{moment}");
    }
}
