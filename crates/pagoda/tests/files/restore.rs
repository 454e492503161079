//! Regions that are restored from images: content, eviction, writes, damage, sharing, the working
//! set.

use std::fs;
use std::path::Path;

use crate::files::images::{manager, small_mib};
use crate::files::support::{memory, scratch};
use pagoda::{AccessError, BasePage, Bytes, Manager, Region, RestoreError};
use pagoda_image::{Codec, Image, Key, PackOptions};
use pagoda_linux::testing::random::Random;

fn key() -> Key {
    Key::new([8; 32])
}

fn packed(memory: &Vec<u8>, path: &Path, codec: Codec, block_bytes: u32) {
    let options = PackOptions { codec, block_bytes, ..PackOptions::new(key()) };
    crate::files::support::packed(memory, path, options);
}

fn restored(manager: &Manager, path: &Path) -> Region {
    manager.restore(path).key(key()).create().expect("restored")
}

fn assert_is(region: &Region, memory: &[u8]) {
    let mut back = vec![1; 1 << 20];
    for (at, expected) in (0..).step_by(1 << 20).zip(memory.chunks(1 << 20)) {
        region.read_at(at, &mut back[..expected.len()]).expect("read");
        assert!(back[..expected.len()] == *expected, "MiB {}", at >> 20);
    }
}

#[test]
fn content_is_the_same_for_every_base_page_codec_and_block() {
    let (_directory, path) = scratch();
    let memory = memory(3000, 1);
    let bases = BasePage::ALL.map(Some).into_iter().chain([None]);
    for (round, base) in bases.enumerate() {
        let codec = [Codec::Lz4, Codec::Zstd, Codec::None][round % 3];
        packed(&memory, &path, codec, [4096, 16384, 65536][(round + round / 3) % 3]);
        let Some(manager) = manager(Bytes::mib(64), base) else { return };
        let region = restored(&manager, &path);
        assert!(region.len() >= memory.len());
        assert_is(&region, &memory);
        let rest = region.len() - memory.len();
        let mut back = vec![1; rest];
        region.read_at(memory.len(), &mut back).expect("read");
        assert!(back.iter().all(|byte| *byte == 0), "behind the end");
    }
}

/// The last base page and the last block may end behind the image: there are zeroes, whatever part
/// of them a fault brings.
#[test]
fn an_image_of_any_length_ends_with_zeroes() {
    let (_directory, path) = scratch();
    let lens = [5, 4096 + 7, 8192, 65536 + 4096, 2 * 65536 - 1, (2 << 20) + 3 * 4096 + 1];
    for (round, len) in lens.into_iter().enumerate() {
        let memory: Vec<u8> = (0..len).map(|i| (i / 3 % 255) as u8 + 1).collect();
        let block = [4096, 16384, 65536][round % 3];
        packed(&memory, &path, Codec::Lz4, block);
        for base in BasePage::ALL.map(Some).into_iter().chain([None]) {
            let Some(manager) = manager(Bytes::mib(64), base) else { return };
            let expected = |at: usize, len: usize| {
                (at..at + len).map(|at| memory.get(at).copied().unwrap_or(0)).collect::<Vec<_>>()
            };
            for is_upwards in [true, false] {
                let mut region = restored(&manager, &path);
                let pages = region.len() / 4096;
                let mut back = [1; 4096];
                for page in 0..pages {
                    let at = if is_upwards { page } else { pages - 1 - page } * 4096;
                    if page % 2 == 0 {
                        region.read_at(at, &mut back).expect("read");
                    } else {
                        let words = &region.words_mut()[at / 8..][..512];
                        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
                        back.copy_from_slice(&bytes);
                    }
                    assert!(back[..] == expected(at, 4096), "{len}, {block}, {base:?}, at {at}");
                }
                region.page_out(0, region.len()).expect("dropped");
                let mut all = vec![1; region.len()];
                region.read_at(0, &mut all).expect("read");
                assert!(all == expected(0, region.len()), "{len}, {block}, {base:?}");
            }
        }
    }
}

#[test]
fn nothing_is_held_before_the_first_touch() {
    let (_directory, path) = scratch();
    let memory = memory(16384, 2);
    packed(&memory, &path, Codec::Lz4, 16384);
    let Some(manager) = manager(Bytes::mib(256), None) else { return };
    let region = restored(&manager, &path);
    assert_eq!(region.usage().resident, Bytes::ZERO);
    let mut back = [0; 64];
    region.read_at(40 << 20, &mut back).expect("read");
    assert!(back == memory[40 << 20..][..64]);
    assert!(region.usage().resident <= Bytes::kib(64));
}

/// Far less memory than the image has: clean pages are dropped, and nothing of them is stored.
#[test]
fn clean_pages_are_dropped_and_written_ones_are_kept() {
    let (_directory, path) = scratch();
    let mut memory = memory(56 << 8, 3);
    for base in [Some(BasePage::K64), Some(BasePage::K16), None] {
        packed(&memory, &path, Codec::Lz4, 16384);
        let Some(manager) = manager(Bytes::mib(32), base) else { return };
        let mut region = restored(&manager, &path);
        for _ in 0..2 {
            assert_is(&region, &memory);
        }
        let stats = manager.stats();
        assert!(stats.evictions_clean > 0, "{base:?}: {stats:?}");
        // The image has no entry for a page of zeroes, which a frame may have been filled with.
        assert_eq!(stats.stores, stats.stores_zero, "{base:?}");
        for at in (0..memory.len()).step_by(300_000) {
            let text = (at as u64 + 1).to_le_bytes();
            region.write_at(at, &text).expect("written");
            memory[at..at + 8].copy_from_slice(&text);
        }
        assert_is(&region, &memory);
        region.discard(0, 1 << 20).expect("discarded");
        let expected = [&vec![0; 1 << 20][..], &memory[1 << 20..]].concat();
        assert_is(&region, &expected);
        region.close();
        manager.flush_releases();
    }
}

#[test]
fn two_restores_share_an_image_and_do_not_disturb_each_other() {
    let (_directory, path) = scratch();
    let memory = memory(6144, 4);
    packed(&memory, &path, Codec::Lz4, 16384);
    let Some(manager) = manager(Bytes::mib(32), None) else { return };
    let mut regions: Vec<_> = (0..3).map(|_| restored(&manager, &path)).collect();
    let mut expected = vec![memory.clone(); 3];
    for round in 0..60 {
        let (which, at) = (round % 3, round * 430_003 % (memory.len() - 8));
        let text = (round as u64).to_le_bytes();
        regions[which].write_at(at, &text).expect("written");
        expected[which][at..at + 8].copy_from_slice(&text);
    }
    for (region, expected) in regions.iter().zip(&expected) {
        assert_is(region, expected);
    }
    // One descriptor, and so one index and one page cache.
    let link = path.canonicalize().expect("there");
    let descriptors = fs::read_dir("/proc/self/fd").expect("listed").flatten();
    let of_image = descriptors.filter(|fd| fs::read_link(fd.path()).is_ok_and(|to| to == link));
    assert_eq!(of_image.count(), 1);
    drop(regions.pop());
    assert_is(&restored(&manager, &path), &memory);
    assert_is(&regions[1], &expected[1]);
    // The file is as it was.
    let image = Image::open(&path, Some(key())).expect("an image");
    let mut back = vec![0; memory.len()];
    image.read_at(0, &mut back).expect("read");
    assert!(back == memory);
}

/// Another image in the place of a closed one has its number.
#[test]
fn an_image_that_replaces_another_is_not_taken_for_it() {
    let (directory, path) = scratch();
    let Some(manager) = manager(Bytes::mib(32), None) else { return };
    let mut older: Option<(Region, Vec<u8>)> = None;
    for seed in 10..16 {
        let memory = memory(700, seed);
        packed(&memory, &path, Codec::Lz4, 16384);
        let region = restored(&manager, &path);
        if let Some((older, memory)) = older.take() {
            assert_is(&older, &memory);
        }
        assert_is(&region, &memory);
        if seed % 2 == 0 {
            older = Some((region, memory));
        }
    }
    drop(directory);
}

#[test]
fn damage_is_an_error_at_its_page_and_the_rest_is_right() {
    let (_directory, path) = scratch();
    let memory: Vec<u8> = (0..4 << 20).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    packed(&memory, &path, Codec::None, 4096);
    let mut bytes = fs::read(&path).expect("read");
    // Blocks that are kept as they are lie in their order behind the header.
    bytes[4096 + 300 * 4096 + 7] ^= 1;
    fs::write(&path, &bytes).expect("written");
    for base in [None, Some(BasePage::K4), Some(BasePage::K64), Some(BasePage::K16)] {
        let Some(manager) = manager(Bytes::mib(32), base) else { return };
        let region = restored(&manager, &path);
        let mut back = [0; 4096];
        for page in 0..1024 {
            let read = region.read_at(page * 4096, &mut back);
            if page == 300 {
                assert_eq!(read, Err(AccessError::Damaged { offset: 300 * 4096 }), "{base:?}");
            } else {
                assert_eq!(read, Ok(()), "{base:?}, page {page}");
                assert!(back == memory[page * 4096..][..4096], "{base:?}, page {page}");
            }
        }
    }
}

/// A prefetched page comes from the copy beside the image. Once it was evicted it has to come from
/// the image itself.
#[test]
fn damage_behind_a_prefetched_page_is_an_error_when_it_was_evicted() {
    let (_directory, path) = scratch();
    let memory: Vec<u8> = (0..4 << 20).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    packed(&memory, &path, Codec::None, 4096);
    let Some(manager) = manager(Bytes::mib(64), Some(BasePage::K4)) else { return };
    let region = restored(&manager, &path);
    assert_is(&region, &memory);
    region.record_working_set().expect("recorded");
    region.close();
    let mut bytes = fs::read(&path).expect("read");
    bytes[4096 + 300 * 4096 + 7] ^= 1;
    fs::write(&path, &bytes).expect("written");
    let region = restored(&manager, &path);
    region.wait_for_prefetch();
    assert_eq!(region.usage().resident, Bytes::mib(4));
    assert_is(&region, &memory);
    region.page_out(0, region.len()).expect("dropped");
    assert_eq!(region.usage().resident, Bytes::ZERO);
    let read = region.read_at(300 * 4096, &mut [0; 8]);
    assert_eq!(read, Err(AccessError::Damaged { offset: 300 * 4096 }));
    assert_is(&region, &memory[..300 * 4096]);
}

/// Readers, writers and discards of one region that is far larger than the budget: each thread
/// knows the content of its own OS pages, which lie among the others' in each base page.
#[test]
fn pages_that_are_evicted_written_and_discarded_at_once_have_their_content() {
    const THREADS: usize = 3;
    let (_directory, path) = scratch();
    for base in BasePage::ALL {
        let budget_mib = small_mib(Some(base));
        let memory = memory((budget_mib * 3 / 2) << 8, 7);
        packed(&memory, &path, Codec::Lz4, 16384);
        let Some(manager) = manager(Bytes::mib(budget_mib as u64), Some(base)) else { return };
        let region = restored(&manager, &path);
        let (region, memory) = (&region, &memory);
        std::thread::scope(|threads| {
            for id in 0..THREADS {
                threads.spawn(move || {
                    let mut random = Random::new(3, id as u64);
                    let mut own = vec![None; memory.len() / 4096 / THREADS];
                    for step in 0..3 * own.len() {
                        let number = random.below(own.len());
                        let at = (number * THREADS + id) * 4096;
                        let mut back = vec![0; 4096];
                        region.read_at(at, &mut back).expect("read");
                        let expected = own[number].as_ref().map_or(&memory[at..at + 4096], Vec::as_slice);
                        assert!(back == expected, "{base:?}, thread {id}, step {step}, offset {at}");
                        if random.one_in(3) {
                            back[8..16].copy_from_slice(&random.stamp().to_le_bytes());
                            region.write_words(at, &back).expect("written");
                            own[number] = Some(back);
                        } else if random.one_in(4) {
                            region.discard(at, 4096).expect("discarded");
                            own[number] = Some(vec![0; 4096]);
                        }
                    }
                });
            }
        });
        assert!(manager.stats().evictions_clean > 0, "{base:?}");
    }
}

#[test]
fn a_working_set_is_recorded_and_read_ahead() {
    let (_directory, path) = scratch();
    let memory = memory(8192, 5);
    packed(&memory, &path, Codec::Lz4, 16384);
    let Some(manager) = manager(Bytes::mib(64), None) else { return };
    let region = restored(&manager, &path);
    let touched: Vec<_> = (0..64).map(|i| i * 37 % 512 * 65536).collect();
    let mut back = [0; 64];
    for at in &touched {
        region.read_at(*at, &mut back).expect("read");
    }
    region.record_working_set().expect("recorded");
    region.close();
    let region = restored(&manager, &path);
    region.wait_for_prefetch();
    let before = manager.stats().faults;
    for at in &touched {
        region.read_at(*at, &mut back).expect("read");
        assert!(back == memory[*at..][..64]);
    }
    let faults = manager.stats().faults - before;
    // Zeroes and repeated words are in no set.
    assert!(faults < 40, "{faults} faults for {} touches", touched.len());
    assert_is(&region, &memory);
    let plain = manager.region(Bytes::mib(1)).create().expect("a region");
    assert!(matches!(plain.record_working_set(), Err(RestoreError::NotRestored)));
}

/// The set is checked block by block: one that is damaged in the middle ends the prefetch there,
/// and holds no page back.
#[test]
fn a_damaged_working_set_is_as_if_it_ended_there() {
    let (_directory, path) = scratch();
    let memory = memory(2048, 9);
    for base in BasePage::ALL {
        packed(&memory, &path, Codec::Lz4, 16384);
        let Some(manager) = manager(Bytes::mib(64), Some(base)) else { return };
        let region = restored(&manager, &path);
        assert_is(&region, &memory);
        region.record_working_set().expect("recorded");
        region.close();
        let set = path.with_file_name("memory.pim.ws");
        let mut bytes = fs::read(&set).expect("a set");
        let middle = bytes.len() / 2;
        bytes[middle..].iter_mut().step_by(5000).for_each(|byte| *byte ^= 1);
        fs::write(&set, bytes).expect("written");
        let region = restored(&manager, &path);
        region.wait_for_prefetch();
        let resident = region.usage().resident;
        assert!(resident > Bytes::ZERO && resident < Bytes::mib(8), "{base:?}: {resident}");
        assert_is(&region, &memory);
    }
}

/// Writes and discards while the working set arrives: nothing of the image comes over them.
#[test]
fn prefetching_never_brings_back_what_was_written_or_discarded() {
    let (_directory, path) = scratch();
    let memory = memory(8192, 6);
    packed(&memory, &path, Codec::Lz4, 16384);
    let Some(manager) = manager(Bytes::mib(128), None) else { return };
    let region = restored(&manager, &path);
    assert_is(&region, &memory);
    region.record_working_set().expect("recorded");
    region.close();
    for round in 0..4 {
        let mut region = restored(&manager, &path);
        let mut expected = memory.clone();
        for step in 0..300 {
            let at = (step * 7919 + round * 31) % 8192 * 4096;
            if step % 2 == 0 {
                region.discard(at, 4096).expect("discarded");
                expected[at..at + 4096].fill(0);
            } else {
                region.write_at(at, b"newer").expect("written");
                expected[at..at + 5].copy_from_slice(b"newer");
            }
        }
        region.wait_for_prefetch();
        assert_is(&region, &expected);
    }
}

#[test]
fn what_is_no_image_is_refused() {
    let (directory, path) = scratch();
    let Some(manager) = manager(Bytes::mib(32), None) else { return };
    let refused = |path: &Path| manager.restore(path).key(key()).create().err().expect("refused").to_string();
    assert!(refused(&path).contains("memory.pim"));
    fs::write(&path, vec![0; 9000]).expect("written");
    assert!(refused(&path).contains("not an image"));
    assert!(refused(directory.path()).contains("not an image"));
}
