//! The model kernel's UFFDIO_MOVE, which does not report all pages that it moved, as that of Linux
//! 6.18.
//!
//! A page whose first try fails inside the kernel is tried again, with the pages behind it, but the
//! error of the first try stays: the pages of the second try are not counted. The call comes to
//! these pages once more, finds its own destination full, and ends: early if a part was counted
//! before, else as if the destination had been full from the beginning. This module must never move
//! a page twice, or over another.

use super::{GRANULES, HUGE, Kernel, Progress, Range, Stop};

/// The seed's decisions about a move.
pub struct Course {
    /// OS pages after which it ends early, as it does for a signal.
    pub most: usize,
    /// The page whose first try fails, if the move comes to it, up to the last page that the second
    /// try moves.
    pub uncounted: Range,
}

/// The page at the source.
#[derive(PartialEq, Eq)]
enum Moved {
    Page,
    Hole,
}

impl Kernel {
    /// Moves `from` out into a slot at `at`, and into those that follow it. A hole ends it. A huge
    /// page moves in one piece if it goes whole to the place of one, and else is split.
    pub fn evict(&mut self, from: Range, slot: usize, at: usize, course: &Course) -> Progress {
        if self.changing > 0 && !self.arena_has_own_descriptor {
            return Progress { done: 0, stop: Some(Stop::Again) };
        }
        if let Some(place) = self.whole_huge(&from)
            && let Some(huge_slot) = self.huge_slot(slot, at)
        {
            let pages = &self.pages[from.clone()];
            let stop = match () {
                () if pages.iter().any(|page| page.read_only) => Some(Stop::Refused),
                () if pages.iter().any(|page| page.pinned) => Some(Stop::Busy),
                () => None,
            };
            if stop.is_some() {
                return Progress { done: 0, stop };
            }
            for (i, page) in self.pages[from.clone()].iter_mut().enumerate() {
                self.slots[slot + i / GRANULES][i % GRANULES] = page.content.take();
            }
            self.take_huge_out(place, huge_slot);
            return Progress { done: HUGE, stop: None };
        }
        from.clone().for_each(|address| self.split(address / HUGE));
        transfer(from.len(), course, |i| {
            let page = &mut self.pages[from.start + i];
            let (slot, at) = (slot + (at + i) / GRANULES, (at + i) % GRANULES);
            match () {
                () if !page.mapped => Err(Stop::Missing),
                () if page.read_only => Err(Stop::Refused),
                () if self.slots[slot][at].is_some() => Err(Stop::Exists),
                () if page.content.is_none() => Err(Stop::Missing),
                () if page.pinned => Err(Stop::Busy),
                () => {
                    self.slots[slot][at] = page.content.take();
                    Ok(Moved::Page)
                }
            }
        })
    }

    /// Moves granules of a slot, and of those that follow it, in to `to`; holes are skipped. Wakes
    /// the threads that wait for counted pages. A huge page stays one where there is no table of OS
    /// pages.
    pub fn fill(&mut self, to: Range, slot: usize, at: usize, course: &Course) -> Progress {
        if self.changing > 0 {
            return Progress { done: 0, stop: Some(Stop::Again) };
        }
        if let Some(huge_slot) =
            self.huge_slot(slot, at).filter(|&huge_slot| self.goes_in_whole(&to, huge_slot))
        {
            let stop = to.clone().find_map(|address| self.refusal(address));
            if stop.is_some() {
                return Progress { done: 0, stop };
            }
            for (i, address) in to.clone().enumerate() {
                let content = self.slots[slot + i / GRANULES][i % GRANULES].take();
                self.pages[address].bring(content.expect("a huge page has no hole"));
            }
            self.bring_huge(&to, huge_slot);
            self.wake(to);
            return Progress { done: HUGE, stop: None };
        }
        let progress = transfer(to.len(), course, |i| {
            let address = to.start + i;
            let (slot, at) = (slot + (at + i) / GRANULES, (at + i) % GRANULES);
            let read_only = self.pages[address].read_only.then_some(Stop::Refused);
            if let Some(stop) = self.refusal(address).or(read_only) {
                return Err(stop);
            }
            let Some(content) = self.slots[slot][at].take() else { return Ok(Moved::Hole) };
            self.pages[address].bring(content);
            self.tables[address / HUGE] = true;
            Ok(Moved::Page)
        });
        self.wake(to.start..to.start + progress.done);
        progress
    }
}

/// Moves pages by their numbers, one by one, and counts them as the kernel does.
fn transfer(len: usize, course: &Course, mut page: impl FnMut(usize) -> Result<Moved, Stop>) -> Progress {
    let mut done = 0;
    while done < len.min(course.most) {
        let stop = match page(done) {
            Ok(Moved::Page) if course.uncounted.contains(&done) => {
                let mut rest = done + 1..len.min(course.uncounted.end);
                while rest.next().is_some_and(|i| page(i) == Ok(Moved::Page)) {}
                Stop::Exists
            }
            Ok(_) => {
                done += 1;
                continue;
            }
            Err(stop) => stop,
        };
        return Progress { done, stop: Some(stop).filter(|_| done == 0) };
    }
    Progress { done, stop: None }
}
