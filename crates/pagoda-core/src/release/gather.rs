//! One close: which entries are handed over, which are freed inline, and when.
//!
//! The caller walks the owner's page table and gives every handle to [`Gather::push`]. During that
//! walk it must give frames back. It must hand over only after the walk, with [`Gather::finish`]:
//! so no worker begins before the last frame is back. A gather takes as many work items as the
//! queue has. A rejected handle stays in the table, for a
//! second walk that frees inline.

use super::batch::Batch;
use super::{LEAST_ENTRIES, WORKERS_MAX};

/// Handles per shard: one worker frees neighbours, because the object records of this many handles
/// are adjacent.
const SHARD_HANDLES: u64 = 4096;

/// The handles of one close.
#[derive(Debug, Default)]
pub struct Gather {
    open: [Option<Batch>; WORKERS_MAX],
    full: Vec<(usize, Batch)>,
    entries: u64,
    left: u64,
}

/// The one of `shards` queues that a handle belongs to.
fn shard_of(handle: u64, shards: usize) -> usize {
    (handle / SHARD_HANDLES) as usize % shards
}

impl Gather {
    /// Adds a handle to a batch for one of `shards` queues; `spare` returns an empty batch of a
    /// queue. Returns false if there was none. That handle then stays in the table, and so does
    /// every later one.
    ///
    /// # Panics
    /// If there are more than [`WORKERS_MAX`] queues, or none.
    pub fn push(
        &mut self,
        handle: u64,
        shards: usize,
        mut spare: impl FnMut(usize) -> Option<Batch>,
    ) -> bool {
        // Handles after a rejected one could be freed at once, but not before the last frame is
        // back.
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

    /// The number of rejected handles.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.left
    }

    /// The batches, each with its queue, and whether they are worth handing over. If not, the
    /// caller frees them inline.
    pub fn finish(self) -> (bool, impl Iterator<Item = (usize, Batch)>) {
        let open = self.open.into_iter().enumerate().filter_map(|(shard, batch)| Some((shard, batch?)));
        (self.entries + self.left >= LEAST_ENTRIES, self.full.into_iter().chain(open))
    }
}
