//! Fold and unfold: a group of single entries becomes one translation, and single entries again.
//!
//! A fold saves TLB entries: hardware may then hold one translation for the whole group. An unfold
//! makes one page changeable. Both break before they make (`change.rs`), because a TLB may hold the
//! old translation while a walker reads the new entry:
//!
//! | architecture | mark of a group | what forbids the short way |
//! |---|---|---|
//! | RISC-V | Svnapot: N and `PPN[3:0]` | both could be in use; which one is not predictable |
//! | Arm | the Contiguous bit | the same, and a TLB may raise a conflict abort (DDI 0487) |
//! | x86 | none | nothing to fold: the processor coalesces by itself, or does not |
//!
//! While a group is folded, hardware may mark any of its entries for an access to any of its pages.
//! So the marks of a folded group count for each page: an unfold gives them to all. A fold and an
//! unfold therefore keep every mark, but lose which page it belongs to.
//!
//! Every function here expects the lock of the table: only hardware changes the entries meanwhile,
//! and only their marks. This file must never write a group of which some entries are folded and
//! some are not.

use std::fmt;

use super::change::{Group, change};
use super::entry::{Format, Malformed, Mapping, Marks, Reach};

/// Why [`fold`] left a group as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unfit {
    /// The architecture has no mark of a group.
    NoMark,
    /// No entry maps anything.
    Empty,
    /// The group is folded.
    Folded,
    /// The entries don't map one aligned run of frames with equal rights.
    Malformed(Malformed),
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMark => f.write_str("the architecture has no mark of a group"),
            Self::Empty => f.write_str("no entry of the group maps anything"),
            Self::Folded => f.write_str("the group is folded already"),
            Self::Malformed(found) => found.fmt(f),
        }
    }
}

impl std::error::Error for Unfit {}

/// Makes one translation of a group of single entries that map one aligned run of frames with equal
/// rights. Marks may differ. Returns the marks of the group, which all its entries have afterwards.
///
/// An error has changed nothing.
pub fn fold(format: &impl Format, group: &mut impl Group) -> Result<Marks, Unfit> {
    let (mapping, reach) = read(format, group).map_err(Unfit::Malformed)?.ok_or(Unfit::Empty)?;
    if reach == Reach::Group {
        return Err(Unfit::Folded);
    }
    if format.encode(0, mapping, Reach::Group) == format.encode(0, mapping, Reach::Page) {
        return Err(Unfit::NoMark);
    }
    Ok(rewrite(format, group, mapping, Reach::Group))
}

/// Makes single entries of a folded group. Returns its marks, which all its entries have
/// afterwards; none if the group is not folded, which changes nothing.
///
/// An error has changed nothing: some entries are folded, and the group can't be read as one.
pub fn unfold(format: &impl Format, group: &mut impl Group) -> Result<Option<Marks>, Malformed> {
    if !(0..format.entries()).any(|i| format.reach(group.get(i)) == Reach::Group) {
        return Ok(None);
    }
    let read = read(format, group)?;
    Ok(read.map(|(mapping, _)| rewrite(format, group, mapping, Reach::Page)))
}

/// Replaces entry `at` of a group, by the order of `change`. `next` computes the new entry, of
/// [`Reach::Page`] or 0, from the marks of the old one. Returns these marks.
///
/// A folded group is unfolded in the same steps: its other entries keep their frames and rights.
/// The marks are then those of the whole group. A caller that maps the same frame again must carry
/// them over. Any other caller must record that the old frame is dirty.
///
/// An error has changed nothing: some entries are folded, and the group can't be read as one.
///
/// Panics if there is no entry `at`. Panics, with all the entries cleared, if `next` returns an
/// entry of [`Reach::Group`].
pub fn change_entry(
    format: &impl Format,
    group: &mut impl Group,
    at: usize,
    next: impl Fn(Marks) -> u64,
) -> Result<Marks, Malformed> {
    assert!(at < format.entries(), "a group has {} entries and no entry {at}", format.entries());
    let next = |marks| {
        let entry = next(marks);
        assert_eq!(format.reach(entry), Reach::Page, "one entry of a group can't be folded");
        entry
    };
    if format.reach(group.get(at)) == Reach::Page {
        let marks = format.marks(group.take(at));
        group.invalidate();
        group.put(at, next(marks));
        return Ok(marks);
    }
    // A folded entry maps something, so `read` finds something or fails.
    let Some((mapping, _)) = read(format, group)? else { return Ok(Marks::default()) };
    Ok(change(format, group, |i, marks| {
        if i == at { next(marks) } else { format.encode(i, Mapping { marks, ..mapping }, Reach::Page) }
    }))
}

/// The mapping and reach of a group, as it is now.
fn read(format: &impl Format, group: &impl Group) -> Result<Option<(Mapping, Reach)>, Malformed> {
    let entries: Vec<u64> = (0..format.entries()).map(|i| group.get(i)).collect();
    format.decode_group(&entries)
}

/// Writes all entries anew, with the marks of all.
fn rewrite(format: &impl Format, group: &mut impl Group, mapping: Mapping, reach: Reach) -> Marks {
    change(format, group, |i, marks| format.encode(i, Mapping { marks, ..mapping }, reach))
}

#[cfg(test)]
#[path = "fold_test.rs"]
mod tests;
