//! Serving a fault: a thread waits for an OS page of managed memory, and gets its base page.
//!
//! The thread that takes the entry's busy bit is the one installer of the page; any other tries
//! again. What backs the page says where its content comes from:
//!
//! | backing | file |
//! |---|---|
//! | none | `zero_fill.rs`, or the page's file (`crate::file`) |
//! | a slot: the page is staged | `staged.rs` |
//! | a handle: the page is stored | `stored.rs`; `swap_in.rs` fetches it into a slot |
//!
//! A page is fetched without the gate, so that I/O holds nothing up, and is then looked at again.
//! Everything that touches the region happens with the gate shared, from before the entry is looked
//! at until its new state is published. An event that is unread at that moment makes the kernel
//! refuse. The fault is then served again after the event was applied, for it may have been read
//! before a discard that happened earlier.
//!
//! Nothing here logs, or waits for anything but the store. Nothing allocates either, but the store
//! and the queue of staged pages do, from a heap in which nothing managed lies.

pub(crate) mod around;
pub(crate) mod huge;
mod install;
#[cfg_attr(not(feature = "migrate"), path = "owed_none.rs")]
pub(crate) mod owed;
pub(crate) mod readahead;
pub(crate) mod slowed;
mod staged;
mod stored;
mod swap_in;
mod zero_fill;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pagoda_core::fault::swap_in::Extent;
use pagoda_core::page::OS_PAGE;
use pagoda_core::page_entry::{Backing, Granules, Word};
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::uffd::Stop;
use pagoda_linux::uffd::fault_address::FaultAddress;

use crate::engine::Engine;
use crate::error::{Errno, StopReason};
use crate::state::pending::Served;
use crate::stats::fault_kind::FaultKind;
use crate::store::{Handle, Scratch};
use crate::table::{Page, Span, Table, give, try_take};

pub(crate) use staged::granules_of_entry;
pub(crate) use swap_in::unreadable;

/// A fault that is being served, and the steps tried for it so far.
struct Miss<'a> {
    /// Of the OS page.
    address: usize,
    write: bool,
    extent: Extent,
    kind: &'a mut FaultKind,
    scratch: &'a mut Scratch,
    /// Its base page was fetched from the store into a slot.
    was_fetched: bool,
    /// The store was asked for it: where its page lies now is not where it was found.
    was_tried: bool,
    /// Its base page was read from the region's file.
    was_in_file: bool,
    /// Its page in an image can't be had.
    is_damaged: bool,
    /// One OS page that was read alone from the spill file, with the handle and digest that it had.
    content: [u8; OS_PAGE],
    read: Option<(u64, u64)>,
}

/// The page of a fault. Its entry's busy bit is taken.
struct Taken<'t> {
    table: &'t Table,
    span: &'t Span,
    /// Without the granules that are owed or lost.
    page: Page,
    word: Word,
    /// The one that is missing.
    granule: u32,
    is_of_file: bool,
}

impl Taken<'_> {
    /// Gives the entry back.
    fn give(&self, word: Word) {
        give(self.span.entry(self.page.index), word);
    }

    /// The addresses of the missing granule.
    fn here(&self) -> PageRange {
        self.page.addresses(self.granule, self.granule + 1)
    }
}

impl Engine {
    /// Serves the fault `at` this place. Of a page that is staged or stored it brings in as much as
    /// `extent` says. Where the page was found is left in `kind`.
    pub(crate) fn serve(
        &self,
        at: FaultAddress,
        write: bool,
        extent: Extent,
        kind: &mut FaultKind,
        scratch: &mut Scratch,
    ) -> Served {
        *kind = FaultKind::Huge;
        if let Some(served) = self.serve_huge(at) {
            return served;
        }
        *kind = FaultKind::Zero;
        // From here on all is about pages.
        let mut miss = Miss {
            address: at.page(),
            write,
            extent,
            kind,
            scratch,
            was_fetched: false,
            was_tried: false,
            was_in_file: false,
            is_damaged: false,
            content: [0; OS_PAGE],
            read: None,
        };
        loop {
            if let Some(served) = self.serve_page(&mut miss) {
                return served;
            }
        }
    }

    /// Serves a fault by what backs its page. None if the page was fetched, and is to be looked at
    /// again.
    fn serve_page(&self, miss: &mut Miss<'_>) -> Option<Served> {
        let address = miss.address;
        let table = self.gate_shared();
        // While an event is unread the kernel refuses fills. The kernel does not know of an event
        // that was read and is deferred; the table does.
        if table.order.deferred() > 0 {
            return Some(Served::Again);
        }
        let Some(span) = table.find(address) else {
            return Some(self.serve_unknown(address, miss.write));
        };
        let page = table.page_at(span, address);
        let Some(word) = try_take(span.entry(page.index)) else { return Some(Served::Busy) };
        let granule = page.granule_of(address);
        let owed = self.owed_granules(&page);
        let file = span.entries().file();
        let lost = file.as_ref().map_or(Granules::NONE, |file| file.lost_granules(page.index));
        // An owed or lost granule beside the faulting one must not be filled with it.
        let page = page.without(owed).without(lost);
        let taken = Taken { table: &table, span, page, word, granule, is_of_file: file.is_some() };
        if owed.has(granule) {
            *miss.kind = FaultKind::Spurious;
            taken.give(word);
            return Some(self.await_owed(address));
        }
        if lost.has(granule) {
            return Some(self.refuse(&taken, miss));
        }
        if word.resident().has(granule) {
            return self.serve_resident(&taken, miss);
        }
        if let Some(file) = &file
            && self.is_left_in_file(word.backing(), granule)
        {
            let entries = Arc::clone(span.entries());
            drop(table);
            if !self.fetch_from_file(file, &entries, page.index, word, miss.scratch.taker) {
                return Some(Served::NoMemory);
            }
            miss.was_in_file = true;
            *miss.kind = FaultKind::Spilled;
            return None;
        }
        // The content that was fetched for this fault is in memory now.
        if !miss.was_tried && !miss.was_in_file {
            *miss.kind = self.kind_of(word.backing());
        }
        match word.backing() {
            Backing::None => Some(self.serve_empty(&taken, miss)),
            Backing::Slot(slot) => Some(self.serve_staged(&taken, slot, miss)),
            Backing::Handle(handle) => {
                if !miss.was_tried {
                    self.store.note_refault(Handle::from_bits(handle), granule);
                }
                let part = self.comes_back(span, granule, miss.extent);
                let is_whole = miss.extent == Extent::Whole;
                let at_once =
                    part.or_else(|| if is_whole { None } else { self.content_around(&taken, handle) });
                if let Some(served) = self.serve_stored(&taken, handle, at_once, miss) {
                    return Some(served);
                }
                let entries = Arc::clone(span.entries());
                let is_new = !miss.was_tried && !self.store.is_in_memory(Handle::from_bits(handle));
                let behind = (is_new && matches!(miss.extent, Extent::Onwards | Extent::Downwards))
                    .then(|| self.take_behind(&table, span, page.index, handle, miss.extent));
                drop(table);
                if let Some(behind) = behind {
                    self.promote_with(handle, &entries, behind);
                }
                self.swap_in(
                    &entries,
                    page.index,
                    (word, handle, granule),
                    part.filter(|_| is_new),
                    is_new,
                    miss,
                )
            }
        }
    }

    /// A fault on a granule that is in the region by its entry.
    fn serve_resident(&self, taken: &Taken<'_>, miss: &mut Miss<'_>) -> Option<Served> {
        *miss.kind = FaultKind::Spurious;
        if taken.is_of_file {
            let after = self.look_for_hole(&taken.page, taken.word, taken.granule);
            taken.give(after);
            return (after == taken.word).then_some(Served::Done);
        }
        let served = self.fill_hole(&taken.page, taken.granule, miss.write);
        taken.give(taken.word);
        Some(served)
    }

    /// A fault on a granule that can't be had: its thread gets SIGBUS.
    fn refuse(&self, taken: &Taken<'_>, miss: &mut Miss<'_>) -> Served {
        *miss.kind = FaultKind::Spurious;
        taken.give(taken.word);
        self.refuse_lost(&taken.page, taken.granule)
    }

    /// The kind of a fault on a page with this backing.
    fn kind_of(&self, backing: Backing) -> FaultKind {
        match backing {
            Backing::None => FaultKind::Zero,
            Backing::Slot(_) => FaultKind::Staged,
            Backing::Handle(handle) if self.store.is_in_memory(Handle::from_bits(handle)) => {
                FaultKind::Stored
            }
            Backing::Handle(_) => FaultKind::Spilled,
        }
    }

    /// A fault in memory that is registered but not in the table, such as a mapping that grew in
    /// place. Nothing was ever evicted from there, so it reads as zero.
    fn serve_unknown(&self, address: usize, write: bool) -> Served {
        self.look_soon.store(true, Ordering::Relaxed);
        self.fill_one(PageRange::page(address), write).1
    }

    /// As `serve_unknown`, for a caller that does not know whether the address is registered. None
    /// if it is not.
    pub(crate) fn try_unknown(&self, address: usize, write: bool) -> Option<Served> {
        let at = PageRange::page(address);
        let progress =
            if write { self.space.fill_with_zeroes(at) } else { self.space.fill_with_zero_page(at) };
        match progress.stop {
            None => self.ledger.took(progress.bytes as i64),
            Some(Stop::Exists) => {}
            Some(Stop::Again) => return Some(Served::Again),
            Some(Stop::NoMemory) => return Some(Served::NoMemory),
            Some(Stop::Missing | Stop::Gone | Stop::Busy | Stop::Refused) => return None,
        }
        self.look_soon.store(true, Ordering::Relaxed);
        Some(Served::Done)
    }

    /// Turns the stop of a fill into the outcome of the fault at `at`.
    pub(crate) fn settle(&self, stop: Option<Stop>, at: PageRange) -> Served {
        match stop {
            None => Served::Done,
            Some(Stop::Again) => Served::Again,
            Some(Stop::NoMemory) => Served::NoMemory,
            // It is there already, or was unmapped: the thread finds out by itself.
            Some(Stop::Exists | Stop::Missing | Stop::Gone) => {
                self.space.wake(at);
                Served::Done
            }
            Some(Stop::Busy | Stop::Refused) => self.stop(StopReason::FillRefused(Errno::NONE)),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
