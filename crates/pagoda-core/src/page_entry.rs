//! The state of one base page: one 64-bit word, changed by compare-and-swap, by one elected mover
//! at a time.
//!
//! A base page has up to sixteen *granules* (OS pages, for base pages up to 64 KiB). A granule's
//! content is either *in the region* (its bit in the resident mask is set) or in the *backing* of
//! the entry: nothing (it reads as zero), a slot of an arena, or a handle of a store. Both at once
//! is normal for a page that was evicted or discarded in part, or that was swapped in and kept its
//! clean copy. A granule's current content is never in two places: the backing of a granule that is
//! in the region is an *old copy*, which only serves to find out whether the granule was written.
//!
//! | design's name | mask | backing | busy |
//! |---|---|---|---|
//! | `Empty` | none | none | no |
//! | `Resident` | some | none | no |
//! | `Staged` | any | slot | no |
//! | `Stored` | any | handle | no |
//! | `Busy` | as before | as before | yes |
//!
//! A set bit says that *we* put the content there, or found it there when the range was adopted.
//! Other pages that may be present in a region (those of a discard that the kernel has announced
//! but not yet carried out) have no bit, and are never evicted: that is how discarded content can't
//! be resurrected.
//!
//! Transitions. Every change starts by taking the busy bit and ends by writing a new word without
//! it; only its taker writes a busy word. The gate is held *shared* or *exclusive* for the whole
//! change; *out* says that it is held shared for the move out, and that the rest needs no gate;
//! *none* says that no part needs it.
//!
//! | from | to | by | gate |
//! |---|---|---|---|
//! | Empty, Resident | Resident, more granules | fault: zero fill | shared |
//! | any | more granules resident | adoption: present pages are marked | exclusive |
//! | Resident; Staged, resident too | Staged | reclaim: move out | shared |
//! | Staged | Staged, more granules resident; Resident | fault: move in | shared |
//! | Staged | Stored; no backing if all zero | reclaim: store, then frame ready | none |
//! | Stored | Staged | fault, event: swap in to a slot, the copy is freed | none |
//! | Stored | Stored, one granule more resident | fault: it alone, the copy stays | shared |
//! | Stored | Stored, all of it resident | fault, readahead: the copy stays | shared |
//! | Stored, resident too | Stored | reclaim: the same as the copy: dropped | out |
//! | Stored, resident too | Stored, other handle | reclaim: part written: stored anew | out |
//! | Stored, resident too | Staged | reclaim: written: joined with the copy, which is freed | out |
//! | Stored, all its content resident | Resident | migration: slowed, the copy is freed | shared |
//! | Empty, of a file | Staged | fault, readahead: read from the file | none |
//! | Staged, of a file | no backing | reclaim: written if it differs, then frame ready | none |
//! | Stored, of a file | no backing | sync: a page whose write failed is written | none |
//! | Empty (a) | Resident, huge | fault: one frame for all of them | shared |
//! | Empty, none owed (a) | Resident, huge | arrival: one frame, filled before | shared |
//! | Resident, huge (a) | Stored each (b) | reclaim: the frame moved out | out |
//! | Resident, huge (a) | as the kernel left it (c) | reclaim: split on its way out | out |
//! | Resident, huge | Resident | reclaim: the kernel has split the frame in place | shared |
//! | Resident (a) | Resident, huge | collapse: joined in place by the kernel | shared |
//! | Resident, huge (a) | Empty | closing: the frame kept for another | shared |
//! | any | one granule more resident, owed no longer | arrival | shared |
//! | Empty, Resident | Stored, resident too | a forked child takes over (d) | exclusive |
//! | any | bits cleared, backing dropped | event (discard, unmap) | exclusive |
//!
//! (a) All entries of a huge frame at once. (b) No backing if it is all zero; Staged where the
//! store takes no more. (c) Entries that stayed: Resident; the one in the middle: Staged, resident
//! too; the rest: Stored. (d) Before other threads run.
//!
//! In a *file's* entries a granule without backing is in the file, and does not read as zero.
//!
//! A *huge* entry is in the region, in a part of a frame that only moves whole: it is never staged
//! by itself. The kernel splits such a frame without notice when the program discards, unmaps or
//! protects a part. So reclaim asks before it moves the frame out, and its entries are those of
//! base pages from then on.
//!
//! Where memory has several zones, a word also names the zone of its frames in the region. A move
//! leaves a frame where it physically is, so its zone travels with it; in the arena the slot tells
//! the zone. A base page has one zone: a part that came later, from another zone, counts as the
//! first's. With nothing in the region it says 0.
//!
//! A migration marks swapped-out content as *sent* once it has read it. The mark is cleared as soon
//! as a granule leaves the region or the backing changes, so that marked content need not be read
//! again.
//!
//! An event handler holds the gate exclusively and waits for busy words. That can't deadlock,
//! because a mover that needs the gate takes it before the bit, and a mover without the gate gives
//! the bit back before it asks for the gate. This module must never know an address or a lock.

/// How many granules a base page has at most.
pub const GRANULES: u32 = 16;

/// The bits that a payload (a slot number or a store handle) may have.
pub const PAYLOAD_BITS: u32 = 36;

/// How many zones a word can tell apart.
pub const ZONES: usize = 16;

const BUSY: u64 = 1;
const BACKING_SHIFT: u32 = 1;
const BACKING_MASK: u64 = 0b11 << BACKING_SHIFT;
const SLOT: u64 = 1 << BACKING_SHIFT;
const HANDLE: u64 = 2 << BACKING_SHIFT;
const WARMTH_SHIFT: u32 = 3;
const WARMTH_MASK: u64 = 0b11 << WARMTH_SHIFT;
const HUGE: u64 = 1 << 5;
const SENT: u64 = 1 << 6;
const RESIDENT_SHIFT: u32 = 8;
const RESIDENT_MASK: u64 = 0xffff << RESIDENT_SHIFT;
const PAYLOAD_SHIFT: u32 = 24;
const ZONE_SHIFT: u32 = PAYLOAD_SHIFT + PAYLOAD_BITS;
const ZONE_MASK: u64 = (ZONES as u64 - 1) << ZONE_SHIFT;

/// A set of granules of one base page, bit 0 the lowest address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Granules(u16);

impl Granules {
    /// No granule.
    pub const NONE: Self = Self(0);

    /// Granules `from..to`. Panics if `to` is more than [`GRANULES`] or less than `from`.
    #[must_use]
    pub const fn range(from: u32, to: u32) -> Self {
        assert!(from <= to && to <= GRANULES);
        Self((((1u32 << to) - 1) & !((1u32 << from) - 1)) as u16)
    }
    /// The set with these bits.
    #[must_use]
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }
    /// Its bits.
    #[must_use]
    pub const fn bits(self) -> u16 {
        self.0
    }
    /// Whether it has no member.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
    /// How many members it has.
    #[must_use]
    pub const fn count(self) -> u32 {
        self.0.count_ones()
    }
    /// Whether granule `i` is a member.
    #[must_use]
    pub const fn has(self, i: u32) -> bool {
        self.0 >> i & 1 == 1
    }
    /// Members of both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
    /// Members of either.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
    /// Members of this one that are not in the other.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
    /// The maximal runs of members, lowest first, as `(first, one past the last)`.
    pub fn runs(self) -> impl Iterator<Item = (u32, u32)> {
        let mut rest = u32::from(self.0);
        std::iter::from_fn(move || {
            if rest == 0 {
                return None;
            }
            let from = rest.trailing_zeros();
            let to = from + (rest >> from).trailing_ones();
            rest &= !((1u32 << to) - 1);
            Some((from, to))
        })
    }
    /// The maximal run of members around granule `i`, which must be one.
    #[must_use]
    pub fn run_around(self, i: u32) -> Self {
        self.runs()
            .find(|&(from, to)| from <= i && i < to)
            .map_or(Self::NONE, |(from, to)| Self::range(from, to))
    }
}

/// Where the content of the granules that are not in the region is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Nowhere: they read as zero.
    None,
    /// In this slot of the arena, at the granule's own offset. The place of a granule that is in
    /// the region is a hole or an old copy.
    Slot(u32),
    /// In the store, under this handle of at most [`PAYLOAD_BITS`] bits. It holds an old copy of
    /// granules that are in the region.
    Handle(u64),
}

/// One entry's value. `Word::EMPTY` is all zeroes, so that untouched table memory is a table of
/// empty entries.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Word(u64);

impl Word {
    /// Reads as zero, nothing held.
    pub const EMPTY: Self = Self(0);

    /// The word with these bits.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
    /// Its bits.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }
    /// Whether a thread is moving this page.
    #[must_use]
    pub const fn is_busy(self) -> bool {
        self.0 & BUSY != 0
    }
    /// The same state, taken by a mover.
    #[must_use]
    pub const fn busy(self) -> Self {
        Self(self.0 | BUSY)
    }
    /// The same state, given back.
    #[must_use]
    pub const fn idle(self) -> Self {
        Self(self.0 & !BUSY)
    }
    /// The granules whose content is in the region.
    #[must_use]
    pub const fn resident(self) -> Granules {
        Granules(((self.0 & RESIDENT_MASK) >> RESIDENT_SHIFT) as u16)
    }
    /// The same word with this resident mask. If a granule leaves the region by that, the content
    /// outside is no longer [sent](Self::is_sent). If none is left in it, the [zone](Self::zone) is
    /// cleared, too.
    #[must_use]
    pub const fn with_resident(self, granules: Granules) -> Self {
        let leaves = !self.resident().without(granules).is_empty();
        let word = if leaves { self.without_sent() } else { self };
        let word = if granules.is_empty() { Self(word.0 & !ZONE_MASK) } else { word };
        Self(word.0 & !RESIDENT_MASK | (granules.0 as u64) << RESIDENT_SHIFT)
    }
    /// Whether a migration has sent the content of all granules that are not in the region, as it
    /// is.
    #[must_use]
    pub const fn is_sent(self) -> bool {
        self.0 & SENT != 0
    }
    /// The same word, with all content outside the region sent.
    #[must_use]
    pub const fn with_sent(self) -> Self {
        Self(self.0 | SENT)
    }
    /// The same word, with the content outside the region not sent, or changed since.
    #[must_use]
    pub const fn without_sent(self) -> Self {
        Self(self.0 & !SENT)
    }
    /// Where the other granules' content is.
    #[must_use]
    pub const fn backing(self) -> Backing {
        let payload = (self.0 & !ZONE_MASK) >> PAYLOAD_SHIFT;
        match self.0 & BACKING_MASK {
            SLOT => Backing::Slot(payload as u32),
            HANDLE => Backing::Handle(payload),
            _ => Backing::None,
        }
    }
    /// The same word with this backing, which is [not sent](Self::is_sent). Panics if the payload
    /// has more than [`PAYLOAD_BITS`] bits.
    #[must_use]
    pub const fn with_backing(self, backing: Backing) -> Self {
        let rest = self.0 & (BUSY | WARMTH_MASK | HUGE | RESIDENT_MASK | ZONE_MASK);
        Self(
            rest | match backing {
                Backing::None => 0,
                Backing::Slot(slot) => SLOT | (slot as u64) << PAYLOAD_SHIFT,
                Backing::Handle(handle) => {
                    assert!(handle >> PAYLOAD_BITS == 0);
                    HANDLE | handle << PAYLOAD_SHIFT
                }
            },
        )
    }
    /// The zone of the frames in the region, below [`ZONES`]; 0 if there are none.
    #[must_use]
    pub const fn zone(self) -> usize {
        (self.0 >> ZONE_SHIFT) as usize
    }
    /// The same word with the region's frames of this zone; of none if there are no such frames.
    /// Panics if it is not below [`ZONES`].
    #[must_use]
    pub const fn with_zone(self, zone: usize) -> Self {
        assert!(zone < ZONES);
        let zone = if self.resident().is_empty() { 0 } else { zone as u64 };
        Self(self.0 & !ZONE_MASK | zone << ZONE_SHIFT)
    }
    /// Whether its frame is a part of a huge one.
    #[must_use]
    pub const fn is_huge(self) -> bool {
        self.0 & HUGE != 0
    }
    /// The same word as a part of a huge frame, or not.
    #[must_use]
    pub const fn with_huge(self, huge: bool) -> Self {
        Self(self.0 & !HUGE | if huge { HUGE } else { 0 })
    }
    /// How many rounds of reclaim this page is still spared: 0 to 3.
    #[must_use]
    pub const fn warmth(self) -> u8 {
        ((self.0 & WARMTH_MASK) >> WARMTH_SHIFT) as u8
    }
    /// The same word with this warmth, at most 3.
    #[must_use]
    pub const fn with_warmth(self, warmth: u8) -> Self {
        let warmth = if warmth > 3 { 3 } else { warmth };
        Self(self.0 & !WARMTH_MASK | (warmth as u64) << WARMTH_SHIFT)
    }
}

impl std::fmt::Debug for Word {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let busy = if self.is_busy() { "busy " } else { "" };
        write!(
            f,
            "{busy}{:?}, in the region {:#06x} of zone {}, warmth {}",
            self.backing(),
            self.resident().0,
            self.zone(),
            self.warmth()
        )
    }
}

#[cfg(test)]
#[path = "page_entry_test.rs"]
mod tests;
