//! Guards that a program installed by raw system calls (`MADV_GUARD_INSTALL`), as the C library
//! does for stacks: the kernel drops the content in memory there, and tells nothing.
//!
//! A swapped-out page would be there again when the guard is removed, where zeroes should be. So
//! the watcher asks for guards, a part of the managed memory at each look, and discards the pages
//! stored behind those that it has not seen before. A guard that is removed before a look finds it
//! leaves no trace. This module must never discard what an unread event may have moved.

use pagoda_linux::mem::guards;
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::procfs::pagemap::PagemapScanner;

use crate::engine::Engine;
use crate::store::Scratch;
use crate::threads::watcher::Watcher;

/// How much is asked about at each look: some hundred microseconds.
const LOOK_BYTES: usize = 256 << 20;

/// Guards that are known. Those beyond are discarded at each look anew.
const KNOWN_MOST: usize = 4096;

/// The guards of the last looks.
#[derive(Default)]
pub(crate) struct Guards {
    /// Lowest address first.
    known: Vec<PageRange>,
    /// Where the next look goes on.
    from: usize,
    /// The kernel can't tell.
    is_blind: bool,
}

impl Guards {
    /// Takes over that of `range` just these are there.
    fn keep(&mut self, range: PageRange, found: Vec<PageRange>) {
        self.known.retain(|guard| guard.intersection(range).is_none());
        let room = KNOWN_MOST - self.known.len().min(KNOWN_MOST);
        self.known.extend(found.into_iter().take(room));
        self.known.sort_unstable_by_key(|guard| guard.start());
    }

    fn knows(&self, guard: &PageRange) -> bool {
        let at = self.known.binary_search_by_key(&guard.start(), |known| known.start());
        at.is_ok_and(|at| self.known[at] == *guard)
    }
}

impl Engine {
    /// Asks for the guards of the next part of the managed memory.
    pub(crate) fn look_at_guards(&self, watcher: &mut Watcher) {
        let (guards, present) = (&mut watcher.guards, &mut watcher.present);
        if guards.is_blind || !guards::may_be() {
            return;
        }
        let parts = self.next_parts(&mut guards.from);
        for part in parts {
            let mut found = Vec::new();
            let asked = present.guards(part.start(), part.end(), |run| {
                found.extend(PageRange::new(run.start, run.end));
            });
            if asked.is_err() {
                guards.is_blind = true;
                return;
            }
            // One that could not be discarded is new at the next look.
            found.retain(|guard| guards.knows(guard) || self.discard_guarded(present, *guard));
            guards.keep(part, found);
        }
    }

    /// The managed ranges from `from` on, up to the bytes of a look. Moves `from` behind them, or
    /// back to the beginning.
    fn next_parts(&self, from: &mut usize) -> Vec<PageRange> {
        let (mut parts, mut left) = (Vec::new(), LOOK_BYTES);
        let table = self.gate_shared();
        while let Some(span) = table.next_from(*from).filter(|_| left > 0) {
            let start = span.range().start().max(*from);
            let len = (span.range().end() - start).min(left);
            left -= len;
            *from = start + len;
            parts.push(PageRange::at(start, len));
        }
        if left > 0 {
            *from = 0;
        }
        parts
    }

    /// Discards stored content behind a guard that is still there. False if an event is unread,
    /// or waits: other memory may have been in its place.
    fn discard_guarded(&self, present: &mut PagemapScanner, guard: PageRange) -> bool {
        let table = self.gate_exclusive();
        let mut still = Vec::new();
        let asked = present.guards(guard.start(), guard.end(), |run| {
            still.extend(PageRange::new(run.start, run.end));
        });
        // Asked afterwards: with the gate held no thread reads one meanwhile.
        if asked.is_err() || table.order.deferred() > 0 || !self.space.is_quiet() {
            return false;
        }
        let mut scratch = Scratch::new(self.base);
        still.into_iter().for_each(|guard| self.discard(&table, guard, &mut scratch));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guards_of_a_part_replace_those_that_were_known_there() {
        let guard = |page: usize| PageRange::at(page * 4096, 4096);
        let part = |from: usize, to: usize| PageRange::at(from * 4096, (to - from) * 4096);
        let mut guards = Guards::default();
        guards.keep(part(0, 100), vec![guard(7), guard(50)]);
        guards.keep(part(100, 200), vec![guard(150)]);
        guards.keep(part(0, 60), vec![guard(9)]);
        assert_eq!([7, 9, 50, 150].map(|page| guards.knows(&guard(page))), [false, true, false, true]);
        assert!(!guards.knows(&part(9, 11)), "one that grew is another");
    }
}
