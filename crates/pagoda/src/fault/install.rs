//! Bringing granules into a region: the frames of a slot, or fresh pages of the kernel.
//!
//! A boundary of mappings or of protections may lie within a base page, and a part of it may be
//! unmapped meanwhile. Then it goes granule by granule. The caller has the gate, shared, and the
//! busy bit of the entry, if there is one. This module must never report a granule as resident that
//! is not.

use pagoda_core::page_entry::Granules;
use pagoda_linux::arena::Slot;
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::uffd::Stop;

use crate::engine::Engine;
use crate::state::pending::Served;
use crate::table::Page;

/// The result of moving granules into a region.
pub(super) struct MovedIn {
    /// Now in the region.
    pub(super) done: Granules,
    /// Of those, copied: their frames are still in the slot.
    pub(super) copied: Granules,
    pub(super) stop: Option<Stop>,
}

impl Engine {
    /// Fills an OS page if it is missing, and says whether it was.
    pub(super) fn fill_one(&self, at: PageRange, write: bool) -> (bool, Served) {
        let progress =
            if write { self.space.fill_with_zeroes(at) } else { self.space.fill_with_zero_page(at) };
        if progress.stop.is_none() {
            self.ledger.took(progress.bytes as i64);
        }
        (progress.stop.is_none(), self.settle(progress.stop, at))
    }

    /// Fills granules `from..to` from the kernel's memory: zero-filled for a write, with the zero
    /// page for a read.
    pub(super) fn fill_fresh(&self, page: &Page, from: u32, to: u32, write: bool) -> MovedIn {
        let mut at = from;
        let mut end = to;
        let mut done = Granules::NONE;
        let mut stop = None;
        while at < to {
            let rest = page.addresses(at, end);
            let progress =
                if write { self.space.fill_with_zeroes(rest) } else { self.space.fill_with_zero_page(rest) };
            let filled = at + (progress.bytes / 4096) as u32;
            done = done.or(Granules::range(at, filled));
            at = filled;
            // The zero page costs nothing until it is written, and that write makes no fault.
            self.ledger.took(progress.bytes as i64);
            match progress.stop {
                // A boundary of mappings lies within: one by one.
                Some(Stop::Missing | Stop::Refused) if end > at + 1 => {
                    end = at + 1;
                    continue;
                }
                None => {}
                // A page whose discard is announced but not carried out yet, or one that is
                // unmapped: it is not ours. The next may be.
                Some(other @ (Stop::Exists | Stop::Missing)) => {
                    self.space.wake(page.addresses(at, at + 1));
                    stop = Some(other);
                    at += 1;
                }
                other => {
                    stop = other;
                    break;
                }
            }
            end = if end == to { to } else { (at + 1).min(to) };
        }
        MovedIn { done, copied: Granules::NONE, stop }
    }

    /// As [`move_in`](Self::move_in), with those of `clean` by copies: the next write to each is
    /// seen by the region's migration.
    pub(super) fn move_in_tracked(
        &self,
        page: &Page,
        slot: &Slot,
        want: Granules,
        clean: Granules,
    ) -> MovedIn {
        let mut copied = Granules::NONE;
        for (from, to) in want.and(clean).runs() {
            let at = page.addresses(from, to);
            let bytes = self.space.fill_by_protected_copy(at, slot, from as usize * 4096).bytes;
            self.ledger.took(bytes as i64);
            copied = copied.or(Granules::range(from, from + (bytes / 4096) as u32));
        }
        let moved = self.move_in(page, slot, want.without(copied));
        MovedIn { done: moved.done.or(copied), copied: moved.copied.or(copied), ..moved }
    }

    /// Moves the granules `want` of `slot` into the region, by copy where the mapping does not
    /// allow a move.
    pub(super) fn move_in(&self, page: &Page, slot: &Slot, want: Granules) -> MovedIn {
        let mut result = MovedIn { done: Granules::NONE, copied: Granules::NONE, stop: None };
        for (from, to) in want.runs() {
            let mut at = from;
            // A refusal may concern one granule, at a boundary of protections in the page: then go
            // one by one.
            let mut step = to;
            while at < to {
                let end = step.min(to);
                let progress = self.space.fill(page.addresses(at, end), slot, at as usize * 4096);
                let filled = at + (progress.bytes / 4096) as u32;
                result.done = result.done.or(Granules::range(at, filled));
                at = filled;
                match progress.stop {
                    None => step = if step == to { to } else { at + 1 },
                    Some(Stop::Refused | Stop::Busy | Stop::Missing) if end > at + 1 => step = at + 1,
                    Some(Stop::Refused | Stop::Busy) => {
                        let one = page.addresses(at, at + 1);
                        let copied = self.space.fill_by_copy(one, slot, at as usize * 4096);
                        if let Some(stop) = copied.stop {
                            result.stop = Some(stop);
                            // A part of an adopted range may be unmapped, and mapped anew without
                            // registration. The faulting page may lie behind it.
                            if !matches!(stop, Stop::Exists | Stop::Missing) {
                                return result;
                            }
                        } else {
                            self.ledger.took(4096);
                            let granule = Granules::range(at, at + 1);
                            result.done = result.done.or(granule);
                            result.copied = result.copied.or(granule);
                        }
                        at += 1;
                        step = at + 1;
                    }
                    Some(other @ (Stop::Exists | Stop::Missing)) => {
                        self.space.wake(page.addresses(at, at + 1));
                        result.stop = Some(other);
                        at += 1;
                        step = to;
                    }
                    Some(stop) => {
                        result.stop = Some(stop);
                        return result;
                    }
                }
            }
        }
        result
    }
}
