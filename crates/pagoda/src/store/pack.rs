//! A page as it is packed: blocks of 16 KiB, each compressed on its own, behind their lengths.
//!
//! A part of a page can be had without unpacking all of it: a fault that wants one OS page of a 64 KiB base page pays for
//! a quarter. The ratio suffers little, because LZ4 finds most of its matches near by. Packed bytes come from this
//! process only; unpacking checks them all the same and never reads or writes out of bounds.

use pagoda_linux::lz4::{self, Lz4};

/// What is compressed at once.
pub(super) const BLOCK: usize = 16 << 10;

/// A block's length in the header: 0 for one of zeroes, [`BLOCK`] for one that is kept as it is.
const LENGTH_BYTES: usize = 2;

fn header_bytes(page: usize) -> usize {
    page.div_ceil(BLOCK) * LENGTH_BYTES
}

/// Packs `page` into the front of `into`. None if that takes more than all of it.
pub(super) fn pack(page: &[u8], into: &mut [u8], lz4: &mut Lz4) -> Option<usize> {
    let mut at = header_bytes(page.len());
    for (i, block) in page.chunks(BLOCK).enumerate() {
        let room = into.get_mut(at..)?;
        let len = if block.iter().all(|byte| *byte == 0) {
            0
        } else if let Some(len) = lz4.compress(block, first_of(room, block.len() / 8 * 7)) {
            len
        } else {
            room.get_mut(..block.len())?.copy_from_slice(block);
            block.len()
        };
        let length = u16::try_from(len).expect("a block's length fits its field").to_le_bytes();
        into[i * LENGTH_BYTES..][..LENGTH_BYTES].copy_from_slice(&length);
        at += len;
    }
    Some(at)
}

fn first_of(bytes: &mut [u8], len: usize) -> &mut [u8] {
    let len = len.min(bytes.len());
    &mut bytes[..len]
}

/// Unpacks bytes `offset..offset + into.len()` of a page of `page` bytes. `block` is room for one block. None if the
/// bytes are not what [`pack`] made.
pub(super) fn unpack(
    packed: &[u8],
    page: usize,
    offset: usize,
    into: &mut [u8],
    block: &mut [u8],
) -> Option<()> {
    let end = offset + into.len();
    let mut at = header_bytes(page);
    for (i, start) in (0..page).step_by(BLOCK).enumerate() {
        let length = packed.get(i * LENGTH_BYTES..)?.get(..LENGTH_BYTES)?;
        let len = usize::from(u16::from_le_bytes(length.try_into().ok()?));
        let bytes = packed.get(at..at + len)?;
        at += len;
        let size = BLOCK.min(page - start);
        let (from, to) = (offset.max(start), end.min(start + size));
        if from >= to {
            continue;
        }
        let part = &mut into[from - offset..to - offset];
        match len {
            0 => part.fill(0),
            _ if len == size => part.copy_from_slice(&bytes[from - start..to - start]),
            _ if part.len() == size => lz4::decompress(bytes, part)?,
            _ => {
                let block = &mut block[..size];
                lz4::decompress(bytes, block)?;
                part.copy_from_slice(&block[from - start..to - start]);
            }
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_part_comes_back_as_it_was(
            seed: u64, page in prop_oneof![Just(4096usize), Just(16384), Just(65536)], cut in (0usize..16, 1usize..17),
            kinds in proptest::collection::vec(0u8..3, 4)
        ) {
            let mut state = seed | 1;
            let content: Vec<u8> = (0..page)
                .map(|i| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    match kinds[i / BLOCK] { 0 => 0, 1 => (i / 7) as u8, _ => (state >> 56) as u8 }
                })
                .collect();
            let mut packed = vec![0; page + 64];
            let len = pack(&content, &mut packed, &mut Lz4::new()).expect("room");
            let mut block = vec![0; BLOCK];
            let mut whole = vec![1; page];
            prop_assert_eq!(unpack(&packed[..len], page, 0, &mut whole, &mut block), Some(()));
            prop_assert_eq!(&whole, &content);
            let from = cut.0 * 4096 % page;
            let to = (from + cut.1 * 4096).min(page);
            let mut part = vec![1; to - from];
            prop_assert_eq!(unpack(&packed[..len], page, from, &mut part, &mut block), Some(()));
            prop_assert_eq!(&part[..], &content[from..to]);
        }

        #[test]
        fn foreign_bytes_are_refused_or_unpacked_but_never_a_panic(bytes: Vec<u8>, offset in 0usize..15) {
            let mut into = vec![0; 4096];
            let _ = unpack(&bytes, 65536, offset * 4096, &mut into, &mut vec![0; BLOCK]);
        }
    }
}
