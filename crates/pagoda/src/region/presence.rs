//! Which part of a region is in memory, and bringing more of it in for its owner.
//!
//! A page is brought in by serving the fault that an access would have, in the calling thread. This
//! module must never touch the memory itself.

use pagoda_core::fault::swap_in::Extent;
use pagoda_core::page::OS_PAGE;
use pagoda_core::page_entry::{Backing, Granules};
use pagoda_core::size::Bytes;
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::process::thread::{ran_ns, sleep_us, yield_now};
use pagoda_linux::uffd::fault_address::FaultAddress;

use super::access::AccessError;
use crate::engine::Engine;
use crate::state::hand::Step;
use crate::state::pending::{Fault, Served, Tried};
use crate::stats::fault_kind::FaultKind;
use crate::store::{Handle, Scratch};

/// Tries that only yield in between; afterwards each is followed by a short sleep.
const YIELDS: u32 = 8;
const SLEEP_US: u32 = 20;

/// Tries of a prefetch for one page, about 60 ms, after which it ends: it is only a guess.
const PREFETCH_TRIES: u32 = 1000;

/// Steps of reclaim before each try.
const STEPS: u32 = 16;

/// A prefetch brings in one part in so many of the budget: more would evict the first of it.
const PREFETCH_SHARE: u64 = 4;

/// Where the content of a region is, in bytes of its address range. Each byte counts once, where it
/// would be read from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// In the region: an access waits for nothing.
    pub resident: Bytes,
    /// Evicted with its frame intact: an access waits for a move, some microseconds.
    pub staged: Bytes,
    /// In the compressed store, before compression.
    pub compressed: Bytes,
    /// In the spill file or at the remote store, before compression.
    pub spilled: Bytes,
    /// Never touched or discarded, or evicted as one repeated word: it takes no memory.
    pub empty: Bytes,
}

/// The state of one OS page by its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    Resident,
    /// It reads as zero, and holds nothing.
    Empty,
    SwappedOut,
    /// Another thread moves it.
    Busy,
    /// It arrives from another host.
    Owed,
}

/// A wait for other threads of the engine.
#[derive(Default)]
struct Wait {
    tries: u32,
}

impl Wait {
    fn a_little(&mut self) {
        self.tries += 1;
        if self.tries < YIELDS { yield_now() } else { sleep_us(SLEEP_US) }
    }
}

impl Engine {
    pub(super) fn usage(&self, range: PageRange) -> Usage {
        let table = self.gate_shared();
        let (mut pages, mut at) = ([0u64; 4], range.start());
        while let Some(span) = table.next_from(at).filter(|span| span.range().start() < range.end()) {
            at = span.range().end();
            let Some(within) = span.range().intersection(range) else { continue };
            for index in span.used(within, table.entry_bytes()) {
                let (word, page) = (span.word(index), span.page(index, within, table.entry_bytes()));
                let resident = page.granules.and(word.resident());
                let rest = page.granules.without(word.resident());
                pages[0] += u64::from(resident.count());
                let place = match word.backing() {
                    Backing::None => continue,
                    Backing::Slot(_) => 1,
                    Backing::Handle(handle) => match Handle::from_bits(handle) {
                        handle if handle.is_same_filled() => continue,
                        handle if self.store.is_in_memory(handle) => 2,
                        _ => 3,
                    },
                };
                pages[place] += u64::from(rest.count());
            }
        }
        let [resident, staged, compressed, spilled] = pages.map(|pages| pages * OS_PAGE as u64);
        let held = resident + staged + compressed + spilled;
        let empty = Bytes::new((range.len() as u64).saturating_sub(held));
        let [resident, staged, compressed, spilled] = [resident, staged, compressed, spilled].map(Bytes::new);
        Usage { resident, staged, compressed, spilled, empty }
    }

    /// The bytes of `range` in frames of each zone, as they were named. Empty with one zone.
    pub(super) fn bytes_by_zone(&self, range: PageRange) -> Vec<(String, Bytes)> {
        if !self.zones.are_several() {
            return Vec::new();
        }
        let table = self.gate_shared();
        let mut pages = vec![0; self.zones.count()];
        for span in table.spans_in(range) {
            let Some(within) = span.range().intersection(range) else { continue };
            for index in span.used(within, table.entry_bytes()) {
                let (word, page) = (span.word(index), span.page(index, within, table.entry_bytes()));
                let resident = page.granules.and(word.resident());
                pages[word.zone()] += u64::from(resident.count());
                if let Backing::Slot(slot) = word.backing() {
                    let staged = page.granules.without(word.resident());
                    pages[self.zones.of_slot(slot)] += u64::from(staged.count());
                }
            }
        }
        self.zones.by_name(|zone| Bytes::new(pages[zone] * OS_PAGE as u64))
    }

    /// The state of the OS page at `address`.
    pub(super) fn presence(&self, address: usize) -> Presence {
        let table = self.gate_shared();
        let Some(span) = table.find(address) else { return Presence::Empty };
        let page = table.page_at(span, address);
        let (word, granule) = (span.word(page.index), page.granule_of(address));
        if word.is_busy() {
            return Presence::Busy;
        }
        if word.resident().has(granule) {
            return Presence::Resident;
        }
        let of_granule = page.without(page.granules.without(Granules::range(granule, granule + 1)));
        match word.backing() {
            _ if !self.owed_granules(&of_granule).is_empty() => Presence::Owed,
            Backing::None => Presence::Empty,
            Backing::Slot(_) | Backing::Handle(_) => Presence::SwappedOut,
        }
    }

    /// Whether no page of `range` is swapped out, or on its way. A caller that has pinned it knows
    /// that they stay.
    pub(super) fn is_all_here(&self, range: PageRange) -> bool {
        (range.start()..range.end()).step_by(OS_PAGE).all(|address| {
            let mut wait = Wait::default();
            loop {
                match self.presence(address) {
                    Presence::Resident | Presence::Empty => return true,
                    Presence::SwappedOut | Presence::Owed => return false,
                    // A thread that had a fault goes on before its entry is given back.
                    Presence::Busy if wait.tries >= YIELDS => return false,
                    Presence::Busy => wait.a_little(),
                }
            }
        })
    }

    /// Brings in all of `range`, which the caller has pinned, and waits as an access would.
    pub(super) fn bring_in(&self, range: PageRange, scratch: &mut Scratch) -> Result<(), AccessError> {
        for address in (range.start()..range.end()).step_by(OS_PAGE) {
            let mut wait = Wait::default();
            let mut fault = Fault::new(FaultAddress::of_byte(address), true, ran_ns());
            loop {
                match self.presence(address) {
                    Presence::Resident => break,
                    Presence::Busy => {}
                    Presence::Owed => {
                        if !self.await_owed_here(address) {
                            return Err(AccessError::Lost);
                        }
                    }
                    Presence::Empty | Presence::SwappedOut => {
                        if self.serve_alone(&mut fault, scratch) == Tried::Served {
                            if self.is_refused(address) {
                                return Err(AccessError::LimitReached);
                            }
                            // Another content of the kernel's is there without the entry's saying.
                            if !self.space.held_pages(PageRange::page(address)).is_empty() {
                                break;
                            }
                        }
                    }
                }
                wait.a_little();
            }
        }
        Ok(())
    }

    /// Reclaims for a guess, until enough is free or nothing more can go at once.
    fn make_room_for_guess(&self, scratch: &mut Scratch) {
        for _ in 0..STEPS {
            if self.free() >= self.marks().low {
                return;
            }
            match self.reclaim_step(scratch) {
                Step::FrameReady | Step::Staged | Step::Looking => {}
                Step::Again | Step::Exhausted | Step::Full(_) => return,
            }
        }
    }

    /// The swapped-out bytes in `range` of the base page that `address` is in.
    fn bytes_out(&self, address: usize, range: PageRange) -> usize {
        let table = self.gate_shared();
        let Some(span) = table.find(address) else { return 0 };
        let index = table.page_at(span, address).index;
        let (word, page) = (span.word(index), span.page(index, range, table.entry_bytes()));
        match word.backing() {
            Backing::None => 0,
            _ => page.granules.without(word.resident()).count() as usize * OS_PAGE,
        }
    }

    /// The first address from this one on whose entry was ever used, or the end of `range`: most of
    /// a large region may never have been touched.
    fn next_used(&self, mut address: usize, range: PageRange) -> usize {
        let table = self.gate_shared();
        while let (Some(rest), Some(span)) = (PageRange::new(address, range.end()), table.next_from(address))
        {
            let Some(within) = span.range().intersection(rest) else { break };
            if let Some(index) = span.used(within, table.entry_bytes()).next() {
                let page = span.page(index, span.range(), table.entry_bytes());
                return page.addresses(0, 1).start().max(within.start());
            }
            address = within.end();
        }
        range.end()
    }

    /// Swaps in pages of `range`, up to a share of the budget. Returns how many bytes were swapped
    /// out and are resident now.
    pub(crate) fn prefetch(&self, range: PageRange, scratch: &mut Scratch) -> usize {
        let most = (self.marks().budget().get() / PREFETCH_SHARE) as usize;
        let (mut brought_in, mut wait) = (0, Wait::default());
        let mut address = range.start();
        while address < range.end() {
            match self.presence(address) {
                Presence::Resident | Presence::Empty | Presence::Owed => {
                    address = self.next_used(address + OS_PAGE, range);
                    wait = Wait::default();
                    continue;
                }
                Presence::SwappedOut | Presence::Busy => {}
            }
            if brought_in >= most || self.is_quitting() || wait.tries > PREFETCH_TRIES {
                break;
            }
            self.make_room_for_guess(scratch);
            let before = self.bytes_out(address, range);
            let (at, mut kind) = (FaultAddress::of_byte(address), FaultKind::Zero);
            match self.serve(at, false, Extent::Onwards, &mut kind, scratch) {
                Served::Done => {
                    brought_in += before.saturating_sub(self.bytes_out(address, range));
                    wait.tries += 1;
                }
                Served::NoMemory => {
                    self.bell.ring();
                    wait.a_little();
                }
                Served::Again | Served::Busy | Served::GaveWay => wait.a_little(),
            }
        }
        brought_in
    }
}
