//! The progress of a migration: counters that all channels add to, and any thread may read at any
//! time.

use std::sync::atomic::{AtomicU64, Ordering};

use pagoda_core::size::Bytes;

/// The counters at one moment, or at the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// How much of the image is done: at the sender with its holes, at the receiver without,
    /// because it never hears of them, and as often as it came.
    pub image_bytes: u64,
    /// Bytes on the wire from the sender to the receiver, without handshakes and TLS.
    pub wire_bytes: u64,
    /// Pages with content that were sent as such.
    pub data_pages: u64,
    /// Pages with content that were sent as a store had packed them.
    pub packed_pages: u64,
    /// Of these, at the receiver: those that were not kept as packed, because they had no room in
    /// its store, or it has none.
    pub unpacked_pages: u64,
    /// Pages that hold one word again and again.
    pub filled_pages: u64,
    /// Pages that were read and found zero. Holes are not among them.
    pub zero_pages: u64,
    /// Of the zero pages, at the receiver: those that were left alone, because nothing had arrived
    /// for them before.
    pub zero_left_pages: u64,
    /// Those that were read to see whether they are zero.
    pub zero_checked_pages: u64,
    /// Those over which zeroes were written.
    pub zero_cleared_pages: u64,
    /// Those whose frames were given back.
    pub zero_discarded_pages: u64,
    /// Pages that the receiver had of an earlier transfer, and that were the same.
    pub kept_pages: u64,
    /// Pages that followed after the switch.
    pub owed_pages: u64,
    /// Requests for pages that a thread waited for, each for the group of a page.
    pub asked: u64,
    /// How often all channels were connected once more after the switch.
    pub recoveries: u64,
    /// How long there were no channels then, in microseconds: threads that touched an owed page
    /// waited for that.
    pub waited_us: u64,
}

#[derive(Clone, Copy)]
pub(crate) enum Count {
    ImageBytes,
    WireBytes,
    Data,
    Packed,
    Unpacked,
    Filled,
    Zero,
    ZeroLeft,
    ZeroChecked,
    ZeroCleared,
    ZeroDiscarded,
    Kept,
    Owed,
    Asked,
    Recoveries,
    WaitedUs,
}

const COUNTS: usize = Count::WaitedUs as usize + 1;

/// The counters of a running migration.
#[derive(Debug)]
pub struct Progress {
    image: Bytes,
    /// The end of the highest page that a receiver has heard of.
    reached: AtomicU64,
    counts: [AtomicU64; COUNTS],
}

impl Progress {
    pub(crate) fn new(image: Bytes) -> Self {
        Self { image, reached: AtomicU64::new(0), counts: Default::default() }
    }

    pub(crate) fn add(&self, count: Count, much: u64) {
        self.counts[count as usize].fetch_add(much, Ordering::Relaxed);
    }

    /// The size of the image.
    #[must_use]
    pub const fn image(&self) -> Bytes {
        self.image
    }

    pub(crate) fn reach(&self, end: Bytes) {
        self.reached.fetch_max(end.get(), Ordering::Relaxed);
    }

    /// At a receiver: how far the image was gone through, with its holes. Of an image that is sent
    /// in one pass, lowest page first, the rest is still to come.
    #[must_use]
    pub fn reached(&self) -> Bytes {
        Bytes::new(self.reached.load(Ordering::Relaxed)).min(self.image)
    }

    /// The counters now.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let of = |count: Count| self.counts[count as usize].load(Ordering::Relaxed);
        Counts {
            image_bytes: of(Count::ImageBytes),
            wire_bytes: of(Count::WireBytes),
            data_pages: of(Count::Data),
            packed_pages: of(Count::Packed),
            unpacked_pages: of(Count::Unpacked),
            filled_pages: of(Count::Filled),
            zero_pages: of(Count::Zero),
            zero_left_pages: of(Count::ZeroLeft),
            zero_checked_pages: of(Count::ZeroChecked),
            zero_cleared_pages: of(Count::ZeroCleared),
            zero_discarded_pages: of(Count::ZeroDiscarded),
            kept_pages: of(Count::Kept),
            owed_pages: of(Count::Owed),
            asked: of(Count::Asked),
            recoveries: of(Count::Recoveries),
            waited_us: of(Count::WaitedUs),
        }
    }
}
