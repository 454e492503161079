//! The pages of an image, and the channel of each. Both sides compute it from the same three
//! numbers.
//!
//! This module must never let an extent reach beyond the image, or let a channel write another
//! channel's pages.

use crate::page::{HUGE_FRAME, OS_PAGE};
use crate::size::Bytes;

/// The unit that belongs to one channel: a huge frame, so that no two channels fault the same one.
pub const STRIPE_BYTES: usize = HUGE_FRAME;

/// Pages of a stripe, and so of the longest extent.
pub const STRIPE_PAGES: u32 = (STRIPE_BYTES / OS_PAGE) as u32;

/// The most channels of a migration. Each has a thread and two buffers of a stripe on either side:
/// 256 MiB in all.
pub const CHANNELS_MAX: u16 = 64;

/// Pages that are requested and sent together when a thread waits for one of them: 64 KiB, the
/// largest base page of one entry.
pub const GROUP_PAGES: u32 = 16;

/// The largest image: 2^52 bytes, the physical addresses of today's processors.
pub const IMAGE_MOST: Bytes = Bytes::gib(1 << 22);

/// Some pages in a row, never none, within one stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    first: u64,
    count: u32,
}

impl Extent {
    /// `count` pages from page `first`. None if that is no page, crosses the end of a stripe, or
    /// lies beyond [`IMAGE_MOST`].
    #[must_use]
    pub const fn new(first: u64, count: u32) -> Option<Self> {
        let into_stripe = first % STRIPE_PAGES as u64;
        let fits = count > 0 && into_stripe + count as u64 <= STRIPE_PAGES as u64;
        if fits && first < IMAGE_MOST.get() / OS_PAGE as u64 { Some(Self { first, count }) } else { None }
    }
    /// Its first page.
    #[must_use]
    pub const fn first(self) -> u64 {
        self.first
    }
    /// How many pages it has, from 1 to [`STRIPE_PAGES`].
    #[must_use]
    pub const fn count(self) -> u32 {
        self.count
    }
    /// One past its last page.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.first + self.count as u64
    }
    /// Where it begins in the image.
    #[must_use]
    pub const fn offset(self) -> Bytes {
        Bytes::new(self.first * OS_PAGE as u64)
    }
    /// Its length in whole pages. An image's last page may have less: see
    /// [`Geometry::part_of_image`].
    #[must_use]
    pub const fn len(self) -> Bytes {
        Bytes::new(self.count as u64 * OS_PAGE as u64)
    }
    /// Never.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.count == 0
    }
}

/// An image's size and its channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    image: Bytes,
    channels: u16,
}

impl Geometry {
    /// An image of `image` bytes over `channels` channels. None if it is larger than
    /// [`IMAGE_MOST`], or the channels are not from 1 to [`CHANNELS_MAX`].
    #[must_use]
    pub const fn new(image: Bytes, channels: u16) -> Option<Self> {
        if image.get() <= IMAGE_MOST.get() && channels > 0 && channels <= CHANNELS_MAX {
            Some(Self { image, channels })
        } else {
            None
        }
    }
    /// The size of the image.
    #[must_use]
    pub const fn image(self) -> Bytes {
        self.image
    }
    /// How many channels there are.
    #[must_use]
    pub const fn channels(self) -> u16 {
        self.channels
    }
    /// How many channels for page requests there are beside these, in a migration that switches
    /// before all has arrived. As many as carry stripes, and at least two, so that one waiting
    /// request does not hold up all others.
    #[must_use]
    pub const fn askers(self) -> u16 {
        if self.channels > 2 { self.channels } else { 2 }
    }
    /// The image in pages. The last one may be there in part only; the rest of it is zero.
    #[must_use]
    pub const fn pages(self) -> u64 {
        self.image.get().div_ceil(OS_PAGE as u64)
    }
    /// The stripes of `channel`, as numbers of their first pages, lowest first.
    pub fn stripes_of(self, channel: u16) -> impl Iterator<Item = u64> + use<> {
        let stripes = self.pages().div_ceil(u64::from(STRIPE_PAGES));
        (u64::from(channel)..stripes)
            .step_by(usize::from(self.channels))
            .map(|stripe| stripe * u64::from(STRIPE_PAGES))
    }
    /// Whether `extent` is a part of the image.
    #[must_use]
    pub const fn has(self, extent: Extent) -> bool {
        extent.end() <= self.pages()
    }
    /// Whether `extent` is a part of the image that `channel` may write.
    #[must_use]
    pub const fn owns(self, channel: u16, extent: Extent) -> bool {
        let stripe = extent.first / STRIPE_PAGES as u64;
        self.has(extent) && stripe % self.channels as u64 == channel as u64
    }
    /// How much of `extent` is in the image: all of it, but for the last page of an image that ends
    /// within a page.
    #[must_use]
    pub const fn part_of_image(self, extent: Extent) -> Bytes {
        let rest = self.image.saturating_sub(extent.offset());
        if rest.get() < extent.len().get() { rest } else { extent.len() }
    }
}

/// The stripes of one channel that a list of messages may still name, lowest first.
#[derive(Debug)]
pub struct StripeList {
    geometry: Geometry,
    channel: u16,
    /// No stripe below this page may be named any more.
    next: u64,
}

impl StripeList {
    /// The list of `channel`, before its first message.
    #[must_use]
    pub const fn new(geometry: Geometry, channel: u16) -> Self {
        Self { geometry, channel, next: 0 }
    }

    /// Whether the stripe whose first page is `first` may come next: each once, and of this
    /// channel.
    pub fn accept(&mut self, first: u64) -> bool {
        let stripe = u64::from(STRIPE_PAGES);
        let is_right = first >= self.next
            && first.is_multiple_of(stripe)
            && first < self.geometry.pages()
            && first / stripe % u64::from(self.geometry.channels) == u64::from(self.channel);
        self.next = first.saturating_add(stripe);
        is_right
    }
}

#[cfg(test)]
#[path = "geometry_test.rs"]
mod tests;
