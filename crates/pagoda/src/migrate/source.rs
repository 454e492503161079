//! The pages of a live region that have to be sent: the page table tells of dirty pages, the
//! entries of pages that are swapped out.
//!
//! - A page that is present, in the kernel's swap, or being moved by the kernel: the first time,
//!   and again if it was written since it was write-protected last. A page that came in by a fill
//!   or a move is not write-protected; one that comes back while its writers are slowed down is
//!   (`crate::fault::slowed`), unless the fault writes it.
//! - A staged or stored page: unless its entry says that this content was sent. It may have been
//!   written before it was evicted.
//! - Any other page: as zero, if the receiver holds something else.
//!
//! Both are looked at with the gate held exclusively, so that no page comes or goes between one
//! look and the other. What the program discards the kernel drops when it likes; that shows at the
//! next look. What the program moves to the region has the marks and entries of its earlier place:
//! it is refused. This module must never change what the region holds.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use pagoda_core::image::Root;
use pagoda_core::migrate::geometry::{STRIPE_BYTES, STRIPE_PAGES};
use pagoda_core::migrate::pages::{PageSet, StripePages};
use pagoda_core::page::OS_PAGE;
use pagoda_core::page_entry::Backing;
use pagoda_core::size::Bytes;
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::mem::region_bytes::RegionBytes;
use pagoda_linux::mem::words::zeroed_words;
use pagoda_linux::process::thread::yield_now;
use pagoda_linux::procfs::pagemap::{PagemapScanner, Presence};
use pagoda_migrate::{Delayed, Error, LiveReader, LiveSource, SlowDown};

use super::reader::RegionReader;
use super::slow::Slowing;
use crate::engine::Engine;
use crate::region::adoptable::check_mapped;
use crate::region::{LastSave, Managed, RegionError, Sending};
use crate::table::{Span, Table, give};

/// How much is looked at with the gate closed: about 100 µs for the two scans of 64 MiB.
const LOOK_BYTES: usize = 32 * STRIPE_BYTES;

/// How often taking the protection off is tried while events are unread. If it does not come to
/// that, each page costs its next writer 2 µs once; the next migration takes it for nothing.
const FORGET_TRIES: u32 = 1000;

const UNMAPPED: &str = "a part of the region was unmapped";

const MOVED: &str = "other memory was moved to a part of the region";

/// A region that is being sent.
pub(crate) struct RegionSource<'a> {
    pub(super) engine: &'a Engine,
    pub(super) memory: &'a RegionBytes,
    pub(super) range: PageRange,
    /// Pages that the other side may hold as other than zero.
    pub(super) told: PageSet,
    looking: Mutex<Looking>,
    slowing: Slowing,
    /// Writes go on to be tracked when it is dropped.
    keeps_tracking: bool,
    /// The last move of memory to it before it began.
    moved: u64,
    _sending: Sending<'a>,
}

/// How the page table is looked at.
struct Looking {
    scanner: PagemapScanner,
    /// Nothing was sent yet: all present pages have to be, also those that were protected before
    /// and not written since.
    is_first: bool,
}

impl<'a> RegionSource<'a> {
    /// Begins to track writes to the region.
    pub(crate) fn begin(region: &'a Managed) -> Result<Self, Error> {
        Self::begin_after(region, |_| false)
    }

    /// The same. It goes on after the region's last save, if there is one that fits.
    pub(crate) fn begin_after(
        region: &'a Managed,
        fits: impl FnOnce(&LastSave) -> bool,
    ) -> Result<Self, Error> {
        region.maker().map_err(|error| Error::Source(error.into()))?;
        let memory = region.bytes().map_err(Error::Source)?;
        region.check_arrived().map_err(Error::Source)?;
        let (engine, range) = (region.engine(), memory.range());
        check_mapped(range, |mapping| mapping.read).map_err(|error| Error::Source(unreadable(error)))?;
        let sending = region.sending().ok_or(Error::SentAlready)?;
        let scanner = PagemapScanner::new().map_err(Error::Source)?;
        let moved = engine.gate_shared().last_move_to(range);
        let last = region.take_last_save().filter(|last| last.moved == moved && fits(last));
        let is_first = last.is_none();
        if is_first {
            engine.space.track_writes(range).map_err(|errno| Error::Source(errno.into()))?;
        }
        let words = PageSet::words_for((range.len() / OS_PAGE) as u64);
        let none = || PageSet::new(zeroed_words(Bytes::new(words).as_usize()));
        let source = Self {
            engine: &**engine,
            memory,
            range,
            told: last.map_or_else(none, |last| last.told),
            looking: Mutex::new(Looking { scanner, is_first }),
            slowing: Slowing::new(Arc::clone(engine), range),
            keeps_tracking: false,
            moved,
            _sending: sending,
        };
        if is_first {
            // Pages that another migration has sent.
            source.forget_sent();
        }
        Ok(source)
    }

    /// Whether it goes on after the region's last save: only what changed since is collected.
    pub(crate) fn goes_on(&self) -> bool {
        !self.looking.lock().unwrap_or_else(PoisonError::into_inner).is_first
    }

    /// Leaves writes tracked, for the save after this one of `region`, whose image has this root.
    pub(crate) fn keep_tracking(mut self, region: &Managed, root: Root) {
        self.keeps_tracking = true;
        let told = std::mem::replace(&mut self.told, PageSet::new(zeroed_words(0)));
        // Before the region can be sent or saved again.
        region.set_last_save(LastSave { root, told, moved: self.moved });
    }

    /// Swapped-out pages that readers have handed out are handed out again.
    fn forget_sent(&self) {
        self.each_entry(self.range, |span, index, _| {
            if span.word(index).is_sent() {
                let word = self.engine.take(span.entries(), index);
                give(span.entry(index), word.without_sent());
            }
        });
    }

    /// The number of the page at `address`.
    fn page_number(&self, address: usize) -> u64 {
        ((address - self.range.start()) / OS_PAGE) as u64
    }

    /// Asks the page table. Adds the pages that it has to `held`, and to `data` those that may have
    /// been written. Returns how many these are.
    fn look_at_present(
        &self,
        looking: &mut Looking,
        look: PageRange,
        data: &PageSet,
        held: &mut Held,
    ) -> io::Result<u64> {
        let Looking { scanner, is_first } = looking;
        let mut written = 0;
        let mut take = |run: Range<usize>| {
            data.add(self.page_number(run.start)..self.page_number(run.end));
            written += (run.len() / OS_PAGE) as u64;
        };
        if *is_first {
            scanner.take_written(look.start(), look.end(), |run, presence, _| {
                if presence != Presence::ZeroPage {
                    held.add(run.clone());
                    take(run);
                }
            })?;
            return Ok(written);
        }
        // A present page that was not written since the last look has its content of then.
        let mut at = look.start();
        scanner.absent_runs(look.start(), look.end(), |run| {
            held.add(at..run.start);
            at = run.end;
        })?;
        held.add(at..look.end());
        scanner.take_only_written(look.start(), look.end(), |run, presence| match presence {
            Presence::ZeroPage => held.remove(run),
            Presence::Memory | Presence::Away => take(run),
        })?;
        Ok(written)
    }

    /// Calls `each` for the entries of `range`, with the part of it that its gate is closed for.
    fn each_entry(&self, range: PageRange, mut each: impl FnMut(&Span, usize, PageRange)) {
        for look in looks(range) {
            let table = self.engine.gate_exclusive();
            in_table(&table, look, &mut each);
        }
    }

    /// Looks at one part, with the gate closed. Returns how many pages may have been written.
    fn look(
        &self,
        looking: &mut Looking,
        look: PageRange,
        data: &PageSet,
        zero: &PageSet,
    ) -> io::Result<u64> {
        let table = self.engine.gate_exclusive();
        if table.last_move_to(look) > self.moved {
            return Err(io::Error::other(MOVED));
        }
        let mut held = Held::new(look);
        let mut written = self.look_at_present(looking, look, data, &mut held)?;
        let entry_bytes = self.engine.entry_bytes();
        let managed_bytes = in_table(&table, look, |span, index, within| {
            let page = span.page(index, within, entry_bytes);
            let at = |granule: u32| page.addresses(granule, granule + 1).start();
            let mut word = span.word(index);
            if word.is_busy() {
                // The holder of the busy bit may have evicted pages and not published that yet.
                word = self.engine.take(span.entries(), index);
                give(span.entry(index), word);
            }
            let out = match word.backing() {
                Backing::None => return,
                Backing::Slot(_) | Backing::Handle(_) => page.granules.without(word.resident()),
            };
            for (from, to) in out.runs() {
                let (start, len) = (at(from), (to - from) as usize * OS_PAGE);
                held.add(start..start + len);
                if !word.is_sent() {
                    data.add(self.page_number(start)..self.page_number(start + len));
                }
            }
        });
        for (first, held) in
            (self.page_number(look.start())..).step_by(STRIPE_PAGES as usize).zip(held.stripes)
        {
            for gone in self.told.stripe(first).without(held).runs() {
                zero.add(first + u64::from(gone.start)..first + u64::from(gone.end));
                written += gone.len() as u64;
            }
        }
        if managed_bytes == look.len() {
            Ok(written)
        } else {
            Err(io::Error::new(io::ErrorKind::NotFound, UNMAPPED))
        }
    }
}

/// The pages of one look that hold content, present or swapped out. The kernel's zero page is none.
struct Held {
    start: usize,
    stripes: Vec<StripePages>,
}

impl Held {
    fn new(look: PageRange) -> Self {
        let stripes = look.len().div_ceil(STRIPE_BYTES);
        Self { start: look.start(), stripes: vec![StripePages::default(); stripes] }
    }

    fn add(&mut self, run: Range<usize>) {
        self.each(run, |stripe, pages| stripe.add(pages));
    }

    fn remove(&mut self, run: Range<usize>) {
        self.each(run, |stripe, pages| pages.for_each(|page| stripe.remove(page)));
    }

    /// Calls `each` with the parts of a run of addresses, by stripe.
    fn each(&mut self, run: Range<usize>, each: impl Fn(&mut StripePages, Range<u32>)) {
        let (mut page, end) = ((run.start - self.start) / OS_PAGE, (run.end - self.start) / OS_PAGE);
        while page < end {
            let (stripe, first) = (page / STRIPE_PAGES as usize, page % STRIPE_PAGES as usize);
            let count = (end - page).min(STRIPE_PAGES as usize - first);
            each(&mut self.stripes[stripe], first as u32..(first + count) as u32);
            page += count;
        }
    }
}

fn unreadable(error: RegionError) -> io::Error {
    match error {
        RegionError::Hole { .. } => io::Error::new(io::ErrorKind::NotFound, UNMAPPED),
        RegionError::Kind { .. } => io::Error::new(
            io::ErrorKind::PermissionDenied,
            "a part of the region may not be read; allow it by `protect`, or mprotect(2)",
        ),
        error => io::Error::other(error),
    }
}

/// The parts of `range` for which the gate is closed at once.
fn looks(range: PageRange) -> impl Iterator<Item = PageRange> {
    (range.start()..range.end())
        .step_by(LOOK_BYTES)
        .map(move |start| PageRange::at(start, LOOK_BYTES.min(range.end() - start)))
}

/// Calls `each` for the entries of `look` that may hold anything. Returns how many bytes of it are
/// managed.
fn in_table(table: &Table, look: PageRange, mut each: impl FnMut(&Span, usize, PageRange)) -> usize {
    let (mut at, mut managed_bytes) = (look.start(), 0);
    while at < look.end() {
        let Some(span) = table.next_from(at) else { break };
        let Some(within) = span.range().intersection(look) else { break };
        for index in span.used(within, table.entry_bytes()) {
            each(span, index, within);
        }
        managed_bytes += within.len();
        at = within.end();
    }
    managed_bytes
}

impl LiveSource for RegionSource<'_> {
    fn size(&self) -> Bytes {
        Bytes::new(self.range.len() as u64)
    }

    fn collect(&self, data: &PageSet, zero: &PageSet) -> io::Result<u64> {
        let mut looking = self.looking.lock().unwrap_or_else(PoisonError::into_inner);
        let mut written = 0;
        for look in looks(self.range) {
            written += self.look(&mut looking, look, data, zero)?;
        }
        looking.is_first = false;
        Ok(written)
    }

    fn hand_out_again(&self) -> io::Result<()> {
        self.forget_sent();
        Ok(())
    }

    fn slow_down(&self, due: &PageSet, how: SlowDown) {
        self.slowing.slow_down(due, how);
    }

    fn full_speed(&self) {
        self.slowing.full_speed();
    }

    fn delayed(&self) -> Delayed {
        self.slowing.delayed()
    }

    fn reader<'a>(&'a self, packs: bool) -> io::Result<Box<dyn LiveReader + 'a>> {
        Ok(Box::new(RegionReader::new(self, packs)))
    }
}

impl Drop for RegionSource<'_> {
    fn drop(&mut self) {
        if self.keeps_tracking {
            return;
        }
        for _ in 0..FORGET_TRIES {
            match self.engine.space.forget_writes(self.range) {
                Err(pagoda_linux::uffd::Errno::AGAIN) => yield_now(),
                _ => return,
            }
        }
    }
}

#[cfg(test)]
#[path = "source_test.rs"]
mod tests;
