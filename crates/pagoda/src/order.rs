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
/// something that is not there (a part of a child's memory that its parent kept to itself, say).
const ROUNDS_MAX: u32 = 32;

fn ranges(from: usize, to: usize, len: usize) -> Option<(PageRange, PageRange)> {
    Some((PageRange::new(from, from.checked_add(len)?)?, PageRange::new(to, to.checked_add(len)?)?))
}

/// Where a move comes from and goes to.
fn ends(event: &Message) -> Option<(PageRange, PageRange)> {
    match event {
        Message::Remap { from, to, len } => ranges(*from, *to, *len),
        _ => None,
    }
}

fn overlap(a: PageRange, b: PageRange) -> bool {
    a.intersection(b).is_some()
}

impl EventOrder {
    /// Nothing is outstanding in the kernel: no announcement is still to come.
    pub(crate) fn all_was_told(&mut self) {
        self.leaving.clear();
    }

    /// Whether `event` must wait. `is_free` tells whether the table knows of nothing in a range, `is_mapped` whether there is a mapping
    /// at an address now.
    pub(crate) fn must_wait(
        &self,
        event: &Message,
        is_free: impl Fn(PageRange) -> bool,
        is_mapped: impl Fn(usize) -> bool,
    ) -> bool {
        let behind = (0..self.deferred.len()).any(|at| self.is_behind(event, at, &is_free, &is_mapped));
        let Message::Remap { from, to, len } = event else { return behind };
        let Some((_, target)) = ranges(*from, *to, *len) else { return behind };
        behind || !is_free(target) || self.leaving.iter().any(|range| overlap(*range, target))
    }

    /// Whether `event` concerns what the move that waits as number `at` takes along.
    ///
    /// At the target of a move that waits the table knows what is still to leave it, which is what the move waits for. But what the
    /// move brought may leave it, too: its thread goes on as soon as its own unmapping was read, which may be before what the
    /// move waits for is posted. What the table does not know there was brought; and what it knows has been left by what was
    /// brought, if nothing is mapped there any more and no other event said so.
    fn is_behind(
        &self,
        event: &Message,
        at: usize,
        is_free: impl Fn(PageRange) -> bool,
        is_mapped: impl Fn(usize) -> bool,
    ) -> bool {
        let Some((source, target)) = ends(&self.deferred[at]) else { return false };
        let leaves = match event {
            Message::Unmap(range) => *range,
            Message::Remap { .. } => match ends(event) {
                Some((other, _)) => other,
                None => return false,
            },
            Message::Remove(range) => return overlap(*range, source) || overlap(*range, target),
            Message::Fault { .. } | Message::Fork(_) => return false,
        };
        let is_unmapping =
            |event: &Message, of: PageRange| matches!(event, Message::Unmap(range) if *range == of);
        if is_unmapping(event, source) && !self.deferred.iter().any(|waits| is_unmapping(waits, source)) {
            return true;
        }
        let is_known = |place: PageRange| {
            leaves.intersection(place).is_some_and(|range| !is_free(PageRange::page(range.start())))
        };
        let was_brought =
            self.deferred[..at].iter().filter_map(ends).any(|(_, target)| overlap(target, source));
        if overlap(leaves, source) && !(was_brought && is_known(source)) {
            return true;
        }
        let is_announced = matches!(event, Message::Unmap(range) if self.leaving.contains(range));
        let Some(left) = leaves.intersection(target).filter(|_| !is_announced) else { return false };
        let moved_on =
            self.deferred[at + 1..].iter().filter_map(ends).any(|(source, _)| overlap(source, target));
        !is_known(target) || !moved_on && !is_mapped(left.start())
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
        let (free, mapped) = (|_| true, |_| true);
        assert!(!order.must_wait(&remap(10, 20, 4), free, mapped));
        order.moved_from(range(10, 14));
        assert!(order.must_wait(&remap(30, 10, 4), free, mapped), "its target is announced to go");
        order.defer(remap(30, 10, 4));
        assert!(
            !order.must_wait(&Message::Unmap(range(10, 14)), free, mapped),
            "what it waits for goes ahead"
        );
        assert!(
            order.must_wait(&Message::Unmap(range(30, 34)), free, mapped),
            "its own source's unmapping comes after it"
        );
        assert!(
            order.must_wait(&Message::Remove(range(12, 13)), free, mapped),
            "a discard of what moved there, too"
        );
        order.unmapped(range(10, 14));
        assert_eq!(order.take_deferred().len(), 1);
        assert!(!order.must_wait(&remap(30, 10, 4), free, mapped));
    }

    #[test]
    fn what_a_waiting_move_brought_moves_on_behind_it() {
        let mut order = EventOrder::default();
        let known = range(16, 20);
        let (free, mapped) = (|asked: PageRange| !overlap(asked, known), |_| true);
        assert!(
            order.must_wait(&remap(30, 10, 8), free, mapped),
            "what the table knows there is still to leave"
        );
        order.defer(remap(30, 10, 8));
        assert!(order.must_wait(&Message::Unmap(range(30, 38)), free, mapped), "the move's own");
        order.defer(Message::Unmap(range(30, 38)));
        assert!(order.must_wait(&remap(10, 50, 8), free, mapped), "its thread went on");
        order.defer(remap(10, 50, 8));
        assert!(order.must_wait(&Message::Unmap(range(10, 18)), free, mapped), "that move's own");
        assert!(
            !order.must_wait(&remap(16, 60, 4), free, mapped),
            "what the first move waits for goes ahead"
        );
        assert!(!order.must_wait(&Message::Unmap(range(16, 20)), free, mapped));
    }

    #[test]
    fn two_moves_from_one_place_are_told_apart_by_what_is_mapped_there() {
        let known = range(10, 18);
        let free = |asked: PageRange| !overlap(asked, known);
        // What was there moves to 60, and its event is late; what comes moves on to 50.
        let late = remap(10, 60, 8);
        let on = remap(10, 50, 8);
        let mut order = EventOrder::default();
        order.defer(remap(30, 10, 8));
        order.defer(Message::Unmap(range(30, 38)));
        assert!(!order.must_wait(&late, free, |_| true), "what came is still there");
        assert!(order.must_wait(&on, free, |_| false), "nothing is there any more");
        order.defer(on);
        assert!(order.must_wait(&Message::Unmap(range(10, 18)), free, |_| false), "its own");
        order.defer(Message::Unmap(range(10, 18)));
        assert!(!order.must_wait(&late, free, |_| false), "the other has moved on already");
        assert!(!order.must_wait(&Message::Unmap(range(10, 18)), free, |_| false));
    }

    #[test]
    fn a_move_onto_what_the_table_still_knows_waits() {
        let order = EventOrder::default();
        assert!(order.must_wait(&remap(30, 10, 4), |_| false, |_| true));
    }
}
