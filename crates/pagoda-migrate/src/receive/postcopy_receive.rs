//! The receiver after the switch: the image is in use, and its owed pages arrive, in the background
//! or on request.
//!
//! Each owed page is brought once; any other frame would overwrite newer writes, and is refused.
//! This module must never count a page as arrived before its content is in place.

use std::io;
use std::net::Shutdown;
use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pagoda_core::migrate::channel::Violation;
use pagoda_core::migrate::geometry::{Extent, Geometry};
use pagoda_core::migrate::handshake::Codec;
use pagoda_core::migrate::pages::PageSet;
use pagoda_core::migrate::reply::{Failure, Reply};

use crate::error::Error;
use crate::net::connection::{Connection, lost};
use crate::progress::{Counts, Progress};
use crate::receive::apply::{Apply, pages, violation};
use crate::receive::page_requests::{self, Wants};
use crate::wire::frame_reader::{Ended, Inlet, Shared};
use crate::workers;

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
    pub(crate) geometry: Geometry,
    pub(crate) codec: Codec,
    pub(crate) stall: Duration,
    pub(crate) owed: PageSet,
    pub(crate) progress: Progress,
}

/// Applies owed pages.
pub(crate) struct Shown<'a> {
    pub(crate) arrivals: &'a dyn Arrivals,
    pub(crate) owed: &'a PageSet,
}

impl Shown<'_> {
    /// A caller that gets `Ok` is the only one that brings these.
    fn take(&self, channel: u16, extent: Extent) -> Result<(), Error> {
        if self.owed.take(pages(extent)).count() == extent.count() {
            Ok(())
        } else {
            Err(violation(channel, Violation::NotOwed(extent)))
        }
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
    fn owed(&self, channel: u16, _extent: Extent) -> Result<(), Error> {
        Err(violation(channel, Violation::Owes))
    }
    fn last(&self, channel: u16) -> Result<(), Error> {
        Err(violation(channel, Violation::EarlyLast))
    }
}

impl Remaining {
    /// Takes the image over: from now on it lives here, and the sender's writer must not run again.
    ///
    /// # Errors
    /// If the sender can't be told. It can't know then whether the image lives here: it must not,
    /// drop it.
    pub fn take_over(&mut self) -> Result<(), Error> {
        let first = self.ends.first_mut().ok_or(Error::NotPagoda)?;
        first.connection().send(&Reply::Switched.encode()).map_err(|error| lost(0, self.stall, error))
    }

    /// Receives the owed pages, after [`take_over`](Self::take_over). Blocks until all is there, or
    /// something has failed; no wait in it is longer than the stall. `watch` is called about ten
    /// times a second, and ends it by [`ControlFlow::Break`].
    ///
    /// # Errors
    /// See [`Error`]. Pages that have not arrived are lost: no other process has them.
    pub fn receive(
        self,
        arrivals: &dyn Arrivals,
        watch: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
    ) -> Result<Counts, Error> {
        let Self { mut ends, askers, geometry, codec, stall, owed, progress } = self;
        let mut closers = Vec::with_capacity(ends.len() + askers.len());
        for connection in ends.iter_mut().map(Ended::connection) {
            closers.push(connection.closer().map_err(Error::System)?);
        }
        for connection in &askers {
            closers.push(connection.closer().map_err(Error::System)?);
        }
        let apply = Shown { arrivals, owed: &owed };
        let shared = &Shared { apply: &apply, geometry, codec, stall, progress: &progress };
        let (orders, streams, wants) =
            (&workers::Orders::default(), &AtomicUsize::new(ends.len()), arrivals.wants());
        type Task<'a> = Box<dyn FnOnce() -> Result<Option<Connection>, Error> + Send + 'a>;
        let mut tasks: Vec<Task<'_>> = Vec::with_capacity(closers.len());
        for ended in ends {
            tasks.push(Box::new(move || {
                Inlet::resumed(shared, ended, orders)?.run_to_end()?;
                if streams.fetch_sub(1, Ordering::AcqRel) == 1 {
                    wants.end();
                }
                Ok(None)
            }));
        }
        for (channel, connection) in (geometry.channels()..).zip(askers) {
            tasks.push(Box::new(move || {
                let inlet = Inlet::asked(shared, channel, connection, orders)?;
                page_requests::run(inlet, wants, shared.progress).map(Some)
            }));
        }
        let mut look = || watch(&progress);
        let ended = workers::run(orders, tasks, &closers, Shutdown::Read, &mut look)?;
        let whole = owed.count() == 0;
        let reply = if whole { Reply::Finished } else { Reply::Failed(Failure::Protocol) };
        for mut connection in ended.into_iter().flatten() {
            // All is here, whether the sender hears of it or not.
            let _ = connection.send(&reply.encode());
        }
        if whole { Ok(progress.counts()) } else { Err(violation(0, Violation::Owes)) }
    }
}
