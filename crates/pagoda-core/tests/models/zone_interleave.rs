//! Weighted interleave: shares by weights, among local and remote zones alike.

use std::num::NonZeroU8;

use pagoda_core::zone::{Shortage, Zone, ZonePolicy, Zones};
use proptest::prelude::*;

const LOW: u64 = 10;

fn zone(free_frames: u64) -> Zone {
    Zone { free_frames, low_frames: LOW, high_frames: 2 * LOW }
}

fn interleaved(local: &[Zone], remote: &[Zone], weights: &[u8]) -> Zones {
    let weights: Vec<_> = weights.iter().map(|weight| NonZeroU8::new(*weight).expect("above 0")).collect();
    Zones::new(ZonePolicy::WeightedInterleave, local, remote).with_weights(&weights)
}

proptest! {
    #[test]
    fn rounds_give_each_zone_its_weight_at_once(
        weights in prop::collection::vec(1u8.., 1..6),
        remote in 0usize..5,
        rounds in 1u64..4,
    ) {
        let local = weights.len() - remote.min(weights.len() - 1);
        let all = vec![zone(1 << 20); weights.len()];
        let mut zones = interleaved(&all[..local], &all[local..], &weights);
        let wanted = (0..rounds).flat_map(|_| weights.iter().enumerate());
        let wanted = wanted.flat_map(|(zone, weight)| std::iter::repeat_n(zone, usize::from(*weight)));
        for wanted in wanted {
            let grant = zones.allocate(16).expect("plenty");
            prop_assert_eq!((grant.zone.index(), grant.frames), (wanted, 1), "another zone may be next");
        }
        let given = &zones.counters().allocated_frames;
        let wanted: Vec<u64> = weights.iter().map(|weight| rounds * u64::from(*weight)).collect();
        prop_assert_eq!(given, &wanted);
        prop_assert_eq!(zones.counters().resets, 0);
    }
}

#[test]
fn a_zone_without_a_frame_has_its_turn_and_the_first_other_gives() {
    let mut zones = interleaved(&[zone(100), zone(LOW)], &[zone(100)], &[1, 2, 1]);
    let given: Vec<_> = (0..8).map(|_| zones.allocate(1).map(|grant| grant.zone.index())).collect();
    assert_eq!(given, [0, 0, 0, 2, 0, 0, 0, 2].map(Ok));
    let mut empty = interleaved(&[zone(LOW)], &[zone(LOW)], &[1, 1]);
    assert_eq!((empty.allocate(1), empty.counters().wake_ups), (Err(Shortage), 1));
}

#[test]
fn weights_are_one_if_they_are_not_said() {
    let mut zones = Zones::new(ZonePolicy::WeightedInterleave, &[zone(100), zone(100)], &[zone(100)]);
    let given: Vec<_> = (0..6).map(|_| zones.allocate(1).expect("plenty").zone.index()).collect();
    assert_eq!(given, [0, 1, 2, 0, 1, 2]);
}
