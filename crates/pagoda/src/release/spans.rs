//! Closing an owner by handing over its spans: nothing of them is walked by the closing thread.
//!
//! The owner's entries leave the table first, so that no fault finds them and a new owner of the
//! same addresses has others. Then the queue has them, by their arrays and not by their addresses.
//! The worker walks them in pieces, holding no gate; the store's lock is taken for each batch. A
//! thread that needs room takes a piece itself, before anything is evicted or spilled. Until they
//! are walked the frames and stored pages count as held, and so does their table. This module must
//! never wait for a busy entry, but in a thread that holds none, and never drop a table in a thread
//! that serves a fault.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use pagoda_core::page::OS_PAGE;
use pagoda_core::page_entry::{Backing, Granules, Word};
use pagoda_core::release::batch::Run;
use pagoda_core::release::queue::{PIECE_ENTRIES, Taker};
use pagoda_core::release::spans::{Outcome, Piece, Sweep, Wants};
use pagoda_core::release::{LEAST_ENTRIES, ReleasePolicy};
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::process::thread::{cpu_ns, now_ns, sleep_us};

use super::Closing;
use crate::engine::Engine;
use crate::state::closed::{Closed, Keeps};
use crate::stats::account::Account;
use crate::stats::counters::Counter;
use crate::store::{Freed, Handle, ReleaseHelp, Scratch};
use crate::table::{Entries, Filler, Span, Table, give, try_take};

/// The pause of a thread before it walks busy entries again, in microseconds: a mover takes some
/// ten of them for a page.
const BUSY_US: u32 = 50;

/// How often a thread that needs room checks whether others' pieces are walked, with that pause in
/// between: about a millisecond, as for queued batches.
const IN_HAND_LOOKS: u32 = 20;

/// Entries of an unmapped or discarded range from which on they are handed over: fewer are walked
/// with the gate held, in less than a millisecond.
const EVENT_LEAST: usize = 256;

fn now_us() -> u64 {
    now_ns() / 1000
}

/// The entries of `span` all of whose granules are its own. The others, at most one at each end,
/// may be shared with a neighbour that stays.
pub(crate) fn whole_entries(span: &Span, range: PageRange, entry_bytes: usize) -> Range<usize> {
    let Some(within) = span.range().intersection(range) else { return 0..0 };
    let indices = span.indices(within, entry_bytes);
    let all = Granules::range(0, (entry_bytes / OS_PAGE) as u32);
    let is_whole = |index| span.page(index, within, entry_bytes).granules == all;
    let from = if is_whole(indices.start) { indices.start } else { indices.start + 1 };
    let to = if is_whole(indices.end - 1) { indices.end } else { indices.end - 1 };
    from..to.max(from)
}

impl Engine {
    /// From now on a thread that needs room in the store walks closed owners' entries first.
    pub(crate) fn begin_to_help(self: &Arc<Self>) {
        let help: Weak<Self> = Arc::downgrade(self);
        self.store.releases().helped_by(help);
    }

    /// Whether closed owners' spans are handed over.
    pub(crate) fn hands_spans_over(&self) -> bool {
        self.store.releases().policy() == ReleasePolicy::Spans
    }

    /// Releases spans that are in no table any more, and `range` of which was their owner's. The
    /// worker does it, unless they are few, a file's, or too many wait already; then this thread.
    pub(crate) fn release_spans(
        &self,
        spans: &[Span],
        range: PageRange,
        account: &Arc<Account>,
        keeps: Keeps,
    ) {
        let begin = cpu_ns();
        let entry_bytes = self.entry_bytes();
        let wholes = spans.iter().map(|span| (span.entries(), whole_entries(span, range, entry_bytes)));
        let wholes: Vec<_> = wholes.map(|(entries, whole)| (Arc::clone(entries), whole)).collect();
        // A file may be written by another owner as soon as the region is closed.
        let is_of_file = |span: &Span| span.entries().file().is_some();
        if !self.hands_spans_over()
            || spans.iter().any(is_of_file)
            || !self.queue_spans(wholes, account, keeps)
        {
            let mut scratch = Scratch::new(self.base);
            return self.discard_of(|| spans.iter(), range, Closing::of(self, range, account), &mut scratch);
        }
        self.discard_edges(spans, range, account);
        account.used_cpu_in_close(cpu_ns() - begin);
    }

    /// Discards the entries of `range` that are not whole, which may be shared with a neighbour.
    pub(crate) fn discard_edges(&self, spans: &[Span], range: PageRange, account: &Arc<Account>) {
        let entry_bytes = self.entry_bytes();
        let mut scratch = None;
        for span in spans {
            let Some(within) = span.range().intersection(range) else { continue };
            let (all, whole) = (span.indices(within, entry_bytes), whole_entries(span, range, entry_bytes));
            for index in all.filter(|index| !whole.contains(index)) {
                let page = span.page(index, within, entry_bytes);
                let Some(edge) = span.range().intersection(page.addresses(0, (entry_bytes / OS_PAGE) as u32))
                else {
                    continue;
                };
                let scratch = scratch.get_or_insert_with(|| Scratch::new(self.base));
                let edge = edge.intersection(range).unwrap_or(edge);
                self.discard_of(|| std::iter::once(span), edge, Closing::of(self, edge, account), scratch);
            }
        }
    }

    /// Queues whole entries that no table has any more. False, and nothing has happened, if they
    /// are few or the queue takes no more.
    pub(crate) fn queue_spans(
        &self,
        wholes: Vec<(Entries, Range<usize>)>,
        account: &Arc<Account>,
        keeps: Keeps,
    ) -> bool {
        let mut len = 0;
        let parts = wholes.into_iter().map(|(entries, whole)| {
            let first = len;
            len += whole.len() as u64;
            (first, entries, whole)
        });
        let parts: Vec<_> = parts.collect();
        if len < LEAST_ENTRIES {
            return false;
        }
        let account = Arc::clone(account);
        let closed = Arc::new(Closed::new(parts, account, keeps));
        let mut queue = self.closed.queue.lock();
        if let Err(closed) = queue.hand_over(closed, len, now_us()) {
            drop(queue);
            closed.account.fell_back();
            return false;
        }
        self.closed.note(&queue);
        drop(queue);
        self.store.releases().ring();
        true
    }

    /// Walks a piece of closed owners' entries. None if there is none that this thread wants; else
    /// whether an entry of it was busy.
    fn walk_piece(&self, taker: Taker, wants: Wants, cpu: &mut u64) -> Option<bool> {
        #[cfg(test)]
        if taker == Taker::Worker && self.store.releases().are_held.load(Ordering::Acquire) {
            return None;
        }
        let mut queue = self.closed.queue.lock();
        let piece = queue.take(taker, wants, now_us());
        if piece.is_none() && taker == Taker::Worker {
            queue.worker_gets_on(now_us());
        }
        self.closed.note(&queue);
        drop(queue);
        let piece = piece?;
        if piece.is_again {
            sleep_us(BUSY_US);
        }
        let busy = self.walk(&piece, taker);
        let before = std::mem::replace(cpu, cpu_ns());
        piece.owner.account.used_cpu(*cpu - before);
        let is_busy = busy.is_some();
        let mut queue = self.closed.queue.lock();
        match queue.done(taker, &piece, busy, now_us()) {
            Outcome::Going => {}
            Outcome::FramesBack => piece.owner.account.frames_are_back(),
            Outcome::Released => {
                let rest = piece.owner.stored.swap(0, Ordering::AcqRel);
                self.closed.stored.fetch_sub(rest, Ordering::AcqRel);
            }
        }
        self.closed.note(&queue);
        // Within the lock: the last reference is the queue's, and a fault drops no table.
        drop(piece);
        drop(queue);
        Some(is_busy)
    }

    /// Returns a range that encloses the entries of the piece that were busy.
    fn walk(&self, piece: &Piece<Arc<Closed>>, taker: Taker) -> Option<Range<u64>> {
        let closed = &*piece.owner;
        let mut walk = Walk::new(self, piece, taker);
        for (first, entries, whole) in &closed.parts {
            let part = *first..*first + whole.len() as u64;
            let (from, to) = (piece.entries.start.max(part.start), piece.entries.end.min(part.end));
            if from >= to {
                continue;
            }
            let index_of = |number: u64| whole.start + (number - first) as usize;
            for index in entries.used(index_of(from)..index_of(to)) {
                let went = match piece.sweep {
                    Sweep::Frames => walk.frames_of(entries, index),
                    Sweep::Stored => walk.stored_of(entries, index),
                };
                if !went {
                    let number = first + (index - whole.start) as u64;
                    let from = walk.busy.as_ref().map_or(number, |busy| busy.start);
                    walk.busy = Some(from..number + 1);
                }
            }
        }
        walk.end()
    }

    /// Walks a piece, or waits for a moment for pieces that others have. False if that changed
    /// nothing. A thread that serves a fault, or holds entries, may call it.
    pub(crate) fn help_with_spans(&self) -> bool {
        if !self.closed.is_any.load(Ordering::Acquire) {
            return false;
        }
        let before = self.closed.queue.lock().walked();
        for _ in 0..IN_HAND_LOOKS {
            if self.walk_piece(Taker::Helper, Wants::Room, &mut cpu_ns()).is_some() {
                return true;
            }
            let queue = self.closed.queue.lock();
            if queue.is_idle() || queue.walked() > before {
                return queue.walked() > before;
            }
            drop(queue);
            sleep_us(BUSY_US);
        }
        false
    }

    /// Takes frames of closed owners back, a piece of entries at a time, or waits for a moment for
    /// those that others are taking. False if that changed nothing.
    pub(crate) fn take_closed_frames(&self) -> bool {
        let has_frames = || self.closed.has_frames.load(Ordering::Acquire);
        if !has_frames() {
            return false;
        }
        let before = self.closed.queue.lock().walked();
        let took = (0..IN_HAND_LOOKS).any(|_| {
            if self.walk_piece(Taker::Helper, Wants::Frames, &mut cpu_ns()).is_some()
                || self.closed.queue.lock().walked() > before
            {
                return true;
            }
            if has_frames() {
                sleep_us(BUSY_US);
            }
            false
        });
        if !took {
            return false;
        }
        // The kernel counts a process, and has counted these frames as gone already.
        if self.is_library {
            self.ledger
                .reconcile(self.managed_frames_bytes(), self.store.usage().memory_committed_bytes.get());
        }
        true
    }

    /// Takes an unmapped `range` out of the table, and releases its content. Few entries are walked
    /// with the gate held; all others are left to the worker, so that no fault waits for a large
    /// unmapping.
    pub(crate) fn release_unmapped(&self, table: &mut Table, range: PageRange, scratch: &mut Scratch) {
        let is_large = |span: &Span| whole_entries(span, range, self.entry_bytes()).len() >= EVENT_LEAST;
        if !self.hands_spans_over() || !table.spans_in(range).any(is_large) {
            self.discard(table, range, scratch);
            table.cut(range);
            return;
        }
        self.forget_owed(range);
        let account = self.owners.at(range.start());
        let spans = table.cut(range);
        self.release_spans(&spans, range, &account, None);
    }

    /// Gives the large parts of a discarded `range` new entries, all empty, and leaves the old ones
    /// to the worker. Few entries remain to be discarded.
    pub(crate) fn renew_discarded(&self, table: &mut Table, range: PageRange) {
        if !self.hands_spans_over() {
            return;
        }
        let entry_bytes = self.entry_bytes();
        let part_of = |span: &Span| {
            let whole = whole_entries(span, range, entry_bytes);
            let is_large = whole.len() >= EVENT_LEAST && span.filler() != Filler::File;
            is_large.then(|| span.of_entries(&whole, entry_bytes))
        };
        let parts: Vec<_> = table.spans_in(range).filter_map(part_of).collect();
        let renewed: Vec<_> = parts.into_iter().filter_map(|part| table.renew(part)).collect();
        for span in renewed {
            let account = self.owners.at(span.range().start());
            let range = span.range();
            self.release_spans(&[span], range, &account, None);
        }
    }

    /// Walks a piece in the worker, which alone drops tables meanwhile.
    pub(super) fn work_on_spans(&self, cpu: &mut u64) -> bool {
        self.reap();
        self.walk_piece(Taker::Worker, Wants::All, cpu).is_some()
    }

    fn reap(&self) {
        loop {
            let Some(released) = self.closed.queue.lock().reap() else { return };
            drop(released);
        }
    }

    /// Walks all closed owners' entries and drops their tables. Returns when no thread has a piece.
    /// The caller holds no entry.
    pub(crate) fn flush_spans(&self) {
        while !self.closed.queue.lock().is_idle() {
            if self.walk_piece(Taker::Helper, Wants::All, &mut cpu_ns()).is_none() {
                sleep_us(BUSY_US);
            }
        }
        self.reap();
    }

    /// Whether the worker is found stalled just now.
    pub(super) fn looks_at_spans(&self) -> bool {
        self.closed.is_any.load(Ordering::Acquire) && self.closed.queue.lock().look(now_us())
    }

    pub(super) fn are_spans_released(&self) -> bool {
        self.closed.queue.lock().is_idle()
    }
}

impl ReleaseHelp for Engine {
    fn help(&self) -> bool {
        self.help_with_spans()
    }
}

/// The walk of one piece.
struct Walk<'a> {
    engine: &'a Engine,
    closed: &'a Closed,
    taker: Taker,
    /// Granules that are not in a region any more.
    granules: u64,
    /// Stored pages that the first look at their entries found.
    found: u64,
    is_again: bool,
    /// Stored pages to be freed, and how many.
    runs: [Run; PIECE_ENTRIES as usize],
    len: usize,
    entries: u64,
    busy: Option<Range<u64>>,
}

impl<'a> Walk<'a> {
    fn new(engine: &'a Engine, piece: &'a Piece<Arc<Closed>>, taker: Taker) -> Self {
        Self {
            engine,
            closed: &piece.owner,
            taker,
            granules: 0,
            found: 0,
            is_again: piece.is_again,
            runs: [Run::default(); PIECE_ENTRIES as usize],
            len: 0,
            entries: 0,
            busy: None,
        }
    }

    /// Takes the frames of an entry back. False if it is busy.
    fn frames_of(&mut self, entries: &Entries, index: usize) -> bool {
        let word = entries.word(index);
        if word.is_busy() {
            return false;
        }
        let found = match word.backing() {
            // Between busy entries are those that were counted before.
            Backing::Handle(handle) if !self.is_again => u64::from(Handle::from_bits(handle).takes_room()),
            _ => 0,
        };
        // Only what takes room of the store's is left for `stored_of`.
        let ends = match word.backing() {
            Backing::Slot(_) => true,
            Backing::Handle(handle) => Handle::from_bits(handle).is_same_filled(),
            Backing::None => false,
        };
        if !ends && word.resident().is_empty() {
            self.found += found;
            return true;
        }
        let Some(word) = try_take(&entries[index]) else { return false };
        self.found += found;
        let engine = self.engine;
        let back = word.resident().count();
        self.granules += u64::from(back);
        engine.zones.in_regions(word.zone(), -(i64::from(back) * OS_PAGE as i64));
        let after = word.without_sent().with_resident(Granules::NONE).with_huge(false).with_warmth(0);
        let after = match word.backing() {
            Backing::Slot(slot) => {
                engine.unstage(engine.space.claim_slot(slot));
                after.with_backing(Backing::None)
            }
            Backing::Handle(handle) if Handle::from_bits(handle).is_same_filled() => {
                after.with_backing(Backing::None)
            }
            Backing::Handle(_) | Backing::None => after,
        };
        engine.ledger.changed(word, after);
        give(&entries[index], after);
        true
    }

    /// Frees the stored page of an entry. False if it is busy.
    fn stored_of(&mut self, entries: &Entries, index: usize) -> bool {
        let word = entries.word(index);
        if word == Word::EMPTY {
            return true;
        }
        let Some(word) = try_take(&entries[index]) else { return false };
        debug_assert!(word.resident().is_empty() && !matches!(word.backing(), Backing::Slot(_)));
        give(&entries[index], Word::EMPTY);
        if let Backing::Handle(handle) = word.backing()
            && Handle::from_bits(handle).takes_room()
        {
            self.push(handle);
        }
        true
    }

    fn push(&mut self, handle: u64) {
        self.entries += 1;
        match self.runs[..self.len].last_mut() {
            Some(run) if run.first + run.entries == handle => run.entries += 1,
            _ => {
                self.runs[self.len] = Run { first: handle, entries: 1 };
                self.len += 1;
            }
        }
        if self.entries == PIECE_ENTRIES {
            self.free();
        }
    }

    /// Frees the gathered pages by one hold of the store's lock.
    fn free(&mut self) {
        if self.entries == 0 {
            return;
        }
        let account = &self.closed.account;
        account.is_queued(self.entries);
        let freed: Freed = self.engine.store.free_runs(&self.runs[..self.len]);
        account.is_freed(freed);
        if self.taker == Taker::Helper {
            account.was_helped(freed.entries);
        }
        let known = |stored: u64| Some(stored.saturating_sub(freed.entries));
        let before = self.closed.stored.fetch_update(Ordering::AcqRel, Ordering::Acquire, known);
        let counted = before.unwrap_or_else(|stored| stored).min(freed.entries);
        self.engine.closed.stored.fetch_sub(counted, Ordering::AcqRel);
        (self.len, self.entries) = (0, 0);
    }

    /// Ends the walk. Returns a range that encloses the busy entries.
    fn end(mut self) -> Option<Range<u64>> {
        self.free();
        if self.granules > 0 {
            self.engine.ledger.resident(-((self.granules * OS_PAGE as u64) as i64));
        }
        if self.found > 0 {
            self.closed.stored.fetch_add(self.found, Ordering::AcqRel);
            let all = self.engine.closed.stored.fetch_add(self.found, Ordering::AcqRel) + self.found;
            let page_bytes = self.engine.store.page_bytes() as u64;
            self.closed.account.queued_peak(all * page_bytes);
        }
        self.busy.take()
    }
}

impl Engine {
    /// Looks after the worker of closed owners: a stalled one's pieces are walked here.
    pub(super) fn look_after_spans(&self) {
        if self.looks_at_spans() {
            self.counters.add(Counter::ReleaseStalls, 1);
            while self.walk_piece(Taker::Helper, Wants::Room, &mut cpu_ns()).is_some() {}
        }
    }
}
