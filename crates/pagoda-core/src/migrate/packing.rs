//! Whether a channel packs its content: whichever takes less time, found out by trying.
//!
//! Content goes in turns of some MiB, each of them packed or each as it is. The way whose last turn
//! took less time goes on, and the other one is tried again from time to time. A fast line so gets
//! content as it is, and a slow one gets it packed, whatever makes it slow. The first half of a
//! turn is not counted: it fills or empties the system's buffers for the connection. This module
//! must never read a clock.

use crate::size::Bytes;

/// The content of a turn. Half of it is as much as the buffers of a socket usually take.
const TURN: u64 = 8 << 20;

/// The other way is tried again after so many turns. If it is slower by a factor, after as many
/// more: a trial so costs a part of the time that has a bound.
const AGAIN: u64 = 32;

/// The greatest such factor: a line may change.
const FACTOR_MOST: u64 = 8;

/// A turn ends early once it has taken so many times as long as all of it would take the other way.
const ENOUGH: u64 = 4;

/// One channel's choice. It begins with packing.
#[derive(Debug)]
pub struct Packing {
    packs: bool,
    /// The time that a GiB of content took: as it is, and packed.
    costs: [Option<u64>; 2],
    /// This turn so far: its content, and the time of that; and the counted part of both.
    content: u64,
    took_ns: u64,
    counted: u64,
    counted_ns: u64,
    /// Turns until the other way is tried.
    left: u64,
}

impl Default for Packing {
    fn default() -> Self {
        Self { packs: true, costs: [None; 2], content: 0, took_ns: 0, counted: 0, counted_ns: 0, left: 0 }
    }
}

impl Packing {
    /// Whether to pack the next content.
    #[must_use]
    pub const fn packs(&self) -> bool {
        self.packs
    }

    /// So much content was packed, if it was to be, and sent, in so long.
    pub fn note(&mut self, content: Bytes, took_ns: u64) {
        if self.content >= TURN / 2 {
            self.counted += content.get();
            self.counted_ns = self.counted_ns.saturating_add(took_ns);
        }
        self.content += content.get();
        self.took_ns = self.took_ns.saturating_add(took_ns);
        let other = self.costs[usize::from(!self.packs)];
        let is_enough = other.is_some_and(|cost| {
            u128::from(self.took_ns) << 30 > u128::from(cost) * u128::from(ENOUGH * TURN)
        });
        let cost = match (self.content, self.counted) {
            (TURN.., 1..) => cost(self.counted, self.counted_ns),
            (1.., _) if is_enough => cost(self.content, self.took_ns),
            _ => return,
        };
        self.costs[usize::from(self.packs)] = Some(cost);
        (self.content, self.took_ns, self.counted, self.counted_ns) = (0, 0, 0, 0);
        self.choose();
    }

    fn choose(&mut self) {
        let [Some(plain), Some(packed)] = self.costs else {
            self.packs = !self.packs;
            return;
        };
        let best = packed <= plain;
        self.left = match self.left {
            // A trial has ended, or the other way has become the better one.
            0 => AGAIN * (plain.max(packed) / plain.min(packed).max(1)).clamp(1, FACTOR_MOST),
            left => left - 1,
        };
        self.packs = if self.left == 0 { !best } else { best };
    }
}

/// The time that a GiB would take.
fn cost(content: u64, took_ns: u64) -> u64 {
    u64::try_from((u128::from(took_ns) << 30) / u128::from(content)).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "packing_test.rs"]
mod tests;
