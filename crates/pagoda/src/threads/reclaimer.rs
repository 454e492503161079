//! The loop of the reclaimer thread: keep enough free, and keep the budget.
//!
//! Its work is `reclaim`'s steps; here is when to do them and when to give up. It must never hold
//! anything while it waits.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use pagoda_core::budget::balance::{Balance, Refaults};
use pagoda_core::budget::patience::{Gains, Patience};
use pagoda_core::budget::watermark::Pressure;
use pagoda_core::size::Bytes;
use pagoda_core::zone::tiering::TICK_MS;
use pagoda_linux::process::thread::{now_ns, ran_ns, sleep_us, yield_now};
use pagoda_linux::procfs::statm::StatmReader;

use crate::engine::Engine;
use crate::error::{Errno, Immovable, StopReason};
use crate::reclaim::passing::Passes;
use crate::reclaim::tiering::Looks;
use crate::state::hand::Step;
use crate::state::placement::Followed;
use crate::state::store_share::StoreShare;
use crate::stats::counters::Counter;
use crate::store::{PutError, Scratch};

/// How long the reclaimer sleeps at most when nothing rings.
const SLEEP_US: u32 = 100_000;

/// The same while pages change zones: about a tick.
const TIERING_SLEEP_US: u32 = TICK_MS * 1000;

/// Steps between two looks at the kernel's count: about a millisecond of compression.
const STEPS_BETWEEN_LOOKS: u32 = 16;

/// How long memory is short before a library's regions are checked for immovable memory.
const LOOK_AT_IMMOVABLE_NS: u64 = 20_000_000;

/// How often memory held beyond the budget is measured.
const MEASURE_NS: u64 = 1_000_000_000;

/// The history of reclaim without success.
#[derive(Default)]
struct Trouble {
    /// The engine is a library's, whose regions nothing else watches.
    is_library: bool,
    /// The time of the last measurement of immovable memory.
    measured_ns: u64,
    since_ns: Option<u64>,
    excess_since_ns: Option<u64>,
    /// Tries of faults that had to be made again before it began.
    kept_faults: u64,
    /// How often the budget was passed.
    passes: Passes,
    /// The account at the last step that gained nothing.
    gains: Gains<Seen>,
    /// How long a managed program still has.
    patience: Patience,
    /// When the store last gave way because reclaim found nothing.
    spilled_ns: u64,
}

impl Trouble {
    /// Something was gained, or no memory is needed.
    fn end(&mut self) {
        self.since_ns = None;
        self.patience.renew();
    }
}

/// The time between two looks at the store's share.
const BALANCE_NS: u64 = 100_000_000;

/// A page is refaulted soon if this part of the resident pages, or of the compressed ones, left
/// since it did.
const NEAR_PART: u64 = 8;
const EDGE_PART: u64 = 4;

/// The choice of the store's share.
#[derive(Default)]
struct Balancing {
    balance: Balance,
    so_far: Refaults,
    due_ns: u64,
}

/// State that changes if any thread evicts or fetches anything, or serves a fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    resident_bytes: u64,
    staged_bytes: u64,
    fetched_bytes: u64,
    faults: u64,
    /// Bytes that were shared by a fork and are movable now.
    made_own_bytes: u64,
}

/// One part in this of the store's memory stays free for puts.
const STORE_FREE: u64 = 32;

/// One part in this of it is freed at a time, at least.
const STORE_ROUND: u64 = 32;

/// As long as more than one part in this of the budget is in the regions or staged, an excess is
/// reclaim's to end.
const EVICTABLE_SHARE: u64 = 8;

/// How long the budget may be exceeded before the store has to give way: many rounds of giving
/// frames back.
const EXCESS_NS: u64 = 50_000_000;

/// Where that gains nothing, it is done again after one part in this of the time without a gain.
const SPILL_PART: u64 = 8;

impl Engine {
    /// Reclaims until the engine ends. `count` is the kernel's count of the process, where that is
    /// the measure. `start_lifter` starts a thread that lifts protected pages, in a library.
    pub(crate) fn reclaim(
        &self,
        count: Option<&StatmReader>,
        start_lifter: Option<&dyn Fn() -> bool>,
        scratch: &mut Scratch,
    ) {
        let mut pressure = Pressure::new(self.marks());
        let mut trouble = Trouble { is_library: count.is_none(), ..Trouble::default() };
        let mut rebuild_due_ns = 0;
        let mut followed = Followed::default();
        let mut balancing = Balancing::default();
        let mut looks = Looks::default();
        while !self.is_quitting() {
            pagoda_linux::process::rights::follow();
            self.placement.follow(&mut followed);
            self.look_at_count(count);
            if self.ledger.beyond_bytes() > 0 && ran_ns() - trouble.measured_ns > MEASURE_NS {
                trouble.measured_ns = ran_ns();
                self.measure_immovable();
            }
            pressure.adjust(self.marks());
            // Also what a call has asked to page out.
            start_lifter.iter().for_each(|start| self.evict_protected(*start, scratch));
            self.watch_handlers();
            self.look_after_releases();
            self.drain_idle_turns();
            self.look_at_store(&mut balancing);
            self.look_at_tiers(&mut looks, scratch);
            if self.is_released() {
                self.bell.sleep(SLEEP_US);
                continue;
            }
            if !self.has_to_reclaim(&mut pressure) && self.ledger.excess_bytes() == 0 {
                trouble.end();
                self.zones.hopeless_pause_ms.store(0, Ordering::Relaxed);
                // A fault makes its own room, so the store can be beyond its limit without
                // pressure.
                self.keep_store_within_limits(&mut trouble, &mut balancing.balance);
                self.return_to_budget(&mut trouble.passes, scratch);
                if self.shrink_zones(scratch) {
                    continue;
                }
                self.rebuild_when_due(&mut rebuild_due_ns);
                self.bell.sleep(if looks.are_due_soon() { TIERING_SLEEP_US } else { SLEEP_US });
                continue;
            }
            for _ in 0..STEPS_BETWEEN_LOOKS {
                if !self.has_to_reclaim(&mut pressure) {
                    break;
                }
                let step = self.reclaim_step(scratch);
                self.after_step(step, &mut trouble);
            }
            if trouble.is_library {
                self.pass_budget_for_the_oldest(&mut trouble.passes);
            }
            self.make_shared_own();
            self.give_back_pieces();
            self.give_back_of_full_zones();
            self.keep_budget();
            self.keep_store_within_limits(&mut trouble, &mut balancing.balance);
            self.pause_without_hope(&trouble.patience);
        }
        self.lift.quit();
    }

    /// Where nothing was gained for long, tries of reclaim and of faults become seldom.
    fn pause_without_hope(&self, patience: &Patience) {
        let pause_ns = patience.pause_ns();
        let pause_ms = pause_ns.div_ceil(1_000_000) as u32;
        if pause_ms != self.zones.hopeless_pause_ms.load(Ordering::Relaxed) {
            self.zones.hopeless_pause_ms.store(pause_ms, Ordering::Relaxed);
        }
        if pause_ns > 0 {
            // A new fault rings.
            self.bell.sleep(pause_ms * 1000);
        }
    }

    fn look_at_count(&self, count: Option<&StatmReader>) {
        match count.map(StatmReader::anon_bytes) {
            Some(Ok(bytes)) => self.ledger.reconcile(bytes as u64, self.store_committed_bytes()),
            // The ledger goes on by itself until the count can be read again.
            Some(Err(_)) => {}
            None => self.ledger.reconcile(self.managed_frames_bytes(), self.store_committed_bytes()),
        }
    }

    fn store_committed_bytes(&self) -> u64 {
        self.store.usage().memory_committed_bytes.get()
    }

    /// Gives frames back to the kernel as far as the budget is exceeded; a few stay ready for
    /// faults in flight.
    pub(crate) fn keep_budget(&self) {
        let keep = self.marks().min.get() / self.entry_bytes() as u64;
        self.give_back_excess(keep);
    }

    /// Looks, now and then, whether the store should give free blocks back, whether compressed
    /// pages should use another share of its memory, and how much the budget lacks.
    fn look_at_store(&self, balancing: &mut Balancing) {
        let now = now_ns();
        if now < balancing.due_ns {
            return;
        }
        balancing.due_ns = now + BALANCE_NS;
        // Its free blocks are better used for pages, if these lack room.
        if self.ledger.room_bytes() < self.marks().high.get() && self.store.usage().memory_is_sparse() {
            self.trim_store();
        }
        let mut so_far = self.store_share.so_far();
        self.counters.set(Counter::RefaultWaitNs, so_far.stored_ns + so_far.spilled_ns);
        self.counters.set(Counter::RefaultDistanceBytes, self.store.lacks().get());
        if !self.store.can_spill() {
            return;
        }
        let usage = self.store.usage();
        let used = usage.memory_used_bytes.get();
        self.store.note_held(self.ledger.resident_bytes());
        so_far.near_bytes = self.ledger.resident_bytes() / NEAR_PART;
        so_far.edge_bytes = (used / EDGE_PART).min(usage.file_bytes.get() + usage.remote_bytes.get());
        self.store.count_soon(&mut so_far);
        let seen = so_far.since(&std::mem::replace(&mut balancing.so_far, so_far));
        // With what stays free.
        let used_parts = StoreShare::parts_of(used + used / (STORE_FREE - 1), self.store_memory_most());
        self.store_share.set(balancing.balance.look(&seen, used_parts, now));
    }

    /// Spills before the store's memory is full, in the background, so that puts find room.
    fn keep_store_within_limits(&self, trouble: &mut Trouble, balance: &mut Balance) {
        let limit = self.store_memory_limit().get();
        let most = limit - limit / STORE_FREE;
        let is_short = || self.store.usage().memory_used_bytes.get() > most;
        // Each time there are fewer closed owners' pages, which go before any other is spilled.
        while is_short() && self.store.help_release() {}
        if is_short() {
            // A file that is full or broken shows again at the next put, which is where it is dealt
            // with.
            // As much as came since the last look comes again until the next one.
            let beyond = self.store.usage().memory_used_bytes.get().saturating_sub(most);
            let target = most.saturating_sub(beyond.max(most / STORE_ROUND));
            if self.store.spill(Bytes::new(target)).is_err() {
                self.store_share.set(balance.can_not_spill(now_ns()));
            }
        }
        // Memory that is committed beyond the limit and holds little is better used for the
        // program's pages.
        let usage = self.store.usage();
        if usage.memory_committed_bytes.get() > limit && usage.memory_is_sparse() {
            self.trim_store();
        }
        // Beyond its own limit too, if the rest (tables, immovable memory) leaves less of the
        // budget for good: while it is exceeded by so much, faults get no frames. The growing store
        // exceeds it for moments, and reclaim makes up for that as long as there is much in the
        // regions. Unless none of that can leave, as what a fork shares.
        let excess = self.ledger.excess_bytes();
        let held = self.ledger.resident_bytes() + self.ledger.staged_bytes();
        let evictable = held.saturating_sub(self.pinned_bytes.load(Ordering::Acquire));
        let is_for_reclaim = evictable > self.marks().budget().get() / EVICTABLE_SHARE;
        let now = ran_ns();
        let has_lasted = |since_ns: u64| now.saturating_sub(since_ns) > EXCESS_NS;
        let pace_ns = EXCESS_NS.max(trouble.patience.waited_ns() / SPILL_PART);
        let finds_nothing =
            trouble.since_ns.is_some_and(has_lasted) && now.saturating_sub(trouble.spilled_ns) > pace_ns;
        if !finds_nothing && (excess <= self.marks().min.get() / 2 || is_for_reclaim) {
            trouble.excess_since_ns = None;
            return;
        }
        if finds_nothing || has_lasted(*trouble.excess_since_ns.get_or_insert(now)) {
            if finds_nothing {
                trouble.spilled_ns = now;
            }
            let used = self.store.usage().memory_used_bytes.get();
            let lacks = if finds_nothing { excess + self.marks().low.get() } else { excess };
            let _ = self.store.spill(Bytes::new(used.saturating_sub(lacks).min(limit - limit / 16)));
            self.trim_store();
        }
    }

    /// Gives unused memory of the store back to the kernel.
    fn trim_store(&self) {
        if self.store.trim() > Bytes::ZERO {
            self.ledger.store_has(self.store_committed_bytes());
        }
    }

    fn after_step(&self, step: Step, trouble: &mut Trouble) {
        let reason = match step {
            Step::FrameReady | Step::Staged => return trouble.end(),
            // Where all that the hand finds has to stay no round is ever without a find, so that it
            // never says so.
            Step::Looking | Step::Exhausted if self.has_gained(trouble) => return trouble.end(),
            Step::Looking => return self.count_trouble(self.nothing_evictable(), trouble),
            Step::Again => return yield_now(),
            Step::Exhausted => self.nothing_evictable(),
            Step::Full(error) => {
                if self.has_gained(trouble) {
                    trouble.end();
                }
                let limit = self.store_memory_limit().get();
                let reason = match (self.store.spill(Bytes::new(limit - limit / 16)), error) {
                    (Ok(freed), _) if freed > Bytes::ZERO => return,
                    (Err(PutError::Io { source }), _) | (_, PutError::Io { source }) => {
                        StopReason::StoreWrite(Errno(source.raw_errno()))
                    }
                    (Err(PutError::Remote { source }), _) | (_, PutError::Remote { source }) => {
                        StopReason::StoreWrite(Errno(source.raw_errno()))
                    }
                    _ => StopReason::StoreFull,
                };
                *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some((ran_ns(), reason));
                reason
            }
        };
        self.count_trouble(reason, trouble);
        sleep_us(1000);
    }

    /// Whether anything was gained since the last fruitless step. The work of handlers, and
    /// copy-on-write that was broken, count, too.
    fn has_gained(&self, trouble: &mut Trouble) -> bool {
        let seen = Seen {
            resident_bytes: self.ledger.resident_bytes(),
            staged_bytes: self.ledger.staged_bytes(),
            fetched_bytes: self.ledger.fetched_bytes(),
            faults: self.counters.get(Counter::Faults),
            made_own_bytes: self.counters.get(Counter::MadeOwnBytes),
        };
        trouble.gains.look(seen, self.ledger.store_bytes())
    }

    /// Whether a fault may find no frame. Only a program that is kept waiting is worth ending.
    /// Below the low watermark faults still find frames, unless the budget is exceeded so far that
    /// they may not use them.
    pub(crate) fn lacks_memory(&self) -> bool {
        let found = self.ready_bytes() + self.ledger.room_bytes();
        found < self.marks().min.get() || !self.may_use_frames()
    }

    fn serves_any_fault(&self) -> bool {
        self.serving_since_ns.iter().any(|since| since.load(Ordering::Relaxed) != 0)
    }

    /// Whether more of the regions is immovable than was known.
    fn measures_more(&self, trouble: &mut Trouble) -> bool {
        let is_more = self.measure_immovable();
        trouble.measured_ns = ran_ns();
        is_more
    }

    /// The reason to stop where memory is short: that of the store, if it has refused content in
    /// the last so many nanoseconds, since refused content stays, too.
    pub(crate) fn why_short(&self, within_ns: u64) -> StopReason {
        let refusal = *self.refusal.lock().unwrap_or_else(PoisonError::into_inner);
        let recent = refusal.filter(|(at_ns, _)| ran_ns().saturating_sub(*at_ns) < within_ns);
        recent.map_or_else(|| self.nothing_evictable(), |(_, reason)| reason)
    }

    /// The reason to stop where nothing can be evicted, by the kinds of memory that are left alone.
    pub(crate) fn nothing_evictable(&self) -> StopReason {
        StopReason::NothingEvictable(Immovable::of(&self.counters.snapshot()))
    }

    /// Starts the clock of giving up. When it has run out, a library's budget is passed, and a
    /// managed process is ended.
    fn count_trouble(&self, reason: StopReason, trouble: &mut Trouble) {
        let (now, kept_faults) = (ran_ns(), self.zones.kept_faults());
        if trouble.since_ns.is_none() {
            trouble.kept_faults = kept_faults;
        }
        let since = *trouble.since_ns.get_or_insert(now);
        let may_be_beyond = matches!(reason, StopReason::NothingEvictable(_))
            && now.saturating_sub(since.max(trouble.measured_ns)) > LOOK_AT_IMMOVABLE_NS;
        if !trouble.is_library {
            let lacks = self.lacks_memory();
            let refused = !matches!(reason, StopReason::NothingEvictable(_));
            trouble.patience.look(now, lacks, self.serves_any_fault(), refused);
            if !lacks {
                trouble.since_ns = None;
            } else if trouble.patience.is_over(self.give_up_ns) {
                self.stop(if refused { reason } else { self.why_short(self.give_up_ns) });
            }
        } else if !self.lacks_memory() || may_be_beyond && self.measures_more(trouble) {
            trouble.since_ns = None;
        } else if kept_faults == trouble.kept_faults {
            // Perhaps a call waits. It ends with an error by itself.
            trouble.since_ns = Some(now);
        } else if self.pass_budget(reason, since, &mut trouble.passes) {
            trouble.since_ns = None;
        }
    }
}
