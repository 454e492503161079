//! One guest: its memory, which of it is filled, and how a part of it is filled.
//!
//! # The gate
//! A fill reads the content first, without a lock. It then takes the gate, looks at the record
//! whether the guest has discarded a page meanwhile, and fills by one call of the kernel. Events
//! are read with the gate held, and the record is changed before it is released. So no fill lies
//! between the read of a discard and its bits: a page that was discarded gets zeroes, never the
//! image's content. While a discard is *unread* the kernel refuses every fill (`EAGAIN`); the fill
//! is tried again once the event was read.
//!
//! The gate is held for one call of the kernel, of a window at most. A prefetch gives way to a
//! fault that waits for it. This module must never read a source with the gate held.

pub(crate) mod prefetch;
pub(crate) mod serve;

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pagoda_core::page::{HUGE_FRAME, OS_PAGE};
use pagoda_linux::io::local_socket::{Awaited, wait_any};
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::mem::zero_scan::is_zero;
use pagoda_linux::process::thread::now_ns;
use pagoda_linux::uffd::Stop;
use pagoda_linux::uffd::foreign::{ForeignMessage, ForeignUffd, MESSAGE_WORDS, decode};

use crate::firecracker::{Region, Regions};
use crate::record::{Count, Record};

/// The largest part that is filled at once: a huge page of the guest's.
pub(crate) const WINDOW_BYTES_MOST: usize = HUGE_FRAME;

/// Zeroes for huge pages, which have no shared zero page.
static ZEROES: [u8; HUGE_FRAME] = [0; HUGE_FRAME];

/// A guest that a handler serves.
pub(crate) struct Guest<'a> {
    pub(crate) uffd: ForeignUffd,
    /// Its connection.
    line: &'a OwnedFd,
    pub(crate) regions: Regions,
    pub(crate) record: Record,
    gate: Mutex<()>,
    /// Fault threads that wait for the gate.
    waiting: AtomicU32,
    /// Set when its threads are to end.
    pub(crate) ending: AtomicBool,
    /// Set when its connection has ended or a part of its memory is gone: see [`Self::is_left`].
    is_closed: AtomicBool,
}

/// A part of a region, of whole pages of the guest's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) range: PageRange,
    /// Of its first byte, in the image.
    pub(crate) offset: u64,
    page_bytes: usize,
}

impl Window {
    /// The part of `region` that has `address`, is `len_bytes` long at most, and begins at a
    /// multiple of that in the region.
    pub(crate) fn around(region: &Region, address: usize, len_bytes: usize) -> Self {
        let len_bytes = len_bytes.max(region.page_bytes);
        let start = (address - region.range.start()) / len_bytes * len_bytes;
        let len = len_bytes.min(region.range.len() - start);
        Self {
            range: PageRange::at(region.range.start() + start, len),
            offset: region.offset + start as u64,
            page_bytes: region.page_bytes,
        }
    }

    /// The page of the guest's at `address`, alone.
    pub(crate) fn page(region: &Region, address: usize) -> Self {
        Self::around(region, address, region.page_bytes)
    }

    /// Its part from `from` up to `to` in the image, by whole pages of the guest's.
    pub(crate) fn cut(self, from: u64, to: u64) -> Self {
        let page = self.page_bytes as u64;
        let first = from.saturating_sub(self.offset) / page * page;
        let end = to.saturating_sub(self.offset).next_multiple_of(page).min(self.range.len() as u64);
        let range = PageRange::at(self.range.start() + first as usize, (end - first) as usize);
        Self { range, offset: self.offset + first, ..self }
    }

    /// The OS page of the image that is `at` bytes behind the window's start.
    fn image_page(&self, at: usize) -> usize {
        ((self.offset + at as u64) / OS_PAGE as u64) as usize
    }

    fn image_pages(&self, part: Range<usize>) -> Range<usize> {
        self.image_page(part.start)..self.image_page(part.end)
    }
}

/// How a fill ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filled {
    /// All of it is there.
    Done,
    /// The kernel puts it off: events are to be read first.
    Again,
    /// The memory is gone.
    Gone,
    /// The kernel refuses to fill it.
    Refused,
}

/// The reason for a fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum For {
    /// A thread waits at this address.
    Fault(usize),
    /// None does.
    Prefetch,
}

/// What one page gets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Skip,
    Zero,
    Content,
}

impl<'a> Guest<'a> {
    pub(crate) fn new(uffd: ForeignUffd, line: &'a OwnedFd, regions: Regions, record: Record) -> Self {
        let (waiting, gate) = (AtomicU32::new(0), Mutex::new(()));
        let (ending, is_closed) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { uffd, line, regions, record, gate, waiting, ending, is_closed }
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    /// Whether nothing may be filled but what a fault asks for.
    pub(crate) fn takes_no_more(&self) -> bool {
        self.is_ending() || self.is_closed.load(Ordering::Relaxed)
    }

    /// Whether it has hung up, or unmapped memory. Its process may go on and map another guest's
    /// memory at the same address. The kernel lets any userfaultfd of the process fill it there, so
    /// a fill that no thread has asked for would hit that guest. Asked right before each of these:
    /// a sign that was seen a moment ago is too old.
    fn is_left(&self) -> bool {
        if !self.is_closed.load(Ordering::Relaxed) {
            let [line] = wait_any([(self.line.as_fd(), Awaited::End)], 0);
            if line.now || line.failed {
                self.is_closed.store(true, Ordering::Relaxed);
            }
        }
        self.is_closed.load(Ordering::Relaxed)
    }

    /// Whether a fault waits for the gate: a prefetch rests then.
    pub(crate) fn is_contended(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) != 0
    }

    fn enter(&self, reason: For) -> MutexGuard<'_, ()> {
        if reason != For::Prefetch {
            self.waiting.fetch_add(1, Ordering::Relaxed);
        }
        // It guards no data of its own: the record is consistent after each of its calls.
        let gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        if reason != For::Prefetch {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        gate
    }

    /// Reads what the kernel has to tell, applies the discards, and gives each fault's address to
    /// `fault`. Returns how many messages there were.
    pub(crate) fn read(&self, mut fault: impl FnMut(usize)) -> Result<usize, Unserved> {
        let _gate = self.enter(For::Fault(0));
        let count = self.uffd.read(self.record.room()).map_err(|_| Unserved::NoHandshake)?;
        self.apply(&mut fault)?;
        Ok(count)
    }

    /// Applies the messages that a handler before this one had read, and has every thread that
    /// waits fault again: the handler that served it before is gone.
    pub(crate) fn take_over(&self) -> Result<(), Unserved> {
        let _gate = self.enter(For::Fault(0));
        self.apply(&mut |_| {})?;
        self.regions.iter().for_each(|region| self.uffd.wake(region.range));
        Ok(())
    }

    fn apply(&self, fault: &mut impl FnMut(usize)) -> Result<(), Unserved> {
        for message in self.record.room().chunks_exact(MESSAGE_WORDS) {
            match decode(message) {
                None => continue,
                Some(ForeignMessage::Fault(at)) => fault(at.page()),
                Some(ForeignMessage::Remove(range) | ForeignMessage::Unmap(range)) => self.remove(range),
                Some(ForeignMessage::Unexpected) => return Err(Unserved::Unexpected),
            }
            // Only now: a handler that is killed before leaves the message to the next one.
            message[0].store(0, Ordering::SeqCst);
        }
        Ok(())
    }

    fn remove(&self, range: PageRange) {
        for region in self.regions.iter() {
            let Some(part) = region.range.intersection(range) else { continue };
            let first = (region.offset / OS_PAGE as u64) as usize;
            let page = |address: usize| first + (address - region.range.start()) / OS_PAGE;
            let pages = page(part.start())..page(part.end());
            self.record.add(Count::RemovedPages, pages.len() as u64);
            self.record.remove(pages);
        }
    }

    /// Whether the guest has discarded the page at `address`, which then reads zero for good.
    pub(crate) fn is_removed(&self, region: &Region, address: usize) -> bool {
        self.record.is_removed(Window::page(region, address).image_page(0))
    }

    /// Fills the missing pages of `window` with `content`, or with zeroes if there is none: but for
    /// a prefetch, which leaves zeroes out. Pages that were discarded get zeroes in any case.
    pub(crate) fn fill(&self, window: &Window, content: Option<&[u8]>, reason: For) -> Filled {
        let _gate = self.enter(reason);
        let len = window.range.len();
        let mut at = 0;
        while at < len {
            let part = self.part_of(window, at, content, reason);
            let mut end = at + window.page_bytes;
            // A huge page is zeroed alone.
            while end < len
                && (part != Part::Zero || window.page_bytes == OS_PAGE)
                && self.part_of(window, end, content, reason) == part
            {
                end += window.page_bytes;
            }
            at = match part {
                Part::Skip => end,
                _ if reason == For::Prefetch && self.is_left() => return Filled::Again,
                part => match self.fill_part(window, at..end, part, content, reason) {
                    Ok(at) => at,
                    Err(filled) => return filled,
                },
            };
        }
        Filled::Done
    }

    /// Whether all of it was filled already, as far as the record tells.
    pub(crate) fn is_all_filled(&self, window: &Window) -> bool {
        window.image_pages(0..window.range.len()).all(|page| self.record.is_filled(page))
    }

    fn part_of(&self, window: &Window, at: usize, content: Option<&[u8]>, reason: For) -> Part {
        let is_wanted = is_wanted(window, at, reason);
        let page = window.image_page(at);
        if !is_wanted && self.record.is_filled(page) {
            return Part::Skip;
        }
        let content = content.filter(|_| !self.record.is_removed(page));
        match content.map(|content| &content[at..at + window.page_bytes]) {
            Some(content) if !is_zero(content) => Part::Content,
            _ if reason == For::Prefetch => Part::Skip,
            _ => Part::Zero,
        }
    }

    /// Fills the beginning of `at`, all of the same part. Returns where it came to.
    fn fill_part(
        &self,
        window: &Window,
        at: Range<usize>,
        part: Part,
        content: Option<&[u8]>,
        reason: For,
    ) -> Result<usize, Filled> {
        let range = PageRange::at(window.range.start() + at.start, at.len());
        let progress = match (part, content) {
            (Part::Content, Some(content)) => self.uffd.copy(range.start(), &content[at.clone()]),
            _ if window.page_bytes == OS_PAGE => self.uffd.zero(range),
            _ => self.uffd.copy(range.start(), &ZEROES[..at.len()]),
        };
        let done = at.start + progress.bytes;
        let pages = (progress.bytes / OS_PAGE) as u64;
        if pages > 0 {
            self.record.mark_filled(window.image_pages(at.start..done));
            let count = if part == Part::Content { Count::FilledPages } else { Count::ZeroPages };
            self.record.add(count, pages);
            let asked =
                at.clone().step_by(window.page_bytes).any(|at| at < done && is_wanted(window, at, reason));
            let asked = if asked { (window.page_bytes / OS_PAGE) as u64 } else { 0 };
            self.record.add(Count::PrefetchedPages, pages.saturating_sub(asked));
            self.note_first_page();
        }
        let next = done + window.page_bytes;
        match progress.stop {
            None => return Ok(done),
            Some(Stop::Exists) => {
                self.record.mark_filled(window.image_pages(done..next));
                if is_wanted(window, done, reason) {
                    self.record.add(Count::Stale, 1);
                }
            }
            // It was unmapped: there is nothing to fill, and soon perhaps another's memory.
            Some(Stop::Missing) => self.is_closed.store(true, Ordering::Relaxed),
            Some(Stop::Again | Stop::Busy | Stop::NoMemory) => {
                self.record.add(Count::PutOff, 1);
                return Err(Filled::Again);
            }
            Some(Stop::Gone) => return Err(Filled::Gone),
            Some(Stop::Refused) => return Err(Filled::Refused),
        }
        if is_wanted(window, done, reason) {
            self.uffd.wake(PageRange::at(window.range.start() + done, window.page_bytes));
        }
        Ok(next)
    }

    fn note_first_page(&self) {
        let word = self.record.word(Count::FirstPageNs);
        if word.load(Ordering::Relaxed) == 0 {
            let ns = now_ns().saturating_sub(self.record.get(Count::AcceptedNs)).max(1);
            let _ = word.compare_exchange(0, ns, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Whether nothing is registered any more where its memory was, though its process goes on.
    pub(crate) fn is_unmapped(&self) -> bool {
        let first = |region: &Region| PageRange::at(region.range.start(), region.page_bytes);
        !self.regions.iter().any(|region| self.uffd.is_registered(first(region)))
    }

    /// Ends the registration: the guest needs no handler any more. Everything that is not zero has
    /// to be filled. False for one that has hung up: nothing is done, since other memory may be at
    /// its addresses, of which the missing pages would read zero. For the same reason only a
    /// handler that is to end does this.
    pub(crate) fn release(&self) -> bool {
        let _gate = self.enter(For::Fault(0));
        for region in self.regions.iter() {
            if self.is_left() {
                return false;
            }
            // A region that is not registered any more needs none either.
            let _ = self.uffd.unregister(region.range);
        }
        self.record.set(Count::Independent, 1);
        true
    }

    pub(crate) fn is_independent(&self) -> bool {
        self.record.get(Count::Independent) != 0
    }
}

fn is_wanted(window: &Window, at: usize, reason: For) -> bool {
    let For::Fault(address) = reason else { return false };
    let page = window.range.start() + at;
    (page..page + window.page_bytes).contains(&address)
}

/// Why a guest is not served any more, though it may still be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unserved {
    /// Its descriptor was never made ready.
    #[error("its userfaultfd has made no handshake with the kernel")]
    NoHandshake,
    /// Its descriptor blocks, or has failed.
    #[error("its userfaultfd was made a blocking one")]
    Blocks,
    /// A message that the protocol does not have.
    #[error("it forked or moved its memory, which the protocol does not provide for")]
    Unexpected,
    /// A fault outside its regions.
    #[error("it faulted at {0:#x}, which is in none of the regions that it named")]
    Stray(usize),
    /// A page can't be filled and can't be refused either.
    #[error("the kernel refuses to fill its page at {0:#x}; is it memory of the page size that it named?")]
    Refused(usize),
}
