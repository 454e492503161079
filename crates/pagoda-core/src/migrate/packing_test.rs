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
fn send(channel: Channel, pieces: u64, held: &mut f64, mut packs: impl FnMut(Option<f64>) -> bool) -> f64 {
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
