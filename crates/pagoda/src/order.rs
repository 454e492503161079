//! The order of events of several threads: the kernel posts each event after its change, so that two threads' events may
//! come the wrong way round.
//!
//! A thread moves a mapping from Y to X (REMAP, then UNMAP of Y, each posted when the one before was read), and another
//! moves Z to Y in between. Applied as they come, the late UNMAP of Y would drop what just moved there. So a move whose
//! target is still occupied by the table's knowledge, or still to be announced as unmapped, waits for the events that
//! empty it; and what concerns a move that waits, waits behind it. As long as anything is outstanding the kernel refuses
//! every page move on the descriptor, so that waiting risks nothing.
//!
//! This module must never apply anything: it says what has to wait.

use pagoda_linux::range::PageRange;
use pagoda_linux::uffd::Message;

/// Events that wait, and places that are about to be announced as unmapped. Bounded by the program's threads: each has at
/// most one event unread and one move under way.
#[derive(Debug, Default)]
pub(crate) struct EventOrder {
    /// Oldest first.
    deferred: Vec<Message>,
    /// The sources of moves that were applied, whose own UNMAP is still to come.
    leaving: Vec<PageRange>,
    /// Reads in a row after which something waited.
    rounds: u32,
}

/// Reads after which what waits is applied all the same: what it waits for would have come, so that the table knows of
/// something that is not there (a mapping that went before it was registered whole).
const ROUNDS_MAX: u32 = 32;

fn ranges(from: usize, to: usize, len: usize) -> Option<(PageRange, PageRange)> {
    Some((PageRange::new(from, from.checked_add(len)?)?, PageRange::new(to, to.checked_add(len)?)?))
}

fn overlap(a: PageRange, b: PageRange) -> bool {
    a.intersection(b).is_some()
}

impl EventOrder {
    /// Nothing is outstanding in the kernel: no announcement is still to come.
    pub(crate) fn all_was_told(&mut self) {
        self.leaving.clear();
    }

    /// Whether `event` must wait. `is_free` tells whether the table knows of nothing in a range.
    pub(crate) fn must_wait(&self, event: &Message, is_free: impl Fn(PageRange) -> bool) -> bool {
        let behind = self.deferred.iter().any(|waiting| {
            let Message::Remap { from, to, len } = waiting else { return false };
            let Some((source, target)) = ranges(*from, *to, *len) else { return false };
            match event {
                // What leaves the target is what the waiting move waits for; of the source it is the move's own.
                Message::Unmap(range) => overlap(*range, source),
                Message::Remove(range) => overlap(*range, source) || overlap(*range, target),
                Message::Remap { from, to, len } => {
                    ranges(*from, *to, *len).is_some_and(|(other, _)| overlap(other, source))
                }
                Message::Fault { .. } | Message::Fork(_) => false,
            }
        });
        let Message::Remap { from, to, len } = event else { return behind };
        let Some((_, target)) = ranges(*from, *to, *len) else { return behind };
        behind || !is_free(target) || self.leaving.iter().any(|range| overlap(*range, target))
    }

    /// Keeps an event that must wait.
    pub(crate) fn defer(&mut self, event: Message) {
        self.deferred.push(event);
    }

    /// All that waits, oldest first, to be tried again.
    pub(crate) fn take_deferred(&mut self) -> Vec<Message> {
        std::mem::take(&mut self.deferred)
    }

    /// Counts a read after which something waits. True if it has waited for too long.
    pub(crate) fn waits_too_long(&mut self) -> bool {
        self.rounds = if self.deferred.is_empty() { 0 } else { self.rounds + 1 };
        self.rounds > ROUNDS_MAX
    }

    /// How many wait.
    pub(crate) fn deferred(&self) -> usize {
        self.deferred.len()
    }

    /// A move from `source` was applied: its UNMAP is to come.
    pub(crate) fn moved_from(&mut self, source: PageRange) {
        self.leaving.push(source);
    }

    /// An UNMAP was applied.
    pub(crate) fn unmapped(&mut self, range: PageRange) {
        self.leaving.retain(|leaving| *leaving != range);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(from: usize, to: usize) -> PageRange {
        PageRange::new(from * 4096, to * 4096).expect("a range")
    }
    fn remap(from: usize, to: usize, pages: usize) -> Message {
        Message::Remap { from: from * 4096, to: to * 4096, len: pages * 4096 }
    }

    #[test]
    fn a_move_into_a_place_that_is_still_to_be_unmapped_waits_for_that() {
        let mut order = EventOrder::default();
        let free = |_| true;
        assert!(!order.must_wait(&remap(10, 20, 4), free));
        order.moved_from(range(10, 14));
        assert!(order.must_wait(&remap(30, 10, 4), free), "its target is announced to go");
        order.defer(remap(30, 10, 4));
        assert!(!order.must_wait(&Message::Unmap(range(10, 14)), free), "what it waits for goes ahead");
        assert!(
            order.must_wait(&Message::Unmap(range(30, 34)), free),
            "its own source's unmapping comes after it"
        );
        assert!(order.must_wait(&Message::Remove(range(12, 13)), free), "a discard of what moved there, too");
        order.unmapped(range(10, 14));
        assert_eq!(order.take_deferred().len(), 1);
        assert!(!order.must_wait(&remap(30, 10, 4), free));
    }

    #[test]
    fn a_move_onto_what_the_table_still_knows_waits() {
        let order = EventOrder::default();
        assert!(order.must_wait(&remap(30, 10, 4), |_| false));
    }
}
