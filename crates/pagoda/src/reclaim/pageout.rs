//! Paging out a range that its owner will not need for a while, as madvise(2) does with
//! `MADV_PAGEOUT`.
//!
//! Pages take the way of reclaim: staged, then stored. A page that can't go stays. The call waits
//! for the store, and for a bounded time for busy entries: a faulting thread may run on before its
//! handler has given the entry back.

use std::sync::Arc;

use pagoda_core::page::{HUGE_FRAME, OS_PAGE};
use pagoda_core::page_entry::Backing;
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::process::thread::{now_ns, yield_now};

use crate::engine::Engine;
use crate::state::hand::Step;
use crate::store::{PutError, Scratch};
use crate::table::{Filler, Span};

/// How long one call waits for busy entries. A fetch from a slow store may take longer; that page
/// stays.
const BUSY_NS: u64 = 1_000_000_000;

impl Engine {
    /// The part of a span that `range` touches, in units that leave together: entries, or huge
    /// frames.
    fn pages_around(&self, span: &Span, range: PageRange) -> PageRange {
        let base = if span.filler() == Filler::EngineHuge { HUGE_FRAME } else { self.entry_bytes() };
        let start = range.start() & !(base - 1);
        PageRange::at(start, range.end().next_multiple_of(base) - start)
    }

    /// Stores the base pages that `range` touches, as far as they can go.
    pub(crate) fn page_out(&self, range: PageRange, scratch: &mut Scratch) -> Result<(), PutError> {
        let busy_until_ns = now_ns() + BUSY_NS;
        let mut at = range.start();
        while at < range.end() {
            let table = self.gate_shared();
            if self.is_released() {
                return Ok(());
            }
            let Some(span) = table.next_from(at).filter(|span| span.range().start() < range.end()) else {
                return Ok(());
            };
            // Memory between spans is not managed.
            at = at.max(span.range().start());
            let span_end = span.range().end();
            let page = table.page_at(span, at);
            let last = span.indices(span.range(), table.entry_bytes()).end;
            match span.entries().used(page.index..last).next() {
                Some(used) if used == page.index => {}
                // An entry that was never used has no page to evict.
                used => {
                    let page = used.map(|used| span.page(used, span.range(), table.entry_bytes()));
                    at = page.map_or(span_end, |page| page.addresses(0, 1).start());
                    continue;
                }
            }
            let together = self.pages_around(span, PageRange::at(at, OS_PAGE)).intersection(span.range());
            let mut words = together
                .into_iter()
                .flat_map(|together| span.used(together, table.entry_bytes()))
                .map(|index| span.entries().word(index));
            let is_busy = words.any(|word| word.is_busy());
            drop(words);
            if is_busy && now_ns() < busy_until_ns {
                drop(table);
                yield_now();
                continue;
            }
            let entries = Arc::clone(span.entries());
            if self.leaves_huge(&table, span, at) && table.order.deferred() == 0 {
                let part = self.pages_around(span, range);
                match self.evict_of_huge(table, at, part, scratch) {
                    Step::Full(error) => return Err(error),
                    Step::Again => yield_now(),
                    // A part that could not leave stays.
                    _ => at = (at & !(HUGE_FRAME - 1)).saturating_add(HUGE_FRAME).min(span_end),
                }
                continue;
            }
            let mut copied = Vec::new();
            let step = if table.order.deferred() > 0 {
                Step::Again
            } else {
                self.stage_page(&table, span, page.index, &mut copied)
            };
            drop(table);
            for out in copied {
                self.settle_copied(out, scratch);
            }
            if step == Step::Again {
                // A handler reads the event that is in the way.
                yield_now();
                continue;
            }
            let word = entries.word(page.index);
            if let Backing::Slot(slot) = word.backing()
                && let Some(Step::Full(error)) = self.store_staged(&entries, page.index, slot, scratch)
            {
                return Err(error);
            }
            // Of a base page that a hole cuts in two, the rest is another span's.
            let next = (at - page.granule_of(at) as usize * 4096).wrapping_add(self.entry_bytes());
            at = next.min(span_end);
        }
        Ok(())
    }
}
