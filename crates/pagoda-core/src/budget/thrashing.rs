//! Whether a program waits for memory that it had before, and the budget that would end it.
//!
//! The distance of a refault is the bytes that left memory after its page did, as in the kernel's
//! `workingset.c`. With so many bytes more the page would still have been there. So a budget lacks
//! about the distance that nine of ten refaults do not exceed. This module must never measure: the
//! caller passes counts, times and sizes.

use crate::size::Bytes;
use crate::time::latency::{index_of, percentile};

/// Buckets of a histogram of distances.
pub use crate::time::latency::BUCKETS;

/// Refaults in a thousand that the advised budget would end.
const ENDED_PER_MILLE: u32 = 900;

/// A program thrashes if its refaults take one part in so many of its time, or more.
const WAITED_PART: u64 = 10;

/// The bucket of a distance in granules.
#[must_use]
pub const fn bucket_of(granules: u32) -> usize {
    index_of(granules as u64)
}

/// The bytes that the budget lacks, by the counts of all refaults with a known distance; zero if
/// there were none.
#[must_use]
pub fn lacks(counts: &[u64; BUCKETS]) -> Bytes {
    let granules = percentile(counts, ENDED_PER_MILLE).unwrap_or(0);
    Bytes::kib(granules.saturating_mul(4))
}

/// The budget to advise to a program that waited for `waited_ns` of `time_ns`: none if that is
/// little. Never more than it would hold without one, `held`.
#[must_use]
pub fn advice(budget: Bytes, lacks: Bytes, held: Bytes, waited_ns: u64, time_ns: u64) -> Option<Bytes> {
    if lacks == Bytes::ZERO || waited_ns < time_ns / WAITED_PART {
        return None;
    }
    let enough = budget.saturating_add(lacks).min(held);
    let mib = Bytes::mib(enough.get().div_ceil(1 << 20));
    (mib > budget).then_some(mib)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nine_of_ten_refaults_lack_is_advised_up_to_all_that_is_held() {
        let mut counts = [0; BUCKETS];
        assert_eq!(lacks(&counts), Bytes::ZERO);
        counts[bucket_of(64 << 8)] = 90;
        counts[bucket_of(1 << 20)] = 10;
        let lacks = lacks(&counts);
        assert!((64..=72).contains(&(lacks.get() >> 20)), "{lacks}");
        let advice = |waited, held| advice(Bytes::mib(100), lacks, Bytes::mib(held), waited, 1000);
        assert_eq!(advice(99, 300), None);
        let raised = advice(100, 300).expect("it waits for a tenth of its time");
        assert!((164..=173).contains(&(raised.get() >> 20)), "{raised}");
        assert_eq!(advice(900, 150), Some(Bytes::mib(150)), "it never holds more");
        assert_eq!(advice(900, 90), None, "all of it fits");
    }
}
