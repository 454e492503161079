//! How the members of a process tree share its budget, each by itself, without a coordinator.
//!
//! Every member publishes two things: its [`Use`] (the memory that it would hold without Pagoda,
//! and how much it suffers), and a *claim*: the larger of its share and the memory that it still
//! holds of the budget. From time to time each one looks at all of them and does three steps:
//!
//! 1. [`target`]: its fair share. A deterministic function of the uses, so that all members that
//!    see the same uses come to shares that sum to at most the budget.
//! 2. [`Look::proposal`]: one damped step from its share towards the target, growing only into
//!    unclaimed room.
//! 3. [`Look::settled`]: a member that grows publishes its claim first, sums up all claims again
//!    and takes back the excess. Of two that grow at the same time the one that publishes last sees
//!    the other's claim, so that both can't keep the same room. So no view, however stale, lets the
//!    shares pass the budget.
//!
//! Bounds. At any time the shares sum to at most the budget, and one [`FLOOR`] more for each member
//! that started, or grew to it, since the others looked (a member gets its floor at once, so that
//! it never waits for another process to be scheduled). When all members have looked often enough
//! while their uses stand still, the shares sum to at most the budget, and each lies within
//! [`dead_zone`] of its target. A member whose memory can't be evicted keeps its claim: then the
//! others get less, and the budget holds all the same.
//!
//! The target. A member needs the memory that it holds and some slack. While all needs fit the
//! budget, each gets its need and a part of the rest in proportion to it: a lone member all of it,
//! several together half, so that a growing member finds room without waiting for others to look.
//! When the needs don't fit, each gets its need up to the same floor, and the rest is split in
//! proportion to need beyond the floor times [`Pain`], never more than its need. So an idle member
//! gives its floor away, and takes it back as it grows. One pass counts, one sums: no allocation,
//! some nanoseconds a member.
//!
//! This module must never read a clock or remember a member: its arguments are all it knows.

use crate::size::Bytes;

/// The share that every member with such a need gets, if the budget has it for all: the least
/// budget that an engine of 64 KiB base pages serves faults with at full speed. With less for each,
/// the budget is split evenly.
pub const FLOOR: Bytes = Bytes::mib(16);

/// The size from which a process of a tree with `budget` has an engine: the floor of a share, or an
/// eighth of a small budget, which several processes without an engine would otherwise take whole.
/// Below 4 MiB an engine's threads and tables would cost more than they save.
#[must_use]
pub fn engine_from(budget: Bytes) -> Bytes {
    Bytes::new(budget.get() / 8).clamp(Bytes::mib(4), FLOOR)
}

/// The least slack beyond a member's memory: the first MiB that its store commits to, and as much
/// to begin to grow in. When all needs fit, the unclaimed rest is far more, and a member takes its
/// need up to the floor at once.
const SLACK_LEAST: u64 = 2 << 20;

/// Slack as a share of the held memory.
const SLACK_SHARE: u64 = 8;

/// Uses beyond this (16 TiB) are taken as this, so that no product of three of them exceeds 128
/// bits.
const USE_MOST: u64 = 1 << 44;

/// A change of a share below a 64th of it is not worth the work; nor one below 256 KiB.
const DEAD_SHARE: u64 = 64;
const DEAD_LEAST: u64 = 256 << 10;

/// A share that shrinks below the held memory goes a quarter of the way with each look, and at
/// least 1 MiB.
const SHRINK_SHARE: u64 = 4;
const SHRINK_LEAST: u64 = 1 << 20;

/// How much a member suffers from a share below its memory: by its rate of swap-ins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pain {
    /// It swaps in less than a 64th of its memory in a second: its swapped-out pages are cold.
    #[default]
    None,
    /// Up to a quarter in a second.
    Some,
    /// More.
    Much,
}

impl Pain {
    const ALL: [Self; 3] = [Self::None, Self::Some, Self::Much];

    /// The weight of a byte of need. Few steps and small ones: the rest of the share follows use,
    /// which does not depend on the share, so that shares can't chase each other.
    const fn weight(self) -> u64 {
        match self {
            Self::None => 1,
            Self::Some => 2,
            Self::Much => 4,
        }
    }

    /// From the rate of swap-ins of a member that holds `held`.
    #[must_use]
    pub fn of_rate(fetched_per_s: Bytes, held: Bytes) -> Self {
        match fetched_per_s.get() {
            rate if rate > held.get() / 4 => Self::Much,
            rate if rate > held.get() / 64 => Self::Some,
            _ => Self::None,
        }
    }
}

/// The memory use of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// It has no engine: its use is its memory, without a limit.
    Unlimited {
        /// The memory that it holds.
        held: Bytes,
    },
    /// Its engine keeps it to its share.
    Managed {
        /// The memory that it would hold without Pagoda: resident, staged, stored and unmanaged.
        held: Bytes,
        /// How much it suffers.
        pain: Pain,
    },
}

const WORD_HELD: u64 = (1 << 48) - 1;

impl Use {
    /// As a word that is not 0, for a place that others read.
    #[must_use]
    pub fn to_word(self) -> u64 {
        let (held, kind) = match self {
            Self::Unlimited { held } => (held, 1),
            Self::Managed { held, pain } => (held, 2 + pain as u64),
        };
        kind << 48 | held.get().min(USE_MOST)
    }

    /// Reads a word; `None` for 0 and for a word that no version of this writes.
    #[must_use]
    pub fn from_word(word: u64) -> Option<Self> {
        let held = Bytes::new(word & WORD_HELD);
        match word >> 48 {
            1 => Some(Self::Unlimited { held }),
            kind @ 2..=4 => Some(Self::Managed { held, pain: Pain::ALL[(kind - 2) as usize] }),
            _ => None,
        }
    }

    /// The most that it can use within `budget`.
    fn need(self, budget: u64) -> u64 {
        match self {
            Self::Unlimited { held } => held.get().min(USE_MOST),
            Self::Managed { held, .. } => {
                let held = held.get().min(USE_MOST);
                (held + (held / SLACK_SHARE).max(SLACK_LEAST)).min(budget)
            }
        }
    }
}

/// The fair share of the member that uses `mine`, among `members`, itself included.
///
/// An unmanaged member gets the memory that it holds. The targets of the managed members sum to at
/// most the rest of the budget.
#[must_use]
pub fn target(budget: Bytes, members: impl Iterator<Item = Use> + Clone, mine: Use) -> Bytes {
    let Use::Managed { pain, .. } = mine else { return Bytes::new(mine.need(u64::MAX)) };
    let total = budget.get().min(USE_MOST);
    let (mut managed, mut unlimited) = (0u64, 0u64);
    for member in members.clone() {
        match member {
            Use::Managed { .. } => managed += 1,
            Use::Unlimited { .. } => unlimited = unlimited.saturating_add(member.need(total)),
        }
    }
    let room = total.saturating_sub(unlimited);
    let floor = FLOOR.get().min(room / managed.max(1));
    let (mut needs, mut floors) = (0u64, 0u64);
    // Need beyond the floor, by pain.
    let mut beyond = [0u64; Pain::ALL.len()];
    for member in members {
        if let Use::Managed { pain, .. } = member {
            let need = member.need(total);
            needs += need;
            floors += floor.min(need);
            beyond[pain as usize] += need - floor.min(need);
        }
    }
    let need = mine.need(total);
    if needs <= room {
        let left = if managed <= 1 { room - needs } else { (room - needs) / 2 };
        return Bytes::new(need + proportion(left, need, needs));
    }
    let my_floor = floor.min(need);
    Bytes::new(my_floor + scarce(room - floors, beyond, need - my_floor, pain))
}

/// Splits `rest` among needs that exceed it, by weight and to none more than its need: the part of
/// a member with `need`. Its pain alone decides whether a member is fully served, so sums by pain
/// are all it takes.
fn scarce(mut rest: u64, beyond: [u64; Pain::ALL.len()], need: u64, pain: Pain) -> u64 {
    let mut weighed: u64 = Pain::ALL.iter().map(|pain| pain.weight() * beyond[*pain as usize]).sum();
    for full in Pain::ALL.into_iter().rev() {
        let sum = beyond[full as usize];
        if sum > 0 && u128::from(full.weight()) * u128::from(rest) < u128::from(weighed) {
            break;
        }
        if pain == full {
            return need;
        }
        rest = rest.saturating_sub(sum);
        weighed -= full.weight() * sum;
    }
    proportion(rest, need * pain.weight(), weighed)
}

/// `amount` × `part` / `whole`, rounded down; 0 of nothing.
fn proportion(amount: u64, part: u64, whole: u64) -> u64 {
    if whole == 0 {
        return 0;
    }
    u64::try_from(u128::from(amount) * u128::from(part) / u128::from(whole)).unwrap_or(amount)
}

/// How far from its target a share may stay.
#[must_use]
pub fn dead_zone(share: Bytes) -> Bytes {
    Bytes::new((share.get() / DEAD_SHARE).max(DEAD_LEAST))
}

/// One member's view when it looks.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// The tree's budget.
    pub budget: Bytes,
    /// How many members are managed, this one included.
    pub managed: u32,
    /// Its [`target`].
    pub target: Bytes,
    /// Its share until now.
    pub share: Bytes,
    /// The real memory that it holds, by the kernel's count.
    pub held: Bytes,
    /// The claims of all other members.
    pub others: Bytes,
}

impl Look {
    /// The least share, now: its floor.
    fn floor(&self) -> u64 {
        FLOOR.get().min(self.budget.get() / u64::from(self.managed.max(1))).min(self.target.get())
    }

    /// The next share, if the claims allow it. It is [`claim`]ed before it is used.
    #[must_use]
    pub fn proposal(&self) -> Bytes {
        let (share, target, held) = (self.share.get(), self.target.get(), self.held.get());
        let zone = dead_zone(self.share).get();
        let next = if target > share {
            let free = self.budget.get().saturating_sub(self.others.get().saturating_add(share));
            let wanted = target - share;
            // As many may grow at the same time: together they take no more than there is.
            let part = (free / u64::from(self.managed.max(1))).max(zone).min(free);
            share + wanted.min(part)
        } else if share - target <= zone
            && self.claims(self.share, self.others).saturating_add(zone) <= self.budget.get()
        {
            // Only while there is room: another member may wait for the sum of several dead zones.
            share
        } else if share > held.max(target) {
            // Memory that is not held costs nothing to give up.
            held.max(target)
        } else {
            let wanted = share - target;
            share - wanted.min((wanted / SHRINK_SHARE).max(SHRINK_LEAST))
        };
        Bytes::new(next.max(self.floor()))
    }

    /// The sum of all claims with this share.
    fn claims(&self, share: Bytes, others: Bytes) -> u64 {
        claim(share, self.held).get().saturating_add(others.get())
    }

    /// The share to use after `proposal` was claimed, and the claims of all others were summed up
    /// again to `others`.
    #[must_use]
    pub fn settled(&self, proposal: Bytes, others: Bytes) -> Bytes {
        if proposal <= self.share {
            return proposal;
        }
        let excess = self.claims(proposal, others).saturating_sub(self.budget.get());
        let kept = proposal.get().saturating_sub(excess);
        Bytes::new(kept.max(self.share.get()).max(self.floor()).min(proposal.get()))
    }
}

/// The claim of a member: its share, or the memory that it still holds of a share that was larger.
#[must_use]
pub fn claim(share: Bytes, held: Bytes) -> Bytes {
    share.max(held)
}

/// The rate of swap-ins, smoothed over about half a second.
#[derive(Clone, Copy, Debug, Default)]
pub struct FetchRate {
    at_ns: u64,
    fetched: u64,
    per_s: u64,
}

/// The least time between two figures of a rate: shorter ones are noise.
const RATE_NS: u64 = 100_000_000;

impl FetchRate {
    /// Takes note that at `now_ns` of a clock `fetched` bytes have been swapped in overall, and
    /// returns the rate in bytes a second. A count that starts anew is taken as such.
    pub fn update(&mut self, now_ns: u64, fetched: Bytes) -> Bytes {
        let passed = now_ns.saturating_sub(self.at_ns);
        if self.at_ns == 0 {
            (self.at_ns, self.fetched) = (now_ns.max(1), fetched.get());
        } else if passed >= RATE_NS {
            let new = proportion(fetched.get().saturating_sub(self.fetched), 1_000_000_000, passed);
            self.per_s = self.per_s - self.per_s / 4 + new / 4;
            (self.at_ns, self.fetched) = (now_ns, fetched.get());
        }
        Bytes::new(self.per_s)
    }
}

#[cfg(test)]
#[path = "shares_test.rs"]
mod tests;
