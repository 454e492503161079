//! When to stop the source: rounds continue while they shrink the remainder, and something else
//! happens when they don't.
//!
//! A live source writes while it is copied, so each round leaves newly written pages. Once the
//! remainder fits into the allowed downtime, the source is stopped and the rest is copied. If the
//! remainder does not shrink, the source is throttled, a step at a time. If that does not help
//! either, or the rounds are used up, the last resort is taken. This module must never read a clock
//! or stop a source: the caller passes the outcome of a round, and gets a verdict.

use crate::size::Bytes;

/// A round has helped if fewer bytes were written in it than this part of those of the round
/// before, in percent.
const SHRINKS_TO_PERCENT: u64 = 75;

/// The first throttle, and by how much each further one is stronger, in percent of the source's
/// time.
const THROTTLE_FIRST_PERCENT: u8 = 20;
const THROTTLE_STEP_PERCENT: u8 = 10;

/// The strongest: the source has to keep some time, or it would be stopped without a decision to
/// stop it.
pub const THROTTLE_MOST_PERCENT: u8 = 90;

/// The action when rounds don't help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastResort {
    /// Stop the source for any downtime.
    StopAndCopy,
    /// Start the destination, and bring the pages that it touches: its writes need no further
    /// rounds.
    PostCopy,
    /// Leave the source as it is.
    GiveUp,
}

/// The requested limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How long the source may stand still for the rest.
    pub downtime_ms: u32,
    /// After so many rounds it is time for the last resort; at least 1.
    pub rounds: u32,
    /// The last resort itself.
    pub last_resort: LastResort,
}

/// The outcome of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    /// The bytes it sent.
    pub sent: Bytes,
    /// How long that took.
    pub took_ms: u64,
    /// The remainder: pages written meanwhile, and pages that were swapped out and have to be
    /// looked at again.
    pub left: Bytes,
    /// The written part of the remainder, as far as it is known. Throttling the source shrinks only
    /// this part.
    pub written: Bytes,
}

/// The next action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Send the remainder, while the source runs.
    Again,
    /// The same, with the source slowed down by so many percent of its time.
    Throttle(u8),
    /// Stop the source, send the rest, and end.
    StopAndCopy,
    /// Stop the source, let the destination run, and send the rest as it is asked for.
    PostCopy,
    /// Let the source run on as if nothing had been; the destination is discarded.
    GiveUp,
}

/// Judges one round after the other.
#[derive(Debug)]
pub struct Convergence {
    limits: Limits,
    rounds: u32,
    written: Option<Bytes>,
    throttle_percent: u8,
}

impl Convergence {
    /// Before the first round.
    #[must_use]
    pub const fn new(limits: Limits) -> Self {
        Self { limits, rounds: 0, written: None, throttle_percent: 0 }
    }

    /// The action after this round.
    #[must_use]
    pub fn judge(&mut self, round: Round) -> Verdict {
        self.rounds += 1;
        // At the rate of this round, rounded up: an unknown rate counts as slow, unless there is
        // nothing to send.
        let fits = |bytes: Bytes| {
            let ms = match round.sent.get() {
                _ if bytes == Bytes::ZERO => 0,
                0 => u128::MAX,
                sent => {
                    (u128::from(bytes.get()) * u128::from(round.took_ms.max(1))).div_ceil(u128::from(sent))
                }
            };
            ms <= u128::from(self.limits.downtime_ms)
        };
        if fits(round.left) {
            return Verdict::StopAndCopy;
        }
        if self.rounds >= self.limits.rounds {
            return self.last_resort();
        }
        let before = self.written.replace(round.written).unwrap_or(round.sent);
        let shrinks =
            u128::from(round.written.get()) * 100 < u128::from(before.get()) * u128::from(SHRINKS_TO_PERCENT);
        // Pages that were only swapped out are not the source's doing, and are swapped out once.
        if shrinks || fits(round.written) {
            return Verdict::Again;
        }
        if self.throttle_percent >= THROTTLE_MOST_PERCENT {
            return self.last_resort();
        }
        self.throttle_percent = match self.throttle_percent {
            0 => THROTTLE_FIRST_PERCENT,
            percent => (percent + THROTTLE_STEP_PERCENT).min(THROTTLE_MOST_PERCENT),
        };
        Verdict::Throttle(self.throttle_percent)
    }

    const fn last_resort(&self) -> Verdict {
        match self.limits.last_resort {
            LastResort::StopAndCopy => Verdict::StopAndCopy,
            LastResort::PostCopy => Verdict::PostCopy,
            LastResort::GiveUp => Verdict::GiveUp,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: Limits = Limits { downtime_ms: 300, rounds: 30, last_resort: LastResort::GiveUp };

    /// A source that writes pages of a working set at a rate, over a line of a rate; both in MiB a
    /// second.
    struct Source {
        image: u64,
        working_set: u64,
        writes_per_s: u64,
        line_per_s: u64,
    }

    /// All verdicts until the end, and how long the source stands still then, in ms.
    fn migrate(source: &Source, limits: Limits) -> (Vec<Verdict>, u64) {
        let (mut convergence, mut verdicts) = (Convergence::new(limits), Vec::new());
        let (mut left, mut throttle) = (source.image, 0u64);
        loop {
            let sent = left;
            let took_ms = sent * 1000 / source.line_per_s;
            let written = source.writes_per_s * (100 - throttle) / 100 * took_ms / 1000;
            left = written.min(source.working_set);
            let round =
                Round { sent: Bytes::mib(sent), took_ms, left: Bytes::mib(left), written: Bytes::mib(left) };
            let verdict = convergence.judge(round);
            verdicts.push(verdict);
            match verdict {
                Verdict::Again => {}
                Verdict::Throttle(percent) => throttle = u64::from(percent),
                _ => return (verdicts, left * 1000 / source.line_per_s),
            }
        }
    }

    #[test]
    fn an_idle_source_is_stopped_after_one_round() {
        let idle = Source { image: 65_536, working_set: 16, writes_per_s: 1, line_per_s: 1024 };
        assert_eq!(migrate(&idle, LIMITS), (vec![Verdict::StopAndCopy], 15));
    }

    #[test]
    fn a_source_that_writes_at_half_the_lines_rate_needs_rounds_and_no_throttle() {
        let busy = Source { image: 8192, working_set: 8192, writes_per_s: 512, line_per_s: 1024 };
        let (verdicts, downtime_ms) = migrate(&busy, LIMITS);
        assert_eq!(verdicts.len(), 5, "8 s, 4 s, 2 s, 1 s, 0.5 s, and 0.25 s of downtime");
        assert!(verdicts[..4].iter().all(|verdict| *verdict == Verdict::Again));
        assert_eq!(downtime_ms, 250);
    }

    #[test]
    fn a_source_that_outruns_the_line_is_throttled_until_it_does_not() {
        let fast = Source { image: 8192, working_set: 8192, writes_per_s: 2048, line_per_s: 1024 };
        let (verdicts, downtime_ms) = migrate(&fast, LIMITS);
        assert!(verdicts.contains(&Verdict::Throttle(60)), "{verdicts:?}");
        assert_eq!(verdicts.last(), Some(&Verdict::StopAndCopy), "{verdicts:?}");
        assert!(downtime_ms <= 300);
    }

    #[test]
    fn one_that_outruns_it_throttled_takes_the_last_resort() {
        let wild = Source { image: 8192, working_set: 8192, writes_per_s: 65_536, line_per_s: 1024 };
        for (last_resort, verdict) in [
            (LastResort::GiveUp, Verdict::GiveUp),
            (LastResort::PostCopy, Verdict::PostCopy),
            (LastResort::StopAndCopy, Verdict::StopAndCopy),
        ] {
            let (verdicts, _) = migrate(&wild, Limits { last_resort, ..LIMITS });
            assert_eq!(verdicts.last(), Some(&verdict));
            assert_eq!(verdicts[verdicts.len() - 2], Verdict::Throttle(THROTTLE_MOST_PERCENT));
        }
    }

    #[test]
    fn a_round_that_sent_nothing_is_not_divided_by() {
        let mut convergence = Convergence::new(LIMITS);
        let nothing = Round { sent: Bytes::ZERO, took_ms: 0, left: Bytes::ZERO, written: Bytes::ZERO };
        assert_eq!(convergence.judge(nothing), Verdict::StopAndCopy);
        let left = Round { left: Bytes::new(u64::MAX), written: Bytes::new(u64::MAX), ..nothing };
        assert_eq!(convergence.judge(left), Verdict::Throttle(THROTTLE_FIRST_PERCENT));
    }

    #[test]
    fn a_source_whose_pages_go_out_for_others_is_not_throttled() {
        let mut convergence = Convergence::new(LIMITS);
        let round = |sent, left, written| Round {
            sent: Bytes::mib(sent),
            took_ms: sent,
            left: Bytes::mib(left),
            written: Bytes::mib(written),
        };
        // First as they are staged, and then as they are stored.
        for (sent, left) in [(4096, 4096), (4096, 4096), (4096, 2048)] {
            assert_eq!(convergence.judge(round(sent, left, 1)), Verdict::Again);
        }
        assert_eq!(convergence.judge(round(2048, 2048, 2048)), Verdict::Throttle(THROTTLE_FIRST_PERCENT));
        // Nor is it stopped for longer than asked because of them.
        assert_eq!(convergence.judge(round(2048, 256, 0)), Verdict::StopAndCopy);
    }

    proptest! {
        #[test]
        fn it_ends_within_its_rounds_and_never_stops_for_longer_than_asked(
            image in 1u64..1 << 20, working_set in 0u64..1 << 20, writes_per_s in 0u64..1 << 17, line_per_s in 1u64..1 << 14,
            downtime_ms in 0u32..10_000, rounds in 1u32..60,
        ) {
            let source = Source { image, working_set: working_set.min(image), writes_per_s, line_per_s };
            let limits = Limits { downtime_ms, rounds, last_resort: LastResort::GiveUp };
            let (verdicts, downtime) = migrate(&source, limits);
            prop_assert!(verdicts.len() <= rounds as usize);
            if verdicts.last() == Some(&Verdict::StopAndCopy) {
                prop_assert!(downtime <= u64::from(downtime_ms), "{} ms", downtime);
            }
            let throttles: Vec<u8> =
                verdicts.iter().filter_map(|verdict| match verdict { Verdict::Throttle(percent) => Some(*percent), _ => None }).collect();
            prop_assert!(throttles.is_sorted_by(|a, b| a < b) && throttles.iter().all(|&percent| percent <= THROTTLE_MOST_PERCENT));
        }
    }
}
