//! The state that the threads of one manager share, and the order of its locks.
//!
//! Lock order, outermost first. A thread that holds one may take those further down, never those
//! further up:
//!
//! 0. where a thread serves its own fault, its working memory (`threads::sigbus`), held for one
//!    try; a file region's sync, one at a time; beside it or within, its look at changes by others
//! 1. the *gate* (`RwLock<Table>`): shared around everything that moves pages into or out of a
//!    region; exclusive around reading events and applying them, and around adoption (register,
//!    scan, mark)
//! 2. an entry's busy bit; see `pagoda_core::page_entry` for why waiting for it with the gate held
//!    exclusively is safe
//! 3. the reclaim hand and queue of a list; the queue of closed owners, within which nothing is
//!    taken
//! 4. the store's own locks: the spiller, then memory, or the leases and then extents; of the
//!    remote store the writer, a reader or the keeper, and within it for a moment the routes; see
//!    `store`
//! 5. a zone's change of size; the zones, their turns and reclaimers, and huge frames; the scanner
//!    of huge pages; the lists of protected pages and of limits; the list of owners, then the
//!    migration of one of them; the list of owed pages, then the requests for them; that of
//!    slowed pages, then the faults that wait; the helpers,
//!    then the readahead of a file; the reader of memory that is empty in children; the writes of a
//!    file, one at a time (held while the disk writes, perhaps with an entry's busy bit, never with
//!    the gate), then the known state of that file
//!
//! Innermost, around nothing else: the lock within which a table gives out its nodes
//! (`pagoda_core::space::radix`), the list of servers of SIGBUS, and the streaks of faults.
//! Pins and the tree file have no lock.
//!
//! No thread of the engine waits for a lock that the program could hold, and none touches managed
//! memory. This module must never do the work itself: faults, events, reclaim and adoption each
//! have their own.

pub(crate) mod shared;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use pagoda_core::budget;
use pagoda_core::budget::patience::GIVE_UP_NS;
use pagoda_core::budget::watermark::Watermarks;
use pagoda_core::page::BasePage;
use pagoda_core::size::Bytes;
use pagoda_linux::arena::Space;
use pagoda_linux::mem::clear::Clearer;
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::mem::wiped::WipedReader;
use pagoda_linux::procfs::pagemap::PagemapScanner;

use crate::clear::huge_state::Clears;
use crate::error::StopReason;
use crate::frames::huge_pool::HugePool;
use crate::frames::zones::{ZONES_MAX, Zones};
use crate::reclaim::passing::OnExhausted;
use crate::state::announcements::Announcements;
use crate::state::asked::Asked;
use crate::state::clears::Clearing;
use crate::state::closed::ClosedOwners;
use crate::state::core_dump::CoreDump;
use crate::state::hand::Hand;
use crate::state::helpers::Helpers;
use crate::state::ledger::Ledger;
use crate::state::lift::Lift;
use crate::state::limits::Limits;
use crate::state::pending::{HANDLERS_MAX, Recent};
use crate::state::pins::Pins;
use crate::state::placement::Placement;
use crate::state::slowed::Slowed;
use crate::state::store_share::StoreShare;
use crate::state::touch_streams::Around;
use crate::state::wakeup::Bell;
use crate::stats::account::Owners;
use crate::stats::counters::{Counter, Counters};
use crate::stats::trace::Tracer;
use crate::store::TieredStore;
use crate::table::Table;

#[cfg(feature = "migrate")]
use crate::state::owed::Owed;

/// The hook that ends the process (or, in a test, the engine) when it can't go on.
pub(crate) type StopHook = fn(StopReason) -> !;

/// The engine of one manager.
pub(crate) struct Engine {
    pub(crate) space: Space,
    gate: RwLock<Table>,
    /// The zones of the budget: one, if nothing else was said.
    pub(crate) zones: Zones,
    /// The huge frames of each zone, and how they are cleared.
    pub(crate) huge: HugePool,
    pub(crate) clearing: Clearing,
    pub(crate) clearer: Clearer,
    pub(crate) clears: Clears,
    /// Rings when a frame that was cleared ahead is taken.
    pub(crate) clear_bell: Bell,
    /// Rings when the publisher is to end.
    pub(crate) publish_bell: Bell,
    /// Tells whether a range is one huge page; None where the kernel does not say.
    pub(crate) huge_scan: Mutex<Option<PagemapScanner>>,
    pub(crate) store: TieredStore,
    pub(crate) store_share: StoreShare,
    pub(crate) ledger: Ledger,
    /// Owners that closed and whose entries are not walked yet.
    pub(crate) closed: ClosedOwners,
    /// The owners of memory ranges, for releases.
    pub(crate) owners: Owners,
    /// It manages regions of a library, by its own count, and not a whole process.
    pub(crate) is_library: bool,
    /// The limits of regions.
    pub(crate) limits: Limits,
    /// First touches bring as much of a base page as is touched densely, in regions of our own.
    pub(crate) by_density: bool,
    /// A stream of writes in base pages of 64 KiB gets places of 2 MiB as huge frames, and so does
    /// dense arriving content.
    pub(crate) comes_whole: bool,
    /// There is, or was, a region whose base page is less than an entry; and one of 2 MiB.
    pub(crate) has_blocks: AtomicBool,
    pub(crate) has_huge: AtomicBool,
    /// Pages that arrive later.
    #[cfg(feature = "migrate")]
    pub(crate) owed: Owed,
    /// Pages whose faults slow their threads down.
    pub(crate) slowed: Slowed,
    pub(crate) counters: Arc<Counters>,
    /// The trace of single faults and evictions, if there is one.
    pub(crate) trace: Option<Tracer>,
    pub(crate) pins: Pins,
    /// Protected pages that are to be lifted.
    pub(crate) lift: Lift,
    /// Bytes that the owners of regions have pinned.
    pub(crate) pinned_bytes: AtomicU64,
    /// Where threads run during a streak of faults.
    pub(crate) placement: Placement,
    /// One of all zones, or of each.
    pub(crate) hands: [Mutex<Hand>; ZONES_MAX],
    pub(crate) base: BasePage,
    /// How many threads serve faults.
    pub(crate) handlers: u32,
    /// The budget that the tables are made for: a tree's, of which this process may have a share.
    pub(crate) full_budget: Bytes,
    /// The kernel tells of every fork. Without that, children that were not announced don't get
    /// managed memory at all.
    pub(crate) fork_events: bool,
    /// Rings when reclaim has something to do.
    pub(crate) bell: Bell,
    /// The threads are to end: all but the handlers, and then those.
    pub(crate) quit: AtomicBool,
    pub(crate) quit_handlers: AtomicBool,
    /// A fault came from registered memory that the table does not know: look at the maps soon.
    pub(crate) look_soon: AtomicBool,
    /// Memory is only followed: there is so much room that nothing more is adopted.
    pub(crate) follows: AtomicBool,
    /// Forks that are under way ([`Forking`](pagoda_core::fork::in_progress::Forking)).
    pub(crate) forking: AtomicU64,
    /// The announced forks, for threads that have to wait until they are served.
    pub(crate) announcements: Announcements,
    /// Tells which memory is empty in children. None in a library, whose regions they have not.
    pub(crate) wiped: Option<Mutex<WipedReader>>,
    /// There was a fork, here or on the way here: memory may be shared.
    pub(crate) has_forked: AtomicBool,
    /// From when on writes to shared memory are to be held where copies would not fit; `u64::MAX`
    /// if they are, or nothing is shared.
    pub(crate) hold_due_ns: AtomicU64,
    /// Rights to one frame each, of handlers that made two ready for the fault they serve. The
    /// fault may use one however far the budget is exceeded: otherwise a process whose share shrank
    /// would stand still until it fits. Never more than there are handlers.
    pub(crate) earned: AtomicUsize,
    /// The range whose copy-on-write the reclaimer breaks just now, from address to address; 0 if
    /// none. For faults that it waits for itself.
    pub(crate) making_own: [AtomicUsize; 2],
    /// Ranges that could not be moved, perhaps because they are shared.
    pub(crate) shared: Mutex<Vec<PageRange>>,
    /// A release of everything is requested; it is under way; it is done.
    pub(crate) release_requested: AtomicBool,
    pub(crate) released: AtomicBool,
    pub(crate) release_done: AtomicBool,
    /// A core dump that waits for that.
    pub(crate) core: CoreDump,
    /// The range that the program is about to register with a userfaultfd of its own.
    pub(crate) asked: Asked,
    /// The pages that handlers served last.
    pub(crate) recent: Recent,
    /// Streams of first touches, and how far ahead each is filled.
    pub(crate) around: Around,
    /// The threads that work ahead.
    pub(crate) helpers: Helpers,
    /// How many regions are files.
    pub(crate) file_regions: AtomicUsize,
    /// Whether sequential reads get readahead of stored pages.
    pub(crate) fetches_ahead: bool,
    /// How long a thread waits for memory that can't be had.
    pub(crate) give_up_ns: u64,
    /// How many ranges are being swapped in for good, whatever the budget says.
    pub(crate) bringing_back: AtomicUsize,
    /// Whether an event waited for another when the last ones were read.
    pub(crate) events_wait: AtomicBool,
    /// When each handler came to the oldest fault that it is serving, in nanoseconds of the time
    /// that the process ran; 0 if it waits. For the watchdog.
    pub(crate) serving_since_ns: [AtomicU64; HANDLERS_MAX],
    /// The same of one thread that waits for its own fault, if any does.
    pub(crate) own_fault_since_ns: AtomicU64,
    /// When the store refused content last, and why. An innermost lock.
    pub(crate) refusal: Mutex<Option<(u64, StopReason)>>,
    /// Told when a library's budget is passed.
    pub(crate) on_exhausted: Option<OnExhausted>,
    pub(crate) stop_hook: StopHook,
}

impl Engine {
    #[expect(clippy::too_many_arguments, reason = "the one place where the parts come together")]
    pub(crate) fn new(
        space: Space,
        zones: Zones,
        (huge, clearing): (HugePool, Clearing),
        store: TieredStore,
        counters: Arc<Counters>,
        (budget, base): (Bytes, BasePage),
        handlers: u32,
        fork_events: bool,
        stop_hook: StopHook,
    ) -> Self {
        Self {
            space,
            gate: RwLock::new(Table::new(base)),
            zones,
            huge_scan: Mutex::new(huge.is_on().then(PagemapScanner::new).and_then(Result::ok)),
            huge,
            clearing,
            clearer: Clearer::for_this_processor(),
            clears: Clears::default(),
            clear_bell: Bell::default(),
            publish_bell: Bell::default(),
            store,
            ledger: Ledger::new(budget.get(), crate::table::entry_bytes(base)),
            closed: ClosedOwners::default(),
            owners: Owners::new(Arc::clone(&counters)),
            is_library: true,
            limits: Limits::none(),
            by_density: false,
            comes_whole: false,
            has_blocks: AtomicBool::new(false),
            has_huge: AtomicBool::new(false),
            #[cfg(feature = "migrate")]
            owed: Owed::default(),
            slowed: Slowed::default(),
            counters,
            trace: None,
            pins: Pins::default(),
            lift: Lift::default(),
            pinned_bytes: AtomicU64::new(0),
            placement: Placement::default(),
            store_share: StoreShare::default(),
            hands: Default::default(),
            base,
            handlers,
            full_budget: budget,
            fork_events,
            bell: Bell::default(),
            quit: AtomicBool::new(false),
            quit_handlers: AtomicBool::new(false),
            look_soon: AtomicBool::new(false),
            follows: AtomicBool::new(false),
            forking: AtomicU64::new(0),
            announcements: Announcements::default(),
            earned: AtomicUsize::new(0),
            wiped: None,
            has_forked: AtomicBool::new(false),
            hold_due_ns: AtomicU64::new(u64::MAX),
            making_own: [const { AtomicUsize::new(0) }; 2],
            shared: Mutex::new(Vec::new()),
            release_requested: AtomicBool::new(false),
            released: AtomicBool::new(false),
            release_done: AtomicBool::new(false),
            core: CoreDump::default(),
            asked: Asked::default(),
            recent: Recent::default(),
            around: Around::new(base, false),
            helpers: Helpers::default(),
            file_regions: AtomicUsize::new(0),
            fetches_ahead: true,
            give_up_ns: GIVE_UP_NS,
            bringing_back: AtomicUsize::new(0),
            events_wait: AtomicBool::new(false),
            serving_since_ns: [const { AtomicU64::new(0) }; HANDLERS_MAX],
            own_fault_since_ns: AtomicU64::new(0),
            refusal: Mutex::new(None),
            on_exhausted: None,
            stop_hook,
        }
    }

    /// The gate, shared: pages may be moved, no event is applied meanwhile.
    pub(crate) fn gate_shared(&self) -> RwLockReadGuard<'_, Table> {
        self.gate.read().unwrap_or_else(|_| self.stop(StopReason::EngineBroken))
    }

    /// The gate, exclusively: no other thread moves a page; events may be read and applied.
    pub(crate) fn gate_exclusive(&self) -> RwLockWriteGuard<'_, Table> {
        self.gate.write().unwrap_or_else(|_| self.stop(StopReason::EngineBroken))
    }

    /// Ends the process: it never runs on with memory that reads wrong.
    pub(crate) fn stop(&self, reason: StopReason) -> ! {
        // The first reason is the cause; a later failure while the process ends is not.
        if self.counters.get(Counter::ErrorCode) == 0 {
            self.counters.set(Counter::ErrorErrno, reason.errno().0 as u64);
            self.counters.set(Counter::ErrorCode, reason.code());
            self.counters.set(Counter::Status, crate::stats::counters::Status::Failed as u64);
        }
        (self.stop_hook)(reason)
    }

    /// Sets the share of the budget that holds from now on. A tree's budget may have grown, up to
    /// what there are slots for.
    pub(crate) fn set_budget(&self, share: Bytes) {
        let most = Bytes::new(self.full_budget.get().saturating_mul(budget::GROWS_TO));
        let works = budget::working(
            share.min(most),
            self.full_budget,
            self.immovable_bytes(),
            self.base,
            self.handlers,
        );
        self.ledger.set_budget(works.get());
        self.zones.set_only(works.max(self.full_budget));
    }

    /// Memory that no reclaim makes less: our own tables, and unmanaged and pinned memory.
    fn immovable_bytes(&self) -> Bytes {
        let [own, unmanaged] =
            [Counter::OwnBytes, Counter::UnmanagedBytes].map(|counter| self.counters.get(counter));
        let pinned = self.pinned_bytes.load(Ordering::Acquire);
        Bytes::new(own.saturating_add(unmanaged).saturating_add(pinned))
    }

    /// How much is kept free of the budget that holds now.
    pub(crate) fn marks(&self) -> Watermarks {
        Watermarks::of_share(Bytes::new(self.ledger.budget_bytes()), self.base, self.handlers)
    }

    /// Whether others have a part of the budget, so that this process's share can shrink at any
    /// time.
    pub(crate) fn has_a_share(&self) -> bool {
        self.ledger.budget_bytes() < self.full_budget.get()
    }

    /// How much compressed pages may take in memory at most.
    pub(crate) fn store_memory_most(&self) -> Bytes {
        // The budget may have grown beyond the addresses reserved for the store.
        budget::store_limit(&self.marks(), self.immovable_bytes()).min(budget::store_most(self.full_budget))
    }

    /// How much of that they may take now, before the coldest go to the file.
    pub(crate) fn store_memory_limit(&self) -> Bytes {
        self.store_share.of(self.store_memory_most())
    }

    /// The bytes that can be had without reclaim and without exceeding the budget: ready frames,
    /// and the room left in the budget.
    pub(crate) fn free(&self) -> Bytes {
        Bytes::new(self.ledger.free_bytes(self.ready_bytes()))
    }

    /// Frames that are ready, small and huge.
    pub(crate) fn ready_bytes(&self) -> u64 {
        self.zones.ready_bytes(&self.space) + self.huge.ready_bytes()
    }

    pub(crate) fn entry_bytes(&self) -> usize {
        crate::table::entry_bytes(self.base)
    }

    /// Whether memory may be taken from the kernel for another base page. Once everything is being
    /// swapped in, the budget is not enforced any more.
    pub(crate) fn has_room(&self) -> bool {
        self.is_released() || self.ledger.room_bytes() >= self.entry_bytes() as u64
    }

    /// Rings the bell if the free bytes have fallen below the low watermark.
    pub(crate) fn note_use(&self) {
        if self.free() < self.marks().low {
            self.bell.ring();
        }
    }

    /// Whether everything, or a range, is being swapped in, or everything is: nothing is evicted
    /// meanwhile.
    pub(crate) fn is_released(&self) -> bool {
        self.released.load(Ordering::Acquire) || self.bringing_back.load(Ordering::Acquire) > 0
    }

    pub(crate) fn is_quitting(&self) -> bool {
        self.quit.load(Ordering::Acquire)
    }

    /// Whether no thread waits for a handler any more: the reclaimer, which may wait for an event
    /// to be read, has ended.
    pub(crate) fn handlers_may_end(&self) -> bool {
        self.quit_handlers.load(Ordering::Acquire)
    }
}

impl Engine {
    /// Memory has left a region: `bytes` from `address` on, nothing if none.
    pub(crate) fn trace_evicted(&self, address: usize, bytes: usize) {
        if let Some(trace) = &self.trace
            && bytes > 0
        {
            trace.evicted(address, bytes);
        }
    }
}
