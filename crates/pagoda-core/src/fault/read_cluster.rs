//! Which objects of the spill file come with one read.
//!
//! Objects that were written together are adjacent in the file, mostly in the order of addresses. A
//! *stretch* begins with one object, and grows by others that lie within it or close beside it. Its
//! gaps are read for nothing, so both a gap and the whole stretch are bounded. Where several reads
//! can be in flight at once, an object further away begins a stretch of its own, up to a bound on
//! all of them. This module must never know the file, nor report an object outside of the stretch
//! as read.

use crate::space::extents::{Run, SLOT, Units};

/// The largest gap between two objects: the longest page, which was stored out of turn, or belongs
/// to another owner.
const GAP_SLOTS: u32 = 64 << 10 >> SLOT.trailing_zeros();

/// Slots that are read at once.
#[derive(Clone, Copy, Debug)]
pub struct Stretch {
    run: Run,
    slots_most: u32,
}

impl Stretch {
    /// Of one object, to grow to `slots_most` slots. `None`: it is longer than that.
    #[must_use]
    pub fn of(units: Units, slots_most: u32) -> Option<Self> {
        let run = units.slots();
        (run.slots <= slots_most).then_some(Self { run, slots_most })
    }

    /// The slots to read.
    #[must_use]
    pub fn run(&self) -> Run {
        self.run
    }

    /// Whether all of an object is read.
    #[must_use]
    pub fn holds(&self, units: Units) -> bool {
        let run = units.slots();
        self.run.first <= run.first && run.first + run.slots <= self.run.first + self.run.slots
    }

    /// Grows by an object, if it lies close enough. Whether it is read.
    pub fn take(&mut self, units: Units) -> bool {
        let (own, run) = (self.run, units.slots());
        let (end, run_end) = (own.first + own.slots, run.first + run.slots);
        let is_close = run.first <= end + GAP_SLOTS && own.first <= run_end + GAP_SLOTS;
        let first = own.first.min(run.first);
        let slots = end.max(run_end) - first;
        let taken = is_close && slots <= self.slots_most;
        if taken {
            self.run = Run { first, slots };
        }
        taken
    }

    /// Where an object's bytes begin among those that are read.
    #[must_use]
    pub fn offset_of(&self, units: Units) -> usize {
        debug_assert!(self.holds(units), "it is read");
        (units.slots().first - self.run.first) as usize * SLOT + units.offset_in_slots()
    }
}

/// Several stretches that are read at once, one behind the other into one buffer.
#[derive(Clone, Debug)]
pub struct Stretches {
    all: Vec<Stretch>,
    count_most: usize,
    slots_left: u32,
}

impl Stretches {
    /// Of one object, and no more than one stretch until [`allow`](Self::allow) says so, of
    /// `slots_most` slots in all. `None`: it is longer than that.
    #[must_use]
    pub fn of(units: Units, slots_most: u32) -> Option<Self> {
        let first = Stretch::of(units, slots_most)?;
        Some(Self { all: vec![first], count_most: 1, slots_left: slots_most - first.run.slots })
    }

    /// From now on there may be so many.
    pub fn allow(&mut self, count_most: usize) {
        self.count_most = count_most;
    }

    /// Grows by an object: one of the stretches if it lies close enough, or by one more. Whether it
    /// is read.
    pub fn take(&mut self, units: Units) -> bool {
        for stretch in &mut self.all {
            let before = stretch.run.slots;
            stretch.slots_most = before + self.slots_left;
            if stretch.take(units) {
                self.slots_left -= stretch.run.slots - before;
                return true;
            }
        }
        let room = self.all.len() < self.count_most;
        let Some(another) = Stretch::of(units, self.slots_left).filter(|_| room) else { return false };
        self.slots_left -= another.run.slots;
        self.all.push(another);
        true
    }

    /// The slots of each, in the order in which they lie in the buffer.
    pub fn runs(&self) -> impl ExactSizeIterator<Item = Run> {
        self.all.iter().map(Stretch::run)
    }

    /// Where an object's bytes begin in the buffer. `None`: it is not read.
    #[must_use]
    pub fn offset_of(&self, units: Units) -> Option<usize> {
        let mut before = 0;
        for stretch in &self.all {
            if stretch.holds(units) {
                return Some(before + stretch.offset_of(units));
            }
            before += stretch.run.slots as usize * SLOT;
        }
        None
    }
}

#[cfg(test)]
#[path = "read_cluster_test.rs"]
mod tests;
