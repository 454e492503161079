//! The queue of closed owners' tables, which a worker walks in the background.
//!
//! An owner that closes hands over its entries as they lie, with no walk of its own. They are
//! numbered from 0 on. A thread takes one [`Piece`] of these numbers at a time, walks it, and
//! reports with [`Spans::done`]. There are two sweeps over each owner: the first takes frames back
//! ([`Sweep::Frames`]), the second frees stored pages ([`Sweep::Stored`]). The second begins when
//! the first is complete. So an owner's frames never wait for its stored pages. And frames of all
//! owners come before the stored pages of any.
//!
//! An entry that another thread moves just then can't be walked. Its piece reports it as busy, and
//! the sweep is repeated over the range of the busy entries, as often as it takes. Only the worker
//! and a flush do that: a thread that needs room may itself hold the busy entry.
//!
//! Bounds: [`OWNERS_MOST`] owners, for all of which there is memory from the start, so that a fault
//! that helps allocates nothing. Beyond, or while the worker is *stalled*, the owner that closes
//! walks its entries itself. The worker is stalled if it has work and made no progress for
//! [`STALL_US`]; it is trusted again once it makes some. This module must
//! never look at an entry, free anything, know a lock, or read a clock.

use std::collections::VecDeque;
use std::ops::Range;

use super::queue::{STALL_US, Taker};

/// Owners in the queue at most, with those that are released and not dropped yet.
pub const OWNERS_MOST: usize = 1024;

/// Most entries of a piece: walking them takes less than a millisecond if all are stored.
pub const PIECE_WALK: u64 = 1024;

/// The purpose of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sweep {
    /// Frames are taken back, and stored pages counted.
    Frames,
    /// Stored pages are freed.
    Stored,
}

/// Which pieces a thread asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants {
    /// Those of which no entry was found busy, frames first.
    Room,
    /// Of those, frames alone.
    Frames,
    /// All of them: the thread holds no entry.
    All,
}

/// Entries of one owner that a thread is walking.
#[derive(Debug)]
pub struct Piece<T> {
    /// The owner of the entries.
    pub owner: T,
    /// The purpose of the walk.
    pub sweep: Sweep,
    /// Their numbers.
    pub entries: Range<u64>,
    /// An entry of this range was busy before: it may be worth a pause.
    pub is_again: bool,
    number: u64,
}

/// The state of an owner after a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It has more pieces, or other threads have some.
    Going,
    /// All its frames are back.
    FramesBack,
    /// Its stored pages are freed, too. [`Spans::reap`] gives the owner out.
    Released,
}

#[derive(Debug)]
struct Item<T> {
    owner: T,
    number: u64,
    len: u64,
    sweep: Sweep,
    /// The rest of this sweep.
    rest: Range<u64>,
    is_again: bool,
    /// Pieces that threads have.
    in_hands: u32,
    /// Encloses the entries that were found busy in this sweep.
    busy: Option<Range<u64>>,
}

/// Owners that closed and are not released yet.
#[derive(Debug)]
pub struct Spans<T> {
    items: VecDeque<Item<T>>,
    /// Released owners, to be dropped by a thread that may free memory.
    released: Vec<T>,
    numbers: u64,
    /// Pieces whose walk changed anything, ever.
    walked: u64,
    worker_has: u32,
    /// The time of the worker's last progress, or when it first had work again.
    progress_us: u64,
    stalled: bool,
}

impl<T> Default for Spans<T> {
    fn default() -> Self {
        Self {
            items: VecDeque::with_capacity(OWNERS_MOST),
            released: Vec::with_capacity(OWNERS_MOST),
            numbers: 0,
            walked: 0,
            worker_has: 0,
            progress_us: 0,
            stalled: false,
        }
    }
}

impl<T: Clone> Spans<T> {
    /// Queues an owner of `len` entries.
    ///
    /// # Errors
    /// The owner, if there are too many, or the worker is stalled: the caller walks it.
    pub fn hand_over(&mut self, owner: T, len: u64, now_us: u64) -> Result<(), T> {
        if self.stalled || self.items.len() + self.released.len() >= OWNERS_MOST {
            return Err(owner);
        }
        if self.items.is_empty() {
            self.progress_us = now_us;
        }
        self.numbers += 1;
        let number = self.numbers;
        let (sweep, rest) = (Sweep::Frames, 0..len);
        let item = Item { owner, number, len, sweep, rest, is_again: false, in_hands: 0, busy: None };
        self.items.push_back(item);
        Ok(())
    }

    /// Takes the next piece to walk it; [`done`](Self::done) must follow. None if there is none
    /// that the thread wants.
    pub fn take(&mut self, taker: Taker, wants: Wants, now_us: u64) -> Option<Piece<T>> {
        let at = self.next(Sweep::Frames, wants).or_else(|| {
            let stored = if wants == Wants::Frames { None } else { Some(Sweep::Stored) };
            self.next(stored?, wants)
        })?;
        let item = &mut self.items[at];
        let from = item.rest.start;
        let to = item.rest.end.min(from + PIECE_WALK);
        item.rest.start = to;
        item.in_hands += 1;
        let Item { sweep, is_again, number, .. } = *item;
        let owner = item.owner.clone();
        if taker == Taker::Worker {
            self.worker_has += 1;
            self.worker_gets_on(now_us);
        }
        Some(Piece { owner, sweep, entries: from..to, is_again, number })
    }

    fn next(&self, sweep: Sweep, wants: Wants) -> Option<usize> {
        self.items.iter().position(|item| {
            item.sweep == sweep && !item.rest.is_empty() && (wants == Wants::All || !item.is_again)
        })
    }

    /// The worker runs, whether it found anything to do or not.
    pub fn worker_gets_on(&mut self, now_us: u64) {
        self.progress_us = now_us;
        self.stalled = false;
    }

    /// Reports that a piece was walked, all of it but for entries within `busy`.
    ///
    /// # Panics
    /// If the piece is not one of this queue's.
    pub fn done(&mut self, taker: Taker, piece: &Piece<T>, busy: Option<Range<u64>>, now_us: u64) -> Outcome {
        if taker == Taker::Worker {
            self.worker_has -= 1;
            self.worker_gets_on(now_us);
        }
        // While entries stay busy each repeated sweep over them changes nothing.
        self.walked += u64::from(!piece.is_again || busy.is_none());
        let at = self.items.iter().position(|item| item.number == piece.number);
        let at = at.expect("an owner with a piece in a thread's hands stays in the queue");
        let item = &mut self.items[at];
        item.in_hands -= 1;
        item.busy = match (item.busy.take(), busy) {
            (Some(known), Some(busy)) => Some(known.start.min(busy.start)..known.end.max(busy.end)),
            (known, busy) => known.or(busy),
        };
        if !item.rest.is_empty() || item.in_hands > 0 {
            return Outcome::Going;
        }
        if let Some(busy) = item.busy.take() {
            (item.rest, item.is_again) = (busy, true);
            return Outcome::Going;
        }
        if item.sweep == Sweep::Frames {
            (item.sweep, item.rest, item.is_again) = (Sweep::Stored, 0..item.len, false);
            return Outcome::FramesBack;
        }
        let item = self.items.remove(at).expect("just found");
        self.released.push(item.owner);
        Outcome::Released
    }

    /// A released owner, to be dropped: that frees its table.
    pub fn reap(&mut self) -> Option<T> {
        self.released.pop()
    }

    /// Whether every owner is released. Some may still have to be dropped.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.items.is_empty()
    }
    /// Whether any owner has frames that a thread could take, or that one is taking now.
    #[must_use]
    pub fn has_frames(&self) -> bool {
        let has = |item: &Item<T>| !item.rest.is_empty() || item.in_hands > 0;
        self.items.iter().any(|item| item.sweep == Sweep::Frames && !item.is_again && has(item))
    }
    /// A count that grows whenever a piece is walked. It does not grow by a repeated sweep over
    /// entries that stay busy: a thread that waits for room may itself hold one of them.
    #[must_use]
    pub fn walked(&self) -> u64 {
        self.walked
    }
    /// The owners in the queue, and those that are released and not dropped yet.
    pub fn owners(&self) -> impl Iterator<Item = &T> {
        self.items.iter().map(|item| &item.owner).chain(&self.released)
    }

    /// Checks whether the worker is stalled. Returns true only when it becomes stalled. Pieces in
    /// others' hands are not its work.
    pub fn look(&mut self, now_us: u64) -> bool {
        let has_work = self.worker_has > 0 || self.items.iter().any(|item| !item.rest.is_empty());
        let news = !self.stalled && has_work && now_us.saturating_sub(self.progress_us) >= STALL_US;
        self.stalled |= news;
        news
    }
}

#[cfg(test)]
#[path = "spans_test.rs"]
mod tests;
