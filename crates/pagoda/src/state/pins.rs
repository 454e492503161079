//! Pinned memory: pages that the kernel itself reads or writes when a thread ends.
//!
//! At the exit of a thread the kernel clears its thread ID in its control block and walks its list
//! of robust mutexes. It does both without serving userfaults. If such a page is evicted, a thread
//! that joins the ended one, or waits for the mutex, hangs for good. So each live thread pins the
//! OS pages of its control block, and each robust mutex its own.
//!
//! The program's own threads pin, on stacks that are managed memory themselves. So there is no lock
//! here, and nothing is allocated. The holder of a lock could wait for a page that only the waiter
//! for the lock can bring.
//!
//! The protocol leaves no gap. An evictor announces that it moves, then looks at the pins, moves,
//! and ends its announcement. A pinner enters the range, waits until every announced move has
//! ended, and touches the range, which brings it back if it was evicted. An evictor that announces
//! later sees the pin.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use pagoda_linux::mem::mincore::is_mapped;
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::process::thread::{is_alive, yield_now};

/// The owner of a pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pinner {
    /// The thread with this ID; its pins go when it is gone.
    Thread(u32),
    /// The robust mutex at this address; until it is destroyed, or unmapped and its place is
    /// needed.
    Mutex(usize),
    /// A part of a library's region, by the number of its pin; until the pin is dropped.
    Region(u32),
}

/// The bit of a [`Pinner::Region`]: a mutex, in which there is a futex, is at a multiple of 4.
const OF_REGION: usize = 2;

impl Pinner {
    /// As a word that is not 0 or 1: the two low bits tell the kinds apart.
    fn word(self) -> usize {
        match self {
            Self::Thread(id) => (id as usize) << 1 | 1,
            Self::Mutex(address) => address,
            Self::Region(number) => (number as usize) << 2 | OF_REGION,
        }
    }
}

/// The most pins: one or two for a thread, and as many threads as Linux lets a process of this size
/// have by default. Beyond it a pin fails, and with it the start of a thread.
pub const BOUND: usize = 32 << 10;

/// Threads that can move pages at once: handlers and the reclaimer.
const MOVERS: usize = 16;

const FREE: usize = 0;
const WRITING: usize = 1;

#[derive(Debug)]
struct Pin {
    /// [`FREE`], [`WRITING`], or a [`Pinner`]'s word.
    who: AtomicUsize,
    start: AtomicUsize,
    end: AtomicUsize,
}

/// The pinned ranges.
#[derive(Debug)]
pub struct Pins {
    pins: Box<[Pin]>,
    /// One past the highest place that was ever used.
    used: AtomicUsize,
    mutexes: AtomicUsize,
    /// The address of the pinned OS page that the watcher swaps in just now; 0 if none. Its fault
    /// is served whatever the budget says.
    pub(crate) awaited: AtomicUsize,
    /// Odd while a mover has this place and may move the pages that it looked at.
    moves: [AtomicU64; MOVERS],
}

impl Default for Pins {
    fn default() -> Self {
        let pin =
            || Pin { who: AtomicUsize::new(FREE), start: AtomicUsize::new(0), end: AtomicUsize::new(0) };
        Self {
            pins: (0..BOUND).map(|_| pin()).collect(),
            used: AtomicUsize::new(0),
            mutexes: AtomicUsize::new(0),
            awaited: AtomicUsize::new(0),
            moves: [const { AtomicU64::new(0) }; MOVERS],
        }
    }
}

/// Whether this is the word of a thread that is gone.
fn is_of_ended_thread(who: usize) -> bool {
    who > WRITING && who & 1 == 1 && !is_alive((who >> 1) as u32)
}

/// An announced move. Pages that it found unpinned may be moved until it is dropped.
pub(crate) struct Moving<'a> {
    pins: &'a Pins,
    place: &'a AtomicU64,
}

impl Moving<'_> {
    /// Whether any of `range` is pinned.
    pub(crate) fn overlaps(&self, range: PageRange) -> bool {
        self.pins.overlaps(range)
    }

    /// The pinned ranges that have a part of `range`, lowest address first.
    pub(crate) fn pinned_in(&self, range: PageRange) -> Vec<PageRange> {
        let ends = |pin: &Pin| (pin.start.load(Ordering::SeqCst), pin.end.load(Ordering::SeqCst));
        let held = self.pins.live().filter(|pin| pin.who.load(Ordering::SeqCst) > WRITING).map(ends);
        let overlaps = held.filter(|(start, end)| *start < range.end() && range.start() < *end);
        let mut pinned: Vec<_> = overlaps.filter_map(|(start, end)| PageRange::new(start, end)).collect();
        pinned.sort_unstable_by_key(|pinned| pinned.start());
        pinned
    }
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.place.fetch_add(1, Ordering::SeqCst);
    }
}

impl Pins {
    /// Pins `range`. The caller touches it next. False if there are too many pins. Pinning twice is
    /// the same as once.
    #[must_use]
    pub fn pin(&self, pinner: Pinner, range: PageRange) -> bool {
        if !self.has(pinner, range) && !self.inherit(pinner, range) && !self.enter(pinner, range) {
            self.drop_ended_threads();
            self.drop_unmapped_mutexes();
            if !self.enter(pinner, range) {
                return false;
            }
        }
        for place in &self.moves {
            let now = place.load(Ordering::SeqCst);
            // The wait is bounded by one move of a batch, which waits for no other thread.
            while now % 2 == 1 && place.load(Ordering::SeqCst) == now {
                yield_now();
            }
        }
        true
    }

    fn has(&self, pinner: Pinner, range: PageRange) -> bool {
        self.live().any(|pin| {
            pin.who.load(Ordering::SeqCst) == pinner.word()
                && pin.start.load(Ordering::SeqCst) == range.start()
        })
    }

    /// Takes over the pin of an ended thread at the same place in memory. The C library keeps
    /// stacks for the next threads, so that this is the rule. A program that starts many threads
    /// then has as many pins as threads that live at once.
    fn inherit(&self, pinner: Pinner, range: PageRange) -> bool {
        matches!(pinner, Pinner::Thread(_))
            && self.live().any(|pin| {
                let who = pin.who.load(Ordering::SeqCst);
                let is_same = pin.start.load(Ordering::SeqCst) == range.start()
                    && pin.end.load(Ordering::SeqCst) == range.end();
                is_same
                    && is_of_ended_thread(who)
                    && pin
                        .who
                        .compare_exchange(who, pinner.word(), Ordering::SeqCst, Ordering::Relaxed)
                        .is_ok()
            })
    }

    fn enter(&self, pinner: Pinner, range: PageRange) -> bool {
        for (place, pin) in self.pins.iter().enumerate() {
            if pin.who.load(Ordering::SeqCst) == FREE
                && pin.who.compare_exchange(FREE, WRITING, Ordering::SeqCst, Ordering::Relaxed).is_ok()
            {
                pin.start.store(range.start(), Ordering::SeqCst);
                pin.end.store(range.end(), Ordering::SeqCst);
                pin.who.store(pinner.word(), Ordering::SeqCst);
                self.used.fetch_max(place + 1, Ordering::SeqCst);
                if matches!(pinner, Pinner::Mutex(_)) {
                    self.mutexes.fetch_add(1, Ordering::SeqCst);
                }
                return true;
            }
        }
        false
    }

    fn live(&self) -> impl Iterator<Item = &Pin> {
        self.pins[..self.used.load(Ordering::SeqCst)].iter()
    }

    /// Takes back all pins of `pinner`.
    pub fn unpin(&self, pinner: Pinner) {
        if matches!(pinner, Pinner::Mutex(_)) && self.mutexes.load(Ordering::SeqCst) == 0 {
            return;
        }
        for pin in self.live() {
            let word = pinner.word();
            if pin.who.compare_exchange(word, FREE, Ordering::SeqCst, Ordering::Relaxed).is_ok()
                && matches!(pinner, Pinner::Mutex(_))
            {
                self.mutexes.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }

    /// Drops the pins of threads that have ended.
    pub fn drop_ended_threads(&self) {
        for pin in self.live() {
            let who = pin.who.load(Ordering::SeqCst);
            if is_of_ended_thread(who) {
                let _ = pin.who.compare_exchange(who, FREE, Ordering::SeqCst, Ordering::Relaxed);
            }
        }
    }

    /// Drops the pins of mutexes whose memory is gone. Many programs unmap them without destroying
    /// them, and the kernel does not report memory that was never managed. Checking each of them
    /// takes milliseconds, so it happens only when no place is left.
    fn drop_unmapped_mutexes(&self) {
        for pin in self.live() {
            let who = pin.who.load(Ordering::SeqCst);
            let is_mutex = who > WRITING && who & 1 == 0 && who & OF_REGION == 0;
            if is_mutex
                && !is_mapped(pin.start.load(Ordering::SeqCst))
                && pin.who.compare_exchange(who, FREE, Ordering::SeqCst, Ordering::Relaxed).is_ok()
            {
                self.mutexes.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }

    /// Announces a move; see [`Moving`].
    pub(crate) fn moving(&self) -> Moving<'_> {
        loop {
            for place in &self.moves {
                let now = place.load(Ordering::SeqCst);
                if now.is_multiple_of(2)
                    && place.compare_exchange(now, now + 1, Ordering::SeqCst, Ordering::Relaxed).is_ok()
                {
                    return Moving { pins: self, place };
                }
            }
            // There are more places than movers, so that another attempt finds one.
            yield_now();
        }
    }

    /// Whether any of `range` is pinned now.
    #[must_use]
    pub fn overlaps(&self, range: PageRange) -> bool {
        self.live().any(|pin| {
            pin.who.load(Ordering::SeqCst) > WRITING
                && pin.start.load(Ordering::SeqCst) < range.end()
                && range.start() < pin.end.load(Ordering::SeqCst)
        })
    }

    /// How many bytes are pinned.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let held = self.live().filter(|pin| pin.who.load(Ordering::SeqCst) > WRITING);
        held.map(|pin| pin.end.load(Ordering::SeqCst).saturating_sub(pin.start.load(Ordering::SeqCst)) as u64)
            .sum()
    }
}

#[cfg(test)]
#[path = "pins_test.rs"]
mod tests;
