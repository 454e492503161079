//! Moving a live region to another process or host, and receiving one.
//!
//! `pagoda_migrate` has the protocol; this module has the parts that only the engine can do. A
//! region that is sent tells its dirty pages, and hands out pages from wherever they are: staged
//! and stored ones are read in place, and not swapped in (`source`, `reader`). Arriving pages are
//! moved into a region that is received, so that no thread faults for them (`destination`,
//! `landing`, `install`). A region that is used before all of it has arrived knows its owed pages,
//! and has them put in place while it is used (`arrivals`, `arrive`).
//!
//! Memory that processes share (a memfd) is never managed. [`SharedMemory`] is sent and received
//! into all the same, also from a region and into one.
//!
//! ```no_run
//! use std::ops::ControlFlow;
//! use std::time::Duration;
//!
//! use pagoda::migrate::{LiveOptions, Otherwise, SendOptions, Writer};
//! use pagoda::{Bytes, Manager};
//!
//! /// The writer of the region.
//! struct Guest;
//!
//! impl Writer for Guest {
//!     fn throttle(&mut self, _percent: u8) {}
//!     fn stop(&mut self) { /* and wait until it has stopped */ }
//! }
//!
//! let manager = Manager::builder().budget(Bytes::mib(64)).build()?;
//! let region = manager.region(Bytes::gib(1)).create()?;
//! let options = LiveOptions {
//!     send: SendOptions::default(),
//!     downtime: Duration::from_millis(300),
//!     rounds: 30,
//!     otherwise: Otherwise::StopForLonger,
//!     slow_most_percent: LiveOptions::SLOW_MOST_PERCENT,
//! };
//! let to = "tcp://127.0.0.1:7000".parse()?;
//! let moved = region.migrate_to(&to, &options, &mut Guest, &mut |_, _| {
//!     ControlFlow::Continue(())
//! })?;
//! println!("stood still for {:?} after {} rounds", moved.downtime, moved.pace.rounds);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod arrivals;
mod arrive;
mod destination;
#[cfg(feature = "migrate")]
pub(crate) mod huge;
mod install;
mod landing;
mod place;
mod reader;
mod slow;
pub(crate) mod source;

use std::ops::ControlFlow;
use std::sync::Arc;

pub use arrivals::Arrival;
pub use destination::RegionDestination;
pub use pagoda_core::migrate::handshake::Codec;
pub use pagoda_core::migrate::zero::ZeroPolicy;
pub use pagoda_migrate::{
    ClientTls, Counts, Credentials, DirtyLog, DirtyPages, Endpoint, Error, Event, Listener, LiveOptions,
    Moved, Otherwise, OwnWrites, Pace, Progress, ReceiveOptions, SendOptions, ServerTls, SharedArrival,
    SharedMemory, Token, Writer,
};

use pagoda_linux::mem::range::PageRange;

use crate::engine::Engine;
use crate::manager::Manager;
use crate::region::{AdoptedRegion, Managed, Region};
use crate::stats::migration::Moving;
use crate::tree::MigrationState;
pub(crate) use arrivals::Receiving;
use pagoda_migrate::Arrived;
use place::{Given, Place};
use source::RegionSource;

impl RegionDestination {
    /// As [`Region::receive`].
    ///
    /// # Errors
    /// See [`Error`]. Nothing that has arrived is left.
    pub fn receive(
        mut self,
        listener: Listener,
        options: &ReceiveOptions,
        watch: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<(Region, Counts), Error> {
        let counts = self.receive_all(listener, options, watch)?;
        Ok((self.into_region().map_err(Error::Destination)?, counts))
    }

    /// As [`Region::receive_late`].
    ///
    /// # Errors
    /// See [`Error`]. Nothing that has arrived is left.
    pub fn receive_late(
        mut self,
        listener: Listener,
        options: &ReceiveOptions,
        watch: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<(Region, Arrival), Error> {
        let arrival = self.receive_most(self.engine()?, listener, options, watch)?;
        Ok((self.into_region().map_err(Error::Destination)?, arrival))
    }
}

impl<P: Place> RegionDestination<P> {
    fn receive_all(
        &mut self,
        listener: Listener,
        options: &ReceiveOptions,
        watch: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<Counts, Error> {
        let mut watch = noting(self.moving(), watch);
        pagoda_migrate::receive(listener, self, options, &mut watch)
    }

    /// Receives all but the owed pages, whose arrival it begins.
    fn receive_most(
        &mut self,
        engine: Arc<Engine>,
        listener: Listener,
        options: &ReceiveOptions,
        watch: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<Arrival, Error> {
        let receiving = Receiving::start(engine, self.moving()).map_err(Error::System)?;
        let mut watch = noting(self.moving(), watch);
        match pagoda_migrate::receive_late(listener, self, options, &mut watch)? {
            Arrived::Whole(counts) => Arrival::whole(counts),
            Arrived::Owed(remaining) => {
                let (region, owed) = self.take_parts().map_err(Error::Destination)?;
                region.set_receiving(receiving).begin(remaining, owed)
            }
        }
    }
}

/// As `watch`, and notes the progress for observers of the region.
fn noting(
    moving: Arc<Moving>,
    watch: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
) -> impl FnMut(Event<'_>) -> ControlFlow<()> {
    move |event| {
        moving.receives(&event);
        watch(event)
    }
}

impl AdoptedRegion {
    /// Receives into this memory, as [`Region::receive`] does into a region of its own. It has to
    /// be as long as the sent region, and [movable](crate::ForeignMemory::movable). Its content is
    /// given up once a sender was admitted; until this returns it may hold anything, and no thread
    /// may use it.
    ///
    /// # Errors
    /// See [`Error`]. If a sender was admitted the memory reads as zero then; else it has its
    /// content. [`Error::Destination`] also if the lengths differ, or not all of it is as it was
    /// adopted: then nothing has changed.
    pub fn receive(
        &mut self,
        listener: Listener,
        options: &ReceiveOptions,
        watch: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<Counts, Error> {
        let mut destination = RegionDestination::at(Given::new(self)?);
        let counts = destination.receive_all(listener, options, watch)?;
        destination.place.show();
        Ok(counts)
    }

    /// As [`receive`](Self::receive), for a sender that may let this side go on before all has
    /// arrived, as [`Region::receive_late`] tells. Closing or dropping it before ends the arrival:
    /// a touch of a page that is not here raises SIGBUS from then on, until the page is discarded.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn receive_late(
        &mut self,
        listener: Listener,
        options: &ReceiveOptions,
        watch: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<Arrival, Error> {
        let place = Given::new(self)?;
        let engine = place.engine();
        let mut destination = RegionDestination::at(place);
        let arrival = destination.receive_most(engine, listener, options, watch)?;
        destination.place.show();
        Ok(arrival)
    }
}

impl Managed {
    /// Moves the region's content to the receiver at `to`, while it is written through its address
    /// or [`write_words`](Region::write_words): in rounds over the pages written meanwhile, and in
    /// the end, with `writer` stopped, the rest. Pages that were never touched are neither looked
    /// at nor sent. Staged and stored pages are read in place; with another codec than
    /// [`Codec::None`] base pages that are stored in whole travel as the store has packed them.
    ///
    /// Every write of a processor is seen, also a guest's and the kernel's. A device's writes to
    /// pages that are pinned for long (VFIO, registered buffers of io_uring) are not: stop it
    /// before.
    ///
    /// The region itself stays as it is. Once this has succeeded it is a copy of a region that
    /// lives on elsewhere, to be closed.
    ///
    /// Blocks until the receiver has confirmed all of it; `watch` is called about ten times a
    /// second and at the start of each round, and ends it by [`ControlFlow::Break`]. A first write
    /// to a page after each round costs about 2 µs more meanwhile, and scanning for those holds
    /// faults up for some 100 µs for each 64 MiB.
    ///
    /// Where rounds don't help, threads that touch pages that were written lose up to
    /// [`LiveOptions::slow_most_percent`] of their time: their first access to such a page is a
    /// fault that waits, 10 ms at most. That ends before `writer` is stopped, and with any error.
    ///
    /// With [`Otherwise::PostCopy`] the other side, which has to be a
    /// [`receive_late`](Region::receive_late), goes on as soon as it knows its owed pages, and this
    /// returns when it has all of them. `watch` does not end it any more then: the owed pages are
    /// nowhere else.
    ///
    /// # Errors
    /// See [`Error`]. Unless it is [`Error::Unconfirmed`] or [`Error::AfterSwitch`] the other side
    /// shows nothing and the writer may go on. [`Error::Source`] also where the kernel can't track
    /// writes, and for adopted memory that is not [movable](crate::ForeignMemory::movable).
    pub fn migrate_to(
        &self,
        to: &Endpoint,
        options: &LiveOptions,
        writer: &mut dyn Writer,
        watch: &mut dyn FnMut(&Progress, &Pace) -> ControlFlow<()>,
    ) -> Result<Moved, Error> {
        let source = RegionSource::begin(self)?;
        let moving = Arc::new(Moving::new(MigrationState::Sending));
        self.account().moves(&moving);
        let mut watch = |progress: &Progress, pace: &Pace| {
            moving.sends(progress, pace);
            watch(progress, pace)
        };
        pagoda_migrate::send_live(&source, to, options, writer, &mut watch)
    }
}

impl Region {
    /// Receives a region, of the length that is sent, rounded up to base pages of `manager`; for
    /// one with a base page of its own see [`RegionDestination::base_page`]. It is shown only when
    /// all of it has arrived and the sender has committed. With base pages of 64 KiB and 2 MiB,
    /// content for 2 MiB that are dense and empty is received into a huge frame and moved in by one
    /// move; with 2 MiB also where only half of it has content. Else it is received into ready base
    /// frames of 64 KiB, if there are any, or copied into fresh memory by the kernel. Content that
    /// was stored there and is packed for the same base page is stored here. All within the
    /// manager's budget, as anything else.
    ///
    /// Blocks until then. `watch` is called about ten times a second, and ends it by
    /// [`ControlFlow::Break`].
    ///
    /// # Errors
    /// See [`Error`]. Nothing that has arrived is left.
    pub fn receive(
        manager: &Manager,
        listener: Listener,
        options: &ReceiveOptions,
        watch: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<(Self, Counts), Error> {
        RegionDestination::new(manager.clone()).receive(listener, options, watch)
    }

    /// As [`receive`](Self::receive), for a sender that may let this side go on before all has
    /// arrived: then the region is shown at that moment, and the rest arrives while it is used. A
    /// thread that touches a page that is not here waits until it is. The page is asked for at
    /// once, with the 64 KiB around it, on connections of their own. No thread waits for a zero
    /// page, unless the sender has not looked at it yet.
    ///
    /// From then on only the sender has the owed pages. If the connection is lost, or silent for
    /// the stall, the sender may connect again for as long as [`ReceiveOptions::recover_for`] says,
    /// on the same listener, and threads that touch an owed page wait. After that [`Arrival::wait`]
    /// tells why and [`read_at`](Self::read_at) returns
    /// [`AccessError::Lost`](crate::AccessError::Lost). Touching a page that has not arrived raises
    /// SIGBUS then (`EFAULT` from a system call): it never reads as anything. Dropping the region
    /// ends the arrival.
    ///
    /// # Errors
    /// See [`Error`]. Nothing that has arrived is left.
    pub fn receive_late(
        manager: &Manager,
        listener: Listener,
        options: &ReceiveOptions,
        watch: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<(Self, Arrival), Error> {
        RegionDestination::new(manager.clone()).receive_late(listener, options, watch)
    }

    /// Waits until the range to be read is here, if the region is arriving. False if a part of it
    /// will never arrive.
    pub(crate) fn await_arrival(&self, offset: usize, len: usize) -> bool {
        let (page, end) = (pagoda_core::page::OS_PAGE, offset.saturating_add(len));
        let at = |offset: usize| self.as_ptr().addr() + offset;
        match self.receiving().and_then(Receiving::owed) {
            Some(owed) if end <= self.len() => {
                PageRange::new(at(offset / page * page), at(end.next_multiple_of(page)))
                    .is_none_or(|range| owed.await_range(range))
            }
            _ => true,
        }
    }
}
