//! Bringing granules into a region as steps: `fill` of the engine. This module must never say that
//! a granule is in the region that is not there.

use crate::fault::Served;
use crate::kernel::Stop;
use crate::table::Page;
use crate::world::{World, step};
use pagoda_core::page_entry::Granules;

/// The outcome of moving granules into a region.
pub struct MovedIn {
    /// Now in the region.
    pub done: Granules,
    /// Of those, copied: their frames are still in the slot.
    pub copied: Granules,
    pub stop: Option<Stop>,
}

pub fn one(granule: u32) -> Granules {
    Granules::range(granule, granule + 1)
}

impl World {
    /// Fills a page with zeroes if it is missing, and says whether it was.
    pub async fn fill_one(&self, address: usize) -> (bool, Served) {
        step().await;
        let stop = self.kernel.borrow_mut().copy(address, 0);
        (stop.is_none(), self.settle(stop, address))
    }

    /// Fills granules `from..to` with zeroes, from the kernel's memory.
    pub async fn fill_fresh(&self, page: &Page, from: u32, to: u32) -> MovedIn {
        let (mut done, mut stop) = (Granules::NONE, None);
        for at in from..to {
            step().await;
            let here = page.addresses(at, at + 1);
            match self.kernel.borrow_mut().copy(here.start, 0) {
                None => done = done.or(one(at)),
                Some(other) => stop = Some(other),
            }
            match stop {
                None => {}
                Some(Stop::Exists | Stop::Missing) => self.kernel.borrow_mut().wake(here),
                Some(_) => break,
            }
        }
        MovedIn { done, copied: Granules::NONE, stop }
    }

    /// Moves the granules `want` of `slot` into the region, by copy where the mapping does not
    /// allow a move.
    pub async fn move_in(&self, page: &Page, slot: usize, want: Granules) -> MovedIn {
        let mut result = MovedIn { done: Granules::NONE, copied: Granules::NONE, stop: None };
        for (from, to) in want.runs() {
            let (mut at, mut end) = (from, to);
            while at < to {
                let progress = self.fill(page.addresses(at, end), slot, at as usize).await;
                let filled = at + progress.done as u32;
                result.done = result.done.or(Granules::range(at, filled));
                at = filled;
                let is_alone = end == at + 1;
                match progress.stop {
                    None => end = if end == to { to } else { (at + 1).min(to) },
                    Some(Stop::Refused | Stop::Busy | Stop::Missing) if !is_alone => end = at + 1,
                    Some(Stop::Refused | Stop::Busy) => {
                        step().await;
                        let content = self.kernel.borrow().slots[slot][at as usize];
                        let content = content.expect("an unmoved granule is in the slot");
                        let stop = self.kernel.borrow_mut().copy(page.addresses(at, at + 1).start, content);
                        if let Some(stop) = stop {
                            result.stop = Some(stop);
                            if !matches!(stop, Stop::Exists | Stop::Missing) {
                                return result;
                            }
                        } else {
                            result.done = result.done.or(one(at));
                            result.copied = result.copied.or(one(at));
                        }
                        at += 1;
                        end = (at + 1).min(to);
                    }
                    Some(other @ (Stop::Exists | Stop::Missing)) => {
                        self.kernel.borrow_mut().wake(page.addresses(at, at + 1));
                        result.stop = Some(other);
                        at += 1;
                        end = to;
                    }
                    other => {
                        result.stop = other;
                        return result;
                    }
                }
            }
        }
        result
    }
}
