//! The limit of a region: memory, staged and stored content together.
//!
//! One noisy tenant fills a store that all regions of a manager share, and a full store ends the
//! process. A region with a limit is refused before: a first touch beyond it fails, for its thread
//! alone. Pages that the region holds already stay readable and writable. First touches count the
//! held bytes, which is never too little. The table counts them anew when the limit seems to be
//! reached. This module must never refuse a page that holds anything.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pagoda_core::page::OS_PAGE;
use pagoda_core::page_entry::{Backing, Granules};
use pagoda_linux::mem::range::PageRange;

use crate::engine::Engine;
use crate::state::limits::{Limit, Touch};
use crate::table::{Table, give};

impl Engine {
    /// Counts a first touch of `bytes` at `address`, which the caller is about to serve. None if
    /// the region has reached its limit: the touch is to be refused.
    pub(crate) fn admit_touch(&self, table: &Table, address: usize, bytes: u64) -> Option<Touch> {
        let Some(limit) = self.limits.at(address) else { return Some(Touch(None)) };
        if !self.has_room_within(&limit, table, bytes) {
            limit.has_refused.store(true, Ordering::Relaxed);
            return None;
        }
        limit.touched_bytes.fetch_add(bytes, Ordering::SeqCst);
        limit.held_bytes.fetch_add(bytes, Ordering::SeqCst);
        Some(Touch(Some((limit, bytes))))
    }

    /// Whether the touch at `address` that was just served was refused.
    pub(crate) fn is_refused(&self, address: usize) -> bool {
        let refuses = |limit: Arc<Limit>| limit.has_refused.load(Ordering::Relaxed);
        if !self.limits.at(address).is_some_and(refuses) {
            return false;
        }
        let table = self.gate_shared();
        table.find(address).is_some_and(|span| {
            let page = table.page_at(span, address);
            let word = span.word(page.index);
            word.backing() == Backing::None && !word.resident().has(page.granule_of(address))
        })
    }

    fn has_room_within(&self, limit: &Limit, table: &Table, bytes: u64) -> bool {
        let fits = |held: u64| held.saturating_add(bytes) <= limit.most_bytes;
        if fits(limit.held_bytes.load(Ordering::SeqCst)) {
            return true;
        }
        // Before the entries, so that a touch that is served meanwhile is counted twice, and never
        // not at all.
        let touched = limit.touched_bytes.load(Ordering::SeqCst);
        let held = touched
            + bytes_by(table, limit.range, |word, granules| match word.backing() {
                Backing::None => word.resident().and(granules),
                Backing::Slot(_) | Backing::Handle(_) => granules,
            });
        limit.held_bytes.store(held, Ordering::SeqCst);
        fits(held)
    }

    /// Whether a call may touch all of `range`, of the limit's region.
    pub(crate) fn admits_call(&self, limit: &Limit, range: PageRange) -> bool {
        let table = self.gate_shared();
        let Some(span) = table.find(range.start()) else { return true };
        let mut bytes = 0;
        for index in span.indices(range, table.entry_bytes()) {
            let mut word = span.word(index);
            if word.is_busy() {
                // A thread that touches a page goes on before the entry says so.
                word = self.take(span.entries(), index);
                give(span.entry(index), word);
            }
            if word.backing() != Backing::None {
                continue;
            }
            let (page, whole) = (
                span.page(index, range, table.entry_bytes()),
                span.page(index, span.range(), table.entry_bytes()),
            );
            let touched = page.granules.without(word.resident());
            let mut comes = Granules::NONE;
            for granule in touched.runs().flat_map(|(from, to)| from..to) {
                if !comes.has(granule) {
                    comes = comes.or(self.fill_for(span, &whole, granule));
                }
                // A refused granule holds a mark of the kernel's, and no memory.
                let here = whole.addresses(granule, granule + 1);
                if limit.has_refused.load(Ordering::Relaxed) && !self.space.held_pages(here).is_empty() {
                    return false;
                }
            }
            let comes = comes.and(whole.granules).without(word.resident());
            bytes += u64::from(comes.count()) * OS_PAGE as u64;
        }
        bytes == 0 || self.has_room_within(limit, &table, bytes)
    }
}

/// The bytes of those granules in `range` that `of` says of an entry and its granules there.
pub(crate) fn bytes_by(
    table: &Table,
    range: PageRange,
    of: impl Fn(pagoda_core::page_entry::Word, Granules) -> Granules,
) -> u64 {
    let (mut at, mut pages) = (range.start(), 0);
    while let Some(span) = table.next_from(at).filter(|span| span.range().start() < range.end()) {
        at = span.range().end();
        let Some(within) = span.range().intersection(range) else { continue };
        for index in span.used(within, table.entry_bytes()) {
            let granules = span.page(index, within, table.entry_bytes()).granules;
            pages += u64::from(of(span.word(index), granules).count());
        }
    }
    pages * OS_PAGE as u64
}
