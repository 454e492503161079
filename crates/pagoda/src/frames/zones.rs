//! The zones of an engine: which one the next frame is of, how much each has, and which one is to be reclaimed from.
//!
//! A budget has one zone, or is divided among several: each has a part of the arena's slots, of the watermarks and so of the
//! turns (`pagoda_core::zone`). What is not frames (compressed pages, tables, what is not managed) comes out of all of them in
//! proportion, and a share of the budget is a share of each. So the free memory of all zones is that of the budget.
//!
//! A frame is of the zone in whose slots it began, and stays of it wherever it travels: in the arena the slot's number says
//! which that is, for it only ever goes into slots of its own zone, and in a region the entry does. So with several zones
//! every frame begins in a slot. What the kernel put into a region itself (what was there when it was adopted, what is copied
//! on a write after a fork or where a mapping allows no move) is counted as of the zone whose turn it is, wherever it lies.
//!
//! With one zone all this is that zone, and costs a test of the number of zones. Nothing here waits or allocates after `new`.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use pagoda_core::page::OS_PAGE;
use pagoda_core::page_entry::{Granules, Word};
use pagoda_core::size::Bytes;
use pagoda_core::zone as turns;
use pagoda_core::zone::levels::Level;
use pagoda_linux::arena::{Slot, Space};
use pagoda_linux::uffd::Progress;

use crate::engine::Engine;
use crate::frames::pool::{Holds, Zone, all_of_slot};
use crate::stats::counters::Counter;

pub use crate::frames::stats::{ZoneStats, age_ratio};
pub use crate::frames::zone_config::{NAME_BYTES_MAX, Place, ZONES_MAX, ZoneConfig, ZoneError};
pub use crate::reclaim::resize::ResizeError;

pub(crate) use crate::frames::turns::Taker;
pub(crate) use crate::frames::zone_config::{Ranked, Unfit, in_order};

/// One zone, and what is of it.
pub(crate) struct Part {
    pub(crate) name: String,
    /// As they were named: which counters are its.
    pub(super) number: usize,
    /// Its size, which may change: whoever computes with it goes by what it was a moment ago.
    pub(crate) bytes: AtomicU64,
    pub(super) is_remote: bool,
    /// Its frames are of one node.
    is_bound: bool,
    /// The zone on whose list its pages age: its own, or one for all local zones.
    pub(super) list: usize,
    pub(crate) hands: Zone,
    /// Bytes of its frames in the regions, by the entries' masks, and of those that back staged entries. With one zone the
    /// ledger has them.
    pub(super) in_regions: AtomicI64,
    pub(super) staged: AtomicI64,
    /// Bytes of base pages of files that were written and are not in the file yet, also with one zone.
    dirty: AtomicI64,
}

impl Part {
    pub(super) fn bytes(&self) -> Bytes {
        Bytes::new(self.bytes.load(Ordering::Relaxed))
    }
}

/// All zones, local ones first, and whose turn it is.
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
    /// What of them was granted in advance.
    pub(super) caches: super::turns::Caches,
    /// The same for huge frames, which have turns of their own.
    pub(super) huge_turns: Option<Mutex<turns::Zones>>,
    /// Whether any fault wanted a frame of zeroes yet: before that none is got ready.
    asked: AtomicBool,
    /// Tries of the program's faults that have to be made again.
    kept_faults: AtomicU64,
}

/// What a zone is made of: what was said of it, and how many slots it has.
pub(crate) type Plan = (Ranked, u32);

impl Zones {
    /// Zones with empty slots, local ones first. Their slots follow each other in this order. So many `handlers` serve their faults.
    pub(crate) fn new(plan: Vec<Plan>, policy: turns::ZonePolicy, handlers: usize) -> Self {
        // What each can give is observed before each allocation.
        let any = turns::Zone { free_frames: 0, low_frames: 0, high_frames: 1 };
        let remote = plan.iter().filter(|(ranked, _)| ranked.is_remote).count();
        let states = vec![any; plan.len()];
        let local_count = plan.len() - remote;
        let (local, remote) = states.split_at(local_count);
        let turns = (plan.len() > 1).then(|| turns::Zones::new(policy, local, remote));
        let lists: Vec<usize> = match &turns {
            Some(turns) => turns.ids().map(|id| turns.list_of(id).index()).collect(),
            None => vec![0],
        };
        let mut first = 0;
        let part = |((Ranked { number, zone, is_remote }, slots), list): (Plan, usize)| {
            let hands = Zone::new(first, slots);
            first += slots;
            let ZoneConfig { name, bytes, place } = zone;
            let is_bound = matches!(place, Place::Node(_));
            let (bytes, zero) = (AtomicU64::new(bytes.get()), || AtomicI64::new(0));
            let (in_regions, staged, dirty) = (zero(), zero(), zero());
            Part { name, number, bytes, is_remote, is_bound, list, hands, in_regions, staged, dirty }
        };
        Self {
            parts: plan.into_iter().zip(lists).map(part).collect(),
            local: local_count,
            caches: super::turns::Caches::new(handlers),
            resizing: Mutex::new(()),
            shrunk: AtomicBool::new(false),
            huge_turns: turns.clone().map(Mutex::new),
            turns: turns.map(Mutex::new),
            asked: AtomicBool::new(false),
            kept_faults: AtomicU64::new(0),
        }
    }

    /// Their names, as they were named.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut parts: Vec<&Part> = self.parts.iter().collect();
        parts.sort_by_key(|part| part.number);
        parts.into_iter().map(|part| part.name.clone()).collect()
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

    /// What of a zone is known to be dirty.
    pub(crate) fn dirty_bytes(&self, zone: usize) -> Bytes {
        Bytes::new(self.parts[zone].dirty.load(Ordering::Relaxed).max(0) as u64)
    }

    /// The frames of a zone.
    pub(crate) fn hands(&self, zone: usize) -> &Zone {
        &self.parts[zone].hands
    }

    /// A fault wants a frame of zeroes.
    pub(crate) fn note_asked(&self) {
        // Most find it noted, and leave the line to all who read it.
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

    /// All parts of a zone's frames, in the order of their slots, and their bytes; None as long as no zone has many.
    pub(crate) fn take_gathered_pieces(&self, space: &Space) -> Option<(Vec<Slot>, u64)> {
        self.parts.iter().find_map(|part| part.hands.take_gathered_pieces(space))
    }

    /// See [`Zone::put_pieces`].
    pub(crate) fn put_pieces(&self, space: &Space, slot: Slot, frames: Granules) {
        self.hands_of(&slot).put_pieces(space, slot, frames);
    }

    /// The frame of `slot` holds nobody's content any more.
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

    fn staged(&self, index: u32, bytes: i64) {
        if self.are_several() {
            self.parts[self.of_slot(index)].staged.fetch_add(bytes, Ordering::Relaxed);
        }
    }
}

impl Engine {
    /// Enters granules that came into the region, in frames of `zone`. What is there already says of which zone the page is.
    pub(crate) fn came_in(&self, word: Word, came: Granules, zone: usize) -> Word {
        let bytes = i64::from(came.count()) * OS_PAGE as i64;
        self.ledger.resident(bytes);
        let after = word.with_resident(word.resident().or(came));
        if !self.zones.are_several() {
            return after;
        }
        let zone = if word.resident().is_empty() { zone } else { word.zone() };
        self.zones.in_regions(zone, bytes);
        after.with_zone(zone)
    }

    /// Frames of a zone are being filled with what arrives, or not any more (negative): they are ready no more, and in no region yet.
    #[cfg(feature = "migrate")]
    pub(crate) fn receiving(&self, zone: usize, bytes: i64) {
        self.ledger.receiving(bytes);
        self.zones.in_regions(zone, bytes);
    }

    /// Reclaim moved bytes of a zone's frames out of the regions.
    pub(crate) fn went_out(&self, zone: usize, bytes: i64) {
        self.ledger.resident(-bytes);
        if self.zones.are_several() {
            self.zones.in_regions(zone, -bytes);
            self.count_evicted(zone, bytes as u64);
        }
    }

    /// So much of a zone's frames was moved out of the regions by reclaim.
    pub(crate) fn count_evicted(&self, zone: usize, bytes: u64) {
        if self.zones.are_several() {
            self.counters.add(super::stats::COUNTERS[self.zones.parts[zone].number].evicted, bytes);
        }
    }

    /// The page in slot `index` leaves memory, and never was in a region.
    pub(crate) fn went_unmoved(&self, index: u32) {
        if self.zones.are_several() {
            let number = self.zones.parts[self.zones.of_slot(index)].number;
            self.counters.add(super::stats::COUNTERS[number].evicted, self.entry_bytes() as u64);
        }
    }

    /// The frame of slot `index` backs a staged entry from now on.
    pub(crate) fn went_into_staging(&self, index: u32) {
        self.ledger.staged(self.entry_bytes() as i64);
        self.zones.staged(index, self.entry_bytes() as i64);
    }

    /// The frame of slot `index` backs no staged entry any more.
    pub(crate) fn left_staging(&self, index: u32) {
        self.ledger.staged(-(self.entry_bytes() as i64));
        self.zones.staged(index, -(self.entry_bytes() as i64));
    }

    pub(super) fn gave(&self, zone: usize, bytes: u64) {
        let Part { number, is_remote, .. } = self.zones.parts[zone];
        self.counters.add(super::stats::COUNTERS[number].allocated, bytes);
        if is_remote {
            self.counters.add(Counter::ZonesSpilledBytes, bytes);
        }
    }

    /// A frame of the zone whose turn it is, or of the next that has one: ready or fresh, `regardless` of the budget if that is
    /// said. Only with several zones.
    pub(crate) fn frame_of_a_zone(&self, regardless: bool, taker: Taker) -> Option<Slot> {
        let all = all_of_slot(&self.space);
        let used = |hands: &Zone| Some((hands.take_whole_ready(&self.space)?, Holds::Used { there: all }));
        let (slot, holds) = self.frame_of_zones(taker, None, regardless, all, used)?;
        // All of it is about to be written.
        self.ledger.took(i64::from(all.without(holds.there(all)).count()) * OS_PAGE as i64);
        Some(slot)
    }

    /// The same for as much of the page of `word` as is `wanted` of zeroes, and what the frame holds: of the zone that the page is of, if
    /// that has one, as long as a part of it is there. Who fills what is missing tells the ledger.
    pub(crate) fn frame_of_a_zone_for_zeroes(
        &self,
        word: Word,
        wanted: Granules,
        taker: Taker,
    ) -> Option<(Slot, Holds)> {
        let home = (!word.resident().is_empty()).then(|| word.zone());
        self.frame_of_zones(taker, home, false, wanted, |hands| hands.take_for_zeroes(&self.space))
    }

    fn frame_of_zones(
        &self,
        taker: Taker,
        home: Option<usize>,
        regardless: bool,
        wanted: Granules,
        take_whole: impl Fn(&Zone) -> Option<(Slot, Holds)>,
    ) -> Option<(Slot, Holds)> {
        let parts_first = wanted != all_of_slot(&self.space);
        let may_use = regardless || self.may_use_frame();
        let may_take = regardless || self.has_room();
        let frame_bytes = self.entry_bytes() as u64;
        let given = |zone: usize, slot: Slot, holds: Holds| {
            self.gave(zone, u64::from(wanted.count()) * OS_PAGE as u64);
            (slot, holds)
        };
        let fresh = |zone: usize| {
            let slot = self.zones.parts[zone].hands.take_empty(&self.space)?;
            Some(given(zone, slot, Holds::Nothing))
        };
        let whole_at = |zone: usize, levels: &[Level; ZONES_MAX]| {
            if may_use && let Some((slot, holds)) = take_whole(&self.zones.parts[zone].hands) {
                return Some(given(zone, slot, holds));
            }
            let has_room = may_take && levels[zone].room_bytes >= frame_bytes as i64;
            has_room.then(|| fresh(zone)).flatten()
        };
        let part_of = |zone: usize| {
            let (slot, there) = self.zones.parts[zone].hands.take_part_ready(&self.space)?;
            Some(given(zone, slot, Holds::Used { there }))
        };
        // What is a part of a page is no turn.
        if let Some(zone) = home {
            let frame = may_use.then(|| part_of(zone)).flatten();
            if let Some(frame) = frame.or_else(|| whole_at(zone, &self.zone_levels())) {
                return Some(frame);
            }
        }
        let turn = self.zones_in_turn(taker);
        let whole = |zone: usize| whole_at(zone, &turn.levels);
        // Mostly nobody else has to be asked, nor who would be next.
        if !parts_first && let Some(frame) = turn.first.and_then(whole) {
            return Some(frame);
        }
        let order = self.zones_in_order(&turn);
        let part = || order.iter().filter(|_| may_use).find_map(part_of);
        if parts_first && let Some(frame) = part() {
            return Some(frame);
        }
        // Parts of frames do as well. And if there are none, the budget may have room for a frame, and each zone for a part of one.
        let frame = order.iter().find_map(whole).or_else(part);
        frame.or_else(|| order.iter().filter(|_| may_take).find_map(fresh))
    }

    /// A frame that is ready, all of it, of the zone whose turn it is, or of another.
    pub(crate) fn take_whole_ready(&self, taker: Taker) -> Option<Slot> {
        if !self.zones.are_several() {
            return self.zones.parts[0].hands.take_whole_ready(&self.space);
        }
        let order = self.zones_in_order(&self.zones_in_turn(taker));
        order.iter().find_map(|zone| {
            let slot = self.zones.parts[zone].hands.take_whole_ready(&self.space)?;
            self.gave(zone, self.entry_bytes() as u64);
            Some(slot)
        })
    }

    /// Lets `place` move one OS page of `content` into the page of `word`, of the zone that the page is of if that has one, else of
    /// the one whose turn it is. Says of which. Only with several zones.
    pub(crate) fn place_page_of_a_zone(
        &self,
        word: Word,
        content: &[u8],
        may_open: bool,
        taker: Taker,
        place: impl Fn(&Slot, usize) -> (bool, Progress),
    ) -> Option<(usize, Progress)> {
        let turn = self.zones_in_turn(taker);
        let order = self.zones_in_order(&turn);
        let order = if word.resident().is_empty() { order } else { order.with_first(word.zone()) };
        let has_room = self.has_room();
        let fresh = |zone: usize| {
            let placed = self.zones.parts[zone].hands.place_fresh_page(&self.space, content, &place)?;
            self.ledger.took(OS_PAGE as i64);
            Some(placed)
        };
        // All that a zone can do comes before the next: the one that has most parts of frames would give more than its share.
        let placed = order.iter().find_map(|zone| {
            let hands = &self.zones.parts[zone].hands;
            let fits = has_room && turn.levels[zone].room_bytes >= OS_PAGE as i64;
            let placed = hands
                .place_page(&self.space, content, false, &place)
                .or_else(|| fits.then(|| fresh(zone)).flatten())
                .or_else(|| {
                    may_open.then(|| hands.place_page(&self.space, content, true, &place)).flatten()
                })?;
            Some((zone, placed))
        });
        // As for frames: what the budget has room for, or is not kept for, some zone takes beyond its part.
        let beyond = || order.iter().find_map(|zone| Some((zone, fresh(zone)?)));
        let placed = placed.or_else(|| has_room.then(beyond).flatten());
        if let Some((zone, _)) = placed {
            self.gave(zone, OS_PAGE as u64);
        }
        placed
    }

    /// The zone to which a page of memory is counted that the kernel put into the region itself.
    pub(crate) fn zone_of_kernel_memory(&self, word: Word) -> usize {
        if !self.zones.are_several() {
            return 0;
        }
        if !word.resident().is_empty() {
            return word.zone();
        }
        let zone = self.zones_in_order(&self.zones_in_turn(Taker::ONCE)).first();
        self.gave(zone, self.entry_bytes() as u64);
        zone
    }
}
