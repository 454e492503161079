use proptest::prelude::*;

use super::*;

fn cipher() -> FileCipher {
    FileCipher::random().expect("random bytes")
}

#[test]
fn equal_content_looks_different_at_each_place_and_in_each_file() {
    let (one, other, page) = (cipher(), cipher(), [7; 4096]);
    let mut seen = Vec::new();
    for (cipher, place) in [(&one, 0), (&one, 1), (&one, u32::MAX), (&other, 0)] {
        let mut bytes = page;
        let checksum = cipher.seal(place, &mut bytes);
        let blocks = || bytes.chunks(16).map(<[u8]>::to_vec);
        assert!(blocks().all(|block| !seen.contains(&block)), "place {place}");
        seen.extend(blocks());
        assert!(FileCipher::of_key(&cipher.key()).open(place, checksum, &mut bytes) && bytes == page);
    }
}

/// The difference of two contents under one key stream would show both.
#[test]
fn two_contents_at_one_place_have_nothing_in_common() {
    let (cipher, [mut one, mut other]) = (cipher(), [[0; 4096], [0; 4096]]);
    other[4095] = 1;
    cipher.seal(9, &mut one);
    cipher.seal(9, &mut other);
    let equal = one.iter().zip(&other).filter(|(one, other)| one == other).count();
    assert!(equal < 100, "{equal} of 4096 bytes; one in 256 by chance");
}

proptest! {
    #[test]
    fn what_was_sealed_opens_and_nothing_else_does(
        content in prop::collection::vec(any::<u8>(), 1..5000), place: u32, elsewhere: u32, at: prop::sample::Index,
        from: prop::sample::Index, bit in 0u8..8,
    ) {
        let cipher = cipher();
        let mut sealed = content.clone();
        let checksum = cipher.seal(place, &mut sealed);
        let opened = |place, checksum, sealed: &[u8]| {
            let mut bytes = sealed.to_vec();
            (cipher.open(place, checksum, &mut bytes), bytes)
        };
        prop_assert_eq!(opened(place, checksum, &sealed), (true, content.clone()));
        let mut changed = sealed.clone();
        changed[at.index(content.len())] ^= 1u8 << bit;
        prop_assert!(!opened(place, checksum, &changed).0);
        prop_assert!(!opened(place, checksum ^ 1 << bit, &sealed).0);
        prop_assert!(place == elsewhere || !opened(elsewhere, checksum, &sealed).0);
        prop_assert!(!opened(place, checksum, &[&sealed[..], &[0]].concat()).0);
        let from = from.index(content.len());
        cipher.open_part(place, checksum, from, &mut sealed[from..]);
        prop_assert_eq!(&sealed[from..], &content[from..]);
    }
}
