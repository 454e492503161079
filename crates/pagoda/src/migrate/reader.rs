//! Reading the pages of a live region in place: in the region, in a slot, or in the store.
//!
//! A swapped-out page is read with its entry's busy bit held, all of it. Its entry then says so: it
//! need not be read again until it changes. A part of a swapped-out page may be in the region
//! without a bit in its entry: that is read there. Resident pages are copied without any lock or
//! entry, for the copy may fault: a page that is evicted just before is swapped in by that. Writes
//! meanwhile show at the next look. This module must never touch the region with an entry taken:
//! the handler that serves the fault may wait for that entry.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use pagoda_core::migrate::geometry::STRIPE_PAGES;
use pagoda_core::migrate::pages::StripePages;
use pagoda_core::page::OS_PAGE;
use pagoda_core::page_entry::{Backing, Granules, Word};
use pagoda_linux::process::thread::yield_now;
use pagoda_migrate::{LiveReader, Room, TakePacked};

use super::source::RegionSource;
use crate::store::{GetError, Handle, Scratch, Store};
use crate::table::{Entries, Page, give, try_take};

/// One channel's reader.
pub(super) struct RegionReader<'a> {
    source: &'a RegionSource<'a>,
    packs: bool,
    scratch: Scratch,
}

impl<'a> RegionReader<'a> {
    pub(super) fn new(source: &'a RegionSource<'a>, packs: bool) -> Self {
        Self { source, packs, scratch: Scratch::new(source.engine.base) }
    }

    /// The granules of a page that are in the region, whatever its entry shows: after `MADV_FREE`
    /// the kernel leaves a part in place, and writes to it then make no event. An entry of one OS
    /// page has none: discarded, it has no swapped-out part.
    fn strays(&self, page: &Page) -> Granules {
        match page.granules.runs().next() {
            Some((from, to)) if to - from > 1 => {
                let held = self.source.engine.space.held_pages(page.addresses(from, to));
                Granules::from_bits(held.bits() << from)
            }
            _ => Granules::NONE,
        }
    }

    /// Reads the swapped-out part of the base page of page `base`, all of it unless it was read
    /// before. Adds the wanted pages that are in the region to `inside`.
    fn read_base_page(
        &mut self,
        first: u64,
        base: Range<u32>,
        room: &mut Room,
        inside: &mut StripePages,
        packed: &mut TakePacked<'_>,
    ) -> io::Result<()> {
        let RegionSource { engine, range, told, .. } = self.source;
        let address = range.start() + (first + u64::from(base.start)) as usize * OS_PAGE;
        let wanted = room.content();
        let mut want_inside = |out: Granules| {
            for page in base.clone().filter(|page| wanted.has(*page) && !out.has(page - base.start)) {
                inside.add(page..page + 1);
            }
        };
        let pages = |(from, to): (u32, u32)| base.start + from..base.start + to;
        let Some(Outside { page, entries, word, absent, out }) = self.take_outside(address)? else {
            want_inside(Granules::NONE);
            return Ok(());
        };
        let entry = &entries[page.index];
        want_inside(out);
        // A stray may just be discarded: then it is zero the next time, which an entry that says so
        // would hide.
        let after = if out == absent { word.with_sent() } else { word };
        if word.is_sent() {
            give(entry, word);
            out.runs().for_each(|run| room.leave_out(pages(run)));
            return Ok(());
        }
        match word.backing() {
            Backing::None => give(entry, word),
            Backing::Slot(slot) => {
                let slot = engine.space.claim_slot(slot);
                for run in out.runs() {
                    room.put(pages(run)).copy_from_slice(&engine.space.bytes(&slot)[bytes(run)]);
                }
                engine.space.release_slot(slot);
                give(entry, after);
            }
            Backing::Handle(handle) => {
                let handle = Handle::from_bits(handle);
                let all = out.count() as usize * OS_PAGE == engine.entry_bytes();
                let as_packed = if self.packs && all {
                    engine.store.get_packed(handle, &mut self.scratch)
                } else {
                    Ok(None)
                };
                let read = match as_packed {
                    Err(error) => Err(error),
                    Ok(Some(content)) => {
                        give(entry, after);
                        told.add(first + u64::from(base.start)..first + u64::from(base.end));
                        room.leave_out(base.clone());
                        let sent = packed(base.clone(), content);
                        return if sent { Ok(()) } else { Err(io::ErrorKind::Interrupted.into()) };
                    }
                    Ok(None) => out.runs().try_for_each(|run| {
                        let into = room.put(pages(run));
                        engine.store.get(handle, bytes(run).start, into, &mut self.scratch)
                    }),
                };
                give(entry, if read.is_ok() { after } else { word });
                read.map_err(unreadable)?;
            }
        }
        Ok(())
    }

    /// Takes the entry at `address`, and tells which of its pages are outside the region. None, and
    /// nothing is taken, if none is.
    fn take_outside(&self, address: usize) -> io::Result<Option<Outside>> {
        let engine = self.source.engine;
        loop {
            let table = engine.gate_shared();
            let gone = || io::Error::new(io::ErrorKind::NotFound, "a part of the region was unmapped");
            let span = table.find(address).ok_or_else(gone)?;
            let page = table.page_at(span, address);
            let entries = Arc::clone(span.entries());
            let entry = &entries[page.index];
            if Word::from_bits(entry.load(Ordering::Acquire)).backing() == Backing::None {
                return Ok(None);
            }
            let Some(word) = try_take(entry) else {
                drop(table);
                yield_now();
                continue;
            };
            let absent = match word.backing() {
                Backing::None => Granules::NONE,
                Backing::Slot(_) | Backing::Handle(_) => page.granules.without(word.resident()),
            };
            let out = if word.is_sent() { absent } else { absent.without(self.strays(&page)) };
            return Ok(Some(Outside { page, entries, word, absent, out }));
        }
    }
}

/// An entry that was taken to be read.
struct Outside {
    page: Page,
    entries: Entries,
    word: Word,
    /// The pages that the entry lacks in the region.
    absent: Granules,
    /// Those of them that are not there all the same.
    out: Granules,
}

/// The place of pages in their base page.
fn bytes((from, to): (u32, u32)) -> Range<usize> {
    from as usize * OS_PAGE..to as usize * OS_PAGE
}

fn unreadable(error: GetError) -> io::Error {
    io::Error::other(error)
}

impl LiveReader for RegionReader<'_> {
    fn read(&mut self, first: u64, room: &mut Room, packed: &mut TakePacked<'_>) -> io::Result<()> {
        let pages_of_base = (self.source.engine.entry_bytes() / OS_PAGE) as u32;
        let wanted = room.content();
        let mut inside = StripePages::default();
        for from in (0..STRIPE_PAGES).step_by(pages_of_base as usize) {
            let base = from..from + pages_of_base;
            if base.clone().any(|page| wanted.has(page)) {
                self.read_base_page(first, base, room, &mut inside, packed)?;
            }
        }
        for run in inside.runs() {
            // A page that is written meanwhile was protected before, and shows at the next look.
            room.read(run, |pages, into| {
                self.source.memory.copy_at((first + u64::from(pages.start)) as usize * OS_PAGE, into);
            });
        }
        let told = |run: Range<u32>| first + u64::from(run.start)..first + u64::from(run.end);
        room.content().runs().for_each(|run| self.source.told.add(told(run)));
        room.zero().runs().for_each(|run| self.source.told.remove(told(run)));
        Ok(())
    }
}
