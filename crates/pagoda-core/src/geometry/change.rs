//! The order in which the entries of a group change: break before make.
//!
//! Hardware may cache a group from any of its entries at any moment, and may then use it for any
//! page of the group. If old and new entries coexisted, one address could have two translations.
//! Which one the hardware uses would be unpredictable (RISC-V, "Svnapot"; Arm DDI 0487, "Using
//! break-before-make when updating translation table entries"). So first all entries are cleared,
//! then all cached translations are invalidated, then the new entries are stored:
//!
//! ```text
//! take 0 .. take n-1   |   invalidate   |   put 0 .. put n-1
//!  old or fault        |   fault        |   fault or new         what an access can meet
//! ```
//! Taking an entry is an atomic swap: it returns every mark that hardware set before, and hardware
//! can set none in the empty entry after. This order is right for every change. Some changes need
//! less (clearing marks; removing rights from a whole group), but this module has no shorter path.
//! It must never store an entry before the invalidation is complete.

use super::entry::{Format, Marks};

/// The entries of one group, as the hardware sees them.
pub trait Group {
    /// Reads entry `i` in one atomic step. Hardware may set marks in it right after.
    fn get(&self, i: usize) -> u64;

    /// Swaps entry `i` for 0 in one atomic step. Returns the old value.
    fn take(&mut self, i: usize) -> u64;

    /// Returns when no walker holds a translation of any page of the group, or an entry that it
    /// read before. RISC-V: SFENCE.VMA for all its pages, on every hart. Arm: DSB, TLBI for all
    /// pages, DSB.
    fn invalidate(&mut self);

    /// Stores entry `i`, which is 0.
    fn put(&mut self, i: usize, entry: u64);
}

/// Replaces all entries of a group. `next` computes the new entry `i` from the marks of the old
/// group; 0 maps nothing. Returns these marks.
///
/// A caller that maps the same frame again must carry the marks over. Any other caller must record
/// that the old frame is dirty: the marks are stored nowhere else.
pub fn change(format: &impl Format, group: &mut impl Group, next: impl Fn(usize, Marks) -> u64) -> Marks {
    let mut marks = Marks::default();
    for i in 0..format.entries() {
        marks = marks.or(format.marks(group.take(i)));
    }
    group.invalidate();
    for i in 0..format.entries() {
        group.put(i, next(i, marks));
    }
    marks
}

#[cfg(test)]
#[path = "change_test.rs"]
mod tests;
