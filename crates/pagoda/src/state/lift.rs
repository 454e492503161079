//! Pages that the kernel does not move where they are, and the request to lift them.
//!
//! To lift pages posts an event, and its caller waits until it is read. So one thread lifts, and
//! the asker reads: it has the gate exclusively, so that one request is under way at a time. This
//! module must never forget a request that has begun.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use pagoda_linux::arena::lift::LiftPlace;
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::process::thread::now_ns;

use crate::state::wakeup::Bell;

/// The most refused pages that are noted: as many as four lifts take, of 64 KiB each.
/// Further ones are met again by the next round of the hand.
const REFUSED_MOST: usize = 128;

/// How long the thread sleeps at most when nothing is asked of it.
const SLEEP_US: u32 = 1_000_000;

/// How long nothing is lifted once pages had to stay.
const REST_NS: u64 = 1_000_000_000;

/// The states of a request, in the two low bits of its first address.
const ASKED: usize = 1;
const LIFTED: usize = 2;
const FAILED: usize = 3;

/// How a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Pending,
    Lifted,
    Failed,
}

#[derive(Debug, Default)]
pub(crate) struct Lift {
    /// Only in a library: pages are noted.
    is_on: AtomicBool,
    /// Until then nothing is lifted: the kernel told of pages that have to stay.
    rests_until_ns: AtomicU64,
    /// Base pages that a move was refused for, by an address in each.
    refused: Mutex<Vec<usize>>,
    /// None within: no addresses or no thread could be had.
    place: OnceLock<Option<LiftPlace>>,
    /// The first address, with its state; 0 if nothing is asked.
    from: AtomicUsize,
    len: AtomicUsize,
    /// The event was read.
    was_told: AtomicBool,
    bell: Bell,
    quits: AtomicBool,
}

impl Lift {
    pub(crate) fn turn_on(&self) {
        self.is_on.store(true, Ordering::Release);
    }

    /// With adopted memory: its owner may map other memory in its place at any time.
    pub(crate) fn turn_off(&self) {
        self.is_on.store(false, Ordering::Release);
    }

    /// Lifts nothing for a while. Where pages have to stay they do so for long, and to ask for them
    /// can take the kernel milliseconds.
    pub(crate) fn rest(&self) {
        self.rests_until_ns.store(now_ns() + REST_NS, Ordering::Relaxed);
    }

    /// Whether protected memory is lifted here, as far as is known.
    pub(crate) fn works(&self) -> bool {
        self.is_on.load(Ordering::Acquire)
            && !matches!(self.place.get(), Some(None))
            && now_ns() >= self.rests_until_ns.load(Ordering::Relaxed)
    }

    /// Notes the base page at `address`. False if it is not to be lifted, or not now.
    pub(crate) fn note(&self, address: usize) -> bool {
        if !self.works() {
            return false;
        }
        let mut refused = self.refused.lock().expect("nothing panics with this lock held");
        let has_room = refused.len() < REFUSED_MOST;
        if has_room {
            refused.push(address);
        }
        has_room
    }

    /// The noted pages, lowest address first.
    pub(crate) fn take_refused(&self) -> Vec<usize> {
        let mut refused =
            std::mem::take(&mut *self.refused.lock().expect("nothing panics with this lock held"));
        refused.sort_unstable();
        refused.dedup();
        refused
    }

    /// Where pages are lifted to, if `start` starts the thread for it.
    pub(crate) fn place(&self, start: impl FnOnce() -> bool) -> Option<&LiftPlace> {
        self.place.get_or_init(|| LiftPlace::reserve().ok().filter(|_| start())).as_ref()
    }

    /// Whether an event's target is where pages are lifted to.
    pub(crate) fn is_place(&self, address: usize) -> bool {
        self.place.get().is_some_and(|place| place.as_ref().is_some_and(|place| place.has(address)))
    }

    /// Asks for `range`. Only with the gate held exclusively.
    pub(crate) fn ask(&self, range: PageRange) {
        debug_assert_eq!(self.from.load(Ordering::Relaxed), 0, "one is asked for at a time");
        self.was_told.store(false, Ordering::Relaxed);
        self.len.store(range.len(), Ordering::Relaxed);
        self.from.store(range.start() | ASKED, Ordering::Release);
        self.bell.ring();
    }

    pub(crate) fn answer(&self) -> Answer {
        match self.from.load(Ordering::Acquire) & 3 {
            LIFTED => Answer::Lifted,
            FAILED => Answer::Failed,
            _ => Answer::Pending,
        }
    }

    /// The request is dealt with.
    pub(crate) fn end(&self) {
        self.from.store(0, Ordering::Release);
    }

    /// The event was read, with the gate held exclusively.
    pub(crate) fn tell(&self) {
        self.was_told.store(true, Ordering::Relaxed);
    }

    pub(crate) fn was_told(&self) -> bool {
        self.was_told.load(Ordering::Relaxed)
    }

    /// Lifts the ranges that are asked for until the reclaimer, which asks, has ended.
    pub(crate) fn serve(&self, lift: impl Fn(PageRange, &LiftPlace) -> bool) {
        while !self.quits.load(Ordering::Acquire) {
            self.bell.sleep(SLEEP_US);
            let asked = self.from.load(Ordering::Acquire);
            if asked & 3 == ASKED
                && let Some(Some(place)) = self.place.get()
            {
                let from = asked & !3;
                let lifted = lift(PageRange::at(from, self.len.load(Ordering::Relaxed)), place);
                self.from.store(from | if lifted { LIFTED } else { FAILED }, Ordering::Release);
            }
        }
    }

    pub(crate) fn quit(&self) {
        self.quits.store(true, Ordering::Release);
        self.bell.ring();
    }
}
