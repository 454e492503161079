//! In which order the entries of a group change: break before make.
//!
//! Hardware may cache a group from any of its entries, at any moment, and may then answer for any page of it. If
//! old and new entries stood side by side, one address could have two translations, and which one is used would be
//! unpredictable (RISC-V, "Svnapot"; Arm DDI 0487, "Using break-before-make when updating translation table
//! entries"). So all entries go, then all cached translations, then the new entries come:
//!
//! ```text
//! take 0 .. take n-1   |   invalidate   |   put 0 .. put n-1
//!  old or fault        |   fault        |   fault or new         what an access can meet
//! ```
//! Taking an entry is an atomic swap: a mark that hardware set until then is seen, and after it hardware finds
//! nothing to set one in. This order is right for every change. Some need less (clearing marks; taking rights away
//! from a whole group), which is not used here. This module must never put an entry before the invalidation is
//! complete.

use super::entry::{Format, Marks};

/// The entries of one group, as the hardware sees them.
pub trait Group {
    /// Swaps entry `i` for 0 in one atomic step. Returns what it was.
    fn take(&mut self, i: usize) -> u64;

    /// Returns when no walker holds a translation of any page of the group any more, nor an entry that it read
    /// before. RISC-V: SFENCE.VMA for all pages of it, on every hart. Arm: DSB, TLBI for all pages, DSB.
    fn invalidate(&mut self);

    /// Stores entry `i`, which is 0.
    fn put(&mut self, i: usize, entry: u64);
}

/// Replaces all entries of a group. `next` says what entry `i` is to be, knowing the marks of the group until then;
/// 0 is nothing. Returns these marks.
///
/// Whoever maps the same frame again has to carry the marks over. Whoever does not has to note for the old frame
/// that it is dirty: nobody else knows.
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
