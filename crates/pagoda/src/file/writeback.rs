//! Reading pages from a file, and writing them back.
//!
//! An entry of a file that has no backing is in the file. It is read into a slot and then is staged
//! like any other. When it has been staged for long it is written back, if it is dirty, and
//! dropped. All I/O is done under the entry's busy bit and without the gate. A page that can't be
//! written goes to the store, as if it had no file, and is tried again by the next sync.
//!
//! A sync copies resident pages with the gate held: no page leaves meanwhile. This module must
//! never drop a page that the file does not hold, and never write content of an entry from before
//! it was taken.

use std::ops::Range;
use std::sync::atomic::Ordering;

use pagoda_core::page::OS_PAGE;
use pagoda_core::page_entry::{Backing, Granules, Word};
use pagoda_linux::arena::Slot;
use pagoda_linux::io::direct_file::AlignedBuffer;
use pagoda_linux::mem::region_memory::RegionMemory;
use pagoda_linux::process::thread::yield_now;

use super::page_file::PageFile;
use crate::engine::Engine;
use crate::fault::unreadable;
use crate::file::readahead::is_only_in_file;
use crate::frames::zones::Taker;
use crate::state::pending::Served;
use crate::store::{Handle, Scratch, Store};
use crate::table::{Entries, Page, Span, Table, give, try_take};

/// The most that is written back at once: a disk is at nearly its full speed, and so much is copied
/// with the gate held; as many OS pages as a set of them has bits.
pub(super) const RUN_BYTES: usize = 256 << 10;
const _: () = assert!(RUN_BYTES / OS_PAGE == u64::BITS as usize);

/// The entries of a run, at most.
pub(super) const RUN_PARTS: usize = RUN_BYTES / OS_PAGE;

impl Engine {
    /// Reads an entry, whose busy bit the caller has taken, into a slot, and gives it back as
    /// staged. Without a frame it is given back as it was: false.
    pub(crate) fn fetch_from_file(
        &self,
        file: &PageFile,
        entries: &Entries,
        index: usize,
        word: Word,
        taker: Taker,
    ) -> bool {
        if let Backing::Slot(slot) = word.backing() {
            self.complete_from_file(file, index, word, slot);
            give(&entries[index], word);
            return true;
        }
        let Some(mut slot) = self.frame_for_fetch(false, taker) else {
            give(&entries[index], word);
            return false;
        };
        file.read(index, self.space.bytes_mut(&mut slot));
        self.ledger.fetched(self.entry_bytes() as u64);
        self.note_use();
        let slot = self.space.release_slot(slot);
        self.went_into_staging(slot, self.whole());
        give(&entries[index], word.with_backing(Backing::Slot(slot)));
        // Its lost pages are never moved in, and are dropped with it.
        self.queue_staged(entries, index, slot);
        true
    }

    /// Whether a granule that the region has not got is in its file alone: its page is out, or this
    /// part was dropped while the others could not leave the region.
    pub(crate) fn is_left_in_file(&self, backing: Backing, granule: u32) -> bool {
        let Backing::Slot(slot) = backing else { return backing == Backing::None };
        let held = self.space.claim_slot(slot);
        let has = self.space.pages_of(&held).has(granule);
        self.space.release_slot(held);
        !has
    }

    /// Reads granules into the slot of a staged page that neither it nor the region has. The caller
    /// has the busy bit.
    pub(crate) fn complete_from_file(&self, file: &PageFile, index: usize, word: Word, slot: u32) {
        let mut held = self.space.claim_slot(slot);
        let absent = self.whole().without(word.resident()).without(self.space.pages_of(&held));
        for run in absent.runs() {
            file.read_granules(index, run, &mut self.space.bytes_mut(&mut held)[bytes(run)]);
        }
        self.space.release_slot(held);
        self.went_into_staging(slot, absent);
        self.ledger.took(i64::from(absent.count()) * OS_PAGE as i64);
    }

    /// A fault on a page of a file that is resident by the table, whose busy bit the caller has
    /// taken. It was served meanwhile; or it was discarded, and then is in the file. Returns its
    /// state now.
    pub(crate) fn look_for_hole(&self, page: &Page, word: Word, granule: u32) -> Word {
        let here = page.addresses(granule, granule + 1);
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

    /// Refuses a touch of a page of a file that can't be had.
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
            let word = span.word(page.index);
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

    /// The granules of a staged page that its slot has, and the region has not.
    pub(super) fn outside(&self, word: Word, held: &Slot) -> Granules {
        self.whole().without(word.resident()).and(self.staged_frames(held))
    }

    fn whole(&self) -> Granules {
        Granules::range(0, (self.entry_bytes() / OS_PAGE) as u32)
    }

    /// Writes all dirty pages that are mapped at `memory`, and goes on after an error. The writes
    /// are not on stable storage yet. [`PageFile::take_untold`] tells the errors.
    pub(super) fn write_all_back(&self, file: &PageFile, memory: &RegionMemory, work: &mut Work) {
        let entries = memory.range().len() / self.entry_bytes();
        let mut first = 0;
        while first < entries {
            let run = first..entries.min(first + RUN_BYTES / self.entry_bytes());
            let done = self.write_run_back(file, memory, run, work);
            if done == 0 {
                // The holder of the busy bit moves it, reads it, or writes it.
                yield_now();
            }
            first += done;
        }
    }

    /// Writes back the dirty pages in memory of the entries `run`, at most [`RUN_BYTES`] of them.
    /// Returns how many were looked at, from the first on: none if that one is busy.
    pub(super) fn write_run_back(
        &self,
        file: &PageFile,
        memory: &RegionMemory,
        run: Range<usize>,
        work: &mut Work,
    ) -> usize {
        let (entry_bytes, first) = (self.entry_bytes(), run.start);
        let Work { scratch, content } = work;
        let pages_before = |count: usize| count * entry_bytes / OS_PAGE;
        let table = self.gate_shared();
        let address = |index: usize| memory.range().start() + index * entry_bytes;
        // Unmapped by its user.
        let Some(span) = table.find(address(first)) else { return 1 };
        let is_out =
            |index: &usize| span.range().contains(address(*index)) && is_only_in_file(span.entries(), *index);
        let out = run.clone().take_while(is_out).inspect(|index| self.note_clean(file, *index)).count();
        if out > 0 {
            return out;
        }
        let (mut taken, mut count) = ([Word::EMPTY; RUN_PARTS], 0);
        let mut wanted = 0u64;
        for index in run {
            if !span.range().contains(address(index)) || is_out(&index) {
                break;
            }
            let Some(word) = try_take(span.entry(index)) else { break };
            // Before the look: a writer from now on marks it anew.
            self.note_clean(file, index);
            let page = table.page_at(span, address(index));
            // A page that its user has discarded is not there, and asking for it would wait for us.
            let there = word.resident().and(self.space.held_pages(page.addresses(0, self.whole().count())));
            let content = &mut content[count * entry_bytes..];
            for (from, to) in there.runs() {
                let offset = page.addresses(from, to).start() - memory.range().start();
                let copied = memory.read_what_is_there(offset, &mut content[bytes((from, to))]);
                let copied = Granules::range(from, from + (copied / OS_PAGE) as u32);
                wanted |= u64::from(copied.bits()) << pages_before(count);
            }
            taken[count] = word;
            count += 1;
        }
        let entries = Entries::clone(span.entries());
        drop(table);
        for (i, word) in taken[..count].iter().enumerate() {
            let content = &mut content[i * entry_bytes..];
            let out = self.read_outside(*word, content, scratch);
            wanted |= u64::from(out.bits()) << pages_before(i);
        }
        let is_written = file.write_back(first, wanted, &[&content[..count * entry_bytes]], true).is_ok();
        for (index, word) in (first..).zip(&taken[..count]) {
            let mut after = *word;
            if !is_written {
                self.note_unwritten(file, index, *word);
            } else if let Backing::Handle(handle) = word.backing() {
                // The file has it again.
                self.store.free(Handle::from_bits(handle));
                after = word.with_backing(Backing::None);
                self.ledger.changed(*word, after);
            }
            give(&entries[index], after);
        }
        count
    }

    /// Reads the granules of an entry that this thread has taken from its slot or the store, where
    /// the region has not got them. Stops the process if the store can't read one.
    fn read_outside(&self, word: Word, content: &mut [u8], scratch: &mut Scratch) -> Granules {
        match word.backing() {
            Backing::None => Granules::NONE,
            Backing::Slot(slot) => {
                let held = self.space.claim_slot(slot);
                let out = self.outside(word, &held);
                for run in out.runs() {
                    content[bytes(run)].copy_from_slice(&self.space.bytes(&held)[bytes(run)]);
                }
                self.space.release_slot(held);
                out
            }
            Backing::Handle(handle) => {
                let out = self.whole().without(word.resident());
                for run in out.runs() {
                    let (from, into) = (bytes(run).start, &mut content[bytes(run)]);
                    if let Err(error) = self.store.get(Handle::from_bits(handle), from, into, scratch) {
                        self.stop(unreadable(error));
                    }
                }
                out
            }
        }
    }
}

/// Where granules lie in their entry's content.
fn bytes((from, to): (u32, u32)) -> Range<usize> {
    from as usize * OS_PAGE..to as usize * OS_PAGE
}

/// The buffers of a thread that writes back.
pub(super) struct Work {
    pub(super) scratch: Scratch,
    pub(super) content: AlignedBuffer,
}

impl Work {
    pub(super) fn new(engine: &Engine) -> Self {
        let mut scratch = Scratch::new(engine.base);
        scratch.taker = engine.zones.new_taker();
        Self { scratch, content: AlignedBuffer::new(RUN_BYTES) }
    }
}
