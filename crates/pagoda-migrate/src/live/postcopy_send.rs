//! The sender that stops its writer before all is sent: it announces the pages it owes, lets the
//! other side run, and then sends them, in the background and on request.
//!
//! A channel takes a page out of the owed set before it sends it, with its whole group: a source
//! hands out the swapped-out part of a base page together, and each page is to arrive once. This
//! module must never leave a page that it has taken unsent without an error: a thread may wait for
//! it forever.

use std::io;
use std::net::Shutdown;
use std::ops::ControlFlow;
use std::time::Instant;

use pagoda_core::migrate::geometry::GROUP_PAGES;
use pagoda_core::migrate::geometry::{Geometry, STRIPE_PAGES};
use pagoda_core::migrate::pages::{PageSet, StripePages};
use pagoda_core::migrate::reply::Reply;
use pagoda_core::migrate::wanted::group_of;
use pagoda_core::page::OS_PAGE;
use pagoda_linux::codec::pack::PageUnpacker;

use crate::error::Error;
use crate::live::Rounds;
use crate::live::live_channel::{Lane, PIECE_PAGES, extent};
use crate::live::options::{Moved, Pace};
use crate::progress::Progress;
use crate::send::stripes::send_pages;
use crate::workers;

/// Lets the other side run, and sends it the owed pages. The writer was stopped at `stopped`, and
/// all its writes are collected.
pub(crate) fn switch<'a>(
    mut rounds: Rounds<'a>,
    mut lanes: Vec<Lane<'a>>,
    askers: Vec<Lane<'a>>,
    stopped: Instant,
    watch: &mut dyn FnMut(&Progress, &Pace) -> ControlFlow<()>,
) -> Result<Moved, Error> {
    let (orders, closers, progress) = (rounds.orders, rounds.closers, rounds.progress);
    lanes = rounds.each_lane(lanes, Lane::owe, watch)?;
    let pace = rounds.pace();
    let mut look = || watch(progress, &pace);
    let end = |mut lane: Lane<'a>| lane.outlet.end().map(|()| lane);
    let tasks = lanes.into_iter().map(|lane| || end(lane)).collect();
    let mut ended = workers::run(orders, tasks, closers, Shutdown::Write, &mut look)?;
    // As at a commit: a caller that cancels meanwhile can't know the other side's state.
    let first = ended.swap_remove(0);
    let tell = vec![move || tell_switch(first)];
    let told = workers::run(orders, tell, &closers[..1], Shutdown::Write, &mut look);
    ended.extend(told.map_err(|error| match error {
        Error::Cancelled => Error::Unconfirmed,
        error => error,
    })?);
    let (downtime, switched) = (stopped.elapsed(), Instant::now());
    // Only this side has the owed pages: it is too late to cancel.
    let mut look = || {
        let _ = watch(progress, &pace);
        ControlFlow::Continue(())
    };
    type Task<'b> = Box<dyn FnOnce() -> Result<(), Error> + Send + 'b>;
    let (owed, geometry) = (&rounds.data, rounds.geometry);
    let mut tasks: Vec<Task<'_>> = Vec::with_capacity(ended.len() + askers.len());
    for mut lane in ended {
        tasks.push(Box::new(move || lane.bring_all(owed, geometry)));
    }
    for mut lane in askers {
        tasks.push(Box::new(move || lane.answer(owed, geometry)));
    }
    workers::run(orders, tasks, closers, Shutdown::Write, &mut look)
        .map_err(|error| Error::AfterSwitch(Box::new(error)))?;
    Ok(Moved { counts: progress.counts(), pace, downtime, owed_for: Some(switched.elapsed()) })
}

/// Tells the other side on channel 0 to run, and waits until it does.
fn tell_switch(mut lane: Lane<'_>) -> Result<Lane<'_>, Error> {
    lane.outlet.switch()?;
    match lane.outlet.reply() {
        Ok(Reply::Switched) => Ok(lane),
        Ok(_) => Err(Error::StrangeReply { channel: 0 }),
        Err(Error::Peer(failure)) => Err(Error::Peer(failure)),
        // It may have started to run just before it was lost.
        Err(_) => Err(Error::Unconfirmed),
    }
}

impl<'a> Lane<'a> {
    /// Announces the zero pages of this channel's stripes, and the owed ones.
    fn owe(&mut self, rounds: &Rounds<'a>) -> Result<(), Error> {
        for first in rounds.geometry.stripes_of(self.outlet.channel()) {
            self.outlet.check()?;
            let owed = rounds.data.stripe(first);
            for pages in rounds.zero.take_stripe(first).without(owed).runs() {
                if let Some(extent) = extent(first, pages.start, pages.end) {
                    self.outlet.repeated(extent, [0; 8])?;
                }
            }
            for pages in owed.runs() {
                if let Some(extent) = extent(first, pages.start, pages.end) {
                    self.outlet.owed(extent)?;
                }
            }
            rounds.done(&self.outlet, first);
            // A sign of life for the receiver when there is little to send.
            self.outlet.flush()?;
        }
        self.outlet.sync()
    }

    /// Sends the owed pages of this channel's stripes that no request named, and ends the channel.
    fn bring_all(&mut self, owed: &PageSet, geometry: Geometry) -> Result<(), Error> {
        for first in geometry.stripes_of(self.outlet.channel()) {
            self.outlet.check()?;
            for from in (first..first + u64::from(STRIPE_PAGES)).step_by(PIECE_PAGES as usize) {
                self.bring(first, owed.take(from..from + PIECE_PAGES))?;
            }
            self.outlet.flush()?;
        }
        self.outlet.sync()?;
        self.outlet.end()
    }

    /// Sends requested pages until nothing is owed any more.
    fn answer(&mut self, owed: &PageSet, geometry: Geometry) -> Result<(), Error> {
        let strange = Error::StrangeReply { channel: self.outlet.channel() };
        loop {
            match self.outlet.reply()? {
                Reply::Working => {}
                Reply::Wanted { page } if page < geometry.pages() => {
                    self.outlet.asked();
                    let group = group_of(page);
                    let taken = owed.take(group..group + u64::from(GROUP_PAGES));
                    self.bring(group - group % u64::from(STRIPE_PAGES), taken)?;
                    self.outlet.end_round()?;
                }
                Reply::Finished => return Ok(()),
                _ => return Err(strange),
            }
        }
    }

    /// Brings pages of the stripe whose first is `first`, all of them and no others.
    fn bring(&mut self, first: u64, pages: StripePages) -> Result<(), Error> {
        if pages.is_empty() {
            return Ok(());
        }
        let Self { outlet, reader, room } = self;
        room.begin(pages, StripePages::default());
        let mut left = pages;
        let mut failed = None;
        let mut unpacked = Vec::new();
        let read = reader.read(first, room, &mut |run, packed| {
            let mut base = StripePages::default();
            base.add(run.clone());
            let mut sent = || {
                if base.and(pages) == base {
                    let extent = extent(first, run.start, run.end);
                    return extent.map_or(Ok(()), |extent| outlet.packed(extent, packed));
                }
                // A part of it is at the other side and may have been written there.
                unpacked.resize(run.len() * OS_PAGE, 0);
                let whole = PageUnpacker::default().unpack(packed, &mut unpacked);
                whole.ok_or_else(|| Error::Source(io::Error::other("a stored page can't be unpacked")))?;
                for part in base.and(pages).runs() {
                    let at = (part.start - run.start) as usize * OS_PAGE;
                    let bytes = at..at + part.len() * OS_PAGE;
                    send_pages(outlet, first + u64::from(part.start), &unpacked[bytes])?;
                }
                Ok(())
            };
            left = left.without(base);
            sent().map_err(|error| failed = Some(error)).is_ok()
        });
        if let Some(error) = failed {
            return Err(error);
        }
        read.map_err(Error::Source)?;
        for run in room.content().and(left).runs() {
            let bytes = run.start as usize * OS_PAGE..run.end as usize * OS_PAGE;
            send_pages(outlet, first + u64::from(run.start), &room.bytes()[bytes])?;
        }
        if left.without(room.content()).is_empty() {
            Ok(())
        } else {
            Err(Error::Source(io::Error::other("the source did not hand out a page that is owed")))
        }
    }
}
