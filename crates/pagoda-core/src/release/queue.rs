//! The queue between those who close and one worker. The caller has a lock around it.
//!
//! Whoever takes gets a [`Piece`] at a time and says when it is freed, so that a worker that is not scheduled has one piece
//! in its hands and not a batch: the rest is there for whoever needs the room, or waits for it.
//!
//! Bounds: [`BATCHES`] batches, all of them made at the start, and the entries that the maker names. When either is reached
//! the entries are freed inline. A worker that has not got on for [`STALL_US`] with something to do is *stalled*: from then
//! on there are no batches.

use std::collections::VecDeque;

use super::batch::{Batch, Run};

/// Batches of a queue: 10,200 words, 80 KiB.
pub const BATCHES: usize = 20;

/// Entries of a piece at most: the store's lock is held for 30 microseconds to free them.
pub const PIECE_ENTRIES: u64 = 256;

/// How long a worker with something to do may not get on before it is taken for stalled, in microseconds: with looks a tenth of
/// a second apart it is seen within a second.
pub const STALL_US: u64 = 800_000;

/// Who frees a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taker {
    /// The worker whose queue it is.
    Worker,
    /// Anybody else: who needs the room, waits for the release, or found the worker stalled.
    Helper,
}

/// Entries of one owner that somebody is freeing.
#[derive(Debug)]
pub struct Piece<T> {
    /// Whose they were.
    pub owner: T,
    runs: [Run; PIECE_ENTRIES as usize],
    len: usize,
}

impl<T> Piece<T> {
    /// What is to be freed.
    #[must_use]
    pub fn runs(&self) -> &[Run] {
        &self.runs[..self.len]
    }
    /// How many entries that is.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.runs().iter().map(|run| run.entries).sum()
    }
}

/// What is handed over and not freed yet.
#[derive(Debug)]
pub struct Queue<T> {
    /// Batches that nobody fills and that hold nothing.
    spare: Vec<Batch>,
    queued: VecDeque<(T, Batch)>,
    /// Entries that are queued or in somebody's hands.
    entries: u64,
    entries_max: u64,
    /// Of them, in somebody's hands, and in the worker's.
    taken: u64,
    worker_has: u64,
    /// When the worker last got on, or had to begin.
    progress_us: u64,
    stalled: bool,
}

impl<T: Clone> Queue<T> {
    /// An empty queue for `entries_max` entries.
    #[must_use]
    pub fn new(entries_max: u64) -> Self {
        Self {
            spare: (0..BATCHES).map(|_| Batch::default()).collect(),
            queued: VecDeque::with_capacity(BATCHES),
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
        if self.stalled { None } else { self.spare.pop() }
    }
    /// An empty batch back.
    ///
    /// # Panics
    /// If it is not empty.
    pub fn put_spare(&mut self, batch: Batch) {
        assert_eq!(batch.entries(), 0, "what a batch holds is freed before it is used again");
        self.spare.push(batch);
    }

    /// Queues a batch.
    ///
    /// # Errors
    /// The batch, if there would be too many entries, or the worker is stalled: free it inline.
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

    /// Takes the next piece to free it; [`freed`](Self::freed) follows. None: nothing is queued.
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
        self.taken += piece.entries();
        if taker == Taker::Worker {
            self.worker_has += piece.entries();
            self.progress_us = now_us;
        }
        Some(piece)
    }

    /// A piece is freed.
    pub fn freed(&mut self, taker: Taker, piece: &Piece<T>, now_us: u64) {
        let entries = piece.entries();
        self.entries -= entries;
        self.taken -= entries;
        if taker == Taker::Worker {
            self.worker_has -= entries;
            self.progress_us = now_us;
        }
    }

    /// What is in others' hands is not its own to do.
    fn worker_has_work(&self) -> bool {
        !self.queued.is_empty() || self.worker_has > 0
    }

    /// Looks whether the worker is stalled. True if that is news.
    pub fn look(&mut self, now_us: u64) -> bool {
        let news =
            !self.stalled && self.worker_has_work() && now_us.saturating_sub(self.progress_us) >= STALL_US;
        self.stalled |= news;
        news
    }

    /// Checks that no entry and no batch is lost; `open` batches are being filled.
    ///
    /// # Panics
    /// If one is.
    pub fn assert_whole(&self, open: usize) {
        let queued: u64 = self.queued.iter().map(|(_, batch)| batch.entries()).sum();
        assert_eq!(queued + self.taken, self.entries, "every entry is queued or in somebody's hands");
        assert!(self.worker_has <= self.taken && self.entries <= self.entries_max);
        assert_eq!(self.spare.len() + self.queued.len() + open, BATCHES, "no batch is lost");
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
    fn a_worker_is_not_stalled_by_what_a_helper_has_in_its_hands() {
        let mut queue = Queue::new(100);
        hand_over(&mut queue, 1, 0);
        // A helper was quicker, and is not scheduled for a while.
        let piece = queue.take(Taker::Helper, 0).expect("a piece");
        assert!(!queue.look(2 * STALL_US), "the worker has nothing to do");
        hand_over(&mut queue, 2, 2 * STALL_US);
        assert!(!queue.look(2 * STALL_US), "it has something to do only just now");
        queue.freed(Taker::Helper, &piece, 2 * STALL_US);
        assert!(queue.look(3 * STALL_US), "it does not get on");
    }
}
