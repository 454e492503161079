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

use pagoda_core::page::OS_PAGE;
use pagoda_linux::procfs::pagemap::PagemapScanner;

use crate::file::region::Inner;
use crate::table::{give, try_take};

/// The bytes of one look: protecting them holds users of the page tables' lock up for about a
/// hundred microseconds.
const LOOK_BYTES: usize = 64 << 20;

/// Addresses of busy entries that are kept for the next look: more than are busy at a time. Those
/// beyond are not marked.
const BUSY_MOST: usize = 256;

/// The state of the thread that looks. One for each region.
pub(super) struct Tracker {
    scanner: PagemapScanner,
    /// Written pages whose entries were busy.
    busy: Vec<usize>,
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
        let range = self.range;
        let mut busy = std::mem::take(&mut tracker.busy);
        busy.retain(|at| !self.mark_if_dirty(*at));
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
                break;
            }
            let written = runs.into_iter().flat_map(|run| run.step_by(OS_PAGE));
            busy.extend(written.filter(|at| !self.mark_if_dirty(*at)));
        }
        busy.truncate(BUSY_MOST);
        tracker.busy = busy;
    }

    /// Marks the entry of a page if it differs from the file. False if the entry is busy.
    fn mark_if_dirty(&self, address: usize) -> bool {
        let engine = self.engine();
        let offset = address - self.range.start();
        let index = offset / engine.entry_bytes();
        let here = self.file.bytes_in(offset as u64, OS_PAGE);
        if here == 0 || self.file.dirty.is_marked(index) {
            return true;
        }
        let table = engine.gate_shared();
        // Unmapped by its user.
        let Some(span) = table.find(address) else { return true };
        let page = table.page_at(span, address);
        let entry = span.entry(page.index);
        let Some(word) = try_take(entry) else { return false };
        let granule = page.granule_of(address);
        // Asking for one that its user has discarded would wait for us.
        let is_held = !engine.space.held_pages(page.addresses(granule, granule + 1)).is_empty();
        let mut content = [0; OS_PAGE];
        let is_read = is_held && self.memory().read_what_is_there(offset, &mut content) == OS_PAGE;
        if is_read && !self.file.holds((offset / OS_PAGE) as u64, &content[..here]) {
            engine.note_dirty(&self.file, index, word.zone());
        }
        give(entry, word);
        true
    }
}
