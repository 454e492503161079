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
#[path = "channel_test.rs"]
mod tests;
