//! Pages that are wanted together, brought into memory together: adjacent ones in the file by one
//! read, with a ring those elsewhere in it by others at once, and those at the remote store by one
//! request.
//!
//! It is done for sequential access to the first of them, through the buffer for writing, as long
//! as that is not in use. The others are a guess: if one can't be read, or is damaged, that is no
//! error for the caller of the first. This module must never wait for a mover, write to make room
//! for a guess, or let bytes with a wrong checksum become a page.

use std::sync::atomic::Ordering;

use pagoda_core::fault::read_cluster::Stretches;
use pagoda_core::space::extents::{SLOT, Units};

use super::handle::Meaning;
use super::objects::{Kind, Word};
use super::remote::Wanted;
use super::{Handle, TieredStore};
use crate::crypto::sealing::Version;

/// The most that is read at once: five pages that did not shrink, with little between them; half a
/// millisecond of a slow disk beyond the first one's time.
const STRETCH_MOST: usize = 384 << 10;

/// Pages that may come with another.
pub(crate) const NEIGHBOURS_MOST: usize = 16;

impl TieredStore {
    /// Whether a page is in the file or at the remote store, and not in memory, as far as can be
    /// told.
    pub(crate) fn is_farther(&self, handle: Handle) -> bool {
        self.in_file(handle).is_some() || self.at_remote(handle).is_some()
    }

    /// Whether a page is in the file and not in memory, as far as can be told.
    #[cfg(test)]
    pub(crate) fn is_in_file(&self, handle: Handle) -> bool {
        self.in_file(handle).is_some()
    }

    fn at_remote(&self, handle: Handle) -> Option<(u32, Word)> {
        let Meaning::Object(id) = handle.meaning() else { return None };
        let word = self.table.get(id)?.word();
        (word.kind() == Kind::Remote).then_some((id, word))
    }

    fn in_file(&self, handle: Handle) -> Option<(u32, Word, Units)> {
        let Meaning::Object(id) = handle.meaning() else { return None };
        let word = self.table.get(id)?.word();
        (word.kind() == Kind::File).then(|| (id, word, word.units()))
    }

    /// Brings the packed bytes of a page that is in the file into memory, too, with those of
    /// `others` that are close behind it, by one read. With a ring it also brings those elsewhere,
    /// by a read for each stretch, all at once. A page at the remote store comes with those of
    /// `others` that are there, by one request. Returns how many came; none if there are no such
    /// others, or if it can't be done now. The others are unchanged. Blocks for the disk, or the
    /// server.
    ///
    /// The caller has for each of them the same duties as for [`promote`](Self::promote).
    pub(crate) fn promote_together(&self, first: Handle, others: &[Handle]) -> usize {
        if self.at_remote(first).is_some() {
            return self.promote_together_from_remote(first, others);
        }
        // Near the file's end a page gives its place there up for one in memory: that is nothing to
        // do for a guess.
        let (Some(file), Some(wanted)) = (&self.file, self.in_file(first)) else { return 0 };
        if others.is_empty() || !file.has_room_for_copies() {
            return 0;
        }
        // One mover at a time: nothing leaves the file meanwhile.
        let Some(mut spiller) = self.spiller.try_lock() else { return 0 };
        let Some(batch) = spiller.as_mut() else { return 0 };
        let slots_most = batch.buffer.len().min(STRETCH_MOST) / SLOT;
        let Some(mut stretches) = Stretches::of(wanted.2, slots_most as u32) else { return 0 };
        let others = || others.iter().filter_map(|handle| self.in_file(*handle));
        let mut taken = others().filter(|(_, _, units)| stretches.take(*units)).count();
        if taken < others().count() {
            stretches.allow(batch.at_once());
            taken = others().filter(|(_, _, units)| stretches.take(*units)).count();
        }
        if taken == 0 {
            return 0;
        }
        let mut runs = stretches.runs();
        let read = match (runs.len(), runs.next()) {
            (1, Some(run)) => file.read_run(run, &mut batch.buffer),
            _ => file.read_runs(stretches.runs(), &mut batch.buffer, &mut batch.ring),
        };
        if read.is_err() {
            return 0;
        }
        let mut came = 0;
        for (id, word, units) in std::iter::once(wanted).chain(others()) {
            let Some(at) = stretches.offset_of(units) else { continue };
            let bytes = &mut batch.buffer[at..][..word.len()];
            let sum = self.table.at(id).checksum.load(Ordering::Relaxed);
            if !file.open_at(units, sum, bytes) {
                continue;
            }
            let Some(first) = self.room_for_guess(id, word) else { break };
            came += usize::from(self.place_in_memory(id, word, first, bytes));
        }
        came
    }

    fn room_for_guess(&self, id: u32, word: Word) -> Option<u32> {
        let room = || self.memory.reserve_copy(word.len(), id);
        // Most objects that go without a write came here the same way, and were wanted before.
        room().or_else(|| if self.leave_for_file() > 0 { room() } else { None })
    }

    fn promote_together_from_remote(&self, first: Handle, others: &[Handle]) -> usize {
        let Some(remote) = self.remote.as_ref().filter(|remote| remote.has_room_for_copies()) else {
            return 0;
        };
        let mut left = STRETCH_MOST;
        let fits = |(_, word): &(u32, Word)| {
            left = left.saturating_sub(word.len());
            left > 0
        };
        let there: Vec<(u32, Word)> = std::iter::once(&first)
            .chain(others)
            .filter_map(|handle| self.at_remote(*handle))
            .take_while(fits)
            .collect();
        if there.len() < 2 {
            return 0;
        }
        let wanted = |(id, word): &(u32, Word)| Wanted {
            id: *id,
            batch: word.first(),
            version: Version::from_bits(self.table.at(*id).checksum.load(Ordering::Relaxed)),
            len: word.len(),
        };
        let contents = remote.read_many(&there.iter().map(wanted).collect::<Vec<_>>());
        let mut came = 0;
        for ((id, word), bytes) in there.into_iter().zip(contents) {
            let Some(bytes) = bytes else { continue };
            let Some(first) = self.room_for_guess(id, word) else { break };
            self.place_of_remote(id, word, first, &bytes);
            came += 1;
        }
        came
    }

    /// Requests to read that its file has had.
    #[cfg(test)]
    pub(crate) fn file_reads(&self) -> u64 {
        self.file.as_ref().map_or(0, |file| file.reads.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
#[path = "readahead_test.rs"]
mod tests;
