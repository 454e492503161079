//! Moves, and how many pages moved, as steps: `moves` of the engine.
//!
//! The kernel's count can't be trusted, so the engine looks at its own end of the move; the program
//! runs between a move and each look. This module must never report a page as left behind that has
//! moved.

use crate::kernel::{Course, GRANULES, Progress, Range, Stop};
use crate::world::{World, step};

impl World {
    /// Moves granules of a slot, from `at` on, where all of them must be, in to `to`. Wakes threads
    /// that wait there.
    pub async fn fill(&self, to: Range, slot: usize, at: usize) -> Progress {
        step().await;
        if (at..at + to.len()).any(|granule| !self.is_in_slot(slot, granule)) {
            self.fail(format!("a hole of slot {slot} is moved to {to:?}"));
        }
        let course = self.course(to.len());
        let told = self.kernel.borrow_mut().fill(to.clone(), slot, at, &course);
        let (from, len) = (to.start + told.done, to.len());
        let has_moved = async |page| {
            step().await;
            !self.is_in_slot(slot, at + page)
        };
        let is_asked = !self.without.asking_what_moved_in;
        let progress = if is_asked { self.ask(told, len, has_moved).await } else { told };
        self.kernel.borrow_mut().wake(from..to.start + progress.done);
        progress
    }

    /// Moves pages out to a slot, from `at` on, and to those that follow it, which must be empty.
    /// Holes are skipped.
    pub async fn evict(&self, from: Range, slot: usize, at: usize) -> Progress {
        let mut done = 0;
        while done < from.len() {
            let rest = from.start + done..from.end;
            if self.kernel.borrow().is_any_huge(&rest) {
                self.fail(format!("a part of a huge page is moved, or not to the place of one: {rest:?}"));
            }
            let progress = self.move_out(rest.clone(), slot, at + done).await;
            done += progress.done;
            if progress.stop != Some(Stop::Missing) || !self.is_hole(rest.start).await {
                return Progress { done, stop: progress.stop.filter(|_| done == 0) };
            }
            done += 1;
        }
        Progress { done, stop: None }
    }

    /// The same by one move, which a hole ends.
    pub async fn move_out(&self, from: Range, slot: usize, at: usize) -> Progress {
        step().await;
        let course = self.course(from.len());
        let told = self.kernel.borrow_mut().evict(from.clone(), slot, at, &course);
        let has_moved = async |page| {
            step().await;
            if !self.is_in_slot(slot, at + page) {
                return false;
            }
            step().await;
            if !self.is_in_region(from.start + page) {
                return true;
            }
            // The program has put another mapping there, perhaps.
            step().await;
            !self.is_quiet() && !self.without.changes_while_asking
        };
        let is_asked = !self.without.asking_what_moved_out;
        if is_asked { self.ask(told, from.len(), has_moved).await } else { told }
    }

    /// How many of `len` pages moved: if there may be more than the kernel reported, `has_moved`
    /// answers for the next.
    async fn ask(&self, told: Progress, len: usize, has_moved: impl AsyncFn(usize) -> bool) -> Progress {
        let may_be_more = match told.stop {
            Some(Stop::Exists) => true,
            None => told.done < len,
            Some(_) => false,
        };
        if !may_be_more {
            return told;
        }
        // The mover may lose its processor here, for long enough that the program puts another
        // mapping there.
        for _ in 0..self.below(6) * self.below(150) {
            step().await;
        }
        let mut done = told.done;
        while done < len && has_moved(done).await {
            done += 1;
        }
        Progress { done, stop: told.stop.filter(|_| done == told.done) }
    }

    fn is_in_slot(&self, slot: usize, granule: usize) -> bool {
        self.kernel.borrow().slots[slot + granule / GRANULES][granule % GRANULES].is_some()
    }

    fn is_in_region(&self, address: usize) -> bool {
        self.kernel.borrow().pages[address].content.is_some()
    }

    /// Whether no event is unread and no mapping is being changed.
    fn is_quiet(&self) -> bool {
        self.kernel.borrow().changing == 0
    }

    /// Whether the page is of a mapping, and holds nothing.
    async fn is_hole(&self, address: usize) -> bool {
        step().await;
        let is_mapped = self.kernel.borrow().pages[address].mapped;
        step().await;
        is_mapped && !self.is_in_region(address)
    }

    /// How the kernel fares with a move of so many pages.
    fn course(&self, pages: usize) -> Course {
        let pages = pages.max(GRANULES);
        let most = if self.below(6) == 0 { 1 + self.below(pages) } else { pages };
        let failing = self.below(pages);
        let uncounted = if self.below(6) == 0 { failing..failing + 1 + self.below(pages) } else { 0..0 };
        Course { most, uncounted }
    }
}
