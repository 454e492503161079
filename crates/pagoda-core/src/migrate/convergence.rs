//! When to stop the source: rounds continue while they shrink the remainder, and something else
//! happens when they don't.
//!
//! A live source writes while it is copied, so each round leaves newly written pages. Once the
//! remainder fits into the allowed downtime, the source is stopped and the rest is copied. If the
//! remainder does not shrink, the source is throttled, a step at a time. If that does not help
//! either, or the rounds are used up, the last resort is taken. Where the source writes little,
//! rounds go on for a moment after the remainder fits: so the source stands still for less than was
//! allowed. This module must never read a clock or stop a source: the caller passes the outcome of
//! a round, and gets a verdict.

use crate::size::Bytes;

/// A round has helped if fewer bytes were written in it than this part of those of the round
/// before, in percent.
const SHRINKS_TO_PERCENT: u64 = 75;

/// A remainder that fits is sent while the source runs, if that takes at most this part of the time
/// of the round before, and so leaves as small a part of it. All such rounds together take little
/// longer than the allowed downtime.
const SHORTENS_TO_PART: u64 = 4;

/// It isn't if it takes this long: the messages at the end of a round take about as long.
const SHORT_MS: u64 = 2;

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
        let took_ms = round.took_ms.max(1);
        let ms_of = |bytes: Bytes| match round.sent.get() {
            _ if bytes == Bytes::ZERO => 0,
            0 => u64::MAX,
            sent => {
                let ms = (u128::from(bytes.get()) * u128::from(took_ms)).div_ceil(u128::from(sent));
                u64::try_from(ms).unwrap_or(u64::MAX)
            }
        };
        let fits = |bytes: Bytes| ms_of(bytes) <= u64::from(self.limits.downtime_ms);
        let is_last = self.rounds >= self.limits.rounds;
        if fits(round.left) {
            let rest_ms = ms_of(round.left);
            let shortens = rest_ms > SHORT_MS && rest_ms.saturating_mul(SHORTENS_TO_PART) <= took_ms;
            if is_last || !shortens {
                return Verdict::StopAndCopy;
            }
            self.written = Some(round.written);
            return Verdict::Again;
        }
        if is_last {
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
#[path = "convergence_test.rs"]
mod tests;
