//! A fork: the child gets its own copy of everything that is swapped out, and then stands on its
//! own.
//!
//! The kernel gives us the child's descriptor with the event. The child shares the resident pages.
//! Staged and stored pages are copied into it here, with the gate held exclusively all the while,
//! so that our table shows the state at the fork. A child that touches such a page meanwhile waits
//! for exactly these copies. It may discard, unmap or move memory, too: a discarded page gets no
//! copy, and a moved one gets it at its new place. In the end the child's doorbell is answered, on
//! which its own engine waits before it begins, and its descriptor is closed. A child that finds no
//! answer there has lost its parent before its data came, and ends itself.
//!
//! Memory that is to be empty in a child (madvise WIPEONFORK) counts as discarded there from the
//! start. The kernel tells of such memory in the parent, a moment after the fork: memory that
//! another thread unmaps or moves in that moment is not known.
//!
//! The kernel does not move pages that parent and child share. Break copy-on-write before evicting
//! such a page (`make_shared_own`): it is a copy as long as the other process has it, nothing once
//! the other is gone.
//!
//! This module must never let a child run on without its data.

use std::sync::atomic::Ordering;

use pagoda_core::fork::pace::HOLD_AFTER_NS;
use pagoda_core::page::OS_PAGE;
use pagoda_core::page_entry::{Backing, Granules, Word};
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::process::thread::yield_now;
use pagoda_linux::uffd::{self, Message, Stop, Uffd};

use crate::engine::Engine;
use crate::error::{Errno, StopReason};
use crate::fault::unreadable;
use crate::fork::handover::HandedOver;
use crate::fork::wiped::Wiped;
use crate::stats::counters::Counter;
use crate::store::{Handle, Scratch, Store};
use crate::table::{Page, Span, Table, give};

/// Bytes of shared ranges from which on no more wait for a copy-on-write break: until they are
/// evicted, all of them are held twice. The hand finds the others again.
const SHARED_MOST: usize = 1 << 20;

/// The child's changes to its mappings since the fork, in order.
#[derive(Clone, Copy)]
enum Change {
    Gone(PageRange),
    Moved { from: PageRange, to: usize },
}

/// A forked child that does not stand on its own yet.
pub(crate) struct Child {
    pub(crate) uffd: Uffd,
    /// Empty in it from the start.
    pub(crate) wiped: Wiped,
    changes: Vec<Change>,
    /// Writes that its parent held when it forked, and that wait for an event to be read.
    held: Vec<PageRange>,
}

impl Child {
    fn new(uffd: Uffd, wiped: Wiped) -> Self {
        Self { uffd, wiped, changes: Vec::new(), held: Vec::new() }
    }

    /// Notes the child's changes, and returns its own children. As long as it gets everything its
    /// faults need no answer: the copy wakes them, or the end of its descriptor does.
    fn listen(&mut self) -> Result<Vec<Self>, uffd::Errno> {
        self.hear(|_| {})
    }

    /// Whether its memory is laid out as its parent's was.
    pub(crate) fn is_as_it_was(&self) -> bool {
        self.changes.is_empty()
    }

    /// As [`listen`](Self::listen), and tells for which missing pages its threads wait. Writes that
    /// its parent held go on: it has no engine yet that could make room.
    pub(crate) fn hear(&mut self, mut fault: impl FnMut(usize)) -> Result<Vec<Self>, uffd::Errno> {
        let mut children = Vec::new();
        let (wiped, changes, held) = (&self.wiped, &mut self.changes, &mut self.held);
        self.uffd.read(|message| match message {
            Message::Remove(range) | Message::Unmap(range) => changes.push(Change::Gone(range)),
            Message::Remap { from, to, len } => {
                changes.extend(
                    PageRange::new(from, from.wrapping_add(len)).map(|from| Change::Moved { from, to }),
                );
            }
            // It has the pages that were copied so far, and lacks the pages that its parent lacks.
            Message::Fork(uffd) => {
                children.push(Self {
                    uffd,
                    wiped: wiped.clone(),
                    changes: changes.clone(),
                    held: Vec::new(),
                });
            }
            Message::Fault { at, held: true, .. } => held.push(at.page_range()),
            Message::Fault { at, .. } => fault(at.page()),
        })?;
        let uffd = &self.uffd;
        self.held.retain(|page| !uffd.let_writes(*page));
        Ok(children)
    }

    /// It is served by its own engine from now on: its threads fault again, at these pages and
    /// where writes are held.
    pub(crate) fn leave(&self, waiting: &[usize]) {
        waiting.iter().for_each(|address| self.uffd.wake(PageRange::page(*address)));
        self.held.iter().for_each(|page| self.uffd.wake(*page));
    }

    /// Where the OS page that was at `address` is in the child now, if it still has it.
    pub(crate) fn place(&self, address: usize) -> Option<usize> {
        if self.wiped.has_any(PageRange::page(address)) {
            return None;
        }
        self.changes.iter().try_fold(address, |at, change| match change {
            Change::Gone(range) => (!range.contains(at)).then_some(at),
            Change::Moved { from, to } if from.contains(at) => Some(at - from.start() + to),
            Change::Moved { .. } => Some(at),
        })
    }
}

impl Engine {
    /// Gives the child behind `uffd` all swapped-out pages. With the gate held
    /// exclusively.
    pub(crate) fn serve_fork(&self, table: &Table, uffd: Uffd, scratch: &mut Scratch) {
        self.counters.add(Counter::Forks, 1);
        // As long as the fork is announced, no thread asks for more such memory.
        let wiped = self.wiped_in_children(table);
        // The thread that announced it may be past its fork by now, so that it is this that takes
        // the announcement back.
        let is_announced = self.fork_heard();
        if !is_announced {
            // A fork by the system call itself: the child will start no engine.
            self.counters.add(Counter::ChildrenUnmanaged, 1);
        }
        self.has_forked.store(true, Ordering::Release);
        self.hold_writes_after(HOLD_AFTER_NS);
        self.give_to_child(table, Child::new(uffd, wiped), is_announced, scratch);
        if is_announced {
            self.announcement_is_over();
        }
    }

    /// The child takes over the swapped-out pages, or is given copies.
    fn give_to_child(&self, table: &Table, mut child: Child, is_announced: bool, scratch: &mut Scratch) {
        let mut buffer = vec![0u8; table.entry_bytes()];
        // A child that was not announced may fork again before it has everything: then it is all
        // for both.
        let mut family = match self.hand_over(table, &mut child, is_announced, &mut buffer, scratch) {
            HandedOver::Everything => return,
            HandedOver::Nothing(born) => born,
        };
        family.push(child);
        for span in table.spans() {
            for index in span.used(span.range(), table.entry_bytes()) {
                if span.word(index) != Word::EMPTY {
                    let page = span.page(index, span.range(), table.entry_bytes());
                    self.copy_to_children(span, &page, &mut family, &mut buffer, scratch);
                    self.note_fork_goes_on();
                }
            }
        }
        for child in family {
            self.space.answer_doorbell(&child.uffd);
        }
    }

    /// Ends the process where a message can't be read, because the thread that forks waits for
    /// that.
    pub(crate) fn stop_unread(&self, errno: uffd::Errno) -> ! {
        self.stop(StopReason::EventsUnreadable(Errno(errno.raw_os_error())))
    }

    /// The managed ranges that are empty in children.
    fn wiped_in_children(&self, table: &Table) -> Wiped {
        let mut wiped = Vec::new();
        let Some(reader) = &self.wiped else { return Wiped::default() };
        let mut reader = reader.lock().unwrap_or_else(|_| self.stop(StopReason::EngineBroken));
        let read = reader.for_each(|mapping| {
            let range = PageRange::new(mapping.start, mapping.end);
            wiped.extend(range.filter(|range| !table.is_free(*range)));
        });
        if read.is_err() {
            // The child would read memory that it must not.
            self.stop(StopReason::EngineBroken);
        }
        Wiped::new(wiped)
    }

    fn copy_to_children(
        &self,
        span: &Span,
        page: &Page,
        family: &mut Vec<Child>,
        buffer: &mut [u8],
        scratch: &mut Scratch,
    ) {
        let missing = self.copy_out(span, page, buffer, scratch);
        for (from, to) in missing.runs() {
            let content = &buffer[from as usize * OS_PAGE..to as usize * OS_PAGE];
            let mut next = 0;
            while next < family.len() {
                let born = self.copy_run(page.addresses(from, to), content, &mut family[next]);
                family.extend(born);
                next += 1;
            }
        }
        self.counters.add(Counter::ForkCopiedBytes, u64::from(missing.count()) * OS_PAGE as u64);
    }

    /// Copies the swapped-out granules of a page to the same places of `buffer`, and returns which
    /// ones they are.
    pub(crate) fn copy_out(
        &self,
        span: &Span,
        page: &Page,
        buffer: &mut [u8],
        scratch: &mut Scratch,
    ) -> Granules {
        let word = self.take(span.entries(), page.index);
        let missing = page.granules.without(word.resident());
        let out = match word.backing() {
            _ if missing.is_empty() => Granules::NONE,
            Backing::None => Granules::NONE,
            // A child reads zeroes where nothing is. A page of a file it would read from there.
            Backing::Handle(handle)
                if Handle::from_bits(handle) == Handle::ZEROES && span.entries().file().is_none() =>
            {
                Granules::NONE
            }
            Backing::Slot(slot) => {
                let slot = self.space.claim_slot(slot);
                buffer.copy_from_slice(self.space.bytes(&slot));
                self.space.release_slot(slot);
                missing
            }
            Backing::Handle(handle) => match self.store.get(Handle::from_bits(handle), 0, buffer, scratch) {
                Ok(()) => missing,
                Err(error) => self.stop(unreadable(error)),
            },
        };
        give(span.entry(page.index), word);
        out
    }

    /// Copies `content`, which was at `run` when the child was made, to where the child has that
    /// now. Returns the children that it made meanwhile.
    pub(crate) fn copy_run(&self, run: PageRange, content: &[u8], child: &mut Child) -> Vec<Child> {
        let mut born = Vec::new();
        let mut at = 0;
        let mut one_by_one = false;
        while at < run.len() {
            // As one as long as the child changed nothing, and no boundary of mappings lies within.
            let is_whole = child.is_as_it_was() && !child.wiped.has_any(run) && !one_by_one;
            let len = if is_whole { run.len() - at } else { OS_PAGE };
            let Some(place) = child.place(run.start() + at) else {
                at += len;
                continue;
            };
            let progress =
                self.space.fill_child(&child.uffd, PageRange::at(place, len), &content[at..at + len]);
            at += progress.bytes;
            match progress.stop {
                None => {}
                Some(Stop::Again) => {
                    born.extend(child.listen().unwrap_or_else(|errno| self.stop_unread(errno)));
                    yield_now();
                }
                Some(Stop::Missing) if len > OS_PAGE => one_by_one = true,
                // The child has it, or has no such memory (madvise DONTFORK).
                Some(Stop::Exists | Stop::Missing) => at += OS_PAGE,
                Some(Stop::Gone) => return born,
                Some(Stop::Busy | Stop::Refused | Stop::NoMemory) => {
                    self.stop(StopReason::FillRefused(Errno::NONE))
                }
            }
        }
        born
    }

    /// Remembers a range that could not be moved: if a fork may be why, the reclaimer breaks its
    /// copy-on-write.
    pub(crate) fn note_shared(&self, range: PageRange) {
        if self.may_be_shared() {
            let mut shared = self.shared.lock().unwrap_or_else(|_| self.stop(StopReason::EngineBroken));
            if shared.iter().map(|range| range.len()).sum::<usize>() < SHARED_MOST {
                shared.push(range);
            }
        }
    }

    /// Breaks copy-on-write in ranges that a fork may share, so that they are movable, and has the
    /// hand come to them next. It may wait for a fault to be served (a part may be swapped out by
    /// now), so only the reclaimer does it, and holds nothing.
    pub(crate) fn make_shared_own(&self) {
        if !self.may_be_shared() {
            return;
        }
        let shared =
            std::mem::take(&mut *self.shared.lock().unwrap_or_else(|_| self.stop(StopReason::EngineBroken)));
        if let Some(first) = shared.first() {
            for list in 0..self.hands.len() {
                self.hand(list).address = first.start();
            }
        }
        for range in shared {
            let [start, end] = &self.making_own;
            end.store(range.end(), Ordering::Release);
            start.store(range.start(), Ordering::Release);
            // If an event is unread the handlers let it go.
            let _ = self.space.let_writes(range);
            self.space.make_own(range);
            end.store(0, Ordering::Release);
            self.counters.add(Counter::MadeOwnBytes, range.len() as u64);
        }
    }

    /// Whether the reclaimer makes any memory our own just now.
    pub(crate) fn is_making_any_own(&self) -> bool {
        self.making_own[1].load(Ordering::Acquire) != 0
    }

    /// Whether the reclaimer or the watcher may wait for a fault at `address`. It is served
    /// whatever the budget says. Otherwise the fault would wait for room, and its waiter could not
    /// make any: the reclaimer by making frames ready, the watcher by asking for a larger share.
    pub(crate) fn is_awaited(&self, address: usize) -> bool {
        let [start, end] = &self.making_own;
        let is_made_own = address < end.load(Ordering::Acquire) && address >= start.load(Ordering::Acquire);
        is_made_own || address == self.pins.awaited.load(Ordering::Acquire)
    }
}
