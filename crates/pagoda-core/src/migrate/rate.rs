//! A bandwidth limit that all channels share, and how much is on a line at a time.
//!
//! Before it sends, each channel reserves its bytes and is told how long to wait. Reservations
//! follow one another, so no channel starves, and no burst makes up for idle time. This module must
//! never read a clock.

use std::time::Duration;

use crate::size::Bytes;

/// The reservations of a rate-limited line.
#[derive(Debug)]
pub struct Line {
    per_s: u64,
    free_at_ns: u64,
}

impl Line {
    /// A line that carries `per_s` bytes a second, at least one.
    #[must_use]
    pub const fn new(per_s: Bytes) -> Self {
        let per_s = if per_s.get() == 0 { 1 } else { per_s.get() };
        Self { per_s, free_at_ns: 0 }
    }

    /// Reserves the line for `bytes` at `now_ns` of any clock. Returns the wait in ns before
    /// sending them: until all earlier reservations are sent.
    #[must_use]
    pub fn book(&mut self, now_ns: u64, bytes: Bytes) -> u64 {
        let takes_ns = (u128::from(bytes.get()) * 1_000_000_000).div_ceil(u128::from(self.per_s));
        let from_ns = self.free_at_ns.max(now_ns);
        self.free_at_ns = from_ns.saturating_add(u64::try_from(takes_ns).unwrap_or(u64::MAX));
        from_ns - now_ns
    }
}

/// 10 Gbit/s: a line of this rate is kept full.
const FULL_BYTES_PER_S: f64 = 1.25e9;

/// The least for each of a channel's two socket buffers: those of two channels are copied within a
/// millisecond.
const QUEUE_LEAST_BYTES: usize = 128 << 10;

/// The size of each of a channel's socket buffers while the other side waits for pages: one that
/// it asks for may stand behind all that is in them. `round_trip` is the shortest of the line.
#[must_use]
pub fn queue_bytes(round_trip: Duration) -> usize {
    QUEUE_LEAST_BYTES + (round_trip.as_secs_f64() * FULL_BYTES_PER_S) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_longer_line_has_a_longer_queue() {
        assert_eq!(queue_bytes(Duration::ZERO), 128 << 10);
        assert_eq!(queue_bytes(Duration::from_millis(10)), (128 << 10) + 12_500_000);
    }

    proptest! {
        #[test]
        fn no_window_carries_more_than_its_rate_and_one_message(
            per_s in 1u64..1 << 34, steps in prop::collection::vec((0u64..1 << 30, 0u64..4 << 20), 1..60)
        ) {
            let mut line = Line::new(Bytes::new(per_s));
            let mut now_ns = 0;
            // The time and the size of every message.
            let mut sent: Vec<(u64, u64)> = Vec::new();
            for (idle_ns, bytes) in steps {
                now_ns += idle_ns;
                let wait_ns = line.book(now_ns, Bytes::new(bytes));
                sent.push((now_ns + wait_ns, bytes));
            }
            for from in 0..sent.len() {
                let mut bytes = 0u128;
                for to in from..sent.len() {
                    // All messages but the last are sent when the last one starts.
                    let passed_ns = u128::from(sent[to].0 - sent[from].0);
                    let may = passed_ns * u128::from(per_s) / 1_000_000_000;
                    prop_assert!(bytes <= may, "{} bytes in {} ns at {} a second", bytes, passed_ns, per_s);
                    bytes += u128::from(sent[to].1);
                }
            }
        }

        #[test]
        fn a_sender_within_the_rate_never_waits(per_s in 1u64..1 << 30, count in 1u64..50) {
            let mut line = Line::new(Bytes::new(per_s));
            for second in 0..count {
                prop_assert_eq!(line.book(second * 1_000_000_000, Bytes::new(per_s)), 0);
            }
        }
    }
}
