//! Marking writes by address, so that the zones' dirty limits see them, too.
//!
//! Such a write makes no event. The kernel protects the pages of a writable region, notes each
//! first write and lets the thread go on; once a second a thread of the region asks which pages
//! were written. Pages that came in since count as written, too, so that each is compared with the
//! file. So the limits are kept in the background, and not at every moment: a hard bound would be a
//! fault for each first write. Where the kernel can't track, or on a range that its user has
//! unmapped in part, nothing is marked.
//!
//! A page is marked with its entry taken: a sync meanwhile would write it, and leave the mark.
//! An entry that is busy is looked at again the next time. A mark is a hint still: a page that
//! reclaim has just evicted is not seen. This module must never wait.

use std::ops::Range;

use pagoda_core::page::OS_PAGE;
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::procfs::pagemap::PagemapScanner;

use crate::file::region::Inner;
use crate::file::writeback::Work;
use crate::table::{give, try_take};

/// The bytes of one look: protecting them holds users of the page tables' lock up for about a
/// hundred microseconds.
const LOOK_BYTES: usize = 64 << 20;

/// Pages of busy entries that are kept for the next look: more than are busy at a time. Those
/// beyond are not marked.
const BUSY_MOST: usize = 256;

/// The state of the thread that looks. One for each region.
pub(super) struct Tracker {
    scanner: PagemapScanner,
    /// Written pages of entries that were busy.
    busy: Vec<PageRange>,
}

impl Tracker {
    /// Of a region that is written; None where writes can't be seen.
    pub(super) fn new(inner: &Inner) -> Option<Self> {
        if !inner.file.is_writable() {
            return None;
        }
        let scanner = PagemapScanner::new().ok()?;
        inner.engine().space.track_writes(inner.range).ok()?;
        Some(Self { scanner, busy: Vec::new() })
    }
}

impl Inner {
    /// Marks the writes by address since the last call.
    pub(super) fn note_written_by_address(&self, tracker: &mut Tracker) {
        self.with_work(|work| {
            let range = self.range;
            let mut busy = std::mem::take(&mut tracker.busy);
            busy.retain(|pages| !self.mark_if_dirty(*pages, work));
            for start in (range.start()..range.end()).step_by(LOOK_BYTES) {
                let mut written = Vec::new();
                let end = range.end().min(start + LOOK_BYTES);
                let found = tracker.scanner.take_written(start, end, |run, _, is_written| {
                    if is_written {
                        written.extend(self.by_entry(run));
                    }
                });
                if found.is_err() {
                    break;
                }
                busy.extend(written.into_iter().filter(|pages| !self.mark_if_dirty(*pages, work)));
            }
            busy.truncate(BUSY_MOST);
            tracker.busy = busy;
        });
    }

    /// The parts of some pages, each within an entry.
    fn by_entry(&self, run: Range<usize>) -> impl Iterator<Item = PageRange> {
        let (start, entry_bytes) = (self.range.start(), self.engine().entry_bytes());
        let mut at = run.start;
        std::iter::from_fn(move || {
            let end = run.end.min(start + ((at - start) / entry_bytes + 1) * entry_bytes);
            let part = (at < end).then(|| PageRange::at(at, end - at));
            at = end;
            part
        })
    }

    /// Marks the entry of these pages if one of them differs from the file. False if it is busy.
    fn mark_if_dirty(&self, pages: PageRange, work: &mut Work) -> bool {
        let engine = self.engine();
        let offset = pages.start() - self.range.start();
        let index = offset / engine.entry_bytes();
        let here = self.file.bytes_in(offset as u64, pages.len());
        if here == 0 || self.file.dirty.is_marked(index) {
            return true;
        }
        let table = engine.gate_shared();
        // Unmapped by its user.
        let Some(span) = table.find(pages.start()) else { return true };
        let page = table.page_at(span, pages.start());
        let entry = span.entry(page.index);
        let Some(word) = try_take(entry) else { return false };
        // Asking for one that its user has discarded would wait for us.
        let held = engine.space.held_pages(pages);
        let differs = held.runs().any(|(from, to)| {
            let [from, to] = [from, to].map(|granule| granule as usize * OS_PAGE);
            let copied = self.memory().read_what_is_there(offset + from, &mut work.content[..to - from]);
            let known = here.saturating_sub(from).min(copied);
            let first = ((offset + from) / OS_PAGE) as u64;
            let mut read = (first..).zip(work.content[..known].chunks(OS_PAGE));
            read.any(|(page, bytes)| !self.file.holds(page, bytes))
        });
        if differs {
            engine.note_dirty(&self.file, index, word.zone());
        }
        give(entry, word);
        true
    }
}
