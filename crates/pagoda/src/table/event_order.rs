//! The order of events of several threads. The kernel posts each event after its change, so that
//! two threads' events may come in the wrong order.
//!
//! Say that a thread moves a mapping from Y to X (REMAP, then UNMAP of Y, each posted when the one
//! before was read), and another moves Z to Y in between. Applied as they come, the late UNMAP of Y
//! would drop the pages that just moved there. So a move waits while the table still has its target
//! occupied, or expects an UNMAP of it. An event that concerns a waiting move waits behind it. As
//! long as an event is outstanding the kernel refuses every page move on the descriptor, so that
//! waiting is safe.
//!
//! This module must never apply anything: it decides which events wait.

use pagoda_linux::mem::range::PageRange;
use pagoda_linux::uffd::Message;

/// Events that wait, and places whose UNMAP is still to come. Bounded by [`ARRIVED_MOST`] and by
/// the program's threads: each has at most one event unread and one move under way.
#[derive(Debug, Default)]
pub(crate) struct EventOrder {
    /// Oldest first.
    deferred: Vec<Message>,
    /// The sources of applied moves whose own UNMAP is still to come.
    leaving: Vec<PageRange>,
    /// The ranges that moves brought since the kernel was last quiet, oldest first.
    arrived: Vec<Arrived>,
    /// Reads in a row after which something waited.
    rounds: u32,
}

/// A range that a move brought, or a part of it.
#[derive(Clone, Copy, Debug)]
struct Arrived {
    place: PageRange,
    /// Where it came from.
    source: PageRange,
    /// Its UNMAP was read: its thread may have gone on.
    is_told: bool,
}

/// The most places whose arrival is remembered. Each thread that moves mappings has few of them
/// before the kernel is quiet for a moment. An event that is late by more than these is taken for
/// one of the present range.
const ARRIVED_MOST: usize = 256;

/// Reads after which waiting events are applied all the same: the events that they wait for would
/// have come. The table then knows of a range that is not there, such as a part of a child's memory
/// that the parent kept to itself.
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

/// The parts of `range` outside `hole`, below it and above it.
fn without(range: PageRange, hole: PageRange) -> impl Iterator<Item = PageRange> {
    let below = PageRange::new(range.start(), range.end().min(hole.start()));
    let above = PageRange::new(range.start().max(hole.end()), range.end());
    let parts = if overlap(range, hole) { [below, above] } else { [Some(range), None] };
    parts.into_iter().flatten()
}

/// Whether `event` concerns the range that the waiting move number `at` takes along, when `waiting`
/// wait.
///
/// At the target of a waiting move the table has ranges that are still to leave; the move waits for
/// that. The moved range may leave the target, too: its thread runs on as soon as its own UNMAP was
/// read, perhaps before the awaited events are posted. A range that the table does not have there
/// was brought by the move. A range that it has was left by the moved one if nothing is mapped
/// there any more and no other event reported it.
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

    /// Whether anything is still to come, as far as is known: only then it matters whether the
    /// kernel is quiet.
    pub(crate) fn expects_any(&self) -> bool {
        !(self.deferred.is_empty() && self.leaving.is_empty() && self.arrived.is_empty())
    }

    /// Whether `event` must wait. `is_free` tells whether the table has nothing in a range,
    /// `is_mapped` whether there is a mapping at an address now.
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

    /// The number of the waiting move to apply first if one has to be. No other waiting move leaves
    /// its target, or has to be applied before it. Its own range may leave its target behind it.
    /// None if no move waits.
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

    /// Takes the waiting event number `at`.
    pub(crate) fn take(&mut self, at: usize) -> Message {
        self.deferred.remove(at)
    }

    /// A move from `source` was applied: its UNMAP is to come. `target` is its destination. It is
    /// None if the source is still mapped (`MREMAP_DONTUNMAP`), for then no UNMAP comes.
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

    /// The range is not there any more.
    pub(crate) fn left(&mut self, range: PageRange) {
        let rests =
            |arrived: Arrived| without(arrived.place, range).map(move |place| Arrived { place, ..arrived });
        self.arrived = std::mem::take(&mut self.arrived).into_iter().flat_map(rests).collect();
    }

    /// The parts of `left` that an event is about, which reports that range as moved or unmapped.
    /// The event may be late, and about a range that was there before another moved in. The table
    /// need not have all of that one, for a mapping grows without an event; a part that it has
    /// makes the move wait ([`must_wait`](Self::must_wait)). So a range that arrived since the
    /// kernel was last quiet is left out if it is still there.
    ///
    /// While the move's own UNMAP is unread its thread is in it, and no other thread knows of the
    /// place. Afterwards the range may have left. A range that leaves mostly begins with the
    /// arrived one, and a range that grew begins with the known one. Else `is_registered` tells for
    /// an address: an unmapped range is not registered any more, whatever was mapped there since,
    /// for nothing is adopted where the table has something. If another has moved there, its event
    /// waits, and replaces the range that stays here.
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
#[path = "event_order_test.rs"]
mod tests;
