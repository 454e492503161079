//! The watcher thread of a managed process: it counts memory, adopts new mappings, pins, and checks
//! on the other threads.
//!
//! Heap growth and malloc's own mappings can't be intercepted. So the watcher looks at the kernel's
//! count every few milliseconds, and at the maps when something is new. Adoption registers a range,
//! asks for its present pages and marks them as ours, all with the gate held exclusively. No event
//! is read meanwhile, so that no marked page can be the rest of a discard that was applied before.
//!
//! This thread may touch managed memory, to swap in pages that are to be pinned. It never does so
//! with a lock held.

use std::io;
use std::sync::atomic::Ordering;

use pagoda_core::adopt::Reason;
use pagoda_core::budget;
use pagoda_core::page::OS_PAGE;
use pagoda_core::size::Bytes;
use pagoda_core::time::poll_interval::{watch_interval_of_member_us, watch_interval_us};
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::mem::touch::touch;
use pagoda_linux::mem::transparent_huge;
use pagoda_linux::mem::unforked::{Calls, UnforkedReader};
use pagoda_linux::process::last_thread::LastThread;
use pagoda_linux::process::rights::{self, RightsReader};
use pagoda_linux::process::tcb::{ThreadLayout, ThreadWalker};
use pagoda_linux::process::thread::{now_ns, ran_ns, sleep_us};
use pagoda_linux::procfs::locked::LockedReader;
use pagoda_linux::procfs::maps::MapsReader;
use pagoda_linux::procfs::pagemap::PagemapScanner;
use pagoda_linux::procfs::proportional::AnonReader;

use crate::engine::Engine;
use crate::error::StopReason;
use crate::state::asked::Held;
use crate::state::pins::Pinner;
use crate::state::placement::Followed;
use crate::stats::counters::Counter;
use crate::threads::guarded::Guards;
use crate::tree::ShareKeeper;

/// Growth of unmanaged memory that calls for a look at the maps: less than the watermarks keep
/// free.
const GROWTH_BYTES: u64 = 1 << 20;

/// The same where next to nothing is free: one base page.
const GROWTH_LEAST_BYTES: u64 = 64 << 10;

/// The same as a share of the free and of the held memory, where memory is only followed: a look
/// counts all present pages. New memory is taken for followed until then.
const GROWTH_SHARE: u64 = 8;

/// The longest time between two looks at the maps: protections change without an event.
const LOOK_NS: u64 = 250_000_000;

/// The most mappings that are remembered from one look to the next: 256 KiB. Further ones are taken
/// for known, and adopted at first sight: a program with so many mappings keeps them. It is
/// allocated at the start, for a program at its limit of mappings leaves none for us.
pub(super) const KNOWN_MOST: usize = 16_384;

/// Locked ranges that are known. Those beyond are adopted, and found by the kernel's refusal to
/// move them.
pub(super) const LOCKED_MOST: usize = 1024;

/// Ranges that the program keeps out of its children that are known. Those beyond are adopted, and
/// its children get them.
pub(super) const UNFORKED_MOST: usize = 1024;

/// The time between two looks at the count while pinned memory is swapped in. It is a bound on what
/// comes beyond the budget before the next look: a fault takes 30 µs or more, so 33 base pages.
const COUNT_NS: u64 = 1_000_000;

/// The time between two looks at the threads while memory is short.
const THREADS_NS: u64 = 50_000_000;

/// How long a fault may be in service before the process is ended rather than left hanging. Longer
/// than reclaim's own patience, which knows more of the reason.
const STUCK_NS: u64 = 30_000_000_000;

/// A mapping of the last look.
#[derive(Clone, Copy)]
pub(super) struct Known {
    pub(super) start: usize,
    pub(super) looks: u32,
}

/// The readers of the process. Made on the watcher's own thread, which owns their descriptors.
pub(crate) struct Watcher {
    /// The process's share of the budget of its tree.
    keeper: ShareKeeper,
    count: AnonReader,
    last_thread: LastThread,
    rights: RightsReader,
    /// None while it is being read.
    pub(super) maps: Option<MapsReader>,
    pub(super) present: PagemapScanner,
    threads: ThreadWalker,
    pub(super) guards: Guards,
    pub(super) locked: LockedReader,
    /// None where the kernel tells of forks: nothing is kept out of children then.
    pub(crate) unforked: Option<UnforkedReader>,
    pub(super) known: Vec<Known>,
    pub(super) known_before: Vec<Known>,
    /// The mappings that were locked at the last look at them, lowest address first.
    pub(super) locked_ranges: Vec<PageRange>,
    /// The same of the mappings that the program keeps out of its children.
    pub(super) unforked_ranges: Vec<PageRange>,
    /// The program's calls for that, as of before these were read; `None` if one was under way.
    pub(super) unforked_calls: Option<Calls>,
    /// Anonymous bytes that were not managed at the last look at the maps.
    unmanaged: u64,
    /// Populated bytes that were left alone at the last look, by reason.
    pub(super) left: [u64; Reason::ALL.len()],
    /// The same of mappings that became immovable after they were adopted.
    pub(super) kept: [u64; Reason::ALL.len()],
    /// The same of mappings that the program has registered itself.
    pub(super) left_registered: u64,
    /// A range that the program is about to register itself.
    pub(crate) held: Option<Held>,
    /// Populated bytes of memory that is only followed.
    pub(super) followed: u64,
    /// The time of the last look at the count.
    counted_ns: u64,
    looked_ns: u64,
    pub(super) apart_ns: u64,
    threads_ns: u64,
    idle_looks: u32,
    last_anon: u64,
    last_faults: u64,
    /// The kernel may give huge pages, unless another setting forbids it.
    keeps_huge: bool,
    /// The most bytes of this process that others accounted for, since it last shared nothing and
    /// was within its budget.
    others_most: u64,
}

impl Watcher {
    pub(crate) fn new(
        layout: Option<ThreadLayout>,
        keeper: ShareKeeper,
        fork_events: bool,
    ) -> io::Result<Self> {
        Ok(Self {
            keeper,
            count: AnonReader::new()?,
            last_thread: LastThread::new()?,
            rights: RightsReader::new()?,
            maps: Some(MapsReader::new(8192)?),
            present: PagemapScanner::new()?,
            threads: ThreadWalker::new(layout)?,
            guards: Guards::default(),
            locked: LockedReader::new()?,
            unforked: (!fork_events).then(UnforkedReader::new).transpose()?,
            known: Vec::with_capacity(KNOWN_MOST),
            known_before: Vec::with_capacity(KNOWN_MOST),
            locked_ranges: Vec::with_capacity(LOCKED_MOST),
            unforked_calls: None,
            unforked_ranges: Vec::with_capacity(if fork_events { 0 } else { UNFORKED_MOST }),
            unmanaged: 0,
            left: [0; Reason::ALL.len()],
            kept: [0; Reason::ALL.len()],
            left_registered: 0,
            held: None,
            followed: 0,
            counted_ns: 0,
            looked_ns: 0,
            apart_ns: 0,
            threads_ns: 0,
            idle_looks: 0,
            last_anon: 0,
            last_faults: 0,
            keeps_huge: true,
            others_most: 0,
        })
    }

    /// Forbids the kernel to give huge pages, once and for good, unless it may go on.
    pub(crate) fn bound_huge_pages(&mut self, may_go_on: bool) {
        if self.keeps_huge && !may_go_on {
            self.keeps_huge = false;
            transparent_huge::forbid();
        }
    }
}

impl Engine {
    /// Watches until the engine ends.
    pub(crate) fn watch(&self, watcher: &mut Watcher) {
        self.pin_threads(watcher);
        let mut followed = Followed::default();
        while !self.is_quitting() {
            self.placement.let_go_idle(now_ns());
            self.placement.follow(&mut followed);
            watcher.last_thread.end_with_program();
            watcher.rights.follow();
            self.counters.set(Counter::RightsKept, rights::times_kept());
            // Once: later mappings there are not ours.
            if self.release_requested.load(Ordering::Acquire) && !self.release_done.load(Ordering::Acquire) {
                self.release_all(watcher.unforked.as_mut());
                self.counters.add(Counter::Forks, 1);
            }
            self.give_all_to_core(watcher.unforked.as_mut());
            self.give_back_asked(watcher);
            if self.is_released() {
                sleep_us(20_000);
                self.publish_count(watcher);
                continue;
            }
            let free = self.look(watcher);
            self.hold_writes_if_due();
            let growth = watcher.last_anon;
            let anon = self.ledger.held_bytes();
            watcher.last_anon = anon;
            let growth = anon.saturating_sub(growth);
            let faults = self.counters.get(Counter::Faults);
            let idle = growth <= 64 << 10 && (faults == watcher.last_faults || !self.has_a_share());
            watcher.last_faults = faults;
            watcher.idle_looks = if idle { watcher.idle_looks.saturating_add(1) } else { 0 };
            self.watch_handlers();
            let interval_us =
                if self.has_a_share() { watch_interval_of_member_us } else { watch_interval_us };
            sleep_us(interval_us(free, Bytes::new(growth), watcher.idle_looks));
        }
    }

    /// One look at the process. Returns the free bytes.
    fn look(&self, watcher: &mut Watcher) -> Bytes {
        self.publish_count(watcher);
        let now = now_ns();
        let free = self.free();
        let marks = self.marks();
        let pressure = free < marks.high;
        // Zones count the frames that they gave; those that the kernel fills are not among them.
        let followed = self.follows.load(Ordering::Relaxed);
        let follows = !self.zones.are_several() && budget::follows(free, &marks, followed);
        self.follows.store(follows, Ordering::Relaxed);
        watcher.bound_huge_pages(follows && budget::keeps_huge(free, &marks));
        if followed && !follows {
            self.look_soon.store(true, Ordering::Relaxed);
        }
        if pressure && now - watcher.threads_ns > THREADS_NS {
            watcher.threads_ns = now;
            self.pin_threads(watcher);
        }
        let managed = self.managed_frames_bytes();
        let unmanaged = self.ledger.held_bytes().saturating_sub(managed);
        let grown = if follows {
            // Memory that was not followed at the last look is assumed to have kept its size.
            let others = managed - self.ledger.followed_bytes() + watcher.unmanaged;
            let held = self.ledger.held_bytes();
            self.ledger.set_followed(held.saturating_sub(others));
            let growth = free.get().min(held) / GROWTH_SHARE;
            self.ledger.followed_bytes() > watcher.followed + growth.max(GROWTH_BYTES)
        } else {
            let growth = (free.get() / 4).clamp(GROWTH_LEAST_BYTES, GROWTH_BYTES);
            unmanaged > watcher.unmanaged + growth
        };
        if grown || self.look_soon.swap(false, Ordering::Relaxed) || now - watcher.looked_ns > LOOK_NS {
            watcher.looked_ns = now;
            self.look_at_maps(watcher, pressure);
            self.look_at_guards(watcher);
            watcher.unmanaged = self.ledger.held_bytes().saturating_sub(self.managed_frames_bytes());
        }
        self.note_use();
        free
    }

    fn publish_count(&self, watcher: &mut Watcher) {
        let shared = self.has_forked.load(Ordering::Acquire);
        watcher.counted_ns = now_ns();
        let Ok((resident, others)) = watcher.count.read(shared) else { return };
        self.ledger.others_have(others as u64);
        let anon = resident - others;
        self.ledger.reconcile(resident as u64, self.store.usage().memory_committed_bytes.get());
        self.counters.set(Counter::LastLookNs, now_ns());
        self.counters.set(Counter::AnonBytes, anon as u64);
        self.counters.raise(Counter::AnonPeakBytes, anon as u64);
        let mut held = self.publish_gauges();
        if self.follows.load(Ordering::Relaxed) {
            // Memory that was filled since the last look at the maps is in the kernel's count
            // alone.
            held = held.max(Bytes::new(anon as u64 - self.counters.get(Counter::OwnBytes).min(anon as u64)));
        }
        let fetched = Bytes::new(self.ledger.fetched_bytes());
        // Its engine's own memory is part of a member's needs: a small share is little more.
        let needed = held.saturating_add(Bytes::new(self.counters.get(Counter::OwnBytes)));
        let share = watcher.keeper.look(now_ns(), Bytes::new(anon as u64), needed, fetched);
        self.set_budget(share);
        self.note_copied_on_write(watcher, anon as u64, others as u64);
    }

    /// Notes memory that is not shared any more, as far as the budget is exceeded: it was written
    /// to, for nothing else that a fork leaves takes memory before there is room.
    fn note_copied_on_write(&self, watcher: &mut Watcher, anon: u64, others: u64) {
        let excess = anon.saturating_sub(self.ledger.budget_bytes());
        let over = others == 0 && excess == 0;
        watcher.others_most = if over { 0 } else { watcher.others_most.max(others) };
        let copied = (watcher.others_most - others).min(excess);
        self.counters.set(Counter::CopiedOnWriteBytes, copied);
        self.counters.raise(Counter::CopiedOnWritePeakBytes, copied);
    }

    /// Pins the memory of each thread that the kernel reads by itself, and swaps it in if needed.
    fn pin_threads(&self, watcher: &mut Watcher) {
        let mut areas: Vec<(u32, PageRange)> = Vec::new();
        let walked = watcher.threads.for_each_thread(|area| {
            let ranges = area.kernel_reads().filter_map(|range| PageRange::covering(range.start, range.end));
            areas.extend(ranges.map(|range| (area.tid, range)));
        });
        if walked.is_err() {
            return;
        }
        for (id, range) in areas {
            if !self.pins.pin(Pinner::Thread(id), range) {
                // If a thread's control block can be evicted, a thread that joins it may hang.
                self.stop(StopReason::PinsFull);
            }
            self.touch_pinned(range, watcher);
        }
        self.pins.drop_ended_threads();
    }

    /// Swaps `range` in, which is pinned, whatever the budget says, and looks at the count
    /// meanwhile: a forked child may have more to pin than its first share of the budget, and only
    /// a look asks for a larger one. Waits for each page, so it holds no lock.
    pub(crate) fn touch_pinned(&self, range: PageRange, watcher: &mut Watcher) {
        for page in (range.start()..range.end()).step_by(OS_PAGE) {
            self.pins.awaited.store(page, Ordering::Release);
            touch(PageRange::page(page));
            self.pins.awaited.store(0, Ordering::Release);
            if now_ns() - watcher.counted_ns > COUNT_NS {
                self.publish_count(watcher);
            }
        }
    }

    pub(crate) fn watch_handlers(&self) {
        // A process that was stopped has not been stuck meanwhile.
        let (now, fork_ns) = (ran_ns(), self.fork_went_on_ns());
        for since in self.serving_since_ns.iter().chain([&self.own_fault_since_ns]) {
            let since = since.load(Ordering::Relaxed);
            if since != 0 && now.saturating_sub(since.max(fork_ns)) > STUCK_NS {
                if self.waits_for_a_stopped_child() {
                    return self.note_fork_goes_on();
                }
                // A few movable pages may be evicted and refault all the while, so that reclaim
                // never sees that they are not enough.
                let is_short = self.free() < self.marks().min;
                self.stop(if is_short { self.why_short(STUCK_NS) } else { StopReason::HandlerStuck });
            }
        }
    }
}

#[cfg(test)]
#[path = "watcher_test.rs"]
mod tests;
