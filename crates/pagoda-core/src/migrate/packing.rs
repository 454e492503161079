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
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Content that goes out in pieces of a MiB.
    const PIECE: u64 = 1 << 20;

    /// A channel: rates in bytes a second, of packing and of the line behind a buffer.
    #[derive(Clone, Copy, Debug)]
    struct Channel {
        packs_per_s: f64,
        /// The length of packed content, of its length.
        ratio: f64,
        line_per_s: f64,
        buffer: f64,
    }

    /// Sends pieces over it, with so many bytes in the buffer. Returns the
    /// seconds.
    fn send(
        channel: Channel,
        pieces: u64,
        held: &mut f64,
        mut packs: impl FnMut(Option<f64>) -> bool,
    ) -> f64 {
        /// The copy to the buffer.
        const COPY_PER_S: f64 = 8e9;
        let (mut total, mut last) = (0.0, None);
        for _ in 0..pieces {
            let (mut took, mut wire) = (0.0, PIECE as f64);
            if packs(last) {
                took += wire / channel.packs_per_s;
                wire *= channel.ratio;
            }
            took += wire / COPY_PER_S;
            *held = (*held - took * channel.line_per_s).max(0.0) + wire;
            if *held > channel.buffer {
                took += (*held - channel.buffer) / channel.line_per_s;
                *held = channel.buffer;
            }
            total += took;
            last = Some(took);
        }
        total
    }

    /// The seconds of pieces by choice.
    fn by_choice(packing: &mut Packing, channel: Channel, pieces: u64, held: &mut f64) -> f64 {
        send(channel, pieces, held, |last| {
            if let Some(took) = last {
                packing.note(Bytes::new(PIECE), (took * 1e9) as u64);
            }
            packing.packs()
        })
    }

    proptest! {
        #[test]
        fn it_takes_hardly_longer_than_the_better_way(
            packs_per_s in 1e8..4e9, ratio in 0.05..1.0, line_per_s in 1e6..1e10, buffer in 0.0..4e6,
        ) {
            const PIECES: u64 = 4096;
            let channel = Channel { packs_per_s, ratio, line_per_s, buffer };
            let [plain, packed] = [false, true].map(|packs| send(channel, PIECES, &mut 0.0, |_| packs));
            let chosen = by_choice(&mut Packing::default(), channel, PIECES, &mut 0.0);
            // The first turn may be the wrong one.
            let trial = plain.max(packed) * TURN as f64 / (PIECES * PIECE) as f64;
            prop_assert!(chosen <= plain.min(packed) * 1.08 + trial, "{chosen} s, {plain} plain, {packed} packed");
        }
    }

    #[test]
    fn it_follows_a_line_that_changes() {
        let fast = Channel { packs_per_s: 5e8, ratio: 0.3, line_per_s: 4e9, buffer: 4e6 };
        let slow = Channel { line_per_s: 5e7, ..fast };
        let (mut packing, mut held) = (Packing::default(), 0.0);
        // As many as the longest time without a trial, and some.
        let pieces = (AGAIN * FACTOR_MOST + 8) * TURN / PIECE;
        for (channel, packs) in [(fast, false), (slow, true), (fast, false)] {
            by_choice(&mut packing, channel, pieces, &mut held);
            let longer = (1..40).filter(|_| {
                by_choice(&mut packing, channel, TURN / PIECE, &mut held);
                packing.packs() == packs
            });
            assert!(longer.count() >= 37, "{channel:?}");
        }
    }
}
