//! The processor of a streak: threads that fault again and again are held on the processor of the
//! handler that serves them, and all threads of the engine run there meanwhile.
//!
//! Waking a thread on another processor takes ten times what serving its fault takes, and any
//! thread of the process that runs elsewhere makes each move of a page an interrupt. So one
//! handler, the *leader*, reads messages during a streak; the others leave the wait queue, and take
//! over if it is held up.
//!
//! A thread is held only while it waits for a fault, so that it never sees itself being held; and a
//! call by which a program looks at its processors, or makes something that inherits them, lets it
//! go before ([`Placement::let_go_caller`]). Threads of the program use atomics alone here: none
//! may hold a lock that a handler waits for. This module must never hold a thread whose own mask
//! allows one processor only, and never leave one held.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use pagoda_core::fault::streak::{OVER_US, Streaks};
use pagoda_linux::process::affinity::{self, Processors, SharedProcessors};
use pagoda_linux::process::thread::{current_id, now_ns, sleep_us};

/// Threads that are held at once. Further ones run where they are.
const HELD_MOST: usize = 8;

/// Nothing is held in the first moments of a program, which counts its processors then.
const QUIET_NS: u64 = 1_000_000_000;

/// How long nothing is held after a call that looks at processors or makes threads or processes:
/// many times what such a call takes.
const PAUSE_NS: u64 = 10_000_000;

/// How long a caller waits for the handler that lets it go at the same moment: some microseconds
/// unless that handler is not running.
const LET_GO_WAIT_US: u32 = 100_000;

/// A thread that is held. `thread` is its number, 0 if the place is free; the highest bit is set
/// while its mask is being changed.
#[derive(Debug, Default)]
struct Held {
    thread: AtomicU32,
    last_us: AtomicU64,
    /// The processors on which it may run otherwise.
    own: SharedProcessors,
}

const CHANGING: u32 = 1 << 31;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Placement {
    is_on: AtomicBool,
    not_before_ns: AtomicU64,
    streaks: Mutex<Streaks>,
    held: [Held; HELD_MOST],
    /// The handler that leads, and the processor of the streak, each plus one; 0 if there is none.
    leader: AtomicU32,
    processor: AtomicU32,
    /// Calls within which nothing is held.
    calls: AtomicU32,
}

/// The processor on which one thread of the engine was put, plus one; 0 if it was not.
#[derive(Debug, Default)]
pub(crate) struct Followed(u32);

impl Default for Placement {
    fn default() -> Self {
        Self {
            is_on: AtomicBool::new(false),
            not_before_ns: AtomicU64::new(0),
            streaks: Mutex::new(Streaks::default()),
            held: Default::default(),
            leader: AtomicU32::new(0),
            processor: AtomicU32::new(0),
            calls: AtomicU32::new(0),
        }
    }
}

impl Placement {
    /// Streaks are looked for from now on, after the first moments of a program.
    pub(crate) fn turn_on(&self) {
        self.pause(now_ns() + QUIET_NS);
        self.is_on.store(true, Ordering::Release);
    }

    /// Nothing is held until then.
    fn pause(&self, until_ns: u64) {
        self.not_before_ns.fetch_max(until_ns, Ordering::SeqCst);
    }

    /// Whether there is a streak.
    pub(crate) fn is_in_streak(&self) -> bool {
        self.processor.load(Ordering::Acquire) != 0
    }

    /// Whether another handler reads the messages just now.
    pub(crate) fn is_led_by_another(&self, handler: usize) -> bool {
        let leader = self.leader.load(Ordering::Acquire);
        leader != 0 && leader != handler as u32 + 1
    }

    /// The leader is held up by something else: the others go on reading.
    pub(crate) fn end_lead(&self) {
        self.leader.store(0, Ordering::Release);
    }

    /// The leader, if there is one.
    pub(crate) fn leader(&self) -> Option<usize> {
        self.leader.load(Ordering::Acquire).checked_sub(1).map(|id| id as usize)
    }

    /// The calling handler is about to serve a fault of `thread`, which waits for it. Holds it, if
    /// it is in a streak.
    pub(crate) fn note_fault(&self, handler: usize, thread: u32, now_ns: u64) {
        if thread == 0 || !self.is_on.load(Ordering::Relaxed) {
            return;
        }
        let now_us = now_ns / 1000;
        if let Some(held) = self.held.iter().find(|held| held.thread.load(Ordering::Relaxed) == thread) {
            held.last_us.store(now_us, Ordering::Relaxed);
            let lead = handler as u32 + 1;
            if self.leader.load(Ordering::Relaxed) == 0 && self.is_in_streak() {
                // Where two try, one leads, and the other stands by.
                let _ = self.leader.compare_exchange(0, lead, Ordering::AcqRel, Ordering::Relaxed);
            }
            return;
        }
        let Ok(mut streaks) = self.streaks.lock() else { return };
        if !streaks.fault(thread, now_us) || !self.may_hold(now_ns) || self.is_led_by_another(handler) {
            return;
        }
        let processor = match self.processor.load(Ordering::Acquire) {
            0 => affinity::current(),
            known => Some(known - 1),
        };
        let Some(processor) = processor else { return };
        if self.hold(thread, processor, now_us) {
            self.leader.store(handler as u32 + 1, Ordering::Release);
            self.processor.store(processor + 1, Ordering::Release);
        }
    }

    fn may_hold(&self, now_ns: u64) -> bool {
        self.calls.load(Ordering::SeqCst) == 0 && now_ns >= self.not_before_ns.load(Ordering::SeqCst)
    }

    /// Holds a thread there, unless its own mask has no other processor, or not that one.
    fn hold(&self, thread: u32, processor: u32, now_us: u64) -> bool {
        let Some(place) = self.held.iter().find(|held| held.thread.load(Ordering::Relaxed) == 0) else {
            return false;
        };
        let Ok(own) = affinity::of_thread(thread) else { return false };
        if own.count() < 2 || !own.has(processor) {
            return false;
        }
        place.own.set(&own);
        place.last_us.store(now_us, Ordering::Relaxed);
        place.thread.store(thread | CHANGING, Ordering::SeqCst);
        let is_held = affinity::hold(thread, &Processors::one(processor)).is_ok();
        place.thread.store(if is_held { thread } else { 0 }, Ordering::SeqCst);
        is_held
    }

    /// Lets threads go whose streak is over; all of them, if the streak is not to go on. The last
    /// one ends it.
    pub(crate) fn let_go_idle(&self, now_ns: u64) {
        if !self.is_in_streak() {
            return;
        }
        // One that is about to be held is none that is not.
        let Ok(_streaks) = self.streaks.try_lock() else { return };
        let now_us = now_ns / 1000;
        let may_hold = self.may_hold(now_ns);
        let mut is_any = false;
        for held in &self.held {
            let thread = held.thread.load(Ordering::Acquire);
            if thread == 0 {
                continue;
            }
            let is_over = now_us.saturating_sub(held.last_us.load(Ordering::Relaxed)) > OVER_US;
            if may_hold && !is_over || !held.let_go(thread) {
                is_any = true;
            }
        }
        if !is_any {
            self.processor.store(0, Ordering::Release);
            self.leader.store(0, Ordering::Release);
        }
    }

    /// The calling thread of the program is about to look at its processors, to change them, or to
    /// make something that inherits them: it gets its own back, and is not held again for a while.
    pub(crate) fn let_go_caller(&self) {
        if !self.is_on.load(Ordering::Relaxed) {
            return;
        }
        self.pause(now_ns() + PAUSE_NS);
        if !self.is_in_streak() {
            return;
        }
        let own = current_id();
        let is_own = |held: &&Held| held.thread.load(Ordering::SeqCst) & !CHANGING == own;
        let Some(held) = self.held.iter().find(is_own) else { return };
        let mut waited_us = 0;
        while !held.let_go(own) && is_own(&held) && waited_us < LET_GO_WAIT_US {
            sleep_us(20);
            waited_us += 20;
        }
    }

    /// As [`let_go_caller`](Self::let_go_caller), and nothing is held until
    /// [`leave_call`](Self::leave_call).
    pub(crate) fn enter_call(&self) {
        self.calls.fetch_add(1, Ordering::SeqCst);
        self.let_go_caller();
    }

    /// The call is over.
    pub(crate) fn leave_call(&self) {
        self.calls.fetch_sub(1, Ordering::SeqCst);
    }

    /// Puts the calling thread of the engine on the processor of the streak, or back on all.
    pub(crate) fn follow(&self, followed: &mut Followed) {
        let processor = self.processor.load(Ordering::Acquire);
        if processor == followed.0 {
            return;
        }
        let to = processor.checked_sub(1).map_or(Processors::ALL, Processors::one);
        // Where the kernel refuses, the thread is only slower.
        let _ = affinity::hold(0, &to);
        followed.0 = processor;
    }
}

impl Held {
    /// Gives `thread`, which is held here, its own processors back. False if another does.
    fn let_go(&self, thread: u32) -> bool {
        let changing = thread | CHANGING;
        if self
            .thread
            .compare_exchange(thread & !CHANGING, changing, Ordering::SeqCst, Ordering::Relaxed)
            .is_err()
        {
            return false;
        }
        // It may have ended, or changed its user: then it is not ours any more.
        let _ = affinity::hold(thread & !CHANGING, &self.own.get());
        self.thread.store(0, Ordering::SeqCst);
        true
    }
}
