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

use pagoda_linux::mem::range::PageRange;
use pagoda_linux::uffd::Message;

/// Events that wait, and places that are about to be announced as unmapped. Bounded by the program's threads, each of which has at
/// most one event unread and one move under way, and by [`ARRIVED_MOST`].
#[derive(Debug, Default)]
pub(crate) struct EventOrder {
    /// Oldest first.
    deferred: Vec<Message>,
    /// Where moves that were applied came from, whose own UNMAP is still to come.
    leaving: Vec<PageRange>,
    /// What moves brought since the kernel had last told everything, oldest first.
    arrived: Vec<Arrived>,
    /// Reads in a row after which something waited.
    rounds: u32,
}

/// What a move brought, or a part of that.
#[derive(Clone, Copy, Debug)]
struct Arrived {
    place: PageRange,
    /// Where it came from.
    source: PageRange,
    /// Its UNMAP was read: its thread may have gone on.
    is_told: bool,
}

/// Places whose arrival is known at most. Each thread of a program that moves mappings has few of them before the kernel is quiet for a
/// moment; an event that is late by more than these is taken for one of what is there.
const ARRIVED_MOST: usize = 256;

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

/// What of `range` is not in `hole`, below it and above it.
fn without(range: PageRange, hole: PageRange) -> impl Iterator<Item = PageRange> {
    let below = PageRange::new(range.start(), range.end().min(hole.start()));
    let above = PageRange::new(range.start().max(hole.end()), range.end());
    let parts = if overlap(range, hole) { [below, above] } else { [Some(range), None] };
    parts.into_iter().flatten()
}

/// Whether `event` concerns what the move that waits as number `at` takes along, when `waiting` wait.
///
/// At the target of a move that waits the table knows what is still to leave it, which is what the move waits for. But what the
/// move brought may leave it, too: its thread goes on as soon as its own unmapping was read, which may be before what the
/// move waits for is posted. What the table does not know there was brought; and what it knows has been left by what was
/// brought, if nothing is mapped there any more and no other event said so.
fn is_behind(
    waiting: &[Message],
    leaving: &[PageRange],
    event: &Message,
    at: usize,
    is_free: impl Fn(PageRange) -> bool,
    is_mapped: impl Fn(usize) -> bool,
) -> bool {
    let Some((source, target)) = ends(&waiting[at]) else { return false };
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
    if is_unmapping(event, source) && !waiting.iter().any(|waits| is_unmapping(waits, source)) {
        return true;
    }
    let is_known = |place: PageRange| {
        leaves.intersection(place).is_some_and(|range| !is_free(PageRange::page(range.start())))
    };
    let was_brought = waiting[..at].iter().filter_map(ends).any(|(_, target)| overlap(target, source));
    if overlap(leaves, source) && !(was_brought && is_known(source)) {
        return true;
    }
    let is_announced = matches!(event, Message::Unmap(range) if leaving.contains(range));
    let Some(left) = leaves.intersection(target).filter(|_| !is_announced) else { return false };
    let moved_on = waiting[at + 1..].iter().filter_map(ends).any(|(source, _)| overlap(source, target));
    !is_known(target) || !moved_on && !is_mapped(left.start())
}

impl EventOrder {
    /// Nothing is outstanding in the kernel: no announcement is still to come.
    pub(crate) fn all_was_told(&mut self) {
        self.leaving.clear();
        self.arrived.clear();
    }

    /// Whether `event` must wait. `is_free` tells whether the table knows of nothing in a range, `is_mapped` whether there is a mapping
    /// at an address now.
    pub(crate) fn must_wait(
        &self,
        event: &Message,
        is_free: impl Fn(PageRange) -> bool,
        is_mapped: impl Fn(usize) -> bool,
    ) -> bool {
        let waiting = &self.deferred;
        let behind =
            (0..waiting.len()).any(|at| is_behind(waiting, &self.leaving, event, at, &is_free, &is_mapped));
        let Message::Remap { from, to, len } = event else { return behind };
        let Some((_, target)) = ranges(*from, *to, *len) else { return behind };
        behind || !is_free(target) || self.leaving.iter().any(|source| overlap(*source, target))
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

    /// The number of the move that goes first if one has to go although it waits: none other that waits is to leave its target, nor to go before it.
    /// What it brought itself may leave its target behind it. None if no move waits.
    pub(crate) fn first(
        &self,
        is_free: impl Fn(PageRange) -> bool,
        is_mapped: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let waiting = &self.deferred;
        let is_after = |later: usize, earlier: usize| {
            let before = &waiting[..later];
            earlier < later
                && is_behind(before, &self.leaving, &waiting[later], earlier, &is_free, &is_mapped)
        };
        let goes = |at: &usize| {
            let Some((_, target)) = ends(&waiting[*at]) else { return false };
            (0..waiting.len()).filter(|other| other != at).all(|other| {
                let leaves = ends(&waiting[other]).is_some_and(|(source, _)| overlap(source, target));
                !is_after(*at, other) && (!leaves || is_after(other, *at))
            })
        };
        // Where each waits for another the oldest one goes.
        let first = (0..waiting.len()).find(goes);
        first.or_else(|| waiting.iter().position(|event| ends(event).is_some()))
    }

    /// Takes what waits as number `at`.
    pub(crate) fn take(&mut self, at: usize) -> Message {
        self.deferred.remove(at)
    }

    /// A move from `source` was applied: its UNMAP is to come. `target` is where it went, unless the source is still mapped
    /// (`MREMAP_DONTUNMAP`), of which no UNMAP ever comes.
    pub(crate) fn moved(&mut self, source: PageRange, target: Option<PageRange>) {
        self.leaving.push(source);
        if let Some(place) = target {
            self.left(place);
            let surplus = (self.arrived.len() + 1).saturating_sub(ARRIVED_MOST);
            self.arrived.drain(..surplus);
            self.arrived.push(Arrived { place, source, is_told: false });
        }
    }

    /// An UNMAP was applied.
    pub(crate) fn unmapped(&mut self, range: PageRange) {
        self.leaving.retain(|source| *source != range);
        let by = self.arrived.iter_mut().filter(|arrived| arrived.source == range);
        by.for_each(|arrived| arrived.is_told = true);
    }

    /// What was in `range` is there no more.
    pub(crate) fn left(&mut self, range: PageRange) {
        let rests =
            |arrived: Arrived| without(arrived.place, range).map(move |place| Arrived { place, ..arrived });
        self.arrived = std::mem::take(&mut self.arrived).into_iter().flat_map(rests).collect();
    }

    /// The parts of `left` that an event is about which says that it was moved or unmapped. It may be late, and of what was there before
    /// others moved to there: not all of that need be known, for a mapping grows and nobody is told; what is known makes the move wait
    /// ([`must_wait`](Self::must_wait)). So what arrived since the kernel had last told everything is left out if it is still there.
    ///
    /// While the move's own UNMAP is unread its thread is in it, and nobody else knows of the place. Afterwards it may have left: what leaves
    /// begins with it mostly, and what grew begins with what is known. Else `is_registered` tells, of an address: what was unmapped is
    /// not registered any more, whatever was mapped there since, for nothing is adopted where the table knows something. Should another
    /// have moved there, its event waits, and replaces what stays here.
    pub(crate) fn concerned(&self, left: PageRange, is_registered: impl Fn(usize) -> bool) -> Vec<PageRange> {
        let is_left = |place| self.deferred.iter().filter_map(ends).any(|(_, target)| overlap(target, place));
        let mut parts = vec![left];
        for arrived in &self.arrived {
            let stays = arrived.place.intersection(left).is_some_and(|place| {
                let may_stay = left.start() < arrived.place.start();
                !arrived.is_told || may_stay && !is_left(place) && is_registered(place.start())
            });
            if stays {
                parts = parts.into_iter().flat_map(|part| without(part, arrived.place)).collect();
            }
        }
        parts
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
        order.moved(range(10, 14), None);
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
    fn a_late_event_is_not_about_what_arrived_by_a_move_whose_thread_is_still_in_it() {
        let mut order = EventOrder::default();
        let nothing = |_| false;
        assert_eq!(order.concerned(range(10, 20), nothing), [range(10, 20)]);
        order.moved(range(40, 44), Some(range(12, 16)));
        order.moved(range(50, 52), Some(range(18, 20)));
        order.moved(range(60, 64), None);
        assert_eq!(order.concerned(range(10, 20), nothing), [range(10, 12), range(16, 18)]);
        assert_eq!(order.concerned(range(13, 15), nothing), []);
        assert_eq!(order.concerned(range(60, 64), nothing), [range(60, 64)]);
        order.unmapped(range(40, 44));
        assert_eq!(order.concerned(range(10, 20), nothing), [range(10, 18)], "its thread may have gone on");
    }

    #[test]
    fn a_late_event_is_not_about_what_arrived_and_is_still_there() {
        let mut order = EventOrder::default();
        let anything = |_| true;
        order.moved(range(40, 44), Some(range(12, 16)));
        order.unmapped(range(40, 44));
        assert_eq!(order.concerned(range(10, 20), anything), [range(10, 12), range(16, 20)]);
        assert_eq!(
            order.concerned(range(11, 14), |at| at == 12 * 4096),
            [range(11, 12)],
            "asked where they meet"
        );
        for leaves in [range(12, 16), range(12, 20), range(14, 16)] {
            assert_eq!(order.concerned(leaves, anything), [leaves], "whatever is there since");
        }
        // A part of it has left; what is there now came otherwise.
        order.left(range(11, 13));
        assert_eq!(order.concerned(range(10, 20), anything), [range(10, 13), range(16, 20)]);
        // Another moves to there, and waits for it to leave.
        order.defer(remap(30, 15, 4));
        assert_eq!(order.concerned(range(10, 20), anything), [range(10, 20)]);
        assert_eq!(order.take_deferred().len(), 1);
        assert_eq!(order.concerned(range(10, 20), anything), [range(10, 13), range(16, 20)]);
        order.moved(range(70, 72), Some(range(14, 16)));
        assert_eq!(order.concerned(range(10, 20), |_| false), [range(10, 14), range(16, 20)]);
        order.all_was_told();
        assert_eq!(order.concerned(range(10, 20), anything), [range(10, 20)]);
        for from in 0..2 * ARRIVED_MOST {
            order.moved(range(1000 + from, 1001 + from), Some(range(10, 11)));
            order.moved(range(4000 + from, 4001 + from), Some(range(8000 + from, 8001 + from)));
        }
        assert_eq!(order.arrived.len(), ARRIVED_MOST);
    }

    #[test]
    fn of_moves_that_wait_the_one_goes_first_whose_target_no_other_is_to_leave() {
        // One moves from 30 to 10, from where another has moved to 50, where something is that nobody tells of.
        let mut order = EventOrder::default();
        let known = |asked: PageRange| !overlap(asked, range(10, 18)) && !overlap(asked, range(50, 58));
        order.defer(remap(30, 10, 8));
        order.defer(Message::Unmap(range(30, 38)));
        order.defer(remap(10, 50, 8));
        let first = |order: &EventOrder, is_mapped| order.first(known, |_| is_mapped);
        assert_eq!(first(&order, true), Some(2), "what comes is still there");
        assert!(matches!(order.take(2), Message::Remap { from, .. } if from == 10 * 4096));
        assert_eq!(first(&order, true), Some(0));
        order.take(0);
        assert_eq!(first(&order, true), None, "no move waits");
        assert_eq!(order.deferred(), 1);
        // The other one took on what the first one brought.
        let mut order = EventOrder::default();
        order.defer(remap(30, 10, 8));
        order.defer(Message::Unmap(range(30, 38)));
        order.defer(remap(10, 50, 8));
        assert_eq!(first(&order, false), Some(0), "nothing is there any more");
        // Each waits for the other.
        let mut order = EventOrder::default();
        order.defer(remap(10, 50, 8));
        order.defer(remap(50, 10, 8));
        assert_eq!(first(&order, true), Some(0));
    }

    #[test]
    fn a_move_onto_what_the_table_still_knows_waits() {
        let order = EventOrder::default();
        assert!(order.must_wait(&remap(30, 10, 4), |_| false, |_| true));
    }
}
