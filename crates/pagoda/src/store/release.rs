//! Freeing many stored pages at once, and the queues of pages to be freed.
//!
//! Any thread may free queued pages, a piece at a time: the workers do it all the time, others when
//! they need the room or wait for it. So room that is only waiting to be freed is never a reason to
//! spill, or to report the store as full. No queue's lock is ever held while pages are freed.

use std::ops::AddAssign;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use pagoda_core::release::ReleasePolicy;
use pagoda_core::release::batch::{Batch, Run};
use pagoda_core::release::queue::{PIECE_ENTRIES, Queue, Taker};
use pagoda_core::size::Bytes;
use pagoda_core::space::extents::Units;
use pagoda_linux::process::lock::Lock;
use pagoda_linux::process::thread::{cpu_ns, now_ns, sleep_us};

use super::handle::Meaning;
use super::objects::{FREED, Kind, MOVING};
use super::{Handle, TieredStore};
use crate::state::wakeup::Bell;
use crate::stats::account::Account;

/// How long a worker sleeps at most before it looks whether it is to end, in microseconds.
const SLEEP_US: u32 = 100_000;

/// How often a thread that needs room checks whether the pieces that others hold are freed, and how
/// long it sleeps in between: about a millisecond, thirty times the time for a piece. The holder is
/// not scheduled then.
const IN_HAND_LOOKS: u32 = 50;
const IN_HAND_US: u32 = 20;

/// One queue, and its worker's bell.
struct Shard {
    queue: Lock<Queue<Arc<Account>>>,
    bell: Bell,
}

/// Walks closed owners' tables, which the store does not know.
pub(crate) trait ReleaseHelp: Send + Sync {
    /// Walks a piece of them, or waits for a moment for other threads that do. False if that
    /// changed nothing. The caller may hold an entry's busy bit, and no lock of the store.
    fn help(&self) -> bool;
}

/// The release of closed owners' pages, and the queued ones.
#[derive(Default)]
pub(crate) struct Releases {
    policy: ReleasePolicy,
    shards: Box<[Shard]>,
    /// Entries in all queues: asking whether there is anything to do takes no lock.
    entries: AtomicU64,
    page_bytes: u64,
    /// Owners that close with stored pages, and how many of them have to be at it for the policy
    /// `background` to hand anything over.
    closers: AtomicU32,
    gate: u32,
    /// For stored pages that only their owners' tables know.
    help: OnceLock<Weak<dyn ReleaseHelp>>,
    /// The workers take nothing, as if they were not scheduled.
    #[cfg(test)]
    pub(crate) are_held: AtomicBool,
}

/// An owner that closes.
pub(crate) struct Closer<'a> {
    releases: &'a Releases,
    opens_the_gate: bool,
}

impl Closer<'_> {
    /// Whether enough owners closed at once when this one began.
    pub(crate) fn opens_the_gate(&self) -> bool {
        self.opens_the_gate
    }
}

impl Drop for Closer<'_> {
    fn drop(&mut self) {
        self.releases.closers.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The cost of freeing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Freed {
    pub entries: u64,
    pub bytes: u64,
    pub locks: u64,
    pub lock_wait_ns: u64,
}

impl AddAssign for Freed {
    fn add_assign(&mut self, more: Self) {
        self.entries += more.entries;
        self.bytes += more.bytes;
        self.locks += more.locks;
        self.lock_wait_ns += more.lock_wait_ns;
    }
}

fn now_us() -> u64 {
    now_ns() / 1000
}

impl Releases {
    pub(super) fn new(policy: ReleasePolicy, queued_max: Bytes, page: usize, gate: u32) -> Self {
        let workers = policy.workers();
        let entries_max = queued_max.get() / page as u64 / workers.max(1) as u64;
        let shard = |_| Shard { queue: Lock::new(Queue::new(entries_max)), bell: Bell::default() };
        let shards = (0..workers).map(shard).collect();
        Self {
            policy,
            shards,
            entries: AtomicU64::new(0),
            page_bytes: page as u64,
            closers: AtomicU32::new(0),
            gate,
            help: OnceLock::new(),
            #[cfg(test)]
            are_held: AtomicBool::new(false),
        }
    }

    /// From now on a thread without room asks `help` as well.
    pub(crate) fn helped_by(&self, help: Weak<dyn ReleaseHelp>) {
        // There is one engine.
        let _ = self.help.set(help);
    }
    /// One more owner closes, as long as this is kept.
    pub(crate) fn closer(&self) -> Closer<'_> {
        let others = self.closers.fetch_add(1, Ordering::AcqRel);
        Closer { releases: self, opens_the_gate: others + 1 >= self.gate }
    }
    pub(crate) fn policy(&self) -> ReleasePolicy {
        self.policy
    }
    /// How many queues there are, each for a worker.
    pub(crate) fn shards(&self) -> usize {
        self.shards.len()
    }
    /// Uncompressed bytes of the queued pages.
    pub(crate) fn queued_bytes(&self) -> u64 {
        self.entries.load(Ordering::Acquire) * self.page_bytes
    }
    /// An empty batch for a queue.
    pub(crate) fn spare(&self, shard: usize) -> Option<Batch> {
        self.shards[shard].queue.lock().spare()
    }
    /// An empty batch back.
    pub(crate) fn put_spare(&self, shard: usize, batch: Batch) {
        self.shards[shard].queue.lock().put_spare(batch);
    }

    /// Queues a batch and wakes its worker.
    ///
    /// # Errors
    /// The batch, if it has to be freed inline.
    pub(crate) fn hand_over(&self, shard: usize, owner: &Arc<Account>, batch: Batch) -> Result<(), Batch> {
        let entries = batch.entries();
        let mut queue = self.shards[shard].queue.lock();
        queue.hand_over(Arc::clone(owner), batch, now_us())?;
        // Counted before another thread can take it.
        owner.is_queued(entries);
        let queued = self.entries.fetch_add(entries, Ordering::AcqRel) + entries;
        drop(queue);
        owner.queued_peak(queued * self.page_bytes);
        self.shards[shard].bell.ring();
        Ok(())
    }

    /// Looks for workers that are stalled, and returns how many are newly so.
    pub(crate) fn look(&self) -> u64 {
        if self.entries.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let now = now_us();
        self.shards.iter().filter(|shard| shard.queue.lock().look(now)).count() as u64
    }

    /// Wakes every worker.
    pub(crate) fn ring(&self) {
        self.shards.iter().for_each(|shard| shard.bell.ring());
    }

    #[cfg(test)]
    pub(crate) fn queued_entries(&self) -> u64 {
        self.entries.load(Ordering::Acquire)
    }
    /// Checks that no entry and no batch is lost, while no thread gathers.
    pub(crate) fn assert_whole(&self) {
        self.shards.iter().for_each(|shard| shard.queue.lock().assert_whole(0));
    }
}

impl TieredStore {
    /// Gives the room of all these pages back, at one go. They are handles as numbers,
    /// [`PIECE_ENTRIES`] of them at most.
    pub(crate) fn free_runs(&self, runs: &[Run]) -> Freed {
        let mut freed = Freed { locks: 1, ..Freed::default() };
        let mut in_file: Vec<Units> = Vec::new();
        let mut state = self.memory.try_lock().unwrap_or_else(|| {
            let begin = now_ns();
            let state = self.memory.lock();
            freed.lock_wait_ns = now_ns() - begin;
            state
        });
        let mut ids = [0; PIECE_ENTRIES as usize];
        let mut in_memory = 0;
        for id in runs.iter().flat_map(|run| run.first..run.first + run.entries) {
            freed.entries += 1;
            let Meaning::Object(id) = Handle::from_bits(id).meaning() else { continue };
            let Some(object) = self.table.get(id) else { continue };
            let word = object.word();
            match word.kind() {
                Kind::Free | Kind::Reserved | Kind::Gone => {}
                // The mover sees it when it is done.
                Kind::Memory if word.has(MOVING) => object.flag(FREED, 0),
                Kind::Memory => {
                    ids[in_memory] = id;
                    in_memory += 1;
                }
                Kind::Remote => state.forget_remote(&self.table, id),
                Kind::File => in_file.extend(state.drop_filed(&self.table, id)),
            }
        }
        state.drop_objects(&self.table, &ids[..in_memory]);
        self.let_go(state);
        if let Some(file) = self.file.as_ref().filter(|_| !in_file.is_empty()) {
            file.release_all(&in_file);
        }
        freed.bytes = freed.entries * self.page_bytes() as u64;
        freed
    }

    /// Frees all of a batch at once.
    pub(crate) fn free_batch(&self, batch: &mut Batch) -> Freed {
        let mut freed = Freed::default();
        while batch.entries() > 0 {
            let mut runs = [Run::default(); PIECE_ENTRIES as usize];
            let (mut len, mut room) = (0, PIECE_ENTRIES);
            while let Some(run) = batch.take(room) {
                runs[len] = run;
                len += 1;
                room -= run.entries;
            }
            freed += self.free_runs(&runs[..len]);
        }
        freed
    }

    /// Frees a page at once: the baseline.
    pub(crate) fn free_one(&self, handle: Handle) -> Freed {
        self.free_runs(&[Run { first: handle.to_bits(), entries: 1 }])
    }

    /// Frees the next piece of a queue. False if there is none.
    fn free_piece(&self, shard: usize, taker: Taker, cpu: &mut u64) -> bool {
        #[cfg(test)]
        if taker == Taker::Worker && self.releases().are_held.load(Ordering::Acquire) {
            return false;
        }
        let shard = &self.releases().shards[shard];
        let Some(piece) = shard.queue.lock().take(taker, now_us()) else { return false };
        let freed = self.free_runs(piece.runs());
        let before = std::mem::replace(cpu, cpu_ns());
        piece.owner.used_cpu(*cpu - before);
        piece.owner.is_freed(freed);
        if taker == Taker::Helper {
            piece.owner.was_helped(freed.entries);
        }
        self.releases().entries.fetch_sub(freed.entries, Ordering::AcqRel);
        shard.queue.lock().freed(taker, &piece, now_us());
        true
    }

    /// Frees queued pages until `quit` and nothing is left: the loop of a worker. It goes on with
    /// the others' queues when its own is empty. `walk` walks a piece of a closed owner's table, if
    /// there is one, and keeps the processor time.
    pub(crate) fn release_queued(&self, own: usize, quit: &AtomicBool, walk: impl Fn(&mut u64) -> bool) {
        loop {
            pagoda_linux::process::rights::follow();
            let mut cpu = cpu_ns();
            while walk(&mut cpu)
                || self.free_piece(own, Taker::Worker, &mut cpu)
                || self.free_others(own, &mut cpu)
            {}
            if quit.load(Ordering::Acquire) {
                return;
            }
            self.releases().shards[own].bell.sleep(SLEEP_US);
        }
    }

    fn free_others(&self, own: usize, cpu: &mut u64) -> bool {
        (0..self.releases().shards()).any(|shard| shard != own && self.free_piece(shard, Taker::Helper, cpu))
    }

    /// Frees a piece of the queued pages, or waits for a moment for pieces that others hold. False
    /// if that changed nothing.
    pub(crate) fn help_release(&self) -> bool {
        if self.releases().help.get().and_then(Weak::upgrade).is_some_and(|help| help.help()) {
            return true;
        }
        let entries = || self.releases().entries.load(Ordering::Acquire);
        let before = entries();
        if before == 0 {
            return false;
        }
        for _ in 0..IN_HAND_LOOKS {
            let mut cpu = cpu_ns();
            // Also pages that are queued only now: as long as there are some, this thread need not
            // wait for others.
            if (0..self.releases().shards()).any(|shard| self.free_piece(shard, Taker::Helper, &mut cpu)) {
                return true;
            }
            if entries() < before {
                return true;
            }
            sleep_us(IN_HAND_US);
        }
        false
    }

    /// Frees all queued pages and returns when no thread holds any.
    pub(crate) fn flush_releases(&self) {
        while self.releases().entries.load(Ordering::Acquire) > 0 {
            self.help_release();
        }
    }
}

#[cfg(test)]
#[path = "release_test.rs"]
mod tests;
