//! Objects that move on from the file to the remote store: the oldest, as soon as the file is
//! nearly full, so that it has room for warmer ones.
//!
//! It is the mover's work, under the `spiller` lock, with the protocol of [`super::objects`]. A
//! batch of them is one read, of adjacent objects, and one transaction at the server. No place in
//! the file is given up before the server has confirmed the object, and no damaged object goes
//! there. Where it can't be done every object stays in its place, and those that leave memory go
//! where they can. This module must never wait for a reader, nor give a place in the file away
//! while a word names it.

use std::sync::atomic::Ordering;

use pagoda_core::fault::read_cluster::Stretch;
use pagoda_core::space::extents::{Run, SLOT, Units};

use super::TieredStore;
use super::file::{Batch, FileTier, Item};
use super::memory::MemoryState;
use super::objects::{FREED, Kind, MOVING, Queue};
use super::remote::RemoteTier;

/// Batches that are moved on before one is spilled, at most: as a rule it is one, more if others
/// lie in the same slots.
const ROUNDS_MAX: u32 = 4;

/// The objects at the old end of the queue that are checked for adjacent ones, with the lock held:
/// as many as make so many batches. Younger ones stay, wherever they are.
const LOOKS_BATCHES: usize = 4;
const LOOKS_MOST: usize = 512;

impl TieredStore {
    /// Moves the oldest objects of the file on to the remote store until there is some room in the
    /// file, if there is a remote store. The caller holds the `spiller` lock.
    pub(super) fn make_room_in_file(&self, batch: &mut Batch) {
        let (Some(file), Some(remote)) = (&self.file, &self.remote) else { return };
        for _ in 0..ROUNDS_MAX {
            if file.has_room_for_copies() || !self.move_oldest(file, remote, batch) {
                return;
            }
        }
    }

    /// Moves one batch. False if nothing moved.
    fn move_oldest(&self, file: &FileTier, remote: &RemoteTier, batch: &mut Batch) -> bool {
        // Objects that a failing server can't take need not be read.
        if remote.is_pausing() {
            return false;
        }
        batch.clear();
        let Some(run) = self.gather_filed(&mut self.memory.lock(), batch) else { return false };
        while !remote.has_room(batch) && self.delete_gone() {}
        if !remote.has_room(batch) {
            self.settle_filed(file, None, run, batch);
            return false;
        }
        if file.read_run(run, &mut batch.buffer).is_err() {
            // A place that can't be read is not to be in the way of the others for good.
            self.put_back(file, run, &batch.items, |queue, id| queue.push_youngest(&self.table, id));
            return false;
        }
        let damaged = self.split_off_damaged(file, run, batch);
        let number = if batch.items.is_empty() { None } else { remote.write(batch).ok() };
        self.settle_filed(file, number.map(|number| (remote, number)), run, batch);
        // A fetch of it returns the error. It must not hold up the others.
        self.put_back(file, run, &damaged, |queue, id| queue.push_youngest(&self.table, id));
        number.is_some()
    }

    /// Takes the oldest objects of the file that one read brings into the batch, and marks them as
    /// moving. Returns the slots to read; their units count from there. `None`: there is none.
    pub(super) fn gather_filed(&self, state: &mut MemoryState, batch: &mut Batch) -> Option<Run> {
        let units_of = |id: u32| self.table.at(id).word().units();
        let oldest = state.filed.oldest()?;
        let mut stretch = Stretch::of(units_of(oldest), (batch.buffer.len() / SLOT) as u32)?;
        let first_unit = stretch.run().first_unit();
        let (mut at, mut looked_bytes) = (Some(oldest), 0);
        for _ in 0..LOOKS_MOST {
            let Some(id) = at.filter(|_| looked_bytes < LOOKS_BATCHES * batch.buffer.len()) else { break };
            at = Queue::after(&self.table, id);
            looked_bytes += self.table.at(id).word().len();
            let units = units_of(id);
            // Places in the batch count from the first one, so that the stretch grows upwards only.
            if units.first >= first_unit && stretch.take(units) {
                state.filed.remove(&self.table, id);
                self.table.at(id).flag(MOVING, 0);
                let units = Units { first: units.first - first_unit, ..units };
                batch.items.push(Item { id, len: self.table.at(id).word().len(), units, checksum: 0 });
            }
        }
        Some(stretch.run())
    }

    /// Deciphers a batch that was read, and takes the objects out of it whose bytes are damaged.
    pub(super) fn split_off_damaged(&self, file: &FileTier, run: Run, batch: &mut Batch) -> Vec<Item> {
        let mut whole = 0;
        for index in 0..batch.items.len() {
            let item = batch.items[index];
            let sum = self.table.at(item.id).checksum.load(Ordering::Relaxed);
            if file.open_at(place(run, &item), sum, batch.bytes_of(&item)) {
                batch.items.swap(whole, index);
                whole += 1;
            }
        }
        batch.items.split_off(whole)
    }

    /// Ends the moves of a batch, which was written with this number, or not at all: then it stays,
    /// and is the oldest again.
    pub(super) fn settle_filed(
        &self,
        file: &FileTier,
        written: Option<(&RemoteTier, u32)>,
        run: Run,
        batch: &Batch,
    ) {
        let Some((remote, number)) = written else {
            let items: Vec<Item> = batch.items.iter().rev().copied().collect();
            return self.put_back(file, run, &items, |queue, id| queue.push_oldest(&self.table, id));
        };
        let mut abandoned = Vec::new();
        let mut state = self.memory.lock();
        for item in &batch.items {
            let object = self.table.at(item.id);
            let word = object.word();
            if word.has(FREED) {
                state.numbers.give_back(&self.table, item.id);
                abandoned.push(*item);
            } else {
                // Both under the lock, so that a reader that checks with it sees the two of one
                // place.
                object.checksum.store(item.checksum, Ordering::Relaxed);
                object.publish(word.moved_to(Kind::Remote, number));
            }
        }
        drop(state);
        let places: Vec<Units> = batch.items.iter().map(|item| place(run, item)).collect();
        file.release_all(&places);
        abandoned.iter().for_each(|item| remote.abandon(item.id, number, item.len));
    }

    /// Ends the moves of objects that stay in the file.
    fn put_back(&self, file: &FileTier, run: Run, items: &[Item], push: impl Fn(&mut Queue, u32)) {
        let mut freed = Vec::new();
        let mut state = self.memory.lock();
        for item in items {
            let object = self.table.at(item.id);
            if object.word().has(FREED) {
                state.numbers.give_back(&self.table, item.id);
                freed.push(place(run, item));
            } else {
                object.flag(0, MOVING);
                push(&mut state.filed, item.id);
            }
        }
        drop(state);
        file.release_all(&freed);
    }
}

/// Where an object of a batch is in the file.
fn place(run: Run, item: &Item) -> Units {
    Units { first: run.first_unit() + item.units.first, ..item.units }
}
