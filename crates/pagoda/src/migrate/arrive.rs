//! Putting owed pages in place while the region is used.
//!
//! It happens with the entry's busy bit held, by a move or a copy that wakes the waiting threads;
//! from then on the page is owed no longer. The budget is kept by the same reclaim as for a fault.
//! This module must never write through the region's address: the page there may be the program's.

use std::io;

use pagoda_core::page::OS_PAGE;
use pagoda_core::page_entry::{Backing, Granules, Word};
use pagoda_linux::arena::Slot;
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::process::thread::yield_now;
use pagoda_linux::uffd::{Progress, Stop};

use crate::engine::Engine;
use crate::frames::zones::Taker;
use crate::state::owed::OwedPages;
use crate::stats::counters::Counter;
use crate::store::Scratch;
use crate::table::{give, try_take};

/// The outcome of putting pages in place, from the first on.
enum Step {
    /// So many bytes are done.
    Done(usize),
    /// The entry is busy, or an event is unread: again in a moment.
    Again,
    /// There is no frame.
    NoMemory,
}

impl Engine {
    /// Puts arriving content for the owed pages of `range` in place: `content`, or zeroes without
    /// one. A page that is not owed any more was discarded meanwhile, and stays as it is.
    pub(super) fn arrive(
        &self,
        range: PageRange,
        content: Option<&[u8]>,
        owed: &OwedPages,
        scratch: &mut Scratch,
    ) -> io::Result<()> {
        let (mut done, mut lacking_since_ns) = (0, None);
        while let Some(rest) = PageRange::new(range.start() + done, range.end()) {
            match self.arrive_next(rest, content.map(|content| &content[done..]), owed)? {
                Step::Done(bytes) => (done, lacking_since_ns) = (done + bytes, None),
                Step::Again => yield_now(),
                Step::NoMemory => self.make_room(scratch, &mut lacking_since_ns)?,
            }
        }
        self.note_use();
        self.note_arrived(range);
        Ok(())
    }

    /// The same for the first pages, as many as go together.
    fn arrive_next(&self, range: PageRange, content: Option<&[u8]>, owed: &OwedPages) -> io::Result<Step> {
        let table = self.gate_shared();
        if table.order.deferred() > 0 {
            return Ok(Step::Again);
        }
        // Unmapped meanwhile.
        let Some(span) = table.find(range.start()) else { return Ok(Step::Done(OS_PAGE)) };
        let Some(within) = span.range().intersection(range) else { return Ok(Step::Done(OS_PAGE)) };
        let page = span.page(table.page_at(span, range.start()).index, within, table.entry_bytes());
        let entry = span.entry(page.index);
        let Some(word) = try_take(entry) else { return Ok(Step::Again) };
        let (granule, still) = (page.granule_of(range.start()), self.owed_granules(&page));
        if !still.has(granule) {
            give(entry, word);
            let gone = page.granules.without(still).run_around(granule);
            return Ok(Step::Done(gone.count() as usize * OS_PAGE));
        }
        let run = still.run_around(granule);
        let here = PageRange::at(range.start(), run.count() as usize * OS_PAGE);
        let Some(content) = content else {
            owed.remove(here);
            give(entry, word);
            // A waiting thread faults again, and finds a page that was never written.
            self.space.wake(here);
            return Ok(Step::Done(here.len()));
        };
        let Some((zone, placed)) = self.place_owed(word, here, &content[..here.len()]) else {
            give(entry, word);
            return Ok(Step::NoMemory);
        };
        let now = Granules::range(granule, granule + (placed.bytes / OS_PAGE) as u32);
        let mut after = word;
        if placed.bytes > 0 {
            owed.remove(PageRange::at(here.start(), placed.bytes));
            after = self.came_in(word, now, zone);
            self.ledger.changed(word, after);
        }
        give(entry, after);
        match placed.stop {
            _ if placed.bytes > 0 => Ok(Step::Done(placed.bytes)),
            None | Some(Stop::Again) => Ok(Step::Again),
            Some(Stop::NoMemory) => Ok(Step::NoMemory),
            // Only this fills an owed page: an unknown page is there.
            Some(stop) => Err(io::Error::other(format!("the kernel did not take an owed page ({stop:?})"))),
        }
    }

    /// Puts pages of one entry in place: into fresh memory, or within the budget. Returns their
    /// zone; none if there is no frame.
    fn place_owed(&self, word: Word, here: PageRange, content: &[u8]) -> Option<(usize, Progress)> {
        let several = self.zones.are_several();
        if !several && (self.is_released() || self.ledger.room_bytes() >= here.len() as u64) {
            let copied = self.space.fill_with(here, content);
            self.ledger.took(copied.bytes as i64);
            self.counters.add(Counter::ArrivedCopiedBytes, copied.bytes as u64);
            return Some((0, copied));
        }
        let page = PageRange::page(here.start());
        let (content, may_open) = (&content[..OS_PAGE], self.may_use_frames());
        let place = |slot: &Slot, offset| {
            let progress = self.space.fill(page, slot, offset);
            (progress.stop.is_none(), progress)
        };
        let moved = match several {
            true => self.place_page_of_a_zone(word, content, may_open, Taker::ONCE, place),
            false => self.zones.place_page(&self.space, content, may_open, place).map(|moved| (0, moved)),
        }?;
        self.counters.add(Counter::ArrivedMovedBytes, moved.1.bytes as u64);
        Some(moved)
    }

    /// Stores packed arriving content for a base page that is owed in whole. False if it is to be
    /// put in place.
    pub(super) fn arrive_packed(
        &self,
        range: PageRange,
        packed: &[u8],
        content: &[u8],
        owed: &OwedPages,
    ) -> bool {
        let table = self.gate_shared();
        let Some(span) = table.find(range.start()) else { return false };
        let page = table.page_at(span, range.start());
        let all = Granules::range(0, (self.entry_bytes() / OS_PAGE) as u32);
        let is_whole = page.addresses(0, 1).start() == range.start()
            && page.granules == all
            && content.len() == self.entry_bytes();
        let Some(word) = is_whole.then(|| try_take(span.entry(page.index))).flatten() else { return false };
        let is_free = word == Word::EMPTY && self.owed_granules(&page) == all;
        let put = if is_free { self.store.put_packed(packed, content) } else { Ok(None) };
        // A full store tells so when it has to take written pages.
        let Ok(Some(handle)) = put else {
            give(span.entry(page.index), word);
            return false;
        };
        self.ledger.store_has(self.store.usage().memory_committed_bytes.get());
        owed.remove(range);
        give(span.entry(page.index), word.with_backing(Backing::Handle(handle.to_bits())));
        self.space.wake(range);
        true
    }
}
