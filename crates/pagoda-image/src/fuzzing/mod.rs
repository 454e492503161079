//! Arbitrary bytes as an image: for fuzzers, and for tests that replay their findings.
//!
//! An input is a small image file. Its key is known here, and its digests are made right on wish,
//! since hardly any input would get beyond them otherwise. Panics on a wrong outcome. For `fuzz/`
//! and the tests alone, behind a feature.

use std::fs;
use std::path::Path;

use pagoda_core::image::Key;
use pagoda_core::image::digest::ROOT_BYTES;
use pagoda_core::image::header::{HEADER_BYTES, Header};
use pagoda_core::image::index::{ALL_BASE, ALL_ZERO, CHUNK_BYTES, Layout};
use pagoda_linux::mem::zero_scan::is_zero;

use crate::import::{MappedRam, RawMemory};
use crate::read::{Content, Image};

/// The key of all inputs.
#[must_use]
pub fn key() -> Key {
    Key::new([7; 32])
}

/// The most content that is read of one input, in bytes.
const READ_MOST: u64 = 1 << 20;

/// Takes an input as an image at `path`, whose first byte says whether its digests are mended.
/// Returns how many of its blocks could be read.
///
/// # Panics
/// If something is given that the image can't have.
pub fn image(input: &[u8], path: &Path) -> usize {
    let [mends, bytes @ ..] = input else { return 0 };
    let mut bytes = bytes.to_vec();
    if mends & 1 == 1 {
        mend(&mut bytes);
    }
    fs::write(path, &bytes).expect("a file");
    let Ok(image) = Image::open(path, Some(key())) else { return 0 };
    let block = image.block_bytes() as usize;
    let mut read = 0;
    let mut content = vec![0; block];
    for at in (0..image.len_bytes().min(READ_MOST)).step_by(block) {
        let len = block.min((image.len_bytes() - at) as usize);
        content.fill(0xa5);
        match image.read_at(at, &mut content[..len]) {
            Ok(()) => {
                read += 1;
                assert_eq!(
                    image.is_zero(at, len),
                    image.content_at(at, len) == Content::Zero,
                    "block at {at}"
                );
                if image.is_zero(at, len) {
                    assert!(is_zero(&content[..len]), "block at {at}");
                }
                let (half, mut part) = (len / 2, vec![0; len - len / 2]);
                image.read_at(at + half as u64, &mut part).expect("the whole was read");
                assert!(part == content[half..len], "part at {at}");
            }
            Err(_) => assert!(is_zero(&content[..len]), "block at {at}"),
        }
    }
    let _ = (image.received().count(), image.working_set());
    read
}

/// Takes an input as a migration file of QEMU's at `path`. Returns the bytes that it gave.
///
/// # Panics
/// If something is given that is not in the file.
pub fn mapped_ram(input: &[u8], path: &Path) -> u64 {
    fs::write(path, input).expect("a file");
    let Ok(ram) = MappedRam::open(path, None) else { return 0 };
    let end = ram.len_bytes().min(READ_MOST);
    let (mut at, mut given) = (0, 0);
    while let Ok(Some(data)) = ram.data_in(at..end) {
        assert!(data.start >= at && data.end <= end && !data.is_empty());
        let mut content = vec![0; (data.end - data.start) as usize];
        if ram.read_at(data.start, &mut content).is_ok() {
            given += content.len() as u64;
        }
        at = data.end;
    }
    given
}

/// Makes the digests of an image right that is right in all else.
fn mend(bytes: &mut [u8]) {
    let Some(own) = bytes.first_chunk_mut::<HEADER_BYTES>() else { return };
    // The checksum is made right by taking the fields and writing them again.
    let checksum_at = HEADER_BYTES - 8;
    let checksum = twox_hash::XxHash3_64::oneshot(&own[..checksum_at]);
    own[checksum_at..].copy_from_slice(&checksum.to_le_bytes());
    let Ok(mut header) = Header::decode(own) else { return };
    header.key_check = key().check();
    if let Some(layout) = Layout::new(&header)
        && let Some(index) = bytes.get_mut(header.index_at as usize..)
        && let Some(index) = index.get_mut(..header.index_bytes as usize)
    {
        let (table, rest) = index.split_at_mut(layout.runs_at);
        let mut chunks = rest[layout.chunks_at - layout.runs_at..].chunks(CHUNK_BYTES);
        for digest in table.as_chunks_mut::<ROOT_BYTES>().0 {
            if *digest != ALL_ZERO.0
                && *digest != ALL_BASE.0
                && let Some(chunk) = chunks.next()
            {
                *digest = key().of_chunk(chunk).0;
            }
        }
        header.root = header.root_of(&key(), &index[..layout.chunks_at]);
    }
    bytes[..HEADER_BYTES].copy_from_slice(&header.encode());
}

#[cfg(test)]
mod tests;
