//! Hardware entries of a group, decoded into terms that every architecture has.
//!
//! A group maps one aligned, contiguous run of hardware pages: one base page. Its entries must
//! agree in everything but the accessed and dirty marks. Hardware that caches a group as one
//! translation may mark any of its entries, so a mark on one counts for all. This file must never
//! report a mapping that only some entries of the group have.

use std::fmt;

/// The hardware's record of a page's use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Marks {
    /// Read or written since the mark was cleared; hardware may set it by speculation.
    pub accessed: bool,
    /// Written since the mark was cleared.
    pub dirty: bool,
}

impl Marks {
    /// The OR of both.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self { accessed: self.accessed || other.accessed, dirty: self.dirty || other.dirty }
    }
}

/// The frame and the rights of a group. It is always readable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mapping {
    /// The number of the first hardware page, a multiple of the group's length.
    pub first_page: u64,
    /// Whether it may be written.
    pub write: bool,
    /// Whether it may be executed.
    pub execute: bool,
    /// Whether user mode may use it. If not, only the supervisor may.
    pub user: bool,
    /// The OR over the group.
    pub marks: Marks,
}

/// How much of a group one entry translates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reach {
    /// Its own page only.
    Page,
    /// The whole group, as one translation. x86 has no such mark: there it equals [`Reach::Page`].
    Group,
}

/// Entries that can't be read as a group. Indices count from the first entry of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Malformed {
    /// [`Format::encode`] never writes this entry: a reserved encoding, a pointer to a table, or
    /// rights that [`Mapping`] can't express.
    Unknown(usize),
    /// The page of this entry does not fit its place in an aligned and contiguous group.
    Misplaced(usize),
    /// This entry differs from the first one in more than its marks.
    Mixed(usize),
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(i) => write!(f, "entry {i} has an encoding that is reserved or not in use here"),
            Self::Misplaced(i) => write!(f, "entry {i} maps a page that does not fit its place in the group"),
            Self::Mixed(i) => write!(f, "entry {i} differs from the first entry of its group"),
        }
    }
}

impl std::error::Error for Malformed {}

/// The leaf entry format of an architecture. In all of them an entry of 0 maps nothing.
pub trait Format {
    /// The number of entries of a group: a power of two.
    fn entries(&self) -> usize;

    /// Entry `i` of a group with `mapping`.
    ///
    /// Panics if there is no such entry, or if `mapping.first_page` is not a multiple of the
    /// group's length or does not fit into the bits of an entry.
    fn encode(&self, i: usize, mapping: Mapping, reach: Reach) -> u64;

    /// Decodes entry `i`; none if it maps nothing, whatever its other bits are.
    fn decode(&self, i: usize, entry: u64) -> Result<Option<(Mapping, Reach)>, Malformed>;

    /// How much of a group an entry translates, whether or not it can be decoded; only its own
    /// page if it maps nothing.
    fn reach(&self, entry: u64) -> Reach;

    /// The marks of an entry; no marks if it maps nothing.
    fn marks(&self, entry: u64) -> Marks;

    /// All entries of a group with `mapping`. Panics like [`Format::encode`].
    fn encode_group(&self, mapping: Mapping, reach: Reach) -> impl Iterator<Item = u64> {
        (0..self.entries()).map(move |i| self.encode(i, mapping, reach))
    }

    /// Decodes a group; none if no entry maps anything. Panics if `entries` is not as long as a
    /// group.
    fn decode_group(&self, entries: &[u64]) -> Result<Option<(Mapping, Reach)>, Malformed> {
        assert_eq!(entries.len(), self.entries(), "not the entries of one group");
        let first = self.decode(0, entries[0])?;
        let said = |entry: Option<(Mapping, Reach)>| {
            entry.map(|(m, reach)| (Mapping { marks: Marks::default(), ..m }, reach))
        };
        let mut marks = Marks::default();
        for (i, &entry) in entries.iter().enumerate() {
            let this = self.decode(i, entry)?;
            if said(this) != said(first) {
                return Err(Malformed::Mixed(i));
            }
            marks = marks.or(self.marks(entry));
        }
        Ok(first.map(|(mapping, reach)| (Mapping { marks, ..mapping }, reach)))
    }
}

/// The number of the page that entry `i` of a group maps, within `bits`.
///
/// Panics under the conditions of [`Format::encode`].
pub(super) fn page_of(mapping: Mapping, i: usize, entries: usize, bits: u32) -> u64 {
    assert!(i < entries, "a group has {entries} entries and no entry {i}");
    let first = mapping.first_page;
    assert!(first.is_multiple_of(entries as u64), "page {first:#x} does not start a group of {entries}");
    assert!(first >> bits == 0, "page {first:#x} has more than {bits} bits");
    first + i as u64
}

/// The number of a group's first page, from that of entry `i`.
pub(super) fn first_page(page: u64, i: usize, entries: usize) -> Result<u64, Malformed> {
    let first = page.checked_sub(i as u64).filter(|first| first.is_multiple_of(entries as u64));
    first.ok_or(Malformed::Misplaced(i))
}

#[cfg(test)]
#[path = "entry_test.rs"]
mod tests;
