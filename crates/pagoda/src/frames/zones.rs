//! The zones of an engine: the zone of the next frame, the level of each zone, and the zone to
//! reclaim from.
//!
//! A budget has one zone, or is divided among several: each has a part of the arena's slots, of the
//! watermarks and so of the turns (`pagoda_core::zone`). Memory outside frames (compressed pages,
//! tables, unmanaged memory) comes out of all of them in proportion, and a share of the budget is a
//! share of each. So the free memory of all zones is that of the budget.
//!
//! A frame is of the zone in whose slots it began, and stays of it wherever it travels. In the
//! arena the slot's number tells the zone, for a frame only goes into slots of its own zone. In a
//! region the entry tells it. So with several zones every frame begins in a slot. A page that the
//! kernel put into a region itself (present when adopted, copied on a write after a fork, or copied
//! where a mapping allows no move) counts as of the zone in turn, wherever it lies.
//!
//! With one zone all this costs a test of the number of zones. Nothing here waits, or allocates
//! after `new`.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU16, AtomicU32, AtomicU64, Ordering};

use pagoda_core::page_entry::Granules;
use pagoda_core::size::Bytes;
use pagoda_core::zone as turns;
use pagoda_core::zone::reclaim::{Reclaimers, ZoneReclaim};
use pagoda_linux::arena::{Slot, Space};

use crate::frames::pool::Zone;
use crate::frames::tier_notes::{Tier, Tiers};

pub use crate::frames::stats::{ZoneStats, age_ratio};
pub use crate::frames::zone_config::ResizeError;
pub use crate::frames::zone_config::{NAME_BYTES_MAX, Place, ZONES_MAX, ZoneConfig, ZoneError};

pub(crate) use crate::frames::turn_caches::Taker;
pub(crate) use crate::frames::zone_config::{Ranked, Unfit, in_order};

/// One zone, and its frames.
pub(crate) struct Part {
    pub(crate) name: String,
    /// As they were named: which counters are its.
    pub(super) number: usize,
    /// Its size, which may change: a computation uses the size of a moment ago.
    pub(crate) bytes: AtomicU64,
    pub(super) is_remote: bool,
    /// Its frames are of one node.
    is_bound: bool,
    /// The zone on whose list its pages age: its own, or one for all local zones.
    pub(super) list: usize,
    pub(crate) hands: Zone,
    /// Bytes of its frames in the regions, by the entries' masks, and of those that back staged
    /// entries. With one zone the ledger has them.
    pub(super) in_regions: AtomicI64,
    pub(super) staged: AtomicI64,
    /// Bytes of dirty base pages of files, also with one zone.
    dirty: AtomicI64,
}

impl Part {
    pub(super) fn bytes(&self) -> Bytes {
        Bytes::new(self.bytes.load(Ordering::Relaxed))
    }
}

/// All zones, local ones first, and their turns.
pub(crate) struct Zones {
    pub(crate) parts: Box<[Part]>,
    /// How many of them are local: the first ones.
    pub(super) local: usize,
    /// One is given another size at a time.
    pub(crate) resizing: Mutex<()>,
    /// One has become smaller, and may hold more than it is to.
    pub(crate) shrunk: AtomicBool,
    /// None with one zone. An innermost lock, as the zones' own.
    pub(super) turns: Option<Mutex<turns::Zones>>,
    /// With a list for each zone. None with one for all. An innermost lock, too.
    pub(crate) reclaimers: Option<Mutex<Reclaimers>>,
    /// Turns that were granted in advance.
    pub(super) caches: super::turn_caches::Caches,
    /// The same for huge frames, which have turns of their own.
    pub(super) huge_turns: Option<Mutex<turns::Zones>>,
    /// Whether any fault wanted a frame of zeroes yet: before that none is got ready.
    asked: AtomicBool,
    /// Tries of the program's faults that have to be made again.
    kept_faults: AtomicU64,
    /// How long a kept fault pauses between two tries; 0 unless reclaim gained nothing for long.
    pub(crate) hopeless_pause_ms: AtomicU32,
    /// Notes for the policy of tiers. None unless there are local and remote zones.
    tiers: Option<Tiers>,
    /// For each slot, the OS pages of a staged entry that have a frame there, as far as is known:
    /// for counts alone.
    staged: Box<[AtomicU16]>,
}

/// The configuration of a zone, and its number of slots.
pub(crate) type Plan = (Ranked, u32);

impl Zones {
    /// Zones with empty slots, local ones first. Their slots follow each other in this order.
    /// `handlers` is the number of handler threads. With `tiering` pages change places between
    /// local and remote zones by their use.
    pub(crate) fn new(plan: Vec<Plan>, policy: turns::ZonePolicy, handlers: usize, tiering: bool) -> Self {
        // The level of each is observed before each allocation.
        let any = turns::Zone { free_frames: 0, low_frames: 0, high_frames: 1 };
        let remote = plan.iter().filter(|(ranked, _)| ranked.is_remote).count();
        let states = vec![any; plan.len()];
        let local_count = plan.len() - remote;
        let (local, remote) = states.split_at(local_count);
        let weights: Vec<_> = plan.iter().map(|(ranked, _)| ranked.zone.weight).collect();
        let turns = || turns::Zones::new(policy, local, remote).with_weights(&weights);
        let turns = (plan.len() > 1).then(turns);
        let lists: Vec<usize> = match &turns {
            Some(turns) => turns.ids().map(|id| turns.list_of(id).index()).collect(),
            None => vec![0],
        };
        let mut first = 0;
        let part = |((Ranked { number, zone, is_remote }, slots), list): (Plan, usize)| {
            let hands = Zone::new(first, slots);
            first += slots;
            let ZoneConfig { name, bytes, place, weight: _ } = zone;
            let is_bound = matches!(place, Place::Node(_));
            let (bytes, zero) = (AtomicU64::new(bytes.get()), || AtomicI64::new(0));
            let (in_regions, staged, dirty) = (zero(), zero(), zero());
            Part { name, number, bytes, is_remote, is_bound, list, hands, in_regions, staged, dirty }
        };
        let parts: Box<[Part]> = plan.into_iter().zip(lists).map(part).collect();
        Self {
            tiers: (tiering && local_count < parts.len()).then(|| Tiers::new(first)),
            parts,
            local: local_count,
            caches: super::turn_caches::Caches::new(handlers),
            resizing: Mutex::new(()),
            shrunk: AtomicBool::new(false),
            huge_turns: turns.clone().map(Mutex::new),
            turns: turns.map(Mutex::new),
            reclaimers: None,
            asked: AtomicBool::new(false),
            kept_faults: AtomicU64::new(0),
            hopeless_pause_ms: AtomicU32::new(0),
            staged: (0..first).map(|_| AtomicU16::new(0)).collect(),
        }
    }

    /// The same with this kind of reclaim.
    pub(crate) fn with_reclaim(mut self, reclaim: ZoneReclaim) -> Self {
        let has_many = reclaim == ZoneReclaim::PerZone && self.are_several();
        self.reclaimers = has_many.then(Mutex::default);
        self
    }

    /// The list on which the staged page in slot `index` is: the number of its hand.
    pub(crate) fn list_of_slot(&self, index: u32) -> usize {
        if self.reclaimers.is_some() { self.of_slot(index) } else { 0 }
    }

    /// Their names, as they were named.
    pub(crate) fn names(&self) -> Vec<String> {
        self.by_name(|_| ()).into_iter().map(|(name, ())| name).collect()
    }

    /// Something of each, as they were named.
    pub(crate) fn by_name<T>(&self, of: impl Fn(usize) -> T) -> Vec<(String, T)> {
        let mut zones: Vec<usize> = (0..self.count()).collect();
        zones.sort_by_key(|zone| self.parts[*zone].number);
        zones.into_iter().map(|zone| (self.parts[zone].name.clone(), of(zone))).collect()
    }

    /// The notes for the policy of tiers, if there are any.
    pub(crate) fn tiers(&self) -> Option<&Tiers> {
        self.tiers.as_ref()
    }

    pub(crate) fn tier_of(&self, zone: usize) -> Tier {
        if zone < self.local { Tier::Local } else { Tier::Remote }
    }

    pub(crate) fn tier_of_slot(&self, index: u32) -> Tier {
        self.tier_of(self.of_slot(index))
    }

    pub(super) fn of_tier(&self, tier: Tier) -> std::ops::Range<usize> {
        if tier == Tier::Local { 0..self.local } else { self.local..self.count() }
    }

    pub(crate) fn are_several(&self) -> bool {
        self.turns.is_some()
    }

    /// One more thread that serves faults, and is no handler.
    pub(crate) fn new_taker(&self) -> Taker {
        self.caches.new_taker()
    }

    /// The number of the zone that slot `index` is of.
    pub(crate) fn of_slot(&self, index: u32) -> usize {
        if !self.are_several() {
            return 0;
        }
        self.parts.iter().rposition(|part| part.hands.first() <= index).unwrap_or(0)
    }

    fn hands_of(&self, slot: &Slot) -> &Zone {
        &self.parts[self.of_slot(slot.index())].hands
    }

    /// Bytes of frames that are ready, whole ones and parts.
    pub(crate) fn ready_bytes(&self, space: &Space) -> u64 {
        self.parts.iter().map(|part| part.hands.ready_bytes(space)).sum()
    }

    /// A frame that is ready, all of it, of the zone that has most that is: to be given back.
    pub(crate) fn take_to_give_back(&self, space: &Space) -> Option<Slot> {
        self.parts.iter().max_by_key(|part| part.hands.whole_ready())?.hands.take_whole_ready(space)
    }

    /// A frame that is ready, of the zone that has most of them.
    pub(crate) fn take_ready(&self, space: &Space) -> Option<Slot> {
        if !self.are_several() {
            return self.parts[0].hands.take_ready(space);
        }
        self.parts.iter().max_by_key(|part| part.hands.ready_bytes(space))?.hands.take_ready(space)
    }

    /// How many zones there are.
    pub(crate) fn count(&self) -> usize {
        self.parts.len()
    }

    /// The size of a zone.
    pub(crate) fn size(&self, zone: usize) -> Bytes {
        self.parts[zone].bytes()
    }

    /// Whether a zone's frames have to be of one node.
    pub(crate) fn is_bound(&self, zone: usize) -> bool {
        self.parts[zone].is_bound
    }

    /// Base pages of files became dirty in a zone, or are not any more (negative).
    pub(crate) fn dirty(&self, zone: usize, bytes: i64) {
        self.parts[zone].dirty.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The known dirty bytes of a zone.
    pub(crate) fn dirty_bytes(&self, zone: usize) -> Bytes {
        Bytes::new(self.parts[zone].dirty.load(Ordering::Relaxed).max(0) as u64)
    }

    /// The frames of a zone.
    pub(crate) fn hands(&self, zone: usize) -> &Zone {
        &self.parts[zone].hands
    }

    /// A fault wants a frame of zeroes.
    pub(crate) fn note_asked(&self) {
        // It is mostly set; the load keeps the cache line shared among all readers.
        if !self.was_asked() {
            self.asked.store(true, Ordering::Relaxed);
        }
    }

    /// A fault of the program's has to wait.
    pub(crate) fn note_kept_fault(&self) {
        self.kept_faults.fetch_add(1, Ordering::Relaxed);
    }

    /// How often one had to. Calls that would have a fault are not among them: they may fail.
    pub(crate) fn kept_faults(&self) -> u64 {
        self.kept_faults.load(Ordering::Relaxed)
    }

    pub(crate) fn was_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// An empty slot of a zone.
    pub(crate) fn take_empty(&self, space: &Space, zone: usize) -> Option<Slot> {
        self.parts[zone].hands.take_empty(space)
    }

    /// `1 << order` empty slots of a zone that follow each other.
    pub(crate) fn take_empty_run(&self, space: &Space, zone: usize, order: u32) -> Option<Vec<Slot>> {
        self.parts[zone].hands.take_empty_run(space, order)
    }

    /// See [`Zone::place_page`]: with one zone, its.
    pub(crate) fn place_page<T>(
        &self,
        space: &Space,
        content: &[u8],
        may_open: bool,
        place: impl FnOnce(&Slot, usize) -> (bool, T),
    ) -> Option<T> {
        debug_assert!(!self.are_several(), "of several zones one has to be chosen");
        self.parts[0].hands.place_page(space, content, may_open, place)
    }

    /// All parts of a zone's frames, in the order of their slots, and their bytes. None as long as
    /// no zone has many.
    pub(crate) fn take_gathered_pieces(&self, space: &Space) -> Option<(Vec<Slot>, u64)> {
        self.parts.iter().find_map(|part| part.hands.take_gathered_pieces(space))
    }

    /// See [`Zone::put_pieces`].
    pub(crate) fn put_pieces(&self, space: &Space, slot: Slot, frames: Granules) {
        self.hands_of(&slot).put_pieces(space, slot, frames);
    }

    /// The frame of `slot` is unused now.
    pub(crate) fn put_ready(&self, space: &Space, slot: Slot) {
        self.hands_of(&slot).put_ready(space, slot);
    }

    /// See [`Zone::put_zeroed`].
    pub(crate) fn put_zeroed(&self, space: &Space, slot: Slot) {
        self.hands_of(&slot).put_zeroed(space, [slot]);
    }

    /// The frame of `slot` has gone elsewhere.
    pub(crate) fn put_empty(&self, space: &Space, slot: Slot) {
        self.hands_of(&slot).put_empty(space, slot);
    }

    /// Bytes of a zone's frames are in the regions now, or not any more (negative).
    pub(crate) fn in_regions(&self, zone: usize, bytes: i64) {
        if self.are_several() {
            self.parts[zone].in_regions.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// The bytes of a zone's frames in the regions. Only with several zones.
    pub(crate) fn resident_bytes_of(&self, zone: usize) -> u64 {
        self.parts[zone].in_regions.load(Ordering::Relaxed).max(0) as u64
    }

    /// Those that back staged entries. Only with several zones.
    pub(crate) fn staged_bytes_of(&self, zone: usize) -> u64 {
        self.parts[zone].staged.load(Ordering::Relaxed).max(0) as u64
    }

    /// These frames of slot `index` back a staged entry now. Returns how many did not before.
    pub(super) fn went_into_staging(&self, index: u32, there: Granules) -> u32 {
        if let Some(tiers) = &self.tiers {
            tiers.forget(index);
        }
        let before = self.staged[index as usize].fetch_or(there.bits(), Ordering::Relaxed);
        there.without(Granules::from_bits(before)).count()
    }

    /// These frames of slot `index` back no staged entry any more. Returns how many did before.
    pub(super) fn left_staging(&self, index: u32, gone: Granules) -> u32 {
        let before = self.staged[index as usize].fetch_and(!gone.bits(), Ordering::Relaxed);
        gone.and(Granules::from_bits(before)).count()
    }

    /// The frames of slot `index` that back a staged entry, as far as is known.
    pub(super) fn staged_pages(&self, index: u32) -> Granules {
        Granules::from_bits(self.staged[index as usize].load(Ordering::Relaxed))
    }

    pub(super) fn staged(&self, index: u32, bytes: i64) {
        if self.are_several() {
            self.parts[self.of_slot(index)].staged.fetch_add(bytes, Ordering::Relaxed);
        }
    }
}
