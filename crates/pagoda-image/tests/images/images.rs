//! Images as their users have them: packed, read back in any pieces, damaged, replaced, layered.

use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use crate::support::{go_on, memory, packed, packed_in_parts, scratch};
use pagoda_core::image::LEN_BYTES_MOST;
use pagoda_core::image::digest::ROOT_BYTES;
use pagoda_core::image::header::{HEADER_BYTES, Header};
use pagoda_core::image::index::CHUNK_BLOCKS;
use pagoda_image::import::RawFile;
use pagoda_image::{
    Codec, Content, Image, ImageError, Key, PackOptions, Touch, WorkingSet, Writer, key_path, load_key,
    make_key, pack,
};
use pagoda_linux::testing::directory::names;
use pagoda_linux::testing::random::Random;

fn key() -> Key {
    Key::new([5; 32])
}

fn options(codec: Codec, block_bytes: u32) -> PackOptions {
    PackOptions { codec, block_bytes, ..PackOptions::new(key()) }
}

fn assert_reads(image: &Image, memory: &[u8]) {
    let mut back = vec![1; memory.len()];
    image.read_at(0, &mut back).expect("read");
    assert!(back == memory);
    let mut random = Random::new(9, 0);
    for _ in 0..200 {
        let offset = random.below(memory.len());
        let len = random.below(70_000).min(memory.len() - offset);
        back.truncate(0);
        back.resize(len, 1);
        image.read_at(offset as u64, &mut back).expect("read");
        assert!(back == memory[offset..offset + len], "{offset} and {len}");
        let is_zero = image.content_at(offset as u64, len) == Content::Zero;
        assert_eq!(image.is_zero(offset as u64, len), is_zero, "{offset} and {len}");
        let expected: Vec<u8> = match image.content_at(offset as u64, len) {
            Content::Zero => vec![0; len],
            Content::Same(word) => word.into_iter().cycle().take(len).collect(),
            Content::Stored => continue,
        };
        assert!(expected == back, "{offset} and {len}");
    }
}

#[test]
fn memory_comes_back_by_every_codec_and_block_size() {
    let (_directory, path) = scratch();
    for (len, seed) in [(300 * 4096, 1), (77 * 4096 + 1234, 2), (10, 3)] {
        let mut memory = memory(301, seed);
        memory.truncate(len);
        memory[5] = 1;
        for codec in [Codec::None, Codec::Lz4, Codec::Zstd] {
            for block in [4096, 16384, 65536] {
                let written = packed(&memory, &path, options(codec, block));
                assert_eq!(written.file_bytes, fs::metadata(&path).expect("there").len());
                let image = Image::open(&path, Some(key())).expect("an image");
                assert_eq!((image.len_bytes(), image.block_bytes()), (len as u64, block));
                assert_eq!(image.totals().expect("sums"), written.totals);
                assert_reads(&image, &memory);
                let end = image.read_at(len as u64 - 1, &mut [0; 2]);
                assert!(matches!(end, Err(ImageError::BeyondEnd { .. })));
            }
        }
    }
}

/// The version of an image tells readers of before that they can't read all of its blocks.
#[test]
fn blocks_in_parts_come_back_and_an_image_without_them_has_the_first_version() {
    let (directory, path) = scratch();
    let version = |path: &Path| fs::read(path).expect("an image")[8];
    for block in [4096, 16384, 65536] {
        let mut memory = memory(301, 7);
        memory.truncate(300 * 4096 + 99);
        let whole = packed(&memory, &path, options(Codec::Lz4, block));
        let (whole_version, base) = (version(&path), Image::open(&path, Some(key())).expect("an image"));
        let written = packed_in_parts(&memory, &path, options(Codec::Lz4, block));
        assert_eq!((whole_version, version(&path)), (1, 2));
        assert_eq!(written.totals.stored_blocks, whole.totals.stored_blocks);
        let image = Image::open(&path, Some(key())).expect("an image");
        assert_reads(&image, &memory);
        assert!(image.holds(0, &memory).expect("read"));
        // Digests are of the content: a difference has nothing, whichever way a block is packed.
        let later = directory.path().join("later.pim");
        for base in [base, image] {
            let options = PackOptions { base: Some(Arc::new(base)), ..options(Codec::Lz4, block) };
            let difference = packed_in_parts(&memory, &later, options);
            assert_eq!((difference.totals.stored_blocks, version(&later)), (0, 1), "{difference:?}");
        }
    }
}

/// Such a block in an image of the first version is none that a reader of that version knew.
#[test]
fn a_block_in_parts_is_refused_where_the_version_has_none() {
    let (_directory, path) = scratch();
    packed_in_parts(&memory(64, 5), &path, options(Codec::Lz4, 16384));
    let mut bytes = fs::read(&path).expect("read");
    let mut header = Header::decode(bytes.first_chunk().expect("a header")).expect("a header");
    header.has_parts = false;
    let covered = header.index_at as usize..(header.index_at + 32 + header.runs * 16) as usize;
    header.root = header.root_of(&key(), &bytes[covered]);
    bytes[..HEADER_BYTES].copy_from_slice(&header.encode());
    fs::write(&path, &bytes).expect("written");
    let image = Image::open(&path, Some(key())).expect("an image");
    let read = image.read_at(0, &mut [0; 64 << 12]);
    assert!(matches!(read, Err(ImageError::DamagedBlock { .. })), "{read:?}");
}

#[test]
fn zeroes_and_repeated_words_take_no_room() {
    let (_directory, path) = scratch();
    let mut memory = vec![0; 64 << 20];
    memory[32 << 20..].as_chunks_mut::<8>().0.fill([1, 2, 3, 4, 5, 6, 7, 8]);
    let written = packed(&memory, &path, options(Codec::Lz4, 16384));
    assert_eq!((written.totals.stored_blocks, written.totals.packed_bytes), (0, 0));
    assert!(written.file_bytes < 64 << 10, "{written:?}");
    let image = Image::open(&path, Some(key())).expect("an image");
    assert_eq!(image.content_at(0, 32 << 20), Content::Zero);
    assert_eq!(image.content_at((40 << 20) + 3, 999), Content::Same([4, 5, 6, 7, 8, 1, 2, 3]));
    assert_eq!(image.content_at((32 << 20) - 8, 16), Content::Stored);
    assert_reads(&image, &memory);
}

#[test]
fn holes_of_a_raw_file_were_never_received() {
    let (directory, path) = scratch();
    let raw = directory.path().join("raw");
    let file = fs::File::create(&raw).expect("a file");
    file.set_len(1 << 30).expect("sparse");
    file.write_all_at(&[7; 8192], 512 << 20).expect("written");
    let source = RawFile::open(&raw).expect("a file");
    let written = pack(&source, &path, options(Codec::Lz4, 16384), &mut go_on).expect("packed");
    assert!(written.file_bytes < 32 << 10, "{written:?}");
    let image = Image::open(&path, Some(key())).expect("an image");
    let first = (512 << 20) / 4096;
    assert!(image.received().eq(std::iter::once(first..first + 2)));
    let mut back = [0; 8194];
    image.read_at((512 << 20) - 1, &mut back).expect("read");
    assert!(back[1..8193] == [7; 8192] && back[0] == 0 && back[8193] == 0);
}

#[test]
fn any_changed_byte_is_an_error_where_it_is_and_never_other_content() {
    let (_directory, path) = scratch();
    let memory = memory(64, 5);
    packed(&memory, &path, options(Codec::Lz4, 4096));
    assert_damage_is_noticed(&memory, &path, 4096);
    packed_in_parts(&memory, &path, options(Codec::Lz4, 16384));
    assert_damage_is_noticed(&memory, &path, 16384);
}

fn assert_damage_is_noticed(memory: &[u8], path: &Path, block: usize) {
    let whole = fs::read(path).expect("read");
    let (mut refused, mut noticed) = (0, 0);
    for at in (0..whole.len()).step_by(whole.len() / 300) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        fs::write(path, &damaged).expect("written");
        let Ok(image) = Image::open(path, Some(key())) else {
            refused += 1;
            continue;
        };
        for (page, content) in memory.chunks(4096).enumerate() {
            let mut back = [9; 4096];
            let begin = (page * 4096 / block * block) as u64;
            match image.read_at(page as u64 * 4096, &mut back) {
                Ok(()) => assert!(back == *content, "byte {at}, page {page}"),
                Err(ImageError::DamagedBlock { path: named, offset }) => {
                    assert_eq!((&*named, offset, back), (path, begin, [0; 4096]));
                    noticed += 1;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert!(refused > 0 && noticed > 100, "{refused}, {noticed}");
    for len in [0, 100, 5000, whole.len() - 1] {
        fs::write(path, &whole[..len]).expect("written");
        assert!(Image::open(path, Some(key())).is_err(), "{len} bytes");
    }
}

/// The header of a sparse file can name an index of gigabytes: its root is checked before memory
/// is taken for that.
#[test]
fn a_long_index_is_refused_without_its_root_and_read_with_it() {
    let (_directory, path) = scratch();
    let mut memory = vec![0; 64 << 10];
    memory[9] = 1;
    packed(&memory, &path, options(Codec::Lz4, 4096));
    let mut header =
        Header::decode(fs::read(&path).expect("read").first_chunk().expect("a header")).expect("a header");
    let file = fs::File::options().write(true).open(&path).expect("opened");
    // 512 MiB of table, no run, and no chunk.
    header.len_bytes = LEN_BYTES_MOST;
    header.index_at = 1 << 20;
    header.index_bytes = LEN_BYTES_MOST / 4096 / CHUNK_BLOCKS * ROOT_BYTES as u64;
    header.runs = 0;
    file.set_len(header.index_at + header.index_bytes).expect("sparse");
    file.write_all_at(&header.encode(), 0).expect("written");
    let before = peak_bytes();
    let error = Image::open(&path, Some(key())).expect_err("another root");
    assert!(matches!(error, ImageError::Damaged { .. }), "{error}");
    let grown = peak_bytes() - before;
    assert!(grown < 128 << 20, "{grown} bytes for a table of {}", header.index_bytes);
    let mut root = header.begin_root(&key());
    (0..header.index_bytes >> 20).for_each(|_| root.add(&[0; 1 << 20]));
    header.root = root.end();
    file.write_all_at(&header.encode(), 0).expect("written");
    let image = Image::open(&path, Some(key())).expect("all is zero");
    assert_eq!(image.content_at(LEN_BYTES_MOST - 4096, 4096), Content::Zero);
}

/// The most memory that this process has had.
fn peak_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("it is told");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("it is told");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

#[test]
fn content_of_another_place_or_key_is_refused() {
    let (directory, path) = scratch();
    let memory = memory(64, 6);
    packed(&memory, &path, options(Codec::None, 4096));
    let error = Image::open(&path, Some(Key::new([6; 32]))).expect_err("another key");
    assert!(matches!(error, ImageError::OtherKey { .. }));
    let error = Image::open(&path, None).expect_err("no key");
    assert!(error.to_string().contains("memory.pim.key"), "{error}");
    // The blocks of the same memory by another key, put in place of these.
    let other = directory.path().join("other");
    let mut options = options(Codec::None, 4096);
    options.key = Key::new([6; 32]);
    let mut changed = memory.clone();
    changed[63 * 4096..].fill(3);
    changed[63 * 4096] = 1;
    packed(&changed, &other, options);
    fs::copy(&other, &path).expect("copied");
    assert!(Image::open(&path, Some(key())).is_err());
}

#[test]
fn a_key_file_is_made_once_and_found_beside_the_image() {
    let (directory, path) = scratch();
    let made = make_key(&path).expect("a key");
    assert_eq!(make_key(&path).expect("the same"), made);
    assert_eq!(load_key(&key_path(&path)).expect("read"), made);
    let memory = memory(20, 7);
    packed(&memory, &path, PackOptions::new(made));
    assert_reads(&Image::open(&path, None).expect("an image"), &memory);
    assert_eq!(names(directory.path()), ["memory.pim", "memory.pim.key"]);
    fs::write(key_path(&path), "no key").expect("written");
    assert!(matches!(Image::open(&path, None), Err(ImageError::BadKey { .. })));
}

#[test]
fn a_difference_has_the_key_of_its_base_beside_it_and_takes_no_other_ones_place() {
    let (directory, path) = scratch();
    let (since, other) = (directory.path().join("since.pim"), directory.path().join("other.pim"));
    let mut memory = memory(20, 8);
    packed(&memory, &path, PackOptions::beside(&path, None).expect("a key"));
    memory[5000] ^= 1;
    for _ in 0..2 {
        packed(&memory, &since, PackOptions::beside(&since, Some(&path)).expect("the base's key"));
        let image = Image::open(&since, None).expect("an image");
        assert_reads(&image, &memory);
        assert!(image.base().is_some());
    }
    let own = make_key(&other).expect("a key");
    assert!(matches!(PackOptions::beside(&other, Some(&path)), Err(ImageError::Write { .. })));
    assert_eq!(load_key(&key_path(&other)).expect("left"), own);
}

#[test]
fn work_that_is_cancelled_leaves_the_older_image() {
    let (directory, path) = scratch();
    let (older, newer) = (memory(300, 8), memory(3000, 9));
    packed(&older, &path, options(Codec::Lz4, 16384));
    let mut calls = 0;
    let cancelled = pack(&newer, &path, options(Codec::Lz4, 16384), &mut |progress| {
        calls += 1;
        if progress.done_bytes < 5 << 20 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    assert!(matches!(cancelled, Err(ImageError::Cancelled)) && calls == 6);
    assert_reads(&Image::open(&path, Some(key())).expect("the older"), &older);
    assert_eq!(names(directory.path()), ["memory.pim"]);
    packed(&newer, &path, options(Codec::Lz4, 16384));
    assert_reads(&Image::open(&path, Some(key())).expect("the newer"), &newer);
}

#[test]
fn a_difference_has_only_other_blocks_and_names_its_base() {
    let (directory, path) = scratch();
    let mut now = memory(600, 10);
    now[1 << 20..(1 << 20) + 65536].fill(3);
    let base = packed(&now, &path, options(Codec::Lz4, 16384));
    let layer = |number: usize| directory.path().join(format!("layer{number}"));
    let mut below = path.clone();
    for number in 0..3 {
        now[number * 100_000] ^= 1;
        now[1 << 20..(1 << 20) + 16384].fill(0);
        let image = Arc::new(Image::open(&below, Some(key())).expect("the base"));
        let options = PackOptions { base: Some(image), ..options(Codec::Lz4, 4096) };
        let written = packed(&now, &layer(number), options);
        assert!(written.totals.stored_blocks <= 1 && written.file_bytes < base.file_bytes / 4, "{written:?}");
        let image = Image::open(&layer(number), Some(key())).expect("a difference");
        assert_reads(&image, &now);
        below = layer(number);
    }
    // Elsewhere, and then gone.
    let moved = directory.path().join("moved");
    fs::rename(&path, &moved).expect("renamed");
    let error = Image::open(&layer(0), Some(key())).expect_err("no base");
    assert!(matches!(error, ImageError::NoBase { .. }), "{error}");
    let base = Arc::new(Image::open(&moved, Some(key())).expect("the base"));
    assert!(Image::open_over(&layer(0), Some(key()), base.clone()).is_ok());
    let wrong = Image::open_over(&layer(1), Some(key()), base.clone());
    assert!(matches!(wrong, Err(ImageError::OtherBase { .. })));
    // Over its own base it would have none.
    let options = PackOptions { base: Some(base), ..options(Codec::Lz4, 4096) };
    assert!(pack(&now, &moved, options, &mut go_on).is_err());
}

#[test]
fn a_difference_that_could_not_be_opened_is_not_written() {
    let (_directory, path) = scratch();
    let layer = |number: usize| path.with_file_name(format!("layer{number}.pim"));
    let write = |path: &Path, base| {
        let options = PackOptions { base, ..options(Codec::None, 4096) };
        Writer::create(path, 4096, options)?.finish()
    };
    let mut number = 0;
    let mut base = None;
    let refused = loop {
        match write(&layer(number), base.take()) {
            Ok(_) => base = Some(Arc::new(Image::open(&layer(number), Some(key())).expect("an image"))),
            Err(error) => break error,
        }
        number += 1;
    };
    assert!(matches!(refused, ImageError::TooManyLayers { .. }), "{refused}");
    assert!(number == 17 && !layer(number).exists(), "{number} layers");
}

#[test]
fn a_difference_may_be_longer_or_shorter_than_its_base() {
    let (directory, path) = scratch();
    let base = memory(100, 11);
    packed(&base[..100 * 4096 - 100].to_vec(), &path, options(Codec::Lz4, 16384));
    for pages in [60, 100, 140] {
        let mut now = memory(pages, 11);
        now[3] ^= 1;
        let image = Arc::new(Image::open(&path, Some(key())).expect("the base"));
        let layer = directory.path().join("layer");
        packed(&now, &layer, PackOptions { base: Some(image), ..options(Codec::Lz4, 4096) });
        assert_reads(&Image::open(&layer, Some(key())).expect("a difference"), &now);
    }
}

#[test]
fn a_working_set_keeps_its_order_and_is_checked_by_the_image() {
    let (directory, path) = scratch();
    let memory = memory(400, 12);
    packed(&memory, &path, options(Codec::Lz4, 4096));
    let image = Image::open(&path, Some(key())).expect("an image");
    assert!(image.working_set().is_none());
    let touches: Vec<_> = (0..400).map(|i| Touch { block: i * 7 % 400, at_us: i as u32 }).collect();
    WorkingSet::record(&image, &touches).expect("recorded");
    let set = image.working_set().expect("a set");
    let stored = |touch: &&Touch| image.content_at(touch.block * 4096, 4096) == Content::Stored;
    assert_eq!(set.touches(), touches.iter().filter(stored).copied().collect::<Vec<_>>());
    let mut given = 0;
    let check = &mut |touch: Touch, content: &[u8]| {
        assert!(content == &memory[touch.block as usize * 4096..][..4096]);
        given += 1;
    };
    set.read(&image, 5..set.touches().len(), check).expect("read");
    assert_eq!(given, set.touches().len() - 5);
    // Damaged, another's, or cut: as if there were none.
    let file = directory.path().join("memory.pim.ws");
    let whole = fs::read(&file).expect("read");
    for at in [0, 9, 17, 40, 70, 100, 110] {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        fs::write(&file, damaged).expect("written");
        assert!(image.working_set().is_none(), "byte {at}");
    }
    fs::write(&file, &whole[..whole.len() - 1]).expect("written");
    assert!(image.working_set().is_none());
    let mut damaged = whole.clone();
    let last = damaged.len() - 1;
    damaged[last] ^= 1;
    fs::write(&file, damaged).expect("written");
    let set = image.working_set().expect("its content is read later");
    let all = 0..set.touches().len();
    let error = set.read(&image, all, &mut |_, _| {}).expect_err("damaged");
    assert!(matches!(error, ImageError::DamagedBlock { .. }), "{error}");
}

#[test]
fn many_threads_read_at_once() {
    let (_directory, path) = scratch();
    let memory = memory(500, 13);
    packed(&memory, &path, options(Codec::Zstd, 16384));
    let image = Image::open(&path, Some(key())).expect("an image");
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| assert_reads(&image, &memory));
        }
    });
}
