//! The loop of a handler thread: read messages, apply events, serve faults.
//!
//! A handler never waits for the program, and only ever for a bounded time for other threads of the
//! engine: a fault that can't be served now stays in its list, and the loop goes on reading events
//! meanwhile. That is what lets the reclaimer, which may itself wait for an event to be read, make
//! progress.

use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;

use pagoda_core::budget;
use pagoda_core::fault::swap_in::{Extent, GranuleAt, Window};
use pagoda_linux::io::wait::Wait;
use pagoda_linux::process::rights;
use pagoda_linux::process::thread::{now_ns, ran_ns, sleep_us, yield_now};
use pagoda_linux::uffd::fault_address::FaultAddress;

use crate::engine::Engine;
use crate::frames::zones::Taker;
use crate::state::hand::Step;
use crate::state::pending::{Fault, Served, Tried};
use crate::state::placement::Followed;
use crate::stats::counters::Counter;
use crate::stats::fault_kind::FaultKind;
use crate::store::Scratch;

/// How long a handler sleeps at most before it looks whether it is to end: the least after a
/// message, and twice as long each time that none comes. So an engine that ends soon after its last
/// fault waits little for its handlers. Longer than a tick of the slowest kernel, 10 ms: an earlier
/// timer costs some microseconds for each fault.
const WAITS_MS: RangeInclusive<u32> = 16..=100;

/// The same while threads are held and no handler leads.
const STREAK_WAIT_MS: u32 = 2;

/// How long a handler that does not lead sleeps between two looks at the leader.
const STAND_BY_US: u32 = 2000;

/// How long the leader may serve one fault before another goes on reading.
const HELD_UP_NS: u64 = 1_000_000;

/// Between two looks for messages where a handler can't wait for them: a fault is served late, and
/// an idle engine costs little.
const REFUSED_PAUSE_US: u32 = 500;

/// How long a thread may take from its change of a mapping to its event's post: a time slice of
/// another thread.
const DEFERRED_WAIT_US: u32 = 4000;

/// Steps of reclaim that a handler does for one fault before it tries again: moving a batch out,
/// and storing as many pages as there are in one.
const DIRECT_STEPS: u32 = 9;

/// Steps of reclaim that are done at most before one fault of a thread that jumps about: one or two
/// make up for a granule, and a hand that finds nothing must not keep it.
const PAY_STEPS: u32 = 4;

/// Frames that a handler makes ready before the fault it serves may use one although the budget is
/// exceeded: one is used, and the other outweighs by which the store grew.
const EARNED_BY: u32 = 2;

impl Engine {
    /// Serves faults until the engine ends. `id` is below
    /// [`HANDLERS_MAX`](crate::state::pending::HANDLERS_MAX).
    pub(crate) fn handle(&self, id: usize, scratch: &mut Scratch) {
        scratch.taker = Taker::handler(id);
        let mut faults: Vec<Fault> = Vec::with_capacity(pagoda_linux::uffd::BATCH);
        let mut idle_rounds = 0u32;
        let mut gave_way = false;
        let mut oldest_ns = 0;
        let mut followed = Followed::default();
        let mut wait_ms = *WAITS_MS.start();
        while !self.handlers_may_end() {
            rights::follow();
            self.placement.follow(&mut followed);
            if faults.is_empty() && self.placement.is_led_by_another(id) {
                self.stand_by();
                continue;
            }
            let kept = faults.len();
            // With faults that wait for an event, also when there is none to read: one may wait for
            // that. And an event that waits may wait for none that comes.
            if kept > 0
                || self.events_wait.load(Ordering::Relaxed)
                || self.may_have_messages(id, &mut wait_ms)
            {
                self.read_messages(&mut faults, scratch);
            }
            // The oldest one: the watchdog sees a fault that is tried again and again.
            let Some(since_ns) = faults.iter().map(|fault| fault.since_ns).min() else { continue };
            if std::mem::replace(&mut oldest_ns, since_ns) != since_ns {
                self.serving_since_ns[id].store(ran_ns(), Ordering::Relaxed);
            }
            if std::mem::take(&mut gave_way) {
                // The fault that just came is the one it yielded to.
                faults.rotate_left(kept);
            }
            let before = faults.len();
            faults.retain_mut(|fault| {
                // The fault that was yielded to waits for no other clear of this batch, either.
                if gave_way && !std::mem::replace(&mut fault.was_passed, true) {
                    return true;
                }
                if fault.held {
                    return self.serve_held(fault, scratch) == Tried::Kept;
                }
                if self.puts_aside(fault) {
                    return false;
                }
                // A sequential thread computes while its next pages are swapped in. On one
                // processor with its handler it would wait for these, too.
                if self.jumps_about(fault.at) {
                    self.placement.note_fault(id, fault.thread, now_ns());
                    self.placement.follow(&mut followed);
                    if self.placement.is_in_streak() {
                        self.pay_ahead(scratch);
                    }
                }
                match self.serve_or_keep(fault, scratch) {
                    Tried::Served => false,
                    Tried::Kept => true,
                    Tried::GaveWay => {
                        gave_way = true;
                        true
                    }
                }
            });
            if faults.len() < before || gave_way {
                idle_rounds = 0;
            } else {
                // Another thread holds the entry, for the time of a move or of a compression at
                // most.
                idle_rounds += 1;
                if idle_rounds < 8 { yield_now() } else { self.pause_before_retry() }
            }
            if faults.is_empty() {
                // Released last: a thread that sees it sees the counts.
                self.serving_since_ns[id].store(0, Ordering::Release);
                oldest_ns = 0;
            }
        }
    }

    /// A moment until faults that could not be served are tried again. Where reclaim has gained
    /// nothing for long it lasts longer, unless a message comes or an event waits for another.
    fn pause_before_retry(&self) {
        let pause_ms = self.zones.hopeless_pause_ms.load(Ordering::Relaxed);
        let may_wait = pause_ms > 0 && !self.events_wait.load(Ordering::Relaxed);
        if !may_wait || matches!(self.space.wait(pause_ms), Wait::Refused(_)) {
            sleep_us(20);
        }
    }

    /// A handler that does not lead sleeps for a moment, and goes on if the leader is held up: by a
    /// slow store, or because it is not running.
    fn stand_by(&self) {
        sleep_us(STAND_BY_US);
        self.placement.let_go_idle(now_ns());
        let Some(leader) = self.placement.leader() else { return };
        let since_ns = self.serving_since_ns[leader].load(Ordering::Acquire);
        if since_ns != 0 && ran_ns().saturating_sub(since_ns) > HELD_UP_NS {
            self.placement.end_lead();
        }
    }

    /// Waits for messages. Where the kernel does not let this thread wait, it looks for them now
    /// and then.
    fn may_have_messages(&self, id: usize, wait_ms: &mut u32) -> bool {
        // The leader sets no early timer, which costs it some microseconds for each fault: the
        // others let threads go in time.
        let is_watched = self.placement.leader() == Some(id) || !self.placement.is_in_streak();
        match self.space.wait(if is_watched { *wait_ms } else { STREAK_WAIT_MS }) {
            Wait::Ready => {
                *wait_ms = *WAITS_MS.start();
                true
            }
            Wait::NotReady => {
                *wait_ms = (*wait_ms * 2).min(*WAITS_MS.end());
                self.placement.let_go_idle(now_ns());
                false
            }
            Wait::Refused(_) => {
                sleep_us(REFUSED_PAUSE_US);
                true
            }
        }
    }

    /// Reads the pending messages and applies the events, both within the gate. As long as an event
    /// is deferred, it has to be called again.
    pub(crate) fn read_messages(&self, faults: &mut Vec<Fault>, scratch: &mut Scratch) {
        let mut table = self.gate_exclusive();
        // Asked before the read: afterwards an unmapping may be in the batch.
        if table.order.expects_any() && self.space.is_quiet() {
            self.settle_events(&mut table, scratch);
        }
        let read = self.space.read(|message| {
            faults.extend(self.apply(&mut table, message, scratch));
        });
        if let Err(errno) = read {
            self.stop_unread(errno);
        }
        self.clears.have_given_way();
        if table.order.waits_too_long() {
            self.apply_all_deferred(&mut table, scratch);
        } else if table.order.deferred() > 0 {
            // The awaited event comes from a thread that is past its change and about to post.
            // Until then the gate stays closed and nothing is read. The thread whose move waits
            // can't return, and so can't move on before the source of its range is known.
            sleep_us(DEFERRED_WAIT_US);
        }
        self.events_wait.store(table.order.deferred() > 0, Ordering::Relaxed);
    }

    /// Whether a fault here is none of sequential access.
    pub(crate) fn jumps_about(&self, at: FaultAddress) -> bool {
        let at = GranuleAt::new(at.page(), self.unit_at(at.page()).bytes);
        matches!(self.recent.extent(at), Extent::Granules(_))
    }

    /// Makes ready about as much as the fault of a thread that jumps about will take, as long as
    /// less is free than reclaim would leave. A move out of a region interrupts all other
    /// processors that run the program, which takes ten times the move: while its thread is the one
    /// that serves the fault, there may be none.
    pub(crate) fn pay_ahead(&self, scratch: &mut Scratch) {
        for _ in 0..PAY_STEPS {
            if !budget::pays_ahead(self.free(), &self.marks()) {
                return;
            }
            match self.reclaim_step(scratch) {
                Step::FrameReady | Step::Staged | Step::Looking => {}
                Step::Again | Step::Exhausted | Step::Full(_) => return,
            }
        }
    }

    /// Serves one fault, and counts how long it took, unless it has to wait.
    pub(crate) fn serve_or_keep(&self, fault: &mut Fault, scratch: &mut Scratch) -> Tried {
        let tried = self.serve_alone(fault, scratch);
        if tried == Tried::Served {
            self.note_file_fault(fault.at.page());
        } else {
            self.zones.note_kept_fault();
        }
        tried
    }

    /// The same, but orders nothing of a file.
    pub(crate) fn serve_alone(&self, fault: &mut Fault, scratch: &mut Scratch) -> Tried {
        let mut kind = FaultKind::Zero;
        match self.try_to_serve(fault, &mut kind, scratch) {
            Served::Done => {
                self.note_served(*fault, kind);
                Tried::Served
            }
            Served::GaveWay => Tried::GaveWay,
            Served::Again | Served::Busy | Served::NoMemory => Tried::Kept,
        }
    }

    /// Counts a fault that was served, once, whatever tries it took.
    fn note_served(&self, fault: Fault, kind: FaultKind) {
        let now_ns = now_ns();
        let took_ns = now_ns.saturating_sub(fault.since_ns);
        self.counters.count_fault(kind, took_ns);
        self.store_share.note_fault(kind, took_ns);
        if let Some(trace) = &self.trace {
            trace.fault(kind, fault.at.page(), now_ns, took_ns);
        }
    }

    fn try_to_serve(&self, fault: &mut Fault, kind: &mut FaultKind, scratch: &mut Scratch) -> Served {
        // Regions with other page sizes have other numbers, which may be the same by chance: that
        // does no harm.
        let unit = self.unit_at(fault.at.page());
        let page = fault.at.page() / unit.bytes;
        let extent = self.recent.extent(GranuleAt::new(fault.at.page(), unit.bytes));
        self.fill_around(*fault);
        match self.serve(fault.at, fault.write, extent, kind, scratch) {
            Served::Done => {
                let last_page = match (extent, unit.more) {
                    (Extent::Onwards, None) => {
                        page + self.fetch_ahead((page + 1) * unit.bytes, extent, scratch)
                    }
                    // They came with it, if it was anywhere.
                    (Extent::Onwards, Some(more)) => page + usize::from(*kind != FaultKind::Zero) * more,
                    (Extent::Downwards, None) if page > 0 => {
                        page - self.fetch_ahead((page - 1) * unit.bytes, extent, scratch)
                    }
                    _ => page,
                };
                let last = if last_page == page { fault.at.page() } else { last_page * unit.bytes };
                // A first touch fills its page, and a block comes whole.
                let came_whole = *kind == FaultKind::Zero || unit.more.is_some();
                let last = GranuleAt::new(last, unit.bytes);
                self.recent.note(Window::new(last, extent, came_whole));
                Served::Done
            }
            Served::Again => {
                self.counters.add(Counter::RetriesAgain, 1);
                Served::Again
            }
            Served::Busy => Served::Busy,
            Served::GaveWay => Served::GaveWay,
            Served::NoMemory if self.is_awaited(fault.at.page()) => {
                self.bringing_back.fetch_add(1, Ordering::AcqRel);
                let served = self.serve(fault.at, fault.write, extent, kind, scratch);
                self.bringing_back.fetch_sub(1, Ordering::AcqRel);
                served
            }
            Served::NoMemory => {
                // Once: as long as memory is short the reclaimer does not sleep again.
                if !std::mem::replace(&mut fault.has_rung, true) {
                    self.counters.add(Counter::FaultsThrottled, 1);
                    self.bell.ring();
                }
                let mut freed = 0;
                for _ in 0..DIRECT_STEPS {
                    match self.reclaim_step(scratch) {
                        Step::FrameReady => freed += 1,
                        Step::Staged | Step::Looking => {}
                        Step::Again | Step::Exhausted | Step::Full(_) => break,
                    }
                    if freed == if self.has_a_share() { EARNED_BY } else { 1 } {
                        break;
                    }
                }
                if freed == EARNED_BY && self.has_a_share() {
                    self.earned.fetch_add(1, Ordering::AcqRel);
                    self.keep_budget();
                    let served = self.serve(fault.at, fault.write, extent, kind, scratch);
                    // If another's fault was quicker, that one is served, and this one earns its
                    // own with the next try.
                    self.use_earned();
                    return served;
                }
                // The compressed store may have grown beyond the budget: ready frames go back to
                // the kernel for it.
                self.keep_budget();
                self.serve(fault.at, fault.write, extent, kind, scratch)
            }
        }
    }
}

#[cfg(test)]
#[path = "handler_test.rs"]
mod tests;
