//! The queue between closing threads and one worker. The caller holds a lock around it.
//!
//! A thread takes one [`Piece`] at a time and reports when it is freed. So a worker that is not
//! scheduled holds one piece, not a batch. The rest stays available to any thread that needs the
//! room or waits for the release.
//!
//! A *work item* is [`BATCHES`] batches, as posted: when an owner has filled one, it begins the
//! next. Bounds: [`WORK_ITEMS`] work items, the first allocated at the start, and the number of
//! entries given to [`Queue::new`]. When either bound is reached, entries are freed inline. A
//! worker is *stalled* if it has work and made no progress for [`STALL_US`]. From then on the queue
//! gives out no batches.

use std::collections::VecDeque;

use super::batch::{Batch, Run};

/// Batches of a work item: 10,200 words, 80 KiB.
pub const BATCHES: usize = 20;

/// Work items of a queue at most: 2.5 MiB of words, for 1.2 GiB in single base pages of 4 KiB.
pub const WORK_ITEMS: usize = 32;

/// Batches of a queue at most.
pub const BATCHES_MOST: usize = WORK_ITEMS * BATCHES;

/// Most entries of a piece: freeing them holds the store's lock for 30 microseconds.
pub const PIECE_ENTRIES: u64 = 256;

/// The time without progress after which a worker with work counts as stalled, in microseconds.
/// With checks a tenth of a second apart a stall is detected within a second.
pub const STALL_US: u64 = 800_000;

/// The thread that frees a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taker {
    /// The worker whose queue it is.
    Worker,
    /// Any other thread: it needs the room, waits for the release, or found the worker stalled.
    Helper,
}

/// Entries of one owner that a thread is freeing.
#[derive(Debug)]
pub struct Piece<T> {
    /// The owner of the entries.
    pub owner: T,
    runs: [Run; PIECE_ENTRIES as usize],
    len: usize,
}

impl<T> Piece<T> {
    /// The runs to be freed.
    #[must_use]
    pub fn runs(&self) -> &[Run] {
        &self.runs[..self.len]
    }
    /// The number of entries in all runs.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.runs().iter().map(|run| run.entries).sum()
    }
}

/// Entries that were handed over and are not freed yet.
#[derive(Debug)]
pub struct Queue<T> {
    /// Empty batches that are not being filled. There is room for all that are made: a fault that
    /// helps allocates nothing, and frees nothing.
    spare: Vec<Batch>,
    /// Batches that are made.
    made: usize,
    queued: VecDeque<(T, Batch)>,
    /// Entries that are queued or taken.
    entries: u64,
    entries_max: u64,
    /// Entries that are taken by any thread, and by the worker.
    taken: u64,
    worker_has: u64,
    /// The time of the worker's last progress, or when it first had work again.
    progress_us: u64,
    stalled: bool,
}

impl<T: Clone> Queue<T> {
    /// An empty queue for `entries_max` entries.
    #[must_use]
    pub fn new(entries_max: u64) -> Self {
        let mut spare = Vec::with_capacity(BATCHES_MOST);
        spare.extend((0..BATCHES).map(|_| Batch::default()));
        Self {
            spare,
            made: BATCHES,
            queued: VecDeque::with_capacity(BATCHES_MOST),
            entries: 0,
            entries_max,
            taken: 0,
            worker_has: 0,
            progress_us: 0,
            stalled: false,
        }
    }

    /// Entries that were handed over and are not freed yet.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.entries
    }
    /// Whether everything that was handed over is freed.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.entries == 0
    }

    /// An empty batch to fill. None: free inline.
    pub fn spare(&mut self) -> Option<Batch> {
        if self.stalled {
            return None;
        }
        self.spare.pop().or_else(|| {
            let may = self.made < BATCHES_MOST;
            self.made += usize::from(may);
            may.then(Batch::default)
        })
    }
    /// Returns an empty batch to the queue.
    ///
    /// # Panics
    /// If it is not empty.
    pub fn put_spare(&mut self, batch: Batch) {
        assert_eq!(batch.entries(), 0, "a batch is emptied before it is reused");
        self.spare.push(batch);
    }

    /// Queues a batch.
    ///
    /// # Errors
    /// The batch, if it would exceed the bound on entries, or the worker is stalled: free it
    /// inline.
    pub fn hand_over(&mut self, owner: T, batch: Batch, now_us: u64) -> Result<(), Batch> {
        if self.stalled || self.entries + batch.entries() > self.entries_max {
            return Err(batch);
        }
        if !self.worker_has_work() {
            self.progress_us = now_us;
        }
        self.entries += batch.entries();
        self.queued.push_back((owner, batch));
        Ok(())
    }

    /// Takes the next piece to free it; [`freed`](Self::freed) must follow. None if nothing is
    /// queued.
    pub fn take(&mut self, taker: Taker, now_us: u64) -> Option<Piece<T>> {
        let (owner, batch) = self.queued.front_mut()?;
        let mut piece =
            Piece { owner: owner.clone(), runs: [Run::default(); PIECE_ENTRIES as usize], len: 0 };
        let mut room = PIECE_ENTRIES;
        while let Some(run) = batch.take(room) {
            room -= run.entries;
            piece.runs[piece.len] = run;
            piece.len += 1;
        }
        if batch.entries() == 0 {
            let (_, batch) = self.queued.pop_front().expect("just looked at");
            self.spare.push(batch);
        }
        // Beyond a work item they are memory that no owner accounts for.
        if taker == Taker::Worker && self.spare.len() > BATCHES {
            self.made -= self.spare.len() - BATCHES;
            self.spare.truncate(BATCHES);
        }
        self.taken += piece.entries();
        if taker == Taker::Worker {
            self.worker_has += piece.entries();
            self.progress_us = now_us;
        }
        Some(piece)
    }

    /// Reports that a piece is freed.
    pub fn freed(&mut self, taker: Taker, piece: &Piece<T>, now_us: u64) {
        let entries = piece.entries();
        self.entries -= entries;
        self.taken -= entries;
        if taker == Taker::Worker {
            self.worker_has -= entries;
            self.progress_us = now_us;
        }
    }

    /// Whether entries are queued or taken by the worker. Entries taken by helpers are not its
    /// work.
    fn worker_has_work(&self) -> bool {
        !self.queued.is_empty() || self.worker_has > 0
    }

    /// Checks whether the worker is stalled. Returns true only when it becomes stalled.
    pub fn look(&mut self, now_us: u64) -> bool {
        let news =
            !self.stalled && self.worker_has_work() && now_us.saturating_sub(self.progress_us) >= STALL_US;
        self.stalled |= news;
        news
    }

    /// Checks that no entry and no batch is lost; `open` batches are being filled.
    ///
    /// # Panics
    /// If an entry or a batch is lost.
    pub fn assert_whole(&self, open: usize) {
        let queued: u64 = self.queued.iter().map(|(_, batch)| batch.entries()).sum();
        assert_eq!(queued + self.taken, self.entries, "every entry is queued or taken");
        assert!(self.worker_has <= self.taken && self.entries <= self.entries_max);
        assert_eq!(self.spare.len() + self.queued.len() + open, self.made, "no batch is lost");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hand_over(queue: &mut Queue<()>, handle: u64, now_us: u64) {
        let mut batch = queue.spare().expect("a batch");
        assert!(batch.push(handle));
        assert!(queue.hand_over((), batch, now_us).is_ok());
    }

    #[test]
    fn entries_taken_by_a_helper_do_not_stall_the_worker() {
        let mut queue = Queue::new(100);
        hand_over(&mut queue, 1, 0);
        // A helper took the piece first, and is not scheduled for a while.
        let piece = queue.take(Taker::Helper, 0).expect("a piece");
        assert!(!queue.look(2 * STALL_US), "the worker has no work");
        hand_over(&mut queue, 2, 2 * STALL_US);
        assert!(!queue.look(2 * STALL_US), "the worker has had work only since now");
        queue.freed(Taker::Helper, &piece, 2 * STALL_US);
        assert!(queue.look(3 * STALL_US), "the worker makes no progress");
    }
}
