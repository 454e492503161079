use proptest::prelude::*;

use super::*;

fn counts_of(latencies: &[u64]) -> [u64; BUCKETS] {
    let mut counts = [0; BUCKETS];
    for &ns in latencies {
        counts[index_of(ns)] += 1;
    }
    counts
}

#[test]
fn the_buckets_join_without_gap_or_overlap() {
    assert_eq!((index_of(0), value_of(0)), (0, 0));
    for index in 1..BUCKETS {
        let lowest = value_of(index - 1) + 1;
        assert_eq!((index_of(lowest), index_of(value_of(index))), (index, index));
    }
    assert_eq!(value_of(BUCKETS - 1), LONGEST_NS);
    assert_eq!((index_of(LONGEST_NS + 1), index_of(u64::MAX)), (BUCKETS - 1, BUCKETS - 1));
}

#[test]
fn an_empty_histogram_has_no_percentile() {
    assert_eq!(percentile(&[0; BUCKETS], 500), None);
    assert_eq!(percentile(&[], 1000), None);
}

#[test]
fn one_slow_fault_in_a_thousand_shows_beyond_p999_only() {
    let mut latencies = vec![7; 999];
    latencies.push(1_000_000);
    let counts = counts_of(&latencies);
    assert_eq!((percentile(&counts, 0), percentile(&counts, 999)), (Some(7), Some(7)));
    assert!(percentile(&counts, 1000) >= Some(1_000_000));
}

#[test]
fn counts_of_any_size_do_not_overflow() {
    assert_eq!(percentile(&[u64::MAX; BUCKETS], 1000), Some(LONGEST_NS));
}

proptest! {
    #[test]
    fn within_an_eighth_of_the_true_percentile(
        drawn in prop::collection::vec((any::<u64>(), 0u32..64), 1..300),
        per_mille in 0u32..=1000,
    ) {
        // Shifted, so that every power of two is equally likely.
        let mut latencies: Vec<u64> =
            drawn.into_iter().map(|(ns, shift)| (ns & LONGEST_NS) >> (shift % BITS)).collect();
        latencies.sort_unstable();
        let rank = (latencies.len() * per_mille as usize).div_ceil(1000).max(1);
        let truth = latencies[rank - 1];
        let got = percentile(&counts_of(&latencies), per_mille).expect("not empty");
        prop_assert!(got >= truth && got - truth <= truth / 8);
    }
}
