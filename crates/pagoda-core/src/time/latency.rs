//! A histogram of latencies in a fixed number of buckets, for counters in shared memory.
//!
//! Each power of two is cut into eight equal buckets, so the relative error is an eighth at any
//! size. 272 counts, about 2 KiB, cover 0 ns to 69 seconds. Longer latencies count as the longest:
//! the engine gives up after half of it. This module must never hold the counts. The caller has
//! them, as plain numbers or as atomics; this module maps latencies to indices and back.

/// Buckets per power of two, as a shift.
const SUB_BITS: u32 = 3;
const SUB: usize = 1 << SUB_BITS;

/// Bits of the longest latency that is distinguished.
const BITS: u32 = 36;

/// The longest latency that is distinguished from longer ones, 68.7 s.
pub const LONGEST_NS: u64 = (1 << BITS) - 1;

/// The number of counts of a histogram: a group for 0..8 ns, then one for each of the 33 powers of
/// two from 8 on.
pub const BUCKETS: usize = (1 + BITS as usize - SUB_BITS as usize) * SUB;

/// The bucket that counts a latency of `ns`; always below [`BUCKETS`].
#[must_use]
pub const fn index_of(ns: u64) -> usize {
    if ns < SUB as u64 {
        return ns as usize;
    }
    let ns = if ns > LONGEST_NS { LONGEST_NS } else { ns };
    let shift = ns.ilog2() - SUB_BITS;
    // The top bit and the three below it. The top bit adds one group, so the groups join without a
    // gap.
    (shift as usize) * SUB + (ns >> shift) as usize
}

/// The largest latency in ns that the bucket at `index` counts, at most an eighth above any other
/// in it. The last bucket counts longer ones, too.
///
/// It is the largest so that a percentile is never too low. Panics if `index` is not below
/// [`BUCKETS`].
#[must_use]
pub const fn value_of(index: usize) -> u64 {
    assert!(index < BUCKETS, "no such bucket");
    if index < SUB {
        return index as u64;
    }
    let shift = index / SUB - 1;
    let lowest = ((index % SUB + SUB) as u64) << shift;
    lowest + ((1 << shift) - 1)
}

/// The latency in ns that `per_mille` of 1000 counted latencies do not exceed: 500 for the median,
/// 999 for p99.9. None if nothing was counted.
///
/// At most an eighth above the true value, up to [`LONGEST_NS`]. Panics if `per_mille` exceeds
/// 1000, or if a count lies beyond [`BUCKETS`].
#[must_use]
pub fn percentile(counts: &[u64], per_mille: u32) -> Option<u64> {
    assert!(per_mille <= 1000, "{per_mille} of 1000");
    // Wide enough for any counts, so that corrupt counts in a shared file can't overflow it.
    let total: u128 = counts.iter().map(|&count| u128::from(count)).sum();
    let rank = (total * u128::from(per_mille)).div_ceil(1000).max(1);
    let mut seen = 0;
    let index = counts.iter().position(|&count| {
        seen += u128::from(count);
        seen >= rank
    })?;
    Some(value_of(index))
}

#[cfg(test)]
#[path = "latency_test.rs"]
mod tests;
