//! Forks that are under way, and whether the kernel tells of them.
//!
//! An engine that has registered nothing lets forks pass: their children lack nothing. Its first
//! registration waits until they are over (`pagoda_core::fork::in_progress`). This module must
//! never let anything be registered beside a fork that passes, nor have one announced that the
//! kernel won't tell of, nor let a parent go on that may end before its child was served.

use std::sync::atomic::Ordering;

use pagoda_core::fork::in_progress::{Begin, Forking};
use pagoda_linux::process::identity::is_stopped;
use pagoda_linux::process::spare_descriptor::has_room;
use pagoda_linux::process::thread::{now_ns, ran_ns, sleep_us};

use crate::engine::Engine;
use crate::stats::counters::Counter;

/// How a fork that is about to happen is known to the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fork {
    /// The child lacks nothing, and nothing is registered until
    /// [`fork_passed`](crate::process::ProcessEngine::fork_passed).
    Passes,
    /// The kernel will tell of it, and the child is given the pages that it lacks.
    Announced,
    /// The kernel does not tell of it, or can't for want of a descriptor, and children would lack
    /// memory: everything has to be released before.
    Unknown,
}

impl Engine {
    /// A thread is about to fork. Waits for the same as [`open_to_forks`](Self::open_to_forks).
    pub(crate) fn begin_fork(&self) -> Fork {
        loop {
            let word = Forking::from_bits(self.forking.load(Ordering::SeqCst));
            let (next, fork) = match word.begin() {
                Begin::Announced(_) if !self.fork_events || !has_room() => return Fork::Unknown,
                Begin::Announced(next) => (next, Fork::Announced),
                Begin::Passes(next) => (next, Fork::Passes),
                Begin::Waits => {
                    sleep_us(50);
                    continue;
                }
            };
            if self.swap_forking(word, next) {
                if fork == Fork::Announced {
                    self.announcements.made.fetch_add(1, Ordering::SeqCst);
                }
                return fork;
            }
        }
    }

    /// An announced fork has failed.
    pub(crate) fn take_back_announcement(&self) {
        // One that was past the C library's may have been taken for it meanwhile.
        let _ = self.fork_heard();
        self.announcement_is_over();
    }

    /// The child of an announced fork has its pages, or there is none.
    pub(crate) fn announcement_is_over(&self) {
        self.announcements.over.fetch_add(1, Ordering::SeqCst);
    }

    /// A fork that is being served goes on: faults that wait for the gate meanwhile are not stuck.
    pub(crate) fn note_fork_goes_on(&self) {
        self.counters.set(Counter::LastLookNs, now_ns());
        self.announcements.went_on_ns.store(ran_ns(), Ordering::Relaxed);
    }

    /// When a fork that was served got on last, by the time that the process ran; 0 before the
    /// first.
    pub(crate) fn fork_went_on_ns(&self) -> u64 {
        self.announcements.went_on_ns.load(Ordering::Relaxed)
    }

    /// Whether a child that is sent its memory is stopped: the faults that wait for that are not
    /// stuck, for they go on with the child, or with its end.
    pub(crate) fn waits_for_a_stopped_child(&self) -> bool {
        let reader = self.announcements.reader.load(Ordering::Relaxed);
        reader != 0 && is_stopped(reader)
    }

    /// Waits until all forks are over that were announced so far, the caller's own among them, and
    /// not for those that are announced later. It takes as long as serving them does; a thread that
    /// was to fork and jumped away would be waited for by all for good.
    pub(crate) fn wait_until_forks_are_served(&self) {
        let made = self.announcements.made.load(Ordering::SeqCst);
        while self.announcements.over.load(Ordering::SeqCst) < made {
            sleep_us(50);
        }
    }

    /// A fork that passed is over, here in the parent; whether there was one.
    pub(crate) fn fork_passed(&self, has_forked: bool) {
        if has_forked {
            self.counters.add(Counter::Forks, 1);
            // Before anything can be registered: shared pages don't move.
            self.has_forked.store(true, Ordering::Release);
        }
        self.update_forking(|word| Some(word.passed()));
    }

    /// An announced fork has been heard of, or has failed. False if none was announced.
    pub(crate) fn fork_heard(&self) -> bool {
        self.update_forking(Forking::heard)
    }

    /// Whether an announced fork has not been heard of.
    pub(crate) fn is_fork_announced(&self) -> bool {
        Forking::from_bits(self.forking.load(Ordering::SeqCst)).is_any_announced()
    }

    /// Called before any memory of the program is registered: waits for forks that pass, as long as
    /// fork(2) takes, and makes the doorbell at which children wait. False if that failed: nothing
    /// may be registered. One thread alone calls it.
    pub(crate) fn open_to_forks(&self) -> bool {
        if self.has_registered() {
            return true;
        }
        self.update_forking(|word| Some(word.opening()));
        while Forking::from_bits(self.forking.load(Ordering::SeqCst)).is_any_passing() {
            sleep_us(50);
        }
        let is_open = !self.fork_events || self.space.install_doorbell().is_ok();
        self.update_forking(|word| Some(word.opened(is_open)));
        is_open
    }

    /// Whether immovable pages may be shared with a child. As long as nothing was registered a fork
    /// by a raw system call was not seen, and its child may live on.
    pub(crate) fn may_be_shared(&self) -> bool {
        self.has_forked.load(Ordering::Acquire) || self.has_registered()
    }

    /// Whether anything of the program's is registered, or may be from now on.
    pub(crate) fn has_registered(&self) -> bool {
        Forking::from_bits(self.forking.load(Ordering::SeqCst)).is_open()
    }

    fn update_forking(&self, update: impl Fn(Forking) -> Option<Forking>) -> bool {
        loop {
            let word = Forking::from_bits(self.forking.load(Ordering::SeqCst));
            let Some(next) = update(word) else { return false };
            if self.swap_forking(word, next) {
                return true;
            }
        }
    }

    fn swap_forking(&self, word: Forking, next: Forking) -> bool {
        let (word, next) = (word.bits(), next.bits());
        self.forking.compare_exchange_weak(word, next, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }
}
