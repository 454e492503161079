//! The state of one base page: one 64-bit word, changed by compare-and-swap, by one elected mover at a time.
//!
//! A base page has up to sixteen *granules* (OS pages, for base pages up to 64 KiB). A granule's content is either
//! *in the region* (its bit in the resident mask is set) or in the *backing* of the entry: nothing (it reads as
//! zero), a slot of an arena, or a handle of a store. Both at once is normal for a page that was evicted or
//! discarded in part, or that came back and kept its stored copy. What a granule is worth is never in two places: what
//! the backing holds of a granule that is in the region is an *old copy*, which only serves to find out whether the
//! granule was written.
//!
//! | design's name | mask | backing | busy |
//! |---|---|---|---|
//! | `Empty` | none | none | no |
//! | `Resident` | some | none | no |
//! | `Staged` | any | slot | no |
//! | `Stored` | any | handle | no |
//! | `Busy` | as before | as before | yes |
//!
//! A set bit says that *we* put the content there, or found it there when the range was adopted. What else may be
//! present in a region (the pages of a discard that the kernel has announced but not yet carried out) has no bit, and
//! is never evicted: that is how discarded content can't come back.
//!
//! Transitions. Every change starts by taking the busy bit and ends by writing a new word without it; nobody but its
//! taker writes a busy word.
//!
//! | from | to | who, holding what |
//! |---|---|---|
//! | Empty, Resident | Resident, more granules | fault: zero fill; gate shared throughout |
//! | any | more granules resident | adoption: what is present is marked; gate exclusive |
//! | Resident; Staged, resident too | Staged | reclaim: move out; gate shared throughout |
//! | Staged | Staged, more granules resident; Resident | fault: move in; gate shared throughout |
//! | Staged | Stored; with no backing if it is all zero | reclaim: store, then frame ready; no gate |
//! | Stored | Staged | fault, event: fetch into a slot, the copy is freed; no gate needed |
//! | Stored | Stored, one granule more resident | fault: that granule alone, the copy stays; gate shared throughout |
//! | Stored | Stored, all of it resident | fault, fetch-ahead: the page, the copy stays; gate shared throughout |
//! | Stored, resident too | Stored | reclaim: moved out with the gate shared, the same as the copy: dropped; no gate needed to finish |
//! | Stored, resident too | Stored by another handle | reclaim: moved out with the gate shared, a part was written: stored anew; no gate needed to finish |
//! | Stored, resident too | Staged | reclaim: moved out with the gate shared, written: joined with the rest of the copy, which is freed; no gate needed to finish |
//! | Empty, of a file | Staged | fault, read-ahead: read from the file; no gate needed |
//! | Staged, of a file | with no backing | reclaim: written if it differs, then frame ready; no gate |
//! | Stored, of a file | with no backing | sync: what could not be written is; no gate to finish |
//! | Empty, all of a huge frame's entries | Resident, huge | fault: one frame for all of them; gate shared throughout |
//! | Empty, all of a huge frame's entries, none of it owed | Resident, huge | arrival: one frame, filled before; gate shared throughout |
//! | Resident, huge, all of a huge frame's entries | Stored each, with no backing if it is all zero; Staged where the store takes no more | reclaim: the frame moved out with the gate shared; no gate needed to finish |
//! | Resident, huge, all of a huge frame's entries | Resident those that stayed; Staged, resident too, the one in the middle; Stored the rest | reclaim: the kernel took the frame apart on its way out; as above |
//! | Resident, huge | Resident | reclaim: the kernel has taken the frame apart where it lies; gate shared throughout |
//! | Resident, all of a huge frame's entries | Resident, huge | rebuilding: joined in place by the kernel; gate shared throughout |
//! | Resident, huge, all of a huge frame's entries | Empty | closing: the frame kept for another; gate shared throughout |
//! | any | one granule more resident, owed no longer | arrival: gate shared throughout |
//! | Empty, Resident | Stored, resident too | a forked child takes over; gate exclusive, before other threads run |
//! | any | bits cleared, backing dropped | event (discard, unmap); gate exclusive |
//!
//! In a *file's* entries what has no backing is in the file, and does not read as zero.
//!
//! A *huge* entry is in the region, in a part of a frame that only moves whole: it is never staged by itself. The kernel takes such a
//! frame apart without a word where the program discards, unmaps or protects a part; who wants it to leave asks, and its entries are
//! those of base pages from then on.
//!
//! Where memory has several zones, a word also says from which one the frames in the region came: a move leaves a frame
//! where it physically is, so that its zone travels with it, and in the arena it is told by the slot. A base page has
//! one zone: a part that came later, from another, is counted as of the first's. With nothing in the region it says 0.
//!
//! A migration marks what is out as *sent* once it has read it. The mark goes as soon as a granule leaves the region or the
//! backing is another, so that what is marked need not be read again.
//!
//! An event handler holds the gate exclusively and waits for busy words. That can't deadlock, because a mover that
//! needs the gate holds it from before it takes the bit, and one that does not hold it never asks for it before it has
//! given the bit back. This module must never know an address or a lock.

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
    /// In this slot of the arena, at the granule's own offset. At the place of granules that are in the region there is a
    /// hole or an old copy.
    Slot(u32),
    /// In the store, under this handle of at most [`PAYLOAD_BITS`] bits. Of granules that are in the region it holds an old
    /// copy.
    Handle(u64),
}

/// One entry's value. `Word::EMPTY` is all zeroes, so that untouched table memory is a table of empty entries.
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
    /// Whether someone is moving this page.
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
    /// The same word with this resident mask. If a granule leaves the region by that, what is out is not as it was
    /// [sent](Self::is_sent). If none is left in it, the [zone](Self::zone) goes, too.
    #[must_use]
    pub const fn with_resident(self, granules: Granules) -> Self {
        let leaves = !self.resident().without(granules).is_empty();
        let word = if leaves { self.without_sent() } else { self };
        let word = if granules.is_empty() { Self(word.0 & !ZONE_MASK) } else { word };
        Self(word.0 & !RESIDENT_MASK | (granules.0 as u64) << RESIDENT_SHIFT)
    }
    /// Whether a migration has sent the content of all granules that are not in the region, as it is.
    #[must_use]
    pub const fn is_sent(self) -> bool {
        self.0 & SENT != 0
    }
    /// The same word, with what is not in the region sent.
    #[must_use]
    pub const fn with_sent(self) -> Self {
        Self(self.0 | SENT)
    }
    /// The same word, with what is not in the region not sent, or not as it is.
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
    /// The same word with this backing, which is [not sent](Self::is_sent). Panics if the payload has more than
    /// [`PAYLOAD_BITS`] bits.
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
    /// The same word with what is in the region of this zone; if nothing is, of none. Panics if it is not below [`ZONES`].
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
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn untouched_memory_is_an_empty_entry() {
        assert_eq!(Word::EMPTY.bits(), 0);
        assert_eq!((Word::EMPTY.backing(), Word::EMPTY.resident()), (Backing::None, Granules::NONE));
        assert!(!Word::EMPTY.is_busy());
    }

    fn backing() -> impl Strategy<Value = Backing> {
        prop_oneof![
            Just(Backing::None),
            any::<u32>().prop_map(Backing::Slot),
            (0..1u64 << PAYLOAD_BITS).prop_map(Backing::Handle)
        ]
    }

    proptest! {
        #[test]
        fn each_field_keeps_its_value_whatever_the_others_do(
            resident: u16, backing in backing(), warmth in 0u8..4, other in backing(), busy: bool, huge: bool, zone in 0..ZONES
        ) {
            let mut word = Word::EMPTY.with_huge(huge).with_backing(other).with_resident(Granules(resident)).with_warmth(warmth);
            word = word.with_zone(zone);
            if busy { word = word.busy(); }
            word = word.with_backing(backing);
            prop_assert_eq!(word.backing(), backing);
            prop_assert_eq!(word.resident().bits(), resident);
            prop_assert_eq!(word.warmth(), warmth);
            prop_assert_eq!((word.is_busy(), word.is_huge()), (busy, huge));
            prop_assert_eq!(word.zone(), if resident == 0 { 0 } else { zone });
            prop_assert_eq!(word.with_resident(Granules::NONE).zone(), 0);
            prop_assert_eq!(word.busy().idle(), word.idle());
            prop_assert_eq!(word.with_sent().without_sent(), word);
        }

        #[test]
        fn what_is_out_stays_sent_until_it_changes(resident: u16, then: u16, backing in backing(), warmth in 0u8..4) {
            let word = Word::EMPTY.with_backing(backing).with_resident(Granules(resident)).with_sent();
            prop_assert!(word.busy().with_warmth(warmth).idle().is_sent());
            prop_assert_eq!(word.with_resident(Granules(then)).is_sent(), resident & !then == 0);
            prop_assert!(!word.with_backing(backing).is_sent());
        }

        #[test]
        fn runs_cover_the_set_exactly_and_never_touch(bits: u16) {
            let set = Granules(bits);
            let mut covered = Granules::NONE;
            let mut end_before = None;
            for (from, to) in set.runs() {
                prop_assert!(from < to && end_before.is_none_or(|end| end < from));
                end_before = Some(to);
                covered = covered.or(Granules::range(from, to));
                for i in from..to { prop_assert_eq!(set.run_around(i), Granules::range(from, to)); }
            }
            prop_assert_eq!(covered, set);
        }
    }
}
