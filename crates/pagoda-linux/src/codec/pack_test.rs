//! Packing, unpacking and replacing parts of pages.

use super::*;
use proptest::prelude::*;

/// LZ4 shrinks none of it. Half of each byte is known.
#[test]
fn hexadecimal_digits_take_little_more_than_half() {
    let mut random = 1u64;
    let digits: Vec<u8> = (0..BLOCK)
        .map(|_| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            b"0123456789abcdef"[(random >> 60) as usize]
        })
        .collect();
    let (mut packed, mut back) = (vec![0; BLOCK], vec![0; BLOCK]);
    let len = pack_block(&digits, &mut packed, &mut BlockPacker::default()).expect("room");
    assert!((BLOCK / 2..BLOCK / 16 * 9).contains(&len), "{len}");
    let mut unpacker = PageUnpacker::default();
    assert!(unpacker.unpack_block(&packed[..len], &mut back).is_some() && back == digits);
    assert!(unpacker.unpack_block(&packed[..len - 1], &mut back).is_none(), "a part of it");
}

#[test]
fn noise_is_not_compressed_twice() {
    let mut state = 1u64;
    for is_noisy in [true, false] {
        let bytes: Vec<u8> = (0..BLOCK)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8 & if is_noisy { 0xff } else { 0x3f }
            })
            .collect();
        assert_eq!(is_noise(&bytes), is_noisy);
    }
}

proptest! {
    #[test]
    fn any_part_comes_back_as_it_was(
        seed: u64, page in prop_oneof![Just(4096usize), Just(16384), Just(65536)], cut in (0usize..16, 1usize..17),
        kinds in proptest::collection::vec(0u8..4, 16), changed: usize
    ) {
        let mut state = seed | 1;
        let content: Vec<u8> = (0..page)
            .map(|i| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                match kinds[i / BLOCK] {
                    0 => 0,
                    1 => (i / 7) as u8,
                    2 => b"0123456789abcdef"[(state >> 60) as usize],
                    _ => (state >> 56) as u8,
                }
            })
            .collect();
        let mut packed = vec![0; page + 64];
        let (mut packer, mut unpacker) = (BlockPacker::default(), PageUnpacker::default());
        let len = pack(&content, &mut packed, &mut packer).expect("room");
        let mut whole = vec![1; page];
        prop_assert_eq!(unpacker.unpack_part(&packed[..len], page, 0, &mut whole), Some(()));
        prop_assert_eq!(&whole, &content);
        // Blocks that are packed one by one, and joined.
        let mut blocks = vec![[0; BLOCK]; page / BLOCK];
        let each = content.chunks(BLOCK).zip(&mut blocks).map(|(block, room)| {
            let len = if block.iter().all(|byte| *byte == 0) { 0 } else { pack_block(block, room, &mut packer).expect("room") };
            &room[..len]
        });
        let mut joined = vec![0; page + 64];
        let joined_len = join(each, page, &mut joined).expect("room");
        whole.fill(1);
        let mut zstd = Decompressor::new();
        prop_assert_eq!(unpack_blocks(&joined[..joined_len], &mut whole, &mut zstd), Some(()));
        prop_assert_eq!(&whole, &content);
        prop_assert_eq!(unpack_blocks(&joined[..1], &mut whole, &mut zstd), None);
        let from = cut.0 * 4096 % page;
        let to = (from + cut.1 * 4096).min(page);
        let mut part = vec![1; to - from];
        prop_assert_eq!(unpacker.unpack_part(&packed[..len], page, from, &mut part), Some(()));
        prop_assert_eq!(&part[..], &content[from..to]);
        // A part that changed, and all else as it was.
        let mut changed_page = content.clone();
        changed_page[from..to].iter_mut().for_each(|byte| *byte = byte.wrapping_mul(3).wrapping_add(1));
        let mut only_change = vec![0x77; page];
        only_change[from..to].copy_from_slice(&changed_page[from..to]);
        let mut repacked = vec![0; page + 64];
        let runs = [from..from + 1, from + 1..to];
        let again = repack(&packed[..len], &runs, &only_change, &mut repacked, &mut unpacker, &mut packer);
        let again = again.expect("room");
        prop_assert_eq!(unpacker.unpack_part(&repacked[..again], page, 0, &mut whole), Some(()));
        prop_assert_eq!(&whole, &changed_page);
        // Bytes outside the extent are not looked at.
        let extent = extent(&packed, page, from, part.len()).expect("a header");
        packed[header_bytes(page)..extent.start].fill(0xee);
        packed[extent.end..].fill(0xee);
        part.fill(1);
        prop_assert_eq!(unpacker.unpack_part(&packed[..len], page, from, &mut part), Some(()));
        prop_assert_eq!(&part[..], &content[from..to]);
        prop_assert_eq!(unpacker.is_packed(&packed[..len], page, from, &part), Some(true));
        part[changed % (to - from)] ^= 1;
        prop_assert_eq!(unpacker.is_packed(&packed[..len], page, from, &part), Some(false));
    }

    #[test]
    fn foreign_bytes_are_refused_or_unpacked_but_never_a_panic(bytes: Vec<u8>, offset in 0usize..15) {
        let mut into = vec![0; 4096];
        let (mut packer, mut unpacker) = (BlockPacker::default(), PageUnpacker::default());
        let _ = unpacker.unpack_part(&bytes, 65536, offset * 4096, &mut into);
        let _ = unpacker.is_packed(&bytes, 65536, offset * 4096, &into);
        let _ = repack(&bytes, std::slice::from_ref(&(0..4096)), &[1; 65536], &mut [0; 65536], &mut unpacker, &mut packer);
        let _ = extent(&bytes, 65536, offset * 4096, 4096);
        let _ = unpack_blocks(&bytes, &mut [0; 65536], &mut Decompressor::new());
    }
}
