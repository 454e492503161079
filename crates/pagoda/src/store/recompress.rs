//! Compressing cold pages again, as a whole and better.
//!
//! It happens while nothing is stored, on one thread and within a bound of processor time, and a
//! result is kept only if it is smaller. Such a page costs more to fetch, because all of it is
//! unpacked for any part. It never waits for a reader, and never takes memory that it does not give
//! back at once.

use std::collections::VecDeque;

use pagoda_core::size::Bytes;
use pagoda_linux::codec::zstd::{Compressor, DEFAULT_LEVEL};
use pagoda_linux::process::thread::{cpu_ns, now_ns, sleep_us};

use super::objects::{DENSE, FREED, Kind, MOVING};
use super::{Scratch, TieredStore};
use pagoda_linux::codec::pack::pack_dense;

/// A page that was put so long ago is cold: most refaults come sooner.
const COLD_NS: u64 = 30_000_000_000;

/// Without a put for so long the store counts as idle.
const IDLE_NS: u64 = 1_000_000_000;

/// Of one processor's time, at most one part in this many: 5%.
const CPU_SHARE: u64 = 20;

/// The time between two entries of the history of puts: 32 of them for [`COLD_NS`].
const SAMPLE_NS: u64 = COLD_NS / 32;

/// A result is kept if it saves at least one part in this many of the bytes.
const WORTH: usize = 8;

/// The state of the one thread that does this.
pub(super) struct Condenser {
    compressor: Compressor,
    scratch: Scratch,
    page: Box<[u8]>,
    dense: Box<[u8]>,
    /// How many puts there were, and when; the oldest first.
    history: VecDeque<(u64, u64)>,
    /// The last moment at which another put was seen.
    busy_ns: u64,
    /// Bytes that were saved and not given back to the kernel yet.
    saved: Bytes,
}

impl Condenser {
    /// Whether nothing was put for a while, as it was seen last.
    pub fn is_idle(&self) -> bool {
        now_ns() - self.busy_ns >= IDLE_NS
    }
}

impl TieredStore {
    pub(super) fn condenser(&self) -> Condenser {
        Condenser {
            compressor: Compressor::new(self.page_bytes(), DEFAULT_LEVEL),
            scratch: Scratch::new(self.base),
            page: vec![0; self.page_bytes()].into_boxed_slice(),
            dense: vec![0; self.page_bytes()].into_boxed_slice(),
            history: VecDeque::with_capacity(64),
            busy_ns: now_ns(),
            saved: Bytes::ZERO,
        }
    }

    /// Makes cold pages smaller for `for_ns` at most, as long as the store is idle.
    pub(super) fn condense_while_idle(&self, condenser: &mut Condenser, for_ns: u64) {
        let end = now_ns() + for_ns;
        while let Some(young) = self.young_if_idle(condenser) {
            let before = cpu_ns();
            if now_ns() >= end {
                return;
            }
            let Some(saved) = self.condense_oldest(condenser, young) else { return };
            condenser.saved = condenser.saved.saturating_add(saved);
            // Freed blocks lie between used ones: only whole segments can be given to the kernel.
            if condenser.saved.as_usize() >= self.memory.segment_bytes() {
                condenser.saved = Bytes::ZERO;
                self.trim();
            }
            let spent_us = (cpu_ns() - before) / 1000;
            sleep_us(u32::try_from(spent_us * (CPU_SHARE - 1)).unwrap_or(u32::MAX));
        }
    }

    /// Makes everything smaller, as if all of it were cold.
    #[cfg(test)]
    pub(crate) fn condense_all(&self) {
        let mut condenser = self.condenser();
        while self.condense_oldest(&mut condenser, 0).is_some() {}
    }

    /// How many of the objects in memory are not cold yet; `None` if the store is not idle.
    fn young_if_idle(&self, condenser: &mut Condenser) -> Option<u64> {
        let (now, puts) = (now_ns(), self.memory.lock().puts);
        let history = &mut condenser.history;
        match history.back() {
            Some((_, last)) if *last != puts => condenser.busy_ns = now,
            _ => {}
        }
        if history.back().is_none_or(|(at, last)| now - at >= SAMPLE_NS || *last != puts) {
            // Of samples that are not older than needed one entry for each is enough.
            if history.len() >= 2 && now - history[history.len() - 2].0 < SAMPLE_NS {
                history.pop_back();
            }
            history.push_back((now, puts));
        }
        while history.get(1).is_some_and(|(at, _)| now - at >= COLD_NS) {
            history.pop_front();
        }
        let (since, before) = *history.front()?;
        (now - since >= COLD_NS && now - condenser.busy_ns >= IDLE_NS).then_some(puts - before)
    }

    /// Tries the object that was put longest ago, if more than `young` are left, and returns the
    /// saved bytes; `None` if there is nothing to do, or another thread moves objects.
    pub(super) fn condense_oldest(&self, condenser: &mut Condenser, young: u64) -> Option<Bytes> {
        let _mover = self.spiller.try_lock()?;
        let Condenser { compressor, scratch, page, dense, .. } = condenser;
        let mut state = self.memory.lock();
        if u64::from(state.packed.objects) <= young {
            return None;
        }
        let id = state.packed.oldest()?;
        let object = self.table.at(id);
        let word = object.word();
        if word.kind() != Kind::Memory {
            return None;
        }
        if object.is_kept() {
            // It need not be in memory at all.
            let freed = self.leave_memory(&mut state, id);
            return (freed > 0).then_some(Bytes::new(freed));
        }
        state.packed.remove(&self.table, id);
        object.flag(MOVING, 0);
        drop(state);
        // No thread frees these blocks while the object is moving.
        let bytes = &mut scratch.packed[..word.len()];
        self.memory.read(word.first(), 0..word.len(), bytes);
        let room = word.len() - word.len() / WORTH;
        let len = scratch
            .unpacker
            .unpack_part(bytes, page.len(), 0, page)
            .and_then(|()| pack_dense(page, &mut dense[..room], compressor));
        let first = len.and_then(|len| self.memory.reserve_blocks(len, id));
        if let (Some(len), Some(first)) = (len, first) {
            self.memory.write(first, &dense[..len]);
        }
        let mut state = self.memory.lock();
        let word = object.word();
        let saved = len.map_or(0, |len| word.len() - len) as u64;
        let place = first.zip(len).map(|(first, len)| word.resized(first, len));
        if word.has(FREED) {
            state.pool.release_all([word.first()].into_iter().chain(first));
            state.numbers.give_back(&self.table, id);
            return Some(Bytes::ZERO);
        }
        let moved = place.is_some_and(|place| object.replace(word, place.with(DENSE)));
        if moved {
            state.pool.release(word.first());
        } else {
            // It gains too little, or is being read: it is not tried again.
            state.pool.release_all(first);
            object.flag(DENSE, MOVING);
        }
        state.dense.push_youngest(&self.table, id);
        Some(Bytes::new(if moved { saved } else { 0 }))
    }
}

#[cfg(test)]
mod tests {
    use pagoda_core::page::BasePage;

    use super::*;
    use crate::store::tests::{assert_holds, config, page_of, stored};
    use crate::store::{Handle, Store};

    #[test]
    fn only_cold_pages_are_touched_and_only_while_nothing_is_put() {
        let store = TieredStore::open(config(BasePage::K16, Bytes::mib(16), None)).expect("memory");
        let mut scratch = Scratch::new(BasePage::K16);
        let pages: Vec<_> = (0..600).map(|i| page_of(16 << 10, 25, i)).collect();
        let handles: Vec<Handle> = pages.iter().map(|page| stored(store.put(page, &mut scratch))).collect();
        let mut condenser = store.condenser();
        store.condense_while_idle(&mut condenser, 50_000_000);
        assert_eq!(store.memory.lock().dense.objects, 0, "all were put just now");
        // 100 of them, that is, and the others half a minute ago.
        let now = now_ns();
        condenser.history = VecDeque::from([(now.saturating_sub(COLD_NS), 500), (now, 600)]);
        store.condense_while_idle(&mut condenser, 50_000_000);
        assert_eq!(store.memory.lock().dense.objects, 0, "something was put within the last second");
        let before = store.usage();
        condenser.busy_ns = now.saturating_sub(IDLE_NS);
        store.condense_while_idle(&mut condenser, 300_000_000_000);
        let state = store.memory.lock();
        assert_eq!((state.dense.objects, state.packed.objects), (500, 100));
        drop(state);
        let after = store.usage();
        assert!(after.memory_used_bytes < before.memory_used_bytes);
        assert!(after.memory_committed_bytes < before.memory_committed_bytes, "{before:?} {after:?}");
        let again = page_of(16 << 10, 25, 1000);
        let one = stored(store.put(&again, &mut scratch));
        condenser.busy_ns = 0;
        assert_eq!(store.young_if_idle(&mut condenser), None, "a put is seen at once");
        handles
            .iter()
            .zip(&pages)
            .for_each(|(handle, page)| assert_holds(&store, &mut scratch, *handle, page));
        assert_holds(&store, &mut scratch, one, &again);
    }
}
