//! The state that the simulated threads share, and the seeded scheduler that steps them.
//!
//! A thread is a future that gives the processor back at each of the engine's atomic steps; the
//! seed chooses which thread runs. Nothing here sleeps or depends on anything but the seed.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::huge::Huge;
use crate::kernel::{GRANULES, Kernel, Message, Range};
use crate::setting::{Seen, Setting, Without, ZONES_MAX};
use crate::table::{Entries, Page, Table};
use pagoda_core::page_entry::Granules;

/// Steps after which a run that has not ended is stuck. A run takes about 19,000 steps, at most
/// 88,000 in 250,000 seeds.
const STEPS_MAX: usize = 200_000;
/// Steps between two checks of the whole state.
const CHECK_EVERY: usize = 16;

pub struct Rng(u64);

impl Rng {
    pub fn below(&mut self, bound: usize) -> usize {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) % bound as u64) as usize
    }
}

#[derive(Default)]
pub struct Gate {
    shared: usize,
    exclusive: bool,
}

/// A page that was staged, if it still is.
pub struct Staged {
    pub entries: Entries,
    pub index: usize,
    pub slot: usize,
}

pub struct World {
    pub without: Without,
    pub setting: Setting,
    pub seen: Cell<Seen>,
    pub huge: Huge,
    /// OS pages in the regions by the zone that they are counted of, and base pages that are
    /// staged.
    pub in_regions: Cell<[isize; ZONES_MAX]>,
    pub staged: Cell<[isize; ZONES_MAX]>,
    pub kernel: RefCell<Kernel>,
    gate: RefCell<Gate>,
    pub table: RefCell<Table>,
    pub queue: RefCell<VecDeque<Staged>>,
    pub empty: RefCell<Vec<usize>>,
    pub ready: RefCell<Vec<usize>>,
    pub claimed: RefCell<Vec<bool>>,
    pub store: RefCell<HashMap<u64, [u64; GRANULES]>>,
    pub next_handle: Cell<u64>,
    /// Events that wait for an earlier one of another thread, and the sources of moves whose
    /// unmapping is still to come.
    pub deferred: RefCell<Vec<Message>>,
    pub leaving: RefCell<Vec<Range>>,
    pub rng: RefCell<Rng>,
    pub failure: RefCell<Option<String>>,
    pub programs_left: Cell<usize>,
    pub next_value: Cell<u64>,
    trace: bool,
}

/// Lets the others go on.
pub async fn step() {
    let mut yielded = false;
    std::future::poll_fn(
        |_| if std::mem::replace(&mut yielded, true) { Poll::Ready(()) } else { Poll::Pending },
    )
    .await;
}

pub struct GateGuard<'a>(&'a World, bool);

impl Drop for GateGuard<'_> {
    fn drop(&mut self) {
        let mut gate = self.0.gate.borrow_mut();
        if self.1 {
            gate.exclusive = false;
        } else {
            gate.shared -= 1;
        }
    }
}

impl World {
    pub fn new(seed: u64, setting: Setting, without: Without, programs: usize) -> Rc<Self> {
        let (slots, huge_slots) = setting.slots();
        Rc::new(Self {
            without,
            setting,
            seen: Cell::default(),
            huge: Huge::new(huge_slots),
            in_regions: Cell::default(),
            staged: Cell::default(),
            kernel: RefCell::new(Kernel::new(slots, huge_slots, without.shared_descriptor)),
            gate: RefCell::default(),
            table: RefCell::default(),
            queue: RefCell::default(),
            empty: RefCell::new((0..slots).collect()),
            ready: RefCell::default(),
            claimed: RefCell::new(vec![false; slots]),
            store: RefCell::default(),
            next_handle: Cell::new(1),
            deferred: RefCell::default(),
            leaving: RefCell::default(),
            rng: RefCell::new(Rng(seed)),
            failure: RefCell::default(),
            programs_left: Cell::new(programs),
            next_value: Cell::new(1),
            trace: std::env::var_os("PAGODA_SIM_TRACE").is_some(),
        })
    }
    pub fn below(&self, bound: usize) -> usize {
        self.rng.borrow_mut().below(bound)
    }
    /// Logs an event, if `PAGODA_SIM_TRACE` is set: for one seed that failed.
    pub fn note(&self, what: impl FnOnce() -> String) {
        if self.trace {
            eprintln!("{}", what());
        }
    }
    /// Notes the first failure; the run ends.
    pub fn fail(&self, what: String) {
        self.failure.borrow_mut().get_or_insert(what);
    }
    pub fn is_over(&self) -> bool {
        self.programs_left.get() == 0
    }
    pub async fn gate_shared(&self) -> GateGuard<'_> {
        loop {
            step().await;
            let mut gate = self.gate.borrow_mut();
            if !gate.exclusive {
                gate.shared += 1;
                return GateGuard(self, false);
            }
        }
    }
    pub async fn gate_exclusive(&self) -> GateGuard<'_> {
        loop {
            step().await;
            let mut gate = self.gate.borrow_mut();
            if !gate.exclusive && gate.shared == 0 {
                gate.exclusive = true;
                return GateGuard(self, true);
            }
        }
    }
    pub fn is_gate_exclusive(&self) -> bool {
        self.gate.borrow().exclusive
    }
    pub fn claim_slot(&self, slot: usize) -> usize {
        if std::mem::replace(&mut self.claimed.borrow_mut()[slot], true) {
            self.fail(format!("slot {slot} is claimed twice"));
        }
        slot
    }
    pub fn release_slot(&self, slot: usize) -> usize {
        self.claimed.borrow_mut()[slot] = false;
        slot
    }
    pub fn take_ready(&self) -> Option<usize> {
        let slot = self.take_of(&self.ready, self.first_zone(), self.setting.zones)?;
        Some(self.claim_slot(slot))
    }
    pub fn take_empty(&self) -> Option<usize> {
        self.take_empty_of(self.first_zone(), self.setting.zones)
    }
    /// An empty slot of a zone, or of one of `zones` from that one on.
    pub fn take_empty_of(&self, zone: usize, zones: usize) -> Option<usize> {
        let slot = self.take_of(&self.empty, zone, zones)?;
        self.check_empty(slot);
        Some(self.claim_slot(slot))
    }
    fn take_of(&self, hand: &RefCell<Vec<usize>>, zone: usize, zones: usize) -> Option<usize> {
        let mut hand = hand.borrow_mut();
        let at = (zone..zone + zones).find_map(|zone| {
            hand.iter().rposition(|&slot| self.zone_of(slot) == zone % self.setting.zones)
        })?;
        Some(hand.remove(at))
    }
    /// `1 << order` empty slots of a zone that follow each other, as a buddy gives them: the first.
    pub fn take_empty_run(&self, zone: usize, order: u32) -> Option<usize> {
        let len = 1 << order;
        let mut empty = self.empty.borrow_mut();
        let is_run = |first: usize| (first..first + len).all(|slot| empty.contains(&slot));
        let first = (0..self.claimed.borrow().len()).step_by(len).find(|&first| {
            self.zone_of(first) == zone && self.zone_of(first + len - 1) == zone && is_run(first)
        })?;
        empty.retain(|&slot| !(first..first + len).contains(&slot));
        drop(empty);
        for slot in first..first + len {
            self.check_empty(slot);
            self.claim_slot(slot);
        }
        Some(first)
    }
    fn check_empty(&self, slot: usize) {
        if self.kernel.borrow().slots[slot] != [None; GRANULES] {
            self.fail(format!("slot {slot} is in the hand of the empty ones and is not"));
        }
    }
    pub fn put_ready(&self, slot: usize) {
        self.ready.borrow_mut().push(self.release_slot(slot));
    }
    pub fn put_empty(&self, slot: usize) {
        self.empty.borrow_mut().push(self.release_slot(slot));
    }
    pub fn has_room(&self) -> bool {
        self.has_room_for(GRANULES)
    }
    pub fn has_room_for(&self, pages: usize) -> bool {
        let kernel = self.kernel.borrow();
        let resident = kernel.pages.iter().filter(|page| page.content.is_some()).count();
        let framed = kernel.slots.iter().flatten().filter(|granule| granule.is_some()).count();
        resident + framed + pages <= self.setting.budget()
    }
    pub fn note_seen(&self, count: impl FnOnce(&mut Seen)) {
        let mut seen = self.seen.get();
        count(&mut seen);
        self.seen.set(seen);
    }
    pub fn is_queued(&self, entries: &Entries) -> bool {
        self.queue.borrow().iter().any(|staged| Rc::ptr_eq(&staged.entries, entries))
    }

    pub fn queue_staged(&self, page: &Page, slot: usize) {
        let staged = Staged { entries: Rc::clone(&page.entries), index: page.index, slot };
        self.queue.borrow_mut().push_back(staged);
    }

    /// Frees a slot: these frames are not wanted any more, and it holds nothing else.
    pub fn put_pieces(&self, slot: usize, frames: Granules) {
        let uncounted = self.pages_of(slot).without(frames);
        if !uncounted.is_empty() {
            self.fail(format!("{uncounted:?} of slot {slot} are there and not counted"));
        }
        if frames.is_empty() { self.put_empty(slot) } else { self.put_ready(slot) }
    }

    /// Which granules of a slot are there.
    pub fn pages_of(&self, slot: usize) -> Granules {
        let kernel = self.kernel.borrow();
        let there = (0..GRANULES).filter(|&i| kernel.slots[slot][i].is_some());
        Granules::from_bits(there.fold(0, |bits, i| bits | 1 << i))
    }
}

pub type Thread = Pin<Box<dyn Future<Output = ()>>>;

/// Runs the threads until the programs have ended. Err: the failure.
pub fn run(world: &Rc<World>, mut threads: Vec<Thread>) -> Result<usize, String> {
    let mut context = Context::from_waker(Waker::noop());
    let mut asleep_until = vec![0usize; threads.len()];
    let mut ended = vec![false; threads.len()];
    for steps in 0..STEPS_MAX {
        if ended.iter().all(|&ended| ended) {
            return world.check_end().map(|()| steps);
        }
        let at = world.below(threads.len());
        if ended[at] || asleep_until[at] > steps {
            continue;
        }
        // A thread may lose its processor at any step, for long.
        if world.below(24) == 0 {
            asleep_until[at] = steps + world.below(400);
        }
        ended[at] = threads[at].as_mut().poll(&mut context).is_ready();
        if steps % CHECK_EVERY == 0 {
            world.check();
            world.check_residents();
        }
        if let Some(failure) = world.failure.borrow_mut().take() {
            return Err(failure);
        }
    }
    Err("stuck".into())
}
