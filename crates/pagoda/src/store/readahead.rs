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
mod tests {
    use pagoda_core::page::BasePage;
    use pagoda_core::size::Bytes;
    use pagoda_linux::io::direct_file::AlignedBuffer;

    use super::*;
    use crate::store::fault_injection::{Fault, Faults, Plan};
    use crate::store::tests::{assert_holds, page_of, stored, with_file, with_ring};
    use crate::store::{GetError, Scratch, Store};

    type Held = Vec<(Handle, Vec<u8>)>;

    fn spilled(store: &TieredStore, scratch: &mut Scratch, percents: &[u64]) -> Held {
        let page = |(i, percent): (usize, &u64)| page_of(store.page_bytes(), *percent, i as u64);
        let held = percents.iter().enumerate().map(page);
        let held: Held = held.map(|page| (stored(store.put(&page, scratch)), page)).collect();
        store.spill(Bytes::ZERO).expect("room");
        held
    }

    /// Pages that shrink and others that do not, in turn, and pages between them in the file. Those
    /// that did not shrink lie in front.
    fn apart(store: &TieredStore, scratch: &mut Scratch) -> (Held, Held) {
        let mut between = spilled(store, scratch, &[&[43; 7][..], &[43, 100].repeat(7)].concat());
        let held = between.split_off(7);
        (held, between)
    }

    fn handles(held: &Held) -> Vec<Handle> {
        held.iter().map(|(handle, _)| *handle).collect()
    }

    #[test]
    fn objects_spilled_together_come_with_one_read_and_leave_without_a_write() {
        for base in [BasePage::K4, BasePage::K64] {
            let (_directory, store, mut scratch) = with_file(base, Bytes::mib(64), Bytes::mib(64));
            let held = spilled(&store, &mut scratch, &[43; 5]);
            let (before, all) = (store.usage(), handles(&held));
            assert_eq!(store.promote_together(all[0], &all[1..]), 5, "{base}");
            assert_eq!(store.file_reads(), 1);
            for (handle, page) in &held {
                assert!(store.is_in_memory(*handle) && store.is_kept(*handle));
                assert_holds(&store, &mut scratch, *handle, page);
            }
            assert_eq!(store.file_reads(), 1, "from memory");
            assert_eq!(store.promote_together(all[0], &all[1..]), 0, "they are there");
            all.iter().for_each(|handle| store.demote(*handle));
            let usage = store.usage();
            assert_eq!((usage.memory_used_bytes, usage.file_bytes), (Bytes::ZERO, before.file_bytes));
            held.iter().for_each(|(handle, page)| assert_holds(&store, &mut scratch, *handle, page));
            all.iter().for_each(|handle| store.free(*handle));
            assert_eq!((store.usage().objects, store.usage().file_bytes), (0, Bytes::ZERO));
        }
    }

    #[test]
    fn objects_before_are_read_and_those_elsewhere_are_not() {
        let (_directory, store, mut scratch) = with_file(BasePage::K64, Bytes::mib(64), Bytes::mib(64));
        let (held, _between) = apart(&store, &mut scratch);
        let all = handles(&held);
        assert_eq!(store.promote_together(all[0], &[]), 0);
        assert_eq!(store.file_reads(), 0, "there is nothing that comes with it");
        assert_eq!(store.promote_together(all[4], &all[..4]), 3);
        assert_eq!(store.promote_together(all[6], &all[7..]), 4);
        assert!(all.iter().step_by(2).all(|handle| store.is_in_memory(*handle)));
        assert_eq!(store.promote_together(all[1], &all[2..]), 6, "as much as is read at once");
        assert_eq!(store.file_reads(), 3);
        held.iter().for_each(|(handle, page)| assert_holds(&store, &mut scratch, *handle, page));
    }

    #[test]
    fn with_a_ring_objects_elsewhere_are_read_at_the_same_time() {
        let Some((_directory, mut store, mut scratch)) =
            with_ring(BasePage::K64, Bytes::mib(64), Bytes::mib(64))
        else {
            return;
        };
        let (held, between) = apart(&store, &mut scratch);
        let all = handles(&held);
        let _ = store.take_requests_together();
        // One of the two reads fails, or brings something else.
        for fault in [Fault::Error, Fault::Short] {
            store.file.as_mut().expect("a file").faults = Faults(Some(Plan::once(fault)));
            assert_eq!(store.promote_together(all[0], &all[1..]), 0, "{fault:?}");
            assert!(all.iter().all(|handle| store.is_in_file(*handle)));
        }
        store.file.as_mut().expect("a file").faults = Faults(Some(Plan::once(Fault::Corrupt)));
        assert_eq!(store.promote_together(all[0], &all[1..]), 1, "of the other stretch");
        assert!(store.is_in_file(all[0]) && store.is_in_memory(all[1]));
        let (reads, _) = (store.file_reads(), store.take_requests_together());
        assert_eq!(store.promote_together(all[0], &all[2..]), 8, "as much as is read at once");
        assert_eq!((store.file_reads() - reads, store.take_requests_together()), (2, 2));
        held.iter().for_each(|(handle, page)| assert_holds(&store, &mut scratch, *handle, page));
        held.iter().chain(&between).for_each(|(handle, _)| store.free(*handle));
        assert_eq!((store.usage().objects, store.usage().file_bytes), (0, Bytes::ZERO));
    }

    #[test]
    fn a_damaged_neighbour_of_a_page_stays_in_place() {
        let (_directory, store, mut scratch) = with_file(BasePage::K64, Bytes::mib(64), Bytes::mib(64));
        let held = spilled(&store, &mut scratch, &[43; 4]);
        let all = handles(&held);
        let file = store.file.as_ref().expect("a file").raw_file();
        let (_, word, units) = store.in_file(all[2]).expect("there");
        let at = u64::from(units.slots().first + 1) * SLOT as u64;
        let mut slot = AlignedBuffer::new(SLOT);
        file.read_at(at, &mut slot).expect("written");
        slot[100] ^= 1;
        file.write_at(at, &slot).expect("room");
        assert!(word.len() > 2 * SLOT);
        assert_eq!(store.promote_together(all[0], &all[1..]), 3);
        assert!(store.is_in_file(all[2]));
        for i in [0, 1, 3] {
            assert!(store.is_in_memory(all[i]));
            assert_holds(&store, &mut scratch, all[i], &held[i].1);
        }
        let mut back = vec![0; 64 << 10];
        assert_eq!(store.get(all[2], 0, &mut back, &mut scratch), Err(GetError::Corrupt), "a fetch of it");
    }

    #[test]
    fn no_read_waits_for_a_mover_and_nothing_is_written_to_make_room() {
        let (_directory, store, mut scratch) = with_file(BasePage::K64, Bytes::mib(2), Bytes::mib(64));
        let held = spilled(&store, &mut scratch, &[43; 5]);
        let all = handles(&held);
        let spiller = store.spiller.lock();
        assert_eq!(store.promote_together(all[0], &all[1..]), 0);
        drop(spiller);
        // Memory is full of objects that are nowhere else.
        let young = (0..20).map(|i| page_of(64 << 10, 43, 100 + i));
        let young: Held = young.map(|page| (stored(store.put(&page, &mut scratch)), page)).collect();
        while store.memory.reserve_copy(512, 0).is_some() {}
        let before = store.usage();
        assert_eq!(store.promote_together(all[0], &all[1..]), 0);
        assert_eq!(store.usage().file_bytes, before.file_bytes);
        held.iter()
            .chain(&young)
            .for_each(|(handle, page)| assert_holds(&store, &mut scratch, *handle, page));
    }
}
