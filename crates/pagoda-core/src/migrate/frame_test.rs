use super::super::geometry::STRIPE_PAGES;
use super::*;
use proptest::prelude::*;

pub(in super::super) fn extents() -> impl Strategy<Value = Extent> {
    (0u64..1 << 30, 1..=STRIPE_PAGES, 0..STRIPE_PAGES).prop_map(|(stripe, count, into)| {
        let into = into % (STRIPE_PAGES - count + 1);
        Extent::new(stripe * u64::from(STRIPE_PAGES) + u64::from(into), count).expect("within a stripe")
    })
}

pub(in super::super) fn bodies() -> impl Strategy<Value = Body> {
    prop_oneof![
        (extents(), any::<prop::sample::Index>(), any::<u64>()).prop_map(|(extent, packed, digest)| {
            let packed_bytes = 1 + packed.index(extent.len().as_usize() - 1) as u32;
            Body::Data { extent, packed_bytes, digest }
        }),
        (extents(), any::<prop::sample::Index>(), any::<u64>()).prop_map(|(extent, packed, digest)| {
            let packed_bytes = 1 + packed.index(extent.len().as_usize() - 1) as u32;
            Body::Packed { extent, packed_bytes, digest }
        }),
        (extents(), any::<u64>()).prop_map(|(extent, digest)| Body::Stored { extent, digest }),
        (extents(), 1..=u64::MAX)
            .prop_map(|(extent, word)| Body::Filled { extent, word: word.to_le_bytes() }),
        extents().prop_map(|extent| Body::Zero { extent }),
        (any::<u32>(), any::<u64>()).prop_map(|(round, pages)| Body::Sync { round, pages }),
        any::<u32>().prop_map(|round| Body::End { round }),
        extents().prop_map(|extent| Body::Owed { extent }),
        extents().prop_map(|extent| Body::Kept { extent }),
        Just(Body::Commit),
        Just(Body::Switch),
        Just(Body::Last),
    ]
}

proptest! {
    #[test]
    fn a_frame_comes_back_as_it_was(sequence: u64, body in bodies()) {
        let frame = Frame { sequence, body };
        prop_assert_eq!(Frame::decode(&frame.encode()), Ok(frame));
        prop_assert!(frame.body.payload_bytes() <= PAYLOAD_MOST);
    }

    #[test]
    fn one_bit_that_flips_is_noticed(sequence: u64, body in bodies(), bit in 0..FRAME_BYTES * 8) {
        let mut bytes = Frame { sequence, body }.encode();
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert_eq!(Frame::decode(&bytes), Err(Damaged));
    }

    #[test]
    fn any_bytes_with_a_right_checksum_are_refused_or_mean_themselves(
        kind in 0u8..14, count: u32, at: u64, what in prop_oneof![Just(0u64), any::<u64>()], digest: u64, odd in 0u8..3
    ) {
        let bytes: [u8; FRAME_BYTES] =
            Put::new().u8(kind).bytes([odd / 2, 0, 0]).u32(count).u64(7).u64(at).u64(what).u64(digest).seal();
        if let Ok(frame) = Frame::decode(&bytes) {
            prop_assert_eq!(frame.encode(), bytes);
            prop_assert!(frame.body.payload_bytes() <= PAYLOAD_MOST);
        }
    }

    #[test]
    fn any_bytes_are_refused(bytes: [u8; FRAME_BYTES]) {
        prop_assert_eq!(Frame::decode(&bytes), Err(Damaged));
    }
}
