//! The pieces of a remote file that are in memory or on their way.
//!
//! A piece is had once, however many threads want it. The table is bounded; a reader keeps its own
//! pieces alive. A failure is the answer to all reads of its piece for a moment, so that a queue of
//! faults does not wait for a dead server one after the other. This module must never wait for a
//! server with the table's lock held.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::failure::Failure;

/// The unit of requests and of the cache: larger than most faults, and quick to send.
pub(crate) const PIECE_BYTES: usize = 128 << 10;

/// Pieces in the table: 16 MiB. Those that are on their way are not removed, and not more than
/// these are asked for ahead.
const PIECES_MOST: usize = 128;

/// How long a failure is the answer.
pub(crate) const FAILURE_LASTS: Duration = Duration::from_secs(1);

#[derive(Default)]
enum State {
    #[default]
    Coming,
    Here(Arc<[u8]>),
    Failed(Failure, Instant),
}

/// A piece.
#[derive(Default)]
pub(crate) struct Piece {
    state: Mutex<State>,
    came: Condvar,
}

impl Piece {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the wait for it.
    pub(crate) fn set(&self, outcome: Result<Arc<[u8]>, Failure>) {
        let mut state = self.lock();
        if matches!(*state, State::Coming) {
            *state = match outcome {
                Ok(bytes) => State::Here(bytes),
                Err(failure) => State::Failed(failure, Instant::now()),
            };
            self.came.notify_all();
        }
    }

    /// Its bytes, or why there are none until then.
    pub(crate) fn wait(&self, until: Instant, patience: Duration) -> Result<Arc<[u8]>, Failure> {
        let mut state = self.lock();
        loop {
            match &*state {
                State::Here(bytes) => return Ok(Arc::clone(bytes)),
                State::Failed(failure, _) => return Err(failure.clone()),
                State::Coming => {}
            }
            let rest = until.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return Err(Failure::Late(patience.as_secs()));
            }
            state = self.came.wait_timeout(state, rest).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn is_coming(&self) -> bool {
        matches!(*self.lock(), State::Coming)
    }

    fn has_failed_for(&self, time: Duration) -> bool {
        matches!(&*self.lock(), State::Failed(_, at) if at.elapsed() >= time)
    }
}

struct Table {
    failure_lasts: Duration,
    pieces: HashMap<u64, Arc<Piece>>,
    /// Numbers in the order of their coming; some may be gone from `pieces`.
    order: VecDeque<u64>,
    /// The piece behind the last request, and how many were asked for ahead with it.
    next: u64,
    ahead: u64,
}

/// The table.
pub(crate) struct Pieces(Mutex<Table>);

/// Pieces that a reader asks for.
pub(crate) struct Claim {
    /// Those that were asked for, in order.
    pub(crate) pieces: Vec<Arc<Piece>>,
    /// Those that the reader has to bring, by number, also ahead of what was asked for.
    pub(crate) missing: Vec<(u64, Arc<Piece>)>,
}

impl Pieces {
    pub(crate) fn new(failure_lasts: Duration) -> Self {
        let (pieces, order) = (HashMap::new(), VecDeque::new());
        Self(Mutex::new(Table { failure_lasts, pieces, order, next: 0, ahead: 0 }))
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pieces of these numbers. Reads in order ask for more, up to `ahead_most` pieces below
    /// `end`.
    pub(crate) fn claim(&self, numbers: Range<u64>, end: u64, ahead_most: u64) -> Claim {
        let mut table = self.lock();
        let mut claim = Claim { pieces: Vec::new(), missing: Vec::new() };
        for number in numbers.clone() {
            let piece = table.get(number, &mut claim.missing);
            claim.pieces.push(piece);
        }
        let Some(&(first, _)) = claim.missing.first() else { return claim };
        table.ahead = if first == table.next { (table.ahead * 2).max(1).min(ahead_most) } else { 0 };
        table.next = end.min(numbers.end + table.ahead);
        for number in numbers.end..table.next {
            table.get(number, &mut claim.missing);
        }
        table.shrink();
        claim
    }

    /// Adds a piece that is here.
    pub(crate) fn put(&self, number: u64, piece: Arc<Piece>) {
        let mut table = self.lock();
        table.pieces.insert(number, piece);
        table.order.push_back(number);
    }

    /// The pieces of these numbers that are not on their way yet, for a read that is to come.
    pub(crate) fn announce(&self, numbers: Range<u64>) -> Vec<(u64, Arc<Piece>)> {
        let mut table = self.lock();
        let mut missing = Vec::new();
        let coming = table.pieces.values().filter(|piece| piece.is_coming()).count();
        let room = PIECES_MOST.saturating_sub(coming);
        for number in numbers.take(room) {
            table.get(number, &mut missing);
        }
        table.shrink();
        missing
    }

    /// Drops these pieces.
    pub(crate) fn forget(&self, numbers: &Range<u64>) {
        self.lock().pieces.retain(|number, _| !numbers.contains(number));
    }
}

impl Table {
    fn get(&mut self, number: u64, missing: &mut Vec<(u64, Arc<Piece>)>) -> Arc<Piece> {
        if let Some(piece) =
            self.pieces.get(&number).filter(|piece| !piece.has_failed_for(self.failure_lasts))
        {
            return Arc::clone(piece);
        }
        let piece = Arc::new(Piece::default());
        self.pieces.insert(number, Arc::clone(&piece));
        self.order.push_back(number);
        missing.push((number, Arc::clone(&piece)));
        piece
    }

    /// Removes the oldest. A piece that is on its way is kept, so that it is had once.
    fn shrink(&mut self) {
        for _ in 0..self.order.len() {
            if self.pieces.len() <= PIECES_MOST && self.order.len() <= 2 * PIECES_MOST {
                return;
            }
            let Some(number) = self.order.pop_front() else { return };
            match self.pieces.get(&number) {
                Some(piece) if piece.is_coming() => self.order.push_back(number),
                Some(_) => _ = self.pieces.remove(&number),
                None => {}
            }
        }
    }
}

#[cfg(test)]
#[path = "pieces_test.rs"]
mod tests;
