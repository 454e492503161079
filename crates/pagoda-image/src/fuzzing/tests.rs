//! Runs every file of the corpus under `fuzz/corpus/image`, and images with bytes changed.
//!
//! The first files of the corpus are made here: `PAGODA_WRITE_CORPUS=1` writes them anew. Others
//! may be added beside them.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use pagoda_core::migrate::handshake::Codec;

use pagoda_linux::codec::pack::{BlockPacker, pack_block};

use super::*;
use crate::write::{PackOptions, Writer, pack};

fn folder() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "../../fuzz/corpus/image"].iter().collect()
}

/// 40 KiB of all kinds of content.
fn memory() -> Vec<u8> {
    let mut memory = vec![0u8; 40 << 10];
    memory[4096..8192].fill(7);
    memory[8192..20000].iter_mut().enumerate().for_each(|(i, byte)| *byte = (i / 9) as u8);
    memory[28672..].iter_mut().enumerate().for_each(|(i, byte)| *byte = ((i * i * 7919) >> 7) as u8);
    memory
}

/// Packs that in blocks of two parts, and returns the file's bytes.
fn packed_in_parts(path: &Path) -> Vec<u8> {
    let (memory, mut packer) = (memory(), BlockPacker::default());
    let options = PackOptions { block_bytes: 8192, ..PackOptions::new(key()) };
    let mut writer = Writer::create(path, memory.len() as u64, options).expect("begun");
    for (block, content) in memory.chunks(8192).enumerate() {
        let mut rooms = [[0; 4096]; 2];
        let parts = content.chunks(4096).zip(&mut rooms).map(|(page, room)| {
            let len = pack_block(page, room, &mut packer).expect("room");
            &room[..len]
        });
        writer.put_parts(block as u64, content, parts).expect("put");
    }
    writer.finish().expect("written");
    fs::read(path).expect("read")
}

/// Packs that and returns the file's bytes.
fn packed(path: &Path, codec: Codec, base: Option<Arc<Image>>) -> Vec<u8> {
    let mut memory = memory();
    memory[30000] ^= u8::from(base.is_some());
    let options = PackOptions { codec, block_bytes: 4096, base, ..PackOptions::new(key()) };
    pack(&memory, path, options, &mut |_| ControlFlow::Continue(())).expect("packed");
    fs::read(path).expect("read")
}

/// Inputs: an image by each codec and in parts, mended and not, and a difference.
fn seeds(directory: &Path) -> Vec<(String, Vec<u8>)> {
    let path = directory.join("seed");
    let mut seeds = Vec::new();
    let in_parts = [("parts".to_owned(), packed_in_parts(&path))];
    let by_codec = [Codec::None, Codec::Lz4, Codec::Zstd];
    let by_codec = by_codec.map(|codec| (format!("{codec}"), packed(&path, codec, None)));
    for (name, bytes) in in_parts.into_iter().chain(by_codec) {
        seeds.push((name.clone(), [&[0], &bytes[..]].concat()));
        seeds.push((name + "-mended", [&[1], &bytes[..]].concat()));
    }
    let base = Arc::new(Image::open(&path, Some(key())).expect("an image"));
    let difference = packed(&directory.join("difference"), Codec::Lz4, Some(base));
    seeds.push(("difference".to_owned(), [&[1], &difference[..]].concat()));
    seeds
}

#[test]
fn every_input_of_the_corpus_gives_its_content_or_an_error() {
    let directory = tempfile::tempdir().expect("a directory");
    let seeds = seeds(directory.path());
    if std::env::var_os("PAGODA_WRITE_CORPUS").is_some() {
        fs::create_dir_all(folder()).expect("a folder");
        seeds.iter().for_each(|(name, input)| fs::write(folder().join(name), input).expect("written"));
    }
    // Where no base is.
    let elsewhere = tempfile::tempdir().expect("a directory");
    let path = elsewhere.path().join("input");
    for (name, input) in &seeds {
        let expected = match &**name {
            "difference" => 0,
            "parts" | "parts-mended" => 5,
            _ => 10,
        };
        assert_eq!(image(input, &path), expected, "{name}");
        let own = fs::read(folder().join(name)).expect("the corpus has it: PAGODA_WRITE_CORPUS=1 writes it");
        assert!(own == *input, "{name} is old: run this test with PAGODA_WRITE_CORPUS=1");
    }
    for file in fs::read_dir(folder()).expect("a corpus").flatten() {
        image(&fs::read(file.path()).expect("read"), &path);
    }
}

/// Digests that are right leave the lengths and places to be wrong.
#[test]
fn a_byte_that_differs_and_right_digests_give_an_error_or_content() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("input");
    let (mut taken, mut refused) = (0, 0);
    for (_, input) in seeds(directory.path()).iter().filter(|(name, _)| name.ends_with("mended")) {
        let index = input.len() - 7000;
        for at in (1..HEADER_BYTES).chain(index..index + 900) {
            let mut changed = input.clone();
            changed[at] ^= 0x81;
            match image(&changed, &path) {
                0 => refused += 1,
                _ => taken += 1,
            }
            mapped_ram(&changed[1..], &path);
        }
    }
    assert!(taken > 0 && refused > 0, "{taken} and {refused}");
}
