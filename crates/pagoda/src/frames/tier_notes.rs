//! Notes on staged pages for the policy of tiers (`pagoda_core::zone::tiering`): when each was
//! staged, and counts of those that came back since. This module must never know an engine.

use std::sync::atomic::{AtomicU32, Ordering};

use pagoda_core::zone::tiering::{self, Seen, TICK_MS};
use pagoda_linux::process::thread::ran_ns;

/// A note on a slot: the lowest bits of the tick, and the reason.
const TICK: u32 = 0xffff;
const STAGED: u32 = 1 << 16;
const SAMPLED: u32 = 1 << 17;
const DEMOTED: u32 = 1 << 18;
/// Demoted to make room for a hot page, and not by reclaim.
const MADE_ROOM: u32 = 1 << 19;

/// The tick that it is now.
pub(crate) fn tick() -> u64 {
    ran_ns() / (u64::from(TICK_MS) * 1_000_000)
}

/// Local zones, or remote ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tier {
    Local,
    Remote,
}

/// The notes of an engine with local and remote zones.
pub(crate) struct Tiers {
    /// For each slot, when the page in it was staged or demoted; 0 if that is not known. It is
    /// written with the busy bit of the page's entry.
    notes: Box<[AtomicU32]>,
    /// Pages that may still be promoted in this tick.
    may_promote: AtomicU32,
    /// Counts of [`Seen`], since it was taken.
    hot: AtomicU32,
    promoted: AtomicU32,
    demoted: AtomicU32,
    regretted: AtomicU32,
}

impl Tiers {
    pub(super) fn new(slots: u32) -> Self {
        let zero = || AtomicU32::new(0);
        Self {
            notes: (0..slots).map(|_| zero()).collect(),
            may_promote: zero(),
            hot: zero(),
            promoted: zero(),
            demoted: zero(),
            regretted: zero(),
        }
    }

    fn note(&self, slot: u32, what: u32) {
        let note = if what == 0 { 0 } else { what | tick() as u32 & TICK };
        self.notes[slot as usize].store(note, Ordering::Relaxed);
    }

    /// The page in this slot was put there for another reason than to see whether it is used.
    pub(super) fn forget(&self, slot: u32) {
        self.note(slot, 0);
    }

    /// When the page in this slot was staged or demoted, if that is known.
    pub(crate) fn since(&self, slot: u32) -> Option<u16> {
        let note = self.notes[slot as usize].load(Ordering::Relaxed);
        (note != 0).then_some((note & TICK) as u16)
    }

    /// The page in this slot was staged to see whether it comes back. If another has the slot by
    /// now, the note is about that one: it comes back whole, or is promoted in vain.
    pub(crate) fn note_sampled(&self, slot: u32) {
        self.note(slot, SAMPLED);
    }

    /// So many pages may be promoted from now on.
    pub(crate) fn may_promote(&self, pages: u32) {
        self.may_promote.store(pages, Ordering::Relaxed);
    }

    /// The counts since the last call.
    pub(crate) fn take_seen(&self) -> Seen {
        let [hot, promoted, demoted, regretted] = [&self.hot, &self.promoted, &self.demoted, &self.regretted]
            .map(|count| count.swap(0, Ordering::Relaxed));
        Seen { hot, promoted, demoted, regretted, is_round_over: false }
    }

    /// The page in a remote zone's slot is wanted. Whether it is hot, and may be promoted.
    pub(super) fn comes_back(&self, slot: u32) -> bool {
        let note = self.notes[slot as usize].load(Ordering::Relaxed);
        let (now, then) = (tick() as u16, (note & TICK) as u16);
        if note & DEMOTED != 0 {
            // One touch does not show that it is hot.
            if note & MADE_ROOM != 0 && tiering::is_regretted(now, then) {
                self.regretted.fetch_add(1, Ordering::Relaxed);
            }
            return false;
        }
        if note == 0 || !tiering::is_hot(now, then) {
            return false;
        }
        self.hot.fetch_add(1, Ordering::Relaxed);
        let one_less = |pages: u32| pages.checked_sub(1);
        self.may_promote.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
    }

    /// The page in this slot was staged, by the holder of its busy bit.
    pub(super) fn note_staged(&self, slot: u32) {
        self.note(slot, STAGED);
    }

    /// The page in this slot was demoted, by reclaim or to make room for a hot one.
    pub(super) fn note_demoted(&self, slot: u32, makes_room: bool) {
        self.note(slot, if makes_room { DEMOTED | MADE_ROOM } else { DEMOTED });
        self.demoted.fetch_add(u32::from(makes_room), Ordering::Relaxed);
    }

    /// A hot page was promoted.
    pub(super) fn note_promoted(&self) {
        self.promoted.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether the page in this slot was sampled or demoted.
    pub(super) fn was_whole(&self, slot: u32) -> bool {
        self.notes[slot as usize].load(Ordering::Relaxed) & (SAMPLED | DEMOTED) != 0
    }
}
