//! A source of live memory: it knows the written pages, and reads each one from memory or a store.

use std::io;
use std::ops::Range;
use std::time::Duration;

use pagoda_core::migrate::digest::{BLOCK_BYTES, BLOCKS, DigestKey, KnownBlocks};
use pagoda_core::migrate::geometry::STRIPE_BYTES;
use pagoda_core::migrate::pages::{PageSet, StripePages};
use pagoda_core::page::{HUGE_FRAME, OS_PAGE};
use pagoda_core::size::Bytes;
use pagoda_linux::mem::huge_frames::HugeFrames;
use pagoda_linux::mem::zero_scan::repeated_word;

/// Memory that is written while it is sent. It promises to the receiver: after the last
/// [`collect`](Self::collect) a reader hands out each page whose content changed since a reader
/// handed it out before. A page that was never handed out is zero.
///
/// Pages that a reader hands out together lie within
/// [`GROUP_PAGES`](pagoda_core::migrate::geometry::GROUP_PAGES), at a multiple of that: after a
/// switch nothing outside of it is sent with it.
pub trait LiveSource: Sync {
    /// Its size. It stays the same.
    fn size(&self) -> Bytes;

    /// Adds the pages whose content may have changed since they were handed out to `data`, or to
    /// `zero` those that are known to be zero now. Returns how many of them may have been written;
    /// the others only moved to where a write can't be told any more. Never called while a reader
    /// is at work.
    ///
    /// # Errors
    /// If it can't be known.
    fn collect(&self, data: &PageSet, zero: &PageSet) -> io::Result<u64>;

    /// Pages that were handed out may not have arrived: from now on readers hand out each one once
    /// more. Only with the writer stopped, and never while a reader is at work.
    ///
    /// # Errors
    /// If it can't be arranged.
    fn hand_out_again(&self) -> io::Result<()>;

    /// Slows down the threads that write to it: after each round from the first that is to slow
    /// them down on. `due` are the pages to send, which readers take from it in the next round.
    /// Never called while a reader is at work. A source that can't does nothing.
    fn slow_down(&self, _due: &PageSet, _how: SlowDown) {}

    /// Lets all threads run as fast as they can, those that wait at once. It may be called at any
    /// time, also if none was slowed down.
    fn full_speed(&self) {}

    /// The faults that have waited so far.
    fn delayed(&self) -> Delayed {
        Delayed::default()
    }

    /// One channel's reader. `packs`: pages may be handed out as a store has packed them.
    ///
    /// # Errors
    /// If there is no memory for it.
    fn reader<'a>(&'a self, packs: bool) -> io::Result<Box<dyn LiveReader + 'a>>;
}

/// How much threads are to be slowed down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowDown {
    /// Of the time of each thread, at most.
    pub percent: u8,
    /// How long the last round took.
    pub took: Duration,
}

/// Faults that waited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delayed {
    /// How many.
    pub faults: u64,
    /// How long in all.
    pub time: Duration,
}

/// Takes a base page as a store has packed it ([`pagoda_linux::codec::pack`]), with its pages'
/// numbers in the stripe. False if it could not be sent: then nothing more is to be read.
pub type TakePacked<'a> = dyn FnMut(Range<u32>, &[u8]) -> bool + 'a;

/// Reads stripes for one channel.
pub trait LiveReader: Send {
    /// Reads the pages of the stripe whose first page is `first` that `room` asks for into it, as
    /// they are now; or gives them to `packed`. It may read others of their groups with them, or
    /// find out that some are zero.
    ///
    /// # Errors
    /// If they can't be read. The requested pages then count as never handed out.
    fn read(&mut self, first: u64, room: &mut Room, packed: &mut TakePacked<'_>) -> io::Result<()>;
}

/// Pages of a block.
const BLOCK_PAGES: u32 = (BLOCK_BYTES / OS_PAGE) as u32;

/// The block of a page of a stripe.
const fn block_of(page: u32) -> usize {
    (page / BLOCK_PAGES) as usize
}

/// A stripe's pages: which are wanted, and then which are there.
#[derive(Debug)]
pub struct Room {
    content: StripePages,
    zero: StripePages,
    bytes: Memory,
    /// Whether blocks are digested as they are read, and the digests so far.
    key: Option<DigestKey>,
    known: KnownBlocks,
}

#[derive(Debug)]
enum Memory {
    Small(Vec<u8>),
    Huge(HugeFrames),
}

impl Default for Room {
    fn default() -> Self {
        Self::in_memory(Memory::Small(vec![0; STRIPE_BYTES]), None)
    }
}

impl Room {
    fn in_memory(bytes: Memory, key: Option<DigestKey>) -> Self {
        let (content, zero) = (StripePages::default(), StripePages::default());
        Self { content, zero, bytes, key, known: [None; BLOCKS] }
    }

    /// In a huge page, where the kernel has one: one fault in place of 512. Blocks that are read as
    /// a whole are digested with `key`.
    ///
    /// # Errors
    /// Those of mmap(2).
    pub fn in_huge_page(key: DigestKey) -> io::Result<Self> {
        const _: () = assert!(STRIPE_BYTES == HUGE_FRAME);
        Ok(Self::in_memory(Memory::Huge(HugeFrames::untouched(1, true)?), Some(key)))
    }

    /// Begins a stripe: `content` is wanted, and `zero` is known to be zero.
    pub fn begin(&mut self, content: StripePages, zero: StripePages) {
        (self.content, self.zero, self.known) = (content, zero, [None; BLOCKS]);
    }
    /// The pages whose content is wanted, and in the end those whose content is there.
    #[must_use]
    pub const fn content(&self) -> StripePages {
        self.content
    }
    /// The pages that are zero.
    #[must_use]
    pub const fn zero(&self) -> StripePages {
        self.zero
    }
    /// The bytes of the stripe; only those of pages with content mean anything.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Memory::Small(bytes) => bytes,
            Memory::Huge(frame) => frame,
        }
    }
    /// The bytes of `pages`, whose content this is from now on. Panics if they reach beyond the
    /// stripe.
    pub fn put(&mut self, pages: Range<u32>) -> &mut [u8] {
        self.known[block_of(pages.start)..=block_of(pages.end - 1)].fill(None);
        self.content.add(pages.clone());
        self.remove_zero(pages.clone());
        let bytes = match &mut self.bytes {
            Memory::Small(bytes) => &mut bytes[..],
            Memory::Huge(frame) => frame.bytes(),
        };
        &mut bytes[pages.start as usize * OS_PAGE..pages.end as usize * OS_PAGE]
    }
    /// The same, of pages that `read` reads, block by block: each one is digested while a processor
    /// has it in its cache.
    pub fn read(&mut self, pages: Range<u32>, mut read: impl FnMut(Range<u32>, &mut [u8])) {
        let mut at = pages.start;
        while at < pages.end {
            let part = at..pages.end.min((block_of(at) as u32 + 1) * BLOCK_PAGES);
            (at, _) = (part.end, read(part.clone(), self.put(part.clone())));
            let Some(key) = self.key.filter(|_| part.len() == BLOCK_PAGES as usize) else { continue };
            let bytes = &self.bytes()[part.start as usize * OS_PAGE..part.end as usize * OS_PAGE];
            // A page of zeroes or of one word is sent otherwise, and cuts its block.
            let is_content = bytes.chunks(OS_PAGE).all(|page| repeated_word(page).is_none());
            self.known[block_of(part.start)] = is_content.then(|| key.block(bytes));
        }
    }
    /// The known digests of its blocks.
    #[must_use]
    pub const fn known(&self) -> &KnownBlocks {
        &self.known
    }
    /// `pages` are elsewhere, and not wanted any more.
    pub fn leave_out(&mut self, pages: Range<u32>) {
        self.remove_zero(pages.clone());
        pages.for_each(|page| self.content.remove(page));
    }
    fn remove_zero(&mut self, pages: Range<u32>) {
        pages.for_each(|page| self.zero.remove(page));
    }
}
