//! Closing an owner: its frames come back first, its stored pages are handed over or freed
//! afterwards.
//!
//! A [`Closing`] goes along when entries are discarded: within the gate for an event, and without
//! it for a region that closes, whose spans leave the table first. A handle that does not fit the
//! queue stays in its entry until the frames are back, and is freed inline by a second walk. The
//! workers hold neither gate nor entry: the handles that they free are in no entry any more. This
//! module must never free a handle that an entry still has.

pub(crate) mod spans;

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use pagoda_core::page::OS_PAGE;
use pagoda_core::release::ReleasePolicy;
use pagoda_core::release::batch::Batch;
use pagoda_core::release::gather::Gather;
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::mem::region_memory::RegionMemory;
use pagoda_linux::process::thread::{cpu_ns, yield_now};

use crate::engine::Engine;
use crate::state::closed::Keeps;
use crate::stats::account::Account;
use crate::stats::counters::Counter;
use crate::store::{Closer, Freed, Handle};

/// One discard of a range.
pub(crate) struct Closing<'a> {
    engine: &'a Engine,
    range: PageRange,
    /// Granules that were in the region, entered in the ledger at the end of a walk and not one by
    /// one.
    granules: u64,
    /// Its owner, where that is known already: the range may be another's by now.
    account: Option<Arc<Account>>,
    /// Set once an owner has a stored page: most discards meet none.
    open: Option<Open<'a>>,
}

struct Open<'a> {
    account: Arc<Account>,
    /// The thread's processor time when the work began.
    cpu_ns: u64,
    /// The pages that were freed inline, entered in the account at the end; and how many of them
    /// there were when the last frame came back.
    freed: Freed,
    freed_at_frame: u64,
    how: How,
    /// Counts this owner among those that close.
    _closer: Closer<'a>,
}

/// The way in which a handle is freed.
enum How {
    OneAtATime,
    /// Freed when the batch is full, and at the end.
    Inline(Batch),
    Gather(Gather),
}

impl<'a> Closing<'a> {
    pub(crate) fn new(engine: &'a Engine, range: PageRange) -> Self {
        Self { engine, range, granules: 0, account: None, open: None }
    }
    pub(crate) fn of(engine: &'a Engine, range: PageRange, account: &Arc<Account>) -> Self {
        Self { account: Some(Arc::clone(account)), ..Self::new(engine, range) }
    }

    fn open(&mut self) -> &mut Open<'a> {
        let (engine, range, known) = (self.engine, self.range, &mut self.account);
        self.open.get_or_insert_with(|| {
            let account = known.take().unwrap_or_else(|| engine.owners.at(range.start()));
            let releases = engine.store.releases();
            let closer = releases.closer();
            let how = match releases.policy() {
                ReleasePolicy::OneAtATime => How::OneAtATime,
                ReleasePolicy::Runs => How::Inline(Batch::default()),
                ReleasePolicy::Background if !closer.opens_the_gate() => How::Inline(Batch::default()),
                // Of spans: parts of one, few entries, and a file's.
                ReleasePolicy::Background | ReleasePolicy::Workers | ReleasePolicy::Spans => {
                    How::Gather(Gather::default())
                }
            };
            Open {
                account,
                cpu_ns: cpu_ns(),
                freed: Freed::default(),
                freed_at_frame: 0,
                how,
                _closer: closer,
            }
        })
    }

    /// Takes a stored page that is not needed any more. False: it has to stay where it is until all
    /// frames are back.
    pub(crate) fn take(&mut self, handle: Handle) -> bool {
        if !handle.takes_room() {
            return true;
        }
        let store = &self.engine.store;
        let Open { freed, how, .. } = self.open();
        match how {
            How::OneAtATime => *freed += store.free_one(handle),
            How::Inline(batch) => {
                if !batch.push(handle.to_bits()) {
                    *freed += store.free_batch(batch);
                    let pushed = batch.push(handle.to_bits());
                    debug_assert!(pushed, "an empty batch has room");
                }
            }
            How::Gather(gather) => {
                let releases = store.releases();
                return gather.push(handle.to_bits(), releases.shards(), |shard| releases.spare(shard));
            }
        }
        true
    }

    /// So many granules of an entry are not in the region any more.
    pub(crate) fn granules_are_back(&mut self, granules: u32) {
        if granules > 0 {
            self.granules += u64::from(granules);
            self.frame_is_back();
        }
    }

    /// A frame of the owner is free again.
    pub(crate) fn frame_is_back(&mut self) {
        if let Some(open) = &mut self.open {
            open.freed_at_frame = open.freed.entries;
        }
    }

    /// All frames are back: hands over the gathered handles. True if a handle had to stay, and the
    /// entries have to be walked again.
    pub(crate) fn frames_are_back(&mut self) -> bool {
        let store = &self.engine.store;
        self.engine.ledger.resident(-((std::mem::take(&mut self.granules) * OS_PAGE as u64) as i64));
        let Some(Open { account, how, freed, freed_at_frame, .. }) = &mut self.open else {
            return false;
        };
        account.frames_are_back();
        account.is_early(*freed_at_frame);
        let How::Gather(gather) = how else { return false };
        let gather = std::mem::take(gather);
        let left = gather.left();
        let (worth, batches) = gather.finish();
        let mut refused = left > 0;
        for (shard, mut batch) in batches {
            if worth {
                match store.releases().hand_over(shard, account, batch) {
                    Ok(()) => continue,
                    Err(back) => batch = back,
                }
                refused = true;
            }
            *freed += store.free_batch(&mut batch);
            store.releases().put_spare(shard, batch);
        }
        if refused {
            account.fell_back();
        }
        if left > 0 {
            *how = How::Inline(Batch::default());
        }
        left > 0
    }

    /// Frees the rest and closes the account of this discard.
    pub(crate) fn finish(self) {
        let Some(Open { account, cpu_ns: begin, mut freed, how, .. }) = self.open else { return };
        if let How::Inline(mut batch) = how {
            freed += self.engine.store.free_batch(&mut batch);
        }
        if freed.entries > 0 {
            account.is_inline(freed.entries);
            account.is_freed(freed);
        }
        account.used_cpu_in_close(cpu_ns() - begin);
    }
}

impl Engine {
    /// Closes an unused region, and unmaps it. The gate is held exclusively only while the region
    /// leaves the table and the descriptor. Its entries are walked without the gate, by the worker
    /// or this thread, so that no fault and no handler waits for it, nor it for a handler. It waits
    /// for the gate and, unless the spans are handed over, for entries that are being moved.
    /// `keeps` lives until all entries are walked.
    pub(crate) fn close(&self, memory: RegionMemory, account: &Arc<Account>, keeps: Keeps) {
        let range = memory.range();
        let mut table = self.gate_exclusive();
        self.forget_owed(range);
        // A deferred event of another thread may still concern it. And the kernel may have no room
        // for another mapping: its unmapping is an event then, which a handler applies.
        if table.order.deferred() > 0 || self.space.unregister(range).is_err() {
            drop(table);
            drop(memory);
            return self.await_unmapped();
        }
        let spans = table.cut(range);
        drop(table);
        // No event comes of it any more, and these addresses may be another's from here on.
        drop(memory);
        self.release_spans(&spans, range, account, keeps);
    }

    /// Ends the management of `range`, which stays mapped, and drops its content: it reads as zero
    /// afterwards. Only what the table still has of it is touched, so that nothing happens to
    /// memory that was mapped there since the owner unmapped a part.
    pub(crate) fn forget(&self, range: PageRange, account: &Arc<Account>) -> io::Result<()> {
        let mut table = self.gate_exclusive();
        while table.order.deferred() > 0 {
            // A handler reads the event that it waits for.
            drop(table);
            yield_now();
            table = self.gate_exclusive();
        }
        let spans = table.cut(range);
        for span in &spans {
            // Where the kernel has no room for another mapping its faults are answered with zeroes.
            let _ = self.space.unregister(span.range());
            if !self.fork_events {
                self.space.set_forked(span.range(), true);
            }
        }
        drop(table);
        // Without the gate: where it is still registered this is an event, which a handler reads.
        let emptied = spans.iter().map(|span| self.space.empty(span.range()));
        let emptied = emptied.fold(Ok(()), io::Result::and);
        self.release_spans(&spans, range, account, None);
        emptied
    }

    /// Frees queued pages until the engine ends: the loop of a worker.
    pub(crate) fn work_on_releases(&self, shard: usize) {
        self.store.release_queued(shard, &self.quit_handlers, |cpu| self.work_on_spans(cpu));
        // An entry of a closed owner may be busy for another moment.
        self.flush_spans();
    }

    /// Looks after the workers: the queue of a stalled one is freed here, and nothing is handed
    /// over to it any more. Holds nothing.
    pub(crate) fn look_after_releases(&self) {
        self.look_after_spans();
        let stalled = self.store.releases().look();
        if stalled > 0 {
            self.counters.add(Counter::ReleaseStalls, stalled);
            while self.store.help_release() {}
        }
    }

    /// Returns when everything of closed owners is freed. The caller holds no entry.
    pub(crate) fn flush_releases(&self) {
        self.flush_spans();
        self.store.flush_releases();
    }

    /// Checks at an engine's end, when no thread works on it any more, that everything that was
    /// handed over or freed inline is freed, and each page once: the second time it would be
    /// another owner's page.
    ///
    /// # Panics
    /// If it is not so.
    pub(crate) fn assert_released(&self) {
        self.flush_releases();
        debug_assert!(self.are_spans_released());
        self.store.releases().assert_whole();
        let [queued, inline, freed] = [Counter::ReleaseQueued, Counter::ReleaseInline, Counter::ReleaseFreed]
            .map(|of| self.counters.get(of));
        assert!(queued + inline == freed, "{queued} queued and {inline} inline are not {freed} freed");
    }

    /// Ends the workers, once nothing is handed over any more: those that sleep are woken.
    pub(crate) fn end_workers(&self) {
        debug_assert!(self.quit_handlers.load(Ordering::Acquire));
        self.store.releases().ring();
    }
}

#[cfg(test)]
mod tests;
