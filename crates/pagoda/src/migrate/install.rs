//! Putting arriving pages into a region that is not used yet.
//!
//! The kernel puts a page in place where there is none, so that no thread faults for it: with a
//! whole huge frame (`migrate/huge.rs`), else moved out of a ready frame if there is one, else
//! copied into fresh memory, which is then not cleared first. Content straight from a channel is in
//! its frame already (`landing.rs`). Any other is written through the region's address, which swaps
//! the page in if it was evicted meanwhile. All keep the budget, by the same reclaim as a fault.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use pagoda_core::migrate::geometry::STRIPE_BYTES;
use pagoda_core::page_entry::{Backing, Granules, Word};
use pagoda_linux::arena::Slot;
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::mem::region_bytes::RegionBytes;
use pagoda_linux::process::thread::{ran_ns, sleep_us, yield_now};
use pagoda_linux::uffd::{Progress, Stop};

use crate::engine::Engine;
use crate::frames::zones::Taker;
use crate::state::hand::Step;
use crate::stats::counters::Counter;
use crate::store::{Handle, Scratch, Store};
use crate::table::{Page, Span, Table, give, try_take};

/// Steps of reclaim before it is tried again.
const STEPS: u32 = 9;

/// Without a frame for so long it is tried once a millisecond: the holders of frames may need the
/// processor.
const PATIENCE_NS: u64 = 10_000_000;

/// The outcome of putting pages in place, from the first on.
enum Placed {
    /// So many bytes are there.
    Filled(usize),
    /// So many bytes of the region hold something already, here or out.
    Known(usize),
    /// The entry is busy, or an event is unread: again in a moment.
    Again,
    /// There is no frame.
    NoMemory,
}

/// As [`try_take`], of an entry that is likely to be as it was made. Entries are memory that reads
/// as zero: to look at one first would be a fault of its own, before that of writing to it.
pub(super) fn take_fresh(entry: &AtomicU64) -> Option<Word> {
    let (empty, taken) = (Word::EMPTY.bits(), Word::EMPTY.busy().bits());
    match entry.compare_exchange(empty, taken, Ordering::AcqRel, Ordering::Relaxed) {
        Ok(_) => Some(Word::EMPTY),
        Err(_) => try_take(entry),
    }
}

impl Engine {
    /// Fills `range` of the region of `memory` with `content`. Any number of threads may do so,
    /// each for pages of its own.
    pub(super) fn receive(
        &self,
        range: PageRange,
        content: &[u8],
        memory: &RegionBytes,
        scratch: &mut Scratch,
    ) -> io::Result<()> {
        match self.huge_landing(range) {
            Some(mut landing) => {
                self.landing_bytes(&mut landing).copy_from_slice(content);
                self.land(landing, memory, scratch)
            }
            None => {
                self.receive_pages(range, content, memory, scratch)?;
                self.note_arrived(range);
                Ok(())
            }
        }
    }

    /// The same in base pages.
    pub(super) fn receive_pages(
        &self,
        range: PageRange,
        content: &[u8],
        memory: &RegionBytes,
        scratch: &mut Scratch,
    ) -> io::Result<()> {
        let (mut done, mut lacking_since_ns) = (0, None);
        while let Some(rest) = PageRange::new(range.start() + done, range.end()) {
            match self.place(rest, &content[done..])? {
                Placed::Filled(bytes) => (done, lacking_since_ns) = (done + bytes, None),
                Placed::Known(bytes) => {
                    memory.write_words(rest.start() - memory.range().start(), &content[done..done + bytes]);
                    (done, lacking_since_ns) = (done + bytes, None);
                }
                Placed::Again => yield_now(),
                Placed::NoMemory => self.make_room(scratch, &mut lacking_since_ns)?,
            }
        }
        self.note_use();
        Ok(())
    }

    /// Stores packed arriving content for a base page that is empty or stored in whole. False if it
    /// is to be written.
    pub(super) fn receive_packed(&self, range: PageRange, packed: &[u8], content: &[u8]) -> bool {
        let table = self.gate_shared();
        let Some(span) = table.find(range.start()) else { return false };
        let page = table.page_at(span, range.start());
        let is_whole = page.addresses(0, 1).start() == range.start()
            && page.granules.count() as usize * 4096 == self.entry_bytes()
            && content.len() == self.entry_bytes();
        let Some(word) = is_whole.then(|| try_take(span.entry(page.index))).flatten() else { return false };
        let entries = span.entries().clone();
        drop(table);
        let entry = &entries[page.index];
        let is_out = word.resident().is_empty() && !matches!(word.backing(), Backing::Slot(_));
        let put = if is_out { self.store.put_packed(packed, content) } else { Ok(None) };
        // A full store tells so when it has to take written pages.
        let Ok(Some(handle)) = put else {
            give(entry, word);
            return false;
        };
        if let Backing::Handle(before) = word.backing() {
            self.store.free(Handle::from_bits(before));
        }
        self.ledger.store_has(self.store.usage().memory_committed_bytes.get());
        give(entry, word.with_backing(Backing::Handle(handle.to_bits())));
        true
    }

    /// Puts the first pages of `range` in place, as many as go together.
    fn place(&self, range: PageRange, content: &[u8]) -> io::Result<Placed> {
        let table = self.gate_shared();
        if table.order.deferred() > 0 {
            return Ok(Placed::Again);
        }
        let gone = || io::Error::new(io::ErrorKind::NotFound, "a part of the region was unmapped");
        let span = table.find(range.start()).ok_or_else(gone)?;
        let within = span.range().intersection(range).ok_or_else(gone)?;
        let first = span.page(table.page_at(span, range.start()).index, within, table.entry_bytes());
        let Some(word) = take_fresh(span.entry(first.index)) else { return Ok(Placed::Again) };
        let fresh = match word.backing() {
            Backing::None => first.granules.without(word.resident()),
            Backing::Slot(_) | Backing::Handle(_) => Granules::NONE,
        };
        let granule = first.granule_of(range.start());
        if !fresh.has(granule) {
            give(span.entry(first.index), word);
            let known = first.granules.without(fresh).run_around(granule);
            return Ok(Placed::Known(known.count() as usize * 4096));
        }
        let run = fresh.run_around(granule);
        let whole = run.count() as usize * 4096 == self.entry_bytes();
        if whole
            && self.may_use_frames()
            && let Some(moved) = self.move_ready(&first, content)
        {
            self.counters.add(Counter::ArrivedMovedBytes, moved.1.bytes as u64);
            return self.placed(span, &[(first.index, word, run)], moved);
        }
        let mut taken = vec![(first.index, word, run)];
        if whole {
            self.take_more(&table, span, within, &mut taken);
        }
        let bytes = taken.iter().map(|(_, _, run)| run.count() as usize * 4096).sum::<usize>();
        if self.ledger.room_bytes() < bytes as u64 && !self.is_released() {
            taken.drain(1..).for_each(|(index, word, _)| give(span.entry(index), word));
            let page = first.addresses(granule, granule + 1);
            let fill = |slot: &Slot, offset| {
                let progress = self.space.fill(page, slot, offset);
                (progress.stop.is_none(), progress)
            };
            let (content, may_open) = (&content[..4096], self.may_use_frames());
            let moved = match self.zones.are_several() {
                true => self.place_page_of_a_zone(word, content, may_open, Taker::ONCE, fill),
                false => self.zones.place_page(&self.space, content, may_open, fill).map(|moved| (0, moved)),
            };
            let Some(moved) = moved else {
                give(span.entry(first.index), word);
                return Ok(Placed::NoMemory);
            };
            self.counters.add(Counter::ArrivedMovedBytes, moved.1.bytes as u64);
            return self.placed(span, &taken, moved);
        }
        let copied = self.space.fill_with(PageRange::at(range.start(), bytes), &content[..bytes]);
        self.ledger.took(copied.bytes as i64);
        self.counters.add(Counter::ArrivedCopiedBytes, copied.bytes as u64);
        self.placed(span, &taken, (self.zone_of_kernel_memory(word), copied))
    }

    /// Takes entries behind the one in `taken` that are empty and lie wholly in `within`.
    fn take_more(
        &self,
        table: &Table,
        span: &Span,
        within: PageRange,
        taken: &mut Vec<(usize, Word, Granules)>,
    ) {
        let entry_bytes = table.entry_bytes();
        let last = span.indices(within, entry_bytes).end;
        let all = Granules::range(0, (entry_bytes / 4096) as u32);
        // Within the budget, too.
        let fits = (self.ledger.room_bytes().min(STRIPE_BYTES as u64) / entry_bytes as u64) as usize;
        for index in taken[0].0 + 1..last {
            if taken.len() >= fits || span.page(index, within, entry_bytes).granules != all {
                return;
            }
            let Some(word) = take_fresh(span.entry(index)) else { return };
            if word.backing() != Backing::None || !word.resident().is_empty() {
                return give(span.entry(index), word);
            }
            taken.push((index, word, all));
        }
    }

    /// Fills a ready frame with the first base page of `content` and moves it in. None if there is
    /// no ready frame.
    fn move_ready(&self, page: &Page, content: &[u8]) -> Option<(usize, Progress)> {
        let mut slot = self.take_whole_ready(Taker::ONCE)?;
        let zone = self.zones.of_slot(slot.index());
        let len = self.entry_bytes();
        self.space.bytes_mut(&mut slot).copy_from_slice(&content[..len]);
        let moved = self.move_frame(page, &slot);
        self.zones.put_pieces(
            &self.space,
            slot,
            Granules::range((moved.bytes / 4096) as u32, (len / 4096) as u32),
        );
        Some((zone, moved))
    }

    /// Moves the frame of a slot to its base page, of which nothing is there, from the first OS
    /// page on.
    pub(super) fn move_frame(&self, page: &Page, slot: &Slot) -> Progress {
        let granules = (self.entry_bytes() / 4096) as u32;
        let mut done = 0;
        loop {
            let progress = self.space.fill(page.addresses(done, granules), slot, done as usize * 4096);
            done += (progress.bytes / 4096) as u32;
            if done == granules || progress.stop.is_some() {
                return Progress { bytes: done as usize * 4096, stop: progress.stop };
            }
        }
    }

    /// Enters the pages that are in place now, in frames of a zone, in the entries that were taken
    /// for them.
    fn placed(
        &self,
        span: &Span,
        taken: &[(usize, Word, Granules)],
        (zone, progress): (usize, Progress),
    ) -> io::Result<Placed> {
        let mut rest = progress.bytes / 4096;
        for (index, word, run) in taken {
            let (from, _) = run.runs().next().unwrap_or((0, 0));
            let here = rest.min(run.count() as usize) as u32;
            rest -= here as usize;
            let now = Granules::range(from, from + here);
            give(span.entry(*index), self.came_in(*word, now, zone));
        }
        Ok(match progress.stop {
            _ if progress.bytes > 0 => Placed::Filled(progress.bytes),
            None | Some(Stop::Again) => Placed::Again,
            // Present and not ours: the rest of a discard that is being carried out.
            Some(Stop::Exists) => Placed::Known(4096),
            Some(Stop::NoMemory) => Placed::NoMemory,
            Some(stop @ (Stop::Busy | Stop::Missing | Stop::Refused | Stop::Gone)) => {
                return Err(io::Error::other(format!(
                    "the kernel did not take a page of the region ({stop:?})"
                )));
            }
        })
    }

    /// Reclaims for pages that can't be placed, as a handler does for a fault. The caller knows
    /// since when none could be. A caller that never finds a frame gets an error: the
    /// reclaimer relies on that, and waits.
    pub(super) fn make_room(
        &self,
        scratch: &mut Scratch,
        lacking_since_ns: &mut Option<u64>,
    ) -> io::Result<()> {
        let lacked_ns = ran_ns().saturating_sub(*lacking_since_ns.get_or_insert_with(ran_ns));
        if lacked_ns > self.give_up_ns && self.lacks_memory() {
            let error = "no memory could be had for ten seconds for what arrives; raise the budget, or free what can't be moved out of it";
            return Err(io::Error::new(io::ErrorKind::OutOfMemory, error));
        }
        self.bell.ring();
        if lacked_ns > PATIENCE_NS {
            sleep_us(1000);
        }
        for _ in 0..STEPS {
            match self.reclaim_step(scratch) {
                Step::FrameReady => break,
                Step::Staged | Step::Looking => {}
                Step::Again => yield_now(),
                Step::Exhausted => sleep_us(1000),
                Step::Full(error) => return Err(io::Error::other(error)),
            }
        }
        self.keep_budget();
        Ok(())
    }
}

#[cfg(test)]
#[path = "install_test.rs"]
mod tests;
