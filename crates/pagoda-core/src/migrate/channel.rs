//! The two ends of a channel as state machines: one numbers frames, the other rejects any frame out
//! of sequence.
//!
//! The numbers run through all rounds, so that a lost, doubled, swapped or foreign frame shows at
//! the next one. A channel that stops short shows because its `End` is missing. `Inbound` must
//! never accept a frame that writes outside of its channel's stripes before the last round, nor one
//! that owes pages after the switch.
//!
//! After a switch each channel continues ([`Inbound::go_on`]): rounds of owed pages, and an end
//! once more. The channels for page requests only begin then ([`Inbound::asked`]): each answer is a
//! round, and they have no end.

use super::frame::{Body, Frame};
use super::geometry::{Extent, Geometry};

/// The sender's end.
#[derive(Clone, Debug, Default)]
pub struct Outbound {
    next: u64,
    round: u32,
    pages: u64,
}

impl Outbound {
    /// The frame of `body`, which is about pages. Panics if it is not.
    #[must_use]
    pub fn frame(&mut self, body: Body) -> Frame {
        let extent = body.extent().expect("rounds end by `sync`, channels by `end`");
        self.pages += u64::from(extent.count());
        self.number(body)
    }

    /// From here on the channel names pages of any stripe: once all rounds so far of all channels
    /// have arrived.
    #[must_use]
    pub fn last(&mut self) -> Frame {
        self.number(Body::Last)
    }

    /// The end of a round, and its number.
    #[must_use]
    pub fn sync(&mut self) -> (Frame, u32) {
        self.round += 1;
        let pages = std::mem::take(&mut self.pages);
        (self.number(Body::Sync { round: self.round, pages }), self.round)
    }

    /// The end of the channel, after the last round's; before a switch, and after it once more.
    #[must_use]
    pub fn end(&mut self) -> Frame {
        self.number(Body::End { round: self.round })
    }

    /// The switch, on channel 0, after every channel's end.
    #[must_use]
    pub fn switch(&mut self) -> Frame {
        self.number(Body::Switch)
    }

    /// The end of the migration, on channel 0, after its own end and every other channel's.
    #[must_use]
    pub fn commit(mut self) -> Frame {
        self.number(Body::Commit)
    }

    fn number(&mut self, body: Body) -> Frame {
        let sequence = self.next;
        self.next += 1;
        Frame { sequence, body }
    }
}

/// Why a frame is wrong where it arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// Another frame was due: one was lost, doubled or swapped.
    OutOfOrder {
        /// The number that was due.
        due: u64,
        /// The number that came.
        came: u64,
    },
    /// It reaches beyond the image, or into another channel's stripes.
    NotOwned(Extent),
    /// A round's end has not the number that was due, or counts other pages than arrived.
    WrongRound,
    /// The channel's end does not follow a round's, or the migration's does not follow that of
    /// channel 0.
    EarlyEnd,
    /// There is something after the end.
    AfterEnd,
    /// It brings pages after the switch that are not owed or not asked for, or before it pages that
    /// are owed.
    NotOwed(Extent),
    /// It keeps pages that the receiver has not offered, or that are not a whole stripe.
    NotOffered(Extent),
    /// It begins the last round within one, before any, after the switch or where pages are owed,
    /// or on a channel that has no stripes.
    EarlyLast,
    /// It owes pages, or switches, where that was not agreed on or was done before; or it commits
    /// and pages are still owed.
    Owes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    InRound,
    Synced,
    Ended,
    Committed,
}

/// Which pages a channel may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Names {
    /// Those of a channel's stripes; in the last round all.
    StripesOf(u16),
    /// All: another channel checks the requested ones.
    Any,
}

/// The receiver's end.
#[derive(Debug)]
pub struct Inbound {
    geometry: Geometry,
    names: Names,
    last: bool,
    switched: bool,
    next: u64,
    round: u32,
    pages: u64,
    state: State,
}

impl Inbound {
    /// The end of `channel`, before its first frame.
    #[must_use]
    pub const fn new(geometry: Geometry, channel: u16) -> Self {
        let names = Names::StripesOf(channel);
        Self {
            geometry,
            names,
            last: false,
            switched: false,
            next: 0,
            round: 0,
            pages: 0,
            state: State::InRound,
        }
    }

    /// The end of a channel for page requests, after the switch.
    #[must_use]
    pub const fn asked(geometry: Geometry) -> Self {
        Self { names: Names::Any, switched: true, ..Self::new(geometry, 0) }
    }

    /// The end of a channel that is connected once more after the switch: its numbers begin again.
    #[must_use]
    pub const fn rejoined(geometry: Geometry, channel: u16) -> Self {
        Self { switched: true, ..Self::new(geometry, channel) }
    }

    /// The end of a channel that has ended, after the switch.
    #[must_use]
    pub const fn go_on(self) -> Self {
        Self { switched: true, last: false, state: State::InRound, ..self }
    }

    /// Takes the next frame. After an error no further frame may be taken.
    ///
    /// # Errors
    /// Why the frame is wrong here.
    pub fn accept(&mut self, frame: Frame) -> Result<(), Violation> {
        let commits = matches!(frame.body, Body::Commit | Body::Switch);
        match self.state {
            State::Ended if commits && self.names == Names::StripesOf(0) && !self.switched => {}
            State::Ended | State::Committed => return Err(Violation::AfterEnd),
            State::InRound | State::Synced if commits => return Err(Violation::EarlyEnd),
            State::InRound | State::Synced => {}
        }
        if frame.sequence != self.next {
            return Err(Violation::OutOfOrder { due: self.next, came: frame.sequence });
        }
        self.next += 1;
        self.state = match frame.body {
            Body::Sync { round, pages } => {
                if self.round.checked_add(1) != Some(round) || pages != self.pages {
                    return Err(Violation::WrongRound);
                }
                (self.round, self.pages) = (round, 0);
                State::Synced
            }
            Body::End { round } => {
                if self.state != State::Synced || round != self.round || self.names == Names::Any {
                    return Err(Violation::EarlyEnd);
                }
                State::Ended
            }
            Body::Commit | Body::Switch => State::Committed,
            Body::Last => {
                if self.state != State::Synced || self.names == Names::Any || self.switched {
                    return Err(Violation::EarlyLast);
                }
                self.last = true;
                State::InRound
            }
            Body::Owed { .. } if self.switched || self.last => return Err(Violation::Owes),
            Body::Data { extent, .. }
            | Body::Stored { extent, .. }
            | Body::Packed { extent, .. }
            | Body::Filled { extent, .. }
            | Body::Zero { extent }
            | Body::Kept { extent }
            | Body::Owed { extent } => {
                let may = match self.names {
                    Names::StripesOf(channel) if !self.last => self.geometry.owns(channel, extent),
                    Names::StripesOf(_) | Names::Any => self.geometry.has(extent),
                };
                if !may {
                    return Err(Violation::NotOwned(extent));
                }
                self.pages += u64::from(extent.count());
                State::InRound
            }
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::geometry::STRIPE_PAGES;
    use super::*;
    use crate::size::Bytes;
    use proptest::prelude::*;

    const CHANNELS: u16 = 3;

    fn geometry() -> Geometry {
        Geometry::new(Bytes::mib(32), CHANNELS).expect("a geometry")
    }

    /// A whole channel: rounds of some frames each, and the end.
    fn stream(channel: u16, rounds: &[Vec<(u64, u32, u8)>]) -> Vec<Frame> {
        let (mut out, mut frames) = (Outbound::default(), Vec::new());
        for round in rounds {
            for &(stripe, page, kind) in round {
                let stripe = (stripe * u64::from(CHANNELS) + u64::from(channel)) % 15;
                let stripe = stripe - stripe % 3 + u64::from(channel);
                let first = stripe * u64::from(STRIPE_PAGES) + u64::from(page);
                let extent = Extent::new(first, 1).expect("a page");
                frames.push(out.frame(match kind {
                    0 => Body::Zero { extent },
                    1 => Body::Filled { extent, word: [7; 8] },
                    _ => Body::Stored { extent, digest: u64::from(page) },
                }));
            }
            frames.push(out.sync().0);
        }
        frames.push(out.end());
        if channel == 0 {
            frames.push(out.commit());
        }
        frames
    }

    /// Whether all of it is taken, to its end.
    fn arrives(channel: u16, frames: &[Frame]) -> bool {
        let mut inbound = Inbound::new(geometry(), channel);
        let last = if channel == 0 { State::Committed } else { State::Ended };
        frames.iter().all(|&frame| inbound.accept(frame).is_ok()) && inbound.state == last
    }

    fn rounds() -> impl Strategy<Value = Vec<Vec<(u64, u32, u8)>>> {
        let frame = (0u64..5, 0..STRIPE_PAGES, 0u8..3);
        prop::collection::vec(prop::collection::vec(frame, 0..12), 1..4)
    }

    proptest! {
        #[test]
        fn sent_frames_arrive(rounds in rounds(), channel in 0..CHANNELS) {
            prop_assert!(arrives(channel, &stream(channel, &rounds)));
        }

        #[test]
        fn a_frame_lost_doubled_swapped_cut_off_or_misdirected_is_noticed(
            rounds in rounds(), channel in 0..CHANNELS, fault in 0u8..5, at: prop::sample::Index, other: prop::sample::Index
        ) {
            let sent = stream(channel, &rounds);
            let (at, other) = (at.index(sent.len()), other.index(sent.len()));
            let mut arrived = sent.clone();
            let mut channel = channel;
            match fault {
                0 => drop(arrived.remove(at)),
                1 => arrived.insert(other, sent[at]),
                2 => arrived.swap(at, other),
                3 => arrived.truncate(at),
                // A channel's frames on another one. Between two others, frames that name no page
                // fit both.
                _ if channel > 0 && sent.iter().all(|frame| frame.body.extent().is_none()) => {
                    arrived.clear();
                }
                _ => channel = (channel + 1) % CHANNELS,
            }
            let harmless = match fault {
                2 => at == other,
                _ => false,
            };
            prop_assert_eq!(arrives(channel, &arrived), harmless);
        }

        #[test]
        fn rounds_that_lie_are_refused(rounds in rounds(), lie in 0u8..3) {
            let mut sent = stream(1, &rounds);
            let last = sent.len() - 1;
            match (lie, &mut sent[last - 1].body) {
                (0, Body::Sync { pages, .. }) => *pages += 1,
                (1, Body::Sync { round, .. }) => *round += 1,
                _ => sent[last].body = Body::End { round: 0 },
            }
            prop_assert!(!arrives(1, &sent));
        }
    }

    #[test]
    fn after_the_switch_a_channel_goes_on_and_owes_nothing_more() {
        let owed = |first| Body::Owed { extent: Extent::new(first, 4).expect("an extent") };
        let (mut out, mut inbound) = (Outbound::default(), Inbound::new(geometry(), 0));
        let mut accept = |frame| inbound.accept(frame);
        for frame in [out.frame(owed(0)), out.sync().0, out.end(), out.switch()] {
            assert_eq!(accept(frame), Ok(()));
        }
        assert_eq!(accept(out.clone().end()), Err(Violation::AfterEnd), "it goes on only when it is told to");
        let mut inbound = inbound.go_on();
        assert_eq!(inbound.accept(out.clone().frame(owed(4))), Err(Violation::Owes));
        let mut inbound = Inbound { next: out.next, ..inbound };
        let zero = out.frame(Body::Zero { extent: Extent::new(0, 4).expect("an extent") });
        assert_eq!([zero, out.sync().0].map(|frame| inbound.accept(frame)), [Ok(()); 2]);
        assert_eq!(
            inbound.accept(out.clone().last()),
            Err(Violation::EarlyLast),
            "owed pages belong to no channel anyway"
        );
        let mut inbound = Inbound { next: out.next, ..inbound };
        for frame in [out.sync().0, out.end()] {
            assert_eq!(inbound.accept(frame), Ok(()));
        }
        assert_eq!(
            inbound.accept(out.clone().commit()),
            Err(Violation::AfterEnd),
            "nothing is committed any more"
        );
        assert_eq!(inbound.accept(out.switch()), Err(Violation::AfterEnd));
    }

    #[test]
    fn in_the_last_round_a_channel_names_any_page_of_the_image() {
        let zero = |stripe: u64| Body::Zero { extent: Extent::new(stripe * 512, 1).expect("an extent") };
        let (mut out, mut inbound) = (Outbound::default(), Inbound::new(geometry(), 1));
        let early = Inbound::new(geometry(), 1).accept(out.clone().last());
        assert_eq!(early, Err(Violation::EarlyLast), "no round has arrived");
        for frame in [out.frame(zero(1)), out.sync().0, out.last(), out.frame(zero(3)), out.frame(zero(4))] {
            assert_eq!(inbound.accept(frame), Ok(()));
        }
        assert_eq!(inbound.accept(out.clone().last()), Err(Violation::EarlyLast), "in the middle of a round");
        let mut inbound = Inbound { next: out.next, ..inbound };
        // Looked at again, and something more was written.
        for frame in [out.sync().0, out.last(), out.frame(zero(2)), out.sync().0, out.end()] {
            assert_eq!(inbound.accept(frame), Ok(()));
        }
        let (mut out, mut asked) = (Outbound::default(), Inbound::asked(geometry()));
        assert_eq!(asked.accept(out.sync().0), Ok(()));
        assert_eq!(asked.accept(out.last()), Err(Violation::EarlyLast), "there are no rounds");
    }

    #[test]
    fn in_the_last_round_nothing_lies_beyond_the_image_and_nothing_is_owed() {
        let first = |body: fn(Extent) -> Body, page| {
            let (mut out, mut inbound) = (Outbound::default(), Inbound::new(geometry(), 0));
            let body = body(Extent::new(page, 1).expect("an extent"));
            [out.sync().0, out.last(), out.frame(body)]
                .into_iter()
                .try_for_each(|frame| inbound.accept(frame))
        };
        let zero = |extent| Body::Zero { extent };
        assert_eq!(first(zero, geometry().pages() - 1), Ok(()));
        assert!(matches!(first(zero, geometry().pages()), Err(Violation::NotOwned(_))));
        assert_eq!(first(|extent| Body::Owed { extent }, 0), Err(Violation::Owes));
    }

    #[test]
    fn an_answer_names_any_page_of_the_image_and_never_ends_the_channel() {
        let zero = |first| Body::Zero { extent: Extent::new(first, 1).expect("an extent") };
        let (mut out, mut inbound) = (Outbound::default(), Inbound::asked(geometry()));
        for stripe in 0..4 {
            let answer = [out.frame(zero(stripe * u64::from(STRIPE_PAGES))), out.sync().0];
            assert!(answer.into_iter().all(|frame| inbound.accept(frame).is_ok()));
        }
        assert_eq!(inbound.accept(out.clone().end()), Err(Violation::EarlyEnd));
        let beyond = zero(geometry().pages());
        let mut inbound = Inbound { next: out.next, state: State::Synced, ..inbound };
        assert!(matches!(inbound.accept(out.frame(beyond)), Err(Violation::NotOwned(_))));
    }

    #[test]
    fn an_end_without_a_round_is_early_and_nothing_follows_an_end() {
        let accept = |channel, frames: &[Frame]| {
            let mut inbound = Inbound::new(geometry(), channel);
            frames.iter().try_for_each(|&frame| inbound.accept(frame))
        };
        assert_eq!(accept(0, &[Outbound::default().end()]), Err(Violation::EarlyEnd));
        assert_eq!(accept(0, &[Outbound::default().commit()]), Err(Violation::EarlyEnd));
        let more = |sequence, body| Frame { sequence, body };
        let mut frames = stream(1, &[vec![]]);
        frames.push(more(2, Body::Commit));
        assert_eq!(accept(1, &frames), Err(Violation::AfterEnd), "only channel 0 commits");
        let mut frames = stream(0, &[vec![]]);
        frames.push(more(3, Body::End { round: 1 }));
        assert_eq!(accept(0, &frames), Err(Violation::AfterEnd));
    }
}
