//! Pages that arrive before the image is shown.
//!
//! Each page is marked in the received map once, for any kind of frame. This module must
//! never write to a page that is owed: its right content has not arrived.

use std::io;
use std::ops::Range;
use std::sync::OnceLock;

use pagoda_core::migrate::channel::Violation;
use pagoda_core::migrate::geometry::{Extent, Geometry};
use pagoda_core::migrate::pages::PageSet;
use pagoda_core::migrate::received::ReceivedMap;
use pagoda_core::migrate::zero::{ZeroAction, ZeroPolicy};
use pagoda_core::page::OS_PAGE;
use pagoda_core::size::Bytes;
use pagoda_linux::mem::zero_scan::is_zero;

use crate::error::Error;
use crate::progress::{Count, Progress};
use crate::receive::destination::{Destination, LateDestination};
use crate::receive::offers::Offers;
use crate::wire::content::{Content, read_checked};

const PAGE: u64 = OS_PAGE as u64;

/// How pages are applied, on any channel.
pub(crate) trait Apply: Sync {
    /// They hold this.
    fn content(&self, channel: u16, extent: Extent, content: &[u8]) -> Result<(), Error>;
    /// They hold the content that `content` reads, for which there is `room`.
    fn receive(
        &self,
        channel: u16,
        extent: Extent,
        content: &mut dyn Content,
        room: &mut [u8],
    ) -> Result<(), Error> {
        read_checked(content, room).map_err(Error::Destination)?;
        self.content(channel, extent, room)
    }
    /// The same, as a store had packed it. True if it is kept so.
    fn packed(&self, channel: u16, extent: Extent, packed: &[u8], content: &[u8]) -> Result<bool, Error>;
    /// They are zero. There is `room` for a stripe.
    fn zero(&self, channel: u16, extent: Extent, room: &mut [u8]) -> Result<(), Error>;
    /// They are a stripe that was offered, and stay as they are.
    fn kept(&self, channel: u16, extent: Extent) -> Result<(), Error>;
    /// Their content comes later.
    fn owed(&self, channel: u16, extent: Extent) -> Result<(), Error>;
    /// All channels share the frames that follow.
    fn last(&self, channel: u16) -> Result<(), Error>;
}

/// Applies pages while the image is not shown yet.
pub(crate) struct Unshown<'a> {
    pub(crate) destination: &'a dyn Destination,
    /// The pages that are owed, where it is agreed that some may be.
    pub(crate) late: Option<(&'a dyn LateDestination, &'a PageSet)>,
    pub(crate) geometry: Geometry,
    pub(crate) zero: ZeroPolicy,
    pub(crate) received: ReceivedMap,
    /// Content of an earlier transfer that the sender has not confirmed.
    pub(crate) offers: Offers,
    pub(crate) progress: &'a Progress,
    pub(crate) ends: OnceLock<Ends>,
}

/// The two ways to end: a sender announces one of them. With both, a page's content and the word
/// that it is owed could come at once, on two channels. A thread that puts the page in its place
/// would then wait for content that no channel brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ends {
    /// With pages that are owed.
    Owing,
    /// With a round that all channels share.
    Sharing,
}

/// A channel's breach of the protocol.
pub(crate) const fn violation(channel: u16, violation: Violation) -> Error {
    Error::Violation { channel, violation }
}

/// The pages of an extent.
pub(crate) const fn pages(extent: Extent) -> Range<u64> {
    extent.first()..extent.end()
}

impl Unshown<'_> {
    /// A channel has ended: nothing of an earlier transfer stays in its stripes but what the sender
    /// has confirmed.
    pub(crate) fn end(&self, channel: u16) -> Result<(), Error> {
        self.offers.end(channel, self.destination).map_err(Error::Destination)
    }

    /// Marks pages as received, and returns how much of them belongs to the image.
    fn mark(&self, channel: u16, extent: Extent) -> Result<Bytes, Error> {
        self.check_not_owed(channel, extent)?;
        self.offers.refuse(extent, self.destination).map_err(Error::Destination)?;
        self.received.mark(extent, |pages, again| {
            if !again {
                self.count_image(&self.bytes(&pages));
            }
            Ok::<_, Error>(())
        })?;
        Ok(self.geometry.part_of_image(extent))
    }

    fn check_not_owed(&self, channel: u16, extent: Extent) -> Result<(), Error> {
        match self.late {
            Some((_, owed)) if owed.has_any(pages(extent)) => {
                Err(violation(channel, Violation::NotOwed(extent)))
            }
            _ => Ok(()),
        }
    }

    /// The part of the image that pages are.
    fn bytes(&self, pages: &Range<u64>) -> Range<u64> {
        pages.start * PAGE..self.geometry.image().get().min(pages.end * PAGE)
    }

    fn count_image(&self, bytes: &Range<u64>) {
        self.progress.add(Count::ImageBytes, bytes.end - bytes.start);
    }

    /// Reads pages, and clears those that are not zero.
    fn check(&self, bytes: Range<u64>, room: &mut [u8]) -> io::Result<()> {
        let content = &mut room[..(bytes.end - bytes.start) as usize];
        self.destination.read_at(bytes.start, content)?;
        let mut at = bytes.start;
        for page in content.chunks(OS_PAGE) {
            let end = at + page.len() as u64;
            self.progress.add(Count::ZeroChecked, 1);
            if !is_zero(page) {
                self.progress.add(Count::ZeroCleared, 1);
                self.destination.clear(at..end)?;
            }
            at = end;
        }
        Ok(())
    }
}

impl Apply for Unshown<'_> {
    fn content(&self, channel: u16, extent: Extent, content: &[u8]) -> Result<(), Error> {
        let part = self.mark(channel, extent)?;
        self.destination
            .write_at(extent.offset().get(), &content[..part.as_usize()])
            .map_err(Error::Destination)
    }

    fn receive(
        &self,
        channel: u16,
        extent: Extent,
        content: &mut dyn Content,
        room: &mut [u8],
    ) -> Result<(), Error> {
        self.check_not_owed(channel, extent)?;
        self.offers.refuse(extent, self.destination).map_err(Error::Destination)?;
        let offset = extent.offset().get();
        let received = if self.geometry.part_of_image(extent) == extent.len() {
            self.destination.receive_at(offset, content, room)
        } else {
            let part = self.geometry.part_of_image(extent).as_usize();
            read_checked(content, room).and_then(|()| self.destination.write_at(offset, &room[..part]))
        };
        received.map_err(Error::Destination)?;
        self.mark(channel, extent).map(drop)
    }

    fn packed(&self, channel: u16, extent: Extent, packed: &[u8], content: &[u8]) -> Result<bool, Error> {
        let part = self.mark(channel, extent)?;
        let offset = extent.offset().get();
        if part == extent.len() {
            self.destination.write_packed(offset, packed, content)
        } else {
            self.destination.write_at(offset, &content[..part.as_usize()]).map(|()| false)
        }
        .map_err(Error::Destination)
    }

    fn zero(&self, channel: u16, extent: Extent, room: &mut [u8]) -> Result<(), Error> {
        self.check_not_owed(channel, extent)?;
        self.offers.refuse(extent, self.destination).map_err(Error::Destination)?;
        self.received
            .mark(extent, |pages, again| {
                let bytes = self.bytes(&pages);
                let count = pages.end - pages.start;
                if !again {
                    self.count_image(&bytes);
                }
                match self.zero.action(again) {
                    ZeroAction::Leave => self.progress.add(Count::ZeroLeft, count),
                    ZeroAction::Check => self.check(bytes, room)?,
                    ZeroAction::Clear => {
                        self.progress.add(Count::ZeroCleared, count);
                        self.destination.clear(bytes)?;
                    }
                    ZeroAction::Discard => {
                        self.progress.add(Count::ZeroDiscarded, count);
                        self.destination.discard(bytes)?;
                    }
                }
                Ok(())
            })
            .map_err(Error::Destination)
    }

    fn kept(&self, channel: u16, extent: Extent) -> Result<(), Error> {
        if !self.offers.accept(extent, self.geometry) {
            return Err(violation(channel, Violation::NotOffered(extent)));
        }
        self.mark(channel, extent).map(drop)
    }

    fn owed(&self, channel: u16, extent: Extent) -> Result<(), Error> {
        let owes = violation(channel, Violation::Owes);
        let Some((late, owed)) = self.late else { return Err(owes) };
        if *self.ends.get_or_init(|| Ends::Owing) != Ends::Owing || owed.has_any(pages(extent)) {
            return Err(owes);
        }
        let bytes = pages(extent).start * PAGE..pages(extent).end * PAGE;
        late.owe(bytes).map_err(Error::Destination)?;
        owed.add(pages(extent));
        Ok(())
    }

    fn last(&self, channel: u16) -> Result<(), Error> {
        match self.ends.get_or_init(|| Ends::Sharing) {
            Ends::Sharing => Ok(()),
            Ends::Owing => Err(violation(channel, Violation::EarlyLast)),
        }
    }
}
