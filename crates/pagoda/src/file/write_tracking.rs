//! Marking writes by address, so that the zones' dirty limits see them, too.
//!
//! Such a write makes no event. The kernel protects the pages of a writable region, notes each
//! first write and lets the thread go on; once a second a thread of the region asks which pages
//! were written. Pages that came in since count as written, too, so that each is compared with the
//! file. So the limits are kept in the background, and not at every moment: a hard bound would be a
//! fault for each first write. Where the kernel can't track, or on a range that its user has
//! unmapped in part, nothing is marked.
//!
//! A mark is a hint: the page may be written again during the look, and a page that reclaim has
//! just evicted is not seen. This module must never take an entry, or wait.

use pagoda_core::page::OS_PAGE;
use pagoda_linux::procfs::pagemap::PagemapScanner;

use crate::file::region::Inner;

/// The bytes of one look: protecting them holds users of the page tables' lock up for about a
/// hundred microseconds.
const LOOK_BYTES: usize = 64 << 20;

/// The state of the thread that looks. One for each region.
pub(super) struct Tracker {
    scanner: PagemapScanner,
}

impl Tracker {
    /// Of a region that is written; None where writes can't be seen.
    pub(super) fn new(inner: &Inner) -> Option<Self> {
        if !inner.file.is_writable() {
            return None;
        }
        let scanner = PagemapScanner::new().ok()?;
        inner.engine().space.track_writes(inner.range).ok()?;
        Some(Self { scanner })
    }
}

impl Inner {
    /// Marks the writes by address since the last call.
    pub(super) fn note_written_by_address(&self, tracker: &mut Tracker) {
        let range = self.range;
        for start in (range.start()..range.end()).step_by(LOOK_BYTES) {
            let mut runs = Vec::new();
            let found = tracker.scanner.take_written(
                start,
                range.end().min(start + LOOK_BYTES),
                |run, _, is_written| {
                    if is_written {
                        runs.push(run);
                    }
                },
            );
            if found.is_err() {
                return;
            }
            runs.into_iter().flat_map(|run| run.step_by(OS_PAGE)).for_each(|at| self.mark_if_dirty(at));
        }
    }

    fn mark_if_dirty(&self, address: usize) {
        let engine = self.engine();
        let offset = address - self.range.start();
        if self.file.dirty.is_marked(offset / engine.entry_bytes()) {
            return;
        }
        let mut content = [0; OS_PAGE];
        let here = self.file.bytes_in(offset as u64, OS_PAGE);
        if here == 0 || self.memory().read_what_is_there(offset, &mut content) < OS_PAGE {
            return;
        }
        if !self.file.holds((offset / OS_PAGE) as u64, &content[..here])
            && let Some(zone) = engine.zone_in_region(address)
        {
            engine.note_dirty(&self.file, offset / engine.entry_bytes(), zone);
        }
    }
}
