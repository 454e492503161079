//! The model kernel's UFFDIO_MOVE, which does not tell all that it moved, as that of Linux 6.18.
//!
//! A page whose first try fails inside the kernel is tried again, with the pages behind it, but the error of the first try stays:
//! what the second try moves is not counted. The call comes to these pages once more, finds its own destination full, and
//! ends: early if a part was counted before, else as if the destination had been full from the beginning. This module must
//! never move a page twice, or over another.

use super::{Kernel, Progress, Range, Stop};

/// What the seed decides of a move.
pub struct Course {
    /// OS pages after which it ends early, as it does for a signal.
    pub most: usize,
    /// The page whose first try fails, if it comes to that, up to the last one that the second try moves.
    pub uncounted: Range,
}

/// What was at the source.
#[derive(PartialEq, Eq)]
enum Moved {
    Page,
    Hole,
}

impl Kernel {
    /// Moves `from` out into a slot at `at`. A hole ends it.
    pub fn evict(&mut self, from: Range, slot: usize, at: usize, course: &Course) -> Progress {
        if self.changing > 0 && !self.arena_has_own_descriptor {
            return Progress { done: 0, stop: Some(Stop::Again) };
        }
        transfer(from.len(), course, |i| {
            let page = &mut self.pages[from.start + i];
            match () {
                () if !page.mapped => Err(Stop::Missing),
                () if page.read_only => Err(Stop::Refused),
                () if self.slots[slot][at + i].is_some() => Err(Stop::Exists),
                () if page.content.is_none() => Err(Stop::Missing),
                () if page.pinned => Err(Stop::Busy),
                () => {
                    self.slots[slot][at + i] = page.content.take();
                    Ok(Moved::Page)
                }
            }
        })
    }

    /// Moves granules of a slot in to `to`; holes are skipped. Wakes who waits for what is counted.
    pub fn fill(&mut self, to: Range, slot: usize, at: usize, course: &Course) -> Progress {
        if self.changing > 0 {
            return Progress { done: 0, stop: Some(Stop::Again) };
        }
        let progress = transfer(to.len(), course, |i| {
            let address = to.start + i;
            let read_only = self.pages[address].read_only.then_some(Stop::Refused);
            if let Some(stop) = self.refusal(address).or(read_only) {
                return Err(stop);
            }
            let Some(content) = self.slots[slot][at + i].take() else { return Ok(Moved::Hole) };
            self.pages[address].bring(content);
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
