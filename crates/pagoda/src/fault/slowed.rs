//! Faults that wait to slow their threads down, while a region is sent that is written too fast.
//!
//! A migration stages pages that were written (`migrate/slow`) and marks them. The first fault on
//! such a page is put aside: its handler goes on, and its thread sleeps in the kernel until the
//! migration wakes it. The fault that it has then is served as any other.
//!
//! A page that comes in by a move counts as written, though it may have been read only. So what the
//! fault does not write comes in by a copy that is write-protected from its first moment, where no
//! write can be missed by that: the content was sent as it is, or it is still to be read by the
//! migration. Both hold until the page is back, since a page that is out can't be written. This
//! module must never protect a page whose last write the migration has not seen.

use pagoda_core::page_entry::{Backing, Granules, Word};
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::process::thread::current_id;

use crate::engine::Engine;
use crate::state::pending::Fault;
use crate::state::slowed::SlowedPages;
use crate::table::Page;

impl Engine {
    /// Has a fault wait, if it is the first on a slowed page. False if it is to be served now.
    pub(crate) fn puts_aside(&self, fault: &Fault) -> bool {
        let page = PageRange::page(fault.at.page());
        self.slowed
            .find(page.start())
            .is_some_and(|slowed| self.is_first(&slowed, page) && slowed.put_aside(page, fault.thread))
    }

    /// The same for a fault that is served in its own thread, which waits here.
    pub(crate) fn wait_slowed(&self, address: usize) {
        let page = PageRange::page(address);
        if let Some(slowed) = self.slowed.find(address)
            && self.is_first(&slowed, page)
        {
            slowed.wait_here(current_id());
        }
    }

    /// Whether a fault on `page` is the first since the page was slowed. A page that was evicted or
    /// discarded meanwhile waits for nothing, and none does while memory is short.
    fn is_first(&self, slowed: &SlowedPages, page: PageRange) -> bool {
        if !slowed.take_mark(page) || self.free() < self.marks().low {
            return false;
        }
        let table = self.gate_shared();
        table.find(page.start()).is_some_and(|span| {
            let at = table.page_at(span, page.start());
            let word = span.word(at.index);
            matches!(word.backing(), Backing::Slot(_)) && !word.resident().has(at.granule_of(page.start()))
        })
    }

    /// Whether the writers of the region with this page are slowed down. All of its staged part
    /// comes back with one fault then.
    pub(super) fn is_slowed(&self, page: &Page) -> bool {
        first_address(page).is_some_and(|address| self.slowed.find(address).is_some())
    }

    /// The granules of a staged page that are to come in write-protected by a fault on `granule`.
    /// Its busy bit is held.
    pub(super) fn comes_protected(&self, page: &Page, word: Word, (granule, write): (u32, bool)) -> Granules {
        let slowed = first_address(page).and_then(|address| self.slowed.find(address));
        let Some(slowed) = slowed else { return Granules::NONE };
        let mut clean = Granules::NONE;
        for at in page.granules.runs().flat_map(|(from, to)| from..to) {
            let here = page.addresses(at, at + 1);
            if slowed.range.intersection(here).is_none() {
                continue;
            }
            slowed.unmark(here);
            if word.is_sent() || slowed.is_due(here) {
                clean = clean.or(Granules::range(at, at + 1));
            }
        }
        // The copies are there beside their frames for a moment. With several zones each frame
        // begins in a slot.
        if !self.has_room() || self.zones.are_several() {
            return Granules::NONE;
        }
        if write { clean.without(Granules::range(granule, granule + 1)) } else { clean }
    }

    /// Threads that wait to be slowed down run again.
    pub(crate) fn hurry_slowed(&self) {
        self.slowed.hurry();
    }
}

fn first_address(page: &Page) -> Option<usize> {
    page.granules.runs().next().map(|(from, to)| page.addresses(from, to).start())
}
