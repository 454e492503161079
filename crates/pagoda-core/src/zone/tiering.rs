//! Which pages change places between local and remote zones, and how fast.
//!
//! A hot page that lies in a remote zone is slow, and a cold one in a local zone takes its place.
//! There are no accessed bits, so hotness is *sampled*, as in Linux's memory tiering by NUMA hint
//! faults: some pages are staged, and a page that comes back at once is hot, one that stays away is
//! cold. A hot page is *promoted* when it comes back: its content is copied to a local frame. Where
//! no local frame is free, pages of the local zones are sampled, too, and cold ones are *demoted*:
//! copied to remote frames.
//!
//! What that costs is bounded. So many pages are sampled and moved in one tick, and no more. The
//! time between samples doubles with each round through the remote zones that finds no hot page,
//! and with each sample after which no page moves for long. Where demoted pages come back soon,
//! the working set is larger than the local zones, and moving pauses. Nothing is sampled in local
//! zones, and nothing is moved, unless a hot page is found in a remote one.
//!
//! This module must never read a clock or know a page: ticks and counts are the caller's.

/// The length of a tick: a page that comes back within this is in use.
pub const TICK_MS: u32 = 50;

/// A page that comes back in the tick in which it was staged, or the next, is hot.
const HOT_TICKS: u16 = 1;

/// A local page that stays away for so many ticks is cold.
const COLD_TICKS: u16 = 8;

/// A demoted page that comes back within so many ticks was not cold.
const REGRET_TICKS: u16 = 40;

/// The most pages of each kind of zone that are sampled in one tick. If all of them come back, that
/// is a tenth of a processor at 20 µs for each.
pub const SAMPLE_MOST: u32 = 256;

/// One part in this of the local frames changes places in one tick, so all of them in a second.
const MOVE_PART: u64 = 20;
const MOVE_LEAST: u32 = 4;
const MOVE_MOST: u32 = 256;

/// The most ticks between two samples: less than a second, so that hot pages are found soon.
const GAP_MOST: u64 = 16;

/// Hot pages that were found are wanted for so many ticks: cold ones are found meanwhile.
const WANTED_TICKS: u64 = 2 * COLD_TICKS as u64;

/// Moving pauses once so many demoted pages came back for one part in [`REGRET_PART`] of those that
/// were demoted.
const REGRETS_LEAST: u32 = 32;
const REGRET_PART: u32 = 4;

/// The ticks of the first pause and of the longest, about a minute.
const PAUSE_LEAST: u64 = 64;
const PAUSE_MOST: u64 = 1024;

/// How long ago something was, in ticks. Ticks are known by their lowest bits: after an hour an age
/// is wrong, and one page is moved in vain.
const fn age(now: u16, then: u16) -> u16 {
    now.wrapping_sub(then)
}

/// Whether a page that was staged at tick `then` and comes back now is hot.
#[must_use]
pub const fn is_hot(now: u16, then: u16) -> bool {
    age(now, then) <= HOT_TICKS
}

/// Whether a page that was staged at tick `then` and is still away is cold.
#[must_use]
pub const fn is_cold(now: u16, then: u16) -> bool {
    age(now, then) >= COLD_TICKS
}

/// Whether a page that was demoted at tick `then` and comes back now was not cold.
#[must_use]
pub const fn is_regretted(now: u16, then: u16) -> bool {
    age(now, then) <= REGRET_TICKS
}

/// Counts of pages since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Hot pages of remote zones that came back, promoted ones included.
    pub hot: u32,
    /// Those whose content is in a local zone now.
    pub promoted: u32,
    /// Cold pages whose content is in a remote zone now.
    pub demoted: u32,
    /// Demoted pages that were not cold.
    pub regretted: u32,
    /// Samples have come to the end of the remote zones' pages.
    pub is_round_over: bool,
}

/// The state of the local zones at a look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Local {
    /// Their frames in all.
    pub frames: u64,
    /// Frames that they can give to promoted pages.
    pub spare: u64,
}

/// The work until the next look, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Remote pages to sample.
    pub sample_remote: u32,
    /// Local pages to sample.
    pub sample_local: u32,
    /// Cold pages to demote, at most.
    pub demote: u32,
    /// Hot pages to promote, at most.
    pub promote: u32,
}

/// The policy's state.
#[derive(Clone, Debug, Default)]
pub struct Tiering {
    /// Hot pages that were found in remote zones and not promoted, and until when they are wanted.
    wanted: u32,
    wanted_until: u64,
    /// Since the last sample: whether a hot page was found, a page changed places, and the round
    /// through the remote zones ended.
    found: bool,
    moved: bool,
    is_round_over: bool,
    /// Samples since a page changed places.
    vain: u64,
    /// The time between samples is long because nothing hot was found.
    is_idle: bool,
    gap: u64,
    /// The next samples are due at these ticks.
    due: u64,
    local_due: u64,
    /// Moving pauses until this tick. The last pause was so long.
    resumes: u64,
    pause: u64,
    /// Demoted pages since the last pause, and those that came back.
    demoted: u32,
    regretted: u32,
}

impl Tiering {
    /// What to do in tick `now`. To be called once in each tick, or less often.
    pub fn look(&mut self, now: u64, seen: &Seen, local: &Local) -> Plan {
        if self.pauses(now, seen) {
            return Plan::default();
        }
        let unserved = seen.hot.saturating_sub(seen.promoted);
        self.found |= seen.hot > 0;
        self.moved |= seen.promoted > 0 || seen.demoted > 0;
        self.is_round_over |= seen.is_round_over;
        if unserved > 0 {
            (self.wanted, self.wanted_until) = (unserved, now + WANTED_TICKS);
            if self.is_idle {
                (self.is_idle, self.gap, self.due) = (false, 1, now);
            }
        } else {
            let rest = self.wanted.saturating_sub(seen.promoted);
            self.wanted = if now < self.wanted_until { rest } else { 0 };
        }
        let most = u32::try_from(local.frames / MOVE_PART).unwrap_or(MOVE_MOST).clamp(MOVE_LEAST, MOVE_MOST);
        let lacks = self.wanted.saturating_sub(u32::try_from(local.spare).unwrap_or(u32::MAX));
        let mut plan = Plan { demote: lacks.min(most), promote: most, ..Plan::default() };
        if now >= self.due {
            self.set_gap();
            self.due = now + self.gap;
            plan.sample_remote = SAMPLE_MOST;
        }
        if lacks > 0 && now >= self.local_due {
            self.local_due = now + self.gap;
            plan.sample_local = SAMPLE_MOST;
        }
        plan
    }

    /// The time to the next sample, by what the last one has led to.
    fn set_gap(&mut self) {
        let doubled = (2 * self.gap).clamp(1, GAP_MOST);
        if self.moved || self.gap == 0 {
            (self.gap, self.vain) = (1, 0);
        } else if self.found {
            self.vain += 1;
            if self.vain > WANTED_TICKS {
                self.gap = doubled;
            }
        } else if self.is_round_over {
            (self.gap, self.is_idle, self.vain) = (doubled, true, 0);
        }
        (self.found, self.moved, self.is_round_over) = (false, false, false);
    }

    /// Whether nothing moves for a while because demoted pages came back soon.
    fn pauses(&mut self, now: u64, seen: &Seen) -> bool {
        self.demoted = self.demoted.saturating_add(seen.demoted);
        self.regretted = self.regretted.saturating_add(seen.regretted);
        if self.regretted >= REGRETS_LEAST && self.regretted > self.demoted / REGRET_PART {
            self.pause = (2 * self.pause).clamp(PAUSE_LEAST, PAUSE_MOST);
            self.resumes = now + self.pause;
            (self.demoted, self.regretted, self.wanted) = (0, 0, 0);
        } else if self.demoted >= 2 * REGRET_PART * REGRETS_LEAST {
            // So many went, and few came back.
            (self.demoted, self.regretted, self.pause) = (0, 0, 0);
        }
        now < self.resumes
    }

    /// Whether there is something to do in the next tick already.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.wanted > 0 || self.gap <= 1
    }
}

#[cfg(test)]
#[path = "tiering_test.rs"]
mod tests;
