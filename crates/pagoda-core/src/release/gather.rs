//! One close: which of its entries are handed over, which are freed inline, and when.
//!
//! The caller walks the owner's page table and gives every handle to [`Gather::push`]. It must give frames back on that walk
//! and hand over only after it, with [`Gather::finish`]: so no worker begins before the last frame is back. A handle that
//! is not taken stays in the table, for a second walk that frees inline.

use super::batch::Batch;
use super::{LEAST_ENTRIES, WORKERS_MAX};

/// Neighbours are freed by one worker: object records of this many handles lie together.
const SHARD_HANDLES: u64 = 4096;

/// The handles of one close.
#[derive(Debug, Default)]
pub struct Gather {
    open: [Option<Batch>; WORKERS_MAX],
    full: Vec<(usize, Batch)>,
    entries: u64,
    left: u64,
}

/// Which of `shards` queues a handle belongs to.
fn shard_of(handle: u64, shards: usize) -> usize {
    (handle / SHARD_HANDLES) as usize % shards
}

impl Gather {
    /// Takes a handle for one of `shards` queues; `spare` brings an empty batch of a queue. False if there was none: the
    /// handle stays where it is, and so does every later one.
    ///
    /// # Panics
    /// If there are more than [`WORKERS_MAX`] queues, or none.
    pub fn push(
        &mut self,
        handle: u64,
        shards: usize,
        mut spare: impl FnMut(usize) -> Option<Batch>,
    ) -> bool {
        // What comes after one that stays could be freed at once, but not before the last frame is back.
        if self.left == 0 {
            let shard = shard_of(handle, shards);
            let open = &mut self.open[shard];
            if !open.as_mut().is_some_and(|batch| batch.push(handle)) {
                self.full.extend(open.take().map(|batch| (shard, batch)));
                *open = spare(shard);
                if !open.as_mut().is_some_and(|batch| batch.push(handle)) {
                    self.left += 1;
                    return false;
                }
            }
            self.entries += 1;
            return true;
        }
        self.left += 1;
        false
    }

    /// How many handles were not taken.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.left
    }

    /// The batches, each with its queue, and whether they are worth handing over: otherwise they are freed inline.
    pub fn finish(self) -> (bool, impl Iterator<Item = (usize, Batch)>) {
        let open = self.open.into_iter().enumerate().filter_map(|(shard, batch)| Some((shard, batch?)));
        (self.entries + self.left >= LEAST_ENTRIES, self.full.into_iter().chain(open))
    }
}
