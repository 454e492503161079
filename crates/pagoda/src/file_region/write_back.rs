//! Bringing pages from a file and back to it.
//!
//! An entry of a file that has no backing is in the file. It is read into a slot and then is staged like any other; when it has
//! been staged for long it is written back, if it differs from the file, and dropped. All I/O is done under the entry's busy
//! bit and without the gate. What can't be written goes to the store, as if it had no file, and is tried again by the next sync.
//!
//! A sync copies what is in the region with the gate held: nothing leaves meanwhile. This module must never drop what the file
//! does not hold, and never write what an entry was before it was taken.

use pagoda_core::entry::{Backing, Granules, Word};
use pagoda_core::page::OS_PAGE;
use pagoda_linux::direct_file::AlignedBuffer;
use pagoda_linux::range::PageRange;
use pagoda_linux::region_memory::RegionMemory;
use pagoda_linux::thread::yield_now;

use std::sync::atomic::Ordering;

use super::page_file::PageFile;
use crate::counters::Counter;
use crate::engine::Engine;
use crate::fault::{Served, unreadable};
use crate::store::{Handle, Scratch, Store};
use crate::table::{Entries, Page, Span, Table, give, try_take};

impl Engine {
    /// Reads an entry, whose busy bit the caller has taken, into a slot, and gives it back as staged. Without a frame it is given
    /// back as it was: false.
    pub(crate) fn fetch_from_file(
        &self,
        file: &PageFile,
        entries: &Entries,
        index: usize,
        word: Word,
    ) -> bool {
        let Some(mut slot) = self.frame_for_fetch(false) else {
            give(&entries[index], word);
            return false;
        };
        file.read(index, self.space.bytes_mut(&mut slot));
        self.ledger.fetched(self.entry_bytes() as u64);
        self.note_use();
        let slot = self.space.release_slot(slot);
        self.went_into_staging(slot);
        give(&entries[index], word.with_backing(Backing::Slot(slot)));
        // What of it is lost is never moved in, and goes by this.
        self.queue_staged(entries, index, slot);
        true
    }

    /// A fault on a page of a file that is the region's own by the table, whose busy bit the caller has taken: it was served
    /// meanwhile, or was discarded, and then is what the file holds. Returns what it is now.
    pub(crate) fn look_for_hole(&self, page: &Page, word: Word, granule: u32) -> Word {
        let here = page.addresses(granule, granule + 1);
        self.counters.add(Counter::FaultsSpurious, 1);
        if !self.space.held_pages(here).is_empty() {
            self.space.wake(here);
            return word;
        }
        self.ledger.resident(-(OS_PAGE as i64));
        self.zones.in_regions(word.zone(), -(OS_PAGE as i64));
        let after = word.with_resident(word.resident().without(Granules::range(granule, granule + 1)));
        self.ledger.changed(word, after);
        after
    }

    /// Tells whoever touches a page of a file that can't be had.
    pub(crate) fn refuse_lost(&self, page: &Page, granule: u32) -> Served {
        let here = page.addresses(granule, granule + 1);
        self.settle(self.space.poison(here).stop, here)
    }

    /// Whether the page at `address` is of a file and can't be had.
    pub(crate) fn is_lost_in_file(&self, address: usize) -> bool {
        if self.file_regions.load(Ordering::Acquire) == 0 {
            return false;
        }
        let table = self.gate_shared();
        let Some(span) = table.find(address) else { return false };
        let page = table.page_at(span, address);
        span.entries().file().is_some_and(|file| {
            let granule = page.granule_of(address);
            let word = Word::from_bits(span.entry(page.index).load(Ordering::Acquire));
            file.lost_granules(page.index).has(granule) && !word.resident().has(granule)
        })
    }

    /// Moves a staged entry of a file in; the caller has its busy bit.
    pub(super) fn install_staged(
        &self,
        table: &Table,
        span: &Span,
        page: &Page,
        word: Word,
        slot: u32,
    ) -> Word {
        let Some((first, _)) = page.granules.runs().next() else { return word };
        self.install(table, span, page, word, slot, page.granules, (first, false)).0
    }

    /// Writes a staged entry of a file, whose busy bit the caller has taken, back and drops it. False if it could not be written, and
    /// is as it was.
    pub(crate) fn drop_to_file(
        &self,
        file: &PageFile,
        entries: &Entries,
        index: usize,
        word: Word,
        slot: u32,
    ) -> bool {
        let held = self.space.claim_slot(slot);
        let out = self.whole().without(word.resident());
        if file.write_back(index, out, self.space.bytes(&held)).is_err() {
            self.space.release_slot(held);
            return false;
        }
        file.reads.note_gone(index, self.entry_bytes());
        give(&entries[index], word.with_backing(Backing::None).with_warmth(0));
        self.left_staging(slot);
        self.zones.put_ready(&self.space, held);
        true
    }

    fn whole(&self) -> Granules {
        Granules::range(0, (self.entry_bytes() / OS_PAGE) as u32)
    }

    /// Writes what differs from the file of all that is mapped at `range`, and goes on where it can't. What was written is not on
    /// stable storage yet. What fails is told by [`PageFile::take_untold`].
    pub(super) fn write_all_back(
        &self,
        file: &PageFile,
        range: PageRange,
        memory: &RegionMemory,
        scratch: &mut Scratch,
    ) {
        let mut content = AlignedBuffer::new(self.entry_bytes());
        for address in (range.start()..range.end()).step_by(self.entry_bytes()) {
            while !self.write_entry_back(file, address, memory, &mut content, scratch) {
                // Who has it moves it, reads it, or writes it.
                yield_now();
            }
        }
    }

    /// Writes back one entry. False if somebody else has it.
    fn write_entry_back(
        &self,
        file: &PageFile,
        address: usize,
        memory: &RegionMemory,
        content: &mut AlignedBuffer,
        scratch: &mut Scratch,
    ) -> bool {
        let table = self.gate_shared();
        // Unmapped by its user.
        let Some(span) = table.find(address) else { return true };
        let page = table.page_at(span, address);
        let (index, entry) = (page.index, span.entry(page.index));
        let word = Word::from_bits(entry.load(Ordering::Acquire));
        if !word.is_busy() && word.resident().is_empty() && word.backing() == Backing::None {
            return true;
        }
        let Some(word) = try_take(entry) else { return false };
        let bytes = |(from, to): (u32, u32)| from as usize * OS_PAGE..to as usize * OS_PAGE;
        let mut granules = Granules::NONE;
        // What its user has discarded is not there, and asking for it would wait for us.
        let there = word.resident().and(self.space.held_pages(page.addresses(0, self.whole().count())));
        for (from, to) in there.runs() {
            let offset = page.addresses(from, to).start() - memory.range().start();
            let copied = memory.read_what_is_there(offset, &mut content[bytes((from, to))]);
            granules = granules.or(Granules::range(from, from + (copied / OS_PAGE) as u32));
        }
        let entries = Entries::clone(span.entries());
        drop(table);
        let out = self.whole().without(word.resident());
        match word.backing() {
            Backing::None => {}
            Backing::Slot(slot) => {
                let slot = self.space.claim_slot(slot);
                for run in out.runs() {
                    content[bytes(run)].copy_from_slice(&self.space.bytes(&slot)[bytes(run)]);
                }
                self.space.release_slot(slot);
                granules = granules.or(out);
            }
            Backing::Handle(handle) => {
                for run in out.runs() {
                    let into = &mut content[bytes(run)];
                    if let Err(error) =
                        self.store.get(Handle::from_bits(handle), bytes(run).start, into, scratch)
                    {
                        self.stop(unreadable(error));
                    }
                }
                granules = granules.or(out);
            }
        }
        let mut after = word;
        if file.write_back(index, granules, content).is_ok()
            && let Backing::Handle(handle) = word.backing()
        {
            // The file has it again.
            self.store.free(Handle::from_bits(handle));
            after = word.with_backing(Backing::None);
            self.ledger.changed(word, after);
        }
        give(&entries[index], after);
        true
    }
}
