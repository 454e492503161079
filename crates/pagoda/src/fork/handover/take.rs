//! The taking side: a child enters the pages from its parent into its own table and store.
//!
//! It runs before any other thread of the child's engine. This module must never let the table miss
//! a page that came. Where the store is full, the content goes to its place; where that can't be,
//! the child can't go on. Nor may the table have in the end a range that the child did not get, or
//! one that its own engine has mapped.

use std::io;
use std::sync::Arc;

use pagoda_core::page::OS_PAGE;
use pagoda_core::page_entry::{Backing, Word};
use pagoda_core::size::Bytes;
use pagoda_linux::codec::pack::PageUnpacker;
use pagoda_linux::mem::own_memory::parts;
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::process::offer::{Lent, Stream};
use pagoda_linux::procfs::pagemap::PagemapScanner;
use pagoda_linux::uffd::{Errno as KernelErrno, Stop};

use super::stream::{Kind, Record};
use crate::engine::Engine;
use crate::stats::counters::Counter;
use crate::store::{Handle, LENT_KEYS, Put, PutError, Scratch, Store};
use crate::table::{Filler, Page, Table, give};

/// The share of its budget that the child fills with taken pages before it spills: one part in
/// this.
const STORED_SHARE: u64 = 2;

/// As much it may always fill.
const STORED_LEAST: u64 = 4 << 20;

impl Engine {
    /// Takes all that this process lacks from its parent. Before any other thread of this engine
    /// runs.
    ///
    /// # Errors
    /// The parent is gone or stands still, or there is no room for all of it: this process can't go
    /// on then.
    pub(crate) fn take_over(
        &self,
        stream: &Arc<Stream>,
        mut lent_file: Option<Lent>,
        present: &mut PagemapScanner,
        scratch: &mut Scratch,
    ) -> io::Result<()> {
        let mut table = self.gate_exclusive();
        let (mut content, mut packed) = (vec![0; self.entry_bytes()], vec![0; self.entry_bytes()]);
        let mut lent = vec![0; self.store.lent_bytes()];
        let mut unpacker = PageUnpacker::default();
        let mut holes = Vec::new();
        loop {
            let Record { kind, address, len, skipped } = Record::receive(stream)?;
            let bytes = match kind {
                Kind::End => break,
                Kind::Managed => {
                    let range = PageRange::new(address, address.wrapping_add(len));
                    let range = range.ok_or(io::ErrorKind::InvalidData)?;
                    self.take_range(&mut table, present, range, skipped, &mut holes)?;
                    continue;
                }
                Kind::Packed => packed.get_mut(..len).ok_or(io::ErrorKind::InvalidData)?,
                Kind::Plain => content.get_mut(..len).ok_or(io::ErrorKind::InvalidData)?,
                Kind::Keys => {
                    let mut keys = [0; LENT_KEYS];
                    stream.receive(&mut keys)?;
                    let lent = lent_file.take().ok_or(io::ErrorKind::InvalidData)?;
                    // Both have one configuration: where the one has a file, so has the other.
                    if !self.store.borrow_from(lent, &keys, stream) {
                        return Err(io::ErrorKind::InvalidData.into());
                    }
                    continue;
                }
                Kind::Lent => {
                    stream.receive(lent.get_mut(..len).ok_or(io::ErrorKind::InvalidData)?)?;
                    let handle = self.store.borrow(&lent[..len]).ok_or(io::ErrorKind::InvalidData)?;
                    self.take_lent(&table, address, handle);
                    continue;
                }
            };
            stream.receive(bytes)?;
            if kind == Kind::Packed {
                unpacker.unpack(&packed[..len], &mut content).ok_or(io::ErrorKind::InvalidData)?;
            }
            let packed = (kind == Kind::Packed).then_some(&packed[..len]);
            self.take_page(&table, address, packed, &content, scratch)?;
        }
        // Only now: a page that begins in a hole and goes on behind it is found by its beginning.
        for hole in holes {
            self.discard(&table, hole, scratch);
            table.cut(hole);
        }
        self.ledger.store_has(self.store.usage().memory_committed_bytes.get());
        Ok(())
    }

    fn take_range(
        &self,
        table: &mut Table,
        present: &mut PagemapScanner,
        range: PageRange,
        skipped: usize,
        holes: &mut Vec<PageRange>,
    ) -> io::Result<()> {
        let mut registered = Ok(());
        parts(range, |part, is_own| {
            if is_own {
                // Mapped by this engine where there was nothing.
                holes.push(part);
            } else if registered.is_ok() {
                registered = self.register_what_is_there(part, holes);
            }
        });
        // It would read zero where its parent's memory is swapped out.
        registered?;
        // A page at a boundary of the parent's has content for each side. The part of one side's
        // page beyond the boundary is empty.
        table.insert_apart(range, skipped, Filler::Engine);
        self.mark_present(table, present, range);
        self.counters.add(Counter::AdoptedRanges, 1);
        self.counters.add(Counter::AdoptedBytes, range.len() as u64);
        Ok(())
    }

    /// Registers the mapped parts of `range` in this process, and notes the others: its parent has
    /// kept them (madvise DONTFORK).
    fn register_what_is_there(
        &self,
        range: PageRange,
        holes: &mut Vec<PageRange>,
    ) -> Result<(), KernelErrno> {
        match self.space.register(range) {
            Ok(()) => Ok(()),
            // There is nothing of it.
            Err(KernelErrno::INVAL) => {
                holes.push(range);
                Ok(())
            }
            // A part is not there. Of one page that can't be.
            Err(KernelErrno::FAULT) if range.len() > OS_PAGE => {
                let half = range.len() / OS_PAGE / 2 * OS_PAGE;
                self.register_what_is_there(PageRange::at(range.start(), half), holes)?;
                self.register_what_is_there(PageRange::at(range.start() + half, range.len() - half), holes)
            }
            Err(errno) => Err(errno),
        }
    }

    /// Enters a page that stays in the parent's file, or lets it go if nothing is missing of it
    /// here.
    fn take_lent(&self, table: &Table, address: usize, handle: Handle) {
        let Some(span) = table.find(address) else { return self.store.free(handle) };
        let page = table.page_at(span, address);
        let word = self.take(span.entries(), page.index);
        let is_missing = !page.granules.without(word.resident()).is_empty();
        let after = if is_missing { word.with_backing(Backing::Handle(handle.to_bits())) } else { word };
        self.ledger.changed(word, after);
        give(span.entry(page.index), after);
        if !is_missing {
            self.store.free(handle);
        }
    }

    fn take_page(
        &self,
        table: &Table,
        address: usize,
        packed: Option<&[u8]>,
        content: &[u8],
        scratch: &mut Scratch,
    ) -> io::Result<()> {
        let Some(span) = table.find(address) else { return Ok(()) };
        let page = table.page_at(span, address);
        let word = self.take(span.entries(), page.index);
        let is_missing = !page.granules.without(word.resident()).is_empty();
        let after = match if is_missing { self.put_taken(packed, content, scratch) } else { Ok(Put::Zero) } {
            Ok(Put::Stored(handle)) => Some(word.with_backing(Backing::Handle(handle.to_bits()))),
            Ok(Put::Zero) => Some(word),
            Err(_) => self.put_in_place(&page, word, content),
        };
        self.ledger.changed(word, after.unwrap_or(word));
        give(span.entry(page.index), after.unwrap_or(word));
        after.map(|_| ()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    /// Copies the missing part of a page to its place, because the store is full. None if there is
    /// no memory for it.
    fn put_in_place(&self, page: &Page, word: Word, content: &[u8]) -> Option<Word> {
        for (from, to) in page.granules.without(word.resident()).runs() {
            let content = &content[from as usize * OS_PAGE..to as usize * OS_PAGE];
            let mut done = 0;
            while done < content.len() {
                let at = PageRange::at(page.addresses(from, to).start() + done, content.len() - done);
                let filled = self.space.fill_with(at, &content[done..]);
                done += filled.bytes;
                match filled.stop {
                    None => {}
                    // Its parent filled it before this process accepted.
                    Some(Stop::Exists) => done += OS_PAGE,
                    Some(_) => return None,
                }
            }
        }
        let missing = page.granules.without(word.resident());
        Some(self.came_in(word, missing, self.zone_of_kernel_memory(word)))
    }

    fn put_taken(
        &self,
        packed: Option<&[u8]>,
        content: &[u8],
        scratch: &mut Scratch,
    ) -> Result<Put, PutError> {
        let most = (self.marks().budget().get() / STORED_SHARE).max(STORED_LEAST);
        if self.store.usage().memory_used_bytes.get() > most {
            // By much at once, for each time is a trip to the disk. Where there is no other place,
            // memory takes it.
            let _ = self.store.spill(Bytes::new(most / 2));
        }
        match packed.map(|packed| self.store.put_packed(packed, content)) {
            Some(Ok(Some(handle))) => Ok(Put::Stored(handle)),
            Some(Ok(None)) | None => self.store.put(content, scratch),
            Some(Err(error)) => Err(error),
        }
    }
}

#[cfg(test)]
#[path = "take_test.rs"]
mod tests;
