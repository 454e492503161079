//! Memory for the tests of images, and a place for its image.

#![allow(dead_code, reason = "each of the tests uses its own part")]

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use pagoda_image::{PackOptions, Progress, Writer, Written, pack};
use pagoda_linux::codec::pack::{BLOCK, BlockPacker, pack_block};
use pagoda_linux::testing::random::Random;

/// Memory of all kinds: zeroes, one word, text that packs well, and noise that does not.
pub fn memory(pages: usize, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed, 0);
    let mut memory = vec![0; pages * 4096];
    for page in memory.chunks_mut(4096) {
        match random.below(6) {
            0 | 1 => {}
            2 => page.as_chunks_mut::<8>().0.fill(*b"pagoda!!"),
            3 | 4 => page.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i / 16) as u8 ^ seed as u8),
            _ => page.as_chunks_mut::<8>().0.iter_mut().for_each(|word| *word = random.next().to_le_bytes()),
        }
    }
    memory
}

/// An empty directory, and the path of an image there.
pub fn scratch() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let path = directory.path().join("memory.pim");
    (directory, path)
}

pub fn go_on(_: Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

pub fn packed(memory: &Vec<u8>, path: &Path, options: PackOptions) -> Written {
    pack(memory, path, options, &mut go_on).expect("packed")
}

/// The same with each 4 KiB packed on its own, as a store has them.
pub fn packed_in_parts(memory: &[u8], path: &Path, options: PackOptions) -> Written {
    let mut writer = Writer::create(path, memory.len() as u64, options).expect("begun");
    let mut packer = BlockPacker::default();
    for (block, part) in memory.chunks(writer.block_bytes()).enumerate() {
        let mut content = part.to_vec();
        content.resize(writer.block_bytes(), 0);
        let mut pack_one = |page: &[u8]| {
            let mut packed = vec![0; BLOCK];
            let len = pack_block(page, &mut packed, &mut packer).expect("room");
            packed.truncate(len);
            packed
        };
        let parts: Vec<_> = content.chunks(BLOCK).map(&mut pack_one).collect();
        writer.put_parts(block as u64, &content, parts.iter().map(Vec::as_slice)).expect("put");
    }
    writer.finish().expect("written")
}
