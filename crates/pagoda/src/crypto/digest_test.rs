use proptest::prelude::*;

use super::*;

/// The example of RFC 8452, appendix A: this hash is POLYVAL.
#[test]
fn the_hash_is_polyval() {
    let bytes = |hex: &str| u128::from_str_radix(hex, 16).expect("hexadecimal").to_be_bytes();
    let mut hash = Polyval::new(&bytes("25629347589242761d31f826ba4b757b").into());
    let blocks = ["4f4f95668c83dfb6401762bb2d01a262", "d1a24ddd2721d006bbe45f20d3c9f362"];
    hash.update(&blocks.map(|block| bytes(block).into()));
    assert_eq!(hash.finalize().as_slice(), bytes("f7a3b47b846119fae5b7866cf5e5b77e"));
}

/// NH as it is defined, one product after the other.
#[test]
fn a_block_is_summed_up_as_it_is_defined() {
    let digester = Digester::of_key([3; KEY_BYTES]);
    let content: Vec<u8> = (0..4096u32).map(|i| ((i * 7919) >> 3) as u8).collect();
    let word = |at: usize, len: usize| {
        let mut word = [0; 8];
        let known = len.saturating_sub(at).min(8);
        word[..known].copy_from_slice(&content[at..at + known]);
        u64::from_le_bytes(word)
    };
    for len in [1, 8, 15, 16, 17, 63, 64, 65, 700, 4095, 4096] {
        let sum = (0..len).step_by(16).fold(0u128, |sum, at| {
            let key = digester.words[at / 16];
            let [one, other] = [0, 1].map(|i| word(at + 8 * i, len).wrapping_add(key[i]));
            sum.wrapping_add(u128::from(one) * u128::from(other))
        });
        assert_eq!(digester.sum_of(&content[..len]), sum, "{len}");
    }
}

#[test]
fn blocks_of_zeroes_need_not_be_read() {
    let digester = Digester::of_key([3; KEY_BYTES]);
    let mut content: Vec<u8> = (0..4 * BLOCK as u32).map(|i| ((i * 7919) >> 3) as u8).collect();
    content[BLOCK..3 * BLOCK].fill(0);
    let digest = digester.of(&content);
    content[BLOCK..3 * BLOCK].fill(0xee);
    assert_eq!(digester.of_present(&content, |block| block == 0 || block == 3), digest);
    assert_ne!(digester.of_present(&content, |_| true), digest);
}

#[test]
fn every_engine_draws_a_key_of_its_own() {
    let content = [7; 4096];
    let [one, other] = [(); 2].map(|()| Digester::random().expect("random bytes"));
    assert_ne!(one.key(), other.key());
    assert_ne!(one.of(&content), other.of(&content));
    assert_eq!(one.of(&content), Digester::of_key(one.key()).of(&content));
}

proptest! {
    #[test]
    fn a_change_a_longer_end_and_another_place_are_seen(
        content in proptest::collection::vec(any::<u8>(), 1..9000), at: prop::sample::Index, bit in 0u8..8, zeroes in 1usize..40,
        place: u64,
    ) {
        let digester = Digester::of_key([9; KEY_BYTES]);
        let digest = digester.of(&content);
        let mut changed = content.clone();
        changed[at.index(content.len())] ^= 1u8 << bit;
        prop_assert_ne!(digest, digester.of(&changed));
        let longer = [&content[..], &vec![0; zeroes]].concat();
        prop_assert_ne!(digest, digester.of(&longer));
        prop_assert_eq!(digest == digester.at(place, &content), place == 0);
        prop_assert_eq!(digest, digester.of(&content));
    }
}
