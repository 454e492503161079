//! The stripes that a destination has of an earlier transfer: offered to the sender, and kept if it
//! has the same.
//!
//! Nothing of them counts as received before the sender has named the stripe. A stripe that it does
//! not name is given back before the first page of it is written, or when its channel ends. This
//! module must never leave a byte that the sender has not confirmed.

use std::io;

use pagoda_core::migrate::geometry::{Extent, Geometry, STRIPE_BYTES, STRIPE_PAGES};
use pagoda_core::migrate::kept::Kept;
use pagoda_core::migrate::pages::PageSet;
use pagoda_core::page::OS_PAGE;
use pagoda_core::size::Bytes;
use pagoda_linux::mem::words::zeroed_words;

use crate::error::Error;
use crate::net::connection::{Connection, lost};
use crate::receive::destination::Destination;
use crate::wire::stripe_digest::stripe_digest;

/// The stripes that are open: neither confirmed nor given back.
pub(crate) struct Offers {
    geometry: Geometry,
    /// The first page of each. None if the destination is fresh: then there is nothing to look up.
    stripes: Option<PageSet>,
}

impl Offers {
    /// Those of a destination that is prepared. With a sender that `resumes` not, all are given
    /// back at once.
    ///
    /// # Errors
    /// If the destination can't tell them, or give them back.
    pub(crate) fn of(destination: &dyn Destination, geometry: Geometry, resumes: bool) -> io::Result<Self> {
        let kept = destination.kept()?;
        if kept.is_empty() {
            return Ok(Self::none(geometry));
        }
        let words = Bytes::new(PageSet::words_for(geometry.pages())).as_usize();
        let (stripes, stripe) = (PageSet::new(zeroed_words(words)), u64::from(STRIPE_PAGES));
        for first in kept.into_iter().filter(|first| *first < geometry.pages()) {
            let first = first / stripe * stripe;
            stripes.add(first..first + 1);
        }
        let offers = Self { geometry, stripes: Some(stripes) };
        if !resumes {
            (0..geometry.channels()).try_for_each(|channel| offers.end(channel, destination))?;
        }
        Ok(offers)
    }

    /// None at all.
    pub(crate) const fn none(geometry: Geometry) -> Self {
        Self { geometry, stripes: None }
    }

    fn bytes_of(&self, first: u64) -> std::ops::Range<u64> {
        let from = first * OS_PAGE as u64;
        from..self.geometry.image().get().min(from + STRIPE_BYTES as u64)
    }

    /// Tells the sender of those of `channel`. Blocks for as long as reading them takes; the sender
    /// hears of each as it is read.
    ///
    /// # Errors
    /// If one can't be read, or the sender is gone.
    pub(crate) fn tell(
        &self,
        channel: u16,
        destination: &dyn Destination,
        connection: &mut Connection,
    ) -> Result<(), Error> {
        let stall = connection.stall();
        let mut room = Vec::new();
        for first in self.open_of(channel) {
            let bytes = self.bytes_of(first);
            room.resize((bytes.end - bytes.start) as usize, 0);
            destination.read_at(bytes.start, &mut room).map_err(Error::Destination)?;
            let kept = Kept::Stripe { first, digest: stripe_digest(&room) };
            connection.send(&kept.encode()).map_err(|error| lost(channel, stall, error))?;
        }
        connection.send(&Kept::End.encode()).map_err(|error| lost(channel, stall, error))
    }

    fn open_of(&self, channel: u16) -> impl Iterator<Item = u64> + use<'_> {
        let stripes = self.stripes.as_ref();
        let all = self.geometry.stripes_of(channel);
        all.filter(move |first| stripes.is_some_and(|stripes| stripes.has(*first)))
    }

    /// Takes a stripe as confirmed. False if it was not offered, or this is not all of it.
    pub(crate) fn accept(&self, extent: Extent, geometry: Geometry) -> bool {
        let all = u64::from(STRIPE_PAGES).min(geometry.pages().saturating_sub(extent.first()));
        let is_whole =
            extent.first().is_multiple_of(u64::from(STRIPE_PAGES)) && u64::from(extent.count()) == all;
        is_whole && self.take(extent.first())
    }

    /// Pages of this extent come: gives their stripe back first, if it is open.
    ///
    /// # Errors
    /// If it can't be given back.
    pub(crate) fn refuse(&self, extent: Extent, destination: &dyn Destination) -> io::Result<()> {
        let first = extent.first() / u64::from(STRIPE_PAGES) * u64::from(STRIPE_PAGES);
        if self.take(first) { destination.discard(self.bytes_of(first)) } else { Ok(()) }
    }

    /// Gives back the stripes that are still open of a channel that has ended.
    ///
    /// # Errors
    /// If it can't be given back.
    pub(crate) fn end(&self, channel: u16, destination: &dyn Destination) -> io::Result<()> {
        for first in self.open_of(channel) {
            destination.discard(self.bytes_of(first))?;
            let _ = self.take(first);
        }
        Ok(())
    }

    /// Only a stripe's own channel takes it.
    fn take(&self, first: u64) -> bool {
        self.stripes.as_ref().is_some_and(|stripes| stripes.take(first..first + 1).count() > 0)
    }
}
