//! One channel of a sender of live memory, between its rounds and in one.
//!
//! In a round it sends the pages due of its own stripes, or of those that no other channel has
//! taken, and waits for the other channels. Once the writer is stopped all channels share the
//! remaining pages, piece by piece. This module must never take pages as sent without sending them
//! or failing.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pagoda_core::migrate::geometry::{Extent, GROUP_PAGES, STRIPE_PAGES};
use pagoda_core::migrate::pages::StripePages;
use pagoda_core::page::OS_PAGE;

use crate::error::Error;
use crate::live::Rounds;
use crate::live::source::{LiveReader, Room};
use crate::send::stripes::send_pages;
use crate::wire::frame_writer::Outlet;

/// How often an idle channel sends a sign of life in a round while others are busy: often enough
/// for any stall.
const ALIVE: Duration = Duration::from_secs(1);

/// How long a wait for the other channels is at most before the orders are looked at again.
const STEP: Duration = Duration::from_millis(100);

/// The piece that a channel takes at once of shared pages: 256 KiB. In the last round the slowest
/// channel is busy with no more than this (or a stripe that is left whole), and after a switch a
/// waiting thread waits for no more than this before its page. A source hands out a base page
/// whole.
pub(crate) const PIECE_PAGES: u64 = 64;
const _: () = assert!(
    PIECE_PAGES.is_multiple_of(GROUP_PAGES as u64) && (STRIPE_PAGES as u64).is_multiple_of(PIECE_PAGES)
);

/// One channel between its rounds.
pub(crate) struct Lane<'a> {
    pub(crate) outlet: Outlet<'a>,
    pub(crate) reader: Box<dyn LiveReader + 'a>,
    pub(crate) room: Room,
}

/// The channels that have more to send in a round.
pub(crate) struct Busy {
    lanes: Mutex<usize>,
    none: Condvar,
}

impl Busy {
    /// All of so many lanes.
    pub(crate) const fn all(lanes: usize) -> Self {
        Self { lanes: Mutex::new(lanes), none: Condvar::new() }
    }
}

impl<'a> Lane<'a> {
    /// Sends all that is to be sent of this channel's stripes.
    pub(crate) fn send(&mut self, rounds: &Rounds<'a>) -> Result<(), Error> {
        let mut own = rounds.geometry.stripes_of(self.outlet.channel());
        self.send_each(rounds, || own.next())
    }

    /// Sends all that is to be sent, stripe by stripe, with the other channels. Stripes go whole: a
    /// base page that is evicted meanwhile may be read twice in a round, and both must go over one
    /// channel. All channels have ended the round before: earlier content of a stripe is there.
    pub(crate) fn send_shared(&mut self, rounds: &Rounds<'a>) -> Result<(), Error> {
        if rounds.is_first() {
            // Without a round that has ended no channel may name another one's stripes.
            self.outlet.sync()?;
            self.outlet.last()?;
        }
        self.send_each(rounds, || rounds.next_stripe())
    }

    fn send_each(&mut self, rounds: &Rounds<'a>, mut next: impl FnMut() -> Option<u64>) -> Result<(), Error> {
        while let Some(first) = next() {
            self.outlet.check()?;
            let (data, zero) = (rounds.data.take_stripe(first), rounds.zero.take_stripe(first));
            if !(data.is_empty() && zero.is_empty()) {
                self.send_stripe(first, data, zero)?;
            }
            rounds.done(&self.outlet, first);
            // A sign of life for the receiver when there is little to send.
            self.outlet.flush()?;
        }
        self.outlet.sync()
    }

    /// Sends the remaining pages that no other channel has taken, of any stripe. Only with the
    /// writer stopped, and after a round that all channels have ended: another channel's earlier
    /// content of these pages is older.
    pub(crate) fn send_rest(&mut self, rounds: &Rounds<'a>) -> Result<(), Error> {
        self.outlet.last()?;
        let stripe = u64::from(STRIPE_PAGES);
        while let Some(piece) = rounds.next_piece() {
            let (data, zero) = (rounds.data.take(piece.clone()), rounds.zero.take(piece.clone()));
            self.send_stripe(piece.start / stripe * stripe, data, zero)?;
            self.outlet.check()?;
            // So that the receiver has something to do while the next is read.
            self.outlet.flush()?;
        }
        self.outlet.sync()
    }

    fn send_stripe(&mut self, first: u64, data: StripePages, zero: StripePages) -> Result<(), Error> {
        let Self { outlet, reader, room } = self;
        room.begin(data, zero);
        let mut failed = None;
        let read = reader.read(first, room, &mut |pages, packed| {
            let sent =
                extent(first, pages.start, pages.end).map_or(Ok(()), |extent| outlet.packed(extent, packed));
            sent.map_err(|error| failed = Some(error)).is_ok()
        });
        if let Some(error) = failed {
            return Err(error);
        }
        read.map_err(Error::Source)?;
        for pages in room.zero().runs() {
            if let Some(extent) = extent(first, pages.start, pages.end) {
                outlet.repeated(extent, [0; 8])?;
            }
        }
        for pages in room.content().runs() {
            let bytes = pages.start as usize * OS_PAGE..pages.end as usize * OS_PAGE;
            send_pages(outlet, first + u64::from(pages.start), &room.bytes()[bytes], room.known())?;
        }
        Ok(())
    }

    /// Waits until all channels have sent theirs, and sends signs of life to the receiver
    /// meanwhile.
    pub(crate) fn await_others(&mut self, busy: &Busy) -> Result<(), Error> {
        let mut lanes = busy.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        *lanes -= 1;
        if *lanes == 0 {
            busy.none.notify_all();
        }
        let mut said = Instant::now();
        while *lanes > 0 {
            lanes = busy.none.wait_timeout(lanes, STEP).unwrap_or_else(PoisonError::into_inner).0;
            self.outlet.check()?;
            if said.elapsed() > ALIVE {
                drop(lanes);
                self.outlet.sync()?;
                said = Instant::now();
                lanes = busy.lanes.lock().unwrap_or_else(PoisonError::into_inner);
            }
        }
        Ok(())
    }
}

/// Pages `from..to` of the stripe whose first page is `first`.
pub(crate) const fn extent(first: u64, from: u32, to: u32) -> Option<Extent> {
    Extent::new(first + from as u64, to - from)
}
