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

use pagoda_core::migrate::digest::BLOCKS;
use pagoda_core::migrate::geometry::{GROUP_PAGES, Geometry, STRIPE_PAGES};
use pagoda_core::migrate::handshake::Codec;
use pagoda_core::migrate::pages::{PageSet, StripePages};
use pagoda_core::migrate::reply::Reply;
use pagoda_core::migrate::wanted::group_of;
use pagoda_core::page::OS_PAGE;
use pagoda_linux::codec::pack::PageUnpacker;
use pagoda_linux::process::thread::raise_priority;
use pagoda_linux::process::turns::take_short_turns;

use crate::error::Error;
use crate::live::Rounds;
use crate::live::live_channel::{Lane, PIECE_PAGES, extent};
use crate::live::options::{Moved, Pace};
use crate::live::reconnect::WayBack;
use crate::live::source::Room;
use crate::net::connection::Connection;
use crate::net::socket::{Closer, Deadline};
use crate::progress::{Count, Progress};
use crate::send::stripes::send_pages;
use crate::wire::frame_writer::Outlet;
use crate::workers::{self, Orders};

/// Lets the other side run, and sends it the owed pages. The writer was stopped at `stopped`, and
/// all its writes are collected.
pub(crate) fn switch<'a>(
    mut rounds: Rounds<'a>,
    mut lanes: Vec<Lane<'a>>,
    askers: Vec<Lane<'a>>,
    stopped: Instant,
    back: &WayBack<'_>,
    watch: &mut dyn FnMut(&Progress, &Pace) -> ControlFlow<()>,
) -> Result<Moved, Error> {
    let (orders, closers, progress) = (rounds.orders, rounds.closers, rounds.progress);
    lanes = rounds.each_lane(lanes, Lane::owe, watch)?;
    let pace = rounds.pace();
    let mut look = || watch(progress, &pace);
    // A few bytes to receivers that have read all before: it never waits.
    let end = |mut lane: Lane<'a>| lane.outlet.end().map(|()| lane);
    let mut ended = lanes.into_iter().map(end).collect::<Result<Vec<_>, _>>()?;
    let first = ended.swap_remove(0);
    let tell = vec![move || tell_switch(first)];
    let told = workers::run(orders, tell, &closers[..1], Shutdown::Write, &mut look);
    // Only this side has the owed pages: it is too late to cancel.
    let mut look = || {
        let _ = watch(progress, &pace);
        ControlFlow::Continue(())
    };
    let mut switched = Instant::now();
    let mut bringing = Bringing::new(&rounds, back);
    let mut lost = match told {
        Ok(first) => {
            orders.hurry();
            ended.extend(first);
            crew(&rounds, ended, askers, orders, closers, &mut look).err()
        }
        // As at a commit: after these the other side's state is unknown.
        Err(Error::Cancelled | Error::StrangeReply { .. }) => return Err(Error::Unconfirmed),
        // It may run, or not. If it does, it takes the channels once more.
        Err(error) if error.is_of_the_line() && !matches!(error, Error::Peer(_)) => {
            drop((ended, askers));
            match bringing.recover(error, &mut look) {
                Ok(outcome) => {
                    switched = bringing.connected.unwrap_or(switched);
                    outcome.err()
                }
                Err(_) => return Err(Error::Unconfirmed),
            }
        }
        Err(error) => return Err(error),
    };
    while let Some(error) = lost {
        let after_switch = |error| Error::AfterSwitch(Box::new(error));
        lost = bringing.recover(error, &mut look).map_err(after_switch)?.err();
    }
    let downtime = switched.duration_since(stopped);
    Ok(Moved { counts: progress.counts(), pace, downtime, owed_for: Some(switched.elapsed()) })
}

/// Bringing the owed pages over channels that may be lost and connected once more.
struct Bringing<'a> {
    rounds: &'a Rounds<'a>,
    back: &'a WayBack<'a>,
    /// The pages that were owed at the switch.
    promised: PageSet,
    /// How much the receiver lacked the last time.
    left: u64,
    attempt: u32,
    /// When the last attempt succeeded.
    connected: Option<Instant>,
    /// Lines that fail before a page arrives must not extend the time.
    until: Option<Deadline>,
    /// The time was over and was granted once more: pages may have arrived over the last channels,
    /// and only the receiver's next list tells.
    is_extended: bool,
}

impl<'a> Bringing<'a> {
    fn new(rounds: &'a Rounds<'a>, back: &'a WayBack<'a>) -> Self {
        let (promised, left) = (rounds.copy_of_owed(), rounds.data.count());
        let (connected, until, is_extended) = (None, None, false);
        Self { rounds, back, promised, left, attempt: 0, connected, until, is_extended }
    }

    /// Connects all channels once more after `error`, and brings what the receiver lacks. The
    /// outcome is that of bringing it.
    ///
    /// # Errors
    /// Why the channels are not there.
    fn recover(
        &mut self,
        error: Error,
        look: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Result<(), Error>, Error> {
        let (recover_for, progress) = (self.back.options.recover_for, self.rounds.progress);
        if !error.is_of_the_line() || recover_for.is_zero() {
            return Err(error);
        }
        let since = Instant::now();
        // These handles keep the sockets of the first channels open.
        self.rounds.closers.iter().for_each(|closer| closer.close(Shutdown::Both));
        let mut until = *self.until.get_or_insert_with(|| Deadline::after(recover_for));
        let not_recovered = |error| Error::NotRecovered { within: recover_for, error: Box::new(error) };
        if until.is_over() {
            if std::mem::replace(&mut self.is_extended, true) {
                return Err(not_recovered(error));
            }
            until = *self.until.insert(Deadline::after(recover_for));
        }
        let connections = self.back.connect(&mut self.attempt, until, look).map_err(not_recovered)?;
        self.connected = Some(Instant::now());
        progress.add(Count::Recoveries, 1);
        progress.add(Count::WaitedUs, since.elapsed().as_micros() as u64);
        Ok(self.bring(connections, look))
    }

    /// Brings what the receiver lacks over new connections.
    fn bring(
        &mut self,
        mut connections: Vec<Connection>,
        look: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<(), Error> {
        let (rounds, back) = (self.rounds, self.back);
        let closers: Vec<_> =
            connections.iter().map(Connection::closer).collect::<Result<_, _>>().map_err(Error::System)?;
        let asking = connections.split_off(usize::from(rounds.geometry.channels()));
        let streaming = back.owe_missing(rounds, connections, &closers, &self.promised, look)?;
        let left = rounds.data.count();
        if left < self.left {
            (self.left, self.until, self.is_extended) = (left, None, false);
        }
        rounds.source.hand_out_again().map_err(Error::Source)?;
        let orders = Orders::default();
        orders.hurry();
        let mut lanes = Vec::with_capacity(streaming.len() + asking.len());
        for (channel, connection) in (0..).zip(streaming.into_iter().chain(asking)) {
            lanes.push(Lane {
                outlet: Outlet::new(back.shared, channel, connection, &orders)?,
                reader: rounds.source.reader(back.shared.codec != Codec::None).map_err(Error::Source)?,
                room: Room::default(),
            });
        }
        let askers = lanes.split_off(usize::from(rounds.geometry.channels()));
        crew(rounds, lanes, askers, &orders, &closers, look)
    }
}

/// Brings the owed pages over these channels, until the receiver has all of it.
fn crew<'b>(
    rounds: &Rounds<'_>,
    streams: Vec<Lane<'b>>,
    askers: Vec<Lane<'b>>,
    orders: &Orders,
    closers: &[Closer],
    look: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<(), Error> {
    type Task<'c> = Box<dyn FnOnce() -> Result<(), Error> + Send + 'c>;
    let (owed, geometry) = (&rounds.data, rounds.geometry);
    closers.iter().take(streams.len()).for_each(Closer::shorten_queue);
    let mut tasks: Vec<Task<'_>> = Vec::with_capacity(streams.len() + askers.len());
    for mut lane in streams {
        tasks.push(Box::new(move || {
            take_short_turns();
            lane.bring_all(owed, geometry)
        }));
    }
    for mut lane in askers {
        tasks.push(Box::new(move || {
            // Threads of the other side wait for the answers.
            raise_priority();
            lane.answer(owed, geometry)
        }));
    }
    workers::run(orders, tasks, closers, Shutdown::Write, look).map(drop)
}

/// Tells the other side on channel 0 to run, and waits until it does.
fn tell_switch(mut lane: Lane<'_>) -> Result<Lane<'_>, Error> {
    lane.outlet.switch()?;
    match lane.outlet.reply() {
        Ok(Reply::Switched) => Ok(lane),
        Ok(_) => Err(Error::StrangeReply { channel: 0 }),
        Err(error) => Err(error),
    }
}

impl<'a> Lane<'a> {
    /// Announces the zero pages of this channel's stripes, and the owed ones. Nothing is read for
    /// it and the writer stands still, so that its frames go together, as many as the buffer takes.
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
                Reply::Finished => {
                    // All is there. Whether the receiver hears that this is known makes no
                    // difference to it.
                    let _ = self.outlet.end_round();
                    return Ok(());
                }
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
                    send_pages(outlet, first + u64::from(part.start), &unpacked[bytes], &[None; BLOCKS])?;
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
            send_pages(outlet, first + u64::from(run.start), &room.bytes()[bytes], room.known())?;
        }
        if left.without(room.content()).is_empty() {
            Ok(())
        } else {
            Err(Error::Source(io::Error::other("the source did not hand out a page that is owed")))
        }
    }
}
