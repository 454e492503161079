//! Dropping what a sequential reader of a file larger than memory has left behind.
//!
//! The policy is `pagoda_core::fault::readahead`'s. Pages that were read by calls are staged;
//! those of a reader by address are moved out first, in runs. Dirty ones are written back. So the
//! frames of the next window are those of the pages behind the reader, which are still in the
//! processor's cache, and no others leave memory. This module must never drop a page that the file
//! does not hold, nor wait for one.

use std::ops::Range;

use pagoda_core::page::HUGE_FRAME;
use pagoda_core::page_entry::Backing;
use pagoda_linux::mem::range::PageRange;

use super::page_file::PageFile;
use crate::engine::Engine;
use crate::file::orders::Reader;
use crate::frames::pool::BATCH_ORDER;
use crate::store::Scratch;
use crate::table::{Entries, give, try_take};

impl Engine {
    /// Drops those entries of `behind`, of a file that is mapped at `range`, that can go now.
    pub(super) fn drop_behind(
        &self,
        file: &PageFile,
        entries: &Entries,
        range: PageRange,
        (behind, reader): (Range<usize>, Reader),
        scratch: &mut Scratch,
    ) {
        if reader == Reader::InRegion {
            self.stage_behind(range, behind.clone(), scratch);
        }
        for index in behind {
            let Some(word) = try_take(&entries[index]) else { continue };
            match word.backing() {
                Backing::Slot(slot)
                    if word.resident().is_empty() && self.drop_to_file(file, entries, index, word, slot) => {}
                _ => give(&entries[index], word),
            }
        }
    }

    /// Stages those entries that are in the region as a whole, in runs.
    fn stage_behind(&self, range: PageRange, behind: Range<usize>, scratch: &mut Scratch) {
        let entry_bytes = self.entry_bytes();
        let mut first = behind.start;
        while first < behind.end {
            let at = range.start() + first * entry_bytes;
            // No run crosses a border of 2 MiB: the kernel may have joined pages there.
            let together = (HUGE_FRAME - at % HUGE_FRAME) / entry_bytes;
            let mut count = (behind.end - first).min(1 << BATCH_ORDER).min(together.max(1));
            let mut copied = Vec::new();
            {
                let table = self.gate_shared();
                if self.is_released() || self.is_making_any_own() || table.order.deferred() > 0 {
                    return;
                }
                let Some(span) = table.find(at) else { return };
                if self.leaves_huge(&table, span, at) {
                    return;
                }
                // It stages as many as a power of two.
                count = 1 << count.ilog2();
                let index = table.page_at(span, at).index;
                if self.stage_run(&table, span, index, count, &mut copied).is_none() {
                    for index in index..index + count {
                        self.stage_page(&table, span, index, &mut copied);
                    }
                }
            }
            for out in copied {
                self.settle_copied(out, scratch);
            }
            first += count;
        }
    }
}
