use proptest::prelude::*;

use super::*;

const KEY: DigestKey = DigestKey::of_session([7; 16]);

fn content(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

#[test]
fn a_digest_is_of_its_blocks_its_place_and_its_session() {
    let (none, all) = ([None; BLOCKS], content(STRIPE_BYTES));
    let one = &all[..BLOCK_BYTES];
    assert_eq!(KEY.content(512, one, &none), KEY.block(one), "one block is its own");
    assert_ne!(KEY.content(512 + 32, one, &none), KEY.block(one), "two halves are two");
    assert_eq!(KEY.content(0, &all, &none), KEY.content(1024, &all, &none), "each stripe is cut alike");
    let other = DigestKey::of_session([8; 16]);
    assert_ne!(other.content(0, &all, &none), KEY.content(0, &all, &none));
    let mut changed = all.clone();
    for at in [0, BLOCK_BYTES - 1, BLOCK_BYTES, STRIPE_BYTES - 1] {
        changed[at] ^= 1;
        assert_ne!(KEY.content(0, &changed, &none), KEY.content(0, &all, &none), "byte {at}");
        changed[at] ^= 1;
    }
    // Two blocks in each other's place.
    let swapped = [&all[BLOCK_BYTES..2 * BLOCK_BYTES], &all[..BLOCK_BYTES], &all[2 * BLOCK_BYTES..]].concat();
    assert_ne!(KEY.content(0, &swapped, &none), KEY.content(0, &all, &none));
}

#[test]
fn known_blocks_are_taken_where_all_of_one_is_content() {
    let all = content(STRIPE_BYTES);
    let known: KnownBlocks =
        std::array::from_fn(|i| (i != 3).then(|| KEY.block(&all[i * BLOCK_BYTES..][..BLOCK_BYTES])));
    for (first, pages) in [(0, 512), (512, 64), (64, 128), (10, 300), (63, 2), (70, 3)] {
        let bytes = &all[first % 512 * OS_PAGE..][..pages * OS_PAGE];
        let (with, without) =
            (KEY.content(first as u64, bytes, &known), KEY.content(first as u64, bytes, &[None; BLOCKS]));
        assert_eq!(with, without, "{pages} pages from {first} on");
    }
}

proptest! {
    #[test]
    fn the_parts_it_comes_in_make_no_difference(
        first in 0u64..1024, pages in 1usize..512, cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6)
    ) {
        let pages = pages.min(512 - first as usize % 512);
        let all = content(pages * OS_PAGE);
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(all.len() + 1)).collect();
        cuts.extend([0, all.len()]);
        cuts.sort_unstable();
        let mut digest = ContentDigest::new(KEY, first, all.len());
        cuts.windows(2).for_each(|cut| digest.add(&all[cut[0]..cut[1]]));
        prop_assert_eq!(digest.finish(), KEY.content(first, &all, &[None; BLOCKS]));
    }
}
