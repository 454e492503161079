//! Evicted pages of which the store has a copy: they were swapped in, and may have been written
//! since.
//!
//! The page has left the region first, so that no thread writes to it while it is compared. This
//! module must never take a copy for the page without having compared every byte that was evicted,
//! and never keep a copy that is out of date.

use pagoda_core::page_entry::{Backing, Granules, Word};
use pagoda_linux::arena::Slot;

use crate::engine::Engine;
use crate::state::hand::Step;
use crate::stats::counters::Counter;
use crate::store::{Handle, Put, Scratch, Store};
use crate::table::{Entries, give};

/// Granules that were moved out of a region and of which the store may have a copy. The busy bit of
/// their entry is held.
pub(crate) struct Copied {
    pub(crate) entries: Entries,
    pub(crate) index: usize,
    /// As it was before they went.
    pub(crate) word: Word,
    pub(crate) handle: u64,
    pub(crate) slot: Slot,
    pub(crate) out: Granules,
}

impl Engine {
    /// Ends the eviction of granules that have a stored copy. If the copy is equal, only the frames
    /// are freed. Else the copy is out of date: a part of a page is stored anew with the rest, a
    /// whole page is staged.
    pub(crate) fn settle_copied(&self, copied: Copied, scratch: &mut Scratch) -> Step {
        let Copied { entries, index, word, handle, slot, out } = copied;
        let entry = &entries[index];
        let stored = Handle::from_bits(handle);
        let after = word.with_resident(word.resident().without(out));
        let bytes = |(from, to): (u32, u32)| from as usize * 4096..to as usize * 4096;
        let is_clean = |run: (u32, u32), scratch: &mut Scratch| {
            let content = &self.space.bytes(&slot)[bytes(run)];
            match self.store.holds(stored, bytes(run).start, content, scratch) {
                Ok(same) => same,
                Err(error) => self.stop(crate::fault::unreadable(error)),
            }
        };
        let all = Granules::range(0, (self.entry_bytes() / 4096) as u32);
        // A whole page has one digest. Of a part each granule is looked at, so that only those are
        // packed that were written.
        let written = if out == all {
            if is_clean((0, all.count()), scratch) { Granules::NONE } else { out }
        } else {
            let granules = out.runs().flat_map(|(from, to)| from..to);
            granules
                .filter(|at| !is_clean((*at, at + 1), scratch))
                .fold(Granules::NONE, |written, at| written.or(Granules::range(at, at + 1)))
        };
        if written.is_empty() {
            self.counters.add(Counter::Evictions, 1);
            self.counters.add(Counter::EvictionsClean, 1);
            self.store.note_evicted(stored, out);
            self.zones.put_pieces(&self.space, slot, out);
            self.ledger.changed(word, after);
            give(entry, after);
            return Step::FrameReady;
        }
        let rest = all.without(out).without(after.resident());
        // A hole of a staged page reads as zero, unless it is of a file.
        let kept = if entries.file().is_some() { rest } else { rest.and(self.store.content_of(stored)) };
        let content = self.space.bytes(&slot);
        if !rest.is_empty()
            && let Some(anew) = self.store_part(stored, (out, written), kept, content, scratch)
        {
            self.counters.add(Counter::Evictions, 1);
            self.counters.add(Counter::Stores, 1);
            if anew != stored {
                self.ledger.store_has(self.store.usage().memory_committed_bytes.get());
                self.store.free(stored);
            }
            self.store.note_evicted(anew, out);
            self.zones.put_pieces(&self.space, slot, out);
            let after = after.with_backing(Backing::Handle(anew.to_bits()));
            self.ledger.changed(word, after);
            give(entry, after);
            return Step::FrameReady;
        }
        let mut slot = slot;
        for run in kept.runs() {
            // Fresh memory, for as long as the page is staged.
            let content = &mut self.space.bytes_mut(&mut slot)[bytes(run)];
            if let Err(error) = self.store.get(stored, bytes(run).start, content, scratch) {
                self.stop(crate::fault::unreadable(error));
            }
        }
        self.ledger.took(i64::from(kept.count()) * 4096);
        self.store.free(stored);
        self.ledger.changed(word, after.with_backing(Backing::None));
        self.publish_staged(&entries, index, after, (slot, out.or(kept)));
        Step::Staged
    }

    /// Stores a page anew of which the granules `written` of those that are `out` are as in
    /// `content`, and `kept` as before. Returns its handle, the same where it was changed in place;
    /// None if all of it has to be put.
    fn store_part(
        &self,
        stored: Handle,
        (out, written): (Granules, Granules),
        kept: Granules,
        content: &[u8],
        scratch: &mut Scratch,
    ) -> Option<Handle> {
        let is_in_memory = self.store.is_in_memory(stored);
        if kept.is_empty() && !is_in_memory && 2 * out.count() as usize * 4096 <= self.entry_bytes() {
            // Nothing of the copy is needed: it is not read.
            return match self.store.put_present(content, out, scratch) {
                Ok(Put::Stored(anew)) => Some(anew),
                Ok(Put::Zero) | Err(_) => None,
            };
        }
        // A page has to be in memory before it is packed anew with its written part.
        if !is_in_memory {
            self.promote(stored.to_bits(), scratch);
        }
        let bytes = |(from, to): (u32, u32)| from as usize * 4096..to as usize * 4096;
        let changed: Vec<_> = written.runs().map(bytes).collect();
        if self.store.rewrite(stored, &changed, content, scratch) {
            return Some(stored);
        }
        let anew = self.store.put_changed(stored, &changed, content, scratch);
        anew.unwrap_or_else(|error| self.stop(crate::fault::unreadable(error)))
    }
}
