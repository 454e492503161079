//! The receiver after the switch: the image is in use, and its owed pages arrive, in the background
//! or on request.
//!
//! Each owed page is brought once; any other frame would overwrite newer writes, and is refused.
//! This module must never count a page as arrived before its content is in place.

use std::io;
use std::net::Shutdown;
use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use pagoda_core::migrate::channel::Violation;
use pagoda_core::migrate::digest::DigestKey;
use pagoda_core::migrate::geometry::{Extent, STRIPE_PAGES};
use pagoda_core::migrate::missing::{MISSING_BYTES, Missing};
use pagoda_core::migrate::pages::PageSet;
use pagoda_core::migrate::reply::{Failure, Reply};
use pagoda_linux::process::thread::raise_priority;
use pagoda_linux::process::turns::take_short_turns;

use crate::error::Error;
use crate::net::connection::{Connection, lost};
use crate::net::socket::{Closer, Deadline};
use crate::progress::{Count, Counts, Progress};
use crate::receive::apply::{Apply, pages, violation};
use crate::receive::page_requests::{self, Wants};
use crate::receive::rejoin::{Door, LAST_WORD, Rejoining, closers};
use crate::wire::frame_reader::{Ended, Inlet, Shared};
use crate::workers;

/// The list of missing pages is sent in pieces of about this.
const TOLD_BYTES: usize = 64 << 10;

/// Where owed pages arrive. Each arrives once, whole; channels bring them at the same time.
pub trait Arrivals: Sync {
    /// The pages that threads wait for.
    fn wants(&self) -> &Wants;

    /// The pages from `offset` on hold this from now on: threads that wait for one continue.
    ///
    /// # Errors
    /// If they can't be put in place.
    fn arrive(&self, offset: u64, content: &[u8]) -> io::Result<()>;

    /// The same of one base page, which a store elsewhere had packed
    /// ([`pagoda_linux::codec::pack`]): it unpacks to `content`. True if it is kept as packed.
    ///
    /// # Errors
    /// As [`arrive`](Self::arrive).
    fn arrive_packed(&self, offset: u64, packed: &[u8], content: &[u8]) -> io::Result<bool> {
        let _ = packed;
        self.arrive(offset, content).map(|()| false)
    }

    /// The pages of `range` are zero. Nothing need be written: they hold nothing.
    ///
    /// # Errors
    /// As [`arrive`](Self::arrive).
    fn arrive_zero(&self, range: Range<u64>) -> io::Result<()>;
}

/// The rest of a migration that has switched: the image is whole but for the owed pages.
pub struct Remaining {
    pub(crate) ends: Vec<Ended>,
    pub(crate) askers: Vec<Connection>,
    pub(crate) owed: PageSet,
    pub(crate) progress: Progress,
    pub(crate) way: Rejoining,
}

/// Applies owed pages.
pub(crate) struct Shown<'a> {
    pub(crate) arrivals: &'a dyn Arrivals,
    pub(crate) owed: &'a PageSet,
}

impl Shown<'_> {
    /// A caller that gets `Ok` is the only one that brings these. After an error those of them that
    /// were owed still are.
    fn take(&self, channel: u16, extent: Extent) -> Result<(), Error> {
        let taken = self.owed.take(pages(extent));
        if taken.count() == extent.count() {
            return Ok(());
        }
        self.owed.add_stripe(extent.first() / u64::from(STRIPE_PAGES) * u64::from(STRIPE_PAGES), taken);
        Err(violation(channel, Violation::NotOwed(extent)))
    }
}

impl Apply for Shown<'_> {
    fn content(&self, channel: u16, extent: Extent, content: &[u8]) -> Result<(), Error> {
        self.take(channel, extent)?;
        self.arrivals.arrive(extent.offset().get(), content).map_err(Error::Destination)
    }
    fn packed(&self, channel: u16, extent: Extent, packed: &[u8], content: &[u8]) -> Result<bool, Error> {
        self.take(channel, extent)?;
        self.arrivals.arrive_packed(extent.offset().get(), packed, content).map_err(Error::Destination)
    }
    fn zero(&self, channel: u16, extent: Extent, _room: &mut [u8]) -> Result<(), Error> {
        self.take(channel, extent)?;
        let from = extent.offset().get();
        self.arrivals.arrive_zero(from..from + extent.len().get()).map_err(Error::Destination)
    }
    fn kept(&self, channel: u16, extent: Extent) -> Result<(), Error> {
        Err(violation(channel, Violation::NotOffered(extent)))
    }
    fn owed(&self, channel: u16, _extent: Extent) -> Result<(), Error> {
        Err(violation(channel, Violation::Owes))
    }
    fn last(&self, channel: u16) -> Result<(), Error> {
        Err(violation(channel, Violation::EarlyLast))
    }
}

impl Remaining {
    /// Takes the image over: from now on it lives here, and the sender's writer must not run again.
    /// A sender that does not hear it finds out when it connects once more.
    ///
    /// # Errors
    /// If the sender can't be told, and may not connect once more. It can't know then whether the
    /// image lives here: it must not, drop it.
    pub fn take_over(&mut self) -> Result<(), Error> {
        let stall = self.way.options.stall;
        let first = self.ends.first_mut().ok_or(Error::NotPagoda)?;
        match first.connection().send(&Reply::Switched.encode()) {
            Err(error) if self.way.listener.is_none() => Err(lost(0, stall, error)),
            _ => Ok(()),
        }
    }

    /// Tells the sender that the image can't live here, instead of
    /// [`take_over`](Self::take_over): its writer may run again.
    pub(crate) fn refuse(&mut self, error: &Error) {
        if let Some(first) = self.ends.first_mut() {
            // A sender that does not hear it knows no more than at a lost connection.
            let _ = first.connection().send(&Reply::Failed(error.as_failure()).encode());
        }
    }

    /// Receives the owed pages, after [`take_over`](Self::take_over). Blocks until all is there, or
    /// something has failed; no wait in it is longer than the stall. If channels are lost, the
    /// sender may connect them once more for as long as
    /// [`recover_for`](crate::ReceiveOptions::recover_for) says. `watch` is called about ten times
    /// a second, and ends it by [`ControlFlow::Break`].
    ///
    /// # Errors
    /// See [`Error`]. Pages that have not arrived are lost: no other process has them.
    pub fn receive(
        self,
        arrivals: &dyn Arrivals,
        watch: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
    ) -> Result<Counts, Error> {
        let Self { mut ends, askers, owed, progress, way } = self;
        let connections = ends.iter_mut().map(|ended| &*ended.connection()).chain(&askers);
        let at_work = closers(connections)?;
        let streams = ends.into_iter().map(Stream::Continued).collect();
        let arriving = Arriving { arrivals, owed: &owed, progress: &progress, way: &way };
        let Some(listener) = &way.listener else {
            arriving.crew(streams, askers, &at_work, &mut || watch(&progress))?;
            return Ok(progress.counts());
        };
        let door = Door::new(listener, &way, at_work).map_err(Error::System)?;
        thread::scope(|scope| {
            let attend = || door.attend();
            let builder = thread::Builder::new().name("rejoin".to_owned());
            builder.spawn_scoped(scope, attend).map_err(Error::System)?;
            // Also when this thread panics: the scope waits for the other one.
            let _shut = Shut(&door);
            arriving.all(streams, askers, &door, &mut || watch(&progress))
        })?;
        Ok(progress.counts())
    }
}

/// Shuts a door when it goes.
struct Shut<'a>(&'a Door<'a>);

impl Drop for Shut<'_> {
    fn drop(&mut self) {
        self.0.shut();
    }
}

/// A channel that carries stripes.
enum Stream {
    /// As it was before the switch.
    Continued(Ended),
    /// Connected once more.
    Rejoined(u16, Connection),
}

/// The state that all crews share.
struct Arriving<'a> {
    arrivals: &'a dyn Arrivals,
    owed: &'a PageSet,
    progress: &'a Progress,
    way: &'a Rejoining,
}

impl Arriving<'_> {
    /// Receives all, over channels that may be lost and connected once more.
    fn all(
        &self,
        mut streams: Vec<Stream>,
        mut askers: Vec<Connection>,
        door: &Door<'_>,
        look: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<(), Error> {
        let recover_for = self.way.options.recover_for;
        // Lines that fail before a page arrives must not extend the wait, nor must those that come
        // only to hear that all is here.
        let (mut until, mut last_word): (Option<Deadline>, Option<Deadline>) = (None, None);
        let mut before = self.owed.count();
        loop {
            let error = match self.crew(streams, askers, &door.at_work(), look) {
                Ok(true) => return Ok(()),
                Ok(false) => None,
                Err(error) => Some(error),
            };
            door.give_up();
            let (left, since) = (self.owed.count(), Instant::now());
            let failed = match error {
                // The pages of a frame that could not be put in place count as owed no longer.
                Some(error @ Error::Destination(_)) => return Err(error),
                // The sender may not know that all is here, and connect only to hear it.
                _ if left == 0 => None,
                Some(error) if error.is_of_the_line() => Some(error),
                error => return error.map_or(Ok(()), Err),
            };
            let limit = match &failed {
                None => *last_word.get_or_insert_with(|| Deadline::after(recover_for.min(LAST_WORD))),
                Some(_) if left == before => *until.get_or_insert_with(|| Deadline::after(recover_for)),
                Some(_) => *until.insert(Deadline::after(recover_for)),
            };
            before = left;
            let Some(connections) = door.await_sender(limit, look)? else {
                return failed.map_or(Ok(()), |error| {
                    Err(Error::NotRecovered { within: recover_for, error: Box::new(error) })
                });
            };
            if failed.is_some() {
                self.progress.add(Count::Recoveries, 1);
                self.progress.add(Count::WaitedUs, since.elapsed().as_micros() as u64);
            }
            let mut connections = connections.into_iter();
            let channels = self.way.hello.geometry.channels();
            streams =
                (0..channels).zip(connections.by_ref()).map(|(n, one)| Stream::Rejoined(n, one)).collect();
            askers = connections.collect();
        }
    }

    /// Receives over these channels until all is here, or one of them fails. True if the sender
    /// knows it.
    fn crew(
        &self,
        streams: Vec<Stream>,
        askers: Vec<Connection>,
        closers: &[Closer],
        look: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<bool, Error> {
        let (geometry, codec, stall) =
            (self.way.hello.geometry, self.way.hello.codec, self.way.options.stall);
        let apply = Shown { arrivals: self.arrivals, owed: self.owed };
        let key = DigestKey::of_session(self.way.hello.session);
        let shared = &Shared { apply: &apply, geometry, codec, key, stall, progress: self.progress };
        let orders = &workers::Orders::default();
        orders.hurry();
        let (left, wants) = (&AtomicUsize::new(streams.len()), self.arrivals.wants());
        wants.go_on();
        closers.iter().take(streams.len()).for_each(Closer::shorten_queue);
        type Task<'a> = Box<dyn FnOnce() -> Result<Option<Inlet<'a>>, Error> + Send + 'a>;
        let mut tasks: Vec<Task<'_>> = Vec::with_capacity(closers.len());
        for stream in streams {
            tasks.push(Box::new(move || {
                take_short_turns();
                self.run_stream(stream, shared, orders).inspect_err(|_| wants.lose())?;
                if left.fetch_sub(1, Ordering::AcqRel) == 1 {
                    wants.end();
                }
                Ok(None)
            }));
        }
        for (channel, connection) in (geometry.channels()..).zip(askers) {
            tasks.push(Box::new(move || {
                raise_priority();
                let inlet = Inlet::asked(shared, channel, connection, orders)?;
                let asked = page_requests::run(inlet, wants, shared.progress);
                asked.map(Some).inspect_err(|_| wants.lose())
            }));
        }
        let ended = workers::run(orders, tasks, closers, Shutdown::Read, look)?;
        let whole = self.owed.count() == 0;
        let reply = if whole { Reply::Finished } else { Reply::Failed(Failure::Protocol) };
        let mut askers: Vec<_> = ended.into_iter().flatten().collect();
        for inlet in &mut askers {
            // All is here, whether the sender hears of it or not.
            let _ = inlet.say(reply);
        }
        if !whole {
            return Err(violation(0, Violation::Owes));
        }
        let until = Deadline::after(LAST_WORD);
        Ok(askers.iter_mut().all(|inlet| {
            inlet.connection().set_deadline(Some(until));
            inlet.round().is_ok()
        }))
    }

    /// Receives the frames of a channel that carries stripes.
    fn run_stream<'b>(
        &self,
        stream: Stream,
        shared: &'b Shared<'b>,
        orders: &'b workers::Orders,
    ) -> Result<(), Error> {
        let inlet = match stream {
            Stream::Continued(ended) => Inlet::resumed(shared, ended, orders)?,
            Stream::Rejoined(channel, mut connection) => {
                let told = self.tell_missing(channel, &mut connection);
                told.map_err(|error| lost(channel, shared.stall, error))?;
                Inlet::rejoined(shared, channel, connection, orders)?
            }
        };
        inlet.run_to_end().map(drop)
    }

    /// Tells the sender which pages of a channel's stripes have not arrived.
    fn tell_missing(&self, channel: u16, connection: &mut Connection) -> io::Result<()> {
        let mut says = Vec::with_capacity(TOLD_BYTES + MISSING_BYTES);
        for first in self.way.hello.geometry.stripes_of(channel) {
            let pages = self.owed.stripe(first);
            if !pages.is_empty() {
                says.extend(Missing::Pages { first, pages }.encode());
            }
            if says.len() >= TOLD_BYTES {
                connection.send(&says)?;
                says.clear();
            }
        }
        says.extend(Missing::End.encode());
        connection.send(&says)
    }
}
